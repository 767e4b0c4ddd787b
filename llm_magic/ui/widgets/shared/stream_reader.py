"""A thread that opens one stream and reads it to its end, and reports everything that happens."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from llm_magic.chat.reply import Reply
from llm_magic.events import Event, Message, Progress
from llm_magic.ui.views.throughput import latest

OnProgress = Callable[[Progress], None]
# Loads the model if necessary and returns a stream with `.reply`. After its end the stream may have
# `.added`: the messages that it adds to a history.
OpenStream = Callable[[OnProgress], Any]


@dataclass(slots=True, eq=False, kw_only=True)
class StreamJob:
    """A stream that is being read. Its owner changes it; `stopping` may be read by any thread."""

    stream: Any = None
    stopping: bool = False
    times: list[float] = field(default_factory=list)  # when each token came

    @property
    def speed(self) -> float:
        """Tokens a second over the last few tokens; 0 while unknown."""
        return latest(self.times)


R = TypeVar("R", bound=StreamJob)


@dataclass(frozen=True, slots=True)
class StreamUpdate(Generic[R]):
    """One report of the reader of `run`."""

    run: R
    what: Event | None = None
    opened: object = None
    ended: bool = False
    reply: Reply | None = None
    error: BaseException | None = None
    added: tuple[Message, ...] = ()
    window: int | None = None


def start_reading(
    name: str, run: R, open_: OpenStream, tell: Callable[[StreamUpdate[R]], None],
    window: Callable[[], int | None] = lambda: None,
) -> None:  # fmt: skip
    """Start a thread that reads a stream.

    Args:
        name: Of the thread.
        run: What the reports are about.
        open_: Opens the stream; it may load a model.
        tell: Takes the reports. It is called on the new thread.
        window: Returns the size of the context. It may take long, too.
    """
    threading.Thread(target=_read, args=(run, open_, tell, window), name=name, daemon=True).start()


def _read(
    run: R,
    open_: OpenStream,
    tell: Callable[[StreamUpdate[R]], None],
    window: Callable[[], int | None],
) -> None:
    """Everything that may take long, reported piece by piece. Never raises."""
    stream, size = None, None
    try:
        stream = open_(lambda event: tell(StreamUpdate(run, what=event)))
        tell(StreamUpdate(run, opened=stream))
        size = window()
        for event in stream:
            tell(StreamUpdate(run, what=event))
        added = tuple(getattr(stream, "added", ()))
        tell(StreamUpdate(run, ended=True, reply=_reply_of(stream), added=added, window=size))
    except BaseException as error:
        tell(StreamUpdate(run, ended=True, reply=_partial(error, stream), error=error, window=size))


def _partial(error: BaseException, stream: object) -> Reply | None:
    """What came before the error. A broken stream must not keep a page waiting for its end."""
    try:
        return getattr(error, "partial", None) or _reply_of(stream)
    except Exception:
        return None


def _reply_of(stream: object) -> Reply | None:
    return getattr(stream, "reply", None)
