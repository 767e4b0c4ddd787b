"""Limits how often a running output is updated: by time, and by the bytes already sent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RATE = 15.0  # frames a second
BUDGET = 5.0  # bytes before the last frame, in units of the last frame


class Pace:
    """Decides when the next frame of an output may be sent.

    Args:
        rate: The most frames a second.
        budget: The most bytes of all earlier frames, in units of the last one.
        clock: The time in seconds; None: time.monotonic.
    """

    def __init__(
        self, rate: float = RATE, budget: float = BUDGET, clock: Callable[[], float] | None = None
    ) -> None:
        self._clock = clock or time.monotonic
        self._interval = 1.0 / rate
        self._budget = budget
        self._sent = 0
        self._last = -1e9
        self._cost = 0.0  # seconds that the last frame took to render and send

    @property
    def idle(self) -> float:
        """Seconds since the last frame."""
        return self._clock() - self._last

    def due(self) -> bool:
        """Whether enough time has passed since the last frame."""
        # Rendering holds the GIL, which the engine needs between tokens: a fifth of it at most.
        return self.idle >= max(self._interval, 4 * self._cost)

    def affords(self, size: int, final: int) -> bool:
        """Whether a frame of `size` bytes fits the budget, if the last one has `final` bytes."""
        return self._sent + size <= self._budget * final

    @contextmanager
    def frame(self) -> Iterator[Callable[[int], None]]:
        """Time the making of a frame; the block reports the bytes that it sent."""
        start = self._clock()

        def sent(size: int) -> None:
            self._sent += size

        yield sent
        self._last = self._clock()
        self._cost = self._last - start
