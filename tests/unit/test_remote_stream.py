"""Streams of servers, byte by byte: what becomes text, reasoning, calls, numbers and errors."""

import json
import math

import pytest
from support.wire import DROP, answer, chunk, event, head, served, stream

from llm_magic.chat.reply import Reply
from llm_magic.errors import (
    ContextOverflowError,
    RemoteConnectionError,
    RemoteError,
    UnsupportedError,
)
from llm_magic.events import CallDelta, CallDone, Delta, Finish, Message, Prefill, ToolCall

TOOLS = [{"name": "f"}, {"name": "g"}]


def events_of(*steps, **options):
    """The events of a chat that a server answers with these events."""
    ask = {key: options.pop(key) for key in list(options) if key not in ("dialect", "routes")}
    with served(stream(*steps), **options) as (_, llm), llm.stream(
        [Message("user", "Hi")], **ask
    ) as found:  # fmt: skip
        return list(found)


def reply_of(*steps, **options) -> Reply:
    ask = {key: options.pop(key) for key in list(options) if key not in ("dialect", "routes")}
    with served(stream(*steps), **options) as (_, llm):
        return llm.chat("Hi", **ask)


def raw(*pieces: bytes | float | str, **options) -> Reply:
    """The reply to bytes as they are."""
    with served([head(), *pieces], **options) as (_, llm):
        return llm.chat("Hi")


# ----------------------------------------------------------------------------- the format


EVENTS = (chunk("", role="assistant"), chunk("one "), chunk("two"), chunk(reason="stop"))


@pytest.mark.parametrize("eol", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", [" ", ""])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_line_ends_spaces_and_pieces_do_not_matter(eol, space, size) -> None:  # B113
    lines = [f"data:{space}{json.dumps(e)}{eol}{eol}" for e in EVENTS]
    data = ("".join(lines) + f"data:{space}[DONE]{eol}{eol}").encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    reply = raw(*pieces)
    assert (reply.text, reply.finish_reason) == ("one two", "stop")


def test_line_ends_may_be_mixed() -> None:  # B113
    ends = ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n"]
    data = "".join(f"data: {json.dumps(e)}{end}" for e, end in zip(EVENTS, ends, strict=True))
    assert raw(data.encode(), event("[DONE]")).text == "one two"


def test_data_of_several_lines_and_characters_cut_anywhere() -> None:  # B115
    text = "✅ \u2028 x\u0085"
    body = json.dumps(chunk(text), ensure_ascii=False, indent=1)
    data = "".join(f"data: {line}\n" for line in body.split("\n")).encode() + b"\n"
    end = event(chunk(reason="stop")) + event("[DONE]")
    for cut in range(1, len(data), 5):
        assert raw(data[:cut], data[cut:], end).text == text


def test_text_is_utf8_whatever_the_headers_say() -> None:  # B115
    start = head(kind="text/event-stream; charset=iso-8859-1")
    with served([start, event(chunk("é✅")), event(chunk(reason="stop"))]) as (_, llm):
        assert llm.chat("Hi").text == "é✅"


def test_comments_other_fields_and_broken_json_are_ignored() -> None:  # LB-22
    noise = b": ping\n\nid: 7\nretry: 10\n\n\n\ndata: {broken\n\ndata: 5\n\nfoo: bar\n\ndata:\n\n"
    reply = reply_of(noise, chunk("a"), noise, {"choices": []}, {}, chunk("b"), noise)
    assert reply.text == "ab"


def test_the_end_mark_may_be_missing() -> None:
    assert raw(event(chunk("a")), event(chunk(reason="stop"))).text == "a"
    assert raw(event(chunk("a")), event("[DONE]")).finish_reason == "stop"
    # Without the blank line behind the last event, too.
    assert raw(event(chunk("a")), event(chunk(reason="length"))[:-1]).finish_reason == "length"


def test_an_answer_that_breaks_off_is_an_error_that_keeps_what_came() -> None:
    with served([head(), event(chunk("half")), DROP]) as (wire, llm):
        with pytest.raises(RemoteConnectionError, match="in the middle of the answer") as e:
            llm.chat("Hi")
        assert e.value.partial.text == "half"
        assert len(wire.posts) == 1  # nothing is sent again behind the first piece


def test_an_answer_that_is_no_stream_is_read_as_well() -> None:
    whole = {"choices": [{"message": {"content": "all"}, "finish_reason": "length"}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 1}}  # fmt: skip
    with served(answer(whole)) as (_, llm):
        reply = llm.chat("Hi")
    assert (reply.text, reply.finish_reason, reply.usage.prompt) == ("all", "length", 3)


def test_a_web_page_is_no_answer() -> None:
    with (
        served([head(kind="text/html"), b"<html>Please log in</html>"]) as (_, llm),
        pytest.raises(RemoteError, match="answered with a web page"),
    ):
        llm.chat("Hi")


# ----------------------------------------------------------------------------- text


def test_null_and_missing_contents_are_empty() -> None:  # LB-20, B116
    null = {"choices": [{"delta": {"content": None, "role": "assistant"}}]}
    none = {"choices": [{"delta": None}]}
    assert reply_of(null, none, {"choices": [{}]}, chunk("x"), null).text == "x"
    whole = {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]}
    with served(answer(whole)) as (_, llm):
        assert llm.chat("Hi").text == ""


@pytest.mark.parametrize("place", ["own", "last", "every"])
def test_counts_come_with_an_empty_choice_the_last_one_or_every_one(place) -> None:  # B116
    filtered = {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    text = chunk("word")
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    if place == "every":
        filtered["usage"] = {"prompt_tokens": 7, "completion_tokens": 0}
        text["usage"] = {"prompt_tokens": 7, "completion_tokens": 1}
    last = {**chunk(reason="stop"), **({"usage": usage} if place != "own" else {})}
    tail = [{"choices": [], "usage": usage}] if place == "own" else []
    with served(stream(filtered, text, last, *tail, reason=None)) as (_, llm):
        reply = llm.chat("Hi")
    assert reply.text == "word"
    assert (reply.usage.prompt, reply.usage.completion) == (7, 2)


def test_reasoning_is_a_part_of_its_own_before_the_answer() -> None:  # LB-23, LB-24
    for field in ("reasoning_content", "reasoning"):
        both = {"choices": [{"delta": {field: "more.", "content": "Yes"}}]}
        found = events_of({"choices": [{"delta": {field: "Think "}}]}, both, chunk("!"))
        kinds = [(e.kind, e.text) for e in found if isinstance(e, Delta)]
        assert kinds == [
            ("reasoning", "Think "), ("reasoning", "more."), ("answer", "Yes"), ("answer", "!")
        ]  # fmt: skip


def test_reasoning_in_tags_is_found_and_without_thinking_it_is_dropped() -> None:  # LB-23
    pieces = [chunk(t) for t in ("<th", "ink>Hm", "m.</thi", "nk>\n\nYes")]
    reply = reply_of(*pieces)
    assert (reply.reasoning, reply.text) == ("Hmm.", "Yes")
    quiet = reply_of(*pieces, thinking=False)
    assert (quiet.reasoning, quiet.text) == ("", "Yes")
    field = {"choices": [{"delta": {"reasoning": "Hmm."}}]}
    assert reply_of(field, chunk("Yes"), thinking=False).reasoning == ""


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("stop", "stop"), ("length", "length"), ("eos", "stop"), ("content_filter", "stop"),
     ("tool_calls", "stop"), ("max_tokens", "length"), (7, "stop")],
)  # fmt: skip
def test_reasons_of_an_end_are_one_of_ours(theirs, ours) -> None:  # LB-29
    with served(stream(chunk("x"), chunk(reason=theirs), reason=None)) as (_, llm):
        assert llm.chat("Hi").finish_reason == ours


def test_missing_counts_are_zero_and_malformed_ones_too() -> None:  # LB-28
    reply = reply_of(chunk("x"))
    assert (reply.usage.prompt, reply.usage.cached) == (0, 0)
    usage = {"prompt_tokens": 9, "completion_tokens": 1,
             "prompt_tokens_details": {"cached_tokens": 4}}  # fmt: skip
    cached = reply_of(chunk("x"), {"choices": [], "usage": usage})
    assert (cached.usage.prompt, cached.usage.cached, cached.usage.completion) == (9, 4, 1)
    for wrong in (None, {}, {"cached_tokens": "4"}, {"cached_tokens": -1}, 3):
        usage["prompt_tokens_details"] = wrong
        assert reply_of(chunk("x"), {"choices": [], "usage": usage}).usage.cached == 0


# ----------------------------------------------------------------------------- progress and times


def progress(done: int, total: int = 8) -> dict:
    return {**chunk(), "prompt_progress": {"total": total, "cache": 2, "processed": done}}


def test_progress_of_the_prompt_comes_before_the_first_text() -> None:  # LB-27
    found = events_of(progress(4), progress(8), chunk("x"), dialect="llama.cpp")
    assert [e for e in found if isinstance(e, Prefill)] == [Prefill(4, 8, 2), Prefill(8, 8, 2)]
    assert [type(e) for e in found] == [Prefill, Prefill, Delta, Finish]
    assert not any(isinstance(e, Prefill) for e in events_of(chunk("x")))


def test_an_error_while_the_prompt_is_read_ends_its_progress() -> None:  # LB-27
    error = {"error": {"message": "lost", "code": 500}}
    with (
        served([head(), event(progress(4)), event(error)]) as (_, llm),
        llm.stream("Hi") as events,
    ):
        assert next(events) == Prefill(4, 8, 2)
        with pytest.raises(RemoteError, match="lost"):
            next(events)
        assert list(events) == []


def test_the_servers_own_times_are_taken() -> None:
    times = {"prompt_ms": 500.0, "predicted_ms": 2000.0, "prompt_per_second": 16.0,
             "predicted_per_second": 4.0, "predicted_n": 8}  # fmt: skip
    timings = reply_of(chunk("x"), {"choices": [], "timings": times}).timings
    assert (timings.prefill, timings.decode, timings.decode_tps) == (0.5, 2.0, 4.0)


def test_a_stream_asks_for_counts_and_progress_and_other_requests_do_not() -> None:  # LB-26
    with served(stream(chunk("x")), dialect="llama.cpp") as (wire, llm):
        llm.chat("Hi")
        body = wire.posts[-1].body
        assert body["stream_options"] == {"include_usage": True}
        assert body["return_progress"] is True
        wire.answers = [answer({"choices": [{"message": {"content": "x"}}]})]
        llm.chat("Hi", tools=TOOLS, logprobs=1)  # llama-server: not both in one stream
        body = wire.posts[-1].body
    assert body["stream"] is False
    assert not {"stream_options", "return_progress"} & set(body)


# ----------------------------------------------------------------------------- native calls


def call(*entries: dict, **more) -> dict:
    return {"choices": [{"delta": {"tool_calls": list(entries)}}], **more}


def piece(index=None, id=None, name=None, arguments=None) -> dict:
    out: dict = {"function": {}}
    for key, value in (("index", index), ("id", id)):
        if value is not None:
            out[key] = value
    for key, value in (("name", name), ("arguments", arguments)):
        if value is not None:
            out["function"][key] = value
    return out


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        ([[piece(0, "a", "f", '{"p":1}')], [piece(0, "b", "g", '{"p":2}')]],
         [("a", "f", '{"p":1}'), ("b", "g", '{"p":2}')]),
        ([[piece(None, "a", "f")], [piece(arguments='{"p"')], [piece(arguments=":1}")]],
         [("a", "f", '{"p":1}')]),
        ([[piece(1, "a", "f", "{}")]], [("a", "f", "{}")]),
        ([[piece(0, "a", "f", '{"p"')], [piece(0, "", None, ":1")], [piece(0, None, "", "}")]],
         [("a", "f", '{"p":1}')]),
        ([[piece(0, "a", "f", '{"p"')], [piece(0, "a", "f", ":1}")]], [("a", "f", '{"p":1}')]),
        ([[piece(0, "a", "f", {"p": 1})]], [("a", "f", '{"p": 1}')]),
        ([[piece(0, "a", "f", '{"p":')], [piece(1, "b", "g", '{"q":')],
          [piece(0, arguments="1}")], [piece(1, arguments="2}")]],
         [("a", "f", '{"p":1}'), ("b", "g", '{"q":2}')]),
        ([[piece(None, None, "f", "{}"), piece(None, None, "g", "{}")]],
         [("call_0", "f", "{}"), ("call_1", "g", "{}")]),
        ([[piece(None, None, "f", '{"p":1}')], [piece(None, None, "f", '{"p":2}')]],
         [("call_0", "f", '{"p":1}'), ("call_1", "f", '{"p":2}')]),
    ],
)  # fmt: skip
def test_calls_are_put_together_however_they_are_numbered(chunks, calls) -> None:  # B119
    found = events_of(*(call(*entries) for entries in chunks), tools=TOOLS)
    done = [e for e in found if isinstance(e, CallDone)]
    assert [(e.call.id, e.call.name, e.call.arguments) for e in done] == calls
    assert [e.index for e in done] == list(range(len(calls)))  # C: numbered from 0
    for number, (id, name, arguments) in enumerate(calls):
        own = [e for e in found if isinstance(e, CallDelta) and e.index == number]
        assert [(e.id, e.name) for e in own if e.id or e.name] == [(id, name)]
        assert "".join(e.arguments for e in own) == arguments
    assert found[-1].reason == "tool_calls"


def test_entries_that_are_no_calls_are_skipped_and_arguments_become_text() -> None:  # LB-31, LB-25
    entries = ["x", None, piece(5, "n"), piece(0, None, "f"), piece(1, "", "g", [1])]
    with served(
        answer({"choices": [{"message": {"tool_calls": entries}, "finish_reason": "tool_calls"}]})
    ) as (_, llm):
        reply = llm.chat("Hi", tools=TOOLS)
    assert [c.name for c in reply.calls] == ["f", "g"]
    assert [c.arguments for c in reply.calls] == ["{}", "[1]"]
    assert all(c.id.startswith("call_") for c in reply.calls)
    assert reply.finish_reason == "tool_calls"


def test_a_native_call_lets_held_text_out_first() -> None:  # LB-45
    found = events_of(chunk(' {"na'), call(piece(0, "a", "f", "{}")), chunk("behind"), tools=TOOLS)
    shown = [e for e in found if isinstance(e, Delta | CallDelta | CallDone)]
    assert [type(e) for e in shown] == [Delta, CallDelta, Delta, CallDone]
    assert [e.text for e in shown if isinstance(e, Delta)] == [' {"na', "behind"]


# ----------------------------------------------------------------------------- bare calls


def test_a_bare_call_in_the_stream_ends_like_a_native_one() -> None:  # LB-46, LB-48
    pieces = [chunk(t) for t in ('\n{"name": "f", ', '"arguments": {"p": 1}}')]
    reply = reply_of(*pieces, tools=TOOLS)
    assert (reply.text, reply.finish_reason) == ("", "tool_calls")
    assert [(c.name, json.loads(c.arguments)) for c in reply.calls] == [("f", {"p": 1})]
    plain = reply_of(*pieces)  # no tools were offered: it is text
    assert (plain.calls, plain.finish_reason) == ((), "stop")
    assert plain.text.strip().startswith('{"name"')


def test_text_that_is_no_call_is_unchanged() -> None:  # LB-46
    assert reply_of(chunk('{"a": '), chunk("1}"), tools=TOOLS).text == '{"a": 1}'
    assert reply_of(chunk("So: "), chunk('{"name": "f"}'), tools=TOOLS).calls == ()


def test_a_whole_answer_and_a_stream_recover_the_same_call() -> None:  # LB-48
    text = '[{"name": "f", "parameters": {}}]'
    whole = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    with served(answer(whole)) as (_, llm):
        reply = llm.chat("Hi", tools=TOOLS)
    streamed = reply_of(chunk(text), tools=TOOLS)
    assert reply.finish_reason == streamed.finish_reason == "tool_calls"
    assert [c.name for c in reply.calls] == [c.name for c in streamed.calls] == ["f"]


def test_a_call_that_was_required_and_did_not_come_is_an_error() -> None:
    with pytest.raises(RemoteError, match="did not hold the model to a tool call") as e:
        reply_of(chunk("No."), tools=TOOLS, tool_choice="required")
    assert e.value.partial.text == "No."


# ----------------------------------------------------------------------------- errors in a stream


@pytest.mark.parametrize(
    "bad",
    [
        event({"error": {"message": "overloaded", "code": 503}}),
        b'event: error\ndata: {"message": "overloaded", "code": 503}\n\n',
        b'event: error\ndata: {"error": {"message": "overloaded", "code": 503}}\n\n',
    ],
)
def test_an_error_in_the_middle_keeps_what_came_and_is_not_tried_again(bad) -> None:  # B118
    with served([head(), event(chunk("Par")), bad]) as (wire, llm):
        with pytest.raises(RemoteError, match="overloaded") as e:
            llm.chat("Hi")
        assert (e.value.code, e.value.partial.text) == (503, "Par")
        assert len(wire.posts) == 1


def test_an_error_as_plain_json_with_status_200() -> None:  # B118
    error = {"error": {"message": "no such template", "type": "invalid_request_error"}}
    with served(answer(error)) as (wire, llm):
        with pytest.raises(RemoteError, match="no such template") as e:
            llm.chat("Hi")
        assert (e.value.kind, len(wire.posts)) == ("request", 1)


def test_an_error_before_the_first_piece_is_tried_again() -> None:  # B118
    busy = [head(), event({"error": {"message": "overloaded", "code": 503}})]
    with served(busy, stream(chunk("ok"))) as (wire, llm):
        llm.provider.sender.retries = type(llm.provider.sender.retries)(first=0.0)
        assert llm.chat("Hi").text == "ok"
        assert len(wire.posts) == 2


# ----------------------------------------------------------------------------- logprobs


def entry(text: str, logprob: float, *top: tuple[str, float], **more) -> dict:
    return {
        "token": text, "logprob": logprob, "bytes": list(text.encode()),
        "top_logprobs": [
            {"token": t, "logprob": p, "bytes": list(t.encode())} for t, p in top
        ], **more,
    }  # fmt: skip


def probs(text: str, *entries: dict) -> dict:
    return {"choices": [{"delta": {"content": text}, "logprobs": {"content": list(entries)}}]}


def test_chat_logprobs_with_alternatives_ranks_and_bytes() -> None:
    a = entry("a", -1.0, ("b", -0.5), ("a", -1.0), id=3)
    reply = reply_of(probs("a", a), probs("c", entry("c", -0.1)), logprobs=2)
    first, second = reply.tokens
    assert (first.id, first.bytes, first.logprob, first.rank) == (3, b"a", -1.0, 2)
    assert [(t.bytes, t.logprob) for t in first.top] == [(b"b", -0.5), (b"a", -1.0)]
    assert (second.rank, second.top) == (None, ())  # not among those that were sent


def test_legacy_logprobs_of_a_text() -> None:
    logprobs = {"tokens": ["bytes:\\xe2\\x9c", "bytes:\\x85"], "token_logprobs": [-0.5, -9999.0],
                "top_logprobs": [{" b": -0.5, "a": -2.0}, None]}  # fmt: skip
    part = {"choices": [{"text": "✅", "logprobs": logprobs, "finish_reason": None}]}
    done = {"choices": [{"text": "", "finish_reason": "stop"}]}
    with served(stream(part, done, reason=None)) as (wire, llm):
        reply = llm.complete("Hi", logprobs=2)
        assert wire.posts[-1].path == "/v1/completions"
    assert [t.bytes for t in reply.tokens] == [b"\xe2\x9c", b"\x85"]
    assert [t.logprob for t in reply.tokens] == [-0.5, None]  # -9999 stands for minus infinity
    assert [a.bytes for a in reply.tokens[0].top] == [b" b", b"a"]


def test_numbers_that_cannot_be_true_are_missing() -> None:
    draft = entry("b", 0.0)
    odd = {"token": "c", "logprob": 0.7, "bytes": None, "top_logprobs": None}
    reply = reply_of(
        probs("a", entry("a", -0.2, ("a", -0.2))), probs("b", draft), probs("c", odd), logprobs=1
    )
    assert [t.logprob for t in reply.tokens] == [-0.2, None, None]
    assert math.isclose(reply.mean_logprob, -0.2)


def test_a_character_of_several_tokens_keeps_its_tokens() -> None:
    parts = [
        probs("", entry("�", -0.3)),  # vLLM: the token first, its text with the next one
        probs("✅", entry("✅", -0.4)),
        probs("é!", {"token": "!", "logprob": -0.5, "bytes": [0xA9, 33]}),  # llama-server
    ]
    reply = reply_of(*parts, logprobs=0)
    assert b"".join(t.bytes for t in reply.tokens).decode() == reply.text == "✅é!"
    assert [t.logprob for t in reply.tokens] == [-0.3, -0.4, None, -0.5]


def test_a_server_without_tokens_gives_pieces_that_are_marked_as_unknown() -> None:
    reply = reply_of(chunk("one "), chunk("two"), logprobs=3)
    assert [(t.id, t.bytes, t.logprob) for t in reply.tokens] == [
        (None, b"one ", None), (None, b"two", None)
    ]  # fmt: skip


# ----------------------------------------------------------------------------- requests


def test_contents_go_as_they_are_and_options_win_over_defaults() -> None:  # LB-21, LB-30
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "x"},
                {"role": "user", "content": "last"}]  # fmt: skip
    with served(stream(chunk("x"))) as (wire, llm):
        llm.chat(messages)
        assert [m["content"] for m in wire.posts[-1].body["messages"]] == [parts, "x", "last"]
        assert (wire.posts[-1].body["temperature"], wire.posts[-1].body["max_tokens"]) == (0.7, 256)
        llm.chat(messages, temperature=0, max_tokens=5, top_p=0.5, stop=["END"])
        body = wire.posts[-1].body
    assert (body["temperature"], body["max_tokens"], body["top_p"]) == (0, 5, 0.5)
    assert body["stop"] == ["END"]
    assert "seed" not in body  # greedy


def test_a_seed_is_drawn_sent_and_kept() -> None:
    with served(stream(chunk("x"))) as (wire, llm):
        reply = llm.chat("Hi")
        assert reply.sampling.seed == wire.posts[-1].body["seed"]


@pytest.mark.parametrize(
    ("dialect", "options", "fields"),
    [
        ("openai", {"schema": {"type": "integer"}}, {"response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "integer"}, "strict": True}}}),
        ("llama.cpp", {"choices": "yes|no"}, {"grammar": 'root ::= "yes" | "no"'}),
        ("llama.cpp", {"grammar": 'root ::= "7"'}, {"grammar": 'root ::= "7"'}),
        ("vllm", {"choices": "yes|no"}, {"structured_outputs": {"choice": ["yes", "no"]}}),
        ("vllm", {"regex": "7+"}, {"structured_outputs": {"regex": "7+"}}),
        ("sglang", {"choices": "7|8+"}, {"regex": r"(7)|(8\+)"}),
        ("sglang", {"grammar": 'root ::= "7"'}, {"ebnf": 'root ::= "7"'}),
        ("llama.cpp", {"min_p": 0.1, "dry_last_n": 8}, {"min_p": 0.1, "dry_penalty_last_n": 8}),
        ("vllm", {"repeat_penalty": 1.1, "top_k": 5}, {"repetition_penalty": 1.1, "top_k": 5}),
        ("llama.cpp", {"thinking": False},
         {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
    ],
)  # fmt: skip
def test_each_kind_of_server_is_asked_in_its_own_words(dialect, options, fields) -> None:
    text = {"choices": "yes", "grammar": "7", "regex": "7", "schema": "7"}
    said = next((text[name] for name in options if name in text), "x")
    if options.get("choices") == "7|8+":
        said = "7"
    with served(stream(chunk(said)), dialect=dialect) as (wire, llm):
        llm.chat("Hi", **options)
        body = wire.posts[-1].body
    assert {name: body.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("dialect", "options", "says"),
    [
        ("openai", {"regex": "a"}, "cannot hold an answer to regex"),
        ("llama.cpp", {"grammar": "start: /a/"}, "grammars in GBNF"),
        ("openai", {"min_p": 0.1}, "has no setting min_p"),
        ("openai", {"template_kwargs": {"a": 1}}, "takes no variables of the chat template"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_is_asked(dialect, options, says) -> None:
    with served(stream(chunk("x")), dialect=dialect) as (wire, llm):
        with pytest.raises(UnsupportedError, match=says):
            llm.chat("Hi", **options)
        assert wire.posts == []


@pytest.mark.parametrize(
    ("options", "said"),
    [({"schema": {"type": "integer"}}, "seven"), ({"schema": {"type": "integer"}}, '"7"'),
     ({"choices": "yes|no"}, "maybe"), ({"regex": "[0-9]+"}, "x")],
)  # fmt: skip
def test_a_server_that_ignores_a_constraint_is_found_out(options, said) -> None:
    with (
        served(stream(chunk(said)), dialect="vllm") as (_, llm),
        pytest.raises(RemoteError, match="did not hold the answer") as e,
    ):
        llm.chat("Hi", **options)
    assert e.value.partial.text == said


def test_a_schema_gives_its_value() -> None:
    with served(stream(chunk('{"a": '), chunk("[1]}"))) as (_, llm):
        assert llm.chat("Hi", schema={"type": "object"}).parsed == {"a": [1]}


def test_a_named_tool_on_a_server_that_only_knows_required() -> None:
    with served(stream(call(piece(0, "a", "g", "{}"))), dialect="llama.cpp") as (wire, llm):
        assert llm.chat("Hi", tools=TOOLS, tool_choice="g").calls == (ToolCall("a", "g", "{}"),)
        body = wire.posts[-1].body
    assert (body["tool_choice"], [t["function"]["name"] for t in body["tools"]]) == (
        "required", ["g"],
    )  # fmt: skip


def test_a_prompt_that_is_too_long_says_so() -> None:  # LB-2
    said = {"error": {"message": "request (40 tokens) exceeds the available context size "
                      "(20 tokens)", "type": "exceed_context_size_error", "n_prompt_tokens": 40,
                      "n_ctx": 20}}  # fmt: skip
    with (
        served(answer(said, 400)) as (wire, llm),
        pytest.raises(ContextOverflowError, match="start a new conversation") as e,
    ):
        llm.chat("Hi")
    assert (e.value.n_prompt, e.value.n_ctx, len(wire.posts)) == (40, 20, 1)
