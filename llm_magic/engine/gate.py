"""A lock that the thread of the cells and the thread of the engine hold in turn.

tinygrad appends what another thread realises to a capture in progress, and its Context is global
to the process. So graphs are built and captured only while no user code can run: between cells, or
while the cell's thread waits inside one of our calls. Steps that call compiled programs need no
gate.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """A lock that the cell's thread holds while a cell runs, and lends while it waits in our calls.

    Outside notebooks nobody calls `enter`, so `build` never waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread whose cell is running

    def enter(self) -> None:
        """A cell starts on this thread. Waits while a graph is being built."""
        if self._owner == threading.get_ident():
            return  # a cell that runs cells (%run, nested run_cell)
        self._lock.acquire()
        self._owner = threading.get_ident()

    def leave(self) -> None:
        """The cell on this thread has ended. Harmless if none was running."""
        if self._owner == threading.get_ident():
            self._owner = None
            self._lock.release()

    @contextmanager
    def lend(self) -> Iterator[None]:
        """The calling thread only waits in here; if its cell holds the gate, a build may pass."""
        held = self._owner == threading.get_ident()
        self.leave()
        try:
            yield
        finally:
            if held:
                self.enter()

    @property
    def closed(self) -> bool:
        """A cell is running user code right now."""
        return self._owner is not None

    @contextmanager
    def build(self, poll: float = 0.1) -> Iterator[None]:
        """Build or capture graphs inside. Waits while a cell runs user code."""
        if self._owner == threading.get_ident():
            yield  # the cell's own thread builds: nobody else can run user code meanwhile
            return
        while not self._lock.acquire(timeout=poll):
            pass
        try:
            yield
        finally:
            self._lock.release()
