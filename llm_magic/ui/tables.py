"""How a run over a table is shown where it runs: a notebook's cell, a terminal, or nowhere.

Fills `extension_points.TABLES`. The bar is one output of the cell, updated in place; what a saved
notebook keeps of it is its last line.
"""

import sys
import time
import uuid
from typing import Any

from IPython import get_ipython

from ..tables.grid import Grid
from ..tables.run import Bar, NoBar, State
from .views import mime, tables
from .widgets.shared import jupyter

KEPT = "_llm_table"  # the notebook's name of what an interrupted run has answered
PAUSE = 0.2  # seconds between two updates
PATIENCE = 0.5  # seconds before a bar is worth showing


def grid(found: Grid) -> mime.Fragment:
    """The view of a grid."""
    return tables.grid(found)


def bar(model: str) -> Bar:
    """The bar that suits this process.

    Args:
        model: The name of the model that answers.
    """
    shell = get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return CellBar(shell)
    return TextBar(model, shell) if sys.stderr.isatty() else NoBar()


class CellBar:
    """A bar in the output of the running cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        settings = jupyter.extension()
        self._steady = bool(getattr(settings, "docs_mode", False) or mime.docs_wanted())
        self._output = jupyter.UpdatableOutput({}, uuid.uuid4().hex, tagged=False)
        self._began = time.monotonic()
        self._shown = 0.0

    def update(self, state: State) -> None:
        now = time.monotonic()
        early = now - self._began < PATIENCE or now - self._shown < PAUSE
        if self._steady or early:
            return
        self._shown = now
        self._show(tables.running(state))

    def close(self, state: State, note: str = "") -> None:
        last = tables.done(state, note, self._steady)
        if self._steady:  # a display that is updated is compared by its first frame
            self._shell.display_pub.publish(last._repr_mimebundle_(), {})
        else:
            self._show(last)

    def _show(self, fragment: mime.Fragment) -> None:
        update = bool(self._output.data)
        self._output.change(fragment._repr_mimebundle_())
        self._output.show(update)

    def keep(self, frame: object) -> str:
        self._shell.user_ns[KEPT] = frame
        return KEPT


class TextBar:
    """A line of a terminal that is written over."""

    def __init__(self, model: str, shell: Any) -> None:
        self._model, self._shell = model, shell
        self._width, self._shown = 0, 0.0

    def update(self, state: State) -> None:
        now = time.monotonic()
        if now - self._shown < PAUSE:
            return
        self._shown = now
        line = f"{self._model}: {tables.running(state).plain}"
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def close(self, state: State, note: str = "") -> None:
        line = f"{self._model}: {tables.done(state, note).plain}"
        sys.stderr.write("\r" + line.ljust(self._width) + "\n")
        sys.stderr.flush()

    def keep(self, frame: object) -> str:
        if self._shell is None:
            return ".partial of this error"
        self._shell.user_ns[KEPT] = frame
        return KEPT
