"""What a chat tells its pages, beside what every widget tells."""

from collections.abc import Iterable

from llm_magic.json_types import Json

from ..shared.phases import IDLE, Phase
from ..shared.protocol import Outbox, Post
from .thread import ChatThread, ChatTurn


class ChatOutbox(Outbox):
    """The operations of a chat; `apply` in chat.js carries them out."""

    def __init__(self, post: Post) -> None:
        super().__init__(post)
        self.phase(IDLE)

    def phase(self, phase: Phase) -> None:
        """What the chat is doing now."""
        self.state("phase", **phase.op())

    def notice(self, text: str, action: str = "") -> None:
        """A line for the person. action: names the button beside it."""
        self.add("notice", text=text, action=action)

    def patch(
        self, id: int, part: str, patches: Iterable[tuple[int, int, str]], text: str = ""
    ) -> None:
        """Changes to the HTML of a turn, and the text that was added to it.

        Args:
            id: Of the turn.
            part: "answer" or "reasoning".
            patches: See `MarkdownDiff`.
            text: The Markdown of the answer that came since the last patch.
        """
        edits: list[Json] = [list(patch) for patch in patches]
        if edits or text:
            self.add("tail", id=id, part=part, edits=edits, text=text)

    def path(self, turns: ChatThread, below: ChatTurn | None) -> None:
        """The shown path from the turns below this one on."""
        path = turns.path()
        at = path.index(below) + 1 if below in path else 0
        self.add("path", at=at, turns=[turn.picture() for turn in path[at:]])
