"""The streams of one request, read on threads, as batches of events on the event loop.

The engine waits for its readers, so they are threads that do nothing but read. What they read is
handed over in batches: the loop is woken once for all that has come since it looked last.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..chat.reply import Reply
from ..events import CallDone, Event
from ..provider import Stream
from .floor import Floor, post
from .problems import FAILED, NO_RETRY, ApiError

MOST_AHEAD = 64  # events that may wait for a client that reads slowly; then the model waits too


class Gone(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream of a choice has started: its request is valid."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice is complete."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class Failed:
    """A choice failed; nothing more of it comes."""

    error: Exception


Item = tuple[int, Opened | Event | Ended | Failed]  # the index of the choice, and what came


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a request.

    Attributes:
        open: Starts the stream; called on a thread.
        finish: Makes the reply that is sent of the one that was read; called on the thread.
        told: Called on the thread with the reply, whole or not, and the error, if there was one.
        one_call: Whether the answer ends behind its first tool call.
    """

    open: Callable[[], Stream]
    finish: Callable[[Reply], Reply]
    told: Callable[[Reply | None, Exception | None], None]
    one_call: bool = False


class Reading:
    """The choices of one request. Belongs to the event loop, but for what `_Reader` calls."""

    def __init__(self, floor: Floor, choices: Sequence[Choice]) -> None:
        self._floor, self._choices = floor, choices
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._ending = asyncio.Event()  # a choice has ended, and the loop has not looked
        self._armed = False  # the loop will look; set by readers, cleared by the loop
        self._room = threading.Event()
        self._room.set()
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._gone = False
        self._halted = False
        self._left = len(choices)
        self._starter: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the choices as places become free."""
        self._floor.check()
        self._floor.join(self.halt)
        self._starter = self._loop.create_task(self._start())

    async def _start(self) -> None:
        for index, choice in enumerate(self._choices):
            await self._floor.enter()
            thread = threading.Thread(
                target=self._read, args=(index, choice), name="llm_magic server answer", daemon=True
            )
            thread.start()

    async def batch(self, timeout: float | None = None) -> list[Item] | None:
        """Everything that came since the last batch; None when all choices have ended.

        Args:
            timeout: Seconds after which an empty batch is returned.

        Raises:
            Gone: The reading was closed.
            ApiError: The server stops.
        """
        while self._left and not self._gone and not self._halted:
            try:
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                return []
            self._arrived.clear()
            self._ending.clear()
            self._armed = False
            batch = []
            while self._items:
                batch.append(self._items.popleft())
            self._room.set()
            self._left -= sum(isinstance(item, Ended | Failed) for _, item in batch)
            if batch:
                return batch
        if self._halted and self._left:
            raise ApiError(503, "the server has stopped", FAILED, "stopped", headers=NO_RETRY)
        if self._left:
            raise Gone
        return None

    async def pause(self, seconds: float) -> None:
        """Let more arrive before the next batch; an end does not wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return

    def halt(self) -> None:
        """The server stops: the client is told, then the reading is closed."""
        self._halted = True
        self._arrived.set()
        self._ending.set()

    def close(self, reason: str = "cancelled") -> None:
        """Stop all streams; their slots become free at their next token. Idempotent."""
        self._floor.part(self.halt)
        if self._starter is not None:
            self._starter.cancel()
        with self._lock:
            self._gone = True
            streams = list(self._streams)
        self._room.set()
        self._arrived.set()
        self._ending.set()
        for stream in streams:
            stream.cancel(reason)

    # ------------------------------------------------------------------ on a reader's thread

    def _read(self, index: int, choice: Choice) -> None:
        stream: Stream | None = None
        error: Exception | None = None
        try:
            stream = choice.open()
            self._put(index, Opened())
            with stream:
                self._follow(index, choice, stream)
            end: Ended | Failed = Ended(choice.finish(stream.reply))
        except Exception as e:
            error, end = e, Failed(e)
        with self._lock:
            if stream in self._streams:
                self._streams.remove(stream)
        choice.told(stream.reply if stream is not None else None, error)
        self._put(index, end)
        post(self._loop, self._ending.set)
        post(self._loop, self._floor.leave)

    def _follow(self, index: int, choice: Choice, stream: Stream) -> None:
        with self._lock:
            self._streams.append(stream)
            gone = self._gone
        if gone:  # nobody waits any more; it had no stream to cancel
            stream.cancel()
        for event in stream:
            self._put(index, event)
            if choice.one_call and isinstance(event, CallDone):
                stream.cancel("stop")
            if len(self._items) > MOST_AHEAD and not self._gone:
                self._room.clear()
                if len(self._items) > MOST_AHEAD and not self._gone:
                    self._room.wait()

    def _put(self, index: int, item: Opened | Event | Ended | Failed) -> None:
        self._items.append((index, item))
        if not self._armed:
            self._armed = True
            post(self._loop, self._arrived.set)
