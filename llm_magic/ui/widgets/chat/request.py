"""One request of a chat: its text so far, a person's decision about a tool call, and the interface
between a chat's thread and the chat.
"""

import json
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_magic.chat.fold import Fold
from llm_magic.chat.reply import Reply
from llm_magic.events import Delta, Event, Message, Token, ToolCall
from llm_magic.ui.views.ledger import Ledger

from ..shared.jupyter import UpdatableOutput
from ..shared.stream_reader import OpenStream, StreamJob
from .thread import ChatTurn
from .transcript import Transcript

POLL = 0.1  # seconds between looks at Stop while a person decides about a call

Approver = Callable[[ToolCall, Any], Any]


class ChatHost(Protocol):
    """What a controller needs of its chat. The widget implements it; tests have their own."""

    @property
    def name(self) -> str:
        """The model's name, for people."""
        ...

    @property
    def key(self) -> str:
        """Identifies the chat among those of its cell."""
        ...

    def open(self, messages: tuple[Message, ...], ask: Approver) -> OpenStream:
        """How to answer these messages. The result is called on the reader's thread."""
        ...

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> OpenStream:
        """How to continue a reply after these tokens."""
        ...

    def extend(self, messages: tuple[Message, ...], text: str) -> OpenStream:
        """How to answer these messages with an answer that begins with a text."""
        ...

    def set(self, name: str, value: object) -> None:
        """Change a setting; None is the default."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """The settings, by name."""
        ...

    @property
    def ledger(self) -> Ledger:
        """The ledger of the notebook."""
        ...

    def window(self) -> int | None:
        """Context size in tokens, if known. Called on a reader thread."""
        ...

    def post(self, message: Mapping[str, object]) -> None:
        """Send to all pages. Called on the controller's thread only."""
        ...

    def settled(self) -> None:
        """The history changed: write the state. Called on the controller's thread only."""
        ...

    @property
    def transcript(self) -> Transcript:
        """What a saved notebook shows of the chat."""
        ...

    @property
    def kept(self) -> UpdatableOutput:
        """The output that shows it."""
        ...

    def kept_by_page(self) -> None:
        """From now on a page keeps that output up to date."""
        ...


@dataclass(slots=True, eq=False)
class ChatRequest(StreamJob):
    """A request that is being answered. Owned by the controller's thread."""

    turn: ChatTurn
    fold: Fold
    extends: ChatTurn | None = None  # the answer that this one continues, and takes the place of
    parts: dict[str, list[str]] = field(default_factory=lambda: {"answer": [], "reasoning": []})

    def add(self, event: Event) -> None:
        self.fold.add(event)
        if isinstance(event, Delta):
            self.parts[event.kind].append(event.text)
            self.times += [token.at for token in event.tokens if not token.forced]

    def text(self, part: str) -> str:
        """What has come of "answer" or "reasoning"."""
        return "".join(self.parts[part])

    @property
    def count(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.times)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A tool call that waits for a person. `answer` takes the verdict."""

    run: ChatRequest
    call: ToolCall
    arguments: Any
    answer: "queue.SimpleQueue[Any]"

    def shown(self) -> dict[str, Any]:
        """What a page shows of it. All of it is text."""
        text = json.dumps(self.arguments, ensure_ascii=False, indent=1, default=str)
        id, call = self.run.turn.id, self.call
        return {"id": id, "call": call.id, "name": call.name, "arguments": text}


def await_verdict(
    run: ChatRequest, call: ToolCall, arguments: Any, put: Callable[[ApprovalRequest], None]
) -> Any:
    """Ask a person about a call, and wait for the verdict or for Stop.

    Returns:
        A verdict as `chat.tools.execution.Verdict` describes it.
    """
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    put(ApprovalRequest(run, call, arguments, answer))
    while not run.stopping:
        try:
            return answer.get(timeout=POLL)
        except queue.Empty:
            continue
    return "the answer was stopped"
