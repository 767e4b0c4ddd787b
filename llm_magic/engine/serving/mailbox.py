"""The mailbox of the owner thread: tasks that other threads post to it.

Everything that touches the forward pass happens on the owner thread. Other threads put functions
into the mailbox; the owner reads it between two steps and sleeps in it while there is no work.
"""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ..gate import Gate

T = TypeVar("T")

LOOK_SECONDS = 0.5  # between looks at whether the owner still lives


class Mailbox:
    """Functions for the owner thread, in the order in which they were posted."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def post(self, task: Callable[[], None]) -> None:
        """Have the owner call `task` between two steps."""
        self._tasks.put(task)

    def wake(self) -> None:
        """Have the owner look at its requests again."""
        self._tasks.put(_nothing)

    def stop(self) -> None:
        """Have the owner end."""
        self._tasks.put(None)

    def call(self, f: Callable[[], T], check: Callable[[], None], gate: Gate) -> T:
        """Run `f` on the owner thread and return its result.

        Args:
            f: What to run.
            check: Raises when no owner is left to run it.
            gate: Lent while this thread waits.
        """
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(f())
            except BaseException as e:
                future.set_exception(e)

        self.post(task)
        with gate.lend():
            while True:
                try:
                    return future.result(timeout=LOOK_SECONDS)
                except TimeoutError:
                    if future.done():
                        raise
                    check()

    # ------------------------------------------------------------------ the owner thread

    def read(self, seconds: float | None) -> Callable[[], None] | None:
        """The next task; None means stop. Raises queue.Empty after so long (None: for ever)."""
        return self._tasks.get(block=seconds is None or seconds > 0, timeout=seconds or None)

    def drain(self) -> None:
        """Do what was posted too late."""
        while True:
            try:
                if (task := self._tasks.get_nowait()) is not None:
                    task()
            except queue.Empty:
                return


def _nothing() -> None:
    """A task that only wakes the owner."""
