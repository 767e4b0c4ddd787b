"""Streams over scripted tokens: events, stop strings, errors, interrupts, defaults."""

import threading
from dataclasses import replace

import pytest

from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import EngineError, Interrupted, RequestError
from llm_magic.events import CallDelta, Delta, Finish, Message, Prefill, Sampling
from llm_magic.llm import CHAT, COMPLETE, LLM, interruptible
from llm_magic.providers.scripted import Scripted


def llm(*answers, **options):
    provider = Scripted(list(answers), **options)
    return LLM(provider), provider


# LC-3, LAI-5, LAI-6
def test_the_reply_is_the_concatenation_of_the_deltas():
    model, _ = llm("Hello there, world!")
    with model.stream("x") as stream:
        events = list(stream)
    deltas = [e for e in events if isinstance(e, Delta)]
    assert len(deltas) > 2
    assert "".join(d.text for d in deltas) == stream.reply.text == "Hello there, world!"
    assert [t for d in deltas for t in d.tokens] == list(stream.reply.tokens)
    assert isinstance(events[0], Prefill)
    assert isinstance(events[-1], Finish)
    assert sum(isinstance(e, Finish) for e in events) == 1


# LAI-12
def test_streamed_equals_not_streamed():
    text = "Hé 😀, one <two> three"
    streamed, _ = llm(text)
    with streamed.stream("x") as s:
        for _ in s:
            pass
    whole, _ = llm(text)
    assert s.reply == whole.complete("x")


def test_a_stop_string_ends_the_stream_and_counts_kept_tokens():
    model, _ = llm("one two three four")
    reply = model.complete("x", stop=[" three"])
    assert (reply.text, reply.finish_reason) == ("one two", "stop")
    assert reply.usage.completion == len(reply.tokens) == 2


# LAI-2, LAI-3, LC-30
def test_defaults_and_explicit_zero():
    model, provider = llm("a", "b", "c", "d")
    model.chat("hi")
    model.complete("x")
    model.chat("hi", temperature=0, max_tokens=5)
    assert provider.requests[0].sampling == CHAT == Sampling(temperature=0.7, max_tokens=256)
    assert provider.requests[1].sampling == COMPLETE == Sampling(temperature=0.0, max_tokens=256)
    assert provider.requests[2].sampling.temperature == 0
    assert provider.requests[2].sampling.max_tokens == 5


# LAI-11
def test_an_error_half_way_carries_the_partial_reply():
    model, _ = llm(["Hel", "lo", RuntimeError("boom")], "fine")
    with pytest.raises(EngineError, match="generation failed: RuntimeError: boom") as e:
        model.complete("x")
    assert e.value.partial.text == "Hello"
    assert e.value.partial.finish_reason is None
    assert isinstance(e.value.__cause__, RuntimeError)
    assert model.complete("x").text == "fine"


def test_held_back_text_is_in_the_partial_of_an_error():
    model, _ = llm(["Hi", "\n", RuntimeError("boom")])
    with pytest.raises(EngineError) as e:
        model.complete("x", stop="\n\n")
    assert e.value.partial.text == "Hi\n"


def test_an_interrupt_cancels_drains_and_raises_with_the_partial():
    model, _ = llm(["a", "b", KeyboardInterrupt(), "c"])
    stream = model.stream("x")
    seen = []

    def read():
        for event in interruptible(_Resuming(stream)):
            seen.append(event)

    with pytest.raises(Interrupted, match="interrupted after 2 tokens") as e:
        read()
    assert isinstance(seen[-1], Finish)
    assert seen[-1].reason == "interrupted"
    assert e.value.partial.text == "ab"
    assert isinstance(e.value, KeyboardInterrupt)


class _Resuming:
    """A stream that is interrupted while it waits for its third token."""

    def __init__(self, stream):
        self._stream, self._n = stream, 0
        self.cancel, self.close = stream.cancel, stream.close

    @property
    def reply(self):
        return self._stream.reply

    def __iter__(self):
        return self

    def __next__(self):
        event = next(self._stream) if self._n != 4 else None
        self._n += 1
        if event is None:
            raise KeyboardInterrupt
        return event


def test_cancel_from_another_thread():
    model, _ = llm("word " * 1000, delay=0.01)
    stream = model.stream("x", max_tokens=None)
    threading.Timer(0.05, stream.cancel).start()
    events = list(stream)
    assert events[-1].reason == "cancelled"
    assert 0 < len(stream.reply.tokens) < 200


def test_a_closed_stream_yields_nothing_more():
    model, _ = llm("one two three")
    stream = model.stream("x")
    next(stream)
    stream.close()
    assert list(stream) == []


# B110
def test_dropping_a_stream_stops_its_source():
    model, _ = llm("one two three")
    stream = model.stream("x")
    source = stream._source
    next(stream)
    del stream
    assert source._halt.is_set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "unknown option 'temprature'; did you mean temperature"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"stop": [1]}, "stop is"),
        ({"regex": "a", "choices": ["b"]}, "regex and choices cannot be used together"),
        ({"tools": [{}]}, "a tool needs a name"),
    ],
)
def test_bad_options_are_named_before_anything_runs(options, message):
    model, provider = llm("a")
    with pytest.raises(RequestError, match=message):
        model.complete("x", **options)
    assert provider.requests == []


# LC-69, LC-68
def test_messages_are_read_strictly():
    model, provider = llm("a", "b")
    parts = [{"type": "text", "text": "hi"}]
    model.chat([{"role": "user", "content": parts}, Message("user", None)])
    assert provider.requests[0].prompt[0].text == "hi"
    for bad in ([{"content": "x"}], [{"role": "user", "content": 3}], [3.5], []):
        with pytest.raises(RequestError):
            model.chat(bad)


def test_system_comes_first_and_only_once():
    model, provider = llm("a", "b")
    model.chat("hi", system="be brief")
    assert [m.role for m in provider.requests[0].prompt] == ["system", "user"]
    with pytest.raises(RequestError, match="already begin with a system"):
        model.chat([{"role": "system", "content": "x"}], system="y")


# LC-69
def test_empty_stop_strings_are_ignored():
    model, provider = llm("a b")
    assert model.complete("x", stop=["", "zzz"]).text == "a b"
    assert provider.requests[0].sampling.stop == ("zzz",)


# LC-8
def test_records_of_the_stream_are_those_of_the_reply_also_while_text_is_held():
    model, _ = llm(["one", " sto", "n", "e", " two"])
    with model.stream("x", stop=["stop"], logprobs=2) as stream:
        deltas = [e for e in stream if isinstance(e, Delta)]
    assert stream.reply.text == "one stone two"
    assert [t for d in deltas for t in d.tokens] == list(stream.reply.tokens)
    assert all(len(t.top) == 2 for t in stream.reply.tokens)
    off, _ = llm("one two")
    assert all(t.top == () for t in off.complete("x").tokens)  # LC-40: off by default


# LC-40a
def test_a_character_in_two_tokens_is_whole_and_its_records_keep_their_bytes():
    class Halves(Scripted):
        def stream(self, request):
            stream = super().stream(request)
            emoji = "😀".encode()
            play = stream._source
            halves = zip(play._items, (emoji[:2], emoji[2:]), strict=True)
            play._items = [replace(t, bytes=b) for t, b in halves]
            return stream

    with LLM(Halves([["a", "b"]])).stream("x") as stream:
        texts = [e.text for e in stream if isinstance(e, Delta)]
    assert texts == ["😀"]
    assert b"".join(t.bytes for t in stream.reply.tokens).decode() == "😀"


# LC-60
def test_streams_with_chat_and_tools_give_text_and_calls_apart():
    answer = 'Let me look. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    provider = Scripted([answer], syntax=SYNTAXES["hermes"])
    tools = [{"type": "function", "function": {"name": "f"}}]
    with LLM(provider).stream([Message("user", "hi")], tools=tools) as stream:
        events = list(stream)
    assert stream.reply.text.strip() == "Let me look."
    assert [(c.name, c.arguments) for c in stream.reply.calls] == [("f", '{"a": 1}')]
    assert events[-1].reason == "tool_calls"
    assert any(isinstance(e, CallDelta) for e in events)


# TG-51
def test_a_message_with_calls_only_has_no_content():
    answer = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    provider = Scripted([answer, "words"], syntax=SYNTAXES["hermes"])
    message = LLM(provider).chat("hi", tools=[{"name": "f"}]).message
    assert (message.content, message.reasoning, len(message.calls)) == (None, "", 1)
    assert LLM(provider).chat("hi").message.calls == ()
