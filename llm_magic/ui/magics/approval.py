"""A person decides about a tool call: `input()` in the cell that makes it.

Comes in: a call and its arguments, written by a model. Goes out: a verdict (see toolrun.Verdict).
It must not know conversations or displays.
"""

import builtins
import json
from collections.abc import Mapping
from typing import Any

from IPython.core.error import StdinNotImplementedError

from llm_magic.events import ToolCall

from ..views import summary

_HELP = "[y]es, [N]o, [a]ll of this cell, other arguments as JSON, or why not"
_WORDS = {"y": True, "yes": True, "": False, "n": False, "no": False}


class Asking:
    """Asks about each call. One object per cell: "all" holds for the rest of that cell."""

    def __init__(self) -> None:
        self._all = False

    def __call__(self, call: ToolCall, arguments: Any) -> bool | str | Mapping[str, Any]:
        if self._all:
            return True
        question = f"{summary.call(call.name, arguments)}\nrun it? {_HELP}: "
        try:
            # Looked up now: a kernel puts its own `input` there for each cell.
            answer = builtins.input(question).strip()
        except (StdinNotImplementedError, EOFError, OSError):
            return "nobody could be asked, since there is no input here"
        word = answer.lower()
        if word in ("a", "all"):
            self._all = True
            return True
        return _WORDS[word] if word in _WORDS else _other(answer)


def _other(answer: str) -> str | Mapping[str, Any]:
    """Arguments to use instead, or the reason why not."""
    if not answer.startswith("{"):
        return answer
    try:
        found = json.loads(answer)
    except ValueError as e:
        return f"the arguments typed instead were not JSON ({e})"
    return found if isinstance(found, dict) else answer
