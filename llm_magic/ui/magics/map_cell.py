"""`%%llm --map NAME`: the cell is a template, asked once for each row of a frame.

Comes in: options as parsed, the text of the cell. Goes out: the frame, bound to the name of `--out`
and to `_llm_table`, and shown. It must not know how rows are answered.
"""

import argparse
import difflib
from typing import Any

from IPython.core.error import UsageError

from llm_magic.errors import Interrupted

from .. import options
from ..tables import KEPT
from . import lookup, scope, screens
from .session import Notebook

# Options that say something about one answer, or that mean another kind of cell.
_ALONE = ("chat", "new", "complete", "score", "live", "prefill", "raw", "approve", "max_steps",
          "show", "format", "trim")  # fmt: skip


def check(given: argparse.Namespace) -> None:
    """UsageError for `--cache` without `--map`, and for options that have no place beside it."""
    if given.map is None:
        if given.cache is not None:
            raise UsageError("--cache FILE needs --map NAME: it keeps the answers of its rows")
        return
    for name in _ALONE:
        if getattr(given, name) not in (None, False):
            flag = options.find(name).flag
            raise UsageError(f"--map answers every row by itself: there is no place for {flag}")


def run(nb: Notebook, given: argparse.Namespace, text: str) -> None:
    """Answer the cell for every row, and show the frame."""
    check(given)
    names = nb.names
    table = _table(names, given.map)
    asked = nb.sampling(given) | lookup.constraint(names, given)
    if given.temperature is None and nb.temperature is None:
        asked.pop("temperature", None)  # a table's own default holds
    if given.tools is not None:
        asked["tools"] = lookup.tools(names, given.tools)
    name = nb.name_of(given.model)
    screen = screens.screen(nb.shell, nb.look(), name, quiet=given.quiet)
    llm = nb.load(name, screen)
    screen.close("")
    try:
        frame = llm.map(
            table, text, system=nb.system_of(given), cache=given.cache, names=names,
            progress=not given.quiet, **asked,
        )  # fmt: skip
    except Interrupted as e:
        _bind(nb, given, e.partial)
        raise
    _bind(nb, given, frame)
    if not given.quiet:
        data, metadata = nb.shell.display_formatter.format(frame)
        nb.shell.display_pub.publish(data, metadata)


def _bind(nb: Notebook, given: argparse.Namespace, frame: Any) -> None:
    nb.shell.user_ns[KEPT] = frame
    if given.out is not None:
        nb.shell.user_ns[given.out] = frame


def _table(names: lookup.Names, name: str) -> Any:
    head = name.partition(".")[0]
    if head not in names:
        near = difflib.get_close_matches(head, scope.own(names, {}), 3, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "run the cell that makes it"
        raise UsageError(f"--map {name}: the notebook has no {head!r}; {hint}")
    return lookup.value(names, name, "--map")
