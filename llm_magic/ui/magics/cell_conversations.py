"""Conversations of a notebook's cells, by name.

A cell that runs again replaces its earlier turn. JupyterLab and VS Code send the id of the cell
that runs; where no id comes (nbconvert, a terminal), every question is a new one, so the order of
execution is the order of the conversation.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from llm_magic.chat.conversation import Conversation, Conversations
from llm_magic.errors import RequestError


class CellConversations:
    """The conversations of one notebook. Used on the thread of the cells alone."""

    def __init__(self) -> None:
        self.named = Conversations()
        self.models: dict[str, str] = {}  # conversation -> model, as the user named it
        self.latest: str | None = None  # the conversation that was used last
        self.run = 1  # number of the cell run; an approval for a whole run ends with it
        self._cells: list[str | None] = []  # ids of the running cells, the innermost last
        self._questions: Counter[str] = Counter()  # of the running cell, by conversation

    def enter(self, cell: str | None) -> None:
        """A cell begins to run. What it runs itself (`%run`, `run_cell`) belongs to it.

        Args:
            cell: Its id; None where the front end sends none.
        """
        if cell is not None or not self._cells:
            self.run += 1
            self._cells = [cell]
            self._questions.clear()
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

    def asking_cell(self, name: str) -> str | None:
        """The id of the question that the running cell asks next in the conversation `name`.

        A cell may ask more than once (`%llm ask` in a loop), so the id counts its questions. None
        where the cell has no id.
        """
        cell = self._cells[-1] if self._cells else None
        if cell is None:
            return None
        self._questions[name] += 1
        n = self._questions[name]
        return cell if n == 1 else f"{cell} {n}"

    def find(self, name: str | None) -> tuple[str, Conversation]:
        """The conversation of that name, or the latest one. RequestError when there is none."""
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
