"""One branch of a live view, from its opening to its last event.

Comes in: how to open the stream. Goes out: everything that happens, told to the view's inbox.
`read` runs on the branch's own reader thread. It must not know pages or widgets.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..chat.reply import Reply
from ..events import Event, Token
from ..provider import Stream
from .throughput import latest


@dataclass(slots=True, eq=False)
class Run:
    """A branch in the making. Owned by the pump thread."""

    parent: int
    at: int
    given: tuple[Token, ...]
    by: str  # the page that asked
    node: int | None = None
    stream: Stream | None = None
    stopping: bool = False
    waiting: list[Token] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """Tokens a second over the last few tokens; 0 while unknown."""
        return latest(self.times)


@dataclass(frozen=True, slots=True)
class Told:
    """Something from the reader of a run."""

    run: Run
    opened: Stream | None = None
    event: Event | None = None
    ended: bool = False
    reply: Reply | None = None
    error: BaseException | None = None


def read(run: Run, open_: Callable[[], Stream], tell: Callable[[Told], None]) -> None:
    """Everything that may take long, told piece by piece. Never raises."""
    stream: Stream | None = None
    try:
        stream = open_()
        tell(Told(run, opened=stream))
        with stream:
            for event in stream:
                tell(Told(run, event=event))
            tell(Told(run, ended=True, reply=_reply_of(stream)))
    except BaseException as error:
        partial = getattr(error, "partial", None) or (_reply_of(stream) if stream else None)
        tell(Told(run, ended=True, reply=partial, error=error))


def _reply_of(stream: Stream) -> Reply | None:
    return getattr(stream, "reply", None)
