"""One request of a chat, from the loading of its model to its last event.

Comes in: how to open the stream. Goes out: everything that happens, told to the pump's inbox. The
functions here run on the request's own reader thread; what they tell is handled on the pump's. It
must not know pages or widgets.
"""

import json
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..chat.reply import Fold, Reply
from ..events import Delta, Event, Message, Progress, Token, ToolCall
from .ledger import Ledger
from .throughput import latest
from .turns import Turn
from .widget import Kept

POLL = 0.1  # seconds between looks at Stop while a person decides about a call

OnProgress = Callable[[Progress], None]
Ask = Callable[[ToolCall, Any], Any]
# Loads the model if need be and gives a stream with `.reply` and, after its end, with `.added`: the
# messages that it adds to the history.
Open = Callable[[OnProgress], Any]


class Port(Protocol):
    """What the pump asks of the chat that it works for."""

    @property
    def name(self) -> str:
        """The model's name, for people."""
        ...

    def open(self, messages: tuple[Message, ...], ask: Ask) -> Open:
        """How to answer these messages. Called on the pump thread, the result on the reader's."""
        ...

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> Open:
        """How to go on from a reply's prompt and these tokens of it."""
        ...

    def set(self, name: str, value: Any) -> None:
        """Take a setting; None is the default."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """What is set."""
        ...

    @property
    def ledger(self) -> Ledger:
        """The generations of the notebook, the chat's among them."""
        ...

    def window(self) -> int | None:
        """Context size in tokens, if known. Called on a reader thread."""
        ...

    def post(self, message: Mapping[str, Any]) -> None:
        """Send to the page. Called on the pump thread only."""
        ...

    def settled(self) -> None:
        """The history changed: write state. Called on the pump thread only."""
        ...

    @property
    def transcript(self) -> Kept:
        """What a saved notebook shows of the chat."""
        ...


@dataclass(slots=True, eq=False)
class Run:
    """One request in the making. Owned by the pump thread; `stopping` is read by the reader too."""

    turn: Turn
    fold: Fold
    extends: Turn | None = None  # the answer that this one continues, and takes the place of
    stream: Any = None
    stopping: bool = False
    parts: dict[str, list[str]] = field(default_factory=lambda: {"answer": [], "reasoning": []})
    times: list[float] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        self.fold.add(event)
        if isinstance(event, Delta):
            self.parts[event.kind].append(event.text)
            self.times += [token.at for token in event.tokens if not token.forced]

    @property
    def count(self) -> int:
        """Tokens that were drawn so far."""
        return len(self.times)

    @property
    def speed(self) -> float:
        """Tokens a second over the last few tokens; 0 while unknown."""
        return latest(self.times)


@dataclass(frozen=True, slots=True)
class Told:
    """Something from a reader thread about its run."""

    run: Run
    what: Event | None = None
    opened: Any = None
    ended: bool = False
    reply: Reply | None = None
    error: BaseException | None = None
    added: tuple[Message, ...] = ()
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A tool call that a person decides about. `answer` takes the verdict."""

    run: Run
    call: ToolCall
    arguments: Any
    answer: "queue.SimpleQueue[Any]"

    def shown(self) -> dict[str, Any]:
        """What a page needs to ask it; all of it is text."""
        text = json.dumps(self.arguments, ensure_ascii=False, indent=1, default=str)
        id, call = self.run.turn.id, self.call
        return {"id": id, "call": call.id, "name": call.name, "arguments": text}


def read(
    run: Run, open_: Open, window: Callable[[], int | None], tell: Callable[[Told], None]
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
        tell(Told(run, ended=True, reply=stream.reply, added=added, window=size))
    except BaseException as error:
        partial = getattr(error, "partial", None) or getattr(stream, "reply", None)
        tell(Told(run, ended=True, reply=partial, error=error, window=size))


def decide(run: Run, call: ToolCall, arguments: Any, put: Callable[[Question], None]) -> Any:
    """Ask a person about a call and wait for the verdict (see toolrun.Verdict), or for Stop."""
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    put(Question(run, call, arguments, answer))
    while not run.stopping:
        try:
            return answer.get(timeout=POLL)
        except queue.Empty:
            continue
    return "the answer was stopped"
