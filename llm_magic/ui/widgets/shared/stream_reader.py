"""One stream on a thread of its own, from its opening to its last event.

Comes in: how to open the stream. Goes out: everything that happens, told to whoever asked. It must
not know pages or widgets.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from llm_magic.chat.reply import Reply
from llm_magic.events import Event, Message, Progress
from llm_magic.ui.views.throughput import latest

OnProgress = Callable[[Progress], None]
# Loads the model if need be and gives a stream with `.reply` and, after its end, maybe `.added`:
# the messages that it adds to a history.
Open = Callable[[OnProgress], Any]


@dataclass(slots=True, eq=False, kw_only=True)
class Reading:
    """What is being read. Owned by who hears of it; `stopping` may be read by any thread."""

    stream: Any = None
    stopping: bool = False
    times: list[float] = field(default_factory=list)  # when each token came

    @property
    def speed(self) -> float:
        """Tokens a second over the last few tokens; 0 while unknown."""
        return latest(self.times)


R = TypeVar("R", bound=Reading)


@dataclass(frozen=True, slots=True)
class Told(Generic[R]):
    """Something from the reader of `run`."""

    run: R
    what: Event | None = None
    opened: Any = None
    ended: bool = False
    reply: Reply | None = None
    error: BaseException | None = None
    added: tuple[Message, ...] = ()
    window: int | None = None


def begin(
    name: str, run: R, open_: Open, tell: Callable[[Told[R]], None],
    window: Callable[[], int | None] = lambda: None,
) -> None:  # fmt: skip
    """Start to read. window: how large the context is; it may take long, too."""
    threading.Thread(target=_read, args=(run, open_, tell, window), name=name, daemon=True).start()


def _read(
    run: R, open_: Open, tell: Callable[[Told[R]], None], window: Callable[[], int | None]
) -> None:
    """Everything that may take long, told piece by piece. Never raises."""
    stream, size = None, None
    try:
        stream = open_(lambda event: tell(Told(run, what=event)))
        tell(Told(run, opened=stream))
        size = window()
        for event in stream:
            tell(Told(run, what=event))
        added = tuple(getattr(stream, "added", ()))
        tell(Told(run, ended=True, reply=_reply_of(stream), added=added, window=size))
    except BaseException as error:
        tell(Told(run, ended=True, reply=_partial(error, stream), error=error, window=size))


def _partial(error: BaseException, stream: Any) -> Reply | None:
    """What came before the error. Not even a broken stream keeps a page waiting for its end."""
    try:
        return getattr(error, "partial", None) or _reply_of(stream)
    except Exception:
        return None


def _reply_of(stream: Any) -> Reply | None:
    return getattr(stream, "reply", None)
