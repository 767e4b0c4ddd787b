"""Requests that the model writes something for: /v1/chat/completions and /v1/completions.

Errors that show before the first token are HTTP errors; what fails later is an event of the stream.
A client that goes away, or a limit of time, stops the streams, and their slots become free.
"""

import asyncio
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from starlette.types import Receive, Scope, Send

from ..chat.reply import Reply
from ..events import CallDelta, Delta, Finish
from ..json_types import JsonObject
from ..llm import LLM
from ..provider import Request, Stream
from .asks import Ask
from .chat import Chat
from .floor import Floor
from .problems import FAILED, ApiError, problem
from .reading import Choice, Ended, Failed, Gone, Item, Reading
from .shape import Shape, usage
from .stats import Stats, served
from .text import Text

QUIET_SECONDS = 15.0  # without an event, until a comment shows that the connection lives
# Between two sends. Each wakes the client, which takes a core that the model could use.
PACE_SECONDS = 0.02
ALIVE = b": still here\n\n"
END = b"data: [DONE]\n\n"
STREAM_HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"),
                  (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))  # fmt: skip
Route = Literal["chat", "text"]


@dataclass(frozen=True, slots=True)
class Kitchen:
    """What every answer of a server needs. seconds: the most that a request may take."""

    llm: LLM
    name: str
    floor: Floor
    stats: Stats
    seconds: float


class Answer:
    """The response to one request; an ASGI application."""

    def __init__(self, kitchen: Kitchen, route: Route, ask: Ask) -> None:
        self._kitchen, self._route, self._ask = kitchen, route, ask
        self._began = time.perf_counter()
        prefix = "chatcmpl" if route == "chat" else "cmpl"
        self._id = f"{prefix}-{secrets.token_hex(12)}"
        about = (self._id, int(time.time()), kitchen.name, ask)
        self._shape: Shape = Chat(*about) if route == "chat" else Text(*about)
        self._count = len(ask.requests) * ask.drawn
        self._replies: dict[int, Reply] = {}
        self._headers_sent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        choices = [self._choice(request) for request in self._ask.choices()]
        reading = Reading(self._kitchen.floor, choices)
        watch = asyncio.ensure_future(_until_gone(receive, reading))
        try:
            async with asyncio.timeout(self._kitchen.seconds):
                reading.start()
                await (self._stream if self._ask.stream else self._whole)(reading, send)
        except TimeoutError:
            limit = self._kitchen.seconds
            said = f"the request took longer than the {limit:g} seconds that this server allows"
            no_retry = {"x-should-retry": "false"}
            await self._fail(ApiError(504, said, FAILED, "timeout", headers=no_retry), send)
        except Gone:
            return
        except Exception as e:
            await self._fail(problem(e), send)
        finally:
            watch.cancel()
            reading.close()

    def _choice(self, request: Request) -> Choice:
        """How one answer is made: started, completed, and counted. Runs on a thread."""
        prepared = [0.0]

        def start() -> Stream:
            began = time.perf_counter()
            stream = self._kitchen.llm.provider.stream(request)
            prepared[0] = time.perf_counter() - began
            return stream

        def told(reply: Reply | None, error: Exception | None) -> None:
            if reply is not None:
                seconds = time.perf_counter() - self._began
                one = served(self._id, self._route, reply, prepared[0], seconds)
                self._kitchen.stats.answer(one)

        return Choice(start, self._completer(request), told, self._ask.one_call)

    def _completer(self, request: Request) -> Callable[[Reply], Reply]:
        """Completes the tokens of an echoed prompt whose answer ended at once.

        Those who score a text that way take the entries up to the last one, which belongs to the
        token that was drawn; the token that ends an answer is no part of a reply, so it is scored.
        """
        wanted = self._ask.logprobs
        asked = request.sampling.max_tokens != 0
        provider = self._kitchen.llm.provider

        def complete(reply: Reply) -> Reply:
            if not (request.echo and asked and wanted is not None and reply.prompt_ids):
                return reply
            if reply.usage.completion or reply.finish_reason != "stop":
                return reply
            ids = reply.prompt_ids
            behind = provider.score((*ids, ids[0]), max(1, wanted))[-1]
            end = behind.top[0]
            token = replace(behind, id=end.id, bytes=end.bytes, logprob=end.logprob, rank=1)
            tokens = (*reply.tokens, replace(token, trimmed=True, forced=False))
            return replace(reply, tokens=tokens, kinds=(*reply.kinds, "answer"))

        return complete

    # ------------------------------------------------------------------ streamed

    async def _stream(self, reading: Reading, send: Send) -> None:
        while (batch := await reading.batch(self._pause)) is not None:
            if not self._headers_sent:
                self._raise_first(batch)
                await self._open_stream(send)
            chunks: list[JsonObject] = []
            try:
                for item in batch:
                    chunks += self._chunks(*item)
            finally:  # what came before a failure is sent too
                await _send(send, b"".join(map(_event, chunks)) if batch else ALIVE)
            await reading.pause(PACE_SECONDS)
        total = _event(self._shape.total(self._usage())) if self._ask.usage else b""
        await _send(send, total + END, last=True)

    @property
    def _pause(self) -> float | None:
        return QUIET_SECONDS if self._headers_sent else None

    async def _open_stream(self, send: Send) -> None:
        self._headers_sent = True
        headers = list(STREAM_HEADERS)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        first = [chunk for i in range(self._count) for chunk in self._shape.first(i)]
        await _send(send, b"".join(map(_event, first)))

    def _raise_first(self, batch: list[Item]) -> None:
        """An error before the first token is an HTTP error."""
        for _, item in batch:
            if isinstance(item, Delta | CallDelta):
                return
            if isinstance(item, Failed):
                raise item.error

    def _chunks(self, index: int, item: object) -> list[JsonObject]:
        match item:
            case Failed(error):
                raise error
            case Ended(reply):
                self._replies[index] = reply
                _check_end(reply)
                return self._shape.last(index, reply)
            case Finish():
                return []
            case _:
                return self._shape.event(index, item)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ at once

    async def _whole(self, reading: Reading, send: Send) -> None:
        while (batch := await reading.batch()) is not None:
            for index, item in batch:
                if isinstance(item, Failed):
                    raise item.error
                if isinstance(item, Ended):
                    _check_end(item.reply)
                    self._replies[index] = item.reply
        body = self._shape.whole(self._best(), self._usage())
        await _send_json(send, 200, body)

    def _best(self) -> list[Reply]:
        """The answers that are sent: of each prompt's the most likely ones, in their order."""
        n, drawn = self._ask.n, self._ask.drawn
        replies = [self._replies[i] for i in range(self._count)]
        if n == drawn:
            return replies
        best: list[Reply] = []
        for start in range(0, self._count, drawn):
            group = replies[start : start + drawn]
            order = sorted(range(drawn), key=lambda i: -_likely(group[i]))
            best += [group[i] for i in sorted(order[:n])]
        return best

    def _usage(self) -> JsonObject:
        replies = [self._replies[i] for i in range(self._count)]
        return usage([reply.usage for reply in replies[:: self._ask.drawn]], replies)

    async def _fail(self, error: ApiError, send: Send) -> None:
        if self._headers_sent:
            await _send(send, _event(error.body()) + END, last=True)
        else:
            await _send_json(send, error.status, error.body(), error)


def _likely(reply: Reply) -> float:
    mean = reply.mean_logprob
    return -math.inf if mean is None else mean


def _check_end(reply: Reply) -> None:
    """An answer that somebody else ended is no whole answer."""
    if reply.finish_reason in ("cancelled", "interrupted"):
        raise ApiError(503, "the server has stopped", FAILED, "stopped")


async def _until_gone(receive: Receive, reading: Reading) -> None:
    """Stop the streams when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.close()


def _event(data: JsonObject) -> bytes:
    """An event of a stream."""
    return b"data: " + _json(data) + b"\n\n"


def _json(data: JsonObject) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


async def _send(send: Send, body: bytes, last: bool = False) -> None:
    if body or last:
        await send({"type": "http.response.body", "body": body, "more_body": not last})


async def _send_json(
    send: Send, status: int, data: JsonObject, error: ApiError | None = None
) -> None:
    body = _json(data)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if error is not None:
        headers += [(k.encode(), v.encode()) for k, v in error.headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _send(send, body, last=True)
