"""Conversations: histories of whole exchanges, turns with tools, and what may stop one."""

import json
import signal
import threading
import time

import pytest

import llm_magic
from llm_magic.chat.conversation import Conversation, Conversations
from llm_magic.chat.exchanges import exchanges, shortened
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import EngineError, Interrupted, RequestError
from llm_magic.events import (
    CallDelta,
    CallDone,
    Delta,
    Finish,
    Message,
    Schema,
    ToolCall,
    ToolDone,
    ToolSpec,
    as_messages,
)
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

HERMES = SYNTAXES["hermes"]


def calling(*calls: tuple[str, dict], before: str = "") -> str:
    """What a model writes to call tools."""
    written = (json.dumps({"name": n, "arguments": a}) for n, a in calls)
    return before + "".join(f"<tool_call>\n{c}\n</tool_call>\n" for c in written)


def talk(*script, tools=(), **options) -> tuple[Conversation, Scripted]:
    delay = options.pop("delay", 0.0)
    provider = Scripted(script, syntax=HERMES, delay=delay)
    return Conversation(LLM(provider), tools=tools, **options), provider


def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("adding")
    return a + b


def roles(messages) -> list[str]:
    return [message.role for message in messages]


# ----------------------------------------------------------------------------- turns


# TG-69
def test_a_conversation_keeps_what_was_said():
    chat, provider = talk("Hello!", "Your name is Ada.", system="Be kind.")
    assert chat.ask("I am Ada.").text == "Hello!"
    assert chat.ask("Who am I?").text == "Your name is Ada."
    assert roles(provider.requests[1].prompt) == ["system", "user", "assistant", "user"]
    assert roles(chat.messages) == ["system", "user", "assistant", "user", "assistant"]
    assert chat.last.text == "Your name is Ada."
    assert repr(chat) == "<Conversation with scripted: 2 exchanges>"


# B071
def test_reasoning_is_kept_apart_from_the_answer():
    chat, provider = talk("<think>secret</think>A", "B")
    assert chat.ask("x").reasoning == "secret"
    chat.ask("y")
    answer = provider.requests[1].prompt[1]
    assert (answer.content, answer.reasoning) == ("A", "secret")
    assert chat.to_openai()[1] == {
        "role": "assistant",
        "content": "A",
        "reasoning_content": "secret",
    }


def test_a_turn_calls_and_goes_on():
    chat, provider = talk(
        calling(("add", {"a": 2, "b": 3}), before="Let me see.\n"), "It is 5.", tools=[add]
    )
    stream = chat.send("2+3?")
    events = list(stream)
    assert sum(isinstance(e, Finish) for e in events) == 1
    assert isinstance(events[-1], Finish)
    order = [type(e) for e in events if isinstance(e, CallDone | ToolDone)]
    assert order == [CallDone, ToolDone]
    reply = stream.reply
    assert reply.text == "Let me see.\n\nIt is 5."
    assert reply.text == "".join(e.text for e in events if isinstance(e, Delta))
    assert (reply.finish_reason, reply.calls) == ("stop", ())
    (record,) = reply.trace
    assert (record.round, record.status, record.result, record.stdout) == (1, "ok", "5", "adding\n")
    assert (record.arguments, record.approval) == ({"a": 2, "b": 3}, "auto")
    assert roles(chat.messages) == ["user", "assistant", "tool", "assistant"]
    called, answered = chat.messages[1:3]
    assert answered.call_id == called.calls[0].id
    assert provider.requests[1].prompt == chat.messages[:3]
    assert reply.usage.completion == len(reply.tokens)


def test_tokens_of_all_rounds_are_there_once():
    chat, _ = talk(calling(("add", {"a": 1, "b": 1})), "two", tools=[add])
    stream = chat.send("x")
    events = list(stream)
    carried = [t for e in events if isinstance(e, Delta | CallDelta) for t in e.tokens]
    assert carried == list(stream.reply.tokens)
    assert set(stream.reply.kinds) == {"call", "answer"}


def test_calls_in_parallel_and_over_rounds_are_counted_through():
    first = calling(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}))
    chat, _ = talk(first, calling(("add", {"a": 3, "b": 7})), "10", tools=[add])
    stream = chat.send("sum")
    indexes = [e.index for e in stream if isinstance(e, CallDone)]
    assert indexes == [0, 1, 2]
    assert [r.result for r in stream.reply.trace] == ["3", "7", "10"]
    assert [r.round for r in stream.reply.trace] == [1, 1, 2]
    assert roles(chat.messages) == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]


def test_a_step_budget_ends_in_words():
    again = calling(("add", {"a": 1, "b": 1}))
    chat, provider = talk(again, again, "I give up.", tools=[add], max_steps=2)
    reply = chat.ask("loop")
    assert (reply.text, reply.finish_reason) == ("I give up.", "stop")
    assert len(reply.trace) == 2
    assert [r.tool_choice for r in provider.requests] == ["auto", "auto", "none"]


def test_a_call_that_was_demanded_is_demanded_once():
    chat, provider = talk(
        calling(("add", {"a": 1, "b": 1})), "2", tools=[add], tool_choice="required"
    )
    chat.ask("x")
    assert [r.tool_choice for r in provider.requests] == ["required", "auto"]


def test_what_goes_wrong_in_a_tool_is_told_to_the_model():
    def fail() -> None:
        """Fail."""
        raise RuntimeError("out of order")

    script = [calling(("fail", {}), ("nothing", {}), ("add", {"a": "x"})), "Sorry."]
    chat, provider = talk(*script, tools=[fail, add])
    reply = chat.ask("do it")
    assert [r.status for r in reply.trace] == ["error", "unknown", "invalid"]
    results = [m.text for m in provider.requests[1].prompt if m.role == "tool"]
    assert results[0] == "Error: RuntimeError: out of order"
    assert "no tool 'nothing'. Tools: fail, add" in results[1]
    assert "'x' is not of type 'integer'" in results[2]


def test_a_call_with_a_known_result_is_answered_from_the_record():
    """F274: two equal results are enough; the third call neither runs nor asks."""
    again = calling(("add", {"a": 1, "b": 2}))
    other_order = calling(("add", {"b": 2, "a": 1}))
    asked = []
    chat, provider = talk(
        again, again, other_order, again, "It is 3.", tools=[add],
        approve=lambda *a: asked.append(a) or True,
    )  # fmt: skip
    reply = chat.ask("1 + 2?")
    assert [r.status for r in reply.trace] == ["ok", "ok", "repeated", "repeated"]
    assert len(asked) == 2
    assert "was not run again" in reply.trace[2].result
    assert reply.trace[2].result.endswith("\n3")
    assert reply.text == "It is 3."
    assert provider.requests[-1].tool_choice == "none"
    assert [r.tool_choice for r in provider.requests[:4]] == ["auto"] * 4


def test_a_call_whose_results_differ_runs_every_time():
    count = iter(range(100))
    chat, _ = talk(*[calling(("draw", {}))] * 4, "Done.", tools=[drawing(count)])
    assert [r.result for r in chat.ask("Draw.").trace] == ["0", "1", "2", "3"]


def drawing(count):
    def draw() -> int:
        return next(count)

    return draw


def test_a_refused_call_is_not_asked_for_again():
    asked = []
    again = calling(("add", {"a": 1, "b": 2}))
    chat, _ = talk(
        again, again, "No.", tools=[add], approve=lambda *a: asked.append(a) or "too dear"
    )
    trace = chat.ask("1 + 2?").trace
    assert [r.status for r in trace] == ["refused", "repeated"]
    assert len(asked) == 1
    assert "too dear" in trace[1].result


def test_approval_refusal_and_other_arguments():
    asked = []

    def approve(call: ToolCall, arguments):
        asked.append((call.name, arguments))
        return [True, "no money", {"a": 5, "b": 5}][len(asked) - 1]

    script = [calling(*(("add", {"a": i, "b": i}) for i in range(3))), "ok"]
    chat, provider = talk(*script, tools=[add], approve=approve)
    reply = chat.ask("x")
    assert [r.approval for r in reply.trace] == ["approved", "refused", "edited"]
    assert asked[0] == ("add", {"a": 0, "b": 0})
    results = [m.text for m in provider.requests[1].prompt if m.role == "tool"]
    assert results == ["0", "Error: The user refused this call: no money.", "10"]


def test_a_tool_may_ask_the_engine_itself():
    llm = LLM(
        Scripted(
            [calling(("ask", {"text": "deep"})), "inner answer", "outer answer"], syntax=HERMES
        )
    )

    def ask(text: str) -> str:
        """Ask a model."""
        return llm.chat(text).text

    chat = Conversation(llm, tools=[ask])
    reply = chat.ask("go")
    assert reply.text == "outer answer"
    assert reply.trace[0].result == "inner answer"


def test_a_timeout_is_recorded_and_the_turn_goes_on():
    release = threading.Event()

    def slow() -> None:
        """Wait."""
        release.wait(10)

    chat, _ = talk(calling(("slow", {})), "too slow", tools=[slow], timeout=0.05)
    reply = chat.ask("x")
    assert (reply.text, reply.trace[0].status) == ("too slow", "timeout")
    release.set()


def test_tools_without_a_function_are_refused_at_once():
    with pytest.raises(RequestError, match="only described"):
        talk(tools=[ToolSpec("f")])
    chat, _ = talk("a")
    with pytest.raises(RequestError):
        chat.send("x", tools=[{"name": "g"}])


def test_options_of_a_turn_win_over_those_of_the_conversation():
    chat, provider = talk("a", "b", temperature=0.3, max_tokens=5)
    chat.ask("x")
    chat.ask("y", temperature=0.9)
    assert [r.sampling.temperature for r in provider.requests] == [0.3, 0.9]
    assert [r.sampling.max_tokens for r in provider.requests] == [5, 5]


def test_structured_answers_in_a_conversation():
    chat, _ = talk('{"a": 1}', tools=[add], schema={"type": "object"})
    assert chat.ask("x").parsed == {"a": 1}


# ----------------------------------------------------------------------------- what stops a turn


# B032
@pytest.mark.parametrize("events", [0, 1, 2])
def test_an_interrupted_turn_without_words_leaves_no_question_behind(events):
    chat, _ = talk(*["fine"] * 3)
    stream = chat.send("first")
    for _ in range(events):  # before anything happened, during and after the prefill
        next(stream)
    stream.cancel()
    list(stream)
    assert stream.reply.finish_reason == "cancelled"
    assert chat.messages == ()
    assert chat.ask("second").text == "fine"
    assert roles(chat.messages) == ["user", "assistant"]


# B032
def test_an_interrupted_turn_with_words_keeps_them():
    chat, _ = talk("one two three four five", "next")
    stream = chat.send("count")
    for event in stream:
        if isinstance(event, Delta):
            stream.cancel("interrupted")
            break
    list(stream)
    assert stream.reply.finish_reason == "interrupted"
    assert roles(chat.messages) == ["user", "assistant"]
    assert chat.messages[1].text.startswith("one")
    chat.ask("go on")
    assert roles(chat.messages) == ["user", "assistant"] * 2


@pytest.mark.parametrize("before", ["", "Let me see.\n"])
def test_an_interrupt_inside_a_tool_ends_the_turn_cleanly(before):
    def f() -> None:
        """Interrupted."""
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)

    chat, provider = talk(calling(("f", {}), ("f", {}), before=before), "unused", "fine", tools=[f])
    with pytest.raises(Interrupted) as caught:
        chat.ask("x")
    assert caught.value.partial.finish_reason == "interrupted"
    assert [r.status for r in caught.value.partial.trace] == ["interrupted"]
    assert roles(chat.messages) == (["user", "assistant"] if before else [])
    assert all(not m.calls for m in chat.messages)
    assert chat.last.trace  # what happened stays visible
    provider._script = iter(["fine"])
    assert chat.ask("y").text == "fine"


@pytest.mark.parametrize("way", ["cancel", "close"])
@pytest.mark.parametrize("main", [True, False])
def test_a_turn_can_be_stopped_from_another_thread_while_a_tool_runs(way, main):
    entered = threading.Event()

    def f() -> None:
        """Wait."""
        entered.set()
        time.sleep(30)

    chat, _ = talk(calling(("f", {})), "unused", tools=[f])
    stream = chat.send("x")
    began = time.perf_counter()
    if main:
        helper = threading.Thread(target=lambda: (entered.wait(5), getattr(stream, way)()))
        helper.start()
        events = list(stream)
    else:
        events = []
        helper = threading.Thread(target=lambda: events.extend(stream))
        helper.start()
        entered.wait(5)
        getattr(stream, way)()
    helper.join(10)
    assert time.perf_counter() - began < 10
    assert stream.ended
    assert chat.messages == ()
    if way == "cancel":
        assert events[-1].reason == "cancelled"
        assert stream.reply.trace[0].status == "interrupted"


def test_an_interrupt_of_a_reply_that_a_tool_asked_for_ends_the_outer_turn_too():
    inner = LLM(Scripted(lambda request: signal.raise_signal(signal.SIGINT) or "x"))

    def ask() -> str:
        """Ask."""
        return inner.chat("hm").text

    chat, _ = talk(calling(("ask", {})), "unused", tools=[ask])
    with pytest.raises(Interrupted) as caught:
        chat.ask("go")
    assert caught.value.partial.trace[0].status == "interrupted"
    assert chat.messages == ()


def test_a_failure_raises_with_the_partial_and_keeps_the_history_whole():
    chat, _ = talk(
        "ok", ["some ", "words", RuntimeError("broken")], [RuntimeError("at once")], "fine"
    )
    chat.ask("a")
    with pytest.raises(EngineError) as caught:
        chat.ask("b")
    assert caught.value.partial.text == "some words"
    assert roles(chat.messages) == ["user", "assistant"] * 2
    with pytest.raises(EngineError):
        chat.ask("c")
    assert roles(chat.messages) == ["user", "assistant"] * 2
    assert chat.ask("d").text == "fine"


def test_a_failure_in_a_later_round_keeps_the_trace():
    chat, _ = talk(calling(("add", {"a": 1, "b": 1})), ["x", RuntimeError("broken")], tools=[add])
    with pytest.raises(EngineError) as caught:
        chat.ask("a")
    assert [r.result for r in caught.value.partial.trace] == ["2"]
    assert roles(chat.messages) == ["user", "assistant", "tool", "assistant"]


def test_a_request_that_cannot_be_made_changes_nothing():
    chat, _ = talk("a")
    with pytest.raises(RequestError):
        chat.ask("x", no_such_option=1)
    assert chat.messages == ()
    assert chat.ask("y").text == "a"


def test_one_turn_at_a_time():
    chat, _ = talk("a " * 50, "b", delay=0.02)
    stream = chat.send("x")
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    while not stream.reading:
        time.sleep(0.001)
    with pytest.raises(RequestError, match="still being written"):
        chat.send("y")
    chat.cancel()
    reader.join(5)
    assert chat.ask("y").text == "b"


def test_a_stream_that_nobody_reads_any_more_does_not_block():
    chat, _ = talk("one two three", "b")
    for event in chat.send("x"):
        if isinstance(event, Delta):
            break
    assert chat.ask("y").text == "b"
    assert [m.text for m in chat.messages] == ["x", "one", "y", "b"]


def test_a_context_manager_ends_the_turn():
    chat, _ = talk("one two three")
    with chat.send("x") as stream:
        next(e for e in stream if isinstance(e, Delta))
    assert stream.ended
    assert list(stream) == []
    assert chat.messages[1].text == "one"


# ----------------------------------------------------------------------------- changing the past


def test_undo_reset_and_regenerate():
    chat, provider = talk("a", "b", "c", "d", system="s")
    with pytest.raises(RequestError):
        chat.regenerate()
    chat.ask("1")
    chat.ask("2")
    assert chat.undo().question.text == "2"
    assert [m.text for m in chat.messages] == ["s", "1", "a"]
    list(chat.regenerate(temperature=0.1))
    assert [m.text for m in chat.messages] == ["s", "1", "c"]
    assert [m.text for m in provider.requests[-1].prompt] == ["s", "1"]
    chat.reset()
    assert [m.text for m in chat.messages] == ["s"]
    assert chat.undo() is None
    assert chat.last is None


def test_edit_and_resend_forgets_what_came_after():
    chat, provider = talk("a", "b", "c", "d")
    for text in "123":
        chat.ask(text)
    second = chat.exchanges[1]
    list(chat.edit(second.id, "two"))
    assert [m.text for m in chat.messages] == ["1", "a", "two", "d"]
    assert [m.text for m in provider.requests[-1].prompt] == ["1", "a", "two"]
    assert chat.exchanges[1].id == second.id
    with pytest.raises(RequestError, match=r"no exchange 99 .*there are \[1, 2\]"):
        chat.edit(99, "x")


def test_a_cell_that_runs_again_replaces_its_turn():
    chat, provider = talk("a", "b", "c", "d", "e")
    chat.ask("1", cell="A")
    chat.ask("2", cell="B")
    chat.ask("one", cell="A")
    assert [m.text for m in chat.messages] == ["one", "c", "2", "b"]
    assert [m.text for m in provider.requests[-1].prompt] == ["one"]  # it sees what was before it
    stream = chat.send("two", cell="B")
    stream.cancel()
    list(stream)
    assert [m.text for m in chat.messages] == ["one", "c", "2", "b"]  # nothing said: nothing lost
    chat.ask("3", cell="C")
    assert [e.cell for e in chat.exchanges] == ["A", "B", "C"]


def test_a_fork_goes_its_own_way():
    chat, _ = talk("a", "b", "c", "d", tools=[add], system="s", max_tokens=9)
    chat.ask("1")
    chat.ask("2")
    other = chat.fork(chat.exchanges[0].id)
    other.ask("x")
    chat.ask("y")
    assert [m.text for m in other.messages] == ["s", "1", "a", "x", "c"]
    assert [m.text for m in chat.messages] == ["s", "1", "a", "2", "b", "y", "d"]
    assert other.rules.tools == chat.rules.tools
    assert other.options == {"max_tokens": 9}
    assert chat.fork().messages == chat.messages


# ----------------------------------------------------------------------------- in and out


# LC-69
def test_openai_messages_out_and_in():
    chat, _ = talk(calling(("add", {"a": 1, "b": 2})), "3", tools=[add], system="s")
    chat.ask("1+2")
    data = json.loads(json.dumps(chat.to_openai()))
    assert data[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    assert data[3]["tool_call_id"] == data[2]["tool_calls"][0]["id"]
    other, _ = talk("more")
    other.load(data)
    assert other.messages == chat.messages
    assert other.system == "s"
    assert other.ask("and?").text == "more"
    parts = [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": None},
    ]
    other.load(parts)
    assert other.to_openai() == parts
    assert other.system is None


# LC-68
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "x"}],
        [{"role": "user", "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"content": "x"}],
        [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1"}]}],
        ["x"],
    ],
)
def test_what_is_no_conversation_is_refused_and_changes_nothing(messages):
    chat, _ = talk("a")
    chat.ask("x")
    before = chat.messages
    with pytest.raises(RequestError):
        chat.load(messages)
    assert chat.messages == before


def test_conversations_by_name():
    named = Conversations()
    made = []

    def make():
        made.append(talk("a")[0])
        return made[-1]

    first = named.open("x", make)
    assert named.open("x", make) is first
    assert named.open("x", make, new=True) is not first
    assert list(named) == ["x"]
    assert "x" in named
    assert len(named) == 1
    with pytest.raises(RequestError, match="no conversation 'y'; there are 'x'"):
        named["y"]
    named.remove("x")
    assert "x" not in named


def exchange(i: int) -> list[dict]:
    return [
        {"role": "user", "content": f"q{i}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{i}", "function": {"name": "f"}}],
        },
        {"role": "tool", "tool_call_id": f"c{i}", "content": "r"},
        {"role": "assistant", "content": f"a{i}"},
    ]


def test_histories_are_cut_between_exchanges_only():
    system = [{"role": "system", "content": "s"}]
    messages = as_messages([*system, *exchange(1), *exchange(2), {"role": "user", "content": "q3"}])
    head, groups = exchanges(messages)
    assert [m.text for m in head] == ["s"]
    assert [len(g) for g in groups] == [4, 4, 1]
    assert [m.text for m in shortened(messages, 1)] == ["s", "q2", "", "r", "a2", "q3"]
    assert [m.text for m in shortened(messages, 2)] == ["s", "q3"]
    assert [m.text for m in shortened(messages, 9)] == ["s", "q3"]  # the question always stays
    two = as_messages([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
    assert len(exchanges(two)[1]) == 1  # said in one breath


# ----------------------------------------------------------------------------- public names


def test_public_names():
    assert llm_magic.Conversation is Conversation
    assert llm_magic.tool(add).name == "add"
    assert Schema({}) == Schema({}, int)  # the Python type is no part of the constraint
    assert Message("user", "x").text == "x"
