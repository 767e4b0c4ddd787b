"""Makes docs/quickstart.png: real cells, executed in JupyterLab by a real browser.

./dev test tests/unit        (once, for playwright; Chromium on PATH)
.venv/bin/python docs/picture.py
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import FloatRect, Page, sync_playwright

HERE = Path(__file__).resolve().parent
CELLS = (
    "%load_ext llm_magic",
    "%%llm -t 0 -n 48\nWhat is the capital of France? Answer in one sentence.",
    "%%llm --complete --logprobs 5 -t 0 -n 24\nOnce upon a time, there was a",
)
SIZE = {"width": 920, "height": 760}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _serve(folder: Path, port: int, token: str) -> "subprocess.Popen[bytes]":
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    (folder / "root").mkdir()
    nbformat.write(notebook, folder / "root" / "hello.ipynb")
    options = [
        "--allow-root",
        "--no-browser",
        f"--port={port}",
        "--ip=127.0.0.1",
        f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder / 'root'}",
    ]
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    command = [sys.executable, "-m", "jupyterlab", *options]
    env = os.environ | {"JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=env, stdout=quiet, stderr=quiet)


def _open(page: Page, url: str) -> None:
    for _ in range(60):
        try:
            page.goto(url)
            break
        except Exception:  # the server is still starting
            page.wait_for_timeout(500)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    page.wait_for_timeout(4_000)  # the kernel connects
    if page.locator("#jp-left-stack").is_visible():
        page.keyboard.press("Control+b")  # no side bar in the picture


def _run_cells(page: Page) -> None:
    for i in range(len(CELLS)):
        page.keyboard.press("Escape")
        page.locator(".jp-CodeCell").nth(i).click()
        page.keyboard.press("Control+Enter")
        prompt = page.locator(".jp-CodeCell .jp-InputPrompt").nth(i)
        for _ in range(600):
            if (prompt.text_content() or "").strip(" []:").isdigit():
                break
            page.wait_for_timeout(200)
    page.keyboard.press("Escape")
    page.wait_for_timeout(1_000)


def _around_cells(page: Page) -> FloatRect:
    """The notebook's panel down to its last cell."""
    panel = page.locator(".jp-Notebook").first.bounding_box()
    last = page.locator(".jp-CodeCell").last.bounding_box()
    assert panel is not None
    assert last is not None
    bottom = last["y"] + last["height"] + 8
    return {
        "x": panel["x"],
        "y": panel["y"],
        "width": panel["width"],
        "height": bottom - panel["y"],
    }


def main() -> int:
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    port, token = _free_port(), secrets.token_hex(8)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        server = _serve(Path(folder), port, token)
        try:
            browser = play.chromium.launch(executable_path=browser_path, args=FLAGS)
            page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
            _open(page, f"http://127.0.0.1:{port}/lab/tree/hello.ipynb?token={token}")
            _run_cells(page)
            target = HERE / "quickstart.png"
            page.screenshot(path=target, clip=_around_cells(page))
            browser.close()
        finally:
            server.terminate()
            server.wait(10)
    # 64 colours are enough for a page of text, and a quarter of the bytes.
    Image.open(target).convert("RGB").quantize(64).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
