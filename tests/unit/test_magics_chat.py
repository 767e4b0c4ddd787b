"""Conversations, tools and constraints as cells see them, over a scripted model."""

import dataclasses
import enum
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest
from IPython.core.error import StdinNotImplementedError, UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.html_audit import XSS, audit, shown
from support.shells import cell, command, displays

import llm_magic
from llm_magic.chat.conversation import Conversation
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.chat.reply import Reply
from llm_magic.errors import EngineError, RequestError, SchemaError, ToolError
from llm_magic.events import Choices, Grammar, Message, Regex, Schema
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.provider import Request, begins_with
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import extension
from llm_magic.ui.magics.approval import CellApproval
from llm_magic.ui.reply_methods import VENDOR
from llm_magic.ui.views import summary

HERMES = SYNTAXES["hermes"]


class Answers:
    """The next answers of the scripted model; when they run out it repeats the question."""

    def __init__(self) -> None:
        self.left: list[Any] = []

    def __call__(self, request: Request) -> Any:
        if self.left:
            return self.left.pop(0)
        last = request.prompt[-1]
        return f"About {last.text!r}." if isinstance(last, Message) else "…"

    def say(self, *answers: Any) -> None:
        self.left = list(answers)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def script(as_default: Callable[[Scripted], None], answers: Answers) -> Scripted:
    scripted = Scripted(answers, syntax=HERMES, model="fake")
    as_default(scripted)
    return scripted


def calling(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def ask(shell: InteractiveShell, line: str, text: str, id: str | None = None) -> Any:
    """Run a `%%llm` cell as a front end does; id: of the cell. Returns its last output."""
    with displays(shell) as data:
        result = shell.run_cell(f"%%llm {line}\n{text}\n", store_history=True, cell_id=id)
    result.raise_error()
    return data[-1] if data else None


def said(script: Scripted, i: int = -1) -> list[tuple[str, str]]:
    """The messages of a request."""
    return [(m.role, m.text) for m in script.requests[i].prompt]  # type: ignore[union-attr]


# ----------------------------------------------------------------------------- conversations


def test_a_named_conversation_goes_on(shell: InteractiveShell, script: Scripted) -> None:
    ask(shell, "--chat a -s 'Be brief.'", "One?", "c1")
    ask(shell, "--chat a", "Two?", "c2")
    assert said(script) == [
        ("system", "Be brief."), ("user", "One?"), ("assistant", "About 'One?'."),
        ("user", "Two?"),
    ]  # fmt: skip
    ask(shell, "--chat b", "Three?", "c3")
    assert said(script) == [("user", "Three?")]
    ask(shell, "", "Alone?", "c4")
    assert said(script) == [("user", "Alone?")]


def test_a_cell_that_runs_again_replaces_its_turn(
    shell: InteractiveShell, script: Scripted
) -> None:
    for id, text in (("c1", "One?"), ("c2", "Two?"), ("c3", "Three?")):
        ask(shell, "--chat a", text, id)
    ask(shell, "--chat a", "Zwei?", "c2")
    # What came after it was not yet said when this cell first ran.
    assert said(script) == [("user", "One?"), ("assistant", "About 'One?'."), ("user", "Zwei?")]
    ask(shell, "--chat a", "Four?", "c4")
    assert [text for role, text in said(script) if role == "user"] == [
        "One?", "Zwei?", "Three?", "Four?",
    ]  # fmt: skip


def test_a_failed_rerun_keeps_the_turn(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    ask(shell, "--chat a", "One?", "c1")
    answers.say(ZeroDivisionError("boom"))
    with pytest.raises(EngineError):
        ask(shell, "--chat a", "Eins?", "c1")
    ask(shell, "--chat a", "Two?", "c2")
    assert said(script)[0] == ("user", "One?")


def test_without_cell_ids_the_order_of_execution_counts(
    shell: InteractiveShell, script: Scripted
) -> None:
    for _ in range(2):
        ask(shell, "--chat a", "Again?")
    assert [role for role, _ in said(script)] == ["user", "assistant", "user"]


def test_one_cell_may_ask_more_than_once(shell: InteractiveShell, script: Scripted) -> None:
    code = "for word in ('x', 'y', 'z'):\n    get_ipython().run_line_magic('llm', "
    code += "f'ask --chat a {word}')"
    for _ in range(2):
        shell.run_cell(code, store_history=True, cell_id="loop")
        users = [text for role, text in said(script) if role == "user"]
        assert users == ["x", "y", "z"]


def test_what_a_cell_runs_belongs_to_it(shell: InteractiveShell, script: Scripted) -> None:
    code = "get_ipython().run_cell('%llm ask --chat a one')\n%llm ask --chat a two\n"
    for _ in range(2):
        shell.run_cell(code, store_history=True, cell_id="outer").raise_error()
        assert [text for role, text in said(script) if role == "user"] == ["one", "two"]


def test_new_begins_anew(shell: InteractiveShell, script: Scripted) -> None:
    ask(shell, "--chat a -s Old", "One?", "c1")
    ask(shell, "--chat a --new", "Two?", "c2")
    assert said(script) == [("user", "Two?")]


def test_the_conversation_keeps_system_and_model_until_told_otherwise(
    shell: InteractiveShell, script: Scripted
) -> None:
    other = Scripted(lambda request: "From the other.", model="other")
    hub.add("second", LLM(other))
    ask(shell, "--chat a -m second -s {{who}}", "One?", "c1")
    ask(shell, "--chat a", "Two?", "c2")
    assert [len(other.requests), len(script.requests)] == [2, 0]
    ask(shell, "--chat a -m fake -s ''", "Three?", "c3")
    assert said(script)[0] == ("user", "One?")
    hub.unload("second")
    ask(shell, "--chat b -s Kind", "One?", "c4")
    shell.run_line_magic("config", "LLMMagics.system = 'Usual'")
    ask(shell, "--chat b", "Two?", "c5")
    assert said(script)[0] == ("system", "Kind")
    ask(shell, "--chat c", "One?", "c6")
    assert said(script)[0] == ("system", "Usual")


def test_a_conversation_survives_the_unloading_of_its_model(
    shell: InteractiveShell, script: Scripted
) -> None:
    ask(shell, "--chat a -m fake", "One?", "c1")
    hub.unload("fake")
    other = Scripted(lambda request: "From the next.")
    hub.add("fake", LLM(other))
    ask(shell, "--chat a", "Two?", "c2")
    assert said(other) == [("user", "One?"), ("assistant", "About 'One?'."), ("user", "Two?")]


def test_options_are_those_of_one_turn(shell: InteractiveShell, script: Scripted) -> None:
    ask(shell, "--chat a -t 0 -n 9 --seed 4 --trim --no-think", "One?")
    first = script.requests[-1]
    assert (first.sampling.temperature, first.sampling.max_tokens, first.trim) == (0, 9, True)
    assert (first.sampling.seed, first.thinking) == (4, False)
    ask(shell, "--chat a --think", "Two?")
    second = script.requests[-1]
    assert (second.sampling.temperature, second.trim, second.thinking) == (0.7, False, True)
    ask(shell, "", "Two?")
    assert script.requests[-1].thinking is None


def test_reasoning_stays_out_of_the_next_prompts_content(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say("<think>secret</think>A")
    ask(shell, "--chat a", "One?")
    ask(shell, "--chat a", "Two?")
    answer = script.requests[-1].prompt[1]
    assert (answer.content, answer.reasoning) == ("A", "secret")  # type: ignore[union-attr]


# ----------------------------------------------------------------------------- their commands


def test_history_is_shown_and_bound(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    assert "--chat NAME" in command(shell, "history")["text/plain"]
    answers.say("<think>Hm <b>.</b></think>The **answer**.")
    ask(shell, "--chat a -s 'Be brief.'", "What <i>is</i> it?", "c1")
    ask(shell, "--chat b", "Other?", "c2")
    output = command(shell, "history a")
    assert output["text/plain"] == (
        "a · fake · 1 exchange\n\nSystem: Be brief.\n\n"
        "#1 You: What <i>is</i> it?\nModel: The **answer**.\n\nalso: b"
    )
    page = output["text/html"]
    assert audit(page) == []
    for part in (
        "What &lt;i&gt;is&lt;/i&gt; it?",
        "<strong>answer</strong>",
        "Reasoning",
        "also: b",
    ):
        assert part in page
    assert "Other?" in command(shell, "history")["text/plain"]  # the latest
    command(shell, "history a -o talk")
    assert isinstance(shell.user_ns["talk"], Conversation)
    assert shell.user_ns["talk"].ask("Go on.").text == "About 'Go on.'."
    with pytest.raises(RequestError, match="'a', 'b'"):
        shell.run_line_magic("llm", "history c")


def test_undo_reset_and_fork(shell: InteractiveShell, script: Scripted) -> None:
    for id, text in (("c1", "One?"), ("c2", "Two?")):
        ask(shell, "--chat a", text, id)
    assert "1 exchange" in command(shell, "fork a b --upto 1")["text/plain"]
    ask(shell, "--chat b", "Other two?", "c3")
    assert [t for r, t in said(script) if r == "user"] == ["One?", "Other two?"]
    assert "forgot 'Two?'; 1 exchange left" in command(shell, "undo a")["text/plain"]
    ask(shell, "--chat a", "Three?", "c4")
    assert [t for r, t in said(script) if r == "user"] == ["One?", "Three?"]
    with pytest.raises(UsageError, match="reset b deletes it"):
        shell.run_line_magic("llm", "fork a b")
    with pytest.raises(UsageError, match="a, b"):
        shell.run_line_magic("llm", "reset")
    command(shell, "reset b")
    ask(shell, "--chat b", "Anew?", "c3")
    assert said(script) == [("user", "Anew?")]
    assert command(shell, "reset --all")["text/plain"] == "forgotten: a, b"
    with pytest.raises(RequestError, match="no conversation yet"):
        shell.run_line_magic("llm", "undo")


def test_export_and_import_are_inverse(
    shell: InteractiveShell, script: Scripted, answers: Answers, tmp_path: Path
) -> None:
    shell.user_ns["double"] = double
    answers.say(calling("double", n=4), "It is 8.")
    ask(shell, "--chat a --tools double -s Count.", "Twice 4?", "c1")
    command(shell, f"export a {tmp_path}/a.json -o messages")
    messages = shell.user_ns["messages"]
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == messages
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert json.loads(command(shell, "export a")["text/plain"]) == messages
    assert "1 exchange" in command(shell, f"import {tmp_path}/a.json b")["text/plain"]
    command(shell, "import messages c")
    for name in "abc":
        command(shell, f"export {name} -o again")
        assert shell.user_ns["again"] == messages
    text = command(shell, "history b")["text/plain"]
    assert 'double {"n": 4}' in text
    assert "It is 8." in text
    ask(shell, "--chat b", "And now?", "c2")
    assert [role for role, _ in said(script)] == [m["role"] for m in messages] + ["user"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("nonsense", "import"), ('{"a": 1}', "no messages"), ('[{"role": "user"}]', "end with"),
     ('[{"content": "x"}]', "no role")],
)  # fmt: skip
def test_what_cannot_be_imported_says_why_and_changes_nothing(
    shell: InteractiveShell, tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises((UsageError, RequestError), match=words):
        shell.run_line_magic("llm", f"import {tmp_path}/x.json b")
    with pytest.raises(RequestError):
        shell.run_line_magic("llm", "history b")


# ----------------------------------------------------------------------------- tools


def double(n: int) -> int:
    """Twice a number."""
    print("doubling")
    return 2 * n


def broken(n: int) -> int:
    """Fails."""
    raise ZeroDivisionError(f"boom {n}")


@pytest.fixture
def tools(shell: InteractiveShell, script: Scripted) -> InteractiveShell:
    shell.user_ns.update(double=double, broken=broken, both=[double, llm_magic.tool(broken)])
    return shell


def test_a_cell_calls_functions_of_the_notebook(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say("I count." + calling("double", n=4), "It is 8.")
    output = ask(tools, "--tools double,broken -o reply", "Twice 4?")
    reply = tools.user_ns["reply"]
    assert (reply.text, reply.finish_reason) == ("I count.\n\nIt is 8.", "stop")
    (record,) = reply.trace
    assert (record.status, record.result, record.stdout) == ("ok", "8", "doubling\n")
    assert [t.name for t in script.requests[0].tools] == ["double", "broken"]
    assert said(script)[-1] == ("tool", "8")
    assert output["text/plain"].startswith("round 1: ✓ double(n=4) · ok · ")
    assert output["text/plain"].endswith(" → 8\n\nI count.\n\nIt is 8.")
    text = shown(output["text/html"])
    for piece in ("1 tool call", "round 1", "double(n=4)", "→ 8", "doubling", "It is 8."):
        assert piece in text, piece
    assert output[VENDOR]["trace"][0]["result"] == "8"
    assert "double(n=4)" in output["text/markdown"]


def test_what_goes_wrong_in_a_tool_is_a_line_of_the_trace(
    tools: InteractiveShell, answers: Answers
) -> None:
    answers.say(
        calling("broken", n=1) + calling("double", n="x") + calling("triple", n=1), "I give up."
    )
    output = ask(tools, "--tools both", "Go.")
    statuses = [r.status for r in tools.user_ns["_llm"].trace]
    assert statuses == ["error", "invalid", "unknown"]
    text = output["text/plain"]
    assert "✗ broken(n=1) · raised an exception" in text
    assert "→ ZeroDivisionError: boom 1" in text
    assert '✗ double(n="x") · arguments were not valid' in text
    assert "✗ triple(n=1) · no such tool" in text
    assert "3 tool calls · 3 not ok" in shown(output["text/html"])


def test_a_reply_of_several_rounds_cannot_branch(tools: InteractiveShell, answers: Answers) -> None:
    answers.say(calling("double", n=4), "It is 8.")
    ask(tools, "--tools double --logprobs 3", "Twice 4?")
    with pytest.raises(RequestError, match="in one go"):
        tools.run_line_magic("llm", "branch")


def test_max_steps_ends_in_words(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say(*[calling("double", n=i) for i in range(2)], "Enough.")
    ask(tools, "--tools double --max-steps 2", "Go.")
    assert [r.round for r in tools.user_ns["_llm"].trace] == [1, 2]
    assert tools.user_ns["_llm"].text == "Enough."
    assert script.requests[-1].tool_choice == "none"


def test_tool_choice_reaches_the_first_round_only(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say(calling("double", n=1), "Done.")
    ask(tools, "--tools double --tool-choice required", "Go.")
    assert [r.tool_choice for r in script.requests] == ["required", "auto"]
    with pytest.raises(RequestError, match="tool_choice"):
        ask(tools, "--tools double --tool-choice triple", "Go.")


def test_tools_stay_with_a_conversation(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    ask(tools, "--chat a --tools double", "One?", "c1")
    ask(tools, "--chat a", "Two?", "c2")
    assert [t.name for t in script.requests[-1].tools] == ["double"]
    assert "tools: double" in command(tools, "history a")["text/plain"]
    ask(tools, "--chat a --tools ''", "Three?", "c3")
    assert script.requests[-1].tools == ()


def test_a_name_is_what_the_model_sees(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    tools.user_ns["twice"] = lambda n: 2 * n
    tools.user_ns["box"] = type("Box", (), {"tool": staticmethod(double)})()
    answers.say(calling("twice", n=3), "6")
    ask(tools, "--tools twice,box.tool", "Go.")
    assert [t.name for t in script.requests[0].tools] == ["twice", "tool"]
    assert tools.user_ns["_llm"].trace[0].result == "6"


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("--tools dubble", UsageError, "did you mean double"),
        ("--tools double.x", UsageError, "no attribute 'x'"),
        ("--tools double,double", RequestError, "two tools are called 'double'"),
        ("--tools number", RequestError, "not a tool"),
        ("--tools positional", ToolError, "cannot be a tool"),
        ("--tools described", RequestError, "only described"),
        ("--approve", UsageError, "needs --tools"),
        ("--max-steps 3", UsageError, "needs --tools"),
        ("--tools double --max-steps 0", UsageError, "must be 1 or more"),
        ("--new", UsageError, "--chat NAME"),
        ("--complete --tools double", UsageError, "--tools.* cannot be used with"),
        ("--complete --chat a", UsageError, "--chat.* cannot be used with"),
        ("--complete --prefill x", UsageError, "--prefill.* cannot be used with"),
        ("--complete --no-think", UsageError, "--think.* cannot be used with"),
        ("--score --choices a|b", UsageError, "--choices.* cannot be used with"),
    ],
)
def test_wrong_options_say_what_is_wrong(
    tools: InteractiveShell, script: Scripted, line: str, error: type[Exception], words: str
) -> None:
    def positional(n: int, /) -> int:
        return n

    tools.user_ns.update(number=3, positional=positional, described={"name": "x"})
    with pytest.raises(error, match=words):
        cell(tools, line, "Hi")
    assert script.requests == []


def test_our_errors_show_no_stack(tools: InteractiveShell, script: Scripted) -> None:
    for line, error in (("--tools number", RequestError), ("--schema double", SchemaError)):
        tools.user_ns["number"] = 3
        with pytest.raises(error) as caught:
            cell(tools, line, "Hi")
        (text,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
        assert error.__name__ in text
    with pytest.raises(RequestError) as caught:
        tools.run_line_magic("llm", "history nothing")
    assert hasattr(caught.value, "_render_traceback_")


def test_the_tools_of_a_notebook_are_listed(tools: InteractiveShell) -> None:
    tools.run_cell(
        "import llm_magic\nfrom typing import Literal\n"
        "def weather(city: str, unit: Literal['C', 'F'] = 'C') -> str:\n"
        "    '''The weather <now>.\n\n    Args:\n        city: where\n    '''\n"
        "def wrong(x, /): ...\n"
        "def _hidden(): ...\n"
        "class Thing: ...\n"
        "number = 3\n"
        "@llm_magic.tool(name='other')\n"
        "def marked(n: list[int]): ...\n"
    ).raise_error()
    output = command(tools, "tools")
    lines = output["text/plain"].splitlines()
    assert 'weather(city: string, unit: "C" | "F" = "C"): The weather <now>.' in lines
    assert "other(n: array of integer)" in lines
    assert any(line.startswith("wrong: cannot be a tool: ") for line in lines)
    assert not any(name in output["text/plain"] for name in ("_hidden", "Thing", "number"))
    assert '"description"' in shown(output["text/html"]).replace("&quot;", '"')
    assert audit(output["text/html"]) == []
    assert command(tools, "tools double")["text/plain"] == "double(n: integer): Twice a number."
    with pytest.raises(UsageError, match="weather"):
        tools.run_line_magic("llm", "tools wether")


# ----------------------------------------------------------------------------- approval


class Typed:
    """Stands for `input`: gives the answers in order and keeps the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), []  # type: ignore[var-annotated]

    def __call__(self, prompt: str = "") -> str:
        self.asked.append(prompt)
        answer = self.answers.pop(0)
        if isinstance(answer, type):
            raise answer
        return str(answer)


@pytest.mark.parametrize(
    ("typed", "approval", "status", "result"),
    [
        ("y", "approved", "ok", "8"),
        ("YES ", "approved", "ok", "8"),
        ("", "refused", "refused", "Error: The user refused this call."),
        ("n", "refused", "refused", "Error: The user refused this call."),
        ("too big", "refused", "refused", "Error: The user refused this call: too big."),
        ('{"n": 5}', "edited", "ok", "10"),
        ('{"n": "x"}', "edited", "invalid", "Error: The arguments are not valid."),
        ('{"n": ', "refused", "refused", "Error: The user refused this call: the arguments typed"),
        (StdinNotImplementedError, "refused", "refused", "this front end has no input"),
        (EOFError, "refused", "refused", "this front end has no input"),
    ],
)
def test_a_call_waits_for_approval(
    tools: InteractiveShell, answers: Answers, monkeypatch: pytest.MonkeyPatch, typed: Any,
    approval: str, status: str, result: str,
) -> None:  # fmt: skip
    asked = Typed(typed)
    monkeypatch.setattr("builtins.input", asked)
    answers.say(calling("double", n=4), "Done.")
    output = ask(tools, "--tools double --approve", "Twice 4?")
    (record,) = tools.user_ns["_llm"].trace
    assert (record.approval, record.status) == (approval, status)
    assert result in record.result
    assert asked.asked[0].startswith("double(n=4)\nrun it?")
    assert approval in output["text/plain"]
    assert tools.user_ns["_llm"].text == "Done."


def test_all_holds_for_one_cell(
    tools: InteractiveShell, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = Typed("a", "n")
    monkeypatch.setattr("builtins.input", typed)
    two = calling("double", n=1) + calling("double", n=2)
    answers.say(two, "Done.", calling("double", n=3), "Done.")
    ask(tools, "--chat a --tools double --approve", "Go.", "c1")
    assert [r.approval for r in tools.user_ns["_llm"].trace] == ["approved", "approved"]
    ask(tools, "--chat a", "Go on.", "c2")  # approval stays, its "all" does not
    assert [r.approval for r in tools.user_ns["_llm"].trace] == ["refused"]
    assert len(typed.asked) == 2


def test_all_ends_with_its_cell_for_a_conversation_in_a_variable(
    tools: InteractiveShell, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:  # F305
    typed = Typed("a", "n")
    monkeypatch.setattr("builtins.input", typed)
    answers.say(calling("double", n=1), "Done.", calling("double", n=3), "Done.")
    ask(tools, "--chat d --tools double --approve", "Go.", "c1")
    tools.run_line_magic("llm", "history d -o conv")
    tools.run_cell("later = conv.ask('Go on.')").raise_error()
    assert [r.approval for r in tools.user_ns["later"].trace] == ["refused"]
    assert len(typed.asked) == 2


def test_approval_stays_on_for_other_tools_until_it_is_switched_off(
    tools: InteractiveShell, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:  # F305
    typed = Typed("y", "n")
    monkeypatch.setattr("builtins.input", typed)
    answers.say(calling("double", n=1), "Done.", calling("double", n=3), "Done.")
    ask(tools, "--chat d --tools double --approve", "Go.", "c1")
    ask(tools, "--chat d --tools double", "Again.", "c2")
    assert [r.approval for r in tools.user_ns["_llm"].trace] == ["refused"]
    answers.say(calling("double", n=4), "Done.", calling("double", n=5), "Done.")
    ask(tools, "--chat d --no-approve", "Again.", "c3")
    ask(tools, "--chat d", "Again.", "c4")
    assert [r.approval for r in tools.user_ns["_llm"].trace] == ["auto"]
    assert len(typed.asked) == 2


def test_what_is_asked_cannot_deceive() -> None:
    question: list[str] = []

    def typed(prompt: str) -> str:
        question.append(prompt)
        return "n"

    call = llm_magic.events.ToolCall("c", "rm", "{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.input", typed)
        CellApproval(lambda: 1)(call, {"path": "a\x1b[2K\u202e\n", "x": "z" * 5000})
    (line,) = question[0].splitlines()[:-1]
    assert line.startswith('rm(path="a\\u001b[2K\\u202e\\n", x="zzz')
    assert len(line) < 2_100
    assert summary.call("f", "not JSON\n") == "f(not JSON\\n)"


# ----------------------------------------------------------------------------- constraints


@dataclasses.dataclass
class City:
    name: str
    people: int


class Model(pydantic.BaseModel):
    name: str


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


NAMES = {
    "City": City, "Model": Model, "Color": Color, "colors": ["red", "blue"],
    "plain": {"type": "integer"}, "lark": 'start: "a"+', "types": llm_magic.events, "number": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "written", "parsed"),
    [
        ("--schema City", '{"name": "Rome", "people": 3}', City("Rome", 3)),
        ("--schema Model", '{"name": "Rome"}', Model(name="Rome")),
        ("--schema plain", "7", 7),
        ("--schema 'list[City]'", '[{"name": "R", "people": 1}]', [City("R", 1)]),
        ("--schema 'int | None'", "null", None),
        ("--schema bool", "true", True),
        ("--regex '[a-z]+\\d'", "ab1", "ab1"),
        ('--choices "red|blue"', "red", "red"),
        ("--choices colors", "red", "red"),
        ("--choices Color", "blue", "blue"),
        ("--grammar lark", "aaa", "aaa"),
    ],
)
def test_constraints_and_the_value_of_the_answer(
    shell: InteractiveShell,
    script: Scripted,
    answers: Answers,
    line: str,
    written: str,
    parsed: Any,
) -> None:
    shell.user_ns.update(NAMES)
    answers.say(written)
    output = ask(shell, f"{line} -o reply", "Go.")
    constraint = script.requests[-1].constraint
    assert constraint is not None
    assert shell.user_ns["reply"].parsed == parsed
    assert output["text/plain"] == written
    assert written in shown(output["text/html"])


def test_constraints_as_the_provider_gets_them(
    shell: InteractiveShell, script: Scripted, answers: Answers, tmp_path: Path
) -> None:
    shell.user_ns.update(NAMES)
    (tmp_path / "g.gbnf").write_text('root ::= "b"')
    answers.say("7", "x", "c", "b", "a", "a")
    for line, constraint in (
        ("--schema plain", Schema({"type": "integer"})),
        ("--regex x|y", Regex("x|y")),
        (r"--choices 'a \| b | c'", Choices(("a | b", "c"))),
        (f"--grammar {tmp_path}/g.gbnf", Grammar('root ::= "b"')),
    ):
        ask(shell, line, "Go.")
        assert script.requests[-1].constraint == constraint
    ask(shell, "--chat a --choices 'a|b'", "Go.")
    assert script.requests[-1].constraint == Choices(("a", "b"))
    ask(shell, "--complete --choices 'a|b'", "Go.")
    assert script.requests[-1].constraint == Choices(("a", "b"))


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("--schema Citty", UsageError, "did you mean City"),
        ("--schema number", SchemaError, "has no JSON schema"),
        ("--schema 'open(1)'", UsageError, "not the name of a dict or a type"),
        ("--schema '['", UsageError, "not the name of a dict or a type"),
        ("--schema types.nothing", UsageError, "AttributeError"),
        ("--choices red", UsageError, "name of a list"),
        ("--grammar nothing", UsageError, "has no 'nothing'"),
        ("--grammar number", UsageError, "it is a int"),
        ("--schema City --regex x", UsageError, "--schema and --regex"),
    ],
)
def test_wrong_constraints_are_refused_before_anything_is_generated(
    shell: InteractiveShell, script: Scripted, line: str, error: type[Exception], words: str
) -> None:
    shell.user_ns.update(NAMES)
    with pytest.raises(error, match=words):
        cell(shell, line, "Hi")
    assert script.requests == []


def test_a_bound_reply_is_shown_as_what_it_is_also_alone() -> None:
    reply = llm_magic.Reply('{"a_b_c": "*x*"}', parsed={"a_b_c": "*x*"})
    page, _ = reply._repr_mimebundle_()
    assert "<em>" not in page["text/html"]
    assert page["text/markdown"].startswith("```json\n")
    again, _ = llm_magic.Reply.from_dict(page[VENDOR])._repr_mimebundle_()
    assert again["text/html"] == page["text/html"]
    page, _ = llm_magic.Reply("*x*", parsed="*x*")._repr_mimebundle_()
    assert "<em>" not in page["text/html"]


def test_a_cut_answer_has_no_value_and_says_so(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    shell.user_ns.update(NAMES)
    answers.say('{"name": "Rome", "people": 3}')
    output = ask(shell, "--schema City -n 4", "Go.")
    assert shell.user_ns["_llm"].parsed is None
    assert "cut off at the token limit" in shown(output["text/html"])


# ----------------------------------------------------------------------------- prefill, reasoning


# TG-24
def test_an_answer_with_a_prefill_is_whole_and_knows_its_continuation(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    shell.user_ns["town"] = "Rome"
    answers.say(" is old.")
    output = ask(shell, "--prefill '{{ town }}' --logprobs 2 -o reply", "Where?")
    assert script.requests[-1].prompt == (Message("user", "Where?"),)
    assert script.requests[-1].given == begins_with("Rome")
    reply = shell.user_ns["reply"]
    assert (reply.text, reply.continuation) == ("Rome is old.", " is old.")
    assert [token.forced for token in reply.tokens] == [True, False, False, False]
    assert output["text/plain"] == "Rome is old."
    assert "Rome is old." in shown(output["text/html"])
    assert output["text/markdown"] == "Rome is old."
    assert Reply.from_dict(output[VENDOR]).continuation == " is old."


# B040
def test_a_prefilled_turn_is_remembered_whole(
    shell: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say(" is old.", "B")
    output = ask(shell, "--chat a --prefill Rome", "Where?", "c1")
    assert output["text/plain"] == "Rome is old."
    assert said(script) == [("user", "Where?")]
    ask(shell, "--chat a", "Why?", "c2")
    assert said(script)[1:] == [("assistant", "Rome is old."), ("user", "Why?")]
    command(shell, "history a -o talk")
    answers.say("C")
    shell.user_ns["talk"].ask("Third?")  # and nothing of it is left for later turns
    assert said(script)[-1] == ("user", "Third?")
    assert script.requests[-1].given == ()


def test_a_prefill_belongs_to_the_first_round(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    answers.say(" me." + calling("double", n=2), "4")
    ask(tools, "--tools double --prefill 'Let'", "Twice 2?")
    assert [request.given for request in script.requests] == [begins_with("Let"), ()]
    assert [(m.role, m.text) for m in script.requests[1].prompt] == [
        ("user", "Twice 2?"), ("assistant", "Let me."), ("tool", "4"),
    ]  # fmt: skip


# B070
@pytest.mark.parametrize("end", ["-n 4", "--stop END"])
def test_an_answer_that_never_came_is_said(
    shell: InteractiveShell, script: Scripted, answers: Answers, end: str
) -> None:
    answers.say("<think>" + "long " * 8 + "END")
    output = ask(shell, end, "Hm?")
    reply = shell.user_ns["_llm"]
    if "stop" in end:  # a stop string inside reasoning does not count
        assert reply.reasoning.strip().endswith("END")
    assert reply.text == ""
    assert output["text/plain"].endswith("(no answer: reasoning was cut)")
    assert "(no answer: reasoning was cut)" in shown(output["text/html"])
    assert "(no answer: reasoning was cut)" in output["text/markdown"]
    assert "<details" in output["text/html"]  # the reasoning itself is folded
    answers.say("<think>short</think>Yes.")
    assert "no answer" not in ask(shell, "", "Hm?")["text/plain"]


# ----------------------------------------------------------------------------- the rest


def test_docs_mode_shows_the_same_on_every_run(
    tools: InteractiveShell, script: Scripted, answers: Answers
) -> None:
    tools.run_line_magic("config", "LLMMagics.docs_mode = True")
    pages = []
    for _ in range(2):
        answers.say("<think>Hm.</think>" + calling("double", n=4), "It is 8.")
        pages.append(ask(tools, "--chat a --tools double", "Twice 4?", "c1"))
    assert pages[0] == pages[1]
    assert set(pages[0]) == {"text/plain", "text/html"}
    assert pages[0]["text/plain"] == "round 1: ✓ double(n=4) · ok → 8\n\nIt is 8."
    histories = [command(tools, "history a") for _ in range(2)]
    assert histories[0] == histories[1]
    assert "double(n=4) · ok → 8\n" in histories[0]["text/plain"]


def test_the_first_reply_says_how_long_loading_took(
    shell: InteractiveShell, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llm_magic.events import Timings

    reply = llm_magic.Reply("x", model="m", timings=Timings(load=3.21))
    assert "loaded in 3.2 s" in summary.numbers(reply)
    assert "loaded" not in summary.numbers(summary.steady(reply))
    assert "loaded" not in summary.numbers(llm_magic.Reply("x", model="m"))


@pytest.mark.parametrize("evil", XSS)
def test_nothing_of_the_corpus_survives_in_tools_and_histories(
    shell: InteractiveShell, script: Scripted, answers: Answers, evil: str
) -> None:
    def taker(x: str) -> str:
        return evil

    taker.__doc__ = evil
    shell.user_ns.update(taker=taker, evil=evil)
    answers.say(calling("taker", x=evil), evil)
    output = ask(shell, "--chat a --tools taker -s '{{ evil }}'", "{{ evil }}")
    assert audit(output["text/html"]) == []
    assert audit(command(shell, "history a")["text/html"]) == []
    assert audit(command(shell, "tools taker")["text/html"]) == []


def test_a_terminal_shows_each_call_as_it_comes(
    script: Scripted, answers: Answers, capsys: Any
) -> None:
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    shell = TerminalInteractiveShell()
    extension.load_ipython_extension(shell)
    shell.user_ns["double"] = double
    answers.say("I count. " + calling("double", n=4), "It is 8.")
    shell.run_cell_magic("llm", "--tools double", "Twice 4?\n")
    out = re.sub(r" · <?\d+ ms", "", capsys.readouterr().out)
    assert out.startswith("I count.")
    assert "\nround 1: ✓ double(n=4) · ok → 8\n" in out
    assert "It is 8.\n[fake · " in out
    answers.say("<think>never")
    shell.run_cell_magic("llm", "", "Hm?\n")
    assert "(no answer: reasoning was cut)\n[" in capsys.readouterr().out
    extension.unload_ipython_extension(shell)


def test_values_of_options_are_completed(tools: InteractiveShell, script: Scripted) -> None:
    from IPython.core.completer import provisionalcompleter

    def of(text: str) -> list[str]:
        with provisionalcompleter():
            found = tools.Completer.completions(text, len(text))
            return [c.text.split(" ")[-1] for c in found]

    ask(tools, "--chat planning", "One?")
    assert "double" in of("%%llm --tools do")
    assert "planning" in of("%%llm --chat pl")
    assert "planning" in of("%llm history pl")
    assert "--schema" in of("%%llm --sc")
    assert "required" in of("%%llm --tool-choice re")


def test_the_chat_widget_takes_the_tools_of_its_line(tools: InteractiveShell) -> None:
    chat = tools.run_line_magic("llm", "chat --tools double -t 0 --no-think")
    assert [t.name for t in chat._host._conversation.rules.tools] == ["double"]
    chat = tools.run_line_magic("llm", "chat --trim --choices 'yes|no'")
    assert chat._host._values["choices"] == ("yes", "no")


def test_help_names_the_options(shell: InteractiveShell) -> None:
    text = shell.magics_manager.magics["cell"]["llm"].__doc__
    for word in ("--chat NAME", "--tools NAMES", "--schema NAME", "--choices A|B|C", "--prefill"):
        assert word in text
    text = shell.magics_manager.magics["line"]["llm"].__doc__
    for word in ("history", "reset", "undo", "fork", "export", "import", "tools"):
        assert f"%llm {word} " in text
