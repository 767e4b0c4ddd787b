"""Callbacks, several replies at once, and requests that are refused before any token."""

import threading

import pytest

from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import RequestError
from llm_magic.events import CallDelta, Choices, Delta, Grammar, Regex, Schema, Token, ToolSpec
from llm_magic.llm import LLM, Control
from llm_magic.providers.scripted import Scripted


def scripted(*answers, **options) -> LLM:
    return LLM(Scripted(answers, **options))


# ----------------------------------------------------------------------------- callbacks


# LC-1
def test_each_piece_in_order_on_the_callers_thread():
    seen, threads = [], set()

    def listen(delta):
        seen.append(delta.text)
        threads.add(threading.current_thread())
        return Control.CONTINUE

    reply = scripted("one two three").stream("x", on_delta=listen)
    assert seen == ["one", " two", " three"]
    assert threads == {threading.main_thread()}
    assert (reply.text, reply.finish_reason) == ("one two three", "stop")


# LC-2, LC-6
@pytest.mark.parametrize("n", [1, 2, 3])
def test_stop_ends_there_and_the_answered_token_counts(n):
    seen = []

    def listen(delta):
        seen.append(delta.text)
        return Control.STOP if len(seen) == n else None

    reply = scripted("one two three four five six").stream("x", on_delta=listen)
    assert len(seen) == n
    assert reply.text == "".join(seen)
    assert (reply.finish_reason, reply.usage.completion, len(reply.tokens)) == ("stop", n, n)


# LC-3
def test_the_reply_is_the_concatenation_of_what_was_told():
    seen = []
    llm = scripted("<think>hm</think>Hello there")
    reply = llm.stream("x", on_delta=lambda delta: seen.append(delta))
    assert "".join(d.text for d in seen if d.kind == "answer") == reply.text == "Hello there"
    assert "".join(d.text for d in seen if d.kind == "reasoning") == reply.reasoning == "hm"
    assert tuple(t for d in seen for t in d.tokens) == reply.tokens


def test_calls_are_told_as_well():
    llm = scripted(
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>', syntax=SYNTAXES["hermes"]
    )
    seen = []
    reply = llm.stream("x", tools=[ToolSpec("f")], on_delta=lambda delta: seen.append(type(delta)))
    assert CallDelta in seen
    assert reply.finish_reason == "tool_calls"


# LC-4
def test_a_callback_that_raises_stops_and_the_partial_comes_with_it():
    llm = scripted("one two three four", "next")

    def listen(delta: Delta):
        if "two" in delta.text:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough") as caught:
        llm.stream("x", on_delta=listen)
    assert caught.value.partial.text.startswith("one two")
    assert caught.value.partial.finish_reason == "cancelled"
    assert llm.complete("y").text == "next"  # still usable


# LC-4
def test_exceptions_that_take_no_attributes():
    class Bare(Exception):
        def __setattr__(self, name, value):
            if name == "partial":
                raise AttributeError(name)
            super().__setattr__(name, value)

    def listen(delta):
        raise Bare

    with pytest.raises(Bare):
        scripted("one two").stream("x", on_delta=listen)


# LC-5
def test_a_callback_that_swallows_its_errors_stops_nothing():
    def listen(delta):
        try:
            raise ValueError
        except ValueError:
            return

    assert scripted("one two").stream("x", on_delta=listen).text == "one two"


# LC-9a
def test_text_that_was_held_back_is_part_of_what_counts():
    # "<to" might have become a tag: it is told at the end
    llm = scripted(["a", " <to", "x y"], syntax=SYNTAXES["hermes"])
    reply = llm.stream(
        "x", tools=[ToolSpec("f")], on_delta=lambda d: Control.STOP if d.text == "a" else None
    )
    assert reply.text == "a"
    assert reply.usage.completion == 1


# ----------------------------------------------------------------------------- several replies


class Sure(Scripted):
    """Every reply is one word with a logprob of its own."""

    def __init__(self, *logprobs):
        super().__init__([[f"w{i}"] for i in range(len(logprobs))])
        self.logprobs_ = list(logprobs)

    def stream(self, request):
        stream = super().stream(request)
        logprob = self.logprobs_.pop(0)
        items = stream._source._items
        items[:] = [Token(t.id, t.bytes, logprob, 1) for t in items]
        return stream


# LC-47
def test_best_of_keeps_the_greatest_mean_logprob():
    assert LLM(Sure(-2.0, -0.5, -1.0)).complete("x", best_of=3).text == "w1"
    replies = LLM(Sure(-2.0, -0.5, -1.0, -0.1)).complete("x", n=2, best_of=4)
    assert [r.text for r in replies] == ["w1", "w3"]  # in the order of drawing


# LC-46
def test_mean_logprob_and_perplexity():
    reply = LLM(Sure(-0.5)).complete("x")
    assert reply.mean_logprob == -0.5
    assert reply.perplexity == pytest.approx(1.6487, abs=1e-4)


def test_n_replies_have_seeds_of_their_own():
    provider = Scripted(["a", "b", "c"])
    replies = LLM(provider).chat("x", n=3, seed=7)
    assert [r.text for r in replies] == ["a", "b", "c"]
    assert [r.sampling.seed for r in provider.requests] == [7, 8, 9]
    assert [r.text for r in scripted("a").complete("x", n=1)] == ["a"]


@pytest.mark.parametrize("options", [{"n": 0}, {"best_of": -1}, {"n": True}])
def test_counts_that_make_no_sense(options):
    with pytest.raises(RequestError, match="1 or more"):
        scripted("a").complete("x", **options)


# ----------------------------------------------------------------------------- requests


TOOLS = [{"type": "function", "function": {"name": "f"}}]


# LC-68
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tools": TOOLS, "tool_choice": "g"}, "must be one of 'auto', 'none', 'required', 'f'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'g'"),
        ({"tools": TOOLS, "tool_choice": {"type": "x"}}, "None"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tools": [{"type": "retrieval"}]}, "only functions"),
        ({"tools": [{"function": {"name": ""}}]}, "needs a name"),
        ({"tools": [*TOOLS, *TOOLS]}, "two tools"),
        ({"tools": "[{"}, "not JSON"),  # LAI-41
        ({"stop": 3}, "stop is 3"),
        ({"stop": ["a", 3]}, "stop"),
        ({"schema": {}, "choices": ["a"]}, "cannot be used together"),
        ({"schema": {"type": 3}}, "#/type"),
    ],
)
def test_wrong_requests_are_refused_before_any_token(options, said):
    provider = Scripted(["never"])
    with pytest.raises(RequestError, match=said):
        LLM(provider).chat("x", **options)
    assert provider.requests == []


# LC-68, LC-69
def test_what_is_accepted_in_several_forms():
    provider = Scripted(["a"] * 9)
    llm = LLM(provider)
    llm.chat("x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "f"}})
    llm.chat("x", stop="END")
    llm.chat("x", stop=["END", "", "\n\n"])
    llm.chat(
        [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None},
        ]
    )
    assert provider.requests[0].tool_choice == "f"
    assert provider.requests[1].sampling.stop == ("END",)
    assert provider.requests[2].sampling.stop == ("END", "\n\n")
    assert provider.requests[3].prompt[0].text == "hi"


# LC-67
def test_one_constraint_at_a_time_and_each_kind():
    for options, constraint in (
        ({"schema": {"type": "string"}}, Schema({"type": "string"})),
        ({"schema": int}, Schema({"type": "integer"}, int)),
        ({"regex": "a"}, Regex("a")),
        ({"choices": ["a"]}, Choices(("a",))),
        ({"grammar": "start: x"}, Grammar("start: x")),
    ):
        provider = Scripted(["1"])
        LLM(provider).chat("x", **options)
        assert provider.requests[0].constraint == constraint


def test_parsed_values_follow_the_constraint():
    assert scripted('{"a": 1}').chat("x", schema={}).parsed == {"a": 1}
    assert scripted("[1, 2]").chat("x", schema=set[int]).parsed == {1, 2}
    assert scripted("yes").chat("x", choices=["yes"]).parsed == "yes"
    assert scripted('{"a": ').chat("x", schema={}).parsed is None
    assert scripted("1 2 3").chat("x", schema=int, max_tokens=1).parsed is None  # cut
    reply = scripted("[1]").chat("x", schema=set[int])
    assert reply.to_dict()["parsed"] == [1]
