"""Makes the pictures of README and documentation: `python docs/pictures.py`.

They are screenshots of a real JupyterLab with the embedded model, each at most 150 kB: a window
with a `%%llm` cell and a chat, the tokens of an answer, and the live view with a branch, in both
themes. They are written to docs/images.
"""

import importlib
import io
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, FloatRect, Locator, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "images"
LIMIT = 150_000

CELLS = [
    "%load_ext llm_magic",
    "%%llm --logprobs 5 -t 0 -n 48\nWhy do people write notebooks? Answer in two sentences.",
    "import llm_magic\n\nchat = llm_magic.Chat(temperature=0, logprobs=5, max_tokens=90)\nchat",
    "_llm.explore()",
]
QUESTIONS = ("What is the capital of France?", "Write a Python function that adds two numbers.")


def _tests() -> tuple[Any, Any]:
    """The browser tests' harness, which is no part of the package."""
    package = types.ModuleType("browser_tests")
    package.__path__ = [str(ROOT / "tests" / "browser")]
    sys.modules["browser_tests"] = package
    names = ("browser_tests.harness", "browser_tests.chatpage")
    return tuple(importlib.import_module(name) for name in names)  # type: ignore[return-value]


def keep(name: str, png: bytes) -> None:
    """Save with a palette: half the size, the same look."""
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    path = OUT / name
    image.save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    if path.stat().st_size > LIMIT:
        raise SystemExit(f"{name} is over {LIMIT} bytes")


def with_card(widget: Locator) -> FloatRect:
    """The part of the page that holds a widget and its open card."""
    box, card = widget.bounding_box(), widget.locator(".lmt-card").first.bounding_box()
    if box is None or card is None:
        raise SystemExit("a widget or its card is not on the page")
    low = max(box["y"] + box["height"], card["y"] + card["height"]) + 8
    right = max(box["x"] + box["width"], card["x"] + card["width"]) + 8
    return {**box, "height": low - box["y"], "width": right - box["x"]}


def shoot(browser: Browser, server: Any, chatpage: Any, dark: bool) -> None:
    server.theme(dark)
    name = f"chat-{'dark' if dark else 'light'}.ipynb"
    server.write(name, CELLS)
    notebook = server.open(browser, name, viewport={"width": 1180, "height": 1040})
    page = notebook.page
    page.keyboard.press("Control+b")  # the file browser says nothing here
    for i in range(3):
        notebook.run(i)
    chat = chatpage.ChatPage(notebook, 2)
    for question in QUESTIONS:
        chat.say(question)
    chat.input.blur()
    page.mouse.move(5, 400)
    expect(chat.root.get_by_role("status")).to_have_text("")
    notebook.cell(1).scroll_into_view_if_needed()
    page.wait_for_timeout(800)
    keep(f"window-{'dark' if dark else 'light'}.png", page.screenshot())
    chat.act("Show the tokens")
    chat.root.locator(".lmt-token:is(.lmt-p2, .lmt-p3, .lmt-p4)").first.hover()
    page.wait_for_timeout(300)
    area = with_card(chat.root)
    keep(f"chat-tokens-{'dark' if dark else 'light'}.png", page.screenshot(clip=area))
    notebook.run(3)
    live = notebook.cell(3).locator(".lmx")
    word = live.locator(".lmt-token:is(.lmt-p2, .lmt-p3, .lmt-p4)").nth(2)
    word.click()
    live.locator(".lmt-choice:not([aria-disabled])").first.click()
    expect(live.locator(".lmx-stop")).to_be_hidden()
    live.get_by_role("button", name="Side by side").click()
    live.locator(".lmt-pane").last.locator(".lmt-parts").click()
    notebook.cell(3).evaluate("e => e.scrollIntoView({ block: 'start' })")
    page.wait_for_timeout(500)
    keep(f"live-{'dark' if dark else 'light'}.png", page.screenshot(clip=with_card(live)))
    notebook.close()
    server.stop_kernels()


def main() -> None:
    harness, chatpage = _tests()
    expect.set_options(timeout=120_000)
    OUT.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    home = Path(tempfile.mkdtemp())
    server = harness.Jupyter(home)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=harness.CHROMIUM_FLAGS
            )
            for dark in (False, True):
                shoot(browser, server, chatpage, dark)
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
