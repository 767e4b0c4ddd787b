"""The stream of one request: tokens of a generation in, events with text out.

A `TokenStream` reads a source (an engine's generation, a script), turns its tokens into text with a
router, and keeps the reply so far in a fold. `Continued` is a source that begins with given tokens.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol, Self, runtime_checkable

from ..errors import EngineError, Interrupted, LLMError, named
from ..events import (
    Delta,
    Event,
    Finish,
    Prefill,
    Progress,
    Queued,
    Timings,
    Token,
    Usage,
)
from .fold import Fold
from .interrupts import deferred
from .parsing.router import Router
from .reply import Reply


@runtime_checkable
class Stream(Protocol):
    """Events of one request. Iterate on one thread; `cancel` and `close` are safe from any thread.

    The last event is `Finish`, exactly once; a failure raises from `__next__`, with `.partial`.
    """

    @property
    def reply(self) -> Reply:
        """The reply so far; final once Finish was read."""

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """Stop soon; the stream still ends with Finish(reason). `keep`: how many tokens count."""

    def close(self) -> None:
        """Stop and forget: no further event comes. Idempotent."""

    def __enter__(self) -> "Stream": ...

    def __exit__(self, *exc: object) -> None: ...


class Source(Protocol):
    """What a stream reads. `keep` of cancel: how many tokens count as kept."""

    def __next__(self) -> Queued | Progress | Prefill | Token | Finish: ...

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None: ...

    def close(self) -> None: ...


class Continued:
    """A source that begins with given tokens and goes on with those of another source.

    Args:
        given: The first tokens of the answer; they are marked as forced.
        inner: What follows; None where nothing can, because the last given token ends an answer.
        prompt: Tokens of the prompt, without the given ones.
    """

    def __init__(self, given: Sequence[Token], inner: Source | None, prompt: int) -> None:
        self._given = deque(replace(token, forced=True, at=0.0) for token in given)
        self._count = len(given)
        self._inner = inner
        self._prompt = prompt
        self._ended = False

    def __next__(self) -> Queued | Progress | Prefill | Token | Finish:
        if self._ended:
            raise StopIteration
        if self._given:
            return self._given.popleft()
        if self._inner is None:
            self._ended = True
            return Finish("stop", Usage(self._prompt, completion=self._count), Timings())
        item = next(self._inner)
        if isinstance(item, Finish):
            completion = self._count + item.usage.completion
            usage = replace(item.usage, prompt=self._prompt, completion=completion)
            return replace(item, usage=usage)
        return item

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        if self._inner is not None:
            self._inner.cancel(reason, None if keep is None else max(0, keep - self._count))

    def close(self) -> None:
        self._ended = True
        if self._inner is not None:
            self._inner.close()


class FoldedStream:
    """What streams have in common: events wait in `_out`, and what was read is in the reply."""

    def __init__(self, fold: Fold, first: Iterable[Event] = ()) -> None:
        self._fold = fold
        self._out: deque[Event] = deque(first)
        self._done = self._closed = False

    @property
    def reply(self) -> Reply:
        """The reply so far; final once Finish was read."""
        return self._fold.reply()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while not self._out:
            if self._done or self._closed:
                raise StopIteration
            self._pull()
        event = self._out.popleft()
        self._fold.add(event)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _pull(self) -> None:
        """Wait for what comes next, and put its events into `_out`."""
        raise NotImplementedError

    def close(self) -> None:
        """See Stream.close."""
        raise NotImplementedError

    def _raise(self, error: Exception, what: str) -> NoReturn:
        """Raise an error with everything that came before it as its partial reply.

        Args:
            error: What happened. What is not an error of the package becomes the cause of one.
            what: The beginning of its message then.
        """
        for event in self._out:
            self._fold.add(event)
        self._out.clear()
        if not isinstance(error, LLMError):
            wrapped = EngineError(f"{what}: {named(error)}")
            wrapped.__cause__ = error
            error = wrapped
        error.partial = self._fold.reply()
        raise error


class TokenStream(FoldedStream):
    """A Stream over a source of tokens.

    Iterate on one thread; `cancel` and `close` are safe from any. `first`: events that come before
    everything else (an echoed prompt). `suffix`: text appended to a finished answer. `parse`: makes
    the reply's `parsed` of an answer that was not cut. `load`: seconds of loading before this.
    """

    def __init__(
        self,
        source: Source,
        router: Router,
        fold: Fold,
        first: Sequence[Event] = (),
        suffix: str = "",
        parse: Callable[[str], object] | None = None,
        load: float = 0.0,
    ) -> None:
        super().__init__(fold, first)
        self._source = source
        self._router = router
        self._echo = "".join(e.text for e in first if isinstance(e, Delta))
        self._suffix = suffix
        self._parse = parse
        self._load = load
        self._limit: int | None = None  # tokens that count, once somebody said so
        self._tokens: list[Token] = []  # as they came; the router decides which are kept

    def _pull(self) -> None:
        try:
            item = next(self._source)
        except StopIteration:
            if self._closed:
                raise
            self._fail(EngineError("internal error: the token source ended without a Finish event"))
        except Exception as e:
            self._fail(e)
        match item:
            case Token():
                if self._over():
                    return  # the engine ran ahead of a stop
                self._tokens.append(item)
                self._out.extend(self._router.push(item))
                if self._router.stopped:
                    self._source.cancel("stop", keep=self._router.kept)
            case Finish():
                self._end(item)
            case _:
                self._out.append(item)

    def _over(self) -> bool:
        return self._router.stopped or self._router.kept == self._limit

    def _end(self, finish: Finish) -> None:
        reason = "stop" if self._router.stopped else finish.reason
        events, reason = self._router.finish(reason)
        self._out.extend(events)
        if self._parse is not None and reason == "stop":
            self._read_value(self._parse)
        if self._suffix:
            self._out.append(Delta("answer", self._suffix))
        kept = self._router.kept
        usage = finish.usage
        usage = replace(usage, completion=kept, guessed=min(usage.guessed, kept))
        timings = finish.timings
        if kept != finish.usage.completion:  # it ended by itself before our cancel arrived
            drawn = [t.at for t in self._tokens[:kept] if not t.forced]
            decode = drawn[-1] - drawn[0] if drawn else 0.0
            tps = (len(drawn) - 1) / decode if decode > 0 else 0.0
            timings = replace(timings, decode=decode, decode_tps=tps)
        timings = replace(timings, load=timings.load + self._load)
        self._out.append(Finish(reason, usage, timings))
        self._done = True

    def _fail(self, error: Exception) -> NoReturn:
        """Raise the error with everything that came before it as its partial reply."""
        self._done = True
        held, _ = self._router.finish("stop")  # text that waited for a tag or a stop string
        self._out.extend(held)
        self._raise(error, "generation failed")

    def _read_value(self, parse: Callable[[str], object]) -> None:
        texts = [e.text for e in self._out if isinstance(e, Delta) and e.kind == "answer"]
        try:
            self._fold.parsed = parse(self._fold.text.removeprefix(self._echo) + "".join(texts))
        except LLMError as e:
            self._fail(e)
        except ValueError:
            pass  # ended by hand before it was whole

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """See Stream.cancel. "stop" without `keep`: the tokens that were read so far count."""
        if reason == "stop" and keep is None:
            keep = self._router.kept
        if keep is not None:
            self._limit = keep
        self._source.cancel(reason, keep)

    def close(self) -> None:
        self._closed = True
        self._source.close()

    def __del__(self) -> None:
        # A stream dropped half way (a `for` left by break) must not go on in the background.
        if not self._done and not self._closed:
            self.close()


# ----------------------------------------------------------------------------- reading a stream


def interruptible(stream: Stream) -> Iterator[Event]:
    """The stream's events on the main thread, with Ctrl-C (or the stop button) handled.

    The first interrupt cancels the stream; its last events still come, and after them `Interrupted`
    is raised with the partial reply. A second interrupt raises at once. None gets lost, and none
    raises in the middle of what the reader of these events does with one (see interrupts.py).
    """
    interrupted = False
    events = iter(stream)
    with deferred(lambda: stream.cancel("interrupted")) as interrupts:
        while True:
            try:
                event = next(events)
            except StopIteration:
                break
            except KeyboardInterrupt as e:  # the second, or the first while a tool ran
                if interrupted or interrupts.struck:
                    stream.close()
                    raise _interrupted(stream) from None
                if isinstance(e, Interrupted):
                    raise
                interrupted = True
                stream.cancel("interrupted")
                continue
            yield event
    if interrupted or interrupts.struck:
        raise _interrupted(stream)


def _interrupted(stream: Stream) -> Interrupted:
    reply = stream.reply
    n = len(reply.tokens)
    return Interrupted(f"interrupted after {n} token{'' if n == 1 else 's'}", reply)


def drained(stream: Stream) -> Reply:
    """Read a stream to its end. On the main thread an interrupt ends it with `Interrupted`."""
    with stream:
        # The loop must see the end by itself: leaving it at Finish would hide an interrupt.
        for _ in interruptible(stream):
            pass
    return stream.reply
