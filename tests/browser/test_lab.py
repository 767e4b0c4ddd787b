"""What holds for a page: accessibility, safety, speed, other front ends, others' notebooks."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page, Request, expect

from . import axe, pagetasks
from .chatpage import SCRIPT, ChatPage
from .harness import Jupyter, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SHOW = "chat = llm_magic.Chat(llm, logprobs=3)\nchat"
Open = Callable[..., Notebook]


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Opens a notebook on a server and runs its first cell, which has the script before it."""
    opened: list[tuple[Jupyter, Notebook]] = []

    def start(server: Jupyter, name: str, *cells: str, **context: Any) -> Notebook:
        server.write(f"{name}.ipynb", [SCRIPT + (cells[0] if cells else SHOW), *cells[1:]])
        notebook = server.open(browser, f"{name}.ipynb", **context)
        opened.append((server, notebook))
        notebook.run(0)
        return notebook

    yield start
    for server, notebook in opened:
        notebook.close()
        server.stop_kernels()


# ------------------------------------------------------------------ Notebook 7


def test_notebook_7_streams_and_stops_while_a_cell_runs(notebook7: Jupyter, show: Open) -> None:
    notebook = show(notebook7, "seven", SHOW, "time.sleep(30)")
    chat = ChatPage(notebook)
    assert chat.say("hello") == "You said: hello"
    notebook.start(1)
    chat.send("a very long one")
    expect(chat.answers.last).to_contain_text("word3")
    chat.button("Stop").click()
    expect(chat.root.locator(".llmc-note")).to_have_text("stopped", timeout=2_000)
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    chat.say("code please")
    chat.button("Put into a new cell").click()
    expect(notebook.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)


TOOLS = """
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
chat = llm_magic.Chat(llm, tools=[add], logprobs=3)
chat"""


def test_notebook_7_turns_calls_reload_and_a_new_kernel(notebook7: Jupyter, show: Open) -> None:
    """What test_chat.py looks at one by one in JupyterLab, in a row."""
    notebook = show(notebook7, "seven-turns", TOOLS, "other = llm_magic.Chat(llm)\nother")
    notebook.run(1)
    chat, other = ChatPage(notebook), ChatPage(notebook, 1)
    other.send("a long one")
    assert chat.say("one") == "You said: one"  # two at once
    other.idle()
    expect(other.answers).to_contain_text("word39")
    chat.act("Answer again")
    expect(chat.root.locator(".llmc-count")).to_have_text("2/2")
    chat.idle()
    chat.act("Edit and send again", 0)
    editor = chat.root.get_by_role("textbox", name="Edit the message")
    editor.fill("uno")
    editor.press("Enter")
    expect(chat.answers).to_contain_text("You said: uno")
    chat.idle()
    chat.act("Show the tokens")
    chat.root.locator(".lmt-token").nth(1).focus()
    chat.root.locator(".lmt-choice:not([aria-disabled])").first.press("Enter")
    expect(chat.answers.last).to_contain_text("and so on")
    chat.idle()
    chat.send("please call it")
    chat.root.get_by_role("textbox", name="Arguments for add, as JSON").fill('{"a": 40, "b": 2}')
    chat.button("Allow").click()
    expect(chat.answers.last).to_contain_text("The tool said: 42")
    chat.idle()
    notebook.save()
    notebook.reload()
    chat = ChatPage(notebook)
    expect(chat.answers.last).to_contain_text("The tool said: 42")
    notebook.restart_kernel()
    expect(chat.alert).to_contain_text("kernel of this chat is gone", timeout=20_000)
    notebook.run(0)
    chat = ChatPage(notebook)
    chat.button("Resume").click()
    expect(chat.answers.last).to_contain_text("The tool said: 42")
    assert chat.say("after") == "You said: after"


# What a person presses or types into that is cut off by the edges of the chat.
CUT_OFF = """root => {
    const edge = root.getBoundingClientRect();
    return [...root.querySelectorAll("button, input, textarea, select, summary, p")]
        .filter((el) => el.checkVisibility({ visibilityProperty: true }))
        .map((el) => [el.ariaLabel || el.textContent, el.getBoundingClientRect()])
        .filter(([, box]) => box.left < edge.left - 1 || box.right > edge.right + 1)
        .map(([name, box]) => `${name}: ${box.left} to ${box.right}`);
}"""


@pytest.mark.parametrize("width", [430, 1700], ids=["narrow", "wide"])
def test_a_chat_fits_into_a_page_of_any_width(notebook7: Jupyter, show: Open, width: int) -> None:
    viewport = {"width": width, "height": 900}
    notebook = show(notebook7, f"width-{width}", SHOW, viewport=viewport)
    chat = ChatPage(notebook)
    chat.say("code please")
    chat.say("a long one")
    chat.act("Show the tokens")
    chat.root.locator(".lmt-token").nth(2).focus()
    for panel in ("Settings", "Ledger of this notebook"):
        chat.button(panel).click()
        assert chat.root.evaluate(CUT_OFF) == [], panel
    box = chat.root.bounding_box()
    assert box
    assert 250 < box["width"] <= 960
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    # Nothing that is read is squeezed: the text goes over most of the width there is.
    assert chat.root.locator(".llmc-log").evaluate("e => e.scrollWidth - e.clientWidth") <= 1


# ------------------------------------------------------------------ the embedded model


@pytest.mark.model
def test_a_cell_and_a_chat_stream_from_the_embedded_model_at_once(lab: Jupyter, show: Open) -> None:
    notebook = show(
        lab,
        "real",
        "%load_ext llm_magic\n%llm chat -t 0 -n 200",
        "%%llm --complete -t 0 -n 1500\nOnce upon a time",  # long enough to be seen growing
    )
    chat = ChatPage(notebook)
    chat.send("Write a long poem about the sea.")  # loads the model, with what it does shown
    expect(chat.answers).to_contain_text(" ", timeout=120_000)
    # The page itself counts: on a busy machine one asks it twice, and the answer is there.
    notebook.cell(1).evaluate(
        """cell => {
            window.seen = new Set();
            const look = () => seen.add(cell.querySelector(".jp-OutputArea-output")?.textContent);
            new MutationObserver(look).observe(cell, { childList: true, subtree: true });
        }"""
    )
    notebook.start(1)
    expect(notebook.output(1).first).to_contain_text("tok/s", timeout=120_000)
    chat.idle()
    assert notebook.page.evaluate("seen.size") > 3, "the cell's answer came at once"
    assert len(chat.answers.inner_text()) > 100
    expect(chat.root.locator(".llmc-foot")).to_contain_text("smollm2")
    expect(chat.root.get_by_role("meter")).to_be_visible()
    shown = chat.answers.inner_text()
    notebook.save()
    notebook.reload()
    expect(ChatPage(notebook).answers).to_have_text(shown, use_inner_text=True)


# ------------------------------------------------------------------ accessibility


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_fault(lab: Jupyter, show: Open, dark: bool) -> None:
    script = axe.found()
    tools = 'def add(a: int, b: int) -> int:\n    "Add."\n    return a + b\n'
    lab.theme(dark)
    notebook = show(
        lab, f"axe-{dark}", tools + "chat = llm_magic.Chat(llm, tools=[add], logprobs=3)\nchat"
    )
    chat = ChatPage(notebook)
    assert axe.faults(chat.root, script) == []
    chat.say("code please")
    chat.root.get_by_text("Reasoning").click()
    chat.act("Show the tokens")
    chat.root.locator(".lmt-token").nth(2).focus()
    chat.button("Settings").click()
    chat.send("please call it")
    expect(chat.button("Allow")).to_be_visible()
    found = axe.faults(chat.root, script)
    chat.button("Refuse").click()
    chat.idle()
    chat.act("Edit and send again", 0)
    found += axe.faults(chat.root, script)
    lab.theme(False)
    assert found == []


# ------------------------------------------------------------------ safety

XSS = [
    "<script>hit('script')</script>",
    "<img src=x onerror=\"hit('img')\">",
    "<svg onload=\"hit('svg')\"><animate onbegin=\"hit('animate')\" attributeName=x dur=1s>",
    "<iframe srcdoc=\"<script>parent.hit('srcdoc')</script>\"></iframe>",
    "<iframe src=\"javascript:parent.hit('iframe')\"></iframe>",
    "<a href=\"javascript:hit('href')\">click</a>",
    "[click](javascript:hit('md'))",
    "[click](data:text/html,<script>hit('data')</script>)",
    "[click](&#106;avascript:hit('entity'))",
    "[click](java\nscript:hit('newline'))",
    "![x](http://127.0.0.1:1/leak.png \"onerror=hit('title')\")",
    "![x\" onerror=\"hit('alt')](x)",
    "<details open ontoggle=\"hit('toggle')\">x</details>",
    "<input autofocus onfocus=\"hit('focus')\">",
    "<style>@import 'http://127.0.0.1:1/a.css'; * { background: url(http://127.0.0.1:1/) }</style>",
    "<link rel=stylesheet href=http://127.0.0.1:1/leak.css>",
    "<base href=http://127.0.0.1:1/>",
    "<math><mglyph><style><img src=x onerror=\"hit('mxss')\"></style></mglyph></math>",
    "<form action=javascript:hit('form')><button>x</button></form>",
    "```html\n<script>hit('fence')</script>\n```",
    '```"><img src=x onerror="hit(\'info\')">\ncode\n```',
    "`<img src=x onerror=\"hit('code')\">`",
    "</textarea></code></pre></details><script>hit('close')</script>",
    "\"><script>hit('quote')</script>",
    "'-hit('js')-'",
    "${hit('template')}{{hit('mustache')}}",
    "<noscript><p title=\"</noscript><img src=x onerror=hit('noscript')>\">",
    '<x-y onpointerenter="hit(\'pointer\')" style="position:fixed;inset:0">x</x-y>',
    "| a |\n|---|\n| <img src=x onerror=\"hit('cell')\"> |",
    "[ref]: javascript:hit('ref')\n\n[x][ref]",
    "<http://127.0.0.1:1/\"onmouseover=\"hit('auto')>",
    "\u202e<scr\u200bipt>hit('bidi')</scr\u200bipt>",
]

HOSTILE = f"""
from llm_magic.errors import EngineError
corpus = {XSS!r}
evil = "\\n\\n".join(corpus)
def bad(text: str) -> str:
    raise ValueError(evil)
def good(text: str) -> str:
    print(evil)
    return evil
def hostile(request):
    asked = request.prompt[-1]
    text = getattr(asked, "text", "") or ""
    if getattr(asked, "role", "") == "tool" or not request.tools:
        return "<think>" + evil + "</think>" + evil
    if text == "error":
        return EngineError(evil)
    if text == "partial":
        return [evil, EngineError(evil)]
    name = text if text in ("good", "bad") else corpus[1]
    return f"<tool_call>{{json.dumps({{'name': name, 'arguments': {{'text': evil}}}})}}</tool_call>"
model = LLM(Scripted(hostile, model=evil, syntax=SYNTAXES["hermes"]))
chat = llm_magic.Chat(
    model, evil, tools=[good, bad], suggestions=corpus, logprobs=3, max_tokens=100000
)
plain = llm_magic.Chat(model, logprobs=3, max_tokens=100000)
chat"""


def watch(page: Page) -> list[str]:
    """What was executed or asked for from outside, as it happens."""
    found: list[str] = []

    def asked(request: Request) -> None:
        if "127.0.0.1:1/" in request.url or not request.url.startswith(
            ("http://127.0.0.1", "data:", "blob:")
        ):
            found.append(f"request {request.url[:200]}")

    page.expose_function("hit", lambda what="?": found.append(f"executed {what}"))
    page.on("request", asked)
    page.on("dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss()))
    return found


def test_nothing_that_a_model_or_a_tool_wrote_is_executed(lab: Jupyter, show: Open) -> None:
    notebook = show(lab, "xss", HOSTILE, "plain", "plain.last.heatmap()", "plain.last")
    found = watch(notebook.page)
    chat = ChatPage(notebook)
    for text in ("good", "bad"):
        chat.send(text)
        expect(chat.button("Allow")).to_be_visible()
        chat.button("Allow").click()
        chat.idle()
    chat.send("something else")  # a call of a tool that does not exist
    expect(chat.said).to_have_count(3)
    chat.idle()
    chat.send("error")
    expect(chat.alert).to_contain_text("hit('script')")
    chat.input.fill("")
    chat.send("partial")
    expect(chat.root.locator(".llmc-error")).to_contain_text("hit('img')")
    notebook.run(1)
    other = ChatPage(notebook, 1)
    for n, text in enumerate(XSS, 1):
        other.send(text)
        expect(other.said).to_have_count(n)
        other.idle()
    other.act("Show the tokens")
    other.root.locator(".lmt-token").nth(5).hover()
    for i in (2, 3):
        notebook.run(i)
    for summary in notebook.page.locator("summary").all()[:40]:
        summary.click(timeout=2_000) if summary.is_visible() else None
    for link in other.answers.last.locator("a[href]").all():
        href = link.get_attribute("href") or ""
        assert href.split(":")[0] in ("http", "https", "mailto"), href
        assert "noopener" in (link.get_attribute("rel") or "")
    notebook.page.wait_for_timeout(500)
    assert found == []
    assert (
        notebook.page.locator(
            ".llmc :is(script, iframe, style:not(.lm-hiding), link, base, object, embed, img)"
        ).count()
        == 0
    )


def test_a_hostile_file_and_a_hostile_saved_state_execute_nothing(
    lab: Jupyter, show: Open, tmp_path: Path
) -> None:
    notebook = show(lab, "hostile-file")
    found = watch(notebook.page)
    chat = ChatPage(notebook)
    evil = "\n\n".join(XSS)
    turns = [
        {"role": "user", "content": evil},
        {"role": "assistant", "content": evil, "note": evil},
    ]
    path = tmp_path / "<img src=x onerror=hit('name')>.json"
    path.write_text(json.dumps({"version": 1, "turns": turns}))
    with notebook.page.expect_file_chooser() as chooser:
        chat.button("Load a conversation").click()
    chooser.value.set_files(path)
    expect(chat.said).to_contain_text("hit('script')")
    path.write_text("{")
    with notebook.page.expect_file_chooser() as chooser:
        chat.button("Load a conversation").click()
    chooser.value.set_files(path)
    expect(chat.alert).to_contain_text("cannot be loaded")
    notebook.page.wait_for_timeout(300)
    assert found == []


def test_an_untrusted_notebook_shows_the_transcript_and_executes_nothing(
    lab: Jupyter, show: Open, browser: Browser
) -> None:
    notebook = show(lab, "trusted")
    ChatPage(notebook).say("remember this")
    saved = notebook.save()
    notebook.close()
    output = saved.cells[0].outputs[1]
    evil = "".join(XSS)
    output.data["text/html"] = output.data["text/html"].replace("</details>", f"{evil}</details>")
    output.data["application/vnd.llm-magic.chat+json"] = {"version": evil, "turns": evil}
    saved.cells[0].source += "\n# foreign"
    nbformat.write(saved, lab.root / "foreign.ipynb")
    page = browser.new_context().new_page()
    found = watch(page)
    page.goto(lab.url("lab/workspaces/foreign/tree/foreign.ipynb"))
    # It is open from the start (F260).
    expect(page.get_by_text("Transcript of the chat with scripted: 1 turn")).to_be_visible()
    expect(page.get_by_text("You said: remember this")).to_be_visible()
    page.wait_for_timeout(500)
    assert [what for what in found if what.startswith("executed")] == []
    page.context.close()


# ------------------------------------------------------------------ speed

HEAVY = """
words = [f" word{i}" for i in range(1000)]
heavy = LLM(Scripted(lambda request: words))
fast = LLM(Scripted(lambda request: words, delay=0.005))"""
REPLY = "heavy.chat('go', logprobs=5, max_tokens=1000)"
CHAT = "llm_magic.Chat(fast, logprobs=5, max_tokens=1000)"


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_a_heavy_page_stays_responsive_while_200_tokens_a_second_arrive(
    app: str, show: Open, browser: Browser, request: pytest.FixtureRequest
) -> None:
    """From the message that is sent to the end of the answer, and what the page does after it."""
    cells = [HEAVY, REPLY, REPLY, REPLY, CHAT]
    notebook = show(request.getfixturevalue(app), f"heavy-{app}", *cells)
    for i in range(1, 5):
        notebook.run(i)
    chat = ChatPage(notebook, 4)
    notebook.page.wait_for_timeout(2000)

    def stream() -> None:
        notebook.page.keyboard.press("Enter")
        notebook.quiet(1.5)

    def attempt() -> dict[str, list[float]]:
        before = chat.answers.count()
        chat.input.fill("go")
        found = pagetasks.milliseconds(browser, notebook.page, stream)
        expect(chat.answers).to_have_count(before + 1)
        expect(chat.answers.last).to_contain_text("word999")
        chat.idle()
        return {"stream": found}

    pagetasks.hold(attempt)
