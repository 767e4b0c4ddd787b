"""The stream of one remote request: items of a server in, events with text out.

A server tells reasoning, answer and calls apart, or writes some of them into the text. What it
tells is taken as it is; text goes through the same router as that of the local engine, which finds
inline tags and bare JSON calls.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

from llm_magic.chat.fold import Fold
from llm_magic.chat.parsing.router import Router
from llm_magic.chat.stream import FoldedStream
from llm_magic.errors import LLMError, RemoteError
from llm_magic.events import (
    CallDone,
    Delta,
    Event,
    Finish,
    FinishReason,
    Prefill,
    Timings,
    Token,
    Usage,
)

from .calls import Assembly
from .discover import short_name
from .exchange import Exchange, Failure
from .items import Asked, CallPiece, Counts, Ended, Source, Text, Times


@dataclass(frozen=True, slots=True)
class Plan:
    """How the items of an answer become events.

    Attributes:
        given: Tokens that the answer begins with; the server does not send them again.
        router: Makes the router, and once more behind native calls, then without tools.
        thinking: Whether the reasoning is shown.
        parse: The Python value of a whole constrained answer. Raises what an answer that breaks
            the constraint is.
        suffix: Text behind a finished answer.
        must_call: Whether an answer without a tool call breaks the request.
        echo: Text before the answer.
    """

    router: Callable[[bool], Router]
    given: tuple[Token, ...] = ()
    thinking: bool = True
    parse: Callable[[str], Any] | None = None
    suffix: str = ""
    must_call: bool = False
    echo: str = ""
    echoed: tuple[Token, ...] = ()


class RemoteStream(FoldedStream):
    """A Stream over an exchange. Iterate on one thread; `cancel` and `close` are safe from any."""

    def __init__(self, exchange: Exchange, plan: Plan, fold: Fold) -> None:
        super().__init__(fold)
        self._exchange = exchange
        self._plan = plan
        self._router = plan.router(True)
        self._calls = Assembly()
        self._tail: list[Token] = []  # without text of their own, behind everything else
        self._native = False
        self._called = False  # whether a call was recovered from text
        self._started = time.monotonic()
        self._first = 0.0  # seconds until the first text
        self._last = 0.0
        self._kept = 0  # tokens of reasoning and calls, which the router does not count
        self._counts: Counts | None = None
        self._times: Timings | None = None
        self._prefill = Prefill(0, 0, 0)
        self._reason: FinishReason | None = None
        self._cancelled: FinishReason | None = None
        self._limit: int | None = None
        if plan.echo:
            self._out.append(Delta("answer", plan.echo, plan.echoed))
        for token in plan.given:
            self._push(replace(token, forced=True, at=0.0))

    # ------------------------------------------------------------------ items

    def _pull(self) -> None:
        if self._cancelled is not None and (self._limit is None or self._total >= self._limit):
            self._end()
            return
        item = self._exchange.next()
        self._last = time.monotonic() - self._started
        match item:
            case None:
                self._end()
            case Failure(error):
                self._fail(error)
            case Text(kind, text, tokens):
                self._text(kind, text, tokens)
            case CallPiece():
                self._call(item)
            case _:
                self._note(item)

    def _note(self, item: object) -> None:
        match item:
            case Prefill():
                self._prefill = item
                self._out.append(item)
            case Counts():
                self._counts = item
            case Times(timings):
                self._times = timings
            case Ended(reason):
                self._reason = reason
            case Source(where, model):
                self._fold.answered_by = f"{where}#{short_name(model)}" if model else where
            case Asked(text, ids):
                self._fold.asked(text, ids)

    @property
    def _total(self) -> int:
        return self._router.kept + self._kept

    def _text(self, kind: str, text: str, tokens: Sequence[Token]) -> None:
        if not text:
            self._tail += tokens
            return
        self._begin()
        own = tuple(tokens)
        if not own:  # the server tells no tokens: a piece of text counts as one
            own = (Token(None, text.encode("utf-8", "replace"), None, None, at=self._last),)
        if kind == "reasoning":
            if self._plan.thinking:
                self._kept += len(own)
                self._out.append(Delta("reasoning", text, own))
            return
        for token in own:
            self._push(token)

    def _push(self, token: Token) -> None:
        self._out.extend(self._shown(self._router.push(token)))
        if self._router.stopped:
            self._exchange.stop()

    def _shown(self, events: Sequence[Event]) -> Iterator[Event]:
        for event in events:
            if self._plan.thinking or not (isinstance(event, Delta) and event.kind == "reasoning"):
                yield event

    def _call(self, piece: CallPiece) -> None:
        self._begin()
        if not self._native:  # what was held back as a possible call is text
            self._native = True
            self._flush()
            self._kept += self._router.kept
            self._called = bool(self._router.calls)
            self._router = self._plan.router(False)
        self._kept += len(piece.tokens)
        self._out.extend(self._calls.push(piece))

    def _begin(self) -> None:
        self._first = self._first or self._last

    def _flush(self) -> FinishReason:
        events, reason = self._router.finish(self._reason or "stop")
        self._out.extend(self._shown(events))
        return reason

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        if self._closed and self._cancelled is None:
            self._done = True
            return
        stopped = self._router.stopped
        reason = self._flush()
        self._called = self._called or bool(self._router.calls)
        self._out.extend(self._calls.finish())
        if self._tail:
            self._kept += len(self._tail)
            self._out.append(Delta("answer", "", tuple(self._tail)))
        called = self._called or any(isinstance(event, CallDone) for event in self._out)
        if stopped:
            reason = "stop"
        elif self._cancelled is not None:
            reason = self._cancelled
        elif called and reason in ("stop", "tool_calls"):
            reason = "tool_calls"
        elif reason == "tool_calls":
            reason = "stop"  # the server says so, but there is no call
        if self._plan.must_call and reason == "stop" and self._cancelled is None:
            self._fail(RemoteError("the server did not hold the model to a tool call"))
        if self._plan.parse is not None and reason == "stop" and self._cancelled is None:
            self._read_value(self._plan.parse)
        if self._plan.suffix:
            self._out.append(Delta("answer", self._plan.suffix))
        self._out.append(Finish(reason, self._usage(), self._measured()))
        self._done = True

    def _usage(self) -> Usage:
        own = self._total
        if self._counts is None or self._cancelled is not None:
            counts = self._counts or Counts()
            prompt = counts.prompt or self._prefill.total
            return Usage(prompt, counts.cached or self._prefill.cached, own)
        counts = self._counts
        given = len(self._plan.given)
        prompt = counts.prompt - given if given else counts.prompt
        completion = own if self._router.stopped else counts.completion + given
        return Usage(max(prompt, 0), counts.cached, completion)

    def _measured(self) -> Timings:
        """The server's times, else what was seen here; a number that nobody knows is 0."""
        if self._times is not None:
            return replace(self._times, first_token=self._first)
        decode = max(0.0, self._last - self._first) if self._first else 0.0
        n = self._counts.completion if self._counts else 0
        tps = (n - 1) / decode if n > 1 and decode > 0 else 0.0
        return Timings(first_token=self._first, decode=decode, decode_tps=tps)

    def _read_value(self, parse: Callable[[str], Any]) -> None:
        texts = [e.text for e in self._out if isinstance(e, Delta) and e.kind == "answer"]
        answer = self._fold.text.removeprefix(self._plan.echo) + "".join(texts)
        try:
            self._fold.parsed = parse(answer)
        except LLMError as e:
            self._fail(e)

    def _fail(self, error: Exception) -> NoReturn:
        """Raise the error with everything that came before it as its partial reply."""
        self._done = True
        self._flush()
        self._out.extend(e for e in self._calls.finish() if not isinstance(e, CallDone))
        self._exchange.stop()
        self._raise(error, "internal error in the remote provider")

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """Sever the connection, which frees the server's slot; the stream ends with Finish(reason).

        `keep`: how many tokens count; tokens that were not read yet do not.
        """
        if self._done or self._cancelled is not None:
            return
        self._limit = keep
        self._cancelled = cast(FinishReason, reason)
        if keep is None or self._total >= keep:
            self._exchange.stop()

    def close(self) -> None:
        """Sever the connection and forget what came. Idempotent."""
        if not self._closed:
            self._closed = True
            self._exchange.stop()

    def __del__(self) -> None:
        # A stream dropped half way (a `for` left by break) must not go on in the background.
        if hasattr(self, "_exchange") and not self._done:
            self._exchange.stop()
