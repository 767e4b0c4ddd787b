"""What a server does beside answering: tokens, counts, vectors, scores, templates, discovery."""

import base64
import math
import re
import struct
import threading

import numpy as np
import pytest
from support.wire import Asked, Wire, answer, chunk, served, stream

from llm_magic.chat.exchanges import shorter
from llm_magic.errors import (
    ContextOverflowError,
    ModelNotFoundError,
    ModelWarning,
    RemoteError,
    RequestError,
    UnsupportedError,
)
from llm_magic.events import Message, Prefill, Token, ToolCall, Top
from llm_magic.llm import LLM
from llm_magic.provider import Request
from llm_magic.providers.http.alternation import EXCHANGE, is_plain, reshaped
from llm_magic.providers.http.connect import connect
from llm_magic.providers.http.text import vocabulary_bytes
from llm_magic.providers.http.vectors import estimate, judged, yes_share

OK = stream(chunk("ok"))


def tokens_route(asked: Asked) -> bytes:
    """llama-server's /tokenize over words: one token each, with a BOS where it is asked for."""
    words = re.findall(r"\s*\S+", asked.body["content"])
    rows = [{"id": len(word.strip()), "piece": word} for word in words]
    if asked.body["add_special"]:
        rows.insert(0, {"id": 1, "piece": "<s>"})
    return answer({"tokens": rows})


def template_route(asked: Asked) -> bytes:
    """llama-server's /apply-template: `role: content` in lines, and the names of the tools."""
    lines = [f"{m['role']}: {m['content']}" for m in asked.body["messages"]]
    names = [tool["function"]["name"] for tool in asked.body.get("tools", [])]
    return answer({"prompt": "\n".join(["tools " + " ".join(names), *lines, "assistant:"])})


def detokenize_route(asked: Asked) -> bytes:
    return answer({"content": " ".join("w" * i for i in asked.body["tokens"])})


LLAMA = {"/tokenize": tokens_route, "/apply-template": template_route,
         "/detokenize": detokenize_route}  # fmt: skip


# ----------------------------------------------------------------------------- tokens


def test_a_text_becomes_tokens_with_their_bytes() -> None:  # LB-60
    with served(routes=LLAMA, dialect="llama.cpp") as (wire, llm):
        pieces = llm.tokenize("two words")
        assert [(p.id, p.bytes) for p in pieces] == [(1, b"<s>"), (3, b"two"), (5, b" words")]
        assert pieces[0].special  # it is another token where control tokens are plain text
        assert [a.body["parse_special"] for a in wire.posts] == [True, False]
        assert llm.detokenize([2, 3]) == "ww www"


def test_a_token_may_be_half_a_character() -> None:
    def route(asked: Asked) -> bytes:
        return answer({"tokens": [{"id": 5, "piece": [0xE2, 0x9C]}, {"id": 6, "piece": [0x85]}]})

    with served(routes={"/tokenize": route}, dialect="llama.cpp") as (_, llm):
        assert b"".join(p.bytes for p in llm.tokenize("✅")).decode() == "✅"


@pytest.mark.parametrize(
    ("written", "own"),
    [("Ġcat", b" cat"), ("▁cat", b" cat"), ("<0x0A>", b"\n"),
     ("âľħ", "✅".encode()), ("日", "日".encode())],
)  # fmt: skip
def test_tokens_as_a_vocabulary_writes_them(written, own) -> None:
    assert vocabulary_bytes(written) == own


def test_vllm_counts_a_chat_with_its_template() -> None:  # LB-60
    def route(asked: Asked) -> bytes:
        if "messages" in asked.body:
            assert asked.body["add_generation_prompt"] is True
            assert [t["function"]["name"] for t in asked.body["tools"]] == ["f"]
            return answer({"count": 3, "tokens": [7, 8, 9]})
        return answer({"count": 2, "tokens": [7, 8], "token_strs": ["Ġa", "b"]})

    routes = {"/tokenize": route, "/detokenize": answer({"prompt": "the prompt"})}
    with served(routes=routes, dialect="vllm") as (_, llm):
        prompt = llm.render([{"role": "user", "content": "Hi"}], tools=[{"name": "f"}])
        assert (prompt.ids, prompt.text) == ((7, 8, 9), "the prompt")
        assert [p.bytes for p in llm.tokenize("x")] == [b" a", b"b"]


def test_a_count_is_that_of_the_template_with_tools() -> None:  # LB-60, LB-53
    with served(routes=LLAMA, dialect="llama.cpp") as (_, llm):
        request = Request((Message("user", "one two"),))
        assert llm.provider.count(request) == 6  # BOS, "tools", the words, "assistant:"
        tools = llm.render([{"role": "user", "content": "one two"}], tools=[{"name": "f"}])
        assert tools.text.startswith("tools f\n")
        assert len(tools.ids) == 7


def test_a_server_without_the_routes_says_so() -> None:  # LB-60
    with served(OK) as (wire, llm):
        with pytest.raises(UnsupportedError, match="does not support 'tokenize'"):
            llm.tokenize("x")
        with pytest.raises(UnsupportedError, match="has no route"):
            llm.render([{"role": "user", "content": "Hi"}])
        assert wire.posts == []
    with served(dialect="llama.cpp") as (_, llm), pytest.raises(UnsupportedError):
        llm.tokenize("x")  # an old llama-server: 404 "File Not Found"
    broken = {"/tokenize": answer({"error": {"message": "out of paper"}}, 500)}
    with (
        served(routes=broken, dialect="llama.cpp") as (_, llm),
        pytest.raises(RemoteError, match="out of paper"),
    ):
        llm.tokenize("x")


# ----------------------------------------------------------------------------- given tokens


def test_an_answer_that_begins_with_a_text_continues_the_rendered_prompt() -> None:
    done = {"choices": [{"text": " the rest", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 8, "completion_tokens": 2}}  # fmt: skip
    with served(answer(done), routes=LLAMA, dialect="llama.cpp") as (wire, llm):
        reply = llm.chat("Hi", given="So we")
        sent = wire.posts[-1]
    assert (reply.text, reply.usage.prompt) == ("So we the rest", 6)
    assert [t.forced for t in reply.tokens] == [True, True, False]
    assert sent.path == "/v1/completions"
    assert sent.body["prompt"][-2:] == [2, 2]
    with served(OK) as (_, llm), pytest.raises(UnsupportedError):
        llm.chat("Hi", given="So we")


def test_a_reply_with_ids_can_branch() -> None:
    from llm_magic import branching

    logprobs = {"content": [
        {"id": 4, "token": "one", "bytes": [111], "logprob": -0.1, "top_logprobs": [
            {"id": 4, "token": "o", "bytes": [111], "logprob": -0.1},
            {"id": 9, "token": "t", "bytes": [116], "logprob": -2.0}]}]}  # fmt: skip
    part = {"choices": [{"delta": {"content": "o"}, "logprobs": logprobs}]}
    rest = {"choices": [{"text": "wo", "finish_reason": "stop"}]}
    with served(stream(part), answer(rest), routes=LLAMA, dialect="llama.cpp") as (wire, llm):
        reply = llm.chat("Hi", logprobs=2)
        assert reply.prompt == "tools \nuser: Hi\nassistant:"
        kept = branching.branch(reply, 0, None, llm)
        assert kept.branches[0][1].text == "two"
        assert wire.posts[-1].body["prompt"] == [*reply.prompt_ids, 9]


# ----------------------------------------------------------------------------- scores


def test_a_text_is_scored_where_the_server_echoes_it() -> None:
    logprobs = {"tokens": ["a", " b", "x"], "token_logprobs": [None, -0.5, -3.0],
                "top_logprobs": [None, {" b": -0.5, " c": -1.0}, {"x": -3.0}]}  # fmt: skip
    done = {"choices": [{"text": "a bx", "logprobs": logprobs}]}
    with served(answer(done), dialect="vllm") as (wire, llm):
        tokens = llm.provider.score([5, 6], 2)
        body = wire.posts[-1].body
    assert (body["prompt"], body["echo"], body["max_tokens"]) == ([5, 6], True, 1)
    assert [(t.id, t.logprob, t.rank) for t in tokens] == [(5, None, None), (6, -0.5, 1)]
    assert all(t.forced for t in tokens)
    with served(OK, dialect="llama.cpp") as (_, llm), pytest.raises(UnsupportedError):
        llm.score("x")  # llama-server has no echo


def test_an_echo_that_is_missing_is_an_error_and_an_echoed_text_without_scores_is_marked() -> None:
    done = {"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-1.0]}}]}
    with (
        served(answer(done), dialect="vllm") as (_, llm),
        pytest.raises(RemoteError, match="did not echo the prompt: 1 tokens for 2 ids"),
    ):
        llm.provider.score([5, 6])
    text = answer({"choices": [{"text": " c", "finish_reason": "stop"}]})
    with served(text, routes=LLAMA, dialect="llama.cpp") as (_, llm):
        reply = llm.complete("aa b", echo=True)
    assert reply.text == "aa b c"
    assert [t.logprob for t in reply.tokens[:3]] == [None] * 3  # missing, not zero


# ----------------------------------------------------------------------------- vectors


def vectors_route(calls: list, cap: int | None = None):
    """An embedding route: one vector [length, index] a text, as base64."""

    def route(asked: Asked) -> bytes:
        texts = asked.body["input"]
        calls.append(texts)
        if cap is not None and sum(len(t.split()) + 1 for t in texts) > cap:
            return answer({"error": {"message": "input is too large to process"}}, 500)
        rows = [
            {"index": i, "embedding": base64.b64encode(struct.pack("<2f", len(t), i)).decode()}
            for i, t in enumerate(texts)
        ]
        return answer({"data": rows[::-1]})  # the order is not promised

    return route


def test_vectors_are_exact_and_in_order() -> None:  # LB-64
    calls: list = []
    with served(routes={"/v1/embeddings": vectors_route(calls)}, dialect="llama.cpp") as (
        wire,
        llm,
    ):
        found = llm.embed(["a", "bbb"], normalize=False)
        assert wire.posts[-1].body["encoding_format"] == "base64"
        assert wire.posts[-1].body["embd_normalize"] == -1  # raw: what is divided is divided here
        unit = llm.embed(["a", "bbb"])
    assert found.dtype == np.float32
    assert found.tolist() == [[1.0, 0.0], [3.0, 1.0]]
    assert np.allclose(np.linalg.norm(unit, axis=1), 1.0)


def test_no_texts_need_no_request() -> None:  # LB-61, LB-65
    with served() as (wire, llm):
        assert llm.embed([]).shape[0] == 0
        assert llm.rerank("query", []) == []
        assert wire.posts == []


def test_batches_fit_the_window_by_an_estimate() -> None:  # LB-62, LB-63
    assert [estimate(t) for t in ("", "a", "abc", "abcd")] == [1, 1, 1, 2]
    calls: list = []
    routes = {"/v1/embeddings": vectors_route(calls)}
    with served(routes=routes) as (_, llm):
        llm.embed(["x"] * 150)
        assert [len(c) for c in calls] == [150]  # no cap: one batch
        calls.clear()
        llm.provider.vectors.cap = 10_000
        llm.embed(["x"] * 150)
        assert [len(c) for c in calls] == [64, 64, 22]
        calls.clear()
        llm.provider.vectors.cap = 10
        llm.embed(["x" * 12] * 5)  # about 4 tokens each
        assert [len(c) for c in calls] == [2, 2, 1]


def test_an_estimate_over_the_cap_is_counted_and_what_is_too_long_is_cut_or_refused() -> None:
    calls: list = []  # LB-62
    routes = {"/v1/embeddings": vectors_route(calls), **LLAMA}
    with served(routes=routes, dialect="llama.cpp") as (_, llm):
        llm.provider.vectors.cap = 6
        long_word = "x" * 30  # an estimate of 10, but two tokens with the BOS
        assert llm.embed([long_word]).shape == (1, 2)
        assert calls == [[long_word]]
        words = "aaa bbb ccc ddd eee fff ggg"
        with pytest.raises(ContextOverflowError, match="text 0 has 8 tokens, the server takes 6"):
            llm.embed([words])
        with pytest.warns(ModelWarning, match="8 tokens and was cut to 6"):
            llm.embed([words], truncate=True)
        assert calls[-1] == ["www www www www www"]  # five words and the BOS


def test_a_batch_that_is_too_long_goes_again_by_exact_counts() -> None:  # LB-62
    calls: list = []
    routes = {"/v1/embeddings": vectors_route(calls, cap=8), **LLAMA}
    with served(routes=routes, dialect="llama.cpp") as (_, llm):
        llm.provider.vectors.cap = 8
        texts = ["a b c", "d e f", "g h i"]  # an estimate of 2 each, 4 with the BOS in truth
        assert llm.embed(texts).shape == (3, 2)
        assert [len(c) for c in calls] == [3, 2, 1]
    other = answer({"error": {"message": "no"}}, 400)
    with (
        served(routes={"/v1/embeddings": other}) as (_, llm),
        pytest.raises(RemoteError, match="400: no"),
    ):
        llm.embed(["x"])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([{"index": 0, "embedding": "!!"}], "llama-server b4700 or newer, vLLM 0.6 or newer"),
        ([{"index": 0, "embedding": None}], "cannot be read"),
        ([{"index": 0, "embedding": base64.b64encode(b"abc").decode()}], "cannot be read"),
        ([], "sent 0 vectors for 1 texts"),
        ([{"index": 0}, {"index": 1}], "sent 2 vectors for 1 texts"),
        ([{"index": 3, "embedding": [1.0]}], "not numbered"),
    ],
)
def test_vectors_that_cannot_be_read_say_why(data, says) -> None:  # LB-64
    with (
        served(routes={"/v1/embeddings": answer({"data": data})}) as (_, llm),
        pytest.raises(RemoteError, match=says),
    ):
        llm.embed(["x"])


def test_lists_of_numbers_are_vectors_too_and_pooling_is_the_servers() -> None:
    data = [{"index": 0, "embedding": [0.5, -1.5]}]
    with served(routes={"/v1/embeddings": answer({"data": data})}) as (_, llm):
        assert llm.embed(["x"], normalize=False).tolist() == [[0.5, -1.5]]
        with pytest.raises(UnsupportedError, match="pools as it was started"):
            llm.embed(["x"], pooling="mean")


# ----------------------------------------------------------------------------- ranking


def test_scores_of_a_rerank_route_come_in_the_order_of_the_documents() -> None:  # LB-65
    rows = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": -2.5}]
    with served(routes={"/v1/rerank": answer({"results": rows})}) as (wire, llm):
        assert llm.provider.rerank("q", ["a", "b"]) == [-2.5, 0.9]
        assert [r.index for r in llm.rerank("q", ["a", "b"])] == [1, 0]
        assert wire.posts[-1].body["documents"] == ["a", "b"]


def test_pairs_by_the_embedding_route() -> None:  # LB-65
    asked: list = []

    def route(a: Asked) -> bytes:
        asked.extend(a.body["input"])
        rows = [{"index": i, "embedding": [float(i) - 3, 9.0]} for i in range(len(a.body["input"]))]
        return answer({"data": rows})

    with served(routes={"/v1/embeddings": route}) as (wire, llm):
        vectors = llm.provider.vectors
        assert vectors.rerank_pairs("q", ["a", "b"]) == [-3.0, -2.0]
        assert asked == ["q</s></s>a", "q</s></s>b"]
        assert vectors.rerank_pairs("q", []) == []
        wire.routes["/v1/embeddings"] = answer({"data": [{"index": 0, "embedding": []}]})
        with pytest.raises(RemoteError, match="empty vector for document 0"):
            vectors.rerank_pairs("q", ["a"])


def first_token(*alternatives: tuple[str, float]) -> tuple[Token, ...]:
    tops = tuple(Top(None, text.encode(), math.log(p)) for text, p in alternatives)
    return (Token(None, tops[0].bytes, tops[0].logprob, 1, tops),)


@pytest.mark.parametrize(
    ("alternatives", "score"),
    [
        ([("yes", 0.6), ("no", 0.2)], 0.75),
        ([(" Yes", 0.5), ("yes", 0.3), ("NO ", 0.1), ("no", 0.5)], 0.5),
        ([("Yes", 0.4), ("x", 0.2)], 0.4),
        ([("no", 0.4)], 0.0),
        ([("maybe", 0.9)], None),
    ],
)
def test_the_share_of_yes(alternatives, score) -> None:  # LB-66
    found = yes_share(first_token(*alternatives))
    assert found is None if score is None else math.isclose(found, score)


def test_a_chat_model_ranks_by_its_yes() -> None:  # LB-66
    seen: list[Request] = []
    lock, busy, most = threading.Lock(), [0], [0]
    barrier = threading.Barrier(8)

    def ask(request: Request) -> tuple[Token, ...]:
        with lock:
            seen.append(request)
            busy[0] += 1
            most[0] = max(most[0], busy[0])
        barrier.wait(20)
        with lock:
            busy[0] -= 1
        good = "good" in request.messages[0].text
        return first_token(("yes", 0.9 if good else 0.1), ("no", 0.1 if good else 0.9))

    documents = [f"{'good' if i == 3 else 'bad'} {i}" for i in range(16)]
    scores = judged(ask, "q", documents)
    assert [i for i, s in enumerate(scores) if s > 0.5] == [3]
    assert most[0] == 8
    request = seen[0]
    assert (request.sampling.max_tokens, request.sampling.temperature) == (1, 0.0)
    assert (request.logprobs, request.thinking) == (20, False)
    assert judged(ask, "q", []) == []


def test_without_any_yes_or_no_the_scores_say_nothing() -> None:  # LB-66
    other = first_token(("maybe", 0.5))
    with pytest.raises(RemoteError, match="use a reranking model, or a larger chat model"):
        judged(lambda request: other, "q", ["a", "b"])
    mixed = iter([other, first_token(("yes", 0.8), ("no", 0.2))])
    lock = threading.Lock()

    def ask(request: Request) -> tuple[Token, ...]:
        with lock:
            return next(mixed)

    assert sorted(judged(ask, "q", ["a", "b"])) == pytest.approx([0.0, 0.8])


def test_a_server_without_a_rerank_route_is_asked_by_chat() -> None:  # LB-66
    top = [{"token": "Yes", "logprob": math.log(0.6)}, {"token": "No", "logprob": math.log(0.2)}]
    part = {"choices": [{"delta": {"content": "Yes"}, "logprobs": {"content": [
        {"token": "Yes", "logprob": math.log(0.6), "top_logprobs": top}]}}]}  # fmt: skip
    missing = answer({"error": {"message": "File Not Found"}}, 404)
    with served(stream(part), routes={"/v1/rerank": missing}) as (wire, llm):
        assert llm.rerank("q", ["a"])[0].score == pytest.approx(0.75)
        llm.rerank("q", ["a"])
        assert sum(a.path == "/v1/rerank" for a in wire.posts) == 1  # it is not asked again


# ----------------------------------------------------------------------------- templates


TALK = (
    Message("system", "Be brief."),
    Message("user", "Weather?"),
    Message("assistant", None, calls=(ToolCall("a", "weather", '{"city": "Oslo"}'),)),
    Message("tool", "rain", call_id="a"),
    Message("user", "Thanks."),
)


def refusing(*refused: str):
    """A chat route that refuses some roles, and counts what it was asked."""

    def route(asked: Asked) -> bytes | list:
        if {m["role"] for m in asked.body["messages"]} & set(refused):
            return answer({"error": {"message": "roles must alternate"}}, 500)
        if asked.body["max_tokens"] == 1:
            return answer({"choices": [{"message": {"content": "x"}}]})
        return OK

    return route


def roles(asked: Asked) -> list[str]:
    return [m["role"] for m in asked.body["messages"]]


def test_a_template_that_takes_tools_gets_them_as_they_are() -> None:  # LB-50, LB-51
    with served(refusing()) as (wire, llm):
        llm.chat("Hi")
        assert len(wire.posts) == 1  # a plain question needs no probe
        llm.chat(TALK)
        probe, talk = wire.posts[1:]
        assert (probe.body["max_tokens"], probe.body["stream"]) == (1, False)
        assert [m.get("tool_calls") is not None for m in probe.body["messages"]].count(True) == 1
        assert len(EXCHANGE[2].calls) == 2
        assert roles(talk) == ["system", "user", "assistant", "tool", "user"]
        llm.chat(TALK)
        assert len(wire.posts) == 4  # one probe a model
        assert llm.provider._alternation.reshapes is False


def test_a_template_that_refuses_tools_gets_them_as_text() -> None:  # LB-51, LB-52
    with served(refusing("tool")) as (wire, llm):
        llm.chat(TALK)
        assert llm.provider._alternation.reshapes is True
        sent = wire.posts[-1].body["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
    assert "weather" in sent[2]["content"]
    assert '"city": "Oslo"' in sent[2]["content"]
    assert sent[3]["content"].startswith("Result of weather:\nrain")
    assert sent[3]["content"].endswith("\nThanks.")


def test_a_template_that_refuses_both_gets_what_was_asked() -> None:  # LB-51
    with served(refusing("tool", "user")) as (wire, llm):
        with pytest.raises(RemoteError, match="roles must alternate"):
            llm.chat(TALK)
        assert llm.provider._alternation.reshapes is False
        assert roles(wire.posts[-1]) == ["system", "user", "assistant", "tool", "user"]


def test_a_probe_that_fails_for_another_reason_decides_nothing() -> None:  # LB-51
    busy = answer({"error": {"message": "later"}}, 429)
    answers = [busy, OK, answer({"choices": [{"message": {"content": "x"}}]}), OK]
    with served(*answers) as (_, llm):
        llm.provider.sender.retries = type(llm.provider.sender.retries)(attempts=1)
        assert llm.chat(TALK).text == "ok"
        assert llm.provider._alternation.reshapes is None  # asked again by the next request
        llm.chat(TALK)
        assert llm.provider._alternation.reshapes is False


def test_requests_at_once_send_one_probe() -> None:  # LB-50
    with served(refusing("tool")) as (wire, llm):
        threads = [threading.Thread(target=llm.chat, args=(TALK,)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sum(a.body["max_tokens"] == 1 for a in wire.posts) == 2  # as it is, and reshaped
        assert len(wire.posts) == 8


def test_a_count_is_that_of_the_reshaped_messages() -> None:  # LB-53
    routes = LLAMA | {"/v1/chat/completions": refusing("tool")}
    with served(routes=routes, dialect="llama.cpp") as (wire, llm):
        prompt = llm.render(list(TALK))
        applied = [a for a in wire.posts if a.path == "/apply-template"]
        assert roles(applied[-1]) == ["system", "user", "assistant", "user"]
        assert llm.provider.count(Request(TALK)) == len(prompt.ids)


def test_reshaped_messages_alternate_whatever_came() -> None:  # LB-52
    late = [Message("system", "late"), Message("assistant", ""), Message("user", "c")]
    tool = Message("tool", "t", name="f")
    messages = [Message("system", "a"), Message("user", "b"), *late, tool]
    found = reshaped(messages)
    assert [m.role for m in found] == ["system", "user"]
    assert found[1].text == "b\nlate\nc\nResult of f:\nt"
    assert is_plain([Message("system", "a"), Message("user", "b")])
    assert not is_plain([Message("user", "a"), Message("user", "b")])


def test_tools_are_told_in_the_text_where_the_template_knows_none() -> None:
    props = {"default_generation_settings": {"n_ctx": 512}, "chat_template": "{{ messages }}"}
    said = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    models = {"data": [{"id": "m", "owned_by": "llamacpp"}]}
    with served(stream(chunk(said)), dialect=None, models=models,
                routes={"/props": answer(props)}) as (wire, llm):  # fmt: skip
        reply = llm.chat("Hi", tools=[{"name": "f", "description": "does it"}])
        body = wire.posts[-1].body
    assert "tools" not in body
    assert "does it" in body["messages"][0]["content"]
    assert [c.name for c in reply.calls] == ["f"]
    assert reply.finish_reason == "tool_calls"


# ----------------------------------------------------------------------------- the window


HISTORY = (
    Message("system", "s"),
    Message("user", "1"),
    Message("assistant", None, calls=(ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))),
    Message("tool", "x", call_id="a"),
    Message("tool", "y", call_id="b"),
    Message("assistant", "answer 1"),
    Message("user", "2"),
    Message("assistant", None, calls=(ToolCall("c", "f", "{}"),)),
    Message("tool", "z", call_id="c"),
    Message("assistant", "answer 2"),
    Message("user", "3"),
)


def test_calls_go_first_then_the_oldest_exchanges() -> None:  # LB-70
    found = [[m.text or "call" for m in messages] for messages in shorter(HISTORY)]
    assert found[1:] == [
        ["s", "1", "answer 1", "2", "call", "z", "answer 2", "3"],
        ["s", "1", "answer 1", "2", "answer 2", "3"],
        ["s", "2", "answer 2", "3"],
        ["s", "3"],
    ]
    assert shorter(HISTORY)[0] == HISTORY


@pytest.mark.parametrize("numbers", [True, False])
def test_a_long_conversation_is_trimmed_until_the_server_takes_it(numbers) -> None:  # LB-70
    messages = [Message("user" if i % 2 == 0 else "assistant", f"{i} " + "word " * 30)
                for i in range(21)]  # fmt: skip

    def route(asked: Asked) -> bytes | list:
        n = sum(len(m["content"]) for m in asked.body["messages"])
        if n <= 1000:
            return OK
        more = {"n_prompt_tokens": n, "n_ctx": 1002} if numbers else {}
        said = {"message": "exceeds the context size", "type": "exceed_context_size_error", **more}
        return answer({"error": said}, 400)

    with served(route) as (wire, llm):
        with pytest.raises(ContextOverflowError):
            llm.chat(messages, max_tokens=2)
        wire.asked.clear()
        assert llm.chat(messages, max_tokens=2, trim=True).text == "ok"
        kept = wire.posts[-1].body["messages"]
        assert kept[-1]["content"] == messages[-1].text
        assert 1 < len(kept) < 8
        assert len(wire.posts) <= (3 if numbers else 11)


# ----------------------------------------------------------------------------- discovery


def test_a_server_is_recognised_by_what_it_says() -> None:
    rows = {"llamacpp": "llama.cpp", "vllm": "vllm", "sglang": "sglang", "library": "ollama",
            "someone": "openai", "organization_owner": "lmstudio"}  # fmt: skip
    for owner, name in rows.items():
        models = {"data": [{"id": "org/m", "owned_by": owner, "max_model_len": 77}]}
        with Wire(OK, models=models) as wire:
            remote = connect([wire.url])
            assert remote.server.dialect.name == name
            assert (remote.server.ctx, remote.status().ctx) == (77, 77)
            assert remote.model == f"org/m@127.0.0.1:{wire.port}"
            remote.close()


def test_the_model_of_an_address_must_be_there() -> None:
    models = {"data": [{"id": f"model-{i}", "owned_by": "vllm"} for i in range(3)]}
    with Wire(OK, models=models) as wire:
        with pytest.raises(RequestError, match=r"several models; name one: .*#MODEL \(model-0, "):
            connect([wire.url])
        with pytest.raises(ModelNotFoundError, match="no model 'modle-2'; it has model-2"):
            connect([f"{wire.url}#modle-2"])
        remote = connect([f"{wire.url}#model-1"])
        LLM(remote).chat("Hi")
        assert wire.posts[-1].body["model"] == "model-1"
        remote.close()


def test_folders_of_the_servers_machine_are_no_part_of_a_name() -> None:
    models = {"data": [{"id": "/srv/someone/models/tiny.gguf", "owned_by": "llamacpp"}]}
    part = {**chunk("ok"), "model": "/srv/someone/models/tiny.gguf"}
    with Wire(stream(part), models=models) as wire:
        remote = connect([wire.url])
        reply = LLM(remote).chat("Hi")
        assert remote.model == f"tiny@127.0.0.1:{wire.port}"
        assert reply.answered_by == f"{wire.url}#tiny"
        assert "someone" not in str(reply.to_dict())
        remote.close()


def test_a_reply_is_saved_with_who_answered() -> None:
    from llm_magic.chat.reply import Reply

    with served(OK) as (wire, llm):
        reply = llm.chat("Hi")
    again = Reply.from_dict(reply.to_dict())
    assert again.answered_by == reply.answered_by == f"{wire.url}#m"


def test_the_best_of_several_needs_logprobs() -> None:
    def probs(value: float):
        entry = {"token": "a", "logprob": value}
        return stream({"choices": [{"delta": {"content": f"{value}"},
                                    "logprobs": {"content": [entry]}}]})  # fmt: skip

    with served(probs(-2.0), probs(-0.5), probs(-3.0)) as (wire, llm):
        assert llm.chat("Hi", best_of=3).text == "-0.5"
        assert all(a.body["logprobs"] for a in wire.posts)


def test_several_answers_are_written_side_by_side() -> None:
    both = threading.Barrier(3)

    def route(asked: Asked) -> list:
        both.wait(20)  # would never come if they were asked for one after the other
        return OK

    with served(route) as (_, llm):
        assert [r.text for r in llm.chat("Hi", n=3)] == ["ok"] * 3


def test_progress_reaches_the_reply_of_an_answer_that_was_cancelled() -> None:
    from support.wire import HANG, event, head

    part = {**chunk(), "prompt_progress": {"total": 9, "cache": 3, "processed": 4}}
    with (
        served([head(), event(part), HANG], dialect="llama.cpp") as (_, llm),
        llm.stream([{"role": "user", "content": "Hi"}]) as events,
    ):
        assert next(events) == Prefill(4, 9, 3)
        events.cancel()
        list(events)
        assert (events.reply.usage.prompt, events.reply.usage.cached) == (9, 3)
