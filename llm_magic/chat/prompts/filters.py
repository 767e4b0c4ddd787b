"""Filters and tests of chat templates: those of jinja2 and ours, each counted before it runs."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Context
from jinja2.tests import TESTS

from .budget import current
from .metered import Steps
from .text_costs import pay_format, pay_replaced

_LEFT_OUT = frozenset(("pprint", "striptags", "urlize", "wordwrap", "xmlattr"))


# What a filter makes or does, in times the weight of its input; 6 for the others.
_COSTS = {
    **dict.fromkeys(("batch", "slice", "dictsort", "groupby", "sort", "unique"), 128),
    **dict.fromkeys(("title", "wordcount", "list"), 64),
}


# Filters and tests that look at no more than one value's type or length.
_FREE = frozenset(
    (
        *("attr", "count", "d", "default", "first", "items", "length", "safe"),
        *("boolean", "callable", "defined", "divisibleby", "even", "false", "filter", "float"),
        *("integer", "iterable", "mapping", "none", "number", "odd", "sameas", "sequence"),
        *("string", "test", "true", "undefined"),
    )
) - {"string", "float"}  # filters of these names read the whole value


def _paid(name: str, filter: Callable[..., object]) -> Callable[..., object]:
    """A filter or test that is paid for before it runs; what it yields is paid for item by item."""

    # Keeps jinja2's marks: the environment or context that some want comes first.
    @wraps(filter)
    def paid(*args: object, **kwargs: object) -> object:
        budget = current()
        budget.step()
        given = [a for a in args if not isinstance(a, Context | jinja2.Environment)]
        given = [a for a in given if not isinstance(a, nodes.EvalContext)]
        if name not in _FREE:
            weight, _, _ = budget.weigh(*given, kwargs)
            budget.spend(_COSTS.get(name, 6) * weight)
        widths = [value for value in (*given[1:], *kwargs.values()) if isinstance(value, int)]
        for width in widths:
            budget.number(width)
        if name in ("center", "truncate", "batch", "slice"):
            budget.spend(64 * sum(map(abs, widths)))
        if name == "round" and any(abs(width) > 100 for width in widths):
            budget.refuse("a precision of more than 100")
        if name == "trim" and any(isinstance(v, str) and len(v) > 1000 for v in given[1:]):
            budget.refuse("more than 1000 characters to trim")
        out = filter(*args, **kwargs)
        return Steps(out) if isinstance(out, Iterator) else out

    return paid


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's `indent`, paid for by the number of lines."""
    lines = str(text).count("\n") + 1
    size = len(width) if isinstance(width, str) else width
    current().text(len(str(text)) + lines * max(size, 0))
    return str(FILTERS["indent"](text, width, first, blank))


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    pay_replaced(text, old, new)
    return str(text).replace(str(old), str(new), -1 if count is None else count)


@pass_context
def _join(
    context: Context,
    items: Iterable[object],
    separator: str = "",
    attribute: str | int | None = None,
) -> str:
    """jinja2's `join` without escaping. Attributes are looked up as in `a.b`, by the sandbox."""
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    listed, budget = list(Steps(items)), current()
    separator = str(separator)
    budget.text(4 * budget.weigh(listed)[0] + len(separator) * len(listed))
    return separator.join(map(str, listed))


def _format(text: object, *args: object, **kwargs: object) -> str:
    pay_format(text, (*args, *kwargs.values()))
    return str(text) % (kwargs or args)


@pass_context
def _sum(
    context: Context, items: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    """The sum of numbers; of lists it would take as long as their square."""
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    total = start
    for item in Steps(items):
        if not isinstance(item, int | float) or not isinstance(total, int | float):
            raise SecurityError("the filter 'sum' of what is no number")
        total += item
    return total


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as json.dumps writes it: nothing is escaped for HTML, non-ASCII stays."""
    budget = current()
    weight, entries, depth = budget.weigh(value)
    size = len(indent) if isinstance(indent, str) else indent or 0
    marks = sum(map(len, separators)) if separators else 2
    budget.text(weight + entries * (depth * size + marks))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
    )


def all_filters() -> dict[str, Any]:
    """The filters of a template by name."""
    own = {"tojson": _tojson, "replace": _replace, "join": _join, "format": _format, "sum": _sum}
    filters: dict[str, Any] = {**FILTERS, **own, "indent": _indent}
    return {name: _paid(name, one) for name, one in filters.items() if name not in _LEFT_OUT}


def all_tests() -> dict[str, Any]:
    """The tests (`x is defined`) of a template by name."""
    tests: dict[str, Any] = {**TESTS}
    return {name: _paid(name, test) for name, test in tests.items()}
