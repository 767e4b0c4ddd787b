"""A look at grammars in Lark before the native compiler reads them.

The compiler reads Lark itself. What could end the process there, or an answer never, is found here:
brackets nested too deep, huge repetitions, JSON schemas with numbers that overflow, and rules that
only lead back to themselves. What this reader does not know is left to the compiler.
"""

import json
import re
from collections.abc import Iterator

from llm_magic.errors import SchemaError

from ..schema import as_schema
from .limits import MAX_BRACKETS, MAX_COUNT
from .narrow import narrowed
from .narrow.words import size_fault

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|//[^\n]*|\#[^\n]*|\n\s*(?=\|))
      | (?P<line>\n)
      | (?P<text>"(?:[^"\\\n]|\\.)*"i?)
      | (?P<regex>/(?:[^/\\\n]|\\.)+/[imslux]*)
      | (?P<id><[^>\n]*>)
      | (?P<count>\{\s*\d*\s*,?\s*\d*\s*\}|~\s*\d+(?:\s*\.\.\s*\d+)?)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<other>.)""",
    re.VERBOSE,
)
Token = tuple[str, str]


def checked(text: str) -> str:
    """The grammar with its JSON schemas in the compiler's keywords.

    Raises:
        SchemaError: it has a schema that cannot be used, brackets that are too deep, counts that
            are too large, or a rule that never ends.

    >>> checked('start: "a" | "b"')
    'start: "a" | "b"'
    """
    text = "".join(_schemas_narrowed(text))
    rules = dict(_rules(text))
    ending: set[str] = set()
    while more := {
        n for n, body in rules.items() if n not in ending and _ends(body, rules, ending)
    }:
        ending |= more
    for name, body in rules.items():
        if name not in ending and any(kind == "name" for kind, _ in body):
            raise SchemaError(
                f"the grammar's rule {name!r} never ends: each of its alternatives contains the"
                " rule again; add one that does not"
            )
    return text


def _schemas_narrowed(text: str) -> Iterator[str]:
    """The text in pieces; a schema after %json is replaced by a narrowed one."""
    at = 0
    for match in re.finditer(r"%json\s*(?=\{)", text):
        if match.start() < at:
            continue
        yield text[at : match.end()]
        try:
            schema, at = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError) as e:
            raise SchemaError(f"a schema in the grammar cannot be read: {e}") from None
        options = {"x-guidance": schema["x-guidance"]} if "x-guidance" in schema else {}
        yield json.dumps({**narrowed(as_schema(schema)), **options})
    yield text[at:]


def _rules(text: str) -> Iterator[tuple[str, list[Token]]]:
    """Rules and terminals by name, each with the tokens of its body."""
    name, body = "", list[Token]()
    for line in _lines(text):
        start = _definition(line)
        if start:
            if name:
                yield name, body
            name, body = line[0][1], line[start:]
        else:
            body += line if line and line[0][1] != "%" else []
    if name:
        yield name, body


def _definition(line: list[Token]) -> int:
    """How many tokens a line has up to the colon of a definition; 0 when it defines nothing."""
    if not line or line[0][0] != "name":
        return 0
    depth = 0
    for i, (_, value) in enumerate(line[1:], 1):
        depth += {"[": 1, "]": -1}.get(value, 0)
        if value == ":" and not depth:
            return i + 1
        if not depth and value not in ("]", ".") and not value.isdigit():
            return 0
    return 0


def _lines(text: str) -> Iterator[list[Token]]:
    line: list[Token] = []
    depth = 0
    for match in _TOKEN.finditer(text):
        kind, value = match.lastgroup or "", match.group()
        if kind == "line":
            yield line
            line = []
        elif kind != "skip":
            depth = max(
                0, depth + {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(value, 0)
            )
            if depth > MAX_BRACKETS:
                raise SchemaError(
                    f"the grammar's brackets are nested more than {MAX_BRACKETS} deep"
                )
            _check_size(kind, value)
            line.append((kind, value))
    yield line


def _check_size(kind: str, value: str) -> None:
    if kind == "count" and any(int(n[:12]) > MAX_COUNT for n in re.findall(r"\d+", value)):
        raise SchemaError(f"the grammar repeats {value[:20]}; at most {MAX_COUNT:,} is read")
    if kind == "regex" and (fault := size_fault(value)):
        raise SchemaError(f"a regular expression of the grammar cannot be used: {fault}")


def _ends(body: list[Token], rules: dict[str, list[Token]], ending: set[str]) -> bool:
    """Whether one of the alternatives has a finite sentence."""
    options, stack = [True], list[list[bool]]()  # of the open group; of those around it
    last = True  # whether the last item ends; an item counts when it is known to be not optional
    for kind, value in [*body, ("other", "")]:
        if kind == "other" and value in "?*" and value:
            last = True
            continue
        if kind == "count" and re.match(r"[{~]\s*(0+\b|,)", value):
            last = True
            continue
        options[-1] = options[-1] and last
        last = True
        if kind == "name":
            last = value not in rules or value in ending
        elif value in ("(", "["):
            stack.append(options)
            options = [True]
        elif value in (")", "]") and stack:
            last = any(options) or value == "]"
            options = stack.pop()
        elif value == "|" and kind == "other":
            options.append(True)
    return any(options)
