"""The loopback server over a real model, as the official client and plain HTTP see it."""

import json
import threading
from collections.abc import Iterator

import openai
import pytest
from support.servers import client

import llm_magic
from llm_magic.llm import LLM
from llm_magic.server.running import Server

pytestmark = pytest.mark.model

SKY = [{"role": "user", "content": "What color is the sky? One word."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(smollm2: LLM) -> Iterator[Server]:
    with smollm2.serve(port=0) as found:
        yield found


@pytest.fixture(scope="module")
def official(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key=server.token, max_retries=0) as found:
        yield found


def test_the_official_client_gets_what_the_model_says_here(smollm2, server, official):
    """TG-62, TG-63, TG-65."""
    assert [m.id for m in official.models.list()] == ["smollm2"]
    here = smollm2.chat(SKY, temperature=0, repeat_penalty=1.0, max_tokens=24, logprobs=3)
    ask = {"model": "smollm2", "messages": SKY, "max_tokens": 24}
    there = official.chat.completions.create(**ask, logprobs=True, top_logprobs=3)
    (choice,) = there.choices
    assert choice.message.content == here.text
    assert choice.finish_reason == here.finish_reason
    assert [e.logprob for e in choice.logprobs.content] == [t.logprob for t in here.tokens]
    tops = [[e.logprob for e in one.top_logprobs] for one in choice.logprobs.content]
    assert tops == [[a.logprob for a in t.top] for t in here.tokens]
    assert there.usage.prompt_tokens == len(here.prompt_ids)
    assert there.usage.completion_tokens == len(here.tokens)  # the end token is none of them
    chunks = list(official.chat.completions.create(**ask, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == here.text


def test_an_echoed_prompt_of_ids_has_the_scores_of_its_tokens(smollm2, official):
    ids = [p.id for p in smollm2.tokenize("The capital of France is Paris, naïve 😀.")]
    found = official.completions.create(
        model="smollm2", prompt=ids, echo=True, logprobs=1, max_tokens=1
    ).choices[0]
    scored = smollm2.provider.score(ids, 1)
    logprobs = found.logprobs
    assert logprobs.token_logprobs[:-1] == [t.logprob for t in scored]
    assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
    assert found.text.startswith("The capital of France is Paris, naïve 😀.")
    assert [found.text[o:][:3] for o in logprobs.text_offset[:4]] == ["The", " ca", " of", " Fr"]
    best = [max(top.values()) == own for own, top in zip(
        logprobs.token_logprobs[1:], logprobs.top_logprobs[1:], strict=True)]  # fmt: skip
    assert best[:-1] == [t.rank == 1 for t in scored[1:]]


def test_a_prompt_as_long_as_the_window_is_refused_and_a_full_window_is_length(smollm2, server):
    """TG-64."""
    window = smollm2.status().ctx
    ids = [p.id for p in smollm2.tokenize(" word")]
    with client(server) as http:
        for n in (window, window + 5):
            answer = http.post("/v1/completions", json={"prompt": ids * n, "max_tokens": 1})
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert str(n) in error["message"]
            assert str(window) in error["message"]
        full = http.post(
            "/v1/completions",
            json={"prompt": ids * (window - 3), "max_tokens": 50, "logit_bias": {"2": -100}},
        ).json()
    assert full["choices"][0]["finish_reason"] == "length"
    assert full["usage"]["total_tokens"] == window


def test_structured_answers_and_required_calls(official):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    ask = [{"role": "user", "content": "Invent a person."}]
    answer = official.chat.completions.create(
        model="smollm2", messages=ask, response_format=form, max_tokens=60, seed=1
    )
    assert json.loads(answer.choices[0].message.content).keys() == {"name", "age"}
    tool = {"type": "function", "function": {"name": "add_person", "parameters": PERSON}}
    stream = official.chat.completions.create(
        model="smollm2", messages=ask, tools=[tool], tool_choice="required", stream=True,
        max_tokens=80, parallel_tool_calls=False,
    )  # fmt: skip
    calls, reasons = "", []
    for chunk in stream:
        reasons.append(chunk.choices[0].finish_reason)
        for piece in chunk.choices[0].delta.tool_calls or ():
            calls += piece.function.arguments or ""
    assert json.loads(calls).keys() == {"name", "age"}
    assert reasons[-1] == "tool_calls"


def test_tokens_and_templates_go_there_and_back(smollm2, server):
    """LC-71."""
    text = "<|im_start|>user\nnaïve 😀 日本<|im_end|>"
    with client(server) as http:
        found = http.post("/tokenize", json={"prompt": text}).json()
        assert found["count"] == len(found["tokens"]) == len(smollm2.tokenize(text))
        assert http.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"] == text
        plain = http.post("/tokenize", json={"content": text, "parse_special": False}).json()
        assert plain["count"] > found["count"]
        shown = http.post("/apply-template", json={"messages": SKY}).json()["prompt"]
        assert shown == smollm2.render(SKY).text
        same = http.post("/tokenize", json={"messages": SKY}).json()["tokens"]
        assert tuple(same) == smollm2.render(SKY).ids
        info = http.get("/tokenizer_info").json()
        assert info["eos_token"] == "<|im_end|>"
        assert "im_start" in info["chat_template"]


def test_a_cell_of_the_notebook_does_not_wait_for_eight_clients(smollm2, server, official):
    """Their answers are long; one slot of the model stays free of the server."""
    done, lock, stop = [], threading.Lock(), threading.Event()

    def fetch(i: int) -> None:
        ask = [{"role": "user", "content": f"Tell a long story about number {i}."}]
        stream = official.chat.completions.create(
            model="smollm2", messages=ask, max_tokens=120, stream=True
        )
        for count, _ in enumerate(stream):
            if count == 0:
                with lock:
                    done.append(i)
        stop.set()

    threads = [threading.Thread(target=fetch, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    while not done:  # the first of them is being answered
        stop.wait(0.01)
    events = [type(e).__name__ for e in smollm2.stream(SKY, max_tokens=3, temperature=0)]
    assert "Queued" not in events
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))


def test_a_client_that_goes_frees_its_slot(smollm2, server):
    """TG-67."""
    with client(server) as http:
        ask = {"messages": SKY, "stream": True, "logit_bias": {"2": -100}}
        with http.stream("POST", "/v1/chat/completions", json=ask) as answer:
            next(answer.iter_raw())
    for _ in range(500):
        if smollm2.status().running == 0 and server.recent[-1].reason == "cancelled":
            break
        threading.Event().wait(0.01)
    assert smollm2.status().running == 0
    last = server.recent[-1]
    assert last.reason == "cancelled"
    assert last.cached + last.new == len(smollm2.render(SKY).ids)


def test_the_bare_engine_and_the_server_share_the_cache(smollm2, server, official):
    smollm2.chat(SKY, max_tokens=4)
    usage = official.chat.completions.create(model="smollm2", messages=SKY, max_tokens=4).usage
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_a_model_is_listed_by_the_name_by_which_it_was_loaded(smollm2_path):
    llm = llm_magic.load(str(smollm2_path))
    with llm.serve() as found, client(found) as http:
        (one,) = http.get("/v1/models").json()["data"]
        assert one["id"] == llm.model
        assert one["max_model_len"] == llm.status().ctx
