"""The loopback server over a model that plays a script: what is sent, in which order, to whom."""

import gc
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import httpx
import numpy as np
import openai
import psutil
import pytest
from support.servers import CHAT, client, frames, raw, served

from llm_magic.bench.served import compare
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import ContextOverflowError, EngineError, RequestError, UnsupportedError
from llm_magic.events import Piece
from llm_magic.extension_points import SERVE
from llm_magic.llm import LLM
from llm_magic.provider import RenderedPrompt
from llm_magic.providers.scripted import Scripted
from llm_magic.server import answers, running
from llm_magic.server.running import serve

NULL = {"type": "null"}
HELLO = "Hello there, friend."
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def stream_of(http: httpx.Client, path: str = "/v1/chat/completions", **body) -> list:
    answer = http.post(path, json={"stream": True, **body})
    assert answer.status_code == 200, answer.text
    return frames(answer.text)


def text_of(chunks: list) -> str:
    deltas = [c["choices"][0]["delta"] for c in chunks if c != "[DONE]" and c["choices"]]
    return "".join(d.get("content", "") for d in deltas)


def error_of(answer: httpx.Response) -> dict:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.fixture(scope="module")
def hello():
    with served(Scripted(lambda request: HELLO)) as pair:
        yield pair


@pytest.fixture
def official(hello):
    server, _ = hello
    with openai.OpenAI(base_url=server.url, api_key=server.token, max_retries=0) as client:
        yield client


# ----------------------------------------------------------------------------- order and shapes


def test_a_stream_begins_with_the_role_and_ends_with_the_reason_the_usage_and_the_marker(hello):
    """TG-60, TG-66, LC-61."""
    _, http = hello
    chunks = stream_of(http, **CHAT, stream_options={"include_usage": True})
    first, *middle, last, usage, end = chunks
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [set(c["choices"][0]["delta"]) for c in middle] == [{"content"}] * len(middle)
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == "stop"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + 5
    assert end == "[DONE]"
    assert text_of(chunks) == HELLO
    heads = {(c["id"], c["created"], c["model"], c["object"]) for c in chunks[:-1]}
    ((identity, _, model, kind),) = heads  # one id, one time, one model in the whole answer
    assert re.fullmatch(r"chatcmpl-\w+", identity)
    assert (model, kind) == ("scripted", "chat.completion.chunk")
    assert stream_of(http, **CHAT)[0]["id"] != identity


def test_usage_comes_in_a_stream_only_when_asked_for_and_always_without_one(hello):
    """TG-60, TG-63."""
    _, http = hello
    assert not any("usage" in c for c in stream_of(http, **CHAT) if c != "[DONE]")
    whole = http.post("/v1/chat/completions", json=CHAT).json()
    assert whole["usage"]["completion_tokens"] == 5
    assert whole["choices"][0]["message"]["content"] == HELLO


def test_streamed_and_whole_answers_are_the_same(official):
    ask = {"model": "scripted", "messages": CHAT["messages"], "logprobs": True, "top_logprobs": 3}
    whole = official.chat.completions.create(**ask).choices[0]
    pieces = [c.choices[0] for c in official.chat.completions.create(**ask, stream=True)]
    assert "".join(p.delta.content or "" for p in pieces) == whole.message.content == HELLO
    entries = [e for p in pieces if p.logprobs for e in p.logprobs.content]
    assert entries == whole.logprobs.content
    assert len(entries) == 5
    assert bytes(b for e in entries for b in e.bytes).decode() == HELLO
    assert all(len(e.top_logprobs) == 3 for e in entries)
    assert pieces[-1].finish_reason == whole.finish_reason == "stop"


def test_reasoning_and_calls_have_fields_of_their_own():
    """LC-61: call frames stand between the role and the reason."""
    call = '<tool_call>{"name": "weather", ', '"arguments": {"city": "Oslo"}}', "</tool_call>"
    answer = ["<think>Rain?</think>", *call]
    provider = Scripted(lambda request: answer, syntax=SYNTAXES["hermes"])
    with served(provider) as (_, http):
        ask = CHAT | {"tools": [WEATHER], "tool_choice": "auto"}
        whole = http.post("/v1/chat/completions", json=ask).json()["choices"][0]
        chunks = stream_of(http, **ask)
    message = whole["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "Rain?"
    (call,) = message["tool_calls"]
    assert call["type"] == "function"
    assert "index" not in call
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    assert whole["finish_reason"] == "tool_calls"
    choices = [c["choices"][0] for c in chunks[:-1]]
    pieces = [p for c in choices for p in c["delta"].get("tool_calls", ())]
    assert [p["index"] for p in pieces] == [0] * len(pieces)
    assert pieces[0]["function"]["name"] == "weather"
    assert all("id" not in p for p in pieces[1:])
    arguments = "".join(p["function"]["arguments"] for p in pieces)
    assert json.loads(arguments) == {"city": "Oslo"}
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_failure_in_the_middle_is_an_event_and_not_a_cut_connection(caplog):
    """LC-61: what was written before it came, and the stream has its end marker."""
    with served(Scripted(lambda request: ["Half ", "an ", EngineError("the kernel broke")])) as (
        server, http,
    ):  # fmt: skip
        chunks = stream_of(http, **CHAT)
        assert [c.get("choices", [{}])[0].get("delta", {}).get("content") for c in chunks[1:3]] == [
            "Half ", "an ",
        ]  # fmt: skip
        assert chunks[-2]["error"]["message"] == "the kernel broke"
        assert chunks[-2]["error"]["type"] == "server_error"
        assert chunks[-1] == "[DONE]"
        with (
            openai.OpenAI(base_url=server.url, api_key=server.token) as official,
            pytest.raises(openai.APIError, match="the kernel broke"),
        ):
            list(official.chat.completions.create(model="", stream=True, **CHAT))
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 500


def test_what_is_wrong_before_the_first_token_is_an_http_error_also_for_a_stream(hello):
    _, http = hello
    wrong = {"temperature": "hot"}, {"n": 0}, {"top_logprobs": 3}, {"temprature": 0.5}, {"stop": 3}
    for field in wrong:
        for stream in (False, True):
            answer = http.post("/v1/chat/completions", json=CHAT | field | {"stream": stream})
            assert answer.status_code == 400, field
            assert next(iter(field)) in error_of(answer)["message"], field


def test_several_choices_are_told_apart_by_their_index(hello):
    """TG-66: one id for all of them."""
    _, http = hello
    whole = http.post("/v1/chat/completions", json=CHAT | {"n": 3}).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 15
    chunks = stream_of(http, **CHAT, n=3)[:-1]
    assert len({c["id"] for c in chunks}) == 1
    for i in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == i]
        assert own[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in own) == HELLO
        assert own[-1]["finish_reason"] == "stop"


def test_seeds_of_several_choices_differ_and_repeat():
    provider = Scripted(lambda request: f"seed {request.sampling.seed}")
    with served(provider) as (_, http):
        ask = CHAT | {"n": 2, "seed": 7, "temperature": 1}
        twice = [http.post("/v1/chat/completions", json=ask).json()["choices"] for _ in range(2)]
        assert twice[0] == twice[1]
        assert [c["message"]["content"] for c in twice[0]] == ["seed 7", "seed 8"]


# ----------------------------------------------------------------------------- settings


def test_max_completion_tokens_wins_and_zero_is_no_token(hello):
    """TG-61."""
    _, http = hello

    def answer(**body):
        whole = http.post("/v1/chat/completions", json=CHAT | body).json()
        return whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]

    assert answer(max_completion_tokens=2, max_tokens=4) == (2, "length")
    assert answer(max_tokens=4) == (4, "length")
    assert answer(max_tokens=0) == (0, "length")
    assert answer(max_completion_tokens=0, max_tokens=4) == (0, "length")
    assert answer(max_tokens=None) == (5, "stop")


def test_defaults_are_greedy_a_window_for_chats_and_16_tokens_for_texts():
    """TG-62, LC-70."""
    provider = Scripted(lambda request: " ".join(map(str, range(40))))
    with served(provider) as (_, http):
        chat = http.post("/v1/chat/completions", json=CHAT).json()
        text = http.post("/v1/completions", json={"prompt": "Count"}).json()
        http.post("/v1/chat/completions", json=CHAT | {"temperature": 0.8, "top_p": 0.5})
    assert chat["choices"][0]["finish_reason"] == "stop"
    assert chat["usage"]["completion_tokens"] == 40
    assert text["choices"][0]["finish_reason"] == "length"
    assert text["usage"]["completion_tokens"] == 16
    first, second, third = (request.sampling for request in provider.requests)
    assert first.temperature == second.temperature == 0.0
    assert (third.temperature, third.top_p) == (0.8, 0.5)


def test_stop_takes_a_text_or_a_list(hello):
    _, http = hello
    for stop in (" friend", ["x", " friend"]):
        whole = http.post("/v1/chat/completions", json=CHAT | {"stop": stop}).json()
        assert whole["choices"][0]["message"]["content"] == "Hello there,"
        assert whole["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("body", "kind", "value"),
    [
        ({"response_format": {"type": "json_object"}}, "schema", {"type": "object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": NULL}}},
            "schema",
            NULL,
        ),
        ({"guided_regex": "[a-z]+"}, "pattern", "[a-z]+"),
        ({"guided_choice": ["a", "b"]}, "options", ("a", "b")),
        ({"structured_outputs": {"regex": "[0-9]"}}, "pattern", "[0-9]"),
        (
            {"json_schema": NULL, "response_format": {"type": "json_object"}},
            "schema",
            NULL,
        ),
        (
            {"grammar": 'root ::= "a"', "json_schema": NULL},
            "text",
            'root ::= "a"',
        ),
    ],
)  # fmt: skip
def test_constraints_of_every_dialect_and_the_stronger_wins(body, kind, value):
    provider = Scripted(lambda request: "null")
    with served(provider) as (_, http):
        assert http.post("/v1/chat/completions", json=CHAT | body).status_code == 200
    assert getattr(provider.requests[0].constraint, kind) == value


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": ["x"]},
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "", "function": {}}]}]},
        {"tools": [{"type": "retrieval"}]},
        {"tools": [{"type": "function", "function": {"name": ""}}]},
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "xml"}},
        {"stream_options": {"include_usage": True}},
        {"logit_bias": [1]},
        {"modalities": ["audio"]},
        {"n": 1000},
    ],
)  # fmt: skip
def test_wrong_bodies_are_refused_before_any_token(hello, body):
    _, http = hello
    answer = http.post("/v1/chat/completions", json=CHAT | body)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"


def test_a_body_that_is_no_json_object_is_refused(hello):
    _, http = hello
    deep = b"[" * 5000 + b"]" * 5000
    nested = b'{"messages":' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}"
    for data in (b"", b"{", b"[]", b"null", b"\xff", deep, nested):
        headers = {"content-type": "application/json"}
        answer = http.post("/v1/chat/completions", content=data, headers=headers)
        assert answer.status_code == 400
        assert error_of(answer)["message"]


# ----------------------------------------------------------------------------- texts


def test_texts_have_legacy_logprobs_with_offsets(hello):
    _, http = hello
    ask = {"prompt": "ab", "logprobs": 2}
    (choice,) = http.post("/v1/completions", json=ask).json()["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"] == HELLO
    assert found["text_offset"] == [2 + HELLO.index(token) for token in found["tokens"]]
    pairs = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    assert all(top[token] == logprob for token, logprob, top in pairs)
    chunks = stream_of(http, "/v1/completions", **ask)[:-1]
    streamed = [c["choices"][0] for c in chunks]
    assert "".join(c["text"] for c in streamed) == HELLO
    for name, values in found.items():
        assert [v for c in streamed for v in c["logprobs"][name]] == values


def test_bytes_that_are_no_text_are_written_as_openai_writes_them():
    from llm_magic.events import Token
    from llm_magic.server.shape import chat_logprobs, token_text

    halves = [Token(1, b"\xf0\x9f", -1.0, 1), Token(2, b"\x98\x80", None, None)]
    assert [token_text(t.bytes) for t in halves] == [r"bytes:\xf0\x9f", r"bytes:\x98\x80"]
    entries = chat_logprobs(halves)["content"]
    assert bytes(b for e in entries for b in e["bytes"]).decode() == "😀"
    assert entries[1]["logprob"] == -9999.0


def test_several_prompts_have_answers_in_their_order(hello):
    _, http = hello
    whole = http.post("/v1/completions", json={"prompt": ["a b", "c"], "n": 2}).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"]["prompt_tokens"] == 3
    assert whole["usage"]["completion_tokens"] == 20


def test_best_of_sends_the_most_likely_answers():
    answers_ = iter(["b b b", "a", "c c"])
    with served(Scripted(lambda request: next(answers_)), parallel=1) as (_, http):
        whole = http.post("/v1/completions", json={"prompt": "x", "best_of": 3}).json()
        means = {}
        for text in ("b b b", "a", "c c"):
            tokens = LLM(Scripted([text])).complete("x").tokens
            means[text] = sum(t.logprob for t in tokens) / len(tokens)
        assert whole["choices"][0]["text"] == max(means, key=means.get)
        refused = http.post("/v1/completions", json={"prompt": "x", "best_of": 2, "stream": True})
        assert refused.status_code == 400


# ----------------------------------------------------------------------------- other routes


def test_models_are_listed_other_pages_are_the_chat_and_unknown_posts_are_errors(hello, official):
    """TG-65."""
    server, http = hello
    assert [m.id for m in official.models.list()] == ["scripted"]
    assert official.models.retrieve("scripted").owned_by == "llm_magic"
    for path in ("/", "/anything", "/favicon.ico"):
        page = http.get(path, headers={"authorization": ""})
        assert page.headers["content-type"].startswith("text/html")
        assert "<textarea" in page.text
        assert server.token not in page.text
    for path in ("/", "/v1/other", "/v2/chat/completions"):
        assert error_of(http.post(path, json={}))["code"] == "not_found"
    assert error_of(http.get("/v1/other"))["code"] == "not_found"
    assert error_of(http.delete("/v1/models"))["message"]
    missing = http.post("/v1/chat/completions", json=CHAT | {"model": "gpt-9"})
    assert missing.status_code == 404
    assert error_of(missing)["code"] == "model_not_found"


class Words(Scripted):
    """A script with a vocabulary of ten words, vectors and an opinion about documents."""

    capabilities = Scripted.capabilities | {"embed", "rerank"}
    words = tuple("abcdefghij")

    def tokenize(self, text, special=True, start=True):
        pieces = [w for w in text.split() if w in self.words]
        return [Piece(self.words.index(w), w, w.encode(), False) for w in pieces]

    def detokenize(self, ids):
        return " ".join(self.words[i] for i in ids)

    def render(self, request):
        prompt = request.prompt
        if isinstance(prompt, str):
            return RenderedPrompt(prompt, tuple(p.id for p in self.tokenize(prompt)))
        if request.messages:
            return super().render(request)
        return RenderedPrompt(self.detokenize(prompt), tuple(prompt))

    def embed(self, texts, pooling=None, truncate=False):
        return [np.array([len(t), 1.0, 0.0], np.float32) for t in texts]

    def rerank(self, query, documents):
        return [float(d.count(query)) for d in documents]


def test_embeddings_as_numbers_or_base64_normalised_unless_refused():
    """LC-71."""
    with served(Words(["x"])) as (server, http):
        ask = {"model": "scripted", "input": ["a b c", "d"]}
        with openai.OpenAI(base_url=server.url, api_key=server.token) as official:
            found = [np.array(one.embedding) for one in official.embeddings.create(**ask).data]
        plain = http.post("/v1/embeddings", json=ask | {"normalize": False}).json()
        assert [one["embedding"] for one in plain["data"]] == [[5, 1, 0], [1, 1, 0]]
        assert plain["usage"]["prompt_tokens"] == 4
        for i, vector in enumerate(found):  # the client asks for base64
            assert np.isclose(np.linalg.norm(vector), 1)
            raw_ = np.array(plain["data"][i]["embedding"])
            assert np.allclose(vector, raw_ / np.linalg.norm(raw_))
        ids = http.post("/v1/embeddings", json={"input": [[0, 1, 2], [3]], "normalize": False})
        assert ids.json()["data"] == plain["data"]
        wrong = http.post("/v1/embeddings", json=ask | {"dimensions": 2})
        assert error_of(wrong)["param"] == "dimensions"
        assert http.post("/v1/embeddings", json={}).status_code == 400


def test_rerank_is_sorted_by_falling_score_and_cut():
    """LC-71."""
    with served(Words(["x"])) as (_, http):
        ask = {"query": "a", "documents": ["b", "a a", {"text": "a"}]}
        for path in ("/v1/rerank", "/rerank"):
            results = http.post(path, json=ask).json()["results"]
            assert [(r["index"], r["relevance_score"]) for r in results] == [(1, 2), (2, 1), (0, 0)]
        (best,) = http.post("/v1/rerank", json=ask | {"top_n": 1, "return_documents": True}).json()[
            "results"
        ]
        assert best == {"index": 1, "relevance_score": 2.0, "document": {"text": "a a"}}


def test_tokens_go_there_and_back_in_both_dialects():
    """LC-71."""
    with served(Words(["x"])) as (_, http):
        for name in ("prompt", "content"):
            found = http.post("/tokenize", json={name: "a d b"}).json()
            assert (found["tokens"], found["count"]) == ([0, 3, 1], 3)
        back = http.post("/detokenize", json={"tokens": [0, 3, 1]}).json()
        assert back == {"prompt": "a d b", "content": "a d b"}
        pieces = http.post("/tokenize", json={"content": "a", "with_pieces": True}).json()["tokens"]
        assert pieces == [{"id": 0, "piece": "a"}]
        shown = http.post("/apply-template", json=CHAT).json()["prompt"]
        assert shown == "user: Hello\nassistant: "


def test_what_the_model_cannot_do_is_not_implemented_and_not_asked_again(hello):
    _, http = hello
    answer = http.post("/v1/embeddings", json={"input": "x"})
    assert answer.status_code == 501
    assert answer.headers["x-should-retry"] == "false"
    assert error_of(answer)["type"] == "not_supported_error"
    assert http.get("/tokenizer_info").status_code == 501


def test_a_prompt_that_does_not_fit_names_both_numbers():
    """TG-64."""
    with served(Scripted(lambda request: ContextOverflowError(5000, 4096))) as (_, http):
        error = error_of(http.post("/v1/chat/completions", json=CHAT))
    assert error["code"] == "context_length_exceeded"
    assert "5000" in error["message"]
    assert "4096" in error["message"]


def test_an_unloaded_model_is_said_and_the_health_turns():
    provider = Scripted(lambda request: HELLO)
    with served(provider) as (_, http):
        assert http.get("/health").json() == {"status": "ok"}
        provider.close()
        assert http.get("/health").status_code == 503


# ----------------------------------------------------------------------------- numbers


def test_each_answer_leaves_a_line_with_its_numbers(caplog):
    """TG-67, TG-68."""
    caplog.set_level(logging.INFO, "llm_magic.server")
    with served(Scripted(lambda request: HELLO)) as (server, http):
        http.post("/v1/chat/completions", json=CHAT)
        http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1})
        (line, one_token) = [r.getMessage() for r in caplog.records if r.name.endswith("stats")]
        text = http.get("/metrics").text
        first = server.recent[0]
    pattern = (
        r"chatcmpl-\w+ chat stop: \d+ cached \+ \d+ new tokens, prepared in [\d.]+ ms, "
        r"prefill [\d.]+ tok/s; 5 tokens, decode [\d.]+ tok/s; [\d.]+ s in all"
    )
    assert re.fullmatch(pattern, line)
    assert "1 tokens, decode 0.0 tok/s" in one_token
    assert first.prefill_tps == pytest.approx(first.new / 0.1)
    assert "llm_magic_completion_tokens_total 6" in text
    assert 'llm_magic_requests_total{path="/v1/chat/completions",status="200"} 2' in text


# ----------------------------------------------------------------------------- who may call


ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/nothing"]


def test_without_the_token_nothing_is_answered_but_page_and_health(hello):
    server, _ = hello
    for header in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {server.token}"},
    ):
        with httpx.Client(base_url=server.url.removesuffix("/v1"), headers=header) as http:
            for path in ROUTES:
                answer = http.post(path, json=CHAT)
                assert answer.status_code == 401, path
                assert error_of(answer)["code"] == "invalid_api_key"
            for path in ("/v1/models", "/v1/x", "/metrics", "/tokenizer_info"):
                assert http.get(path).status_code == 401, path
            assert http.get("/health").status_code == 200
    doubled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n" % (
        server.token.encode()
    )
    doubled += b"Authorization: Bearer x\r\nConnection: close\r\n\r\n"
    assert b" 401 " in raw(server, doubled).splitlines()[0]


def test_another_host_name_is_refused_so_that_no_name_can_be_pointed_here(hello):
    server, http = hello
    for host in ("evil.example", "evil.example:80", f"localhost.evil.example:{server.port}",
                 "10.0.0.1", "", "169.254.169.254", "127.0.0.1.nip.io"):  # fmt: skip
        answer = http.get("/v1/models", headers={"host": host})
        assert answer.status_code in (400, 403), host
    for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:99", "LOCALHOST.", "127.0.0.2"):
        assert http.get("/v1/models", headers={"host": host}).status_code == 200, host
    with served(Scripted(["x"]), hosts=["Laptop.local"]) as (_, http):
        assert http.get("/v1/models", headers={"host": "laptop.local:1"}).status_code == 200


def test_pages_of_other_sites_may_not_call_unless_they_are_named(hello):
    server, http = hello
    own = server.url.removesuffix("/v1")
    for origin in ("https://evil.example", "null", "http://localhost:8888", own + "1", "file://"):
        answer = http.post("/v1/chat/completions", json=CHAT, headers={"origin": origin})
        assert answer.status_code == 403, origin
        assert "access-control-allow-origin" not in answer.headers
        assert http.options("/v1/models", headers={"origin": origin}).status_code == 403
    assert http.get("/v1/models", headers={"origin": own}).status_code == 200
    assert http.get("/v1/models", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    lab = "http://localhost:8888"
    with served(Scripted(lambda request: HELLO), origins=[lab]) as (_, http):
        answer = http.post("/v1/chat/completions", json=CHAT, headers={"origin": lab})
        assert answer.headers["access-control-allow-origin"] == lab
        before = http.options("/v1/models", headers={"origin": lab, "authorization": ""})
        assert before.status_code == 204
        assert "authorization" in before.headers["access-control-allow-headers"]


def test_a_form_of_another_page_is_no_request_even_without_a_token():
    with served(Scripted(lambda request: HELLO), token=False) as (server, _):
        assert server.token == ""
        with httpx.Client(base_url=server.url) as http:
            for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
                data, headers = json.dumps(CHAT), {"content-type": kind}
                answer = http.post("/chat/completions", content=data, headers=headers)
                assert answer.status_code == 415, kind
            assert http.post("/chat/completions", json=CHAT).status_code == 200


def test_large_and_late_bodies_are_refused(monkeypatch):
    def small(*args, **options):
        return access(*args, **options, max_body=1000, body_seconds=0.3)

    access = running.Access
    monkeypatch.setattr(running, "Access", small)
    with served(Scripted(lambda request: HELLO)) as (server, http):
        large = CHAT | {"user": "x" * 2000}
        assert error_of(http.post("/v1/chat/completions", json=large))["code"] == "body_too_large"

        def pieces():
            yield json.dumps(large).encode()

        headers = {"content-type": "application/json"}
        chunked = http.post("/v1/chat/completions", content=pieces(), headers=headers)
        assert chunked.status_code == 413
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            f"{server.token}\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"
        )
        assert b" 408 " in raw(server, head.encode()).splitlines()[0]
        monkeypatch.setattr(running, "HEAD_SECONDS", 0.2)
        assert raw(server, b"GET / HTTP/1.1\r\nHo") == b""  # it is hung up on


def test_tricks_with_paths_and_heads_reach_nothing(hello):
    server, http = hello
    for path in ("//v1/models", "/V1/models", "/v1%2fmodels", "/./v1/models", "/x/../v1/models",
                 "/%2e%2e/etc/passwd", "/..%5c..", "/v1/models/"):  # fmt: skip
        answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
                             "Connection: close\r\n\r\n".encode())  # fmt: skip
        body = answer.partition(b"\r\n\r\n")[2]
        assert b'"id"' not in body, path  # the page, or no token
        assert b"root:" not in body
    assert http.get("/v1/models/..").status_code in (200, 404)
    for head in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                 b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"):  # fmt: skip
        assert raw(server, head).split()[1] in (b"400", b"403")
    assert http.get("/health").status_code == 200


def test_the_page_brings_its_own_script_and_allows_no_other(hello):
    _, http = hello
    policy = http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "0.0.0.0", "token": False}, "needs a token"),
        ({"token": ""}, "token is empty"),
        ({"token": "two words"}, "token must be"),
        ({"port": 70000}, "port is 70000"),
        ({"port": -1}, "port is -1"),
        ({"host": "no.such.host.invalid"}, "cannot listen"),
        ({"parallel": 0}, "parallel is 0"),
        ({"seconds": 0}, "seconds is 0"),
    ],
)
def test_wrong_arguments_start_nothing(options, message):
    before = threading.active_count()
    with pytest.raises(RequestError, match=message):
        serve(LLM(Scripted(["x"])), **options)
    assert threading.active_count() == before


def test_only_this_machine_is_listened_to_unless_asked(hello):
    server, _ = hello
    assert server.host == "127.0.0.1"
    with served(Scripted(["x"]), host="0.0.0.0", token="secret") as (wide, http):
        assert wide.url == f"http://127.0.0.1:{wide.port}/v1"
        assert http.get("/v1/models", headers={"host": "192.0.2.7"}).status_code == 200
        assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403


# ----------------------------------------------------------------------------- clients that go


class Slow(Scripted):
    """Writes for half a minute unless it is stopped, and knows which streams still run."""

    def __init__(self):
        super().__init__(lambda request: ["word "] * 150, delay=0.2)
        self.open = weakref.WeakSet()
        self.opened = 0

    def stream(self, request):
        stream = super().stream(request)
        self.open.add(stream)
        self.opened += 1
        return stream

    @property
    def going(self):
        return sum(not s._done and not s._closed for s in self.open)


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_ends_its_answer_and_leaves_its_line(stream, caplog):
    """TG-67."""
    caplog.set_level(logging.INFO, "llm_magic.server")
    provider = Slow()
    with served(provider) as (server, _):
        body = json.dumps(CHAT | {"stream": stream}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
            f"{server.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with closing(socket.create_connection(("127.0.0.1", server.port))) as sock:
            sock.sendall(head.encode() + body)
            if stream:
                assert sock.recv(10)
            wait_until(lambda: provider.going == 1)
        wait_until(lambda: provider.going == 0)
        wait_until(lambda: server.recent)
        assert server.recent[-1].reason == "cancelled"
        assert "chat cancelled: " in caplog.text


def test_clients_that_wait_leave_the_queue_when_they_go():
    provider = Slow()
    with served(provider, parallel=1) as (server, http):
        with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as first:
            pieces = first.iter_raw()  # closes the connection when it is dropped
            next(pieces)
            for _ in range(5):
                with pytest.raises(httpx.ReadTimeout), client(server) as other:
                    other.post("/v1/chat/completions", json=CHAT, timeout=0.1)
            wait_until(lambda: "llm_magic_waiting 0" in http_text(server))
            assert provider.opened == 1  # none of them was started
        wait_until(lambda: provider.going == 0)


def http_text(server) -> str:
    with client(server) as http:
        return http.get("/metrics").text


def test_a_thousand_requests_and_cancels_leave_no_socket_thread_or_slot():
    process = psutil.Process()
    provider = Slow()
    with served(provider, parallel=4) as (_, http):

        def cycle(n):
            for i in range(n):
                with http.stream("POST", "/v1/chat/completions",
                                 json=CHAT | {"stream": True}) as answer:  # fmt: skip
                    if i % 2:
                        next(answer.iter_raw())

        cycle(20)
        wait_until(lambda: provider.going == 0)
        gc.collect()
        threads, sockets = threading.active_count(), len(process.net_connections())
        cycle(1000)
        wait_until(lambda: provider.going == 0)
        wait_until(lambda: threading.active_count() <= threads)
        wait_until(lambda: len(process.net_connections()) <= sockets + 1)
        text = http.get("/metrics").text
        assert "llm_magic_running 0" in text
        assert "llm_magic_waiting 0" in text


def test_eight_clients_at_once_are_all_served_and_none_waits_for_all_the_others():
    """Each has 40 answers to fetch; first come, first served keeps them side by side."""
    with served(Scripted(lambda request: HELLO, delay=0.001), parallel=3) as (server, _):
        done, lock = [], threading.Lock()

        def fetch(i):
            with client(server) as http:
                for _ in range(12):
                    assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
                    with lock:
                        done.append(i)

        threads = [threading.Thread(target=fetch, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(done) == 96
    halfway = done[:48]
    assert min(halfway.count(i) for i in range(8)) >= 2


def test_one_request_with_many_answers_does_not_hold_up_the_others():
    with served(Scripted(lambda request: ["a"] * 20, delay=0.002), parallel=2) as (server, http):
        order = []

        def many():
            with client(server) as other:
                other.post("/v1/completions", json={"prompt": "x", "n": 40, "max_tokens": 20})
                order.append("many")

        thread = threading.Thread(target=many)
        thread.start()
        wait_until(lambda: "llm_magic_running 2" in http_text(server))
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
        order.append("one")
        thread.join()
    assert order == ["one", "many"]


def test_too_many_that_wait_are_told_to_come_back(monkeypatch):
    monkeypatch.setattr(running, "MOST_WAITING", 1)
    with served(Slow(), parallel=1) as (_, http):
        ask = CHAT | {"stream": True}
        with http.stream("POST", "/v1/chat/completions", json=ask) as first:
            pieces = first.iter_raw()  # closes the connection when it is dropped
            next(pieces)
            thread = threading.Thread(target=lambda: _ignore(http, ask), daemon=True)
            thread.start()
            wait_until(lambda: "llm_magic_waiting 1" in http.get("/metrics").text)
            busy = http.post("/v1/chat/completions", json=CHAT)
            assert busy.status_code == 429
            assert busy.headers["retry-after"] == "1"
            assert error_of(busy)["type"] == "rate_limit_error"


def _ignore(http, ask):
    try:
        http.post("/v1/chat/completions", json=ask)
    except httpx.HTTPError:
        return


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_has_a_limit_of_time(stream):
    provider = Slow()
    with served(provider, seconds=1) as (_, http):
        answer = http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        if stream:
            error = frames(answer.text)[-2]["error"]
            assert text_of(frames(answer.text)[:-2]).startswith("word word")
        else:
            assert answer.status_code == 504
            assert answer.headers["x-should-retry"] == "false"
            error = error_of(answer)
        assert error["code"] == "timeout"
        wait_until(lambda: provider.going == 0)


def test_a_silent_stream_shows_that_it_lives(monkeypatch):
    monkeypatch.setattr(answers, "QUIET_SECONDS", 0.05)
    slow = Scripted(lambda request: ["one ", "two"], delay=0.3)
    with served(slow) as (server, http):
        text = http.post("/v1/chat/completions", json=CHAT | {"stream": True}).text
        assert text.count(": still here\n\n") >= 2
        assert text_of(frames(text)) == "one two"
        with openai.OpenAI(base_url=server.url, api_key=server.token) as official:
            chunks = official.chat.completions.create(model="", stream=True, **CHAT)
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == "one two"


# ----------------------------------------------------------------------------- start and stop


def test_stop_ends_what_is_written_and_frees_the_port():
    provider = Slow()
    with served(provider) as (server, http):
        with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
            lines = answer.iter_lines()
            next(lines)
            stopper = threading.Thread(target=server.stop)
            stopper.start()
            *_, error, end = [line for line in lines if line]  # it is told, and not cut off
            stopper.join()
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "stopped"
        assert end == "data: [DONE]"
        assert not server.running
        wait_until(lambda: provider.going == 0)
        server.stop()  # again
        with served(Scripted(lambda request: HELLO), port=server.port) as (_, next_http):
            assert next_http.get("/health").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)


def test_a_port_in_use_is_said(hello):
    server, _ = hello
    with pytest.raises(RequestError, match=f"port {server.port} .* choose another"):
        serve(LLM(Scripted(["x"])), port=server.port)


def test_without_the_extra_the_way_to_install_it_is_said(monkeypatch):

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "llm_magic.server.running", raising=False)
    with pytest.raises(UnsupportedError, match=r"llm-magic\[serve\]"):
        LLM(Scripted(["x"])).serve()


def test_a_model_serves_itself():
    assert SERVE.load() is serve
    with LLM(Scripted(lambda request: HELLO)).serve(port=0) as server:
        assert server.url.endswith("/v1")
        assert server.page == f"{server.url.removesuffix('v1')}#{server.token}"
        assert server in running.running()
    assert server not in running.running()


def test_the_benchmark_measures_the_server_beside_the_bare_stream():
    provider = Scripted(lambda request: HELLO, delay=0.002)
    llm = LLM(provider)
    with llm.serve() as server:
        found = compare(llm, server, tokens=4, rounds=2)
    assert len(found) == 2
    assert all(value > 0 for pair in found for value in pair)
    assert len(provider.requests) == 6  # one round warms up


EXIT = """
import os, sys, threading, httpx
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
server = LLM(Scripted(lambda request: ["word "] * 3000, delay=0.2)).serve()
begun = threading.Event()
def ask():
    headers = {"authorization": "Bearer " + server.token}
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", server.url + "/chat/completions", json=body, headers=headers) as said:
        for _ in said.iter_raw():
            begun.set()
threading.Thread(target=ask, daemon=True).start()
assert begun.wait(60)
if (child := os.fork()) == 0:
    os._exit(server.running)  # a child has no server: the port is its parent's
assert os.waitpid(child, 0)[1] == 0
health = server.url.replace("v1", "health")
assert httpx.get(health).status_code == 200
print("leaving")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_answer_under_way_does_not_keep_the_interpreter_and_a_child_has_no_server():
    """It would be written for ten minutes."""
    command = [sys.executable, "-c", EXIT]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "leaving\n"
