"""Conversations by name, as the cells of a notebook hold them.

Comes in: names, and which cell runs. Goes out: Conversations, and for each question the name of the
cell that asks it. It must not know options or displays.

A cell that runs again replaces what it said before. The front end tells who a cell is (JupyterLab
and VS Code do); where nobody tells (nbconvert, a terminal), every question is a new one, so the
order of execution is the order of the conversation.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from llm_magic.chat.conversation import Conversation, Conversations
from llm_magic.errors import RequestError


class Talks:
    """The conversations of one notebook. Used on the thread of the cells alone."""

    def __init__(self) -> None:
        self.named = Conversations()
        self.models: dict[str, str] = {}  # who answers in each, by the name that was asked for
        self.latest: str | None = None  # the one that was used last
        self.run = 1  # counts the runs of cells; an approval for a whole run ends with it
        self._cells: list[str | None] = []  # that run now, the innermost last
        self._asked: Counter[str] = Counter()

    def enter(self, cell: str | None) -> None:
        """A cell begins to run; None: nobody knows which. What a cell runs in its turn (`%run`,
        `run_cell`) belongs to it."""
        if cell is not None or not self._cells:
            self.run += 1
            self._cells = [cell]
            self._asked.clear()
        else:
            self._cells.append(self._cells[-1])

    def leave(self) -> None:
        """The cell has ended."""
        if self._cells:  # else the cell that loaded the extension, which nobody saw begin
            self._cells.pop()
        if not self._cells:
            self.run += 1

    def open(self, name: str, make: Callable[[], Conversation], new: bool = False) -> Conversation:
        """The conversation of that name, made where there is none; new: made in any case."""
        found = self.named.open(name, make, new)
        self.latest = name
        return found

    def asker(self, name: str) -> str | None:
        """Who asks now in the conversation `name`: the cell, and which of its questions it is.

        A cell may ask more than once (`%llm ask` in a loop): only the same place in the same cell
        is the same question.
        """
        cell = self._cells[-1] if self._cells else None
        if cell is None:
            return None
        self._asked[name] += 1
        n = self._asked[name]
        return cell if n == 1 else f"{cell} {n}"

    def find(self, name: str | None) -> tuple[str, Conversation]:
        """The conversation of that name, or the one used last. RequestError when there is none."""
        key = name or self.latest
        if key is None:
            raise RequestError("there is no conversation yet; --chat NAME on a cell begins one")
        return key, self.named[key]

    def put(self, name: str, conversation: Conversation) -> None:
        """Keep a conversation under a name; what had the name before is forgotten."""
        self.open(name, lambda: conversation, new=True)

    def remove(self, names: Iterable[str]) -> None:
        """Forget conversations. RequestError for a name that there is not."""
        for name in list(names):
            self.named.remove(name)
            self.models.pop(name, None)
            if self.latest == name:
                self.latest = next(reversed(list(self.named)), None)
