"""A real JupyterLab or Notebook 7 with a real kernel, driven through Chromium.

The server runs on a free port of the loopback interface. Its settings, runtime files and IPython
profile lie in a temporary folder, so that the user's own settings play no part.
"""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Locator, Page, WebSocket, expect

START_SECONDS = 90
CELL_SECONDS = 90

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Jupyter:
    """One server. `app` is "lab" or "notebook"."""

    def __init__(self, home: Path, app: str = "lab", env: dict[str, str] | None = None) -> None:
        self.app = app
        self.root = home / "root"
        self.port = free_port()
        self.token = secrets.token_hex(16)
        self.settings = home / "settings"
        self.root.mkdir(parents=True, exist_ok=True)
        self.set(
            "@jupyterlab/apputils-extension/notification", fetchNews="false", checkForUpdates=False
        )
        places = {
            "JUPYTER_CONFIG_DIR": home / "config",
            "JUPYTER_DATA_DIR": home / "data",
            "JUPYTER_RUNTIME_DIR": home / "runtime",
            "JUPYTERLAB_SETTINGS_DIR": self.settings,
            "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
            "IPYTHONDIR": home / "ipython",
        }
        self.log = home / f"{app}.log"
        command = [
            *(sys.executable, "-m", app if app == "notebook" else "jupyterlab"),
            *("--allow-root", "--no-browser", "--ip=127.0.0.1", f"--port={self.port}"),
            *(f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={self.root}"),
        ]
        self.process = subprocess.Popen(
            command,
            env=os.environ | {k: str(v) for k, v in places.items()} | (env or {}),
            stdout=self.log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that stop() reaches its kernels and nothing else
        )
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(self.url("api"), timeout=2).close()
                return
            except OSError:
                time.sleep(0.2)
        self.stop()
        raise RuntimeError(
            f"Jupyter did not start:\n{self.log.read_text(errors='replace')[-4000:]}"
        )

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def stop_kernels(self) -> None:
        """A kernel that nobody needs any more would share memory and cores with the next test."""
        with urllib.request.urlopen(self.url("api/kernels"), timeout=10) as found:
            for kernel in json.load(found):
                url = self.url(f"api/kernels/{kernel['id']}")
                urllib.request.urlopen(urllib.request.Request(url, method="DELETE"), timeout=10)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}?token={self.token}"

    def set(self, plugin: str, **values: Any) -> None:
        """A user setting of JupyterLab, by the plugin that reads it."""
        file = self.settings / f"{plugin}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))

    def theme(self, dark: bool) -> None:
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self.set("@jupyterlab/apputils-extension/themes", theme=name, **{"adaptive-theme": False})

    def write(self, name: str, cells: Sequence[str]) -> Path:
        """A notebook file of these code cells."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={
                "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
            },
        )
        path = self.root / name
        nbformat.write(notebook, path)
        return path

    def open(self, browser: Browser, name: str, **context: Any) -> "Notebook":
        """Open a notebook of the root folder in a fresh browser context; the kernel is up."""
        options: dict[str, Any] = {"viewport": {"width": 1200, "height": 900}} | context
        page = browser.new_context(**options).new_page()
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.set_default_timeout(CELL_SECONDS * 1000)
        # A workspace of its own: JupyterLab would open the notebooks of earlier pages again.
        space = re.sub(r"\W", "-", name)
        place = f"lab/workspaces/{space}/tree" if self.app == "lab" else "notebooks"
        notebook = Notebook(page, self.root / name, self.app)
        page.goto(self.url(f"{place}/{name}"))
        notebook.ready()
        return notebook


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, page: Page, path: Path, app: str) -> None:
        self.page, self.path, self.app = page, path, app
        self.errors: list[str] = []
        self.frames = 0  # messages from the kernel since the page was opened
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        if "/api/kernels/" in socket.url:
            socket.on("framereceived", self._count)

    def _count(self, frame: object) -> None:
        self.frames += 1

    def ready(self, kernel: bool = True) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell", state="attached")
        if kernel:
            # The page says "idle" before its socket is open, and drops what is run until then.
            self.until(lambda: self.frames >= 3, "the kernel does not talk to the page")
            idle = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
            self.page.wait_for_selector(idle, state="attached")
            self.page.wait_for_timeout(300)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(what)
            self.page.wait_for_timeout(50)

    def cell(self, i: int) -> Locator:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(i)

    def output(self, i: int) -> Locator:
        return self.cell(i).locator(".jp-OutputArea-output")

    def start(self, i: int) -> None:
        """Run a cell as a person does, without waiting for its end."""
        prompt = self.cell(i).locator(".jp-InputArea-prompt")
        before = prompt.inner_text()
        for _ in range(5):
            # A page that is still being built loses keys: a person would press again.
            self.cell(i).locator(".cm-content").click()
            self.page.keyboard.press("Control+Enter")
            try:
                expect(prompt).not_to_have_text(before, timeout=4000)
                return
            except AssertionError:
                continue
        raise AssertionError(f"cell {i} does not start")

    def run(self, i: int) -> None:
        """Run a cell and wait for its end."""
        self.start(i)
        self.finished(i)

    def finished(self, i: int) -> None:
        prompt = self.cell(i).locator(".jp-InputArea-prompt")
        expect(prompt).to_have_text(NUMBERED, timeout=CELL_SECONDS * 1000)

    def select(self, i: int) -> None:
        """Put the cursor into a cell's source, so that keys go there."""
        self.cell(i).locator(".cm-content").click()

    def quiet(self, seconds: float = 1.0) -> None:
        """Wait until the kernel has sent nothing for so long. Asks nothing of the page."""
        seen, since = -1, time.monotonic()
        while time.monotonic() - since < seconds:
            if seen != self.frames:
                seen, since = self.frames, time.monotonic()
            self.page.wait_for_timeout(50)

    def save(self) -> nbformat.NotebookNode:
        """Save as a person does; what the file then holds."""
        before = self.path.stat().st_mtime_ns
        self.cell(0).locator(".jp-InputArea-prompt").click()
        self.page.keyboard.press("Control+s")
        self.until(lambda: self.path.stat().st_mtime_ns != before, "the notebook was not saved")
        self.until(self._whole, "the notebook was saved by half")
        return nbformat.read(self.path, as_version=4)

    def _whole(self) -> bool:
        """The file is not being written just now."""
        self.page.wait_for_timeout(200)
        try:
            return bool(json.loads(self.path.read_text("utf-8")))
        except ValueError:
            return False

    def reload(self) -> None:
        self.frames = 0
        self.page.reload()
        self.ready()

    def restart_kernel(self) -> None:
        """Through the menu, as a person does."""
        self.page.get_by_role("menuitem", name="Kernel").click()
        self.page.get_by_text("Restart Kernel…", exact=True).click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.wait_for_selector(".jp-Dialog", state="detached")

    def close(self) -> None:
        self.page.context.close()


NUMBERED = re.compile(r"\[\d+\]")
