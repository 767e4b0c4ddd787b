"""Sends requests: the one loop of attempts, with keys, limits of time, and errors.

A request is sent again only as long as nothing of its answer has come, and never because it took
too long.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from llm_magic.errors import DeadlineError, LLMError, RemoteConnectionError, RemoteError
from llm_magic.events import Prefill

from . import failures, sse
from .addresses import Key
from .alarms import Alarms
from .chunks import Reader
from .fleet import Endpoint, Fleet, Retries
from .items import CallPiece, Ended, Item, Source, Text
from .lanes import KEPT, Call, Severed
from .limits import Limit, Timeouts

MAX_ERROR = 65_536  # bytes of an answer with an error that are read
MAX_ANSWER = 512_000_000  # bytes of an answer that is no stream
LOADING_PAUSE = 1.0  # seconds between attempts while a server loads its model
PATIENCE = 60.0  # longest pause that a server may ask for
TRAILER = 0.5  # seconds for the end of a body behind the end mark

Body = Mapping[str, Any]
T = TypeVar("T")


class _StaleError(RemoteConnectionError):
    """A kept connection broke: the server may have closed it, or restarted, while nobody looked."""


class Sender:
    """Sends the requests of one provider to its servers.

    Args:
        fleet: The servers.
        key: Where the key comes from.
        timeouts: Limits of time that hold unless a call has its own.
        log: The file of the server's own log; its end becomes part of an error.
    """

    def __init__(self, fleet: Fleet, key: Key, timeouts: Timeouts, log: Path | None = None) -> None:
        self.fleet = fleet
        self.timeouts = timeouts
        self.retries = Retries()
        self._key = key
        self._alarms = Alarms()
        self._log = log

    # ------------------------------------------------------------------ one request

    def stream(
        self,
        call: Call,
        path: str,
        body: Callable[[Endpoint], Body],
        *,
        session: str = "",
        top: int | None = None,
        timeouts: Timeouts | None = None,
    ) -> Iterator[Item]:
        """The items of a streamed answer.

        Args:
            call: What another thread gives the request up with.
            path: The route behind the base address.
            body: The body for a server.
            session: What the requests of one conversation have in common.
            top: How many alternatives per token were asked for.
            timeouts: Limits of this request.
        """
        limit = Limit(self._alarms, call, timeouts or self.timeouts)

        def once(endpoint: Endpoint) -> Iterator[Item]:
            return self._streamed(endpoint, call, path, body(endpoint), session, top, limit)

        return self._attempts(call, limit, session, self.retries, once, _is_content)

    def ask(
        self,
        method: str,
        path: str,
        body: Body | Callable[[Endpoint], Body] | None = None,
        *,
        at: Endpoint | None = None,
        own_route: bool = False,
        retries: Retries | None = None,
        timeouts: Timeouts | None = None,
    ) -> Any:
        """The JSON value of an answer that is no stream.

        Args:
            method: "GET" or "POST".
            path: The route.
            body: The body, or what makes it for a server.
            at: The server; None: the idlest one.
            own_route: Whether the route is beside the base address, not below it.
            retries: When it is sent again.
            timeouts: Limits of this request.
        """
        call = Call()
        limit = Limit(self._alarms, call, timeouts or self.timeouts)

        def once(endpoint: Endpoint) -> Iterator[Any]:
            made = body(endpoint) if callable(body) else body
            yield self._answer(endpoint, call, method, path, made, own_route, limit)

        avoid = () if at is None else [e for e in self.fleet.endpoints if e is not at]
        found = list(
            self._attempts(call, limit, "", retries or self.retries, once, lambda _: True, avoid)
        )
        return found[0]

    # ------------------------------------------------------------------ attempts

    def _attempts(
        self,
        call: Call,
        limit: Limit,
        session: str,
        retries: Retries,
        once: Callable[[Endpoint], Iterator[T]],
        counts: Callable[[T], bool],
        avoid: Sequence[Endpoint] = (),
    ) -> Iterator[T]:
        tried: list[Endpoint] = []  # that failed in this round
        rounds, begun = 0, False
        try:
            while True:
                endpoint = self.fleet.reserve(session, [*avoid, *tried])
                try:
                    for item in once(endpoint):
                        begun = begun or counts(item)
                        yield item
                    self.fleet.succeeded(endpoint)
                    return
                except Exception as e:
                    error = self._error(e, endpoint, call, limit)
                    self.fleet.failed(endpoint, error)
                    if begun or not isinstance(error, RemoteError) or not error.transient:
                        raise error from (None if error is e else e)
                except BaseException as e:
                    self.fleet.failed(endpoint, e)
                    raise
                finally:
                    self.fleet.release(endpoint)
                tried.append(endpoint)
                others = [e for e in self.fleet.endpoints if e not in tried and e not in avoid]
                if any(map(self.fleet.healthy, others)):
                    continue
                rounds += 1
                self._pause(error, rounds, retries, call, limit)
                tried = []
        finally:
            limit.end()

    def _pause(
        self, error: RemoteError, rounds: int, retries: Retries, call: Call, limit: Limit
    ) -> None:
        """Wait before the next round; raises the error where there is none."""
        load = limit.timeouts.load
        pause: float | None = None
        if retries.attempts == 1:
            pass
        elif failures.is_loading(error):
            waited = time.monotonic() - limit.started
            pause = LOADING_PAUSE if load is None or waited < load else None
        elif error.kind == "connection":
            pause = 0.0 if rounds <= KEPT and isinstance(error, _StaleError) else None
        elif limit.left is not None:
            pause = max(retries.pause(min(rounds, 5)) or retries.longest, error.retry_after or 0.0)
        else:
            pause = retries.pause(rounds, error.retry_after)
        left = limit.left
        if pause is None or pause > PATIENCE or (left is not None and pause >= left):
            raise error
        if call.severed.wait(pause):
            raise self._given_up(limit)

    def _error(self, error: Exception, endpoint: Endpoint, call: Call, limit: Limit) -> Exception:
        """What a failed attempt says."""
        if call.severed.is_set() or isinstance(error, Severed):
            return self._given_up(limit)
        found = error
        if isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError):
            found = failures.of_exception(error, endpoint.address.base, self._log_end())
        if isinstance(found, LLMError):
            found.args = tuple(self._key.redact(str(arg)) for arg in found.args)
        return found

    def _given_up(self, limit: Limit) -> Exception:
        if limit.over:
            return DeadlineError(f"the server was given up: {limit.over}")
        return Severed()

    def _log_end(self) -> str:
        if self._log is None:
            return ""
        with contextlib.suppress(OSError):
            text = self._log.read_bytes()[-4 * failures.MAX_LOG :].decode("utf-8", "replace")
            return self._key.redact(text)[-failures.MAX_LOG :]
        return ""

    # ------------------------------------------------------------------ one attempt

    @contextlib.contextmanager
    def _opened(
        self, endpoint: Endpoint, call: Call, method: str, path: str, body: Body | None,
        own_route: bool, limit: Limit, session: str = "",
    ) -> Iterator[httpx.Response]:  # fmt: skip
        address = endpoint.address
        url = f"{address.root if own_route else address.base}/{path}"
        if address.query:
            url += f"?{address.query}"
        content = None
        if body is not None:
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        headers = self._headers(endpoint, session)
        limit.phase(limit.timeouts.load, "an answer to begin")
        try:
            with endpoint.lanes.open(call, method, url, headers, content) as response:
                if response.is_success:
                    yield response
                    return
                text = self._error_text(response)
                where = endpoint.address.base
                if path not in ("chat/completions",) and failures.missing_route(
                    response.status_code, text
                ):
                    raise failures.no_route(path, where, text)
                raise failures.of_answer(
                    response.status_code, response.headers, self._key.redact(text), where
                )
        except httpx.TransportError as e:
            error = failures.of_exception(e, address.base, self._log_end())
            if (
                isinstance(error, RemoteError)
                and error.kind == "connection"
                and not (call.fresh or isinstance(e, httpx.ConnectError | httpx.ConnectTimeout))
            ):
                raise _StaleError(str(error)) from e
            raise error from e

    def _headers(self, endpoint: Endpoint, session: str) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json"}
        headers["accept"] += ", text/event-stream"
        if key := self._key.text():
            headers["authorization"] = f"Bearer {key}"
        elif endpoint.address.login:
            headers["authorization"] = endpoint.address.login
        if session:
            headers["x-session-id"] = session
        return headers

    def _error_text(self, response: httpx.Response) -> str:
        found = b""
        for piece in response.iter_bytes():
            found += piece
            if len(found) > MAX_ERROR:
                break
        return found.decode("utf-8", "replace")

    def _answer(
        self, endpoint: Endpoint, call: Call, method: str, path: str, body: Body | None,
        own_route: bool, limit: Limit,
    ) -> Any:  # fmt: skip
        with self._opened(endpoint, call, method, path, body, own_route, limit) as response:
            limit.phase(limit.timeouts.prompt, "the answer")
            found = _json_of(response, endpoint.address.base)
        if call.severed.is_set():
            raise Severed
        if isinstance(found, Mapping) and (
            error := failures.of_event(found, endpoint.address.base)
        ):
            raise error
        return found

    def _streamed(
        self, endpoint: Endpoint, call: Call, path: str, body: Body, session: str,
        top: int | None, limit: Limit,
    ) -> Iterator[Item]:  # fmt: skip
        where = endpoint.address.base
        started = time.monotonic()
        reader = Reader(where, top)
        with self._opened(endpoint, call, "POST", path, body, False, limit, session) as response:
            self.fleet.succeeded(endpoint)
            limit.phase(limit.timeouts.prompt, "the first piece of the answer")
            yield Source(where, str(body.get("model") or ""))
            ended = begun = False
            try:
                for chunk in _chunks(response, where, limit):
                    if chunk is None and not ended:
                        ended = True
                        yield Ended("stop")
                    for item in reader.read(chunk or {}, time.monotonic() - started):
                        ended = ended or isinstance(item, Ended)
                        if _is_content(item) and not begun:
                            begun = True
                            limit.phase(limit.timeouts.gap, "the next piece of the answer")
                        elif _is_content(item) or isinstance(item, Prefill):
                            limit.again()
                        yield item
            except httpx.HTTPError:
                if not ended:  # else it is whole, and only its end mark is missing
                    raise
        if not ended:
            if call.severed.is_set():
                raise Severed
            raise RemoteConnectionError(f"{where} ended the stream in the middle of the answer")


def _chunks(
    response: httpx.Response, where: str, limit: Limit
) -> Iterator[Mapping[str, Any] | None]:
    """The JSON objects of an answer, whether it is a stream or not; None for the end mark."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        found = _json_of(response, where)
        if not isinstance(found, Mapping):
            raise RemoteError(f"{where} answered with JSON that is no object")
        yield _checked(found, where)
        yield None
        return
    if kind.startswith("text/html"):
        raise RemoteError(f"{where} answered with a web page: it is no server of this protocol")
    events = sse.events(response)
    for event in events:
        if event is None:  # the end mark: what follows is the end of the body
            limit.phase(TRAILER, "the end of the stream")
            with contextlib.suppress(Exception):
                next(events, None)
            limit.end_phase()
            yield None
            return
        yield _checked(event, where)


def _checked(event: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if (error := failures.of_event(event, where)) is not None:
        raise error
    return event


def _json_of(response: httpx.Response, where: str) -> Any:
    found = bytearray()
    for piece in response.iter_bytes():
        found += piece
        if len(found) > MAX_ANSWER:
            raise RemoteError(f"{where} sent more than {MAX_ANSWER:,} bytes")
    try:
        return json.loads(found)
    except (ValueError, RecursionError):
        raise RemoteError(
            f"{where} answered with something that is no JSON: {bytes(found[:80])!r}"
        ) from None


def _is_content(item: object) -> bool:
    """Whether an item is part of the answer, behind which nothing is sent again."""
    return isinstance(item, Text | CallPiece)
