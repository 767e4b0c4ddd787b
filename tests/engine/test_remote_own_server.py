"""Local and remote give the same events: SmolLM2 in this process, and through our own server."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from llm_magic import branching
from llm_magic.errors import UnsupportedError
from llm_magic.events import CallDelta, CallDone, Delta, Event, Finish, Message, Prefill, Token
from llm_magic.hub import hub
from llm_magic.llm import LLM

pytestmark = pytest.mark.model

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
SKY = [Message("user", "What color is the sky?")]


@pytest.fixture(scope="module")
def local() -> LLM:
    return hub.load("smollm2")


@pytest.fixture(scope="module")
def remote(local) -> Iterator[LLM]:
    server = local.serve(port=0)
    llm = hub.connect(server.url, api_key=lambda: server.token, name="served")
    yield llm
    hub.unload("served")
    server.stop()


def sent(token: Token) -> Token:
    top = tuple(replace(a, allowed=True) for a in token.top)
    return replace(token, at=0.0, rank=None, masked=None, top=top)


def told(events: list[Event]) -> list[object]:
    """The events without what depends on the clock, and with pieces of text put together.

    The protocol has no field for a rank, for what a constraint forbade and for the share that it
    removed.
    """
    out: list[object] = []
    for event in events:
        match event:
            case Delta() | CallDelta():
                is_call = isinstance(event, CallDelta)
                kind, text = ("call", event.arguments) if is_call else (event.kind, event.text)
                plain = tuple(map(sent, event.tokens))
                if out and isinstance(out[-1], tuple) and out[-1][0] == kind:
                    out[-1] = (kind, out[-1][1] + text, out[-1][2] + plain)
                else:
                    out.append((kind, text, plain))
            case CallDone(index, call):
                out.append((index, call.name, call.arguments))
            case Finish(reason, usage):
                out.append((reason, usage.prompt, usage.completion))
            case Prefill(done, total):
                if done == total:  # how many steps it took depends on what the cache held
                    out.append(total)
    return out


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        (SKY, {"max_tokens": 12}),
        ("Say é ✅ 日本 and nothing else.", {"max_tokens": 16}),
        (SKY, {"choices": "blue|green"}),
        (SKY, {"regex": "[A-Z][a-z]+ [0-9]{2}"}),
        (SKY, {"schema": {"type": "object", "properties": {"color": {"enum": ["blue"]}},
                          "required": ["color"], "additionalProperties": False}}),
        ("Weather in Paris?", {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}),
        (SKY, {"given": "The sky", "max_tokens": 6}),
    ],
    ids=["plain", "characters", "choices", "regex", "schema", "tool", "given"],
)  # fmt: skip
def test_the_same_greedy_request_gives_the_same_events(local, remote, messages, options) -> None:
    asked = [Message("user", messages)] if isinstance(messages, str) else messages
    options = {"temperature": 0, "logprobs": 2, **options}
    found = []
    for llm in (local, remote):
        with llm.stream(asked, **options) as stream:
            found.append((told(list(stream)), stream.reply))
    (ours, mine), (theirs, reply) = found
    assert theirs == ours
    assert (reply.text, reply.parsed, reply.finish_reason) == (
        mine.text, mine.parsed, mine.finish_reason,
    )  # fmt: skip
    assert reply.prompt_ids == mine.prompt_ids
    assert reply.answered_by.endswith("/v1#smollm2")


def test_a_stop_string_ends_both(local, remote) -> None:
    options = {"temperature": 0, "max_tokens": 12, "stop": ["beautiful"]}
    ours, reply = local.chat(SKY, **options), remote.chat(SKY, **options)
    assert (reply.text, reply.finish_reason, reply.usage.completion) == (
        ours.text, ours.finish_reason, ours.usage.completion,
    )  # fmt: skip


def test_texts_and_ids_are_continued_alike(local, remote) -> None:
    ids = [p.id for p in local.tokenize("The capital of France is")]
    for prompt in ("The capital of France is", ids):
        ours = local.complete(prompt, max_tokens=3, logprobs=2, echo=True)
        reply = remote.complete(prompt, max_tokens=3, logprobs=2, echo=True)
        assert reply.text == ours.text
        assert [t.id for t in reply.tokens] == [t.id for t in ours.tokens]
        near = pytest.approx([t.logprob for t in ours.tokens[1:]], abs=1e-5)
        assert [t.logprob for t in reply.tokens[1:]] == near


def test_tokens_templates_and_scores_are_the_same(local, remote) -> None:
    text = "Hello é ✅ <|im_start|>"
    plain = [
        [(p.id, p.bytes) for p in llm.tokenize(text) if not p.special] for llm in (local, remote)
    ]
    assert plain[0] == plain[1]
    assert remote.tokenize(text)[-1].id == local.tokenize(text)[-1].id == 1
    assert remote.render(SKY).ids == local.render(SKY).ids
    ours, theirs = local.score("The sky is blue."), remote.score("The sky is blue.")
    assert [t.id for t in theirs.tokens] == [t.id for t in ours.tokens]
    assert theirs.tokens[0].logprob is None
    assert [t.logprob for t in theirs.tokens[1:]] == pytest.approx(
        [t.logprob for t in ours.tokens[1:]], abs=1e-5
    )


def test_choices_and_decisions_have_the_same_probabilities(local, remote) -> None:
    ours = local.score_choices(SKY, "blue|green|dark red")
    theirs = remote.score_choices(SKY, "blue|green|dark red")
    assert list(theirs) == list(ours)
    assert list(theirs.values()) == pytest.approx(list(ours.values()), abs=1e-4)
    with pytest.raises(UnsupportedError, match="'blue' is the beginning of 'blue sky'"):
        remote.score_choices(SKY, "blue|blue sky")


def test_a_reply_branches_over_the_wire(local, remote) -> None:
    options = {"temperature": 0, "max_tokens": 6, "logprobs": 3}
    found = []
    for llm in (local, remote):
        reply = llm.chat(SKY, **options)
        found.append(branching.branch(reply, 1, None, llm, max_tokens=4).branches[0][1])
    assert found[0].text == found[1].text
    assert [t.forced for t in found[0].tokens] == [t.forced for t in found[1].tokens]


def test_a_cancel_frees_the_slot_of_the_engine(local, remote) -> None:
    with remote.stream(SKY, max_tokens=2000, temperature=0) as stream:
        while not isinstance(next(stream), Delta):
            pass
        stream.cancel()
        assert list(stream)[-1].reason == "cancelled"
    for _ in range(200):
        if not local.status().running:
            break
        time.sleep(0.05)
    assert local.status().running == 0
