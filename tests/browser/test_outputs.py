"""Cell outputs in a real browser: streaming without flicker, hostile text, untrusted notebooks."""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, expect

from llm_magic.chat.reply import Reply
from llm_magic.events import Token, ToolCall, ToolRecord, Top, Usage
from llm_magic.ui.views import mime

from . import axe, pagetasks
from .harness import Jupyter, Notebook

pytestmark = pytest.mark.browser

SETUP = """
%load_ext llm_magic
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted
def answer(request):
    n = request.sampling.max_tokens
    return ["word%d " % (i % 97) if i % 12 else "\\n\\n" for i in range(n)]
script = Scripted(answer, model="fake")
hub.add("fake", LLM(script)); hub.default = "fake"
"""

EVIL = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<svg onload=alert(1)>",
    '"><iframe srcdoc="<script>alert(1)</script>">',
    "<details open ontoggle=alert(1)>x</details>",
    "[x](javascript:alert(1))",
    "![x](x'onerror='alert(1))",
    "$\\href{javascript:alert(1)}{x}$",
    "$$\\unicode{<img src=x onerror=alert(1)>}$$",
    "```<img src=x onerror=alert(1)>\nx\n```",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
)


def hostile() -> Reply:
    """The corpus in every field that a model, a tool or a foreign notebook can fill."""
    evil = "\n\n".join(EVIL)
    token = Token(1, evil.encode(), -3.0, 2, (Top(2, evil.encode(), -1.0),))
    record = ToolRecord(
        1, ToolCall(evil, evil, evil), {evil: evil}, evil, evil, 0.1, evil, stdout=evil, error=evil
    )
    return Reply(
        evil, reasoning=evil, tokens=(token,) * 3, kinds=("answer",) * 3, model=evil, prompt=evil,
        trace=(record,), usage=Usage(3, 1, 3), branches=((0, Reply(evil, tokens=(token,))),),
    )  # fmt: skip


@pytest.fixture
def dialogs() -> list[str]:
    return []


def opened(
    server: Jupyter, browser: Browser, name: str, cells: list[Any], dialogs: list[str]
) -> Notebook:
    path = server.write(name, [])
    book = nbformat.read(path, as_version=4)
    book.cells = cells
    nbformat.write(book, path)
    notebook = server.open(browser, name)
    notebook.page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
    return notebook


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_nothing_hostile_runs_trusted_or_not(
    app: str, browser: Browser, dialogs: list[str], request: pytest.FixtureRequest
) -> None:
    server: Jupyter = request.getfixturevalue(app)
    look = mime.Look(show=mime.SECTIONS | {"surprises"})
    saved = hostile().to_dict()
    data = mime.bundle(hostile(), look)
    foreign = nbformat.v4.new_code_cell(
        "x", outputs=[nbformat.v4.new_output("display_data", data=data)]
    )
    live = nbformat.v4.new_code_cell(
        "import json\nfrom llm_magic.chat.reply import Reply\n"
        f"Reply.from_dict(json.loads({json.dumps(saved)!r}))"
    )
    notebook = opened(server, browser, f"evil-{app}.ipynb", [foreign, live], dialogs)
    expect(notebook.output(0).first).to_contain_text("<script>alert(1)</script>")
    notebook.run(1)
    expect(notebook.output(1).first).to_contain_text("<script>alert(1)</script>")
    for output in (notebook.output(0), notebook.output(1)):
        for summary in output.locator("summary").all():
            if summary.is_visible():
                summary.click()
    notebook.page.wait_for_timeout(1000)
    assert dialogs == []
    page = notebook.page
    assert page.locator(".llm-magic :is(img, iframe, script, form, svg)").count() == 0
    links = page.locator(".llm-magic a").evaluate_all("all => all.map(a => a.href)")
    assert not [link for link in links if link.startswith("javascript")]
    notebook.close()


# ------------------------------------------------------------------ heavy pages

# Tokens of every shade, and what a person sees of them: the answer as Markdown with the heat map
# below it, or shaded in its own place.
HEAVY = [SETUP, "%%llm --logprobs 5 -n 1000 -f text\nx", "%%llm --logprobs 5 -n 1000\nx"]
STREAM = "script.delay = 0.01"


def run_traced(browser: Browser, notebook: Notebook, i: int) -> list[float]:
    """The page's tasks from the key that runs a cell to a second after its last output, when
    JupyterLab has looked for headings in it."""
    notebook.select(i)

    def work() -> None:
        notebook.page.keyboard.press("Control+Enter")
        notebook.quiet(1.5)

    found = pagetasks.milliseconds(browser, notebook.page, work)
    notebook.finished(i)
    return found


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_no_task_over_50_ms_when_a_heat_map_of_1000_tokens_arrives(
    app: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """The first one too, for which the page has compiled nothing yet."""
    server: Jupyter = request.getfixturevalue(app)
    name = f"arrives-{app}.ipynb"

    def attempt() -> dict[str, list[float]]:
        server.write(name, [*HEAVY, HEAVY[1], STREAM, "%%llm -n 250 --logprobs 5\nx"])
        notebook = server.open(browser, name)
        notebook.errors.clear()  # Notebook 7 has one of its own while it starts
        notebook.run(0)
        found = {}
        for i in (1, 2, 3):
            found[f"reply {i}"] = run_traced(browser, notebook, i)
            assert notebook.output(i).locator("pre :is(span, ins, mark)").count() > 400
        notebook.run(4)
        found["stream"] = run_traced(browser, notebook, 5)
        assert notebook.errors == []
        notebook.close()
        return found

    pagetasks.hold(attempt)


@pytest.fixture(scope="module")
def heavy(browser: Browser, lab: Jupyter) -> Iterator[Notebook]:
    cells = [*HEAVY, HEAVY[1], STREAM]
    lab.write("heavy.ipynb", [*cells, "%%llm -n 250 --logprobs 5\nx", "%%llm -n 120\nx"])
    notebook = lab.open(browser, "heavy.ipynb")
    for i in range(5):
        notebook.run(i)
    notebook.page.wait_for_timeout(2000)
    yield notebook
    assert notebook.errors == []
    notebook.close()


def test_a_heavy_page_has_no_task_over_50_ms_while_a_cell_streams(
    browser: Browser, heavy: Notebook
) -> None:
    """Three replies of 1,000 tokens with heat maps stand above."""
    pagetasks.hold(lambda: {"stream": run_traced(browser, heavy, 5)})


def test_streaming_keeps_its_node(heavy: Notebook) -> None:
    """No flicker: the element of the first frame is still there at the end."""
    heavy.start(6)
    output = heavy.output(6).first
    expect(output).to_contain_text("word1")
    page = heavy.page
    page.evaluate("el => { window.kept = el }", output.element_handle())
    heights = [output.bounding_box()["height"]]  # type: ignore[index]
    while heavy.cell(6).locator(".jp-InputArea-prompt").inner_text() == "[*]:":
        heights.append(output.bounding_box()["height"])  # type: ignore[index]
        page.wait_for_timeout(50)
    heavy.finished(6)
    assert page.evaluate("() => window.kept.isConnected") is True
    expect(output).to_contain_text("120 tokens")
    # And it only grows: nothing jumps up and down.
    assert all(b >= a - 2 for a, b in pairwise(heights)), heights


def test_an_untrusted_notebook_keeps_colours_and_marks(
    browser: Browser, lab: Jupyter, dialogs: list[str]
) -> None:
    run = tuple(Token(i, f" w{i}".encode(), -1.3 * i, 1 + i, ()) for i in range(5))
    reply = Reply(" w0 w1 w2 w3 w4", tokens=run, kinds=("answer",) * 5, model="m")
    data = mime.bundle(reply, mime.Look(format="text", heat=True))
    cell = nbformat.v4.new_code_cell(
        "x", outputs=[nbformat.v4.new_output("display_data", data=data)]
    )
    notebook = opened(lab, browser, "untrusted.ipynb", [cell], dialogs)
    output = notebook.output(0).first
    expect(output).to_contain_text("w4")
    colours = output.locator("pre :is(span, ins, mark)").evaluate_all(
        "all => all.map(e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color])"
    )
    assert len({tuple(c) for c in colours}) >= 4
    lines = output.locator("pre :is(ins, mark)").evaluate_all(
        "all => all.map(e => getComputedStyle(e).borderBottomWidth)"
    )
    assert lines == ["1px", "2px", "3px", "4px"][-len(lines) :]  # F265
    copied = output.locator("pre").first.evaluate(
        "e => { getSelection().selectAllChildren(e); return getSelection().toString() }"
    )
    assert copied.strip() == "w0 w1 w2 w3 w4"  # nothing but the answer
    assert output.locator("style").count() == 0  # the sanitiser took it; the rest stands alone
    output.locator("summary").click()
    expect(output.locator("details pre")).to_contain_text("rank")
    expect(output.locator("details pre")).to_contain_text("␣w4")
    notebook.close()


TRACED = r"""
from llm_magic.chat.reply import Reply
from llm_magic.events import ToolCall, ToolRecord
call = ToolCall("c", "add", '{"a": 1}')
record = ToolRecord(1, call, {"a": 1}, "auto", "ok", 0.1, "2")
text = "# A\n\n```python\nx = 1  # one\n```\n\n| a |\n|---|\n| [b](https://x.y) |"
Reply(text, reasoning="Well.", trace=(record,))"""
VIEWS = [
    SETUP,
    "%%llm --logprobs 5 -n 30 --show prompt,tokens,stats\nx",
    TRACED,
    "_llm.alternatives(3)",
    "%llm tokenize",
    "%llm compare -t 0 -t 1 -n 20 x",
    "%llm branch 3 -n 5",
    "%llm stats",
    "%llm",
]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_fault_in_outputs(lab: Jupyter, browser: Browser, dark: bool) -> None:
    script = axe.found()
    lab.theme(dark)
    lab.write(f"views-{dark}.ipynb", VIEWS)
    notebook = lab.open(browser, f"views-{dark}.ipynb")
    found = []
    for i in range(len(VIEWS)):
        notebook.run(i)
        if i == 0:
            continue
        output = notebook.output(i).first
        expect(output).to_be_visible()
        for _ in range(3):  # folds inside of folds
            for summary in output.locator("details:not([open]) > summary").all():
                if summary.is_visible():
                    summary.click()
        found += [f"{VIEWS[i][:20]!r}: {fault}" for fault in axe.faults(output, script)]
    lab.theme(False)
    notebook.close()
    assert found == []


def test_a_table_scrolls_in_its_own_box_on_a_narrow_page(lab: Jupyter, browser: Browser) -> None:
    lab.write("narrow.ipynb", [SETUP, "%%llm -n 9\nGo", "%llm stats", "%llm models"])
    notebook = lab.open(browser, "narrow.ipynb")
    for i in range(4):
        notebook.run(i)
    notebook.page.set_viewport_size({"width": 480, "height": 900})
    for i in (2, 3):
        widths = notebook.output(i).first.evaluate(
            """(output) => [output, output.querySelector("table").parentElement].map(
                (el) => el.scrollWidth - el.clientWidth)"""
        )
        assert widths[0] == 0  # what stands beside the table stays in sight
        assert widths[1] > 0
        last = notebook.output(i).get_by_role("columnheader").last
        first = notebook.output(i).get_by_role("columnheader").first
        last.scroll_into_view_if_needed()
        expect(first).not_to_be_in_viewport()
        expect(last).to_be_in_viewport(ratio=0.3)
    notebook.close()


def test_static_files_hold_what_the_page_shows(tmp_path: Path) -> None:
    """Every form in the bundle is plain JSON: a notebook file can hold it."""
    data = mime.bundle(hostile(), mime.Look())
    book = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(
                "x", outputs=[nbformat.v4.new_output("display_data", data=data)]
            )
        ]
    )
    nbformat.write(book, tmp_path / "x.ipynb")
    again = nbformat.read(tmp_path / "x.ipynb", as_version=4)
    assert mime.from_output(again.cells[0].outputs[0].data).trace == hostile().trace
