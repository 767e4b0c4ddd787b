"""Servers that refuse, fail, hang or go: what is said, what is tried again, what is freed."""

import gc
import os
import threading
import time
from dataclasses import replace

import httpx
import pytest
from support.wire import DROP, HANG, Wire, answer, chunk, event, head, served, stream

from llm_magic.errors import (
    ContextOverflowError,
    DeadlineError,
    LLMError,
    RemoteConnectionError,
    RemoteError,
    RequestError,
    UnsupportedError,
)
from llm_magic.events import Delta, Finish
from llm_magic.llm import LLM
from llm_magic.providers.http import failures
from llm_magic.providers.http.addresses import Key, parse
from llm_magic.providers.http.alarms import Alarms
from llm_magic.providers.http.connect import connect
from llm_magic.providers.http.fleet import RETURN, Endpoint, Fleet, Retries
from llm_magic.providers.http.lanes import Call, Lanes
from llm_magic.providers.http.limits import Timeouts

OK = stream(chunk("ok"))
LONG = [head(), event(chunk("one ")), event(chunk("two ")), HANG]


def failed(status: int, message: str, **more) -> bytes:
    return answer({"error": {"message": message, **more}}, status)


def quick(llm: LLM) -> LLM:
    """No pauses between attempts."""
    sender = llm.provider.sender
    sender.retries = replace(sender.retries, first=0.0)
    return llm


def chat_error(*answers, **options) -> tuple[LLMError, int]:
    """What a chat raises, and how often the server was asked."""
    with served(*answers, **options) as (wire, llm):
        with pytest.raises(LLMError) as e:
            quick(llm).chat("Hi")
        return e.value, len(wire.posts)


# ----------------------------------------------------------------------------- what is said


def test_the_servers_words_are_part_of_the_message() -> None:  # LB-1
    error, asked = chat_error(failed(400, "field x is wrong", code="bad_x"))
    assert isinstance(error, RemoteError)
    assert "answered 400: field x is wrong" in str(error)
    assert (error.kind, error.status, error.code, asked) == ("request", 400, "bad_x", 1)
    long, _ = chat_error(failed(400, "y" * 5000))
    assert "y" * 500 in str(long)
    assert str(long).count("y") <= 600
    plain, _ = chat_error(head(418, "text/plain") + b"I am a teapot")
    assert "418: I am a teapot" in str(plain)


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "the request exceeds the available context size"), (400, "exceed_context_size"),
     (500, "input is too large to process. increase the physical batch size")],
)  # fmt: skip
def test_a_prompt_that_is_too_long_is_told_by_its_words(status, message) -> None:  # LB-2, LB-4
    error, asked = chat_error(failed(status, message))
    assert isinstance(error, ContextOverflowError)
    assert "shorten the prompt, or start a new conversation" in str(error)
    assert message in str(error)
    assert asked == 1


def test_vllms_numbers_of_a_long_prompt_are_read() -> None:  # LB-2
    said = ("This model's maximum context length is 2048 tokens. However, you requested 4031 "
            "tokens")  # fmt: skip
    error = failures.of_answer(400, {}, f'{{"object":"error","message":"{said}"}}', "x")
    assert (error.n_prompt, error.n_ctx) == (4031, 2048)


@pytest.mark.parametrize(
    ("status", "kind", "transient"),
    [(429, "busy", True), (502, "server", True), (503, "server", True), (504, "server", True),
     (500, "unknown", False), (400, "request", False), (401, "access", False)],
)  # fmt: skip
def test_a_status_says_what_failed(status, kind, transient) -> None:  # LB-3
    error = failures.of_answer(status, {}, '{"error": {"message": "no"}}', "there")
    assert (error.kind, error.transient) == (kind, transient)


@pytest.mark.parametrize(
    ("log", "kind"),
    [("CUDA error: out of memory", "capacity"), ("hipErrorOutOfMemory", "capacity"),
     ("kIOGPUCommandBufferCallbackErrorOutOfMemory", "capacity"),
     ("vk::Device: ErrorOutOfDeviceMemory", "capacity"),
     ("UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY", "capacity"),
     ("couldn't bind HTTP server socket: address already in use", "port"),
     ("warning: nearly out of memory\nwarn: failed to bind", None), ("segfault", None)],
)  # fmt: skip
def test_the_log_of_a_server_that_died_says_why(log, kind) -> None:  # LB-5, LB-6
    assert failures.kind_of_log(log) == kind
    error = failures.of_exception(httpx.ReadError("reset"), "there", "x" * 5000 + "\n" + log)
    assert isinstance(error, RemoteConnectionError)
    assert error.kind == (kind or "connection")
    assert log.splitlines()[-1] in str(error)
    assert str(error).count("x") <= 2000
    # Capacity and a taken port are for who starts servers: the same request would fail again.
    assert (error.rebuild, error.transient) == (kind is not None, kind is None)


def test_the_end_of_the_log_file_is_part_of_a_lost_connection(tmp_path) -> None:  # LB-5
    log = tmp_path / "server.log"
    log.write_text("loading\nggml_backend_cuda: failed to allocate 9 GB\n")
    error, asked = chat_error([DROP], log=str(log))
    assert (error.kind, error.rebuild, asked) == ("capacity", True, 1)
    assert "failed to allocate 9 GB" in str(error)


def test_a_server_that_is_not_there_is_named() -> None:
    with Wire() as wire:
        url = wire.url
    with pytest.raises(RemoteConnectionError, match=r"cannot be reached.*is it running there") as e:
        connect([url])
    assert url in str(e.value)


def test_a_route_that_is_missing_is_no_failure_of_the_model() -> None:  # LB-60
    for status, body in ((405, b""), (404, b"not here"), (404, b"")):
        with (
            served(head(status, "text/plain") + body) as (_, llm),
            pytest.raises(UnsupportedError, match="has no route for"),
        ):
            llm.complete("Hi")
    error, _ = chat_error(failed(404, "the model x does not exist", code="model_not_found"))
    assert (error.status, error.code) == (404, "model_not_found")


# ----------------------------------------------------------------------------- attempts


def test_a_busy_server_is_asked_again_and_the_last_error_comes_out() -> None:  # LB-8
    assert [Retries().pause(n) for n in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    error, asked = chat_error(failed(429, "slow down"))
    assert (error.kind, asked) == ("busy", 6)
    error, asked = chat_error(failed(503, "starting"), failed(400, "wrong"))
    assert (error.status, asked) == (400, 2)  # another error comes out at once
    with served(failed(429, "a"), failed(502, "b"), OK) as (wire, llm):
        assert quick(llm).chat("Hi").text == "ok"
        assert len(wire.posts) == 3


def test_embeddings_are_tried_more_often() -> None:  # LB-8
    from llm_magic.providers.http.vectors import PATIENT

    assert (PATIENT.attempts, PATIENT.first, PATIENT.longest) == (14, 0.5, 8.0)


def test_a_server_may_ask_for_a_pause_but_not_for_a_long_one() -> None:
    assert Retries().pause(1, asked=3.0) == 3.0
    error, asked = chat_error(answer({"error": {"message": "later"}}, 429, retry_after="3600"))
    assert (error.retry_after, asked) == (3600.0, 1)


def test_a_pause_that_would_pass_the_deadline_is_not_made() -> None:  # LB-8, B121
    busy = answer({"error": {"message": "later"}}, 429, retry_after="30")
    error, asked = chat_error(busy, timeouts={"total": 5})
    assert (error.kind, asked) == ("busy", 1)


def test_a_kept_connection_that_has_died_is_opened_again() -> None:
    """What a restarted server looks like to a client that still holds a connection."""

    def closes(_):
        return [OK_KEPT, DROP]

    body = b"".join(OK[1:])
    OK_KEPT = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: "
        + str(len(body)).encode() + b"\r\n\r\n" + body
    )  # fmt: skip
    with served(closes, closes, OK) as (_, llm):
        assert [llm.chat("Hi").text for _ in range(3)] == ["ok"] * 3
        assert llm.provider.sender.fleet.in_flight == 0


# ----------------------------------------------------------------------------- limits of time


def test_a_total_deadline_is_an_error_of_its_own_and_frees_the_slot() -> None:  # LB-10, B121
    with served(LONG, timeouts={"total": 0.3}) as (wire, llm):
        with pytest.raises(DeadlineError, match=r"0\.3 s for all of it are over") as e:
            llm.chat("Hi")
        assert e.value.partial.text == "one two "
        assert not isinstance(e.value, RemoteConnectionError)
        assert wire.until(lambda: wire.gone == 1)
        assert len(wire.posts) == 1
        assert llm.provider.sender.fleet.in_flight == 0


@pytest.mark.parametrize(
    ("steps", "limits", "says"),
    [
        ([HANG], {"load": 0.2}, "for an answer to begin"),
        ([b"HTTP/1.1 200 OK\r\n", *[b"x-a: b\r\n", 0.02] * 200], {"load": 0.2}, "to begin"),
        ([head(), HANG], {"prompt": 0.2}, "for the first piece"),
        ([head(), *[b": ping\n\n", 0.02] * 200], {"prompt": 0.2}, "for the first piece"),
        ([head(), event(chunk("a")), *[b": ping\n\n", 0.02] * 200], {"gap": 0.2}, "the next piece"),
        ([head(), event(chunk("a")), *[event(chunk("b")), 0.02] * 200], {"total": 0.3}, "all"),
    ],
    ids=["silent", "endless head", "hung", "comments", "comments behind text", "trickle"],
)
def test_each_phase_has_its_limit_whatever_trickles_in(steps, limits, says) -> None:  # B121
    with served(steps, timeouts=limits) as (wire, llm):
        with pytest.raises(DeadlineError, match=says):
            llm.chat("Hi")
        assert len(wire.posts) == 1  # a time-out is never multiplied by attempts
        assert wire.until(lambda: wire.open == 0)


def test_text_that_keeps_coming_is_not_cut_by_the_limit_of_a_gap() -> None:  # B121
    steps = [head(), *[event(chunk("b")), 0.05] * 12, event(chunk(reason="stop"))]
    with served(steps, timeouts={"gap": 0.3}) as (_, llm):
        assert llm.chat("Hi").text == "b" * 12


def test_limits_can_be_set_for_some_requests() -> None:  # LB-9
    assert Timeouts().load == Timeouts().prompt == 300.0
    with served(LONG) as (_, llm):
        with llm.provider.limited(total=0.2), pytest.raises(DeadlineError):
            llm.chat("Hi")
        assert llm.provider.sender.timeouts.total is None
    with pytest.raises(RequestError, match="timeouts has 'totl'"):
        connect(["http://127.0.0.1:1"], timeouts={"totl": 1})


def test_health_is_an_answer_within_five_seconds() -> None:  # LB-9
    from llm_magic.providers.http.discover import HEALTH

    assert HEALTH == 5.0
    with served(OK, routes={"/health": answer({"status": "ok"})}) as (wire, llm):
        assert llm.provider.health()
        wire.routes["/health"] = failed(503, "Loading model")
        assert not llm.provider.health()


def test_a_server_that_is_loading_is_waited_for(monkeypatch) -> None:
    from llm_magic.providers.http import sender

    monkeypatch.setattr(sender, "LOADING_PAUSE", 0.0)
    loading = failed(503, "Loading model", type="unavailable_error")
    with served(*[loading] * 9, OK) as (wire, llm):
        assert llm.chat("Hi").text == "ok"
        assert len(wire.posts) == 10  # more often than a busy one
    error, _ = chat_error(loading, timeouts={"load": 0.01})
    assert error.status == 503


# ----------------------------------------------------------------------------- giving up


def test_a_cancel_from_another_thread_ends_a_blocked_reader_and_the_answer() -> None:  # LB-68
    with served(LONG) as (wire, llm), llm.stream([{"role": "user", "content": "Hi"}]) as events:
        texts = [next(events).text, next(events).text]
        threading.Timer(0.1, events.cancel).start()
        rest = list(events)
        assert (texts, [type(e) for e in rest]) == (["one ", "two "], [Finish])
        assert rest[-1].reason == events.reply.finish_reason == "cancelled"
        assert wire.until(lambda: wire.gone == 1)  # the server saw its client go: its slot is free
        events.cancel()  # once more does no harm


@pytest.mark.parametrize(
    "steps", [[HANG], [head(), HANG], [b"HTTP/1.1 200", HANG]], ids=["head", "body", "half a head"]
)
def test_a_cancel_reaches_a_request_that_has_no_answer_yet(steps) -> None:  # LB-68
    with served(steps) as (wire, llm), llm.stream([{"role": "user", "content": "Hi"}]) as events:
        assert wire.until(lambda: len(wire.posts) == 1)
        threading.Timer(0.1, events.cancel, ("interrupted",)).start()
        assert [e.reason for e in events] == ["interrupted"]
        assert wire.until(lambda: wire.gone == 1)


def test_closing_or_dropping_a_stream_ends_its_request() -> None:  # LB-47
    with served(LONG) as (wire, llm):
        with llm.stream("Hi", max_tokens=9) as events:
            next(events)
        assert wire.until(lambda: wire.gone == 1)
        assert list(events) == []
        for event_ in llm.stream("Hi", max_tokens=9):
            assert isinstance(event_, Delta)
            break
        gc.collect()
        assert wire.until(lambda: wire.gone == 2)
        assert llm.provider.sender.fleet.in_flight == 0


def test_errors_of_closing_do_not_hide_what_happened() -> None:  # LB-47, LB-68
    class Stubborn(httpx.Client):
        def send(self, request, **options):
            response = super().send(request, **options)

            def close() -> None:
                again = response.is_closed
                type(response).close(response)
                if again:
                    raise OSError("closing failed")

            response.close = close
            return response

    client = Stubborn()
    with served(failed(400, "the cause"), OK, client=client) as (_, llm):
        with pytest.raises(RemoteError, match="the cause"):
            llm.chat("Hi")
        assert llm.chat("Hi").text == "ok"
    assert not client.is_closed  # LB-69: it is the caller's
    client.close()


def test_only_what_was_opened_here_is_closed() -> None:  # LB-69
    with served(OK) as (_, llm):
        llm.chat("Hi")
        lanes = llm.provider.sender.fleet.endpoints[0].lanes
        llm.unload()
        assert (lanes.kept, llm.provider.closed) == (0, True)
        llm.unload()
        with pytest.raises(LLMError, match="was unloaded"):
            llm.chat("Hi")


def test_a_stop_of_a_callback_frees_the_slot() -> None:
    from llm_magic.llm import Control

    with served(LONG) as (wire, llm):
        reply = llm.stream("Hi", on_delta=lambda e: Control.STOP)
        assert (reply.text, reply.finish_reason) == ("one ", "stop")
        assert wire.until(lambda: wire.gone == 1)


def test_many_streams_leave_nothing_behind() -> None:  # LB-67
    """120 of them; a thousand with LLM_MAGIC_LONG=1."""
    cycles = 1000 if os.environ.get("LLM_MAGIC_LONG") else 120
    short = [head(), event(chunk("a")), HANG]
    with served(short) as (wire, llm):
        with llm.stream("Hi") as events:
            next(events)
        assert wire.until(lambda: wire.open == 0)
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for i in range(cycles):
            events = llm.stream("Hi", max_tokens=3)
            if i % 3 != 2:
                next(events)
            events.close() if i % 2 else events.cancel()
            del events
        assert wire.until(lambda: wire.open == 0 and len(wire.posts) <= cycles + 1)
        assert wire.until(lambda: llm.provider.sender.fleet.in_flight == 0)
        for _ in range(100):
            if threading.active_count() <= threads:
                break
            time.sleep(0.05)
        assert threading.active_count() <= threads
        assert len(os.listdir("/proc/self/fd")) <= files + 2
        assert llm.provider.sender._alarms._set == set()


# ----------------------------------------------------------------------------- replicas


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def fleet(n: int) -> tuple[Fleet, Clock]:
    clock = Clock()
    addresses = [parse(f"http://host{i}:80") for i in range(n)]
    return Fleet([Endpoint(a, Lanes(a)) for a in addresses], clock), clock


LOST = RemoteConnectionError("gone")


def test_a_reservation_spreads_requests() -> None:  # LB-67
    servers, _ = fleet(3)
    taken = [servers.reserve() for _ in range(6)]
    assert sorted(e.in_flight for e in servers.endpoints) == [2, 2, 2]
    for endpoint in taken:
        servers.release(endpoint)
    assert servers.in_flight == 0


def test_the_count_of_requests_is_atomic() -> None:  # LB-67
    servers, _ = fleet(2)

    def work() -> None:
        for _ in range(2000):
            servers.release(servers.reserve())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e.in_flight for e in servers.endpoints] == [0, 0]


def test_the_count_is_released_after_errors_too() -> None:  # LB-67
    for steps in ([DROP], failed(400, "no"), [head(), event(chunk("a")), DROP]):
        with served(steps) as (_, llm):
            with pytest.raises(RemoteError):
                llm.chat("Hi")
            assert llm.provider.sender.fleet.in_flight == 0


def test_a_lost_server_is_left_out_for_half_a_minute_and_probed_by_one() -> None:  # LB-7
    servers, clock = fleet(2)
    first = servers.reserve()
    servers.failed(first, LOST)
    servers.release(first)
    other = next(e for e in servers.endpoints if e is not first)
    assert {servers.reserve() for _ in range(4)} == {other}
    clock.now += RETURN
    assert RETURN == 30.0
    assert servers.reserve() is first  # the probe
    assert servers.reserve() is other  # only one
    servers.succeeded(first)
    assert servers.healthy(first)
    assert servers.reserve() is first


def test_a_failed_probe_starts_the_time_anew_and_success_restores_at_once() -> None:  # LB-7
    servers, clock = fleet(2)
    first, other = servers.endpoints
    servers.failed(first, LOST)
    clock.now += RETURN
    assert servers.reserve() is first
    servers.failed(first, LOST)
    clock.now += RETURN - 1
    assert not servers.healthy(first)
    servers.succeeded(first)
    assert servers.healthy(first)
    servers.failed(other, RemoteError("busy", "busy", 429))  # an answer is no loss
    servers.failed(other, DeadlineError("slow"))
    assert servers.healthy(other)


def test_where_all_are_lost_one_is_tried_all_the_same() -> None:
    servers, _ = fleet(2)
    for endpoint in servers.endpoints:
        servers.failed(endpoint, LOST)
    assert servers.reserve() in servers.endpoints


def test_a_conversation_stays_with_its_server_while_that_is_not_busier() -> None:
    servers, _ = fleet(3)
    home = servers.reserve("talk")
    assert servers.reserve("talk") is home  # one more than the idlest
    assert servers.reserve("talk") is not home
    for key in ("a", "b", "c", "d", "e", "f"):
        again, _ = fleet(3)
        assert again.reserve(key).address == fleet(3)[0].reserve(key).address
    assert len({fleet(3)[0].reserve(k).address.base for k in "abcdefgh"}) > 1


def test_another_server_takes_over_before_the_first_piece_and_the_reply_says_which() -> None:
    with Wire([DROP]) as broken, Wire(OK) as good:
        remote = connect([broken.url, good.url], dialect="openai")
        try:
            replies = [LLM(remote).chat("Hi") for _ in range(3)]
            assert {r.text for r in replies} == {"ok"}
            assert {r.answered_by for r in replies} == {f"{good.url}#m"}
            assert len(broken.posts) <= 1  # once it has failed, it is left out
            assert "not reachable" in remote.status().servers or not broken.posts
        finally:
            remote.close()


def test_a_server_that_is_down_at_first_is_used_when_it_is_back() -> None:
    with Wire() as gone:
        url = gone.url
    with Wire(OK) as good:
        remote = connect([url, good.url], dialect="openai")
        assert LLM(remote).chat("Hi").answered_by == f"{good.url}#m"
        assert "not reachable" in remote.status().servers
        remote.close()


def test_servers_with_different_models_are_refused() -> None:
    others = {"data": [{"id": "other"}]}
    with (
        Wire(OK) as one, Wire(OK, models=others) as two,
        pytest.raises(RequestError, match="different models: m, other"),
    ):  # fmt: skip
        connect([one.url, two.url])


# ----------------------------------------------------------------------------- keys and addresses


def test_a_key_is_sent_but_never_shown(monkeypatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    leak = failed(400, "your key sk-very-secret is not known")
    with served(leak, OK, api_key="MY_KEY") as (wire, llm):
        with pytest.raises(RemoteError) as e:
            llm.chat("Hi")
        reply = llm.chat("Hi")
        assert wire.posts[-1].headers["authorization"] == "Bearer sk-very-secret"
        shown = [str(e.value), repr(e.value), repr(llm), repr(llm.provider.status())]
        shown += [repr(reply), str(reply.to_dict()), repr(llm.provider.sender._key)]
    assert not any("very-secret" in text for text in shown)
    assert "your key *** is not known" in str(e.value)


def test_a_key_itself_is_refused_and_not_repeated() -> None:
    for wrong in ("sk-live-1234", "", 5):
        with pytest.raises(RequestError, match="name of an environment variable") as e:
            Key(wrong)
        assert "sk-live" not in str(e.value)
    with pytest.raises(RequestError, match="no environment variable"):
        Key("NOT_SET_ANYWHERE")
    assert Key(lambda: "abc").text() == "abc"
    for text in ("a\nb", "é", "", None):
        with pytest.raises(RequestError, match="no usable key"):
            Key(lambda text=text: text).text()


def test_a_key_may_change_while_a_model_is_connected() -> None:
    keys = iter(["one", "two", "three"])
    with served(OK, api_key=lambda: next(keys, "last")) as (wire, llm):
        llm.chat("Hi")
        llm.chat("Hi")
        sent = [a.headers["authorization"] for a in wire.asked]
    assert len(set(sent)) == len(sent) == 3


def test_a_wrong_key_says_how_to_give_one() -> None:
    with (
        Wire(OK, routes={"/v1/models": failed(401, "no key")}) as wire,
        pytest.raises(RemoteError, match=r"401: no key\. Pass api_key="),
    ):
        connect([wire.url])


@pytest.mark.parametrize(
    ("text", "base", "root", "model"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000", ""),
        ("http://h:8000/#m", "http://h:8000/v1", "http://h:8000", "m"),
        ("HTTP://H:8000/v1/#org/m", "http://h:8000/v1", "http://h:8000", "org/m"),
        ("https://me:pw@h/api/v1?k=1", "https://h/api/v1", "https://h/api", ""),
        ("http://[::1]:9/v1/chat/completions", "http://[::1]:9/v1", "http://[::1]:9", ""),
    ],
)
def test_addresses_are_read_as_they_are_typed(text, base, root, model) -> None:
    found = parse(text)
    assert (found.base, found.root, found.model) == (base, root, model)
    assert "pw" not in found.shown + repr(found)


@pytest.mark.parametrize("text", ["http://", "ftp://h", "http://h:x", "http://u:pw@:80/a"])
def test_what_is_no_address_is_refused_without_its_password(text) -> None:
    with pytest.raises(RequestError, match="is not the address of a server") as e:
        parse(text)
    assert "pw" not in str(e.value)


def test_a_loopback_server_costs_no_certificates_and_no_proxy(monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: pytest.fail("certificates were read"))
    with served(OK) as (_, llm):
        assert llm.chat("Hi").text == "ok"


def test_a_proxy_of_the_environment_is_used_for_other_machines(monkeypatch) -> None:
    with Wire(OK, routes={"http://far.example/v1/models": answer({"data": [{"id": "m"}]})}) as wire:
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, wire.url.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        remote = connect(["http://far.example"], dialect="openai")
        assert LLM(remote).chat("Hi").text == "ok"
        assert wire.posts[-1].path == "http://far.example/v1/chat/completions"
        remote.close()


def test_a_file_of_authorities_is_read(tmp_path) -> None:
    lanes = Lanes(parse("https://h"), verify=str(tmp_path / "missing.pem"))
    with pytest.raises(OSError, match="No such file"):
        lanes._tls()
    assert Lanes(parse("https://h"), verify=False)._tls().check_hostname is False
    assert Lanes(parse("https://h"))._tls().check_hostname is True


def test_an_alarm_can_be_moved_and_removed() -> None:
    alarms, rang = Alarms(), []
    later = alarms.set(60, lambda: rang.append("later"))
    soon = alarms.set(0.01, lambda: rang.append("soon"))
    never = alarms.set(0.02, lambda: rang.append("never"))
    alarms.remove(never)
    done = threading.Event()
    alarms.set(0.05, done.set)
    assert done.wait(10)
    assert rang == ["soon"]
    moved = threading.Event()
    later.ring = moved.set
    alarms.move(later, 0.01)
    assert moved.wait(10)
    alarms.remove(soon)


def test_a_call_that_was_given_up_does_not_connect() -> None:
    from llm_magic.providers.http.lanes import Severed

    with Wire(OK) as wire:
        lanes, call = Lanes(parse(wire.url)), Call()
        call.sever()
        with pytest.raises(Severed), lanes.open(call, "GET", wire.url, {}, None):
            pass
        assert wire.asked == []
