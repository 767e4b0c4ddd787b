"""Completions for lines that begin with our magic.

Comes in: the line up to the cursor, options, commands, names of the notebook. Goes out: words. It
must not know a shell.
"""

from collections.abc import Collection, Iterable

from llm_magic import models

_NAMES = ("--tools", "--schema", "--grammar", "--choices", "tools")
_TALKS = ("--chat", "history", "reset", "undo", "fork", "export")


def complete(
    line: str,
    symbol: str,
    options: Collection[str],
    commands: Collection[str] = (),
    names: Iterable[str] = (),
    talks: Collection[str] = (),
) -> list[str]:
    """What may stand at the end of `line`, whose last, unfinished word is `symbol`.

    options: of a cell. commands: of `%llm`. names: of the notebook. talks: of conversations.
    """
    words = line.split()
    before = words[:-1] if symbol and words and line.endswith(symbol) else words
    last = before[-1] if before else ""
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
    return list(options)
