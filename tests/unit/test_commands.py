"""The richer commands and views: score, compare, branch, tokenize, stats, traces, plots."""

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import nbformat
import numpy as np
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.html_audit import XSS, audit, shown
from support.replies import reply_of
from support.shells import cell, command

from llm_magic import branching
from llm_magic.chat.reply import Reply
from llm_magic.errors import NotLoadedError, RequestError
from llm_magic.events import Message, Part, Piece, Token, ToolCall, ToolRecord, ToolSpec, Top, Usage
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui import reply_methods  # fmt: skip
from llm_magic.ui.magics import extension
from llm_magic.ui.views import compare, mime, plots, summary, throughput, tokens, tooltrace


class Scoring(Scripted):
    """A script that also scores: the n-th token of a text has the n-th of fixed logprobs."""

    capabilities = Scripted.capabilities | {"score"}
    fixed = (None, -0.1, -5.0, -0.5, -0.02)

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        names = {p.id: p.bytes for text in self.texts for p in self.tokenize(text)}
        other = tuple(Top(7, b" other", -0.3 - j) for j in range(top))
        return [
            Token(id, names[id], self.fixed[i % 5], 1 + i, other, forced=True)
            for i, id in enumerate(ids)
        ]

    texts: tuple[str, ...] = ()


@pytest.fixture
def script(as_default: Callable[[Scripted], None]) -> Scoring:
    scripted = Scoring(lambda request: answers(request), model="fake")
    as_default(scripted)
    return scripted


def answers(request: Any) -> str:
    """The answer depends on the temperature and the seed, so that settings can be compared."""
    settings = request.sampling
    return f"The answer at {settings.temperature} is {settings.seed}."


# ----------------------------------------------------------------------------- sections, score


def test_show_adds_sections(shell: InteractiveShell, script: Scoring) -> None:
    (*_, data) = cell(shell, "--show prompt,tokens,stats", "Hi")
    text = shown(data["text/html"])
    for piece in ("Prompt", "user: Hi", "Token probabilities", "Statistics", "perplexity", "0.7"):
        assert piece in text
    with pytest.raises(UsageError, match="choose from prompt, tokens, stats"):
        cell(shell, "--show promt", "Hi")


def test_score_shades_the_text_itself(shell: InteractiveShell, script: Scoring) -> None:
    script.texts = ("The cat sat on",)
    (*_, data) = cell(shell, "--score", "The cat sat on")
    assert data["text/plain"] == "The cat sat on"
    text = shown(data["text/html"])
    assert "The cat sat on4 tokens" in text
    assert "least expected" in text
    assert "expected instead" in text
    assert "4 tokens" in text
    reply = shell.user_ns["_llm"]
    assert reply.perplexity == pytest.approx(math.exp(5.6 / 3))
    assert script.requests == []
    with pytest.raises(UsageError, match="--score"):
        cell(shell, "--score -s x", "The cat")


# ----------------------------------------------------------------------------- compare


def test_compare_two_settings(shell: InteractiveShell, script: Scoring) -> None:
    data = command(shell, "compare -t 0 -t 1 --seed 5 What is {x}?")
    first, second = script.requests[-2:]
    assert (first.sampling.temperature, second.sampling.temperature) == (0, 1)
    assert first.sampling.seed == second.sampling.seed == 5
    assert first.prompt[-1].text == second.prompt[-1].text == "What is {x}?"
    text = shown(data["text/html"])
    assert "temperature 0" in text
    assert "temperature 1" in text
    assert "temperature 0.0" not in text
    assert "the same for" in text
    assert "The answer at 1.0 is 5." in data["text/plain"]


def test_compare_two_models(shell: InteractiveShell, script: Scoring) -> None:
    hub.add("other", LLM(Scripted(["Something else."], model="other")))
    data = command(shell, "compare -m fake -m other Hi")
    assert "--- fake" in data["text/plain"]
    assert "--- other" in data["text/plain"]
    assert "different from the first token" in data["text/plain"]
    hub.unload("other")


def test_compare_two_texts(shell: InteractiveShell, script: Scoring) -> None:
    script.texts = ("a b c", "a b d e")
    data = command(shell, 'compare --score "a b c" "a b d e"')
    assert "perplexity" in data["text/plain"]
    assert "the same for 2 tokens, then: ␣c | ␣d" in data["text/plain"]
    assert "probability 90% or more" in shown(data["text/html"])


def test_compare_two_replies_by_name(shell: InteractiveShell, script: Scoring) -> None:
    cell(shell, "-o one -t 0", "Hi")
    cell(shell, "-o two -t 1", "Hi")
    before = len(script.requests)
    data = command(shell, "compare one two")
    assert "--- one" in data["text/plain"]
    assert len(script.requests) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [("compare", "no text"), ("compare -t 0 -t 1 -t 2 --seed 1 --seed 2 x", "once for each side"),
     ("compare --score", "in quotes"), ("compare --temprature 1 x", "--temperature")],
)  # fmt: skip
def test_wrong_comparisons(shell: InteractiveShell, script: Scoring, line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command(shell, line)


def test_where_replies_part() -> None:
    one, two = reply_of(4), reply_of(4)
    assert compare.parting([one, two]) == "the same 4 tokens"
    assert compare.parting([one, reply_of(6)]) == "the same for 4 tokens, then: the end | ␣w4"
    assert compare.parting([one]) == ""


# ----------------------------------------------------------------------------- branches


def test_branch_goes_on_from_another_token(shell: InteractiveShell, script: Scoring) -> None:
    cell(shell, "--logprobs 3 -t 0 -o first", "Hi")
    first = shell.user_ns["first"]
    # A script has no ids for its prompt: give it some, as an engine does.
    first = shell.user_ns["_llm"] = replace(first, prompt_ids=(1, 2, 3))
    other = next(a for a in first.tokens[2].top if a.id != first.tokens[2].id)
    data = command(shell, f"branch 2 '{other.bytes.decode()}' -n 9")
    request = script.requests[-1]
    assert request.prompt.ids == (1, 2, 3)
    assert [t.id for t in request.given] == [first.tokens[0].id, first.tokens[1].id, other.id]
    assert request.sampling.max_tokens == 9
    kept = shell.user_ns["_llm"]
    ((at, branch),) = kept.branches
    assert at == 2
    assert branch.tokens[2].bytes == other.bytes
    assert all(t.forced for t in branch.tokens[:3])
    assert branch.text == b"".join(t.bytes for t in branch.tokens).decode()
    assert kept.text == first.text
    text = shown(data["text/html"])
    assert data["text/plain"] == branch.text
    assert f"branch at token 2: {tokens.alone(other.bytes)}" in text
    # It is all in the saved form.
    again = reply_methods.from_output(json.loads(json.dumps(data)))
    assert again.branches[0][1].text == branch.text


def test_a_branch_from_code(script: Scoring) -> None:
    reply = LLM(script).complete("Hi", logprobs=3, temperature=0.0)
    kept = reply_methods.branch(reply, 1, 2, max_tokens=3)
    ((at, branch),) = kept.branches
    assert at == 1
    assert branch.tokens[1].id == reply.tokens[1].top[1].id
    assert len(branch.tokens) == 5
    assert script.requests[-1].sampling.temperature == 0.0
    assert [b for b, _ in reply_methods.branch(kept, -1).branches] == [1, len(reply.tokens) - 1]
    with pytest.raises(NotLoadedError):
        reply_methods.branch(replace(reply, model="gone"), 1)


def test_a_choice_is_a_rank_a_text_or_the_next_best() -> None:
    top = (Top(1, b" a", -0.1), Top(2, b" b", -1.0), Top(3, b"c", -2.0))
    reply = Reply(" a", tokens=(Token(1, b" a", -0.1, 1, top),))
    assert branching.choice(reply, 0, None).id == 2
    assert branching.choice(reply, -1, 3).id == 3
    assert branching.choice(reply, 0, "b").id == 2
    assert branching.choice(reply, 0, " b").rank == 2
    for place, alternative in ((0, "x"), (0, 9), (1, None)):
        with pytest.raises(RequestError):
            branching.choice(reply, place, alternative)
    with pytest.raises(RequestError, match="--logprobs"):
        branching.choice(Reply("a", tokens=(Token(1, b"a", -1.0, 1),)), 0, None)


def test_no_more_of_a_prompt_is_said_to_be_cached_than_there_is() -> None:
    """The engine counts what a branch was given as its prompt, and finds it in the cache."""
    branch = reply_of(usage=Usage(4, 7, 36), finish_reason="length")
    assert "4 prompt tokens (4 cached + 0 new)" in summary.numbers(branch)
    assert ("of them cached", "4") in throughput.details(branch)
    assert ("end", "cut off at the token limit") in throughput.details(branch)
    row = throughput.rows([throughput.entry(branch, 1)])[0]
    assert row[-1] == "cut off"


def test_a_branch_without_its_prompt_is_an_error(script: Scoring) -> None:
    with pytest.raises(RequestError, match="prompt"):
        branching.stream(LLM(script), Reply("a"), ())


def test_branch_without_a_reply_is_a_usage_error(shell: InteractiveShell, script: Scoring) -> None:
    with pytest.raises(UsageError, match="no reply yet"):
        command(shell, "branch 1")


# ----------------------------------------------------------------------------- tokenize


def test_tokenize_shows_pieces_ids_and_bytes(shell: InteractiveShell, script: Scoring) -> None:
    data = command(shell, "tokenize Hello, {x} wörld")
    assert data["text/plain"].startswith("6 tokens: Hello|,|␣{|x|}|␣wörld\nids: ")
    text = shown(data["text/html"])
    assert "77 c3 b6 72 6c 64" in text
    assert "6 tokens" in text


def test_tokenize_alone_is_the_last_prompt(shell: InteractiveShell, script: Scoring) -> None:
    cell(shell, "", "Hello there")
    data = command(shell, "tokenize")
    assert "there" in data["text/plain"]
    assert "cached" in shown(data["text/html"])


def test_the_inspector_marks_control_tokens_and_the_cached_part() -> None:
    pieces = [
        Piece(1, "<|im_start|>", b"", True),
        Piece(2, "user", b"user", False),
        Piece(3, "\n", b"\n", False),
        Piece(4, "<b>", b"<b>", False),
    ]
    page = tokens.inspector(pieces, cached=2)
    assert audit(page) == []
    assert "│ new │" in shown(page)
    assert "4 tokens · 8 characters · 1 control token ·" in shown(page)
    assert "2 cached + 2 new" in shown(page)
    assert page.count("lm-tc") == 1


def test_the_inspector_counts_a_character_of_several_tokens_once() -> None:
    spread = [Piece(i, "\ufffd", bytes([b]), False) for i, b in enumerate("本é".encode())]
    assert "5 tokens · 2 characters" in shown(tokens.inspector(spread))


def test_the_inspector_says_which_character_bytes_of_several_tokens_make() -> None:
    cut = [b"a", b" \xf0\x9f", b"\xa6", b"\x99", b"!", b"\xff", b"\xe6\x9c", b"b", b"\xc3"]
    pieces = [Piece(i, "", b, False) for i, b in enumerate(cut)]
    page = tokens.inspector(pieces)
    assert audit(page) == []
    assert shown(page).count(" = 🦙 ") == shown(page).count(" = ") == 1
    assert shown(page).count("bytes of 🦙") == shown(page).count("bytes of") == 3
    # A control token between two halves makes them no character.
    halves = [
        Piece(1, "", b"\xc3", False),
        Piece(2, "<s>", b"", True),
        Piece(3, "", b"\xa9", False),
    ]
    assert " = " not in shown(tokens.inspector(halves))


def chat_pieces(*texts: str) -> list[Piece]:
    """Pieces of a prompt; texts in capitals are control tokens."""
    return [Piece(i, t, t.encode(), t.isupper() or "<" in t) for i, t in enumerate(texts)]


def roles_of(page: str) -> list[tuple[str, str]]:
    """(colour of the edge, role in words) of each block."""
    blocks = re.findall(r'<div style="border-left:3px solid (#\w+)[^>]*>(.*?)<pre', page)
    return [(colour, shown(head).strip()) for colour, head in blocks]


def test_the_inspector_sets_off_the_turns_of_a_prompt_by_their_roles() -> None:
    forged = Piece(9, "<|im_start|>", b"<|im_start|>", False)  # typed by a user: no marker
    pieces = [
        *chat_pieces("<|im_start|>", "system", "\n", "Be", " brief", "<|im_end|>", "\n"),
        *chat_pieces("<|im_start|>", "user", "\n"), forged, *chat_pieces("system", "<|im_end|>"),
        *chat_pieces("<|im_start|>", "ass", "istant", "\n"),
    ]  # fmt: skip
    page = tokens.inspector(pieces, cached=3)
    assert audit(page) == []
    assert roles_of(page) == [
        ("#8250df", "system"), ("#0969da", "user"), ("#bf5b00", "assistant"),
    ]  # fmt: skip
    text = shown(page)
    assert text.index("│ new │") < text.index("brief") < text.index("user")
    assert roles_of(tokens.inspector(chat_pieces("user", " text"))) == [("#8c959f", "")]


@pytest.mark.parametrize(
    ("pieces", "roles"),
    [
        (("<bos>", "<start_of_turn>", "user", "\n", "Hi", "<end_of_turn>", "\n", "<start_of_turn>",
          "model", "\n"), ["", "user", "model"]),
        (("<|begin_of_text|>", "<|start_header_id|>", "user", "<|end_header_id|>", "\n\n", "Hi"),
         ["", "user"]),
        (("<|begin_of_text|>", "user", " manual"), [""]),
        (("<|system|>", "\n", "Be", "<|end|>", "<|user|>", "\n", "Hi", "<|end|>", "<|assistant|>"),
         ["system", "user", "assistant"]),
        (("<｜User｜>", "Hi", "<｜Assistant｜>"), ["user", "assistant"]),
        (("<s>", "[INST]", " user", " text", "[/INST]", " Hi"), ["", "user", "assistant"]),
    ],
)  # fmt: skip
def test_turns_are_known_in_the_ways_that_templates_write_them(
    pieces: tuple[str, ...], roles: list[str]
) -> None:
    found = tokens.inspector(chat_pieces(*pieces))
    assert [role for _, role in roles_of(found)] == roles
    assert [role for role, _ in tokens.turns("".join(pieces))] == roles


def test_the_prompt_view_knows_turns() -> None:
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert [role for role, _ in tokens.turns(text)] == ["system", "user", "assistant"]
    assert "".join(part for _, part in tokens.turns(text)) == text
    page = tokens.prompt(text, 30, 20)
    assert audit(page) == []
    assert "20 cached + 10 new" in shown(page)
    assert tokens.turns("no markers") == [("", "no markers")]
    view = reply_methods.prompt_view(Reply("x", prompt=text, usage=Usage(30, 20, 1)))
    assert "Be brief." in shown(view._repr_mimebundle_()["text/html"])
    assert repr(reply_methods.prompt_view(Reply("x"))) == "the prompt was not saved"


def test_the_prompt_view_shows_messages_tools_and_what_the_template_made_of_them() -> None:
    evil = "<img src=x onerror=alert(1)>"
    messages = (
        Message("system", "Be brief."),
        Message("user", (Part("text", f"What is {evil}?"), Part("image_url")), name="Ann"),
        Message("assistant", None, "Hm.", (ToolCall("c1", "look", '{"at": "it"}'),)),
        Message("tool", "a cat", call_id="c1", name="look"),
    )
    tools = (ToolSpec("look", f"Look at {evil}", {"type": "object", "properties": {}}),)
    reply = Reply("x", prompt="<|im_start|>user\nHi", messages=messages, tools=tools)
    page = reply_methods.prompt_view(reply)._repr_mimebundle_()["text/html"]
    assert audit(page) == []
    text = shown(page)
    for words in ("system", "user · Ann", f"What is {evil}?", "image_url", "reasoning Hm.",
                  'call look({"at": "it"})', "tool · look", "a cat", "1 tool offered: look",
                  "As the template renders it", "<|im_start|>user\nHi"):  # fmt: skip
        assert words in text, words
    # Roles have the colours of the tokenisation inspector.
    for look in ("#8250df", "#0969da", "#bf5b00"):
        assert f"border-left:3px solid {look}" in page
    # Without a template the messages are still there; of a saved reply there is the text alone.
    assert "What is" in shown(reply_methods.prompt_view(replace(reply, prompt=None)).html)
    assert repr(reply_methods.prompt_view(replace(reply, prompt=None))).startswith(
        "system: Be brief."
    )
    assert "offered" not in reply_methods.prompt_view(Reply.from_dict(reply.to_dict())).html


def test_a_reply_knows_what_was_asked(shell: InteractiveShell, script: Scoring) -> None:
    def look(at: str) -> str:
        """Look at it."""
        return at

    shell.user_ns["look"] = look
    (*_, data) = cell(shell, "--system Short. --show prompt --tools look", "Hi")
    (system, user), tools = shell.user_ns["_llm"].messages, shell.user_ns["_llm"].tools
    assert (system.text, user.text, [t.name for t in tools]) == ("Short.", "Hi", ["look"])
    assert "1 tool offered: look" in shown(data["text/html"])
    assert "called no tool · stop" in shown(data["text/html"])
    cell(shell, "--complete", "Hi")
    assert (shell.user_ns["_llm"].messages, shell.user_ns["_llm"].tools) == ((), ())


# ----------------------------------------------------------------------------- stats, plots


def test_the_ledger_has_a_line_per_generation(shell: InteractiveShell, script: Scoring) -> None:
    assert "no cell has asked" in command(shell, "stats")["text/plain"]
    for _ in range(2):
        cell(shell, "", "Hi")
    data = command(shell, "stats")
    lines = data["text/plain"].splitlines()
    assert len(lines) == 4
    assert "0.20" in lines[1]  # what the script says that it took
    assert lines[1].split()[1] == "fake"
    assert lines[-1].startswith("sum")
    assert shown(data["text/html"]).count("fake") == 2
    axes = shell.run_line_magic("llm", "stats --plot")
    assert axes.get_xlabel() == "cell"


def test_the_ledger_survives_a_reload(shell: InteractiveShell, script: Scoring) -> None:
    cell(shell, "", "Hi")
    extension.unload_ipython_extension(shell)
    extension.load_ipython_extension(shell)
    assert command(shell, "stats")["text/plain"].splitlines()[1].split()[1] == "fake"


def test_what_was_not_measured_is_no_speed_of_zero_in_the_plot() -> None:
    known = {"cell": 1, "model": "m", "prompt": 3, "cached": 0, "tokens": 1, "seconds": 0.1}
    entries = [
        throughput.Entry(**known, prefill_tps=900.0, decode_tps=0.0, reason="stop"),
        throughput.Entry(**known, prefill_tps=0.0, decode_tps=0.0, reason="scored"),
    ]
    prefill, decode = plots.plot_ledger(entries).get_lines()
    assert prefill.get_ydata()[0] == 900.0
    assert all(map(math.isnan, [prefill.get_ydata()[1], *decode.get_ydata()]))


@pytest.mark.parametrize("line", ["stats --help", "bench -h", "load --help"])
def test_help_of_a_command_is_its_usage(
    shell: InteractiveShell, script: Scoring, line: str
) -> None:
    text = command(shell, line)["text/plain"]
    name = line.split()[0]
    assert text.startswith(f"%llm {name} [")
    assert ("fewer sizes" in text) == (name == "bench")


def test_speeds_are_taken_over_a_window() -> None:
    seconds, rates = throughput.speeds([0.0, 0.1, 0.2, 0.4], window=2)
    assert seconds == [0.1, 0.2, 0.4]
    assert rates == pytest.approx([10.0, 10.0, 2 / 0.3])
    assert throughput.speeds([]) == ([], [])
    assert throughput.speeds([1.0, 1.0]) == ([], [])


def test_plot_takes_and_returns_axes_without_pyplot() -> None:
    axes = reply_of().plot()
    assert axes.get_ylabel() == "tokens a second"
    image = axes._repr_png_()
    assert image.startswith(b"\x89PNG")
    again = reply_methods.plot(reply_of(), ax=axes)
    assert again is axes
    dark = reply_of().plot(dark=True)
    assert dark.figure.get_facecolor()[:3] == (0.0, 0.0, 0.0)
    assert reply_methods.plot(Reply("")).lines  # an empty reply is an empty plot
    code = (
        "import sys; from llm_magic.chat.reply import Reply; Reply('x').plot()._repr_png_();"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


# ----------------------------------------------------------------------------- alternatives, frame


def test_alternatives_of_a_token() -> None:
    reply = reply_of()
    view = reply.alternatives(5)
    text = shown(view._repr_mimebundle_()["text/html"])
    assert "after ' w0 w1 w2 w3 w4'" in text
    assert "→" in text
    assert "␣alt0" in text
    assert "entropy at least" in text
    assert "→ ␣w5" in repr(view)
    assert repr(reply.alternatives(-1)) == repr(view)
    with pytest.raises(IndexError, match="6 tokens"):
        reply.alternatives(6)


def test_entropy_is_a_lower_bound_in_bits() -> None:
    from llm_magic.ui.views.logprobs import entropy

    half = math.log(0.5)
    even = Token(1, b"a", half, 1, (Top(1, b"a", half), Top(2, b"b", half)))
    assert entropy(even) == pytest.approx(1.0)
    # A quarter is unknown: taken as one outcome, though it may be many.
    quarter = math.log(0.25)
    some = Token(1, b"a", half, 1, (Top(1, b"a", half), Top(2, b"b", quarter)))
    assert entropy(some) == pytest.approx(1.5)
    assert entropy(Token(1, b"a", half, 1)) is None
    sure = Token(1, b"a", 0.0, 1, (Top(1, b"a", 0.0), Top(2, b"b", None)))
    assert entropy(sure) == 0.0


def test_to_frame_has_a_row_per_token() -> None:
    frame = reply_of().to_frame()
    assert list(frame.columns) == [
        "token", "id", "kind", "logprob", "p", "rank", "entropy", "at", "top",
    ]  # fmt: skip
    assert len(frame) == 6
    assert frame.p.iloc[0] == 1.0


def test_to_frame_without_pandas_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    rows = reply_of().to_frame()
    assert rows[1]["token"] == " w1"


# ----------------------------------------------------------------------------- tool traces

CALL = ToolCall("c1", "weather", '{"city": "Paris"}')
TRACE = (
    ToolRecord(1, CALL, {"city": "Paris"}, "auto", "ok", 0.12, "sunny", stdout="fetching"),
    ToolRecord(1, CALL, {"city": "Rome"}, "edited", "refused", 0.0, "refused by the user"),
    ToolRecord(2, CALL, None, "auto", "error", 1.5, "error: boom", error="ZeroDivisionError: boom"),
)


def test_a_trace_shows_rounds_calls_and_what_became_of_them() -> None:
    view = Reply("x", trace=TRACE).trace()
    text = shown(view._repr_mimebundle_()["text/html"])
    for piece in ("3 tool calls · 2 not ok · 1.6 s", "round 1", "round 2", "weather", "120 ms",
                  "sunny", "fetching", "refused", "edited", "ZeroDivisionError: boom"):  # fmt: skip
        assert piece in text, piece
    assert "round 2: ✗ weather" in repr(view)
    exported = json.loads(view.to_json())
    assert exported[0]["call"]["name"] == "weather"
    assert exported[0]["arguments"] == {"city": "Paris"}
    again = Reply.from_dict(json.loads(json.dumps(Reply("x", trace=list(TRACE)).to_dict())))
    assert again.trace == TRACE
    assert repr(again.trace()) == repr(replace(again, text="y").trace()) == repr(view)
    assert repr(Reply("x").trace()) == "no tool was called"


def test_a_trace_tells_the_wait_for_a_person_from_the_run() -> None:
    slow = replace(TRACE[1], status="ok", seconds=0.12, waited=3.21)
    refused = replace(TRACE[1], approval="refused", waited=2.0)
    view = Reply("x", trace=(TRACE[0], slow, refused)).trace()
    assert "· ok · 120 ms · edited after 3.2 s → refused by" in repr(view)
    assert "· refused after 2.0 s →" in repr(view)
    text = shown(view._repr_mimebundle_()["text/html"])
    assert "3 tool calls · 1 not ok · 240 ms · waited 5.2 s for approval" in text
    exported = json.loads(view.to_json())
    assert [(r["seconds"], r["waited"]) for r in exported] == [(0.12, 0.0), (0.12, 3.21), (0, 2.0)]
    # A program that approves at once is no wait.
    assert "after" not in repr(Reply("x", trace=(replace(slow, waited=1e-4),)).trace())


def test_a_trace_is_part_of_the_cell() -> None:
    page = reply_methods.bundle(Reply("x", trace=TRACE), reply_methods.Look())["text/html"]
    assert "3 tool calls" in shown(page)
    steady = reply_methods.bundle(Reply("x", trace=TRACE), reply_methods.Look(docs=True))[
        "text/html"
    ]
    assert "120 ms" not in shown(steady)


@pytest.mark.parametrize("evil", XSS)
def test_nothing_of_the_corpus_survives_in_traces_branches_and_prompts(evil: str) -> None:
    call = ToolCall(evil, evil, evil)
    record = ToolRecord(1, call, {evil: evil}, evil, evil, 0.1, evil, stdout=evil, error=evil)
    token = Token(1, evil.encode(), -2.0, 2, (Top(2, evil.encode(), -1.0),))
    branch = Reply(evil, tokens=(token,), model=evil)
    reply = Reply(
        evil, reasoning=evil, tokens=(token,), model=evil, prompt=evil, trace=(record,),
        branches=((0, branch),),
    )  # fmt: skip
    look = reply_methods.Look(show=mime.SECTIONS | {"surprises"})
    assert audit(reply_methods.bundle(reply, look)["text/html"]) == []
    for view in (reply.alternatives(0), reply.trace(), reply.prompt_view()):
        assert audit(view._repr_mimebundle_()["text/html"]) == []
    assert audit(compare.fragment([reply, branch], [evil, evil])) == []
    pieces = [Piece(1, evil, evil.encode(), special) for special in (True, False)]
    assert audit(tokens.inspector(pieces, 1)) == []
    entry = throughput.Entry(1, evil, 1, 1, 1, 1.0, 1.0, 1.0, evil)
    assert audit(throughput.ledger([entry])) == []
    # And from a foreign notebook's JSON.
    again = reply_methods.from_output(json.loads(json.dumps(reply_methods.bundle(reply, look))))
    assert audit(reply_methods.bundle(again, look)["text/html"]) == []


def test_long_results_are_cut() -> None:
    record = ToolRecord(1, CALL, {}, "auto", "ok", 0.1, "x" * 10_000)
    page = tooltrace.fragment((record,))
    assert len(page) < 8_000
    assert "6,000 more characters" in page


# ----------------------------------------------------------------------------- nbconvert


def test_outputs_render_in_nbconvert(shell: InteractiveShell, script: Scoring) -> None:
    from nbconvert import HTMLExporter

    (*_, data) = cell(shell, "--logprobs 3 --show prompt,stats", "Hi <b>there</b>")
    output = nbformat.v4.new_output("display_data", data=data)
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("%%llm\nHi", outputs=[output])]
    )
    nbformat.validate(book)
    for sanitize in (False, True):
        page, _ = HTMLExporter(sanitize_html=sanitize).from_notebook_node(book)
        at = page.index("llm-magic") if "llm-magic" in page else 0
        text = shown(re.sub(r"<(style|script).*?</\1>", "", page[at:], flags=re.S))
        for piece in ("The answer at 0.7", "Token probabilities", "rank", "Statistics", "fake"):
            assert piece in text, (sanitize, piece)
        assert "<b>there</b>" not in page


class Embedding(Scripted):
    """Gives each text a vector of its own: how often it has an a, a b and a c."""

    capabilities = Scripted.capabilities | {"embed"}

    def embed(self, texts, pooling=None, truncate=False):
        return [np.array([text.count(c) for c in "abc"], np.float32) for text in texts]


def test_similar_shows_the_cosines_of_the_texts_of_a_variable(
    shell: InteractiveShell, as_default: Callable[[Scripted], None]
) -> None:
    as_default(Embedding([], model="fake"))
    shell.user_ns["texts"] = ["aa b", "aa b <b>", "c"]
    data = command(shell, "similar texts -m fake")
    assert audit(data["text/html"]) == []
    assert "&lt;b&gt;" in data["text/html"]
    assert "0.95" in data["text/html"]
    assert data["text/plain"].splitlines()[-1].split()[-3:] == ["0.00", "0.00", "1.00"]
    with pytest.raises(UsageError, match="the notebook has no 'nothing'"):
        command(shell, "similar nothing -m fake")
    shell.user_ns["texts"] = "one text"
    with pytest.raises(RequestError, match="must be a list of texts"):
        command(shell, "similar texts -m fake")


# ----------------------------------------------------------------------------- decide


@pytest.fixture
def deciding(as_default: Callable[[Scripted], None]) -> Scripted:
    scripted = Scripted(
        [], scores=lambda request, choices: [-0.5 * i for i, _ in enumerate(choices)]
    )
    as_default(scripted)
    return scripted


@pytest.mark.parametrize(
    ("line", "choices", "prompts"),
    [
        ("--choices 'good|bad' Is {{ what }} fine?", ["good", "bad"], 2),
        ("--choices kinds --order given Which is it?", ["x", "y", "z"], 1),
        ('--yes-no "Is it?"', ["yes", "no"], 2),
        ("--scale 1-4 --length bytes How warm?", ["1", "2", "3", "4"], 2),
        ("--scale=-1,1 --unlisted How warm?", ["-1", "0", "1"], 1),
        ("--choices ' a| b' --complete It is", ["a", "b"], 1),
    ],
)
def test_decide_shows_bars_and_keeps_the_decision(
    shell: InteractiveShell, deciding: Scripted, line: str, choices: list[str], prompts: int
) -> None:
    shell.user_ns |= {"what": "tea", "kinds": ["x", "y", "z"]}
    data = command(shell, f"decide -o kept {line}")
    found = shell.user_ns["kept"]
    assert found is shell.user_ns["_llm_decision"]
    assert list(found.probabilities) == choices
    assert len(deciding.requests) == prompts
    assert "█" in data["text/html"]
    assert audit(data["text/html"]) == []
    assert f"→  {found.choice}" in data["text/plain"]
    if "what" in line:
        assert "Is tea fine?" in deciding.requests[0].messages[-1].text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--yes-no", "there is no text to decide about"),
        ("What is it?", "give one of choices"),
        ("--scale five How?", "--scale five"),
        ("--choices nothing Which?", "--choices nothing"),
        ("--yes-no --calibration what Is it?", "it is a str"),
        ("--yes-no --order any Is it?", "order is 'any'"),
        ("--yesno Is it?", "yes-no"),
    ],
)
def test_decide_says_what_is_wrong_with_its_line(
    shell: InteractiveShell, deciding: Scripted, line: str, message: str
) -> None:
    shell.user_ns["what"] = "tea"
    with pytest.raises((UsageError, RequestError), match=message):
        command(shell, f"decide {line}")
