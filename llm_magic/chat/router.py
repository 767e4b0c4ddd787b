"""From tokens to deltas: UTF-8, stop strings, reasoning, tool calls.

What comes in: `Token`s with bytes, one at a time. What goes out: `Delta`, `CallDelta`, `CallDone`
events that carry every kept token exactly once, in order. It must not know engines or displays.

Positions: text is counted in characters since the start of the output. A token is queued with the
position of the first character that has a byte of it and the position after its last one; it rides
on the event that brings the text up to there.
"""

import codecs
import re
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import replace

from ..events import CallDelta, CallDone, Delta, DeltaKind, FinishReason, Token, ToolSpec
from .syntax import ReasoningTags, Syntax

RouterEvent = Delta | CallDelta | CallDone


class Patterns:
    """Literal strings to look for in text that arrives in pieces. The earliest start wins."""

    def __init__(self, literals: Sequence[str]) -> None:
        # Shortest first: at one start, what is complete first wins, however the text is cut.
        ordered = sorted(dict.fromkeys(filter(None, literals)), key=len)
        self._search = re.compile("|".join(map(re.escape, ordered))).search if ordered else None
        self._prefixes = frozenset(s[:n] for s in ordered for n in range(1, len(s)))
        self._longest = max(map(len, ordered), default=1) - 1

    def find(self, text: str) -> re.Match[str] | None:
        return self._search(text) if self._search else None

    def hold(self, text: str) -> int:
        """Where the longest tail starts that may still become one of the strings."""
        prefixes = self._prefixes
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start:] in prefixes:
                return start
        return len(text)


class Router:
    """Splits one generation. Feed it every token with `push`, then call `finish` once.

    stopped: a stop string matched; the caller ends the generation with keep=`kept`.
    kept: how many of the pushed tokens count; those of a matched stop string do not.
    """

    def __init__(
        self,
        stop: tuple[str, ...] = (),
        reasoning: ReasoningTags | None = None,
        in_reasoning: bool = False,
        syntax: Syntax | None = None,
        tools: tuple[ToolSpec, ...] = (),
        stop_in_reasoning: bool = False,
    ) -> None:
        self.stopped = False
        self.kept = 0
        self._stops = Patterns(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._received = 0  # characters decoded so far
        self._text = ""  # received, not settled yet
        self._base = 0  # position of _text[0]
        self._ended = False
        self._queue: deque[tuple[int, int, Token]] = deque()
        self._events: list[RouterEvent] = []
        self._machine = self._content()
        next(self._machine)

    def push(self, token: Token) -> tuple[RouterEvent, ...]:
        """The events that this token settles; often one, sometimes none."""
        if self.stopped:
            return ()
        self.kept += 1
        start = self._received
        text = self._decoder.decode(token.bytes)
        self._received = end = start + len(text)
        if self._decoder.getstate()[0]:
            end += 1  # its last byte belongs to a character that is still to come
        self._queue.append((start, end, token))
        return self._advance(text) if text else ()

    def finish(self, reason: FinishReason) -> tuple[tuple[RouterEvent, ...], FinishReason]:
        """What was held back, and the reason with stop strings and calls taken into account."""
        if self.stopped:
            return (), "stop"
        self._ended = True
        text = self._decoder.decode(b"", final=True)
        self._received += len(text)
        events = self._advance(text)
        if self._queue and not self.stopped:  # tokens without text of their own
            events += (Delta("answer", "", tuple(t for _, _, t in self._queue)),)
        return events, "stop" if self.stopped else reason

    def _advance(self, text: str) -> tuple[RouterEvent, ...]:
        self._text += text
        next(self._machine, None)
        events = tuple(self._events)
        self._events.clear()
        return events

    def _content(self) -> Generator[None, None, None]:
        """Answer text up to a stop string."""
        patterns = self._stops
        while True:
            text = self._text
            hold = len(text) if self._ended else patterns.hold(text)
            match = patterns.find(text)
            # A string that starts earlier may still be on its way: it would win.
            if match and match.start() <= hold:
                self._stop("answer", match.start())
                return
            self._emit("answer", hold)
            if self._ended:
                return
            yield

    def _emit(self, kind: DeltaKind, n: int) -> None:
        """Settle the next `n` characters as text of this kind."""
        if n:
            text, self._text = self._text[:n], self._text[n:]
            self._base += n
            self._events.append(Delta(kind, text, self._take(self._base)))

    def _take(self, position: int) -> tuple[Token, ...]:
        """The queued tokens that end at or before this position."""
        queue, tokens = self._queue, []
        while queue and queue[0][1] <= position:
            tokens.append(queue.popleft()[2])
        return tuple(tokens)

    def _stop(self, kind: DeltaKind, n: int) -> None:
        """A stop string starts after `n` more characters: settle these, drop the rest."""
        position = self._base + n
        tokens = list(self._take(position))
        while self._queue and self._queue[0][0] < position:
            tokens.append(replace(self._queue.popleft()[2], trimmed=True))
        self.kept -= len(self._queue)
        self._queue.clear()
        if n or tokens:
            self._events.append(Delta(kind, self._text[:n], tuple(tokens)))
        self._text = ""
        self.stopped = True
