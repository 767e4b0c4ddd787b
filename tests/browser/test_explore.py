"""The live view of a reply in a real browser: pointer, keyboard, branches, reload."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from .harness import Jupyter, Notebook

pytestmark = pytest.mark.browser

SETUP = """
%load_ext llm_magic
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.chat.scripted import Scripted
tail = ["word%d " % i for i in range(40)]
script = Scripted(lambda r: "The quick <b>fox</b> jumps." if not isinstance(r.prompt, tuple) or
                  not isinstance(r.prompt[0], int) else tail, model="fake")
hub.add("fake", LLM(script)); hub.default = "fake"
"""
CELLS = [
    SETUP,
    "%%llm --live -n 64\nGo",
    "print(len(_explorer.reply.branches))",
    "script.delay = 0.05",
]


@pytest.fixture(scope="module")
def page(browser: Browser, lab: Jupyter) -> Iterator[Notebook]:
    lab.write("explore.ipynb", CELLS)
    notebook = lab.open(browser, "explore.ipynb")
    for i in (0, 1):
        notebook.run(i)
    expect(notebook.cell(1).locator(".lmx-token").first).to_be_visible()
    yield notebook
    assert notebook.errors == []
    notebook.close()


def test_tokens_are_text_and_say_what_they_are(page: Notebook) -> None:
    view = page.cell(1).locator(".lmx")
    expect(view.locator(".lmx-text")).to_contain_text("The quick <b>fox</b> jumps.")
    assert view.locator(".lmx-text b").count() == 0
    first = view.locator(".lmx-token").first
    assert "The" in (first.get_attribute("aria-label") or "")


def test_pointing_shows_alternatives(page: Notebook) -> None:
    view = page.cell(1).locator(".lmx")
    view.locator(".lmx-token").nth(1).hover()
    expect(view.locator(".lmx-facts")).to_contain_text("token 1")
    expect(view.locator(".lmx-facts")).to_contain_text("entropy at least")
    assert view.locator(".lmx-choices button").count() == 5


def test_keys_move_choose_and_branch(page: Notebook) -> None:
    view = page.cell(1).locator(".lmx")
    view.locator(".lmx-token").first.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    expect(view.locator(".lmx-facts")).to_contain_text("token 2")
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Enter")
    expect(view.locator("[role=tab]")).to_have_count(2)
    expect(view.locator(".lmx-text")).to_contain_text("word39")
    expect(view.locator("[role=tab]").nth(1)).to_have_attribute("aria-selected", "true")
    page.run(2)
    expect(page.output(2)).to_have_text("1")
    # The answer itself is one tab away.
    view.locator("[role=tab]").first.click()
    expect(view.locator(".lmx-text")).to_contain_text("jumps.")


def test_stop_ends_a_branch_and_keeps_what_is_there(page: Notebook) -> None:
    page.run(3)
    view = page.cell(1).locator(".lmx")
    before = view.locator("[role=tab]").count()
    view.locator(".lmx-token").nth(1).click()
    view.locator(".lmx-choices button:not([disabled])").first.click()
    expect(view.locator(".lmx-text")).to_contain_text("word3")
    view.locator(".lmx-stop").click()
    expect(view.locator(".lmx-stop")).to_have_count(0)
    expect(view.locator("[role=tab]")).to_have_count(before + 1)
    assert "word39" not in view.locator(".lmx-text").inner_text()
    expect(view.locator(".lmx-note")).to_have_text("cancelled")


def test_the_cell_itself_is_static_and_stays(page: Notebook) -> None:
    saved = page.save()
    first, second = saved.cells[1].outputs
    assert "application/vnd.jupyter.widget-view+json" not in first.data
    assert "application/vnd.jupyter.widget-view+json" in second.data
    assert "text/html" in second.data
    assert "Token probabilities" in first.data["text/html"]
