"""The variables that a magic sees: those of the code that calls it, then those of the notebook."""

import builtins
import sys
from collections import ChainMap
from collections.abc import Mapping
from types import FrameType

_SHELL = "IPython.core.interactiveshell"
_CALLS = ("run_cell_magic", "run_line_magic")


def visible(notebook: Mapping[str, object]) -> Mapping[str, object]:
    """The names visible where the running magic was written.

    Inside a function these are its local variables, the globals of its module, and the variables
    of the notebook, in this order. At the top level of a cell they are those of the notebook.
    """
    frame = _caller()
    if frame is None:
        return notebook
    return ChainMap(dict(frame.f_locals), frame.f_globals, dict(notebook))


def own(names: Mapping[str, object], hidden: Mapping[str, object]) -> list[str]:
    """The names that a message may suggest: what people defined, nothing of Python or IPython.

    >>> own({"city": "Lisbon", "open": open, "_i1": "", "In": []}, hidden={"In": []})
    ['city']
    """
    return [
        name
        for name, value in names.items()
        if not name.startswith("_")
        and name not in hidden
        and not (name in vars(builtins) and vars(builtins)[name] is value)
        and name != "open"  # IPython puts its own one into each notebook
    ]


def _caller() -> FrameType | None:
    """The frame whose code runs the innermost magic, or None outside a shell."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _runs_magic(frame):
        frame = frame.f_back
    while frame is not None and frame.f_globals.get("__name__") == _SHELL:
        frame = frame.f_back
    return frame


def _runs_magic(frame: FrameType) -> bool:
    return frame.f_code.co_name in _CALLS and frame.f_globals.get("__name__") == _SHELL
