"""`%%llm --map NAME`: the cell is a template, asked once for each row of a frame.

The frame is shown, and bound to the name of `--out` and to `_llm_table`.
"""

import argparse
import difflib

from IPython.core.error import UsageError

from llm_magic.errors import Interrupted

from .. import options
from ..tables import KEPT
from . import lookup, scope, screens
from .cell_options import request_options, system_of
from .session import Notebook

# Options that say something about one answer, or that mean another kind of cell.
_ALONE = ("chat", "new", "complete", "score", "live", "prefill", "raw", "approve", "max_steps",
          "show", "format", "trim")  # fmt: skip


def check(args: argparse.Namespace) -> None:
    """UsageError for `--cache` without `--map`, and for options that cannot be used with it."""
    if args.map is None:
        if args.cache is not None:
            raise UsageError("--cache FILE needs --map NAME: it keeps the answers of its rows")
        return
    for name in _ALONE:
        if getattr(args, name) not in (None, False):
            flag = options.find(name).flag
            raise UsageError(f"{flag} cannot be used with --map, which answers each row by itself")


def run(nb: Notebook, args: argparse.Namespace, text: str) -> None:
    """Answer the cell for every row, and show the frame."""
    check(args)
    names = nb.names
    table = _table(names, args.map)
    asked = request_options(nb, args) | lookup.constraint(names, args)
    if args.temperature is None and nb.settings.temperature is None:
        asked.pop("temperature", None)  # a table's own default holds
    if args.tools is not None:
        asked["tools"] = lookup.tools(names, args.tools)
    name = nb.name_of(args.model)
    screen = screens.screen(nb.shell, nb.look(), name, quiet=args.quiet)
    llm = nb.load(name, screen)
    screen.close("")
    try:
        frame = llm.map(
            table, text, system=system_of(nb, args), cache=args.cache, names=names,
            progress=not args.quiet, **asked,
        )  # fmt: skip
    except Interrupted as e:
        _bind(nb, args, e.partial)
        raise
    _bind(nb, args, frame)
    if not args.quiet:
        data, metadata = nb.shell.display_formatter.format(frame)
        nb.shell.display_pub.publish(data, metadata)


def _bind(nb: Notebook, args: argparse.Namespace, frame: object) -> None:
    nb.shell.user_ns[KEPT] = frame
    if args.out is not None:
        nb.shell.user_ns[args.out] = frame


def _table(names: lookup.Names, name: str) -> object:
    head = name.partition(".")[0]
    if head not in names:
        near = difflib.get_close_matches(head, scope.own(names, {}), 3, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "run the cell that makes it"
        raise UsageError(f"--map {name}: the notebook has no {head!r}; {hint}")
    return lookup.value(names, name, "--map")
