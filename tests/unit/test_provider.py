"""What a provider must offer, what a missing capability says, and tokens that an answer begins
with."""

import tracemalloc
from dataclasses import replace

import pytest

from llm_magic import branching
from llm_magic.chat.parsing.router import Patterns
from llm_magic.chat.stream import Stream
from llm_magic.engine.load import sampling_of
from llm_magic.errors import RequestError, UnsupportedError
from llm_magic.events import Sampling
from llm_magic.llm import LLM
from llm_magic.models.table import PACKAGED
from llm_magic.provider import CAPABILITIES, Provider, Request
from llm_magic.providers.local import Local
from llm_magic.providers.scripted import Scripted


class Limited(Scripted):
    """Chats, and can do nothing else."""

    capabilities = frozenset({"chat"})


def test_the_providers_have_every_member_of_the_protocol() -> None:
    members = {name for name in dir(Provider) if not name.startswith("_")}
    assert isinstance(Scripted([]), Provider)
    # What __init__ sets is not seen on the class.
    assert members - set(dir(Local)) == {"model"}
    assert Local.capabilities == CAPABILITIES


@pytest.mark.parametrize(
    ("call", "capability"),
    [
        (lambda llm: llm.complete("x"), "complete"),
        (lambda llm: llm.chat("x", logprobs=2), "logprobs"),
        (lambda llm: llm.chat("x", regex="a+"), "constraint"),
        (lambda llm: llm.chat("x", tools=[{"name": "f"}]), "tools"),
        (lambda llm: llm.tokenize("x"), "tokenize"),
        (lambda llm: llm.detokenize([1]), "tokenize"),
        (lambda llm: llm.score("x"), "score"),
        (lambda llm: llm.logprobs([1]), "score"),
        (lambda llm: llm.chat("x", given="words"), "given"),
    ],
)
def test_a_missing_capability_is_named_before_anything_is_asked(call, capability) -> None:
    llm = LLM(Limited(["an answer"]))
    with pytest.raises(UnsupportedError, match=f"does not support '{capability}'") as e:
        call(llm)
    assert e.value.capability == capability
    assert llm.provider.requests == []
    assert llm.chat("x").text == "an answer"


def test_an_answer_begins_with_the_given_tokens_and_goes_on_behind_them() -> None:
    llm = LLM(Scripted(["One two three.", " four", " four five"]))
    first = llm.chat("Count.")
    reply = llm.chat("Count.", given=first.tokens[:2])
    assert reply.text == "One two four"
    assert [t.forced for t in reply.tokens] == [True, True, False]
    assert (reply.usage.completion, reply.usage.prompt) == (3, first.usage.prompt)
    assert reply.messages == first.messages
    words = llm.chat("Count.", given="One two three")
    assert words.text == "One two three four five"
    assert sum(t.forced for t in words.tokens) == 3


def test_a_stop_string_counts_from_the_first_given_token_and_drops_the_rest() -> None:
    llm = LLM(Scripted([" three four"]))
    reply = llm.chat("Count.", given="One two", stop=["two three"])
    assert (reply.text, reply.finish_reason) == ("One ", "stop")
    assert [t.trimmed for t in reply.tokens] == [False, True]


def test_given_reasoning_stays_reasoning() -> None:
    llm = LLM(Scripted([" it over.</think>Yes."]))
    reply = llm.chat("Is it?", given="<think>Think")
    assert (reply.reasoning, reply.text) == ("Think it over.", "Yes.")


def test_given_must_be_a_text_or_tokens() -> None:
    llm = LLM(Scripted(["x"]))
    for wrong in (5, [1, 2], ["a"]):
        with pytest.raises(RequestError, match=r"given is .*; it must be a text or the tokens"):
            llm.chat("x", given=wrong)


def test_settings_of_the_model_hold_for_chats_until_others_are_asked_for() -> None:  # F262
    script = Scripted(["a", "b", "c"])
    script.defaults = Sampling(temperature=0.2, repeat_penalty=1.1)
    llm = LLM(script)
    assert llm.chat("x").sampling == Sampling(temperature=0.2, repeat_penalty=1.1, max_tokens=256)
    assert llm.chat("x", temperature=1.5).sampling.temperature == 1.5
    assert llm.complete("x").sampling == Sampling(temperature=0.0, max_tokens=256)


def test_penalties_of_the_model_do_not_keep_an_answer_from_repeating_the_prompt() -> None:
    script = Scripted(lambda request: "1818")
    script.defaults = Sampling(temperature=0.2, repeat_penalty=1.1)
    llm = LLM(script)
    assert llm.chat("In 1818?", temperature=0).sampling == Sampling(temperature=0, max_tokens=256)
    assert llm.chat("In 1818?", regex="[0-9]+").sampling.repeat_penalty is None
    assert llm.chat("x", temperature=0, repeat_penalty=1.3).sampling.repeat_penalty == 1.3


def test_a_branch_asks_for_the_rendered_prompt_and_the_given_tokens() -> None:
    llm = LLM(Scripted(["One two three.", " more"]))
    reply = llm.chat("Count.", logprobs=3)
    token = branching.choice(reply, 1, None)
    with branching.stream(llm, reply, branching.prefix(reply, 1, token)) as events:
        assert isinstance(events, Stream)
        list(events)
    request: Request = llm.provider.requests[-1]
    assert request.prompt == branching.rendered(reply)
    assert [t.id for t in request.given] == [reply.tokens[0].id, token.id]
    assert all(t.forced for t in request.given)
    assert events.reply.prompt == reply.prompt
    assert events.reply.messages == reply.messages


def test_a_reply_without_ids_cannot_branch() -> None:
    llm = LLM(Scripted(["One two."]))
    reply = llm.chat("Count.", logprobs=3)
    remote = [replace(t, id=None) for t in reply.tokens]
    with pytest.raises(RequestError, match="have no ids"):
        branching.stream(llm, reply, remote)


def test_min_tokens_holds_stop_strings_back() -> None:  # F256
    llm = LLM(Scripted(["a b c a b c a b", "a b c a b c a b", "a b"]))
    assert llm.chat("x", stop=["b"]).text == "a "
    reply = llm.chat("x", stop=["b"], min_tokens=3)
    assert (reply.text, reply.finish_reason) == ("a b c a ", "stop")
    assert llm.chat("x", stop=["b"], min_tokens=9).text == "a b"


def test_stop_strings_are_matched_in_linear_memory_and_have_a_limit() -> None:  # F311
    long = "ab" * 2047 + "c"
    tracemalloc.start()
    patterns = Patterns([long, "xyz"])
    assert patterns.hold("...ab") == 3
    assert patterns.hold("." + long[:-1]) == 1
    assert patterns.hold("abx") == 2
    assert patterns.hold("xyz") == 3  # whole: found, not held
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 100 * len(long)
    llm = LLM(Scripted(["x"]))
    with pytest.raises(RequestError, match=r"stop has a text of 5,000 characters; the limit is"):
        llm.chat("x", stop="a" * 5000)
    with pytest.raises(RequestError, match=r"stop is .* at most 64 texts"):
        llm.chat("x", stop=[str(i) for i in range(65)])


def test_a_file_recommends_sampling_settings() -> None:  # F262
    assert sampling_of({"general.sampling.temp": 0.20000000298}) == Sampling(temperature=0.2)
    metadata = {
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 7.5,
        "general.sampling.penalty_repeat": "high",
        "general.sampling.penalty_last_n": 128,
    }
    assert sampling_of(metadata) == Sampling(top_k=20, repeat_last_n=128)


def test_the_default_model_has_gentler_settings() -> None:  # F262
    assert PACKAGED[0].sampling == Sampling(temperature=0.05, top_p=0.9, repeat_penalty=1.1)
