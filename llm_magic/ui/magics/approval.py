"""Approval of tool calls: the cell shows the call and asks with `input()` whether to run it."""

import builtins
import json
from collections.abc import Callable, Mapping

from IPython.core.error import StdinNotImplementedError

from llm_magic.events import ToolCall

from ..views import summary

_HELP = "[y]es, [N]o, [a]ll of this cell, other arguments as JSON, or why not"
_WORDS = {"y": True, "yes": True, "": False, "n": False, "no": False}


class CellApproval:
    """Asks the user about each call. The answer "all" holds until the cell that gave it has ended.

    Args:
        running: Identifies the run of the current cell: another value means another run. A
            conversation outlives its cells, so a call can come from a later cell or from a thread.
    """

    def __init__(self, running: Callable[[], object]) -> None:
        self._running = running
        self._approved: object = None  # the run for which the user answered "all"

    def __call__(self, call: ToolCall, arguments: object) -> bool | str | Mapping[str, object]:
        if self._approved is not None and self._approved == self._running():
            return True
        question = f"{summary.call(call.name, arguments)}\nrun it? {_HELP}: "
        try:
            # Looked up here, since a kernel replaces `input` for each cell.
            answer = builtins.input(question).strip()
        except (StdinNotImplementedError, EOFError, OSError):
            return "approval is needed, and this front end has no input"
        word = answer.lower()
        if word in ("a", "all"):
            self._approved = self._running()
            return True
        return _WORDS[word] if word in _WORDS else _other(answer)


def _other(answer: str) -> str | Mapping[str, object]:
    """Arguments to use instead, or the reason why not."""
    if not answer.startswith("{"):
        return answer
    try:
        found = json.loads(answer)
    except ValueError as e:
        return f"the arguments typed instead were not JSON ({e})"
    return found if isinstance(found, dict) else answer
