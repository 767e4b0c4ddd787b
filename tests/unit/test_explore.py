"""The live view behind its widget: the tree of branches, the worker thread, what a page is told."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.pages import PageBase

from llm_magic.chat.reply import Reply
from llm_magic.errors import EngineError
from llm_magic.events import Token, Top
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.views import logprobs, mime
from llm_magic.ui.widgets.chat.widget import Chat
from llm_magic.ui.widgets.explorer import tree
from llm_magic.ui.widgets.explorer.tree import BranchTree
from llm_magic.ui.widgets.explorer.widget import Explorer
from llm_magic.ui.widgets.shared import jupyter, token_rows
from llm_magic.ui.widgets.shared.token_rows import (
    FORBIDDEN,
    FORCED,
    NAMELESS,
    OPEN,
    TAKEN,
    TRIMMED,
)
from llm_magic.ui.widgets.shared.worker import INTERVAL

UI = Path(tree.__file__).parent
HEAD = ["The", " quick", " fox", ".\n", "It", " jumps"]
TAIL = [f" w{i}" for i in range(12)]


def scripted(tail: Any = TAIL, **options: Any) -> LLM:
    def answer(request: Any) -> Any:
        return HEAD if isinstance(request.prompt, str) else tail

    return LLM(Scripted(answer, model="fake", **options))


def made(llm: LLM) -> Reply:
    return llm.complete("Go", logprobs=4)


class Page(PageBase):
    """What a page makes of the messages: the same rules as explorer.js."""

    def __init__(self, name: str = "page") -> None:
        super().__init__(name)
        self.views: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.ready = False
        self.times: list[float] = []

    def receive(self, message: Any, buffers: Any = None) -> None:
        self.times.append(time.monotonic())
        super().receive(message)

    def apply(self, op: dict[str, Any]) -> None:
        match op:
            case {"o": "views", "views": heads}:
                old = self.views
                self.views = [
                    {"head": h[:5], "own": old[i]["own"][: h[5]] if i < len(old) else []}
                    for i, h in enumerate(heads)
                ]
            case {"o": "rows", "view": view, "from": start, "rows": rows}:
                assert start <= len(self.views[view]["own"])
                self.views[view]["own"][start : start + len(rows)] = rows
            case {"o": "open", "view": view, "head": head, "rows": rows}:
                assert view == len(self.views)
                self.views.append({"head": head[:5], "own": rows})
            case {"o": "note" | "end", "text": text}:
                self.notes.append(text)
            case {"o": "ready"}:
                self.ready = True

    def text(self, view: int) -> str:
        return "".join(row[0] for row in self.rows(view))

    def rows(self, view: int) -> list[Any]:
        _, parent, at, *_ = self.views[view]["head"]
        before = [] if parent is None else self.rows(parent)[:at]
        return [*before, *self.views[view]["own"]]


def open_page(explorer: Explorer, name: str = "page") -> Page:
    page = Page(name)
    explorer.send = page.receive
    ask(explorer, {"t": "hello", "page": name})
    until(lambda: page.ready, "no snapshot")
    return page


def ask(explorer: Explorer, message: Any) -> None:
    explorer._on_message(explorer, message, None)


def until(condition: Any, what: str, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _empty_hub() -> Iterator[None]:
    kept, hub._entries = hub._entries, []
    yield
    hub._entries = kept


# ----------------------------------------------------------------------------- rows


def test_a_row_says_what_is_known_of_a_token() -> None:
    token = Token(
        7, b" cat", -0.5, 2,
        (Top(1, b"\n", -0.4, False), Top(7, b" cat", -0.5), Top(9, b" dog", -3.0),
         Top(None, b"x", -4.0)),
        at=0.1, masked=0.25, trimmed=True, forced=True,
    )  # fmt: skip
    text, percent, shade, rank, logprob, entropy, masked, flags, others = token_rows.row(token)
    assert (text, percent, shade, rank, logprob) == (" cat", "61%", 1, 2, -0.5)
    assert entropy > 0
    assert masked == "25%"
    assert flags == FORCED | TRIMMED
    assert [other[3] for other in others] == [FORBIDDEN, TAKEN, OPEN, NAMELESS]
    assert others[0][:3] == ["⏎", "67%", 670]
    assert others[2][0] == "␣dog"


def test_a_row_of_a_token_of_which_nothing_is_known() -> None:
    assert token_rows.row(Token(None, b"\xff", None, None, (), at=0.0, masked=None)) == [
        [255], "?", 0, None, None, None, None, 0, []
    ]  # fmt: skip


def test_infinite_logprobs_are_json() -> None:  # B076
    token = Token(1, b"a", float("-inf"), 5, (Top(2, b"b", float("-inf"), False),), 0.0, None)
    json.dumps(token_rows.row(token), allow_nan=False)


def test_weights_of_what_is_sent_and_of_what_is_kept() -> None:
    llm = LLM(Scripted([[f" word{i % 50}" for i in range(1000)]], model="fake"))
    reply = llm.complete("Go", logprobs=5, max_tokens=1000)
    explorer = Explorer(reply, llm)
    page = open_page(explorer)
    sent = sum(len(json.dumps(m, ensure_ascii=False).encode()) for m in page.messages)
    kept = len(json.dumps(explorer.state, ensure_ascii=False).encode())
    assert len(reply.tokens) == 1000
    assert sent / 1000 < 220
    assert kept / 1000 < 20
    # No message keeps a page busy for long.
    assert max(len(json.dumps(m)) for m in page.messages) < 150_000


# ----------------------------------------------------------------------------- the tree


def test_a_tree_gives_back_the_reply_that_it_was_made_of() -> None:
    llm = scripted()
    reply = made(llm)
    inner = replace(reply, branches=((4, made(llm)),))
    whole = replace(reply, branches=((1, inner), (3, made(llm))))
    found = BranchTree(whole)
    assert found.reply == whole
    assert [(n.parent, n.at) for n in found.nodes] == [(None, 0), (0, 1), (1, 4), (0, 3)]
    assert [len(n.rows) for n in found.nodes] == [6, 5, 2, 3]


def test_positions_of_a_foreign_notebook_are_kept_in_bounds() -> None:
    reply = made(scripted())
    found = BranchTree(replace(reply, branches=((-3, reply), (999, reply))))
    assert [node.at for node in found.nodes] == [0, 0, 6]
    assert len(found.saved()) == 3
    for at in (-3, -99, 999):
        page = mime.bundle(replace(reply, branches=((at, reply),)), mime.Look())["text/html"]
        assert "1 branch" in page


def test_only_the_newest_node_can_be_dropped() -> None:
    found = BranchTree(made(scripted()))
    with pytest.raises(ValueError, match="node 0"):
        found.drop(0)
    found.open(0, 2, found.nodes[0].reply)
    found.drop(1)
    assert len(found.nodes) == 1


def test_kinds_are_runs() -> None:
    llm = LLM(Scripted(["<think>hm hm</think>yes it is"], model="fake"))
    runs = BranchTree(llm.complete("Go")).nodes[0].head()[4]
    assert [kind for kind, _ in runs] == ["reasoning", "answer"]


# ----------------------------------------------------------------------------- branches


def test_a_branch_streams_to_the_page_and_stays_in_the_reply() -> None:
    llm = scripted(delay=0.01)
    reply = made(llm)
    explorer = Explorer(reply, llm)
    page = open_page(explorer)
    ask(explorer, {"t": "branch", "page": "page", "view": 0, "at": 1, "alternative": 2})
    assert explorer.wait(10)
    until(lambda: explorer._worker._thread is None, "the worker thread stays")
    assert page.text(1).startswith("The" + reply.tokens[1].top[1].bytes.decode())
    assert page.text(1).endswith(" w11")
    ((at, branch),) = explorer.reply.branches
    assert at == 1
    assert branch.tokens[0].id == reply.tokens[0].id
    assert branch.tokens[1].id == reply.tokens[1].top[1].id
    assert branch.text == page.text(1)
    assert [t.forced for t in branch.tokens[:3]] == [True, True, False]
    assert reply.branches == ()
    # What came piece by piece is what a page that comes later gets.
    assert page.missed == 0
    assert open_page(explorer, "later").views == page.views
    assert page.threads == {"llm-explore"}
    given = llm.provider.requests[-1].given
    assert [t.id for t in given] == [t.id for t in branch.tokens[:2]]


def test_no_more_than_twenty_messages_a_second() -> None:
    llm = scripted([f" w{i}" for i in range(32)], delay=0.01)
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    began = len(page.times)
    explorer.branch(1)
    assert explorer.wait(20)
    until(lambda: explorer._worker._thread is None, "the worker thread stays")
    times = page.times[began:]
    gaps = [b - a for a, b in pairwise(times[1:-1])]
    assert len(times) < 32
    assert all(gap >= 0.9 * INTERVAL for gap in gaps)


def test_a_branch_of_a_branch_sends_only_its_own_tokens() -> None:
    llm = scripted()
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    explorer.branch(1)
    assert explorer.wait(10)
    explorer.branch(4, view=1)
    assert explorer.wait(10)
    assert page.views[2]["head"][1:3] == [1, 4]
    assert len(page.views[2]["own"]) == 1 + len(TAIL)
    assert page.text(2)[: len(page.text(1)[:8])] == page.text(1)[:8]
    inner = explorer.reply.branches[0][1].branches[0]
    assert inner[0] == 4
    # All of it survives the notebook file.
    saved = json.loads(json.dumps(mime.saved(explorer.reply, mime.Look())))
    again = mime.from_output(saved)
    assert [n.at for n in BranchTree(again).nodes] == [0, 1, 4]


def test_stop_keeps_what_has_come() -> None:
    llm = scripted(delay=0.05)
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    ask(explorer, {"t": "branch", "page": "page", "view": 0, "at": 0, "alternative": None})
    until(lambda: len(page.views) == 2 and len(page.views[1]["own"]) > 2, "nothing comes")
    ask(explorer, {"t": "stop"})
    assert explorer.wait(5)
    until(lambda: page.views[1]["head"][3][-1] == "stopped", "no word of the end")
    assert page.notes == [""]
    ((_, branch),) = explorer.reply.branches
    assert branch.finish_reason == "cancelled"
    assert 3 <= len(branch.tokens) < 1 + len(TAIL)
    assert page.text(1) == branch.text


def test_stop_during_prefill_and_a_page_that_asks_meanwhile() -> None:
    llm = LLM(Scripted([HEAD, TAIL], model="fake"))
    reply = replace(made(llm), prompt="a " * 500)
    llm.provider.prefill_delay = 0.2
    explorer = Explorer(reply, llm)
    page = open_page(explorer)
    ask(explorer, {"t": "branch", "page": "page", "view": 0, "at": 1, "alternative": None})
    until(lambda: len(page.views) == 2, "the branch does not open")
    busy = [op["text"] for m in page.messages for op in m["ops"] if op["o"] == "busy"]
    assert busy[0] == "starting"
    page.ready, page.seq = False, None  # the page was loaded anew
    ask(explorer, {"t": "hello", "page": "page"})
    until(lambda: page.ready, "no snapshot while the prompt is read", 1)
    assert len(page.views) == 2
    explorer.stop()
    assert explorer.wait(2)


def test_one_branch_at_a_time() -> None:
    llm = scripted(delay=0.05)
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    explorer.branch(0)
    explorer.branch(1)
    until(lambda: page.notes, "silence")
    assert "One branch at a time" in page.notes[0]
    explorer.stop()
    assert explorer.wait(5)
    assert len(explorer.reply.branches) == 1


def test_a_handler_returns_at_once() -> None:
    llm = scripted(delay=1)
    explorer = Explorer(made(scripted()), llm)
    open_page(explorer)
    began = time.monotonic()
    ask(explorer, {"t": "branch", "page": "page", "view": 0, "at": 1, "alternative": None})
    ask(explorer, {"t": "stop"})
    assert time.monotonic() - began < 0.9, "it waited for a token"
    assert explorer.wait(5)


def test_a_failure_is_told_and_leaves_what_came() -> None:
    llm = scripted([" a", " b", EngineError("the engine <b>broke</b>")])
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    explorer.branch(1)
    assert explorer.wait(5)
    until(lambda: page.notes, "silence")
    assert page.notes[-1] == "the engine <b>broke</b>"
    ((_, branch),) = explorer.reply.branches
    assert branch.text.endswith(" a b")
    assert page.text(1) == branch.text


def test_a_failure_before_the_first_token_leaves_no_branch() -> None:
    llm = scripted(EngineError("no"))
    explorer = Explorer(made(llm), llm)
    page = open_page(explorer)
    explorer.branch(1)
    assert explorer.wait(5)
    until(lambda: page.notes == ["no"], "silence")
    assert explorer.reply.branches == ()
    assert len(page.views) == 1
    assert len(explorer.state["views"]) == 1


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: r, "fake has to be loaded in this kernel: %llm load fake"),
        (lambda r: replace(r, prompt=None), "does not hold its prompt"),
        (
            lambda r: replace(
                r, prompt=None, tokens=tuple(replace(t, forced=True) for t in r.tokens)
            ),
            "the score of a text",
        ),
        (lambda r: replace(r, tokens=tuple(replace(t, id=None) for t in r.tokens)), "have no ids"),
        (lambda r: replace(r, tokens=tuple(replace(t, top=()) for t in r.tokens)), "--logprobs"),
    ],
)
def test_a_reply_that_cannot_branch_says_why(change: Any, why: str) -> None:
    llm = scripted()
    reply = change(Reply.from_dict(json.loads(json.dumps(made(llm).to_dict()))))
    explorer = Explorer(reply, None if "load" in why else llm)
    page = open_page(explorer)
    assert page.text(0).startswith("The quick")
    explorer.branch(1, 2)
    assert explorer.wait(5)
    until(lambda: page.notes, "silence")
    assert why in page.notes[0]
    assert explorer.reply == reply


def test_another_model_than_the_replys_never_continues_it() -> None:
    other = LLM(Scripted([TAIL], model="other"))
    hub.add("other", other)
    explorer = Explorer(made(scripted()))
    page = open_page(explorer)
    explorer.branch(1)
    assert explorer.wait(5)
    until(lambda: page.notes, "silence")
    assert "fake has to be loaded" in page.notes[0]
    assert other.provider.requests == []


def test_a_reloaded_reply_branches_once_its_model_is_there() -> None:
    llm = scripted()
    reply = Reply.from_dict(made(llm).to_dict())
    explorer = Explorer(reply)
    hub.add("/models/fake.gguf", llm)
    explorer.branch(1)
    assert explorer.wait(5)
    assert len(explorer.reply.branches) == 1


def test_messages_of_another_version_do_no_harm() -> None:
    explorer = Explorer(made(scripted()))
    page = open_page(explorer)
    for message in ({"t": "fly"}, {"t": "branch", "view": "x", "at": None}, 5, None, []):
        ask(explorer, message)
    ask(explorer, {"t": "branch", "view": 99, "at": 0, "alternative": 1})
    ask(explorer, {"t": "branch", "view": 0, "at": 99, "alternative": 1})
    assert explorer.wait(5)
    until(lambda: len(page.notes) == 3, "silence")
    assert "no token 99: the reply has 6, and the first is 0" in page.notes[-1]


# ----------------------------------------------------------------------------- around it


def test_names_that_hold_the_reply_hold_the_one_with_branches(monkeypatch: Any) -> None:
    class Shell:
        def __init__(self, **names: Any) -> None:
            self.user_ns = names
            self.user_ns_hidden = {"_llm": names["_llm"]}

    llm = scripted()
    reply, other = made(llm), made(llm)
    assert reply == other
    shell = Shell(_llm=reply, r=reply, same_text=other)
    monkeypatch.setattr(jupyter, "get_ipython", lambda: shell)
    explorer = Explorer(reply, llm)
    for n in (1, 2):
        explorer.branch(n)
        assert explorer.wait(5)
        until(lambda: explorer._worker._thread is None, "the worker thread stays")
    assert shell.user_ns["r"] is shell.user_ns["_llm"] is explorer.reply
    assert shell.user_ns_hidden["_llm"] is explorer.reply
    assert shell.user_ns["same_text"] is other
    assert len(explorer.reply.branches) == 2


def test_the_static_form_has_every_branch() -> None:
    llm = scripted()
    explorer = Explorer(made(llm), llm)
    explorer.branch(1)
    assert explorer.wait(5)
    until(lambda: explorer._worker._thread is None, "the worker thread stays")
    data = explorer._static()
    assert ">1 branch</summary>" in data["text/html"]
    assert "w11" in data["text/html"]
    assert len(mime.from_output(data).branches) == 1
    assert "application/vnd.jupyter.widget-view+json" not in data


def test_the_script_is_one_module_without_network_or_markup() -> None:
    source = Explorer._esm
    assert source.count("export default") == 1
    assert not re.search(r"^(import |export (?!default))", source, re.MULTILINE)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "://"):
        assert way not in source
    # A name may be declared once only: the files share one scope.
    names = re.findall(r"^(?:const|let|class|function) (\w+)", source, re.MULTILINE)
    assert len(names) == len(set(names))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_of_our_own_can_be_read_in_both_themes() -> None:
    rules = re.findall(r"--own-(\w+): (#\w{6})", (UI / "explorer.css").read_text())
    assert len(rules) == 14
    for theme in (dict(rules[:7]), dict(rules[7:])):
        for ground in ("bg", "soft"):
            for ink in ("text", "dim", "error"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        assert contrast(theme["accent"], theme["bg"]) >= 3  # focus, bars: no text


def test_every_step_of_the_scale_is_in_the_style_sheet_for_both_themes() -> None:
    css = token_rows.style()
    assert css in Explorer._css
    assert css in Chat._css
    pairs = re.findall(r"--b(\d):(#\w{6});--c\1:(#\w{6})", css)
    shaded = [step for step in logprobs.SCALE if step.light]
    assert len(pairs) == 4 * len(shaded)
    for _, background, text in pairs:
        assert contrast(background, text) >= 4.5
    # The order of the steps is in the underline, too.
    widths = re.findall(r"\.lmt-p\d\{[^}]*border-bottom:(\d)px", css)
    assert widths == sorted(widths)
    assert len(widths) == len(logprobs.SCALE)


def test_a_reply_without_tokens_can_be_shown() -> None:
    explorer = Explorer(Reply("only text"))
    page = open_page(explorer)
    assert page.rows(0) == []
    explorer.branch(0)
    assert explorer.wait(5)
    until(lambda: page.notes, "silence")
    assert "the reply has 0" in page.notes[0]


def test_the_tree_of_a_thousand_tokens_is_there_at_once() -> None:
    llm = LLM(Scripted([[f" word{i}" for i in range(1000)]], model="fake"))
    reply = llm.complete("Go", logprobs=5, max_tokens=1000)
    took = []
    for _ in range(3):  # the quietest: others empty the processor's caches
        began = time.thread_time()
        BranchTree(reply)
        took.append(time.thread_time() - began)
    assert min(took) < 0.3


def test_many_branches_stand_below_each_other_in_the_static_form() -> None:
    llm = scripted()
    explorer = Explorer(made(llm), llm)
    for at, view in ((1, 0), (3, 0), (4, 1)):
        explorer.branch(at, view=view)
        assert explorer.wait(5)
    until(lambda: explorer._worker._thread is None, "the worker thread stays")
    page = explorer._static()["text/html"]
    assert "<summary" in page
    assert "3 branches" in page
    own = explorer.reply.branches[0][1]
    inner = own.branches[0][1]
    title = mime.branch_title(1, own)
    assert f"{mime.branch_title(4, inner)} of {title}" in page
    assert page.count("w11") >= 3
