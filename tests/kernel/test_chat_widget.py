"""The chat widget in a real kernel; the client plays the page: comm messages and displays."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness import Kernel, Message, Run, kernel

pytestmark = pytest.mark.kernel

VENDOR = "application/vnd.llm-magic.chat+json"

SCRIPT = """
import time
import llm_magic
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

def answer(request):
    asked = request.prompt[-1].text
    return " ".join(f"word{i}" for i in range(60)) if "long" in asked else f"You said: {asked}"

chat = llm_magic.Chat(LLM(Scripted(answer, delay=0.05)))
"""


@pytest.fixture
def running() -> Iterator[Kernel]:
    with kernel() as found:
        found.run(SCRIPT).check()
        yield found


def open_comm(found: Kernel, code: str = "chat") -> str:
    """Show the chat; the id of its comm."""
    run = found.run(code).check()
    view = next(m for m in run.frames if "application/vnd.jupyter.widget-view+json" in m.data)
    return str(view.data["application/vnd.jupyter.widget-view+json"]["model_id"])


def click(found: Kernel, comm: str, content: dict[str, Any], subshell: str | None = None) -> str:
    """Send what the page would send."""
    data = {"method": "custom", "content": content}
    message = found.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    message["header"]["subshell_id"] = subshell
    found.client.shell_channel.send(message)
    return str(message["header"]["msg_id"])


def collect(
    found: Kernel, enough: Callable[[list[Message]], bool], seconds: float = 30
) -> list[Message]:
    """Messages until there are enough."""
    seen: list[Message] = []
    start = time.monotonic()
    while not enough(seen):
        seen.append(found._next(start, seconds - (time.monotonic() - start)))
    return seen


def ops(messages: list[Message], comm: str) -> list[dict[str, Any]]:
    """The operations that the chat of this comm sent."""
    sent = [m for m in messages if m.kind == "comm_msg" and m.content.get("comm_id") == comm]
    contents = [m.data.get("content", {}) for m in sent if m.data.get("method") == "custom"]
    return [op for content in contents for op in content["ops"]]


def done(comm: str) -> Callable[[list[Message]], bool]:
    """Until a turn has ended and its transcript was updated."""
    return lambda messages: any(
        m.kind == "update_display_data" and "1 turn" in m.data["text/plain"] for m in messages
    )


def subshell_of(found: Kernel) -> str:
    """A new subshell, as JupyterLab makes one for widgets."""
    request = found.client.session.msg("create_subshell_request", {})
    found.client.control_channel.send(request)
    while True:
        reply = found.client.get_control_msg(timeout=30)
        if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
            return str(reply["content"]["subshell_id"])


def test_it_shows_a_view_and_a_transcript_and_no_result(running: Kernel) -> None:
    run = running.run("chat").check()
    assert [m.kind for m in run.frames] == ["display_data", "display_data"]
    assert run.result is None
    # An exported notebook shows no repr of the widget (F260).
    assert "text/plain" not in run.frames[0].data
    assert run.frames[0].data["text/html"] == ""
    assert "text/html" in run.final
    assert "application/vnd.jupyter.widget-view+json" not in run.final


def test_a_turn_streams_and_updates_the_transcript(running: Kernel) -> None:
    comm = open_comm(running)
    click(running, comm, {"t": "send", "text": "a long one", "nonce": "n"})
    seen = collect(running, done(comm))
    assert sum(op["o"] == "tail" for op in ops(seen, comm)) > 5
    final = [m for m in seen if m.kind == "update_display_data"][-1]
    assert "word59" in final.data["text/html"]
    assert running.value("chat.last.text").endswith("word59")


# B103
def test_output_of_a_running_cell_is_its_own(running: Kernel) -> None:
    comm = open_comm(running)
    shown = running.run("chat").check()  # the chat belongs to this cell now
    click(running, comm, {"t": "send", "text": "a long one", "nonce": "n"})
    run = running.run("for i in range(8):\n    print(i)\n    time.sleep(0.5)").check()
    later = [] if done(comm)(run.messages + run.others) else collect(running, done(comm))
    everything = [*run.messages, *run.others, *later]
    assert run.stream() == "".join(f"{i}\n" for i in range(8))
    mine = [m for m in everything if m.parent == run.id]
    outputs = ("display_data", "update_display_data", "execute_result", "error", "clear_output")
    assert [m.kind for m in mine if m.kind in outputs] == []
    updates = [m for m in everything if m.kind == "update_display_data"]
    assert updates
    assert {m.parent for m in updates} == {shown.id}


def test_stop_arrives_on_a_subshell_while_a_cell_runs(running: Kernel) -> None:
    comm = open_comm(running)
    subshell = subshell_of(running)
    cell = running.send("time.sleep(6)")
    start = time.monotonic()
    click(running, comm, {"t": "send", "text": "a long one", "nonce": "n"}, subshell)
    seen = collect(running, lambda seen: any(op["o"] == "tail" for op in ops(seen, comm)), 5)
    click(running, comm, {"t": "stop"}, subshell)
    seen += collect(running, lambda seen: any(op["o"] == "done" for op in ops(seen, comm)), 2)
    assert time.monotonic() - start < 5, "it waited for the cell"
    assert next(op for op in ops(seen, comm) if op["o"] == "done")["note"] == "stopped"
    run = running.wait(cell)
    assert run.ok
    assert run.seconds > 1


def test_a_snapshot_is_answered_while_a_cell_runs_and_an_answer_is_written(running: Kernel) -> None:
    comm = open_comm(running)
    subshell = subshell_of(running)
    cell = running.send("time.sleep(4)")
    click(running, comm, {"t": "send", "text": "a long one", "nonce": "n"}, subshell)
    click(running, comm, {"t": "hello", "page": "mine"}, subshell)
    start = time.monotonic()
    collect(running, lambda seen: any(m.data.get("content", {}).get("to") == "mine"
                                      for m in seen if m.kind == "comm_msg"), 3)  # fmt: skip
    assert time.monotonic() - start < 2
    running.wait(cell)


def test_say_and_wait_from_a_cell(running: Kernel) -> None:
    running.run("chat.say('hello')\nassert chat.wait(20)").check()
    assert running.value("chat.last.text") == "You said: hello"
    assert running.value("repr(chat)") == "<Chat with scripted: 1 turn>"
    assert running.value("[m.text for m in chat.messages]") == ["hello", "You said: hello"]


def test_what_a_cell_waits_for_is_in_the_saved_notebook(running: Kernel) -> None:
    # What runs notebooks without a page listens to the running cell only.
    open_comm(running)
    run = running.run("chat.say('hello')\nassert chat.wait(20)").check()
    update = run.of("update_display_data")[-1]
    assert "You said: hello" in update.data["text/html"]
    again = running.run("chat").check()
    assert update.display_id == again.frames[-1].display_id


def test_in_docs_mode_there_is_one_display_that_is_the_same_on_every_run() -> None:
    with kernel(LLM_MAGIC_DOCS="1") as found:
        found.run(SCRIPT).check()
        run = found.run("chat.say('hello')\nchat.wait(20)\nchat").check()
        assert len(run.frames) == 1
        assert sorted(run.final) == ["text/html", "text/markdown", "text/plain"]
        assert "tok/s" not in run.final["text/html"]


def test_the_conversation_goes_on_in_code(running: Kernel) -> None:
    running.run("chat.say('hello')\nassert chat.wait(20)").check()
    running.run("talk = chat.conversation\nreply = talk.ask('more')").check()
    assert running.value("reply.text") == "You said: more"
    assert running.value("len(talk.messages)") == 4
    assert running.value("len(chat.messages)") == 2


def test_a_failing_model_shows_its_error_and_prints_nothing(running: Kernel) -> None:
    comm = open_comm(running, "chat = llm_magic.Chat('no-such-model')\nchat")
    click(running, comm, {"t": "send", "text": "precious", "nonce": "n"})
    seen = collect(running, lambda seen: any(op["o"] == "draft" for op in ops(seen, comm)))
    notice = next(op for op in ops(seen, comm) if op["o"] == "notice")
    assert "no-such-model" in notice["text"]
    assert next(op for op in ops(seen, comm) if op["o"] == "draft")["text"] == "precious"
    assert [m for m in seen if m.kind in ("stream", "error")] == []


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_embedded_model_answers_and_its_load_is_shown(running: Kernel) -> None:
    comm = open_comm(running, "%load_ext llm_magic\nchat = llm_magic.Chat(max_tokens=12)\nchat")
    click(running, comm, {"t": "send", "text": "Say hello.", "nonce": "n"})
    seen = collect(running, done(comm), 200)
    phases = {op["name"] for op in ops(seen, comm) if op["o"] == "phase"}
    assert phases & {"load", "compile", "weights"}  # each may be too short to be told
    assert "idle" in phases
    assert running.value("len(chat.last.tokens)") > 0


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_load_asked_for_while_a_cell_runs(running: Kernel) -> None:
    comm = open_comm(running, "%load_ext llm_magic\nchat = llm_magic.Chat(max_tokens=12)\nchat")
    subshell = subshell_of(running)
    cell = running.send(
        "while not (chat.last and chat.last.tokens): time.sleep(0.1)\nprint('cell done')"
    )
    collect(running, lambda seen: any(m.kind == "execute_input" for m in seen))
    click(running, comm, {"t": "send", "text": "Say hello.", "nonce": "n"}, subshell)
    assert running.wait(cell, timeout=200).stream() == "cell done\n"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_load_that_builds_graphs_waits_for_the_running_cell_and_says_so() -> None:
    with kernel(LLM_MAGIC_KERNEL="portable") as running:
        running.run(SCRIPT).check()
        code = "%load_ext llm_magic\nchat = llm_magic.Chat(max_tokens=12)\nchat"
        comm = open_comm(running, code)
        subshell = subshell_of(running)
        cell = running.send("time.sleep(15)\nprint('cell done')")
        collect(running, lambda seen: any(m.kind == "execute_input" for m in seen))
        click(running, comm, {"t": "send", "text": "Say hello.", "nonce": "n"}, subshell)
        waits = lambda seen: any("running cell" in op.get("text", "") for op in ops(seen, comm))  # noqa: E731
        collect(running, waits, 14)
        run = running.wait(cell)
        assert run.stream() == "cell done\n"
        if not done(comm)(run.others):
            collect(running, done(comm), 200)


# ------------------------------------------------------------------ a conversation of another day


def run_as(found: Kernel, cell: str, code: str) -> Run:
    """Run code as that cell of the notebook, as JupyterLab tells it."""
    request = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = found.client.session.msg("execute_request", request, metadata={"cellId": cell})
    found.client.shell_channel.send(message)
    return found.wait(str(message["header"]["msg_id"]))


def saved(path: Path, runs: dict[str, Run]) -> None:
    """Save the notebook as a front end does that shows these cells with their last outputs."""
    cells = []
    for cell, run in runs.items():
        outputs = {}
        for m in [*run.others, *run.frames]:
            held = {"output_type": "display_data", "data": m.data}
            outputs.pop(m.display_id, None)
            outputs[m.display_id] = held | {"metadata": m.content.get("metadata", {})}
        cells.append({"cell_type": "code", "id": cell, "source": "", "metadata": {},
                      "execution_count": 1, "outputs": list(outputs.values())})  # fmt: skip
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    path.write_text(json.dumps(book))


def offer(found: Kernel, comm: str) -> dict[str, Any]:
    """What a page that opens now is offered."""
    click(found, comm, {"t": "hello", "page": "mine"})
    answered = lambda seen: any(m.data.get("content", {}).get("to") == "mine" for m in seen)  # noqa: E731
    told = ops(collect(found, answered), comm)
    return next(op for op in reversed(told) if op["o"] == "offer")


def comm_of(run: Run) -> str:
    view = next(m for m in run.frames if "application/vnd.jupyter.widget-view+json" in m.data)
    return str(view.data["application/vnd.jupyter.widget-view+json"]["model_id"])


def test_a_chat_goes_on_from_what_the_notebook_holds(tmp_path: Path) -> None:
    path = tmp_path / "talk.ipynb"
    with kernel(JPY_SESSION_NAME=str(path)) as found:
        found.run(SCRIPT).check()
        run_as(found, "a", "chat").check()
        run = run_as(found, "a", "chat.say('hello')\nassert chat.wait(20)\nchat")
        assert offer(found, comm_of(run))["n"] == 0
        saved(path, {"a": run, "b": found.run("1")})
    held = path.read_text()
    with kernel(JPY_SESSION_NAME=str(path)) as found:
        found.run(SCRIPT).check()
        assert offer(found, comm_of(run_as(found, "b", "llm_magic.Chat('m')")))["n"] == 0
        run = run_as(found, "a", "chat").check()
        there = offer(found, comm_of(run))
        assert (there["n"], there["model"]) == (1, "scripted")
        assert there["at"].startswith("20")
        # Whenever it is saved now: nothing is lost before the first message.
        saved(path, {"a": run})
        kept, before = (
            json.loads(text)["cells"][0]["outputs"][-1]["data"] for text in (path.read_text(), held)
        )
        assert kept[VENDOR]["turns"] == before[VENDOR]["turns"]
        assert "1 turn" in kept["text/plain"]
        assert found.value("len(chat.messages)") == 0
        click(found, comm_of(run), {"t": "resume"})
        collect(found, done(comm_of(run)))
        found.run("chat.say('more')\nassert chat.wait(20)").check()
        assert found.value("[m.text for m in chat.messages]") == [
            "hello", "You said: hello", "more", "You said: more",
        ]  # fmt: skip
        assert found.value("chat.messages[0].text") == "hello"


@pytest.mark.parametrize("text", ["{", "null", '{"cells": 3, "application/vnd.llm-magic.chat+json'])
def test_a_damaged_notebook_does_not_keep_a_chat_from_being_shown(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "talk.ipynb"
    path.write_text(text)
    with kernel(JPY_SESSION_NAME=str(path)) as found:
        found.run(SCRIPT).check()
        run = run_as(found, "a", "chat").check()
        assert offer(found, comm_of(run))["n"] == 0
        assert run.stream("stderr") == ""
        # VS Code names the notebook in a variable; a name is the same chat in any cell.
        good = {"version": 1, "name": "plan", "turns": [{"role": "user", "content": "hi"}]}
        output = {"output_type": "display_data", "metadata": {},
                  "data": {VENDOR: good}}  # fmt: skip
        other = tmp_path / "other.ipynb"
        other.write_text(json.dumps({"nbformat": 4, "cells": [{"id": "z", "outputs": [output]}]}))
        found.run(f"__vsc_ipynb_file__ = {str(other)!r}").check()
        run = found.run("named = llm_magic.Chat('m', name='plan')\nnamed").check()
        assert offer(found, comm_of(run))["n"] == 1
        run = found.run("%load_ext llm_magic\n%llm chat --chat plan").check()
        assert offer(found, comm_of(run))["n"] == 1


FOREIGN = """
import json
from dataclasses import replace
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import EngineError
from llm_magic.events import CallDelta, Delta
half = chr(0xd800)

class Foreign(Scripted):  # a provider whose texts are not ours: ~ is half a character
    def stream(self, request):
        return Stream(super().stream(request))

class Stream:
    def __init__(self, inner):
        self.inner = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.inner.close()
    def __iter__(self):
        return self
    def __next__(self):
        match next(self.inner):
            case Delta() as e:
                return replace(e, text=e.text.replace('~', half))
            case CallDelta() as e:
                return replace(e, arguments=e.arguments.replace('~', half))
            case e:
                return e

def read(name: str) -> str:
    "Read."
    print('out' + half)
    if name == 'fail':
        raise ValueError('bad' + half)
    return 'file' + half

def speak(request):
    last = request.prompt[-1]
    if 'call' in last.text and last.role == 'user':
        arguments = {'name': 'fail' if 'fail' in last.text else half}
        call = json.dumps({'name': 'read', 'arguments': arguments})
        return f'<tool_call>{call}</tool_call>'
    if 'error' in last.text:
        return EngineError('no' + half)
    return '<think>hm~</think>so~'

llm = LLM(Foreign(speak, syntax=SYNTAXES['hermes']))
chat = llm_magic.Chat(llm, 'be' + half, tools=[read], approve=False)
"""


def test_half_a_character_from_anywhere_is_a_replacement_character(running: Kernel) -> None:
    running.run(FOREIGN).check()
    comm = open_comm(running)
    shown = ""
    for text in ("hi\ud800", "call", "call fail", "error"):
        running.run(f"chat.say({text!a})\nassert chat.wait(20)").check()
        shown = running.run("chat").check().final["text/html"]
    for words in ("hi\ufffd", "so\ufffd", "hm\ufffd", "out\ufffd", "bad\ufffd", "file\ufffd"):
        assert words in shown
    assert "so\ufffd" in running.run("chat.last").check().messages[-2].data["text/plain"]
    click(running, comm, {"t": "hello", "page": "mine"})
    answered = lambda seen: any(m.data.get("content", {}).get("to") == "mine" for m in seen)  # noqa: E731
    told = str(ops(collect(running, answered), comm))
    assert told.count("so\ufffd") >= 3
    assert "be\ufffd" in told  # the system prompt, in the form
    run = running.run("chat.load([{'role': 'user', 'content': 'x' + half}])\nllm.chat('hi')")
    assert run.check().stream("stderr") == ""
    data = {"version": 1, "text": "a\ud800", "reasoning": "b\ud800", "model": "c\ud800"}
    run = running.run(f"from llm_magic import Reply\nReply.from_dict({data!a})").check()
    assert "a\ufffd" in (run.result or "")
    # A cell that fails says why.
    run = running.run("llm.chat('error')")
    error = next(m for m in run.messages if m.kind == "error")
    assert "no\ufffd" in error.content["evalue"]
