"""How long a request may take: a limit for each phase, and one for all of it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from .alarms import Alarm, Alarms
from .lanes import Call


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each phase of a request may take; None: no limit.

    Attributes:
        connect: For a connection, TLS included.
        load: From there to the head of the answer: the server may load its model first.
        prompt: From the head to the first piece of text; each report of progress starts it anew.
        gap: Between two pieces of text. Comments of the server are none.
        total: From the call to the end, with all attempts.
    """

    connect: float = 5.0
    load: float | None = 300.0
    prompt: float | None = 300.0
    gap: float | None = 120.0
    total: float | None = None


class Limit:
    """The limits of one request. When one is over, its connection is severed.

    over: what took too long, in words; "" as long as nothing did.
    """

    def __init__(self, alarms: Alarms, call: Call, timeouts: Timeouts) -> None:
        self._alarms, self._call = alarms, call
        self.timeouts = timeouts
        self.started = time.monotonic()
        self.over = ""
        self._phase: Alarm | None = None
        self._seconds = 0.0
        total = timeouts.total
        self._total = None if total is None else alarms.set(total, self._ring(total, "all of it"))

    def phase(self, seconds: float | None, what: str) -> None:
        """From now on `what` may take so long."""
        self.end_phase()
        if seconds is not None:
            self._seconds = seconds
            self._phase = self._alarms.set(seconds, self._ring(seconds, what))

    def again(self) -> None:
        """The running phase starts anew."""
        if self._phase is not None:
            self._alarms.move(self._phase, self._seconds)

    def end_phase(self) -> None:
        if self._phase is not None:
            self._alarms.remove(self._phase)
            self._phase = None

    def end(self) -> None:
        """The request has ended."""
        self.end_phase()
        if self._total is not None:
            self._alarms.remove(self._total)

    @property
    def left(self) -> float | None:
        """Seconds of the total that are left; None without a total."""
        total = self.timeouts.total
        return None if total is None else total - (time.monotonic() - self.started)

    def _ring(self, seconds: float, what: str) -> Callable[[], None]:
        def ring() -> None:
            self.over = self.over or f"{seconds:g} s for {what} are over"
            self._call.sever()

        return ring
