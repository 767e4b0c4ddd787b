"""The jinja2 environment in which a chat template from a model file runs.

A template's source is not trusted. The immutable sandbox keeps it from reaching Python objects and
from changing what it is given; a budget (budget.py) is asked before each operation that makes or
reads a value: operators, filters, tests, calls, outputs, loops, and lists and blocks being built.
Filters and methods of texts that chat templates do not need are left out.

The environment is what templates are written for: blocks trimmed, loop controls, `raise_exception`,
`strftime_now`, `tojson` that escapes nothing, and a transparent `generation` tag.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from functools import cache, wraps
from typing import Any, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from .budget import MAX_BITS, budgeted, current

MAX_SOURCE = 1_000_000  # characters of a template


class Refused(jinja2.TemplateError):
    """The template itself called raise_exception."""


def render(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    """The text of a template. Raises whatever the template raises; Overrun over budget."""
    with budgeted() as budget:
        budget.check_time()
        size = 0
        parts = []
        for part in template.generate(variables):
            size += len(part)
            budget.text(len(part))
            if size > 1 << 16:
                budget.text(size)
            parts.append(part)
        return "".join(parts)


# ----------------------------------------------------------------------------- operations


class _Steps:
    """An iterable whose every item costs a step and some memory."""

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[object]:
        budget = current()
        for item in self._iterable:
            budget.step()
            yield item


class _SizedSteps(_Steps):
    def __len__(self) -> int:
        assert isinstance(self._iterable, Sized)
        return len(self._iterable)


# The metered operations are filters that want the context, so that none is computed while the
# template is compiled.


@pass_context
def _steps(context: Context, iterable: Any) -> object:
    if isinstance(iterable, Undefined):
        return iterable  # its own error
    return _SizedSteps(iterable) if isinstance(iterable, Sized) else _Steps(iterable)


@pass_context
def _concat(context: Context, values: Sequence[object]) -> str:
    budget = current()
    budget.text(budget.weigh(values)[0])
    return _joined(str(value) for value in values)


@pass_context
def _built(context: Context, value: object) -> object:
    """A list, tuple or dictionary of the template's own."""
    budget = current()
    budget.step()
    _, entries, _ = budget.weigh(value)
    budget.spend(64 * entries)
    return value


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


@pass_context
def _compared(context: Context, left: object, names: Sequence[str], *others: object) -> object:
    """A chain of comparisons."""
    budget = current()
    budget.step()
    for value in (left, *others):
        if isinstance(value, list | tuple | dict):
            budget.weigh(value)
    result: object = True
    for name, right in zip(names, others, strict=True):
        result = _COMPARE[name](left, right)
        if not result:
            break
        left = right
    return result


@pass_context
def _sliced(context: Context, value: Any, start: object, stop: object, step: object) -> object:
    budget = current()
    budget.step()
    if isinstance(value, str):
        budget.text(len(value))
    elif isinstance(value, list | tuple):
        budget.spend(8 * len(value))
    return value[start:stop:step]


def _joined(texts: Iterable[str]) -> str:
    """What jinja2 calls `concat`: the text of a block, macro or set."""
    texts = list(texts)
    budget = current()
    budget.step()
    budget.text(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _output(context: Context, value: object) -> object:
    """What a template prints: paid for before it becomes a text."""
    budget = current()
    budget.step()
    if not isinstance(value, str):
        weight, entries, _ = budget.weigh(value)
        budget.spend(4 * weight + 64 * entries)
    return value


class _Meter(NodeTransformer):
    """Makes loops, `~`, comparisons, slices and literals pay for what they use."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _metered("_steps", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _metered("_concat", nodes.List(node.nodes))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant else _metered("_built", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else _metered("_built", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _metered("_built", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        limits = (node.arg.start, node.arg.stop, node.arg.step)
        return _metered("_sliced", node.node, *(limit or nodes.Const(None) for limit in limits))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        names = nodes.Const(tuple(part.op for part in node.ops))
        return _metered("_compared", node.expr, names, *(part.expr for part in node.ops))


def _metered(name: str, value: nodes.Node, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, value), name, list(arguments), [], None, None)


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        super().visit_Template(_Meter().visit(node), frame)


class _Generation(Extension):
    """{% generation %}...{% endgeneration %} marks what a model wrote; it renders as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    code_generator_class = _Generator
    concat = staticmethod(_joined)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.step()
        if operator == "%" and isinstance(left, str):
            _pay_format(left, right if isinstance(right, tuple) else (right,))
        elif isinstance(left, int) and isinstance(right, int):
            _check_bits(operator, left, right)
        elif operator == "+":
            budget.spend(_bytes(left) + _bytes(right))
            budget.weigh(left, right)
        elif operator == "*":
            for count, other in ((left, right), (right, left)):
                if isinstance(count, int) and isinstance(other, str | list | tuple):
                    budget.text(max(count, 0) * budget.weigh(other)[0])
                    budget.spend(max(count, 0) * _bytes(other))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            args = _pay_method(owner, __obj.__name__, args, kwargs)
        elif isinstance(owner, int | float | complex | bytes | bytearray):
            raise SecurityError(f"the method {__obj.__name__!r} of a number")
        elif isinstance(owner, list | tuple | dict):
            budget.weigh(*args)
            budget.spend(64 * len(owner))
        else:
            budget.weigh(args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def unsafe_undefined(self, obj: object, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} objects")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: object, **kwargs: object) -> str:
            _pay_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked


def _bytes(value: object) -> int:
    """The memory that a copy of a value takes."""
    if isinstance(value, str | bytes):
        return len(value)
    return 64 * len(value) if isinstance(value, list | tuple | dict) else 8


def _check_bits(operator: str, left: int, right: int) -> None:
    """Refuse integers that grow without end."""
    budget = current()
    bits = {
        "*": left.bit_length() + right.bit_length(),
        "**": left.bit_length() * max(right, 1) if right < MAX_BITS else MAX_BITS + 1,
    }
    if bits.get(operator, max(left.bit_length(), right.bit_length())) > MAX_BITS:
        budget.refuse(f"an integer of more than {MAX_BITS} bits")


# ----------------------------------------------------------------------------- texts

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


def _pay_method(
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
        _pay_replaced(owner, *args[:2])
    elif name == "join":
        items = list(_Steps(args[0])) if args else []
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


def _pay_replaced(text: Any, old: Any = "", new: Any = "") -> None:
    text, old, new = str(text), str(old), str(new)
    count = text.count(old) if len(new) > len(old) else 0
    current().text(len(text) + count * len(new))


def _pay_format(text: object, values: Sequence[object]) -> None:
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


# ----------------------------------------------------------------------------- filters

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
        return _Steps(out) if isinstance(out, Iterator) else out

    return paid


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's `indent`, paid for by the number of lines."""
    lines = str(text).count("\n") + 1
    size = len(width) if isinstance(width, str) else width
    current().text(len(str(text)) + lines * max(size, 0))
    return str(FILTERS["indent"](text, width, first, blank))


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    _pay_replaced(text, old, new)
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
    listed, budget = list(_Steps(items)), current()
    separator = str(separator)
    budget.text(4 * budget.weigh(listed)[0] + len(separator) * len(listed))
    return separator.join(map(str, listed))


def _format(text: object, *args: object, **kwargs: object) -> str:
    _pay_format(text, (*args, *kwargs.values()))
    return str(text) % (kwargs or args)


@pass_context
def _sum(
    context: Context, items: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    """The sum of numbers; of lists it would take as long as their square."""
    if attribute is not None:
        items = map(make_attrgetter(context.environment, attribute), items)
    total = start
    for item in _Steps(items):
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


def _raise_exception(message: object) -> None:
    raise Refused(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 200 or re.search(r"%[-_0^#]*\d", format):  # a width may be any number
        raise SecurityError("a long format of a time")
    return datetime.now().strftime(format)


def compiled(source: str) -> jinja2.Template:
    """A template from its source. Raises whatever jinja2 raises."""
    if len(source) > MAX_SOURCE:
        raise SecurityError(f"a template of more than {MAX_SOURCE} characters")
    with budgeted():
        return environment().from_string(source)


@cache
def environment() -> jinja2.Environment:
    env = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        extensions=["jinja2.ext.loopcontrols", _Generation],
        finalize=_output,
    )
    del env.globals["lipsum"]
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    own = {"tojson": _tojson, "replace": _replace, "join": _join, "format": _format, "sum": _sum}
    filters: dict[str, Any] = {**FILTERS, **own, "indent": _indent}
    env.filters = {n: _paid(n, f) for n, f in filters.items() if n not in _LEFT_OUT}
    env.filters.update(_steps=_steps, _concat=_concat, _built=_built, _sliced=_sliced)
    env.filters.update(_compared=_compared)
    tests: dict[str, Any] = {**TESTS}
    env.tests = {name: _paid(name, test) for name, test in tests.items()}
    return env
