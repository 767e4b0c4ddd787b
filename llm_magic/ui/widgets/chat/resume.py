"""Finds the conversation that the saved notebook holds of a chat, so that the chat can continue it.

Jupyter's server (2 and newer) names the notebook in JPY_SESSION_NAME, VS Code in a variable of the
notebook. The cell is found by its id, which JupyterLab and Notebook send to the kernel. Where no
file can have such an id (VS Code sends an address), or this file has none (before nbformat 4.5),
the cell is found by its source, if only one cell has that source. A search never raises: nobody
asked for it.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython import get_ipython

from .saved import SavedChat
from .thread import ChatThread
from .transcript import VENDOR, outputs

MAX_FILE = 50_000_000  # bytes; a bigger one would hold the cell up for seconds
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a cell, as nbformat has it
DISPLAY = "llm-chat-"  # how the displays of transcripts are called


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """A saved conversation that a chat can continue: its turns, and what else was saved."""

    turns: ChatThread
    saved: SavedChat

    @classmethod
    def read(cls, data: Any, render: Callable[[str], str]) -> "SavedConversation":
        """Read plain JSON or messages, which are not trusted.

        Raises:
            ValueError: The data is not a saved conversation. The message says why.
        """
        turns = ChatThread(render)
        saved = turns.load(data)
        return cls(turns, saved)

    @property
    def texts(self) -> list[tuple[str, str]]:
        """(role, text) of the shown turns that have a text."""
        said = ((turn.role, turn.message.text) for turn in self.turns.path())
        return [(role, text) for role, text in said if text]

    def holds(self, other: "SavedConversation") -> bool:
        """Whether the shown path ends with all shown turns of the other one."""
        theirs = other.texts
        return self.texts[-len(theirs) :] == theirs

    def op(self) -> dict[str, Any]:
        """What a page shows of it. All of it is text."""
        asked = sum(role == "user" for role, _ in self.texts)
        return {"n": asked, "model": self.saved.model, "at": self.saved.at}


NONE = {"n": 0, "model": "", "at": ""}  # the op of no conversation


def finder(name: str | None, nth: int) -> Callable[[], Any]:
    """A search for what the saved notebook holds of the chat that the running cell shows.

    It returns the conversation, not checked, or None; it may run on any thread.

    Args:
        name: Of the chat, if it has one: it is found in any cell.
        nth: Which of the chats without a name that this cell shows it is, from 0.
    """
    shell = get_ipython()
    try:  # here, on the thread of the cell: another one has no cell
        parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
        path = notebook(os.environ, getattr(shell, "user_ns", {}))
    except Exception:
        return lambda: None
    return lambda: _find(path, parent, name, nth)


def _find(path: Path | None, parent: Any, name: str | None, nth: int) -> Any:
    try:
        held = None if path is None else path.read_bytes()
        # Most notebooks hold no chat: they need not be parsed.
        if held is None or VENDOR.encode() not in held:
            return None
        cell, source = parent["metadata"].get("cellId"), parent["content"].get("code")
        return choose(json.loads(held), cell, source, name, nth)
    except Exception:  # a file that someone else wrote, or a kernel that tells other things
        return None


def notebook(environment: Mapping[str, str], names: Mapping[str, Any]) -> Path | None:
    """The file of this kernel's notebook, unless it is unknown or too large."""
    given = names.get("__vsc_ipynb_file__") or environment.get("JPY_SESSION_NAME")
    path = Path(given) if isinstance(given, str) and given else None
    if path is None or path.suffix != ".ipynb" or not path.is_file():
        return None
    return path if path.stat().st_size <= MAX_FILE else None


def choose(data: Any, cell: Any, source: Any, name: str | None, nth: int) -> Any:
    """The conversation of the chat with this name, else of the nth chat of this cell, or None."""
    cells = list(_cells(data))
    if name is not None:
        named = [talk for _, _, talks in cells for talk in talks if _name(talk) == name]
        return named[-1] if named else None
    mine = [talks for id, _, talks in cells if cell and id == cell]
    told = isinstance(cell, str) and _ID.fullmatch(cell) is not None
    if not (told and any(id for id, _, _ in cells)):
        mine = mine or [talks for _, text, talks in cells if source and text == source]
    if len(mine) != 1:
        return None
    talks = [talk for talk in mine[0] if _name(talk) is None]
    return talks[nth] if nth < len(talks) else None


def _cells(data: Any) -> Iterator[tuple[Any, str, list[Any]]]:
    """Id, source and transcripts of each cell. One without a conversation counts as None."""
    for cell, found in outputs(data):
        talks: dict[Any, Any] = {}
        for i, output in enumerate(found):
            display = _tag(output)
            talk = output["data"].get(VENDOR)
            if talk is not None or display is not None:
                talks[display or i] = talk  # a chat that is shown twice is one
        lines = cell.get("source", "")
        parts = lines if isinstance(lines, list) else [lines]
        source = "".join(part for part in parts if isinstance(part, str))
        yield cell.get("id"), source, list(talks.values())


def _tag(output: Mapping[str, Any]) -> str | None:
    """The display id in an output's tag (see jupyter.UpdatableOutput), if it has one."""
    tag: Any = output
    for key in ("metadata", "llm_magic", "display"):
        tag = tag.get(key) if isinstance(tag, Mapping) else None
    return tag if isinstance(tag, str) and tag.startswith(DISPLAY) else None


def _name(talk: Any) -> Any:
    return talk.get("name") if isinstance(talk, Mapping) else None
