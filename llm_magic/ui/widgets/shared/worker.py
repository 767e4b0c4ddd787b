"""A worker thread that handles the items of its inbox one at a time."""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

INTERVAL = 0.05  # seconds between looks: what is told to a page goes out 20 times a second
MAX_INTERVAL = 0.25
SHARE = 10  # the work of a look may take one tenth of the time


class Worker:
    """A thread with an inbox. It lives while there is something to do. Any thread may call it.

    Args:
        name: Of the thread.
        take: Handles one item.
        after: What is due after all waiting items were handled, in this order.
        fault: Receives what either of them raises; nobody would see a traceback of the thread.
        begins: Whether an item may start work that continues after it was handled.
        busy: Whether such work continues.

    >>> seen = []
    >>> worker = Worker("w", seen.append, (), print, lambda item: False, lambda: False)
    >>> worker.put("an item")
    >>> worker.wait(5), seen
    (True, ['an item'])
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
        self._starts_work = begins
        self._busy = busy
        self._due = 0.0
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._coming = 0  # items in the inbox that may start work
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._rest = threading.Event()
        self._rest.set()

    def _check_process(self) -> None:
        """After a fork the thread belongs to the parent, and may have held any of the locks."""
        if self._process != os.getpid():
            self._reset()

    @property
    def idle(self) -> bool:
        """Whether no work continues and no waiting item may start some."""
        self._check_process()
        return self._idle.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all items are handled and no work continues.

        Returns:
            False when `timeout` seconds were not enough.
        """
        self._check_process()
        return self._rest.wait(timeout)

    def put(self, item: object) -> None:
        """Add an item to the inbox. Returns at once."""
        self._check_process()
        with self._lock:
            if self._starts_work(item):
                self._coming += 1
                self._idle.clear()
            self._rest.clear()
            self._inbox.put(item)
            if self._thread is None:
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
                self._coming -= sum(map(self._starts_work, items))
                if self._busy() or self._coming:
                    continue
                self._idle.set()
                if self._inbox.empty():
                    self._thread = None
                    self._rest.set()
                    return

    def _waiting(self) -> Iterator[object]:
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _guarded(self, work: Callable[..., None], *what: object) -> None:
        # SystemExit of a tool or a renderer, too: it would end the thread, not the process.
        try:
            work(*what)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._fault(error)
