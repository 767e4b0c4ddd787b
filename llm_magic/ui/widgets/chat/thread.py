"""The turns of a chat as its page shows them: drawing, and the saved form.

The tree is `llm_magic.chat.thread.Thread`, the same that a `Conversation` has.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.chat.thread import Thread, ThreadTurn, below
from llm_magic.ui.views import tooltrace
from llm_magic.ui.views.summary import cached, counted

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
class ChatTurn(ThreadTurn):
    """A turn with the HTML that the pages have of it. Owned by the controller's thread."""

    answer: MarkdownDiff = field(default_factory=lambda: MarkdownDiff(plain))
    reasoning: MarkdownDiff = field(default_factory=lambda: MarkdownDiff(plain))

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
        siblings = self.versions
        if len(siblings) > 1:
            out["branch"] = [siblings.index(self), len(siblings)]
        return out


class ChatThread(Thread[ChatTurn]):
    """The tree of turns and its shown path, which pages draw.

    Args:
        render: Turns Markdown into safe HTML.

    >>> thread = ChatThread()
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
        super().__init__(self._blank)
        self.at = ""  # when the last answer was given, as ISO 8601

    def _blank(self, id: int, role: str) -> ChatTurn:
        answer, reasoning = MarkdownDiff(self.render), MarkdownDiff(self.render)
        return ChatTurn(id, role, answer=answer, reasoning=reasoning)

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

    def answer(self, parent: ChatTurn, reply: Reply, note: str = "") -> ChatTurn:
        """A complete answer below `parent`."""
        turn = self.add(parent, "assistant", reply.text)
        turn.reply, turn.note, turn.trace = reply, note, reply.trace
        turn.answer.settle(reply.text)
        turn.reasoning.settle(reply.reasoning)
        return turn

    def take(self, other: Thread[ChatTurn]) -> None:
        """Put the turns of another tree in the place of these. `other` must not be used again."""
        super().take(other)
        if isinstance(other, ChatThread):
            self.at = other.at

    def load(self, data: Any) -> SavedChat:
        """Replace everything by a saved conversation, which is not trusted; what else it holds.

        data: what `to_dict` gave, or a list of messages (OpenAI-style dicts or Message). Raises
        ValueError that says what is wrong; nothing is changed then.
        """
        saved = chat_saved.read(data)
        self.clear()
        self.at = saved.at
        self._grow(self.root, saved.rows)
        return saved

    def _grow(self, parent: ChatTurn, rows: Sequence[SavedTurn]) -> None:
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


def _row_out(turn: ChatTurn, tokens: bool, replies: bool, deep: int) -> dict[str, Any]:
    """deep: how many more versions inside of versions may be told."""
    row: dict[str, Any] = {"role": turn.role, "content": turn.message.text}
    if replies and turn.reply is not None:
        row["reply"] = turn.reply.to_dict(prompt=False, max_tokens=None if tokens else 0)
        for key in ("text", *(() if tokens else ("tokens", "kinds"))):  # the text is the content
            row["reply"].pop(key, None)
    if turn.note or turn.error:
        row["note"] = turn.error or turn.note
    siblings = turn.versions
    if deep and len(siblings) > 1:
        row["place"] = siblings.index(turn)
        row["others"] = [
            [
                _row_out(shown, tokens, replies, (deep - 1) * (shown is not other))
                for shown in (other, *below(other))
            ]
            for other in siblings
            if other is not turn
        ]
    return row
