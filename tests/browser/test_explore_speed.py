"""The page stays awake: no task over 50 ms with a live view of 1,000 tokens beside a stream."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from . import pagetasks
from .harness import Jupyter

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

SETUP = """
%load_ext llm_magic
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.widgets.explorer.widget import Explorer
def answer(request):
    if request.given:  # a branch
        return [" more%d" % i for i in range(400)]
    return [" word%d" % (i % 97) if i % 120 else ".\\n" for i in range(1000)]
script = Scripted(answer, model="fake")
hub.add("fake", LLM(script)); hub.default = "fake"
r = hub.get("fake").complete("Go", logprobs=5, max_tokens=1000)
script.delay = 0.005
"""
CELLS = [
    SETUP,
    "r",  # the static heat map of 1,000 tokens is on the page too
    "Explorer(r, max_tokens=400)",
    "%%llm -n 400\nGo",
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Jupyter]:
    """A server whose pages keep every cell in the document: the heaviest way there is."""
    server = Jupyter(tmp_path, "lab")
    server.set("@jupyterlab/notebook-extension/tracker", windowingMode="none")
    yield server
    server.stop()


def test_no_task_of_the_page_takes_long(lab: Jupyter, browser: Browser) -> None:
    pagetasks.hold(lambda: _use(browser, lab))


def _use(browser: Browser, lab: Jupyter) -> dict[str, list[float]]:
    lab.write("speed.ipynb", CELLS)
    notebook = lab.open(browser, "speed.ipynb")
    page, view = notebook.page, notebook.cell(2).locator(".lmx")
    text = view.locator(".lmt-text").last
    found: dict[str, list[float]] = {}

    def timed(name: str, action: Callable[[], None]) -> None:
        def work() -> None:
            action()
            page.wait_for_timeout(500)

        found[name] = pagetasks.milliseconds(browser, page, work)

    def show() -> None:
        notebook.run(2)
        expect(text.get_by_role("option")).to_have_count(1000)

    def look() -> None:
        notebook.start(3)
        for i in (3, 50, 200, 400):
            text.get_by_role("option").nth(i).hover()
            expect(view.locator(".lmt-card")).to_contain_text(f"token {i}")
        text.get_by_role("option").nth(100).click()
        for key in (
            *["ArrowRight"] * 10,
            *["ArrowDown"] * 10,
            "Control+End",
            "Control+Home",
            "End",
        ):
            page.keyboard.press(key)

    def branch() -> None:
        notebook.start(3)
        text.get_by_role("option").nth(500).click()
        view.locator(".lmt-choice:not([aria-disabled])").first.click()
        expect(text).to_contain_text("more399")

    def compare() -> None:
        view.get_by_role("button", name="Side by side").click()
        expect(view.locator(".lmt-token")).to_have_count(1901)
        view.get_by_role("tab").first.click()

    notebook.run(0)
    notebook.run(1)
    notebook.quiet(1.5)  # JupyterLab has looked for headings in it
    timed("show", show)
    timed("look", look)
    notebook.finished(3)
    timed("branch", branch)
    notebook.finished(3)
    timed("compare", compare)
    assert notebook.errors == []
    notebook.close()
    return found
