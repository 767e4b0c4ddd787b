"""Completions for lines that begin with our magic.

The words are ours alone: options, commands, models, names of the notebook. Nothing here needs a
shell.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from llm_magic import models

_NAMES = ("--tools", "--schema", "--grammar", "--choices", "tools")
_TALKS = ("--chat", "history", "reset", "undo", "fork", "export")


def complete(
    line: str,
    symbol: str,
    options: Collection[str],
    commands: Mapping[str, str] = {},
    names: Iterable[str] = (),
    talks: Collection[str] = (),
) -> list[str]:
    """What may stand at the end of `line`, whose last, unfinished word is `symbol`.

    Args:
        line: The line up to the cursor.
        symbol: The unfinished word at its end, may be empty.
        options: Options of a cell.
        commands: Commands of `%llm`, each with its usage.
        names: Names of the notebook.
        talks: Names of conversations.

    >>> complete("%llm load --", "--", ["--seed"], {"load": "[NAME] [--ctx N]"})
    ['--ctx', '--help']
    """
    words = line.split()
    before = words[:-1] if symbol and words and line.endswith(symbol) else words
    last = before[-1] if before and not symbol.startswith("-") else ""
    if last in ("-m", "--model", "load"):
        return [row.name for row in models.known()]
    if last in ("-f", "--format"):
        return ["markdown", "text", "code"]
    if last in _TALKS:
        return list(talks)
    if last in _NAMES:
        return [name for name in names if not name.startswith("_")]
    if last == "--tool-choice":
        return ["auto", "none", "required"]
    if len(before) <= 1 and not line.startswith("%%"):
        return list(commands)
    usage = "" if line.startswith("%%") else commands.get(words[1], "")
    if not usage or "options" in usage:
        return list(options)
    return [*re.findall(r"--[\w-]+", usage), "--help"]
