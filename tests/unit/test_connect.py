"""`%llm connect`, and every magic, view and widget over a model on a server."""

import json
import math
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.chats import ChatHost, Page, say
from support.html_audit import shown
from support.shells import cell, command
from support.wire import Asked, Wire, answer, chunk, stream

import llm_magic
from llm_magic.errors import (
    LLMError,
    RemoteConnectionError,
    RemoteError,
    RequestError,
    UnsupportedError,
)
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.ui.widgets.chat.controller import ChatController

WORDS = [("The", -0.1), (" sky", -0.7), (" is", -0.2), (" blue", -1.5)]
PROPS = {
    "default_generation_settings": {"n_ctx": 512},
    "chat_template": "{{ tools }}{{ messages }}",
}


def entry(i: int, text: str, logprob: float) -> dict[str, Any]:
    other = {"id": 900 + i, "token": " other", "bytes": list(b" other"), "logprob": -2.0}
    own = {"id": i, "token": text, "bytes": list(text.encode()), "logprob": logprob}
    return own | {"top_logprobs": [own, other]}


def chats(asked: Asked) -> Any:
    """The answer of a chat: four words, with logprobs where they are asked for."""
    pieces = []
    for i, (text, logprob) in enumerate(WORDS):
        piece = chunk(text)
        if asked.body.get("logprobs"):
            piece["choices"][0]["logprobs"] = {"content": [entry(i, text, logprob)]}
        pieces.append(piece)
    usage = {"prompt_tokens": 20, "completion_tokens": 4,
             "prompt_tokens_details": {"cached_tokens": 3}}  # fmt: skip
    times = {"prompt_ms": 100.0, "predicted_ms": 200.0, "prompt_per_second": 170.0,
             "predicted_per_second": 20.0, "predicted_n": 4}  # fmt: skip
    progress = {**chunk(), "prompt_progress": {"total": 20, "cache": 3, "processed": 20}}
    return stream(progress, *pieces, {"choices": [], "usage": usage, "timings": times})


def continues(asked: Asked) -> Any:
    done = {"choices": [{"text": " and wide", "finish_reason": "stop"}]}
    return stream(done, reason=None)


def tokenizes(asked: Asked) -> bytes:
    pieces = [{"id": 100 + i, "piece": w} for i, w in enumerate(asked.body["content"].split(" "))]
    return answer({"tokens": pieces})


def renders(asked: Asked) -> bytes:
    return answer({"prompt": "|".join(m["content"] for m in asked.body["messages"]) + "|"})


@pytest.fixture
def box(shell: InteractiveShell):
    """A llama-server, connected to under the name "box"."""
    models = {"data": [{"id": "/m/sky.gguf", "owned_by": "llamacpp"}]}
    routes = {
        "/props": answer(PROPS), "/tokenize": tokenizes, "/apply-template": renders,
        "/v1/completions": continues, "/v1/chat/completions": chats,
    }  # fmt: skip
    with Wire(models=models, routes=routes) as wire:
        command(shell, f"connect {wire.url} --name box")
        yield wire
        if hub.get("box"):
            hub.unload("box")
        shell.run_line_magic("config", "LLMMagics.model = ''")


def text_of(data: dict[str, Any]) -> str:
    return data["text/plain"] + shown(data.get("text/html", ""))


def test_cells_use_the_connected_model_from_now_on(shell: InteractiveShell, box: Wire) -> None:
    (*_, data) = cell(shell, "-o reply", "What color is the sky?")
    assert "The sky is blue" in text_of(data)
    reply = shell.user_ns["reply"]
    assert (reply.model, reply.answered_by) == ("box", f"{box.url}#sky")
    assert (reply.usage.prompt, reply.usage.cached, reply.usage.completion) == (20, 3, 4)
    assert (reply.timings.prefill_tps, reply.timings.decode_tps) == (170.0, 20.0)
    assert f"by 127.0.0.1:{box.port}" in text_of(data)


def test_the_line_says_what_answers(shell: InteractiveShell, box: Wire) -> None:
    said = text_of(command(shell, f"connect {box.url}#sky --name box"))
    assert "connected to box" in said
    assert "llama.cpp" in said
    assert "context 512" in said
    state = text_of(command(shell, "status"))
    assert box.url in state
    assert "box" in text_of(command(shell, "models"))
    assert len([llm for llm in hub.loaded() if llm.model == "box"]) == 1  # not two of one name


def test_heat_maps_branches_and_comparisons(shell: InteractiveShell, box: Wire) -> None:
    (*_, data) = cell(shell, "--logprobs 2 --show prompt,tokens,stats -o reply", "Sky?")
    text = text_of(data)
    assert "Token probabilities" in text
    assert "Sky?|" in text  # the rendered prompt
    reply = shell.user_ns["reply"]
    assert math.isclose(reply.mean_logprob, sum(p for _, p in WORDS) / 4)
    command(shell, "branch 3 -r reply")
    branch = shell.user_ns["reply"].branches[0][1]
    assert branch.text == "The sky is other and wide"
    assert box.posts[-1].body["prompt"][-4:] == [0, 1, 2, 903]
    compared = text_of(command(shell, "compare -m box -m box Sky?"))
    assert compared.count("blue") >= 2
    assert "20" in text_of(command(shell, "stats"))


def test_texts_are_tokenised_by_the_server(shell: InteractiveShell, box: Wire) -> None:
    said = text_of(command(shell, "tokenize some words"))
    assert "100" in said
    assert "101" in said
    chat_text = text_of(command(shell, "tokenize --chat some words"))
    assert "words|" in chat_text


def test_conversations_and_tools_run_over_a_server(shell: InteractiveShell, box: Wire) -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"rain in {city}"

    called = {"tool_calls": [{"index": 0, "id": "c1", "function": {
        "name": "weather", "arguments": '{"city": "Oslo"}'}}]}  # fmt: skip

    def talks(asked: Asked) -> Any:
        if asked.body["max_tokens"] == 1:  # whether the template takes an exchange with tools
            return answer({"choices": [{"message": {"content": "x"}}]})
        if asked.body["messages"][-1]["role"] == "tool":
            return stream(chunk("It rains."))
        return stream({"choices": [{"delta": called}]}, reason="tool_calls")

    box.routes["/v1/chat/completions"] = talks
    shell.user_ns["weather"] = weather
    (*_, data) = cell(shell, "--chat talk --tools weather -o reply", "Weather in Oslo?")
    reply = shell.user_ns["reply"]
    assert reply.text == "It rains."
    assert [r.result for r in reply.trace] == ["rain in Oslo"]
    sent = box.posts[-1].body["messages"]
    assert [m["role"] for m in sent] == ["user", "assistant", "tool"]
    assert (sent[2]["tool_call_id"], sent[2]["content"]) == ("c1", "rain in Oslo")
    assert "weather" in text_of(data)


def test_a_cell_may_begin_its_answer(shell: InteractiveShell, box: Wire) -> None:
    cell(shell, '--prefill "Far" -o reply', "Say it.")
    assert shell.user_ns["reply"].text == "Far and wide"


def test_constraints_are_for_the_server_to_hold(shell: InteractiveShell, box: Wire) -> None:
    box.routes["/v1/chat/completions"] = stream(chunk('{"n": 7}'))
    shell.user_ns["Answer"] = {"type": "object"}
    cell(shell, "--schema Answer -o reply", "A number?")
    assert shell.user_ns["reply"].parsed == {"n": 7}
    assert "response_format" in box.posts[-1].body


def test_what_the_server_cannot_do_is_a_short_error(shell: InteractiveShell, box: Wire) -> None:
    with pytest.raises(UnsupportedError, match="does not support 'score'") as e:
        cell(shell, "--score", "A text.")
    assert len(e.value._render_traceback_()) == 1
    with pytest.raises(UnsupportedError):
        cell(shell, "--regex a+", "A text.")
    with pytest.raises(RequestError, match="ctx: a server was given"):
        command(shell, f"load {box.url} --ctx 512")


def test_the_chat_widget_talks_to_a_server(box: Wire) -> None:
    host = ChatHost(hub.load("box"))
    host.controller = ChatController(host)
    say(host.controller, "What color?")
    page = Page(host.posted)
    assert "The sky is blue" in page.answer()
    assert page.turns[-1]["busy"] is False


def test_a_reply_has_all_of_its_views(box: Wire) -> None:
    reply = hub.load("box").chat("Sky?", logprobs=2)
    assert "blue" in repr(reply.heatmap())
    assert "other" in repr(reply.alternatives(1))
    assert len(reply.to_frame()) == 4
    assert reply.plot("probability") is not None
    bundle = reply._repr_mimebundle_()
    assert "text/html" in json.dumps(list(bundle[0] if isinstance(bundle, tuple) else bundle))


def test_a_failing_server_fails_the_cell_and_keeps_what_came(
    shell: InteractiveShell, box: Wire
) -> None:
    from support.wire import DROP, event, head

    box.routes["/v1/chat/completions"] = [head(), event(chunk("half")), DROP]
    with pytest.raises(RemoteConnectionError) as e:
        cell(shell, "", "Sky?")
    assert e.value.partial.text == "half"
    assert len(e.value._render_traceback_()) == 1  # one sentence, no frames of ours


def test_connecting_to_nothing_changes_nothing(shell: InteractiveShell, box: Wire) -> None:
    with Wire() as gone:
        url = gone.url
    with pytest.raises(RemoteConnectionError, match="is it running there"):
        command(shell, f"connect {url} --name other")
    assert hub.get("other") is None
    (*_, data) = cell(shell, "", "Sky?")
    assert "blue" in text_of(data)
    with pytest.raises(UsageError):
        command(shell, "connect")
    with pytest.raises(RequestError, match="is not the address of a server"):
        command(shell, "connect not-an-address")


def test_a_key_on_the_line_is_refused(shell: InteractiveShell, box: Wire) -> None:
    with pytest.raises(RequestError, match="the name of an environment variable") as e:
        command(shell, f"connect {box.url} --api-key sk-123-abc")
    assert "sk-123" not in str(e.value)


def test_addresses_are_models_everywhere(shell: InteractiveShell, box: Wire) -> None:
    llm = llm_magic.load(box.url)
    assert isinstance(llm, LLM)
    assert llm_magic.load([box.url]) is llm
    assert llm_magic.load(f"http://127.0.0.1:{box.port}") is llm  # "/v1" is meant
    named = llm_magic.load(box.url, name="crate")
    assert (named.model, hub.get("crate"), hub.unload("crate")) == ("crate", named, ["crate"])
    (*_, data) = cell(shell, f"-m {box.url}", "Sky?")
    assert "blue" in text_of(data)
    assert hub.load(llm.model) is llm
    hub.unload(llm.model)
    assert llm.provider.closed


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("smollm2", {"api_key": "X"}, "api_key: only the address of a server takes these"),
        (["smollm2"], {}, "a list must hold addresses"),
        ("http://127.0.0.1:1", {"diallect": "vllm"}, "diallect"),
        ("http://127.0.0.1:1", {"dialect": "x"}, "must be one of openai, llama.cpp"),
        ("http://127.0.0.1:1", {"timeouts": {"gap": -1}}, "gap is -1"),
    ],
)
def test_wrong_arguments_are_named(name, options, says) -> None:
    with pytest.raises(RequestError, match=says):
        llm_magic.load(name, **options)


def test_errors_of_servers_are_our_errors() -> None:
    assert issubclass(RemoteError, LLMError)
    assert not issubclass(RemoteError, RequestError)
