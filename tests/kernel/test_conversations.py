"""Conversations, tools and constraints in a real kernel: cell ids, input, interrupts, the model."""

import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from llm_magic.chat.reply import Reply
from llm_magic.ui.reply_methods import VENDOR

from .harness import Kernel, Message, Run, kernel

pytestmark = pytest.mark.kernel

SCRIPT = """
%load_ext llm_magic
import json, time
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted
from llm_magic.chat.parsing.syntax import SYNTAXES

def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"

def answer(request):
    last = request.prompt[-1]
    if last.role == "tool":
        return f"The tool said: {last.text}"
    if last.text.startswith("call "):
        return eval(last.text)
    return f"About {last.text}."

def double(n: int) -> int:
    "Twice a number."
    print("doubling")
    return 2 * n

def forever() -> str:
    "Takes long."
    print("waiting")
    time.sleep(60)

def ask_again(question: str) -> str:
    "Asks the model."
    return LLM(script).chat(question).text

call_double = None
script = Scripted(answer, syntax=SYNTAXES["hermes"], model="script", delay=0.01)
hub.add("script", LLM(script))
hub.default = "script"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Kernel]:
    with kernel() as found:
        found.run(SCRIPT).check()
        yield found


def cell(
    found: Kernel, code: str, id: str | None = None, typed: list[str] | None = None, on: Any = None
) -> Run:
    """Run a cell as JupyterLab does. id: of the cell. typed: what a person answers to `input`;
    None: the front end has no input."""
    client = found.client
    content = {
        "code": code, "silent": False, "store_history": True, "user_expressions": {},
        "allow_stdin": typed is not None, "stop_on_error": True,
    }  # fmt: skip
    metadata = {} if id is None else {"cellId": id}
    message = client.session.msg("execute_request", content, metadata=metadata)
    client.shell_channel.send(message)
    if typed:
        threading.Thread(target=_type, args=(client, list(typed)), daemon=True).start()
    return found.wait(message["header"]["msg_id"], on=on)


QUESTIONS: list[str] = []


def _type(client: Any, typed: list[str]) -> None:
    for line in typed:
        request = client.get_stdin_msg(timeout=30)
        QUESTIONS.append(request["content"]["prompt"])
        client.input(line)


def reply(run: Run) -> Reply:
    return Reply.from_dict(run.final[VENDOR])


def history(found: Kernel, name: str) -> str:
    return str(found.run(f"%llm history {name}").check().final["text/plain"])


# ----------------------------------------------------------------------------- conversations


def test_a_cell_that_runs_again_replaces_its_turn(running: Kernel) -> None:
    cell(running, "%%llm --chat a\nOne?", "c1").check()
    cell(running, "%%llm --chat a\nTwo?", "c2").check()
    cell(running, "%%llm --chat a\nEins?", "c1").check()
    text = history(running, "a")
    assert re.findall(r"You: (.*)", text) == ["Eins?", "Two?"]
    assert "2 exchanges" in text
    cell(running, "%%llm --chat a\nThree?").check()  # nbclient tells no id
    cell(running, "%%llm --chat a\nThree?").check()
    assert re.findall(r"You: (.*)", history(running, "a")) == ["Eins?", "Two?", *["Three?"] * 2]


def test_a_silent_execution_is_no_cell(running: Kernel) -> None:
    cell(running, "%%llm --chat s\nOne?", "c1").check()
    running.client.execute("get_ipython().run_line_magic('llm', 'ask --chat s Two?')", silent=True)
    text = history(running, "s")
    assert re.findall(r"You: (.*)", text) == ["One?", "Two?"]


# ----------------------------------------------------------------------------- tools


def test_a_tool_runs_and_its_trace_is_in_the_cell(running: Kernel) -> None:
    run = cell(running, "%%llm --tools double -o r\ncall ('double', n=4)").check()
    assert run.stream() == ""  # what a tool prints belongs to its record
    (record,) = reply(run).trace
    assert (record.status, record.result, record.stdout) == ("ok", "8", "doubling\n")
    assert run.final["text/plain"].endswith("→ 8\n\nThe tool said: 8")
    assert "double(n=4)" in run.final["text/html"]
    assert running.value("r.trace[0].arguments") == {"n": 4}


def test_a_tool_may_ask_the_model_itself(running: Kernel) -> None:
    run = cell(running, "%%llm --tools ask_again\ncall ('ask_again', question='Hm')").check()
    assert reply(run).text == "The tool said: About Hm."


def test_approval_is_asked_in_the_cell(running: Kernel) -> None:
    QUESTIONS.clear()
    code = "%%llm --tools double --approve\ncall ('double', n=4)"
    run = cell(running, code, typed=["y"]).check()
    assert reply(run).trace[0].approval == "approved"
    assert QUESTIONS[0].startswith("double(n=4)\nrun it?")
    run = cell(running, code, typed=["not today"]).check()
    assert reply(run).trace[0].status == "refused"
    assert "The user refused this call: not today." in run.final["text/html"]


def test_without_input_approval_means_refused_and_the_trace_says_so(running: Kernel) -> None:
    run = cell(running, "%%llm --tools double --approve\ncall ('double', n=4)").check()
    (record,) = reply(run).trace
    assert (record.status, record.approval, record.stdout) == ("refused", "refused", "")
    assert "approval is needed, and this front end has no input" in run.final["text/html"]
    assert "this front end has no input" in run.final["text/plain"]


def _interrupted(found: Kernel, code: str, text: str, **how: Any) -> tuple[Run, float]:
    """Run a cell and interrupt it a little after its output first holds the text."""
    pressed: list[float] = []

    def on(message: Message) -> None:
        if not pressed and text in message.data.get("text/html", ""):
            time.sleep(0.3)
            pressed.append(time.monotonic())
            found.interrupt()

    run = cell(found, code, on=on, **how)
    assert pressed, "the text to interrupt at never came"
    return run, time.monotonic() - pressed[0]


def test_an_interrupt_inside_a_tool(running: Kernel) -> None:
    cell(running, "%%llm --chat i\nOne?", "i1").check()
    code = "%%llm --chat i --tools forever\ncall ('forever')"
    run, seconds = _interrupted(running, code, "forever", id="i2")
    assert seconds < 3
    assert (run.reply["status"], run.reply["ename"]) == ("error", "Interrupted")
    (record,) = reply(run).trace
    assert (record.status, record.stdout) == ("interrupted", "waiting\n")
    assert run.final["text/plain"].endswith("[interrupted]")
    # The conversation holds whole exchanges only, and the kernel is as good as before.
    cell(running, "%%llm --chat i\nTwo?", "i3").check()
    assert re.findall(r"You: (.*)", history(running, "i")) == ["One?", "Two?"]


def test_an_interrupt_while_somebody_is_asked(running: Kernel) -> None:
    code = "%%llm --tools double --approve\ncall ('double', n=4)"
    run, seconds = _interrupted(running, code, "double", typed=[])
    assert seconds < 3
    assert run.reply["ename"] == "Interrupted"
    assert reply(run).trace[0].status == "interrupted"
    assert running.run("1 + 1").result == "2"


# ----------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("%%llm -m no-such-model\nx", "ModelNotFoundError", "no-such-model"),
        ("%%llm --chat a --tool-choice none\n{{ nothing }}", "InterpolationError", "nothing"),
        ("%%llm --tools SYNTAXES\nx", "RequestError", "a tool needs a name"),
        ("%%llm --tools positional\nx", "ToolError", "cannot be a tool"),
        ("%%llm --schema script\nx", "SchemaError", "has no JSON schema"),
        ("%%llm --score\nx", "UnsupportedError", "score"),
        ("%llm history nothing", "RequestError", "no conversation"),
        ("%llm unload nothing", "NotLoadedError", "nothing"),
    ],
)
def test_our_errors_are_one_red_block_without_a_stack(
    running: Kernel, code: str, name: str, words: str
) -> None:
    running.run("def positional(n: int, /): ...").check()
    run = running.run(code)
    assert (run.reply["status"], run.reply["ename"]) == ("error", name)
    (error,) = run.of("error")
    (block,) = error.content["traceback"]
    assert block.startswith("\x1b[31m" + name)
    assert words in block
    assert "\n" not in block
    assert running.run("1 + 1").result == "2"


def test_a_failure_inside_the_engine_keeps_its_stack(running: Kernel) -> None:
    running.run("script._script, kept = (lambda request: ['a', ZeroDivisionError('boom')]), answer")
    run = running.run("%%llm\nx")
    running.run("script._script = kept").check()
    assert run.reply["ename"] == "EngineError"
    text = "\n".join(run.of("error")[0].content["traceback"])
    assert "ZeroDivisionError" in text
    assert "stream.py" in text


# ----------------------------------------------------------------------------- the model

MODEL = """
%load_ext llm_magic
import dataclasses
from typing import Annotated, Literal

@dataclasses.dataclass
class City:
    name: str
    country: str
    people: int

def weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    "The weather in a city."
    return f"{city}: 21 degrees {unit}"

def add(a: int, b: int) -> int:
    "The sum of two numbers."
    return a + b
"""


@pytest.fixture(scope="module")
def model(smollm2_path: Any) -> Iterator[Kernel]:
    with kernel() as found:
        found.run(MODEL).check()
        yield found


@pytest.mark.model
@pytest.mark.parametrize("seed", range(5))
def test_choices_are_kept(model: Kernel, seed: int) -> None:
    code = f'%%llm --choices "red|green|blue" -t 1.5 --seed {seed} -o r\nWhat is the sky like?'
    run = model.run(code).check()
    assert run.final["text/plain"] in ("red", "green", "blue")
    assert model.value("r.parsed") == run.final["text/plain"]
    assert model.value("sorted(r.choices)") == ["blue", "green", "red"]  # F264
    assert model.value("round(sum(r.choices.values()), 6)") == 1.0


@pytest.mark.model
@pytest.mark.parametrize("seed", range(5))
def test_a_dataclass_is_filled(model: Kernel, seed: int) -> None:
    code = f"%%llm --schema City -t 1 --seed {seed} -n 200 -o r\nTell me about Paris."
    run = model.run(code).check()
    if reply(run).finish_reason == "length":
        assert model.value("r.parsed") is None
    else:
        data = json.loads(run.final["text/plain"])
        assert list(data) == ["name", "country", "people"]
        assert model.value("isinstance(r.parsed, City) and r.parsed.people") == data["people"]


@pytest.mark.model
@pytest.mark.parametrize("seed", range(5))
def test_required_tools_are_called_and_the_call_is_valid(model: Kernel, seed: int) -> None:
    code = (
        f"%%llm --tools weather,add --tool-choice required -t 1 --seed {seed} -n 300 "
        "--max-steps 1 -o r\nWhat is the weather in Paris?"
    )
    run = model.run(code).check()
    trace = reply(run).trace
    assert trace
    assert {record.status for record in trace} == {"ok"}
    assert {record.call.name for record in trace} <= {"weather", "add"}
    assert reply(run).text  # and after the calls there are words


@pytest.mark.model
def test_a_named_tool_is_the_one_that_is_called(model: Kernel) -> None:
    code = "%%llm --tools weather,add --tool-choice add -t 0 --max-steps 1 -o r\nWhat is 19 + 23?"
    run = model.run(code).check()
    assert reply(run).trace[0].call.name == "add"


@pytest.mark.model
def test_a_second_turn_finds_the_first_in_the_cache(model: Kernel) -> None:
    model.run("%%llm --chat a -t 0 -n 24\nWhat is the capital of France?").check()
    run = model.run("%%llm --chat a -t 0 -n 24\nAnd of Germany?").check()
    usage = reply(run).usage
    assert usage.cached > usage.prompt / 2


# TG-20
@pytest.mark.model
def test_a_prefill_is_continued(model: Kernel) -> None:
    run = model.run("%%llm --prefill 'The capital is' -t 0 -n 16 -o r\nCapital of France?").check()
    assert run.final["text/plain"] == reply(run).text
    assert reply(run).text == f"The capital is{reply(run).continuation}"
    assert "Paris" in reply(run).continuation
    assert (reply(run).prompt or "").endswith("assistant\n")


@pytest.mark.model
def test_the_first_cell_says_how_long_loading_took(smollm2_path: Any) -> None:
    with kernel() as found:
        found.run("%load_ext llm_magic").check()
        first = found.run("%%llm -n 4\nHello").check()
        second = found.run("%%llm -n 4\nHello").check()
    assert re.search(r"loaded in \d+\.\d s", first.final["text/html"])
    assert reply(first).timings.load > 0
    assert "loaded in" not in second.final["text/html"]
