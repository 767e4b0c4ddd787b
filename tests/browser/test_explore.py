"""The live view of a reply in a real browser: pointer, keys, branches, stop, reload, no kernel."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.widgets.explorer.widget import Explorer

from . import axe
from .harness import Jupyter, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

EVIL = "<img src=x onerror=pwned=1>"
SETUP = f"""
%load_ext llm_magic
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted
evil = {EVIL!r}
tail = ["word%d " % i for i in range(30)]
def answer(request):
    if request.given:
        return tail
    return ["The", " quick", " ", evil, " fox", ".\\n", "It", " jumps", " over", " a", " dog", "."]
script = Scripted(answer, model="fake")
hub.add("fake", LLM(script)); hub.default = "fake"
"""
CELLS = [
    SETUP,
    "%%llm --live -n 64 --out r\nGo",
    "print(len(_explorer.reply.branches), len(r.branches), _llm is r, r.branches[-1][1].text[-7:])",
    "script.delay = 0.05",
    "import time\ntime.sleep(30)",
    "_explorer",
    "s = script.requests[-1].sampling\nprint(s.temperature, s.max_tokens, s.seed)",
    "script.prefill_delay = 1.0\nscript.delay = 0.05",
]


@pytest.fixture
def page(browser: Browser, lab: Jupyter, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook with a live view in cell 1."""
    name = f"{request.node.name}.ipynb"
    lab.write(name, CELLS)
    notebook = lab.open(browser, name)
    for i in (0, 1):
        notebook.run(i)
    expect(token(view_of(notebook), 11)).to_be_visible()
    yield notebook
    assert notebook.errors == []
    if not notebook.page.is_closed():  # a test may have closed it
        assert notebook.page.evaluate("window.pwned") is None
        notebook.close()


def view_of(notebook: Notebook, cell: int = 1) -> Locator:
    return notebook.cell(cell).locator(".lmx")


def text(view: Locator) -> Locator:
    """The tokens of the selected view."""
    return view.locator(".lmt-text").last


def token(view: Locator, i: int) -> Locator:
    return text(view).get_by_role("option").nth(i)


def card(view: Locator) -> Locator:
    return view.locator(".lmt-card")


def tabs(view: Locator) -> Locator:
    return view.get_by_role("tab")


def choose(view: Locator, i: int) -> None:
    """Go on from the first alternative of token i, by mouse."""
    token(view, i).click()
    card(view).locator(".lmt-choice:not([aria-disabled])").first.click()


def test_tokens_are_text_and_say_what_they_are(page: Notebook) -> None:
    view = view_of(page)
    expect(text(view)).to_contain_text(f"The quick{EVIL} fox.")
    assert view.locator("img, script").count() == 0
    # The kernel's numbers come after the tokens.
    expect(token(view, 1)).to_have_attribute("aria-label", re.compile(r"^␣quick, \S+%, rank \d+$"))
    assert text(view).locator(".lmt-line").count() == 2


def test_what_the_view_shows_is_not_shown_once_more(page: Notebook) -> None:
    view, form = view_of(page), page.output(1).first
    shown = view.get_by_role("button", name="Show saved copy")
    expect(shown).to_have_attribute("aria-pressed", "false")
    expect(form).to_be_hidden()
    choose(view, 1)
    expect(form).to_contain_text("1 branch")  # a new form is hidden as the first one was
    expect(form).to_be_hidden()
    shown.click()
    expect(form).to_be_visible()
    expect(shown).to_have_attribute("aria-pressed", "true")
    shown.click()
    expect(form).to_be_hidden()
    # Without the view it stands alone.
    page.page.evaluate("document.querySelector('.lmx').remove()")
    expect(form).to_be_visible()


def test_pointing_opens_a_card_that_can_be_reached(page: Notebook) -> None:
    view = view_of(page)
    token(view, 3).hover()
    expect(card(view)).to_be_visible()
    expect(card(view)).to_contain_text("token 3")
    expect(card(view)).to_contain_text(
        re.compile(r"rank \d+ · logprob −\d.\d\d · entropy ≥ \d.\d\d bits")
    )
    expect(card(view).locator(".lmt-choice:not(.lmt-taken)").nth(3)).to_be_visible()
    expect(card(view).locator(".lmt-taken")).to_have_count(1)
    expect(card(view)).to_contain_text("everything else")
    # The way to an alternative leads over nothing that would close the card.
    card(view).locator(".lmt-choice").last.hover()
    page.page.wait_for_timeout(500)
    expect(card(view)).to_contain_text("token 3")
    page.cell(2).hover()
    expect(card(view)).to_be_hidden()


def test_a_click_holds_the_card_until_escape(page: Notebook) -> None:
    view = view_of(page)
    token(view, 4).click()
    expect(card(view)).to_contain_text("token 4")
    token(view, 9).hover()
    page.page.wait_for_timeout(300)
    expect(card(view)).to_contain_text("token 4")
    page.page.keyboard.press("Escape")
    expect(card(view)).to_be_hidden()
    expect(token(view, 4)).to_be_focused()


def test_keys_move_by_token_and_by_line(page: Notebook) -> None:
    view, keys = view_of(page), page.page.keyboard
    token(view, 0).focus()
    expect(card(view)).to_contain_text("token 0")
    for key, at in (
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 5), ("Home", 0),
        ("ArrowDown", 6), ("End", 11), ("ArrowUp", 3), ("Control+Home", 0), ("Control+End", 11),
        ("ArrowRight", 11),
    ):  # fmt: skip
        keys.press(key)
        expect(token(view, at)).to_be_focused()
        expect(card(view)).to_contain_text(f"token {at}")
    # One token is in the way of Tab, not all of them.
    assert text(view).locator('[tabindex="0"]').count() == 1
    assert token(view, 11).get_attribute("aria-selected") == "true"


def test_letters_are_no_notebook_commands(page: Notebook) -> None:
    view = view_of(page)
    token(view, 0).focus()
    page.page.keyboard.type("ddaabbm")
    expect(page.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(len(CELLS))


def test_keys_choose_an_alternative_and_branch(page: Notebook) -> None:
    view, keys = view_of(page), page.page.keyboard
    token(view, 0).focus()
    keys.press("ArrowRight")
    keys.press("Enter")
    first = card(view).locator(".lmt-choice:not([aria-disabled])").first
    expect(first).to_be_focused()
    keys.press("ArrowDown")
    keys.press("ArrowUp")
    expect(first).to_be_focused()
    keys.press("Enter")
    expect(tabs(view)).to_have_count(2)
    expect(tabs(view).nth(1)).to_have_attribute("aria-selected", "true")
    expect(text(view)).to_contain_text("word29")
    expect(view.locator(".lmx-stop")).to_be_hidden()
    # What both share is dimmed, the branch begins where it was chosen, and the focus is there.
    expect(text(view).locator(".lmt-common")).to_have_count(1)
    expect(token(view, 1)).to_have_class(re.compile("lmt-parts"))
    expect(token(view, 1)).to_be_focused()
    page.run(2)
    expect(page.output(2)).to_have_text("1 1 True word29 \n")
    # The answer itself is one key away.
    tabs(view).nth(1).focus()
    keys.press("ArrowLeft")
    expect(tabs(view).first).to_be_focused()
    expect(text(view)).to_contain_text("jumps over")


def test_branches_stand_side_by_side(page: Notebook) -> None:
    view = view_of(page)
    choose(view, 7)
    expect(text(view)).to_contain_text("word29")
    expect(view.locator(".lmx-stop")).to_be_hidden()
    choose(view, 8)  # a branch of the branch
    expect(tabs(view)).to_have_count(3)
    expect(view.locator(".lmx-stop")).to_be_hidden()
    view.get_by_role("button", name="Side by side").click()
    both = view.get_by_role("listbox")
    expect(both).to_have_count(2)
    assert view.locator(".lmt-pane").first.locator(".lmt-common").count() == 8
    view.get_by_label("Compare with").select_option("0")
    expect(both.first).to_contain_text("jumps over")
    assert view.locator(".lmt-pane").first.locator(".lmt-common").count() == 7
    assert view.locator(".lmt-pane").last.locator(".lmt-common").count() == 7
    left, right = (view.locator(".lmt-pane").nth(i).bounding_box() for i in (0, 1))
    assert left
    assert right
    assert left["x"] + left["width"] <= right["x"]


def test_stop_ends_a_branch_while_a_cell_runs(page: Notebook) -> None:
    page.run(3)
    page.start(4)
    expect(page.cell(4).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    view = view_of(page)
    choose(view, 1)
    expect(text(view)).to_contain_text("word3")
    expect(view.locator(".lmx-progress")).to_contain_text("tok/s")
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".lmx-stop")).to_be_hidden(timeout=3_000)
    expect(tabs(view)).to_have_count(2)
    expect(view.locator(".lmt-foot").last).to_contain_text("stopped")
    assert "word29" not in text(view).inner_text()
    expect(page.cell(4).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    # B103: nothing of it landed in the running cell; the static form of its own cell has it.
    assert page.output(4).count() == 0
    expect(page.output(1).first).to_contain_text("1 branch")


def test_two_views_show_the_same(page: Notebook) -> None:
    page.run(5)
    one, two = view_of(page), view_of(page, 5)
    expect(token(two, 11)).to_be_visible()
    choose(one, 1)
    for view in (one, two):
        expect(tabs(view)).to_have_count(2)
    expect(text(one)).to_contain_text("word29")
    # Nobody is taken away from what they are reading.
    expect(text(two)).to_contain_text("jumps over")
    tabs(two).nth(1).click()
    expect(text(two)).to_contain_text("word29")


def test_reloaded_page_shows_all_and_goes_on(page: Notebook) -> None:
    view = view_of(page)
    choose(view, 1)
    expect(text(view)).to_contain_text("word29")
    expect(view.locator(".lmx-stop")).to_be_hidden()
    page.save()
    page.reload()
    view = view_of(page)
    expect(tabs(view)).to_have_count(2)
    tabs(view).nth(1).click()
    expect(text(view)).to_contain_text("word29")
    token(view, 3).hover()
    expect(card(view).locator(".lmt-choice:not(.lmt-taken)").nth(3)).to_be_visible()
    choose(view, 3)
    expect(tabs(view)).to_have_count(3)


def test_saved_notebook_stands_without_a_kernel(
    page: Notebook, lab: Jupyter, browser: Browser
) -> None:
    view = view_of(page)
    choose(view, 1)
    expect(view.locator(".lmx-stop")).to_be_hidden()
    expect(page.output(1).first).to_contain_text("1 branch")
    saved = page.save()
    static, live = saved.cells[1].outputs
    assert "application/vnd.jupyter.widget-view+json" not in static.data
    assert "application/vnd.jupyter.widget-view+json" in live.data
    assert live.data["text/html"] == ""  # no repr in an exported notebook (F260)
    assert "text/plain" not in live.data
    assert len(static.data["application/vnd.llm-magic.reply+json"]["branches"]) == 1
    # Another machine: not trusted, and no kernel that knows the widget.
    for cell in saved.cells:
        cell.metadata.pop("trusted", None)
    (lab.root / "foreign.ipynb").write_text(json.dumps(saved).replace("pwned", "PWNED"))
    foreign = lab.open(browser, "foreign.ipynb")
    output = foreign.output(1).first
    expect(output).to_be_visible()
    expect(output).to_contain_text("Token probabilities")
    expect(output).to_contain_text("word29")
    assert foreign.page.evaluate("window.PWNED") is None
    foreign.close()
    # The same machine, another day: trusted, and the widget is gone (F260).
    page.close()
    lab.stop_kernels()
    mine = lab.open(browser, page.path.name)
    expect(mine.output(1).first).to_contain_text("word29")
    for line in ("Error displaying widget", "Loading widget"):
        expect(mine.page.get_by_text(line)).to_be_hidden()
    mine.close()


REAL = [
    "%load_ext llm_magic",
    "%%llm --live -t 0 -n 24 --logprobs 4\nName three colours of the rainbow.",
    """
branch = _llm.branches[-1][1]
given = sum(t.forced for t in branch.tokens)
from llm_magic.hub import hub
llm = hub.get()
cold = llm.complete([*_llm.prompt_ids, *(t.id for t in branch.tokens[:given])], reuse=False,
                    max_tokens=len(branch.tokens) - given)
print([t.id for t in cold.tokens] == [t.id for t in branch.tokens[given:]], given)
print(branch.usage.cached >= len(_llm.prompt_ids) + given - 2, branch.usage.cached)
""",
    """
from llm_magic import Reply
import json
again = Reply.from_dict(json.loads(json.dumps(_llm.to_dict())))
again.explore()
""",
]


@pytest.mark.model
def test_a_real_model_goes_on_from_the_cached_prefix(
    browser: Browser, lab: Jupyter, smollm2_path: Path
) -> None:
    lab.write("real.ipynb", REAL)
    page = lab.open(browser, "real.ipynb")
    page.run(0)
    page.run(1)
    view = view_of(page)
    expect(token(view, 23)).to_be_visible()
    token(view, 6).click()
    second = card(view).locator(".lmt-choice:not([aria-disabled])").first
    chosen = second.locator("code").inner_text().replace("␣", " ")
    second.click()
    expect(tabs(view)).to_have_count(2)
    expect(view.locator(".lmx-stop")).to_be_hidden(timeout=60_000)
    expect(token(view, 6)).to_have_text(chosen)
    page.run(2)
    assert re.match(r"True 7\nTrue \d+", page.output(2).inner_text())
    # Read back from JSON it has its branches, and the loaded model goes on from it.
    page.run(3)
    other = view_of(page, 3)
    expect(tabs(other)).to_have_count(2)
    choose(other, 6)
    expect(tabs(other)).to_have_count(3)
    expect(other.locator(".lmx-stop")).to_be_hidden(timeout=60_000)
    expect(other.locator(".lmx-status")).to_be_empty()
    tabs(view).nth(1).click()
    assert text(other).inner_text() == text(view).inner_text()
    assert page.errors == []
    page.close()


def test_a_reply_of_a_saved_notebook_is_read_only_without_its_model(
    browser: Browser, lab: Jupyter
) -> None:
    cells = [
        SETUP + "r = hub.get('fake').complete('Go', logprobs=5)\nhub.unload('fake')",
        "import llm_magic\nllm_magic.Reply.from_dict(r.to_dict()).explore()",
    ]
    lab.write("readonly.ipynb", cells)
    page = lab.open(browser, "readonly.ipynb")
    page.run(0)
    page.run(1)
    view = view_of(page)
    expect(token(view, 11)).to_be_visible()
    choose(view, 1)
    why = "To go on from here, fake has to be loaded in this kernel: %llm load fake"
    expect(view.locator(".lmx-status")).to_have_text(why)
    expect(card(view)).to_contain_text(why)
    expect(tabs(view)).to_have_count(0)
    # Its static form is a display of its own.
    expect(page.output(1).nth(1)).to_contain_text("12 tokens")
    expect(page.output(1).nth(1)).to_be_hidden()
    page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_fault(lab: Jupyter, browser: Browser, dark: bool) -> None:
    script = axe.found()
    lab.theme(dark)
    lab.write(f"axe-explore-{dark}.ipynb", CELLS)
    page = lab.open(browser, f"axe-explore-{dark}.ipynb")
    page.run(0)
    page.run(1)
    view = view_of(page)
    expect(token(view, 11)).to_be_visible()
    token(view, 6).click()
    found = axe.faults(view, script)
    view.locator(".lmx-settings > summary").click()
    for value in ("99", "1"):  # wrong, and set
        view.get_by_role("spinbutton", name="Temperature").fill(value)
        view.get_by_role("spinbutton", name="Temperature").press("Enter")
        page.page.wait_for_timeout(300)
        found += axe.faults(view, script)
    choose(view, 7)
    expect(tabs(view)).to_have_count(2)
    view.get_by_role("button", name="Side by side").click()
    found += axe.faults(view, script)
    lab.theme(False)
    page.close()
    assert found == []


def test_the_live_view_works_in_notebook_7(notebook7: Jupyter, browser: Browser) -> None:
    notebook7.write("explore.ipynb", CELLS)
    page = notebook7.open(browser, "explore.ipynb")
    page.run(0)
    page.run(1)
    view, keys = view_of(page), page.page.keyboard
    token(view, 3).hover()
    expect(card(view)).to_contain_text("token 3")
    token(view, 0).focus()
    for key in ("ArrowRight", "Enter", "Enter"):
        keys.press(key)
    expect(tabs(view)).to_have_count(2)
    expect(text(view)).to_contain_text("word29")
    page.run(2)
    expect(page.output(2)).to_have_text("1 1 True word29 \n")
    # Notebook 7.6 itself says this of an empty notebook, without any extension of ours.
    own = "Cannot read properties of undefined (reading 'schema')"
    assert [error for error in page.errors if error != own] == []
    page.close()


def test_settings_of_branches_have_a_default_and_reach_the_request(page: Notebook) -> None:
    view, keys = view_of(page), page.page.keyboard
    summary = view.locator(".lmx-settings > summary")
    expect(summary).to_have_text("New branches: default settings")
    summary.focus()
    keys.press("Enter")
    temperature = view.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_have_attribute("placeholder", "default")
    expect(view.locator(".lmx-field").first).to_contain_text("as the reply: 0.7")
    keys.press("Tab")
    expect(temperature).to_be_focused()
    keys.type("9")
    keys.press("Tab")
    expect(view.get_by_text("9 is not between 0 and 5")).to_be_visible()
    temperature.fill("0")
    temperature.press("Enter")
    seed = view.get_by_role("spinbutton", name="Seed")
    seed.fill("7")
    seed.press("Enter")
    longest = view.get_by_role("spinbutton", name="Longest answer")
    longest.fill("5")
    longest.press("Enter")
    expect(summary).to_have_text("New branches: temperature 0, longest answer 5, seed 7")
    choose(view, 1)
    expect(tabs(view)).to_have_count(2)
    expect(view.locator(".lmx-stop")).to_be_hidden()
    expect(text(view)).to_contain_text("word4")
    assert "word5" not in text(view).inner_text()
    page.run(6)
    expect(page.output(6)).to_have_text("0.0 5 7\n")
    # Another page knows them, too; one key sets the default again.
    page.run(5)
    other = view_of(page, 5)
    expect(other.locator(".lmx-settings > summary")).to_contain_text("seed 7")
    view.get_by_role("button", name="Seed: back to the default").press("Enter")
    expect(seed).to_be_focused()
    expect(summary).to_have_text("New branches: temperature 0, longest answer 5")


def test_a_kernel_that_is_gone_is_mentioned_and_its_reply_goes_on_in_the_next(
    page: Notebook,
) -> None:
    view = view_of(page)
    choose(view, 1)
    expect(text(view)).to_contain_text("word29")
    expect(view.locator(".lmx-stop")).to_be_hidden()
    page.page.wait_for_timeout(2500)  # it remembers the reply when it is quiet
    page.restart_kernel()
    expect(view.locator(".lmx-status")).to_contain_text("The kernel of this view is gone")
    # All of it can still be read.
    tabs(view).first.click()
    expect(text(view)).to_contain_text("jumps over")
    token(view, 3).click()
    expect(card(view).locator(".lmt-choice")).not_to_have_count(0)
    expect(card(view)).to_contain_text("The kernel of this view is gone")
    assert card(view).locator(".lmt-choice:not([aria-disabled])").count() == 0
    page.page.keyboard.press("Escape")
    for i in (0, 1):
        page.run(i)
    view = view_of(page)
    expect(token(view, 11)).to_be_visible()
    expect(tabs(view)).to_have_count(0)
    view.get_by_role("button", name="Continue with the earlier reply (12 tokens, 1 branch)").click()
    expect(tabs(view)).to_have_count(2)
    expect(view.locator(".lmx-again")).to_be_hidden()
    choose(view, 3)
    expect(tabs(view)).to_have_count(3)
    expect(view.locator(".lmx-stop")).to_be_hidden()
    # The names of the notebook and the static form hold it again.
    page.run(2)
    expect(page.output(2)).to_have_text("2 2 True word29 \n")
    expect(page.output(1).first).to_contain_text("2 branches")


def test_two_views_of_a_cell_go_on_each_with_its_own(lab: Jupyter, browser: Browser) -> None:
    show = (
        "from IPython.display import display\nllm = hub.get('fake')\n"
        "display(*(llm.complete('Go', max_tokens=n, logprobs=3).explore() for n in (4, 8)))"
    )
    lab.write("two-views.ipynb", [SETUP, show])
    notebook = lab.open(browser, "two-views.ipynb")
    for again in (False, True):
        for i in (0, 1):
            notebook.run(i)
        expect(token(view_of(notebook).nth(1), 7)).to_be_visible()
        if not again:
            notebook.page.wait_for_timeout(2500)  # they remember their replies when it is quiet
            notebook.restart_kernel()
            expect(view_of(notebook).last.locator(".lmx-status")).to_contain_text("is gone")
    for i, n in enumerate((4, 8)):
        name = f"Continue with the earlier reply ({n} tokens)"
        expect(view_of(notebook).nth(i).get_by_role("button", name=name)).to_be_visible()
    assert notebook.errors == []
    notebook.close()


def test_a_reloaded_page_saves_what_came_after(page: Notebook) -> None:
    page.save()
    page.reload()
    view = view_of(page)
    expect(tabs(view)).to_have_count(0)
    choose(view, 1)
    expect(tabs(view)).to_have_count(2)
    expect(view.locator(".lmx-stop")).to_be_hidden()
    # JupyterLab has forgotten the display: the view puts the new form into its place.
    expect(page.output(1).first).to_contain_text("1 branch")
    static = page.save().cells[1].outputs[0]
    assert len(static.data["application/vnd.llm-magic.reply+json"]["branches"]) == 1
    assert "word29" in static.data["text/html"]


def test_the_prompt_of_a_branch_is_read_under_a_bar(page: Notebook) -> None:
    page.run(7)
    view = view_of(page)
    choose(view, 1)
    bar = view.get_by_role("progressbar")
    expect(bar).to_have_attribute(
        "aria-label", re.compile(r"reading the prompt: \d+ of \d+ tokens")
    )
    assert 0 <= float(bar.evaluate("e => e.value")) <= 1
    expect(view.locator(".lmx-progress")).to_contain_text("tok/s")
    expect(bar).to_have_count(0)
    view.get_by_role("button", name="Stop").click()
    expect(view.locator(".lmx-stop")).to_be_hidden()


# ----------------------------------------------------------------------------- without Jupyter


class Stage:
    """The page's side alone: what it sends is kept, what it hears is given by hand."""

    def __init__(self, browser: Browser) -> None:
        llm = LLM(Scripted([["The", " quick", " fox"], [" a", " b", " c"]], model="fake"))
        self.explorer = Explorer(llm.complete("Go", logprobs=5), llm)
        self.heard: list[Any] = []
        self.explorer.send = lambda message, buffers=None: self.heard.append(message)
        self.page = browser.new_page()
        state = {"state": self.explorer.state, "scale": self.explorer.scale}
        self.page.evaluate(
            """async ([source, state]) => {
                const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
                const listeners = [];
                window.sent = [];
                window.hear = (message) => listeners.forEach((f) => f(message));
                const model = {
                    get: (name) => state[name], send: (message) => sent.push(message),
                    on: (name, f) => name === "msg:custom" && listeners.push(f),
                    off: () => listeners.splice(0),
                };
                const module = (await import(url)).default;
                window.leave = module.render({ model, el: document.body });
            }""",
            [self.explorer._esm, state],
        )
        self.view = self.page.locator(".lmx")

    def sent(self) -> list[Any]:
        found: list[Any] = self.page.evaluate("sent.splice(0)")
        return found

    def answer(self, *skipped: int) -> None:
        """Let the kernel answer what was sent; messages of these numbers get lost."""
        for message in self.sent():
            self.explorer._on_message(None, message, None)
        while self.explorer._worker._thread is not None:
            self.page.wait_for_timeout(10)
        heard, self.heard[:] = self.heard[:], []
        for message in heard:
            if message.get("seq") not in skipped or "to" in message:
                self.page.evaluate("(message) => hear(message)", message)


@pytest.fixture
def stage(browser: Browser) -> Iterator[Stage]:
    made = Stage(browser)
    yield made
    made.page.close()


def test_a_card_that_was_open_before_the_kernel_answered_is_filled(stage: Stage) -> None:
    token(stage.view, 1).click()
    expect(card(stage.view)).to_contain_text("The details of this token come from the kernel.")
    stage.answer()
    expect(card(stage.view).locator(".lmt-choice")).to_have_count(5)
    expect(token(stage.view, 1)).to_be_focused()


def test_who_went_into_the_card_before_the_kernel_answered_is_there_then(stage: Stage) -> None:
    token(stage.view, 1).focus()
    stage.page.keyboard.press("Enter")
    expect(token(stage.view, 1)).to_be_focused()  # nothing to choose yet
    stage.answer()
    expect(card(stage.view).locator(".lmt-choice:not([aria-disabled])").first).to_be_focused()


def test_a_page_that_missed_a_message_asks_for_everything(stage: Stage) -> None:
    stage.answer()
    choose(stage.view, 1)
    stage.answer(1)
    (again,) = (message for message in stage.sent() if message["t"] == "hello")
    stage.explorer._on_message(None, again, None)
    stage.answer()
    expect(tabs(stage.view)).to_have_count(2)
    tabs(stage.view).nth(1).click()
    expect(text(stage.view)).to_have_text(re.compile("^The.+ a b c$"))


def test_a_kernel_that_is_silent_is_mentioned_and_what_was_saved_stands(stage: Stage) -> None:
    expect(text(stage.view)).to_have_text("The quick fox")
    expect(stage.view.locator(".lmx-status")).to_contain_text("The kernel does not answer")
    stage.answer()
    expect(stage.view.locator(".lmx-status")).to_be_empty()


def test_a_page_whose_first_question_got_lost_asks_again(stage: Stage) -> None:
    # F266
    assert [message["t"] for message in stage.sent()] == ["hello"]  # lost on its way
    stage.page.wait_for_function("sent.length > 0")
    stage.answer()
    token(stage.view, 1).click()
    expect(card(stage.view).locator(".lmt-choice")).to_have_count(5)


def test_a_view_that_is_closed_leaves_nothing_behind(stage: Stage) -> None:
    stage.answer()
    token(stage.view, 1).click()
    expect(card(stage.view)).to_be_visible()
    stage.page.evaluate("leave()")
    expect(card(stage.view)).to_be_hidden()
    stage.page.evaluate("hear({ seq: 99, ops: [] })")
    assert stage.sent() == []
