"""Many rows in flight: as many requests as the model has slots, read side by side on one thread.

The engine decodes all of them in one batch, and reads what their prompts have in common once. A row
that fails leaves its error; the others go on. An interrupt ends the rows in work and keeps those
that are done.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..chat.interrupts import Interrupts, deferred
from ..chat.stream import Stream
from ..errors import LLMError, NotLoadedError, RequestError
from ..events import Message
from .answers import Answer, answer_of
from .cache import Cache

AHEAD = 2  # requests that wait for a slot, so that none is empty while a row is opened
STOPPED = "interrupted before it was answered"


@dataclass(slots=True)
class State:
    """How far a run is.

    total: rows. done: those with an answer or an error. failed: those with an error. known: those
    that a cache or an equal row answered at once. seconds: since the start.
    """

    total: int
    done: int = 0
    failed: int = 0
    known: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Rows a second that were really asked; None before the first."""
        asked = self.done - self.known
        return asked / self.seconds if asked > 0 and self.seconds > 0 else None

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate; None where it is not known."""
        return (self.total - self.done) / self.rate if self.rate else None


class Bar(Protocol):
    """What shows a run while it goes on."""

    def update(self, state: State) -> None: ...

    def close(self, state: State, note: str = "") -> None:
        """The last state. note: what happened, if it did not simply end."""

    def keep(self, frame: object) -> str:
        """Keep the answers of a run that was interrupted; returns where they are."""


class NoBar:
    """Shows nothing."""

    def update(self, state: State) -> None:
        """Not shown."""

    def close(self, state: State, note: str = "") -> None:
        """Not shown."""

    def keep(self, frame: object) -> str:
        """The error has them."""
        return ".partial of this error"


@dataclass(frozen=True, slots=True)
class Task:
    """What one row asks. key: everything its answer depends on; open: sends the request."""

    key: str
    messages: tuple[Message, ...]
    open: Callable[[], Stream]


# Answers many prompts in their order, side by side; reads prompts while there is room.
Decide = Callable[[Iterator[tuple[Message, ...]]], Iterator[Answer | LLMError]]
Asked = Task | Answer  # an Answer where the row has its error before anything is asked


@dataclass(slots=True, eq=False)
class _Work:
    key: str
    rows: list[int]  # the first one asked; equal rows wait for the same answer
    stream: Stream | None = None


@dataclass(slots=True)
class Run:
    """One run over rows.

    Args:
        tasks: What each row asks, in the order of the rows; made when a slot is near.
        total: How many rows there are.
        slots: Requests that the model works on at once.
        cache: Where finished answers are kept.
        strict: Raise the first error of a row.
        bar: Shows how far it is.
        decide: Answers the prompts, where they are not requests of their own.
    """

    tasks: Iterator[Asked]
    total: int
    slots: int
    cache: Cache | None = None
    strict: bool = False
    bar: Bar = field(default_factory=NoBar)
    decide: Decide | None = None
    answers: list[Answer] = field(default_factory=list)
    interrupted: bool = False
    state: State = field(default_factory=lambda: State(0))
    _work: list[_Work] = field(default_factory=list)
    _known: dict[str, Answer] = field(default_factory=dict)
    _next: int = 0
    _began: float = 0.0

    def go(self) -> list[Answer]:
        """Answer all rows. `interrupted` says whether an interrupt ended it.

        Raises:
            LLMError: The error of a row, where `strict`; or the model is gone.
        """
        self.answers = [Answer(error=STOPPED)] * self.total
        self.state = State(self.total)
        self._began = time.monotonic()
        self.bar.update(self.state)
        with deferred(self._cancel) as interrupts:
            try:
                if self.decide is None:
                    self._loop(interrupts)
                else:
                    self._decide_all(self.decide, interrupts)
            except KeyboardInterrupt:  # the second one, or not on the main thread
                self.interrupted = True
            finally:
                for work in self._work:
                    if work.stream is not None:
                        work.stream.close()
        self.interrupted = self.interrupted or interrupts.struck
        self._tick()
        return self.answers

    def _loop(self, interrupts: Interrupts) -> None:
        more = True
        while True:
            while more and not interrupts.struck and len(self._work) < self.slots + AHEAD:
                more = self._open()
            if not self._work:
                return
            # The oldest have a slot: reading one that waits for its slot would hold up all others.
            for work in self._work[: self.slots]:
                if work.stream is not None:
                    self._read(work, work.stream)

    def _decide_all(self, decide: Decide, interrupts: Interrupts) -> None:
        def prompts() -> Iterator[tuple[Message, ...]]:
            while not interrupts.struck and (new := self._take()) is not None:
                task, work = new
                self._work.append(work)
                yield task.messages

        for found in decide(prompts()):
            work = self._work.pop(0)
            if isinstance(found, NotLoadedError):
                raise found
            if isinstance(found, LLMError):
                self._fail(work.rows, found)
            else:
                self._answered(work, found)
            if interrupts.struck:
                return

    def _cancel(self) -> None:
        for work in list(self._work):
            if work.stream is not None:
                work.stream.cancel("interrupted")

    def _open(self) -> bool:
        """Send the next request. False when there is none."""
        new = self._take()
        if new is None:
            return False
        task, work = new
        try:
            work.stream = task.open()
        except NotLoadedError:
            raise
        except LLMError as e:
            self._fail(work.rows, e)
            return True
        self._work.append(work)
        return True

    def _take(self) -> tuple[Task, _Work] | None:
        """The next row that must be asked; those before it have their answer or wait for one."""
        for asked in self.tasks:
            i, self._next = self._next, self._next + 1
            if isinstance(asked, Answer):
                if self.strict:
                    raise RequestError(f"row {i}: {asked.error}")
                self._settle([i], asked)
            elif (known := self._kept(asked.key)) is not None:
                self.state.known += 1
                self._settle([i], known)
            elif (same := next((w for w in self._work if w.key == asked.key), None)) is not None:
                same.rows.append(i)
            else:
                return asked, _Work(asked.key, [i])
        return None

    def _kept(self, key: str) -> Answer | None:
        if self.cache is None:
            return self._known.get(key)
        data = self.cache.get(key)
        return None if data is None else Answer.from_json(data)

    def _read(self, work: _Work, stream: Stream) -> None:
        try:
            if next(stream, None) is not None:
                return
        except NotLoadedError:
            raise
        except LLMError as e:
            self._work.remove(work)
            self._fail(work.rows, e)
            return
        self._work.remove(work)
        reply = stream.reply
        if reply.finish_reason not in ("interrupted", "cancelled", None):
            self._answered(work, answer_of(reply))

    def _answered(self, work: _Work, answer: Answer) -> None:
        if self.cache is not None:
            self.cache.put(work.key, answer.to_json())
        else:
            self._known[work.key] = answer
        self.state.known += len(work.rows) - 1
        self._settle(work.rows, answer)

    def _fail(self, rows: list[int], error: LLMError) -> None:
        if self.strict:
            error.args = (f"row {rows[0]}: {error}", *error.args[1:])
            raise error
        self._settle(rows, Answer(error=str(error)))

    def _settle(self, rows: list[int], answer: Answer) -> None:
        for i in rows:
            self.answers[i] = answer
        self.state.done += len(rows)
        self.state.failed += len(rows) * (answer.error is not None)
        self._tick()
        self.bar.update(self.state)

    def _tick(self) -> None:
        self.state.seconds = time.monotonic() - self._began
