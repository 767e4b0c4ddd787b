"""Looks up the names on a cell's line in the notebook: tools, and constraints of answers.

A `UsageError` says what is wrong, with near spellings.
"""

import argparse
import ast
import builtins
import difflib
import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from llm_magic.chat.constraints import kinds
from llm_magic.chat.tools.definition import Tool, as_tool, as_tools, tool
from llm_magic.errors import LLMError, named
from llm_magic.events import ToolSpec

from . import scope

Names = Mapping[str, Any]

_BAR = re.compile(r"(?<!\\)\|")
# What a type is written with: names, `a.b`, `list[a]`, `a | b`, and literals inside brackets.
_TYPE_NODES = (
    *(ast.Expression, ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.BinOp, ast.BitOr),
    *(ast.Constant, ast.UnaryOp, ast.USub, ast.Load),
)


def value(names: Names, path: str, option: str) -> Any:
    """The value of a dotted name in the notebook."""
    head, *rest = path.split(".")
    if head not in names:
        raise _unknown(option, head, names)
    found = names[head]
    for attribute in rest:
        if not hasattr(found, attribute):
            raise UsageError(f"{option} {path}: {head} has no attribute {attribute!r}")
        found, head = getattr(found, attribute), f"{head}.{attribute}"
    return found


def _unknown(option: str, name: str, names: Names) -> UsageError:
    near = difflib.get_close_matches(name, scope.own(names, {}), 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "run the cell that defines it"
    return UsageError(f"{option} {name}: the notebook has no {name!r}; {hint}")


# ----------------------------------------------------------------------------- tools


def tools(names: Names, text: str) -> tuple[Tool, ...]:
    """The tools that `--tools a,b` names: functions, Tools, descriptions, or lists of them.

    A plain function is offered under the name that was typed. ToolError and RequestError say what
    cannot be a tool.
    """
    paths = filter(None, (word.strip() for word in text.split(",")))
    return as_tools([thing for path in paths for thing in _offers(names, path)])


def _offers(names: Names, path: str) -> Iterator[Tool]:
    found = value(names, path, "--tools")
    if isinstance(found, list | tuple | set | frozenset):
        yield from map(as_tool, found)
    else:
        yield _named(path.rpartition(".")[2], found)


def _named(name: str, thing: object) -> Tool:
    if isinstance(thing, Tool | ToolSpec | Mapping) or not callable(thing):
        return as_tool(thing)
    return tool(name=name)(thing)


def offered(names: Names) -> Iterator[tuple[str, Tool | LLMError]]:
    """The possible tools of a notebook by name: Tools, and functions that are defined in it.

    A function that cannot be a tool comes with the error that says why.
    """
    for name, thing in names.items():
        written_here = callable(thing) and getattr(thing, "__module__", None) == "__main__"
        plain = written_here and not isinstance(thing, type) and hasattr(thing, "__code__")
        if name.startswith("_") or not (isinstance(thing, Tool) or plain):
            continue
        try:
            yield name, _named(name, thing)
        except LLMError as e:
            yield name, e


# ----------------------------------------------------------------------------- constraints


def constraint(names: Names, args: argparse.Namespace) -> dict[str, object]:
    """The constraint of a cell as a keyword option of `LLM.stream`; {} where there is none."""
    used = [name for name in kinds.names() if getattr(args, name, None) is not None]
    if len(used) > 1:
        both = " and ".join(f"--{name}" for name in used)
        raise UsageError(f"{both} cannot be used together; choose one")
    if not used:
        return {}
    text = getattr(args, used[0])
    match used[0]:
        case "schema":
            return {"schema": _schema(names, text)}
        case "choices":
            return {"choices": _choices(names, text)}
        case "grammar":
            return {"grammar": _grammar(names, text)}
        case name:
            return {name: text}


def _schema(names: Names, text: str) -> object:
    """A dict or a type: a name, or what a type hint may be (`list[City]`, `int | None`)."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        tree = None
    if tree is None or not all(isinstance(node, _TYPE_NODES) for node in ast.walk(tree)):
        raise UsageError(f"--schema {text}: not the name of a dict or a type")
    known = {**vars(builtins), **names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            raise _unknown("--schema", node.id, names)
    try:
        # Only names, attributes and brackets are left: what a reader of the line expects to happen.
        return eval(compile(tree, "--schema", "eval"), {"__builtins__": {}}, known)
    except Exception as e:
        raise UsageError(f"--schema {text}: {named(e)}") from None


def _choices(names: Names, text: str) -> tuple[str, ...]:
    r"""`a|b|c` (`\|` is a bar itself), or the name of a list or of an Enum."""
    parts = [part.replace("\\|", "|").strip() for part in _BAR.split(text)]
    if len(parts) > 1:
        return tuple(filter(None, parts))
    found = names.get(text.strip())
    if isinstance(found, type) and issubclass(found, enum.Enum):
        return tuple(str(member.value) for member in found)
    if isinstance(found, list | tuple | set | frozenset | dict):
        return tuple(map(str, found))
    raise UsageError(
        f'--choices {text}: write "one|another", or the name of a list of the notebook'
    )


def _grammar(names: Names, text: str) -> str:
    """A name that holds a grammar, or the path of a file that does."""
    if (found := names.get(text)) is not None:
        if not isinstance(found, str):
            raise UsageError(f"--grammar {text}: it is a {type(found).__name__}, not a text")
        return found
    path = Path(text).expanduser()
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise UsageError(f"--grammar {text}: {e}") from None
    raise _unknown("--grammar", text, names)
