r"""`{{ name }}` in a prompt is replaced by the value of that name; nothing else is touched.

No code is evaluated: a name, attributes and literal indices are looked up, nothing is called.

The rule is narrow so that JSON, LaTeX, f-strings, templates and `$x` survive byte for byte: two
braces, at least one space on each side, a dotted or indexed name, all on one line. One pass: an
inserted value is never searched for fields. `\{{ name }}` is the literal text `{{ name }}`.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from .errors import InterpolationError

_NAME = r"[^\W\d]\w*"
_INDEX = r"""\[(?:-?\d+|'[^'\n]*'|"[^"\n]*")\]"""
CAP = 20_000  # characters of a value that is not a str itself

_FIELD = re.compile(rf"(\\?)\{{\{{[ \t]+({_NAME}(?:\.{_NAME}|{_INDEX})*)[ \t]+\}}\}}")
_TIGHT = re.compile(rf"(\\?)\{{\{{({_NAME}(?:\.{_NAME}|{_INDEX})*)\}}\}}")
_EITHER = re.compile(rf"(\\?)\{{\{{[ \t]*({_NAME}(?:\.{_NAME}|{_INDEX})*)[ \t]*\}}\}}")
_STEP = re.compile(rf"\.({_NAME})|\[(?:(-?\d+)|'([^'\n]*)'|\"([^\"\n]*)\")\]")
_HEAD = re.compile(_NAME)


def interpolate(
    text: str,
    names: Mapping[str, object],
    as_text: Callable[[object], str],
    *,
    source: str = "the cell",
    suggest: Collection[str] | None = None,
    tight: bool = False,
) -> str:
    """`text` with every `{{ name }}` replaced by `as_text` of its value.

    Raises InterpolationError for a name, attribute or index that does not exist; its message shows
    near spellings and the two ways to keep the braces.

    Args:
        text: What was typed.
        names: The variables that it may use.
        as_text: Turns a value into text.
        source: Where the text stands, for messages.
        suggest: Names that a message may suggest; None: all public ones.
        tight: Also replace `{{name}}` without spaces where the name exists.

    >>> interpolate("Visit {{ city }}; keep {{city}}", {"city": "Lisbon"}, str)
    'Visit Lisbon; keep {{city}}'
    >>> interpolate("Visit {{city}}, {{nowhere}}", {"city": "Lisbon"}, str, tight=True)
    'Visit Lisbon, {{nowhere}}'
    """
    known = names.keys() if suggest is None else suggest

    def replace(match: re.Match[str]) -> str:
        escaped, path = match.groups()
        if escaped:
            return match[0][1:]
        return as_text(_look_up(path, names, source, known))

    def either(match: re.Match[str]) -> str:
        escaped, path = match.groups()
        spaced = _FIELD.fullmatch(match[0]) is not None
        return replace(match) if spaced or escaped or _head(path) in names else match[0]

    # One pass for both spellings: what a value contains is never looked at again.
    return _EITHER.sub(either, text) if tight else _FIELD.sub(replace, text)


def tight_fields(text: str) -> list[str]:
    """The paths in `{{path}}` without spaces, which `interpolate` leaves as they are.

    >>> tight_fields("{{city}}, {{ town }}, {{a.b[0]}}")
    ['city', 'a.b[0]']
    """
    return [path for escaped, path in _TIGHT.findall(text) if not escaped]


def fields(text: str) -> list[str]:
    """The paths that `interpolate` would look up, in order of their appearance."""
    return [path for escaped, path in _FIELD.findall(text) if not escaped]


def heads(paths: Iterable[str]) -> list[str]:
    """The names with which paths begin.

    >>> heads(["city", "a.b[0]"])
    ['city', 'a']
    """
    return [_head(path) for path in paths]


def _head(path: str) -> str:
    head = _HEAD.match(path)
    assert head is not None  # the patterns admit only paths that begin with a name
    return head[0]


def _look_up(path: str, names: Mapping[str, object], source: str, known: Collection[str]) -> object:
    name = _head(path)
    if name not in names:
        visible = [n for n in known if not n.startswith("_") or name.startswith("_")]
        raise _unknown(
            path, f"there is no variable {name!r}", name, visible, source,
            otherwise="; run the cell that sets it.",
        )  # fmt: skip
    value, seen = names[name], name
    for step in _STEP.finditer(path, len(name)):
        value = _step(value, step, seen, path, source)
        seen = path[: step.end()]
    return value


def _step(value: Any, step: re.Match[str], seen: str, path: str, source: str) -> object:
    attribute, number, single, double = step.groups()
    kind = type(value).__name__
    if attribute is not None:
        try:
            return getattr(value, attribute)
        except AttributeError as e:
            why = f"{seen} is a {kind} and has no attribute {attribute!r}"
            if isinstance(value, Mapping) and attribute in value:
                why += f" (its key is written {seen}[{attribute!r}])"
            public = [n for n in dir(value) if not n.startswith("_")]
            raise _unknown(path, why, attribute, public, source) from e
    key: int | str = int(number) if number is not None else single if single is not None else double
    try:
        return value[key]
    except (LookupError, TypeError) as e:
        why = f"{seen} is a {kind} and has no item {key!r}"
        known = [k for k in value if isinstance(k, str)] if isinstance(value, Mapping) else []
        raise _unknown(path, why, str(key), known, source) from e


def _unknown(
    path: str, why: str, word: str, known: list[str], source: str, otherwise: str = "."
) -> InterpolationError:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise
    return InterpolationError(
        f"{{{{ {path} }}}} in {source}: {why}{hint} "
        "To keep the braces as they are, write \\{{ … }}, or --raw for the whole cell."
    )


def as_text(value: object, formatters: Mapping[str, Callable[[object], object]]) -> str:
    """A value as the model reads it. formatters: IPython's, by MIME type.

    A str as it is; else what its `_repr_llm_()` returns, its Markdown, or its plain text, cut at
    CAP characters with a note that says so.
    """
    if isinstance(value, str):
        return value
    text = _described(value, formatters)
    if len(text) > CAP:
        return f"{text[:CAP]}\n[cut: {len(text) - CAP:,} more characters]"
    return text


def _described(value: object, formatters: Mapping[str, Callable[[object], object]]) -> str:
    # On the class, as Python looks up special methods: an object that invents attributes has none.
    method = getattr(type(value), "_repr_llm_", None)
    if method is not None and isinstance(text := method(value), str):
        return text
    for mime in ("text/markdown", "text/plain"):
        text = formatters[mime](value) if mime in formatters else None
        if isinstance(text, str):
            return text
    return str(value)
