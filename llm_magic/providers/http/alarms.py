"""Alarms: what happens when the time of a request is over, on one thread for all of them.

A time-out of a socket starts anew with each byte, so a server that trickles bytes never runs into
one. An alarm rings once at its time, whatever arrives, unless it is moved or removed.
"""

import threading
import time
from collections.abc import Callable

LINGER = 1.0  # seconds that the thread waits for another alarm before it ends


class Alarm:
    """Rings once. `due` is a time of time.monotonic()."""

    __slots__ = ("due", "ring")

    def __init__(self, due: float, ring: Callable[[], None]) -> None:
        self.due, self.ring = due, ring


class Alarms:
    """The alarms of one provider. Any thread may set, move or remove one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._set: set[Alarm] = set()
        self._thread: threading.Thread | None = None

    def set(self, seconds: float, ring: Callable[[], None]) -> Alarm:
        """Call `ring` on the thread of the alarms in so many seconds."""
        alarm = Alarm(time.monotonic() + seconds, ring)
        with self._changed:
            self._set.add(alarm)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="llm_magic alarms", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        return alarm

    def move(self, alarm: Alarm, seconds: float) -> None:
        """Let an alarm ring in so many seconds from now instead."""
        due = time.monotonic() + seconds
        if due >= alarm.due:  # the thread looks again when the old time comes
            alarm.due = due
            return
        with self._changed:
            alarm.due = due
            self._changed.notify()

    def remove(self, alarm: Alarm) -> None:
        """Forget an alarm, whether it rang or not."""
        with self._changed:
            self._set.discard(alarm)
            self._changed.notify()

    def _run(self) -> None:
        while ringing := self._next():
            for alarm in ringing:
                alarm.ring()

    def _next(self) -> list[Alarm]:
        """The alarms whose time has come; none when the thread may end."""
        with self._changed:
            while True:
                now = time.monotonic()
                if due := [alarm for alarm in self._set if alarm.due <= now]:
                    self._set.difference_update(due)
                    return due
                first = min((alarm.due for alarm in self._set), default=None)
                waited = self._changed.wait(LINGER if first is None else first - now)
                if first is None and not waited and not self._set:
                    self._thread = None
                    return []
