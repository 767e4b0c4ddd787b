"""One request of a chat: what has come of it, what a person decides about it, and whom it is for.

Comes in: events of its stream. Goes out: text and times so far, and verdicts. It must not know
pages or widgets.
"""

import json
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_magic.chat.reply import Fold, Reply
from llm_magic.events import Delta, Event, Message, Token, ToolCall
from llm_magic.ui.views.ledger import Ledger

from ..shared.jupyter import Kept
from ..shared.stream_reader import Open, Reading
from .thread import Turn
from .transcript import Transcript

POLL = 0.1  # seconds between looks at Stop while a person decides about a call

Ask = Callable[[ToolCall, Any], Any]


class Port(Protocol):
    """What the pump asks of the chat that it works for."""

    @property
    def name(self) -> str:
        """The model's name, for people."""
        ...

    @property
    def key(self) -> str:
        """Which of the chats of its cell it is."""
        ...

    def open(self, messages: tuple[Message, ...], ask: Ask) -> Open:
        """How to answer these messages. Called on the pump thread, the result on the reader's."""
        ...

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> Open:
        """How to go on from a reply's prompt and these tokens of it."""
        ...

    def extend(self, messages: tuple[Message, ...]) -> Open:
        """How to continue the last of these messages, an answer, after its text."""
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
    def transcript(self) -> Transcript:
        """What a saved notebook shows of the chat."""
        ...

    @property
    def kept(self) -> Kept:
        """The output that shows it."""
        ...

    def kept_by_page(self) -> None:
        """From now on a page keeps that output up to date."""
        ...


@dataclass(slots=True, eq=False)
class Run(Reading):
    """One request in the making. Owned by the pump thread; the reader sees `stopping`, too."""

    turn: Turn
    fold: Fold
    extends: Turn | None = None  # the answer that this one continues, and takes the place of
    begun: str = ""  # the text of it, where its tokens are not known
    parts: dict[str, list[str]] = field(default_factory=lambda: {"answer": [], "reasoning": []})

    def hear(self, event: Event) -> None:
        self.fold.add(event)
        if isinstance(event, Delta):
            self.parts[event.kind].append(event.text)
            self.times += [token.at for token in event.tokens if not token.forced]

    def text(self, part: str) -> str:
        """What has come of "answer" or "reasoning"."""
        return (self.begun if part == "answer" else "") + "".join(self.parts[part])

    @property
    def count(self) -> int:
        """Tokens that were drawn so far."""
        return len(self.times)


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
