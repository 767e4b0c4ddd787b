"""The turns of one chat as a tree: every answer that was ever given stays reachable."""

import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.events import Message, ToolRecord
from llm_magic.ui.views import tooltrace
from llm_magic.ui.views.summary import cached, counted
from llm_magic.utf8 import whole

from ..shared.phases import CONTINUABLE, CUT_OFF
from . import saved as chat_saved
from .markdown_diff import MarkdownDiff
from .saved import VERSION, SavedChat, SavedTurn


def plain(text: str) -> str:
    """Text as safe HTML that keeps its line breaks.

    >>> plain("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p>{html.escape(text)}</p>".replace("\n", "<br>")


def _unfailing(render: Callable[[str], str]) -> Callable[[str], str]:
    def rendered(text: str) -> str:
        try:
            return render(text)
        except Exception:  # a text that the renderer cannot take is still an answer
            return plain(text)

    return rendered


@dataclass(slots=True, eq=False)
class ThreadTurn:
    """One message of the tree. Mutable; owned by the controller's thread.

    Attributes:
        note: Why the answer ended early, in words; "" if it did not.
        error: What went wrong; "" if nothing did.
        active: The position of the child that continues the shown path.
        messages: What the turn adds to the conversation where that is more than one message (tool
            calls and their results).
    """

    id: int
    role: str
    text: str = ""
    parent: "ThreadTurn | None" = None
    children: list["ThreadTurn"] = field(default_factory=list)
    active: int = 0
    reply: Reply | None = None
    answer: MarkdownDiff = field(default_factory=lambda: MarkdownDiff(plain))
    reasoning: MarkdownDiff = field(default_factory=lambda: MarkdownDiff(plain))
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
        if self.role == "assistant" and self.reply is not None:
            return self.reply.message
        return Message(self.role, self.text)

    def foot(self, steady: bool = False) -> list[str]:
        """The line under an answer: model, counts and, unless `steady`, speed."""
        if self.reply is None or self.busy:
            return []
        usage, timings = self.reply.usage, self.reply.timings
        parts = [self.reply.model]
        if usage.total:
            held = cached(usage)
            reused = f" ({held} cached)" if held else ""
            parts.append(f"{usage.prompt:,} prompt tokens{reused}")
            parts.append(f"{counted(usage.completion, 'answer token')}")
        if timings.decode_tps and not steady:
            parts.append(f"{timings.decode_tps:.0f} tok/s")
        return [part for part in parts if part]

    def ending(self) -> dict[str, Any]:
        """What a page needs when an answer is complete. All of it is text, except `tools`."""
        tokens = self.reply.tokens if self.reply else ()
        tps = self.reply.timings.decode_tps if self.reply else 0.0
        return {
            "foot": self.foot(), "note": self.note, "error": self.error,
            "tools": tooltrace.fragment(self.trace), "tokens": any(t.top for t in tokens),
            "more": self.can_continue, "tps": round(tps),
        }  # fmt: skip

    @property
    def exact(self) -> bool:
        """Whether the ids of all tokens of the answer are known, and its prompt."""
        reply = self.reply
        return (
            reply is not None
            and bool(reply.prompt_ids or reply.prompt)
            and bool(reply.tokens)
            and all(t.id is not None for t in reply.tokens)
        )

    @property
    def can_continue(self) -> bool:
        """Whether the answer was cut off and can be continued: after its tokens, or its text."""
        if self.reply is None or self.busy or self.children or self.trace or self.reply.calls:
            return False
        cut = self.note in CONTINUABLE or self.reply.finish_reason in CUT_OFF
        return cut and (self.exact or bool(self.reply.text))

    def picture(self) -> dict[str, Any]:
        """What a page needs to draw this turn. Its HTML is safe; everything else is text."""
        out: dict[str, Any] = {"id": self.id, "role": self.role}
        if self.role == "user":
            out["text"] = self.text
        else:
            out |= {"answer": list(self.answer.blocks), "reasoning": list(self.reasoning.blocks)}
            out |= {"text": self.source, "busy": self.busy, **self.ending()}
        siblings = self.parent.children if self.parent else [self]
        if len(siblings) > 1:
            out["branch"] = [siblings.index(self), len(siblings)]
        return out


class Thread:
    """The tree of turns and its shown path.

    Args:
        render: Turns Markdown into safe HTML.

    >>> thread = Thread()
    >>> question = thread.add(thread.root, "user", "Hi")
    >>> for text in ("Hello", "Good day"):
    ...     answer = thread.answer(question, Reply(text))
    >>> [message.text for message in thread.messages()]
    ['Hi', 'Good day']
    >>> thread.choose(answer, 0)
    True
    >>> thread.last().source
    'Hello'
    """

    def __init__(self, render: Callable[[str], str] = plain) -> None:
        self.render = _unfailing(render)
        self._next = 1
        self.root = ThreadTurn(0, "root")
        self.at = ""  # when the last answer was given, as ISO 8601

    # ------------------------------------------------------------------ reading

    def path(self) -> list[ThreadTurn]:
        """The turns that are shown, oldest first."""
        return list(self._walk())

    def _walk(self) -> Iterator[ThreadTurn]:
        return walk(self.root)

    def find(self, id: int) -> ThreadTurn | None:
        """The turn of the shown path with this id."""
        return next((turn for turn in self._walk() if turn.id == id), None)

    def last(self) -> ThreadTurn:
        """The end of the shown path; the root when there is none."""
        turns = self.path()
        return turns[-1] if turns else self.root

    def messages(self, upto: ThreadTurn | None = None) -> tuple[Message, ...]:
        """The active path as messages, up to and including `upto`. Empty answers are left out."""
        out: list[Message] = []
        for turn in self._walk():
            if turn.messages:
                out.extend(turn.messages)
            elif turn.role == "user" or turn.reply is not None:
                out.append(turn.message)
            if turn is upto:
                break
        return tuple(out)

    def to_dict(
        self, tokens: bool = True, replies: bool = True, versions: bool = True
    ) -> dict[str, Any]:
        """The conversation as plain JSON (see chat_saved).

        tokens: with the tokens of each answer. replies: with what is known of each answer but its
        text. versions: with the turns that are not shown.
        """
        deep = chat_saved.MAX_DEPTH if versions else 0
        rows = [_row_out(turn, tokens, replies, deep) for turn in self.path()]
        out: dict[str, Any] = {"version": VERSION, "turns": rows}
        return out | ({"at": self.at} if self.at else {})

    # ------------------------------------------------------------------ changing

    def add(self, parent: ThreadTurn, role: str, text: str = "") -> ThreadTurn:
        """A new turn below `parent`; the shown path now leads to it."""
        turn = ThreadTurn(self._next, role, whole(text), parent)
        turn.answer, turn.reasoning = MarkdownDiff(self.render), MarkdownDiff(self.render)
        self._next += 1
        parent.children.append(turn)
        parent.active = len(parent.children) - 1
        return turn

    def answer(self, parent: ThreadTurn, reply: Reply, note: str = "") -> ThreadTurn:
        """A complete answer below `parent`."""
        turn = self.add(parent, "assistant", reply.text)
        turn.reply, turn.note, turn.trace = reply, note, reply.trace
        turn.answer.settle(reply.text)
        turn.reasoning.settle(reply.reasoning)
        return turn

    def remove(self, turn: ThreadTurn) -> None:
        """Forget a turn and all below it. An earlier sibling is shown in its place."""
        parent = turn.parent
        if parent is None:
            return
        at = parent.children.index(turn)
        del parent.children[at]
        parent.active = max(0, min(parent.active - (at <= parent.active), len(parent.children) - 1))

    def choose(self, turn: ThreadTurn, index: int) -> bool:
        """Show sibling number `index` of a turn instead of it. False if there is none."""
        if turn.parent is None or not 0 <= index < len(turn.parent.children):
            return False
        turn.parent.active = index
        return True

    def replace(self, root: ThreadTurn) -> ThreadTurn:
        """Another tree in the place of this one; the old one comes back."""
        old, self.root = self.root, root
        return old

    def take(self, other: "Thread") -> None:
        """The turns of another tree in the place of these. `other` must not be used any more."""
        self.root, self._next, self.at = other.root, max(self._next, other._next), other.at

    def load(self, data: Any) -> SavedChat:
        """Replace everything by a saved conversation, which is not trusted; what else it holds.

        data: what `to_dict` gave, or a list of messages (OpenAI-style dicts or Message). Raises
        ValueError that says what is wrong; nothing is changed then.
        """
        saved = chat_saved.read(data)
        self.root, self.at = ThreadTurn(0, "root"), saved.at
        self._grow(self.root, saved.rows)
        return saved

    def _grow(self, parent: ThreadTurn, rows: Sequence[SavedTurn]) -> None:
        for row in rows:
            for other in row.others[: row.place]:
                self._grow(parent, other)
            if row.role == "assistant":
                turn = self.answer(parent, row.reply or Reply(row.text), row.note)
            else:
                turn = self.add(parent, row.role, row.text)
            for other in row.others[row.place :]:
                self._grow(parent, other)
            parent.active = row.place
            parent = turn


def _row_out(turn: ThreadTurn, tokens: bool, replies: bool, deep: int) -> dict[str, Any]:
    """deep: how many more versions inside of versions may be told."""
    row: dict[str, Any] = {"role": turn.role, "content": turn.message.text}
    if replies and turn.reply is not None:
        row["reply"] = turn.reply.to_dict(prompt=False, max_tokens=None if tokens else 0)
        for key in ("text", *(() if tokens else ("tokens", "kinds"))):  # the text is the content
            row["reply"].pop(key, None)
    if turn.note or turn.error:
        row["note"] = turn.error or turn.note
    siblings = turn.parent.children if turn.parent else [turn]
    if deep and len(siblings) > 1:
        row["place"] = siblings.index(turn)
        row["others"] = [
            [_row_out(turn, tokens, replies, (deep - 1) * (turn is not other)) for turn in below]
            for other in siblings
            if other is not turn
            for below in [[other, *walk(other)]]
        ]
    return row


def walk(turn: ThreadTurn) -> Iterator[ThreadTurn]:
    """The turns that are shown below this one when it is shown, the next first."""
    while turn.children:
        turn = turn.children[turn.active]
        yield turn
