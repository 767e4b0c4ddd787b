"""The channel between the owner thread and the consumer of one job.

It has two ends, because a consumer may vanish (an interrupt strikes before anybody holds its
stream). The owner holds only the `Channel`, so an abandoned `Generation` is garbage collected, and
that cancels the job.
"""

import queue
from collections.abc import Callable, Iterator
from typing import cast

from llm_magic.events import Finish, FinishReason, Prefill, Queued, Token

from ..gate import Gate

Item = Queued | Prefill | Token | Finish

RUN_AHEAD = 8  # tokens that may wait for a consumer: two steps with guesses; a stop wastes them
PATIENCE = 1.0  # seconds between looks at whether anybody is left to produce


class Channel:
    """The state that both ends share. Each field is written by one end only."""

    __slots__ = ("consumed", "end", "flushed", "held", "items", "produced", "stalled", "stop")

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Item | BaseException] = queue.SimpleQueue()
        self.held: list[Token] = []  # the owner's alone: produced, not yet handed over
        self.flushed = 0.0  # the owner's alone: when tokens were handed over last
        self.produced = 0  # tokens; written by the owner
        self.consumed = 0  # tokens; written by the consumer
        self.stalled = False  # written by the owner: it waits until the consumer catches up
        self.end: Finish | BaseException | None = None  # written by the owner: nothing comes after
        self.stop: tuple[FinishReason, int | None] | None = None  # written by cancel, once

    @property
    def room(self) -> int:
        """Tokens that may still be made before the consumer has read one."""
        return RUN_AHEAD - (self.produced - self.consumed)

    @property
    def ahead(self) -> bool:
        """As many tokens wait for the consumer as may."""
        return self.room <= 0

    def put(self, item: Queued | Prefill | Finish | BaseException) -> None:
        """Owner only. After an end nothing comes any more."""
        if self.end is not None:
            return
        self.flush(self.flushed)
        if isinstance(item, Finish | BaseException):
            self.end = item
        self.items.put(item)

    def hold(self, token: Token) -> None:
        """Owner only. Count a token, which the next `flush` or `put` hands over."""
        self.produced += 1
        self.held.append(token)

    def flush(self, now: float) -> None:
        """Owner only. Hand over what is held, and wake the consumer once."""
        self.flushed = now
        for token in self.held:
            self.items.put(token)
        self.held.clear()

    def halt(self, reason: FinishReason, keep: int | None) -> None:
        """Consumer only. Note how the job is to end; the first call counts."""
        if self.stop is None:
            self.stop = (reason, keep)


class Generation:
    """The consumer's end of a job. Iterate on one thread; cancel and close from any.

    Dropping the last reference cancels the job.
    """

    def __init__(
        self,
        channel: Channel,
        wake: Callable[[], None],
        check: Callable[[], object],
        gate: Gate,
    ) -> None:
        self._channel = channel
        self._wake = wake
        self._check = check  # raises when nobody is left to produce
        self._gate = gate
        self._done = False

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._done:
            raise StopIteration
        item = self._get()
        if isinstance(item, Token):
            self._channel.consumed += 1
            if self._channel.stalled:
                self._wake()
        elif isinstance(item, Finish):
            self._done = True
        elif isinstance(item, BaseException):
            self._done = True
            raise item
        return item

    def drain(self) -> None:
        """Read to the end; a wait that ends otherwise, by an interrupt say, ends the job."""
        try:
            for _ in self:
                pass
        except BaseException:
            self.close()
            raise

    def _get(self) -> Item | BaseException:
        items = self._channel.items
        try:
            return items.get_nowait()
        except queue.Empty:
            with self._gate.lend():
                while True:
                    try:
                        return items.get(timeout=PATIENCE)
                    except queue.Empty:
                        # An interrupt may have struck between queue and caller, and taken the end.
                        if self._channel.end is not None and items.empty():
                            return self._channel.end
                        self._check()

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """End soon with this reason. keep: count only so many tokens, and drop the rest."""
        if self._channel.stop is None:
            self._channel.halt(cast(FinishReason, reason), keep)
            self._wake()

    def close(self) -> None:
        """Nobody will read on."""
        self._done = True
        self.cancel()

    def __del__(self) -> None:
        if self._channel.end is None:
            self.close()
