"""The cost of methods and formats of texts in a chat template, counted before they run."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2.exceptions import SecurityError

from .budget import current
from .metered import Steps

_DIGITS = re.compile(r"\d+")


_FIELD = re.compile(r"[%{]")


# Methods that make at most a few times the text that they are given.
_SIMPLE = frozenset(
    (
        *("capitalize", "casefold", "count", "endswith", "find", "format", "format_map", "index"),
        *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
        *("isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower", "lstrip"),
        *("partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit"),
        *("rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper"),
    )
)


_WIDENING = frozenset(("center", "ljust", "rjust", "zfill"))


def pay_method(
    owner: str, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """Pay for a method of a text; returns the arguments to call it with."""
    budget = current()
    weight, _, _ = budget.weigh(args, kwargs)
    budget.spend(3 * len(owner) + weight)
    if name in _WIDENING:
        for value in (*args, *kwargs.values()):
            budget.number(value)
        budget.spend(sum(value for value in args if isinstance(value, int)))
    elif name == "replace":
        pay_replaced(owner, *args[:2])
    elif name == "join":
        items = list(Steps(args[0])) if args else []
        budget.text(budget.weigh(items)[0] + len(owner) * len(items))
        return (items,)
    elif name == "expandtabs":
        size = args[0] if args and isinstance(args[0], int) else 8
        budget.text(len(owner) + owner.count("\t") * max(0, size))
    elif name not in _SIMPLE:
        raise SecurityError(f"the method {name!r} of a text")
    if name.startswith("split") or name == "rsplit" or name == "title":
        budget.spend(64 * len(owner))
    if name.endswith("strip") and args and isinstance(args[0], str) and len(args[0]) > 1000:
        budget.refuse("more than 1000 characters to strip")
    return args


def pay_replaced(text: Any, old: Any = "", new: Any = "") -> None:
    text, old, new = str(text), str(old), str(new)
    count = text.count(old) if len(new) > len(old) else 0
    current().text(len(text) + count * len(new))


def pay_format(text: object, values: Sequence[object]) -> None:
    """Pay for the longest text that a format may make: each field as wide as the largest number in
    the format or among the values, and as long as all values."""
    budget = current()
    format = str(text)
    fields = len(_FIELD.findall(format))
    widths = [int(digits[:9]) for digits in _DIGITS.findall(format)] if fields else []
    if "*" in format or re.search(r"\{[^}]*\{", format):
        widths += [abs(value) for value in values if isinstance(value, int)]
    for width in widths:
        budget.number(width)
    weight, _, _ = budget.weigh(*values)
    budget.text(len(format) + fields * (max(widths, default=0) + 4 * weight))
