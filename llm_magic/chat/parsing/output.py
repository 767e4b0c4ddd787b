"""The events of a router: text, calls, and the tokens that brought them.

Positions are counted in characters since the start of the output. A token is queued with the
position of the first character that has one of its bytes, and the position after the last one. It
is attached to the event that brings the text up to there; tokens of markup to the next event.
"""

from collections import deque
from dataclasses import replace

from llm_magic.events import CallDelta, CallDone, Delta, DeltaKind, Token, ToolCall

from .markup.tape import Tape
from .syntax import new_call_id

RouterEvent = Delta | CallDelta | CallDone


class Output:
    """Collects the events of one generation.

    Attributes:
        queue: Tokens whose text is still on the tape, each with its start and end.
        events: Events that were not taken yet.
        calls: The complete calls so far.
        kept: How many of the pushed tokens count.
        stopped: Whether a stop string matched.
        fresh: Whether no visible text came since the start or the last markup.
        shown: The kinds of text that were shown.
        gap: White space that goes before the next text of a kind.
        unreadable: The kind of text that an unreadable call becomes.
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.queue: deque[tuple[int, int, Token]] = deque()
        self.events: list[RouterEvent] = []
        self.calls: list[ToolCall] = []
        self.kept = 0
        self.stopped = False
        self.fresh = True
        self.shown: set[DeltaKind] = set()
        self.gap: dict[DeltaKind, str] = {"answer": "", "reasoning": ""}
        self.unreadable: DeltaKind = "answer"

    def take_events(self) -> tuple[RouterEvent, ...]:
        """The events since the last call."""
        events = tuple(self.events)
        self.events.clear()
        return events

    def text(self, kind: DeltaKind, n: int) -> None:
        """Settle the next `n` characters as text of this kind."""
        if n:
            self._show(kind, self._tape.drop(n), self._take(self._tape.base))

    def raw(self, text: str) -> None:
        """Show text that was dropped from the tape as a call, but is none."""
        self._show(self.unreadable, text, self._take(self._tape.base))

    def _show(self, kind: DeltaKind, text: str, tokens: tuple[Token, ...]) -> None:
        if not text.isspace():
            self.fresh = False
        if self.gap[kind]:
            text = self.gap[kind] + text if kind in self.shown else text
            self.gap[kind] = ""
        self.shown.add(kind)
        last = self.events[-1] if self.events else None
        if isinstance(last, Delta) and last.kind == kind:
            text, tokens = last.text + text, last.tokens + tokens
            self.events.pop()
        self.events.append(Delta(kind, text, tokens))

    def call_event(self, id: str | None, name: str | None, arguments: str) -> None:
        """Add a part of the call that is being read, with its tokens."""
        tokens = self._take(self._tape.base + self._tape.pos)
        self.events.append(CallDelta(len(self.calls), id, name, arguments, tokens))

    def call_done(self, call: ToolCall) -> None:
        """Add a complete call."""
        if self._tape.drop(self._tape.pos)[:1] in ("\n", "\r"):
            self.gap["answer"] = "\n"
        self.events.append(CallDone(len(self.calls), call))
        self.calls.append(call)

    def unused(self, id: str) -> str:
        """The id, or a new one where a call has it already."""
        return new_call_id() if any(call.id == id for call in self.calls) else id

    def _take(self, position: int) -> tuple[Token, ...]:
        """The queued tokens that end at or before this position."""
        queue, tokens = self.queue, []
        while queue and queue[0][1] <= position:
            tokens.append(queue.popleft()[2])
        return tuple(tokens)

    def stop(self, kind: DeltaKind, n: int) -> None:
        """A stop string starts after `n` more characters: settle these, drop the rest."""
        position = self._tape.base + n
        tokens = list(self._take(position))
        while self.queue and self.queue[0][0] < position:
            tokens.append(replace(self.queue.popleft()[2], trimmed=True))
        self.kept -= len(self.queue)
        self.queue.clear()
        if n or tokens:
            self._show(kind, self._tape.text[:n], tuple(tokens))
        self._tape.drop(len(self._tape.text))
        self.stopped = True
