"""Deferred handling of Ctrl-C (or the stop button) on the main thread.

Python raises KeyboardInterrupt between any two instructions. Raised while an event is on its way
from the engine's queue to the display, it loses that event: the reply has a hole, or its end never
comes. Therefore, while a stream is read, the first interrupt raises nothing: it cancels the stream,
and the reader raises `Interrupted` at the stream's end. A second interrupt raises at once.
"""

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Interrupts:
    """Stands for Python's own handler of SIGINT. struck: an interrupt came and was put off."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self.struck = False

    def __call__(self, number: int, frame: object) -> None:
        if self.struck:
            raise KeyboardInterrupt
        self.struck = True
        # On a thread, since it may want a lock that this thread holds right now; and not by
        # `threading`, whose own locks this thread may hold as well.
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # a stream that cannot be cancelled still ends
            self._act()


@contextlib.contextmanager
def deferred(act: Callable[[], object]) -> Iterator[Interrupts]:
    """Inside, the first interrupt of the main thread calls `act` (on a thread of its own).

    Elsewhere than on the main thread, and where somebody has a handler of his own, nothing changes.
    """
    interrupts = Interrupts(act)
    before = _handler()
    if before is not signal.default_int_handler and not isinstance(before, Interrupts):
        yield interrupts
        return
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def immediate() -> Iterator[None]:
    """Around the user's own code: inside, an interrupt raises as it does everywhere else."""
    before = _handler()
    if not isinstance(before, Interrupts):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _handler() -> object:
    """The handler of SIGINT, as far as this thread may change it."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.getsignal(signal.SIGINT)
