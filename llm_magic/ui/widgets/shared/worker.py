"""One thread with an inbox: who owns something hears of everything there, one after the other.

Comes in: items, from any thread. Goes out: calls of its owner's functions, on its own thread. It
must not know what the items are.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

INTERVAL = 0.05  # seconds between looks: what is told to a page goes out 20 times a second
MAX_INTERVAL = 0.25
SHARE = 10  # the work of a look may take one tenth of the time


class Loop:
    """Its thread lives while there is something to do. All of its methods are for any thread.

    take: handles one item. after: what is due when all that waited was handled, in this order.
    fault: told of what either raises; on a thread nobody would see a traceback. begins: whether an
    item may begin something that goes on behind it; busy: whether such a thing goes on.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any], None],
        after: tuple[Callable[[], None], ...],
        fault: Callable[[BaseException], None],
        begins: Callable[[Any], bool],
        busy: Callable[[], bool],
    ) -> None:
        self._name = name
        self._take = take
        self._after = after
        self._fault = fault
        self._begins = begins
        self._busy = busy
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._due = 0.0
        self._coming = 0  # items in the inbox that may begin something
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._rest = threading.Event()
        self._rest.set()

    @property
    def idle(self) -> bool:
        """Nothing that began goes on, and nothing that waits may begin something."""
        return self._idle.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all that was handed over is handled, and nothing that began goes on. False
        when the time was up first."""
        return self._rest.wait(timeout)

    def put(self, item: Any) -> None:
        """Hand over one item; returns at once."""
        with self._lock:
            if self._begins(item):
                self._coming += 1
                self._idle.clear()
            self._rest.clear()
            self._inbox.put(item)
            # After a fork the parent's thread is none of this process.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            items = [self._inbox.get()]
            # Between looks it sleeps instead of waking for every token: it competes for the
            # interpreter lock with the engine and with the user's cell.
            if (rest := self._due - time.monotonic()) > 0:
                time.sleep(rest)
            items.extend(self._waiting())
            began = time.monotonic()
            for item in items:
                self._guarded(self._take, item)
            for work in self._after:
                self._guarded(work)
            now = time.monotonic()
            self._due = now + min(max(INTERVAL, SHARE * (now - began)), MAX_INTERVAL)
            with self._lock:
                self._coming -= sum(map(self._begins, items))
                if self._busy() or self._coming:
                    continue
                self._idle.set()
                if self._inbox.empty():
                    self._thread = None
                    self._rest.set()
                    return

    def _waiting(self) -> Iterator[Any]:
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _guarded(self, work: Callable[..., None], *what: Any) -> None:
        # SystemExit of a tool or a renderer, too: it would end the thread, not the process.
        try:
            work(*what)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._fault(error)
