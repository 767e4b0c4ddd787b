"""The remote provider against a real llama.cpp server with SmolLM2: the same text, ids and numbers
as from the file itself, and slots that are free again after every way to end a request."""

import json
import threading
import time
import urllib.request

import numpy as np
import pytest
from support.llama_server import CTX, Running, llama_server

from llm_magic import branching
from llm_magic.errors import (
    ContextOverflowError,
    RemoteConnectionError,
    RemoteError,
    UnsupportedError,
)
from llm_magic.events import Delta, Finish, Message, Prefill
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.providers.http.connect import connect

pytestmark = [pytest.mark.model, pytest.mark.peers]

SKY = [Message("user", "What color is the sky?")]  # no near ties on the way
QUESTION = [Message("user", "What is the capital of France?")]


@pytest.fixture(scope="module")
def server(smollm2_path):
    pytest.importorskip("xllamacpp")
    with llama_server(smollm2_path) as running:
        yield running


@pytest.fixture(scope="module")
def llm(server):
    remote = connect([server.url])
    yield LLM(remote)
    remote.close()


@pytest.fixture(scope="module")
def local():
    return hub.load("smollm2")


def busy(server: Running) -> int:
    """How many of its slots are at work, as the server itself says."""
    with urllib.request.urlopen(server.url.replace("/v1", "/slots")) as found:
        return sum(slot["is_processing"] for slot in json.load(found))


def becomes_free(server: Running) -> bool:
    for _ in range(400):
        if not busy(server):
            return True
        time.sleep(0.05)
    return False


def test_the_server_is_recognised_with_its_window_and_model(server, llm, smollm2_path) -> None:
    provider = llm.provider
    assert provider.server.dialect.name == "llama.cpp"
    assert provider.server.ctx == CTX // 2  # two slots
    assert provider.model.startswith(f"{smollm2_path.stem}@127.0.0.1:")
    assert str(smollm2_path.parent) not in repr(provider.status())
    assert provider.health()


def test_greedy_tokens_are_those_of_the_file(llm, local) -> None:
    ours = local.chat(SKY, temperature=0, max_tokens=8, logprobs=3)
    with llm.stream(SKY, temperature=0, max_tokens=8, logprobs=3) as stream:
        events = list(stream)
    reply = stream.reply
    assert reply.prompt_ids == ours.prompt_ids
    assert reply.prompt == ours.prompt
    assert reply.text == ours.text
    assert [t.id for t in reply.tokens] == [t.id for t in ours.tokens]
    assert [t.bytes for t in reply.tokens] == [t.bytes for t in ours.tokens]
    assert [t.rank for t in reply.tokens] == [1] * 8
    # llama.cpp rounds activations to eight bits: up to 0.2 from the file's exact values here.
    for theirs, mine in zip(reply.tokens, ours.tokens, strict=True):
        assert abs(theirs.logprob - mine.logprob) < 0.5
        assert len(theirs.top) == 3
    assert (reply.usage.prompt, reply.usage.completion) == (len(ours.prompt_ids), 8)
    assert (reply.finish_reason, reply.timings.decode_tps > 0) == ("length", True)
    kinds = [type(e) for e in events]
    assert kinds[0] is Prefill
    assert kinds[-9:] == [Delta] * 8 + [Finish]
    assert events[kinds.index(Delta) - 1].done == len(ours.prompt_ids)


def test_an_answer_that_ends_by_itself_ends_alike(llm, local) -> None:
    ours = local.chat("Hi", temperature=0, logprobs=1)
    reply = llm.chat("Hi", temperature=0, logprobs=1)
    assert (reply.text, reply.finish_reason) == (ours.text, "stop")
    assert [t.id for t in reply.tokens] == [t.id for t in ours.tokens]  # no end token either


def test_a_prompt_that_was_seen_before_comes_from_the_servers_cache(llm) -> None:
    llm.chat(QUESTION, temperature=0, max_tokens=1)
    again = llm.chat(QUESTION, temperature=0, max_tokens=1)
    assert 0 < again.usage.cached < again.usage.prompt
    fresh = llm.chat(QUESTION, temperature=0, max_tokens=1, reuse=False)
    assert (fresh.usage.cached, fresh.text) == (0, again.text)


def test_texts_ids_and_templates_are_those_of_the_file(llm, local) -> None:
    for text in ("Hello é ✅ x", "<|im_start|>user", "  two  blanks"):
        theirs, mine = llm.tokenize(text), local.tokenize(text)
        assert [(p.id, p.bytes) for p in theirs if not p.special] == [
            (p.id, p.bytes) for p in mine if not p.special
        ]
        assert [p.id for p in theirs] == [p.id for p in mine]
        assert [p.special for p in theirs] == [p.special for p in mine]
    assert llm.detokenize([p.id for p in llm.tokenize("Hello there")]) == "Hello there"
    theirs, mine = llm.render(QUESTION), local.render(QUESTION)
    assert (theirs.text, theirs.ids) == (mine.text, mine.ids)


def test_an_answer_may_begin_with_a_text_and_a_reply_may_branch(llm, local) -> None:
    options = {"temperature": 0, "max_tokens": 4}
    assert llm.chat(QUESTION, given="It is", **options).text == (
        local.chat(QUESTION, given="It is", **options).text
    )
    reply = llm.chat(QUESTION, logprobs=3, **options)
    branch = branching.branch(reply, 1, None, llm, max_tokens=4).branches[0][1]
    assert [t.id for t in branch.tokens[:2]] == [reply.tokens[0].id, reply.tokens[1].top[1].id]
    assert [t.forced for t in branch.tokens[:3]] == [True, True, False]


def test_ids_may_be_continued_and_a_text_too(llm, local) -> None:
    ids = [p.id for p in local.tokenize("The capital of France is")]
    assert llm.complete(ids, max_tokens=2).text == local.complete(ids, max_tokens=2).text
    text = llm.complete("The capital of France is", max_tokens=2, logprobs=2)
    assert text.text == local.complete("The capital of France is", max_tokens=2).text
    assert all(t.id is not None and len(t.top) == 2 for t in text.tokens)


def test_constraints_are_held(llm) -> None:
    assert llm.chat(QUESTION, choices="Paris|Rome", temperature=0).text in ("Paris", "Rome")
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    assert llm.chat(QUESTION, schema=schema, temperature=0, max_tokens=40).parsed == {"n": 7}
    assert llm.chat(QUESTION, grammar='root ::= "a" "b"', temperature=0).text == "ab"
    with pytest.raises(UnsupportedError, match="cannot hold an answer to regex"):
        llm.chat(QUESTION, regex="a+")


def test_what_this_server_cannot_do_is_said(llm) -> None:
    with pytest.raises(UnsupportedError, match="does not support 'score'"):
        llm.score("a text")  # llama-server has no echo with logprobs
    with pytest.raises(UnsupportedError, match="Start it with `--embeddings`"):
        llm.embed(["a"])
    with pytest.raises(ContextOverflowError, match="exceeds the available context size") as e:
        llm.chat("word " * 1200)
    assert (e.value.n_ctx, e.value.n_prompt > 1200) == (CTX // 2, True)


def test_a_conversation_that_is_too_long_is_trimmed(llm) -> None:
    messages = [Message("user" if i % 2 == 0 else "assistant", "word " * 400) for i in range(3)]
    reply = llm.chat(messages, temperature=0, max_tokens=2, trim=True)
    assert 400 < reply.usage.prompt < CTX // 2


def test_cancelling_frees_the_slot_of_the_server(server, llm) -> None:
    with llm.stream(QUESTION, max_tokens=900, temperature=0) as stream:
        while not isinstance(next(stream), Delta):
            pass
        assert busy(server) == 1
        threading.Thread(target=stream.cancel).start()
        rest = list(stream)
        assert rest[-1].reason == "cancelled"
        assert becomes_free(server)
    stream = llm.stream([Message("user", "word " * 400)], max_tokens=900)  # in its prompt
    next(stream)
    stream.close()
    assert becomes_free(server)
    for event in llm.stream(QUESTION, max_tokens=900):
        if isinstance(event, Delta):
            break
    del event
    assert becomes_free(server)


def test_several_at_once_have_their_own_answers(llm) -> None:
    replies = llm.chat("Say something.", n=3, temperature=1.0, seed=5, max_tokens=6)
    assert len({reply.sampling.seed for reply in replies}) == 3
    assert all(reply.usage.completion <= 6 for reply in replies)


def test_a_server_that_is_killed_keeps_what_it_said_and_another_takes_over(smollm2_path) -> None:
    pytest.importorskip("xllamacpp")
    with llama_server(smollm2_path) as first, llama_server(smollm2_path) as second:
        remote = connect([first.url, second.url])
        llm = LLM(remote)
        with llm.stream(QUESTION, max_tokens=900, temperature=0) as stream:
            texts = [e.text for e in (next(stream) for _ in range(6)) if isinstance(e, Delta)]
            where = {first.url: first, second.url: second}
            mine = where[stream.reply.answered_by.split("#")[0]]
            mine.kill()
            with pytest.raises(RemoteConnectionError) as e:
                list(stream)
        assert e.value.partial.text.startswith("".join(texts))
        assert isinstance(e.value, RemoteError)
        other = next(url for url in where if where[url] is not mine)
        reply = llm.chat(QUESTION, max_tokens=2, temperature=0)
        assert reply.answered_by.startswith(other)
        assert remote.sender.fleet.in_flight == 0
        remote.close()


def test_vectors_of_a_server_are_exact_and_raw(smollm2_path) -> None:
    pytest.importorskip("xllamacpp")
    with llama_server(smollm2_path, "embed") as running:
        remote = connect([running.url])
        llm = LLM(remote)
        raw = llm.embed(["a cat", "a dog", "mathematics"], normalize=False)
        unit = llm.embed(["a cat", "a dog", "mathematics"])
        assert raw.shape == (3, 576)
        assert np.all(np.linalg.norm(raw, axis=1) > 2)  # not divided by their lengths
        assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
        assert unit[0] @ unit[1] > unit[0] @ unit[2]
        remote.close()
