"""A conversation as a tree of turns: every version of a question or an answer stays reachable.

One path through the tree is the conversation that the model reads. `Conversation` changes the tree
an exchange at a time; the chat widget adds the answer's turn first and fills it while it streams.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Generic, Self, TypeVar

from ..events import Message, ToolRecord
from ..utf8 import whole
from .reply import Reply


@dataclass(slots=True, eq=False)
class ThreadTurn:
    """One message of the tree, with all that it adds to the history. Mutable.

    Attributes:
        number: The number of the exchange that a question begins; its versions may share it.
        cell: The cell that asked the question, if a cell did.
        active: The position of the child that continues the current path.
        messages: What the turn adds to the history where that is not one plain message (tool calls
            and their results, a question of several parts).
        note: Why the answer ended early, in words; "" if it did not.
        error: What went wrong; "" if nothing did.
        busy: Whether the answer is being written.
    """

    id: int
    role: str
    text: str = ""
    parent: Self | None = None
    children: list[Self] = field(default_factory=list)
    active: int = 0
    number: int = 0
    cell: str | None = None
    reply: Reply | None = None
    trace: tuple[ToolRecord, ...] = ()
    messages: tuple[Message, ...] = ()
    note: str = ""
    error: str = ""
    busy: bool = False

    @property
    def source(self) -> str:
        """The Markdown of the turn; so far, while the answer is being written."""
        return self.reply.text if self.reply is not None else self.text

    @property
    def message(self) -> Message:
        """The turn as one message."""
        if self.role == "assistant" and self.reply is not None:
            return self.reply.message
        return Message(self.role, self.text)

    @property
    def history(self) -> tuple[Message, ...]:
        """What the model reads of the turn; nothing of an answer that is not known yet."""
        if self.messages:
            return self.messages
        return () if self.role == "assistant" and self.reply is None else (self.message,)

    @property
    def versions(self) -> list[Self]:
        """All versions of the turn, this one included, oldest first."""
        return self.parent.children if self.parent is not None else [self]


T = TypeVar("T", bound=ThreadTurn)


class Thread(Generic[T]):
    """A tree of turns and its current path. Not thread-safe: its owner holds a lock or a thread.

    Args:
        make: Makes an empty turn from its id and role. `ThreadTurn` does; an interface may add to
            it what it needs for drawing.

    >>> thread = Thread(ThreadTurn)
    >>> first = thread.exchange(thread.root, Message("user", "1"), (Message("assistant", "a"),))
    >>> second = thread.exchange(thread.last(), Message("user", "2"), (Message("assistant", "b"),))
    >>> [message.text for message in thread.messages()]
    ['1', 'a', '2', 'b']
    >>> other = thread.exchange(first.parent, Message("user", "one"), (Message("assistant", "c"),))
    >>> [message.text for message in thread.messages()]
    ['one', 'c']
    >>> thread.choose(other, 0)
    True
    >>> thread.last().text
    'b'
    """

    def __init__(self, make: Callable[[int, str], T]) -> None:
        self._make = make
        self._next = 1
        self._numbers = count(1)
        self.root: T = make(0, "root")

    # ------------------------------------------------------------------ reading

    def path(self) -> list[T]:
        """The turns of the current path, oldest first."""
        return list(below(self.root))

    def find(self, id: int) -> T | None:
        """The turn of the current path with this id."""
        return next((turn for turn in below(self.root) if turn.id == id), None)

    def last(self) -> T:
        """The end of the current path; the root where there is no turn."""
        turns = self.path()
        return turns[-1] if turns else self.root

    def exchanges(self) -> list[tuple[T, T]]:
        """The answered questions of the current path, each with its answer."""
        return [
            (question, answer)
            for question, answer in pairwise(below(self.root))
            if question.role != "assistant" and answer.role == "assistant" and not answer.busy
        ]

    def messages(self, upto: T | None = None) -> tuple[Message, ...]:
        """The current path as messages, up to and including `upto`."""
        out: list[Message] = []
        for turn in below(self.root):
            out.extend(turn.history)
            if turn is upto:
                break
        return tuple(out)

    # ------------------------------------------------------------------ changing

    def add(self, parent: T, role: str, text: str = "") -> T:
        """Add a turn below `parent`. The current path leads to it."""
        turn = self._make(self._next, role)
        self._next += 1
        turn.text, turn.parent = whole(text), parent
        turn.number = next(self._numbers) if role != "assistant" else 0
        parent.children.append(turn)
        parent.active = len(parent.children) - 1
        return turn

    def exchange(
        self,
        parent: T,
        question: Message,
        added: tuple[Message, ...],
        reply: Reply | None = None,
        cell: str | None = None,
    ) -> T:
        """Add a question and all that answers it below `parent`.

        Returns:
            The turn of the question.
        """
        asked = self.add(parent, question.role, question.text)
        asked.messages, asked.cell = (question,), cell
        answer = self.add(asked, "assistant", reply.text if reply else added[-1].text)
        answer.messages, answer.reply = added, reply
        answer.trace = reply.trace if reply else ()
        return asked

    def supersede(self, old: T, new: T) -> None:
        """Put the exchange `new` in the place of its sibling `old`, which is forgotten.

        The turns after the old exchange follow the new one.
        """
        parent = old.parent
        if parent is None:
            return
        if old.children and new.children:
            former, answer = old.children[old.active], new.children[new.active]
            answer.children, answer.active = former.children, former.active
            for turn in answer.children:
                turn.parent = answer
        new.number = old.number
        parent.children.remove(new)
        parent.active = parent.children.index(old)
        parent.children[parent.active] = new

    def remove(self, turn: T) -> None:
        """Forget a turn and all below it. An earlier version is current in its place."""
        parent = turn.parent
        if parent is None:
            return
        at = parent.children.index(turn)
        del parent.children[at]
        parent.active = max(0, min(parent.active - (at <= parent.active), len(parent.children) - 1))

    def choose(self, turn: T, index: int) -> bool:
        """Make version number `index` of a turn the current one. False if there is none."""
        if turn.parent is None or not 0 <= index < len(turn.parent.children):
            return False
        turn.parent.active = index
        return True

    def replace(self, root: T) -> T:
        """Put another tree in the place of this one.

        Returns:
            The root of the old tree.
        """
        old, self.root = self.root, root
        return old

    def clear(self) -> T:
        """Begin an empty tree.

        Returns:
            The root of the old tree.
        """
        return self.replace(self._make(0, "root"))

    def take(self, other: "Thread[T]") -> None:
        """Put the turns of another tree in the place of these. `other` must not be used again."""
        self.root, self._next = other.root, max(self._next, other._next)

    def copy(self, upto: T | None = None) -> "Thread[ThreadTurn]":
        """The exchanges of the current path as a tree of its own.

        Args:
            upto: The question of the last exchange that is copied; None copies all.
        """
        out: Thread[ThreadTurn] = Thread(ThreadTurn)
        highest = 0
        for question, answer in self.exchanges():
            asked = out.exchange(
                out.last(), question.history[0], answer.history, answer.reply, question.cell
            )
            asked.number = question.number
            highest = max(highest, question.number)
            if question is upto:
                break
        out._numbers = count(highest + 1)
        return out


def below(turn: T) -> Iterator[T]:
    """The turns of the current path below this one, the next first."""
    while turn.children:
        turn = turn.children[turn.active]
        yield turn
