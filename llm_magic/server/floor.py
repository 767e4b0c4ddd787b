"""How many answers a server writes at once, and who comes next."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from .problems import ApiError

T = TypeVar("T")


class Floor:
    """Places for answers that are being written. First come, first served.

    A request takes its places one at a time, so one with many choices does not hold up the others.
    Everything but `places` belongs to the event loop.

    Attributes:
        places: Answers written at once. One slot of the model stays free of the server, so that a
            cell of the notebook never waits for a client.
        waiting: Answers that wait for a place.
        running: Answers that have one.
    """

    def __init__(self, places: int, most_waiting: int) -> None:
        self.places, self._most_waiting = places, most_waiting
        self._free = asyncio.Semaphore(places)
        self.waiting = 0
        self.running = 0
        self._halts: set[Callable[[], None]] = set()  # one for each request under way
        self._halted = False

    def join(self, halt: Callable[[], None]) -> None:
        """A request has begun; `halt` ends it when the server stops."""
        self._halts.add(halt)
        if self._halted:
            halt()

    def part(self, halt: Callable[[], None]) -> None:
        """The request has ended."""
        self._halts.discard(halt)

    def halt(self) -> None:
        """The server stops: end every request, also those that begin now."""
        self._halted = True
        for halt in list(self._halts):
            halt()

    def check(self) -> None:
        """Refuse a request while too many wait."""
        if self.waiting >= self._most_waiting:
            raise ApiError(
                429,
                f"{self.waiting} requests wait already; try again later",
                "rate_limit_error",
                "busy",
                headers={"retry-after": "1"},
            )

    async def enter(self) -> None:
        """Wait for a place."""
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        self.running += 1

    def leave(self) -> None:
        self.running -= 1
        self._free.release()

    async def call(self, function: Callable[[], T]) -> T:
        """What a function returns that uses the engine; it runs on a thread, in a place."""
        self.check()
        await self.enter()
        try:
            return await on_thread(function)
        finally:
            self.leave()


async def on_thread(function: Callable[[], T]) -> T:
    """What a blocking function returns. Its thread does not keep the interpreter from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits any more
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        try:
            result, error = function(), None
        except BaseException as e:
            result, error = None, e
        post(loop, lambda: settle(result, error))

    threading.Thread(target=work, name="llm_magic server call", daemon=True).start()
    return await done


def post(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    """Call a function on the loop, if it still runs."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:  # it has ended, and with it everybody who might wait
        return
