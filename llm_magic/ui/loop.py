"""One thread with an inbox: who owns something hears of everything there, one after the other.

Comes in: items, from any thread. Goes out: calls of its owner's functions, on its own thread. It
must not know what the items are.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

INTERVAL = 0.05  # seconds between looks: what is told to a page goes out 20 times a second
MAX_INTERVAL = 0.25
SHARE = 10  # the work of a look may take one tenth of the time


class Loop:
    """Begins with the first item. All of its methods are for any thread and return at once.

    take: handles one item. after: what is due when all that waited was handled, in this order.
    fault: told of what either raises; on a thread nobody would see a traceback.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any], None],
        after: tuple[Callable[[], None], ...],
        fault: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._take = take
        self._after = after
        self._fault = fault
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def begun(self) -> bool:
        return self._thread is not None

    def put(self, item: Any) -> None:
        """Hand over one item."""
        with self._lock:
            self._inbox.put(item)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def end(self) -> None:
        """End the thread when what waits was handled."""
        self._inbox.put(_END)

    def _run(self) -> None:
        due = 0.0
        ended = False
        while not ended:
            items = [self._inbox.get()]
            # Between looks it sleeps instead of waking for every token: it competes for the
            # interpreter lock with the engine and with the user's cell.
            if (rest := due - time.monotonic()) > 0:
                time.sleep(rest)
            items.extend(self._waiting())
            ended = _END in items
            began = time.monotonic()
            for item in items:
                if item is not _END:
                    self._guarded(self._take, item)
            for work in self._after:
                self._guarded(work)
            now = time.monotonic()
            due = now + min(max(INTERVAL, SHARE * (now - began)), MAX_INTERVAL)

    def _waiting(self) -> Iterator[Any]:
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _guarded(self, work: Callable[..., None], *what: Any) -> None:
        try:
            work(*what)
        except Exception as error:
            self._fault(error)


_END = object()
