"""The jinja2 environment in which a chat template from a model file runs.

What comes in: a template's source, which nobody has checked. What goes out: text, or an error. It
must not know messages. The immutable sandbox keeps templates from reaching Python objects and from
changing what they are given; a budget of steps, size and time keeps them from running away.

The environment is what templates are written for: blocks trimmed, loop controls, `raise_exception`,
`strftime_now`, `tojson` that escapes nothing, and a transparent `generation` tag.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextvars import ContextVar
from datetime import datetime
from functools import cache, wraps
from typing import Any

import jinja2
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 500_000  # loop rounds and calls of one rendering
MAX_SIZE = 1 << 26  # characters of a value, and of the output
MAX_SECONDS = 3.0  # of the rendering thread's own CPU time
MAX_NUMBER = 1_000_000  # widths, repetitions, exponents

_WIDE = re.compile(r"[%:.][^{}%]{0,8}?\d{7,}")  # in a format
_PASSED_WIDTH = re.compile(r"\{[^}]*\{|%[^a-zA-Z%]*\*")
_WIDENING = frozenset(("ljust", "rjust", "center", "zfill", "expandtabs"))


class Refused(jinja2.TemplateError):
    """The template itself called raise_exception."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = time.thread_time() + MAX_SECONDS

    def spend(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"more than {MAX_STEPS} steps")
        if not self.steps & 255 and time.thread_time() > self.deadline:
            raise SecurityError(f"more than {MAX_SECONDS:g} seconds")


_budget: ContextVar[Budget] = ContextVar("budget")


def render(template: jinja2.Template, variables: Mapping[str, Any]) -> str:
    """The text of a template. Raises whatever the template raises; SecurityError over budget."""
    token = _budget.set(Budget())
    try:
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            _check(size)
            parts.append(part)
        return "".join(parts)
    finally:
        _budget.reset(token)


def _check(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"a text of more than {MAX_SIZE} characters")


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return 64 * len(value) if isinstance(value, list | tuple | dict) else 1  # an entry's memory


def _check_numbers(values: Iterable[Any]) -> None:
    """Refuse widths and repetitions that would blow a text up."""
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError(f"a number of more than {MAX_NUMBER}")


def _check_format(text: Any, values: Iterable[Any]) -> None:
    """Refuse a format with a huge width, written in it or passed to it."""
    if _WIDE.search(str(text)):
        raise SecurityError(f"a width of more than {MAX_NUMBER}")
    if _PASSED_WIDTH.search(str(text)):
        _check_numbers(values)


class _Steps:
    """An iterable of a loop; every round costs a step."""

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        spend = _budget.get().spend
        for item in self._iterable:
            spend()
            yield item


class _SizedSteps(_Steps):
    def __len__(self) -> int:
        assert isinstance(self._iterable, Sized)
        return len(self._iterable)


@pass_context
def _steps(context: Context, iterable: Iterable[Any]) -> _Steps:
    return _SizedSteps(iterable) if isinstance(iterable, Sized) else _Steps(iterable)


@pass_context
def _concat(context: Context, values: list[Any]) -> str:
    texts = [str(value) for value in values]
    _check(sum(map(len, texts)))
    return "".join(texts)


class _Meter(NodeTransformer):
    """Makes loops and `~` pay for what they use."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "_steps", [], [], None, None)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), "_concat", [], [], None, None)


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
    intercepted_binops = frozenset(("+", "*", "**", "%"))
    code_generator_class = _Generator

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "+":
                _check(_size(left) + _size(right))
            case "*":
                for count, other in ((left, right), (right, left)):
                    if isinstance(count, int):
                        _check(abs(count) * _size(other) if not isinstance(other, int) else 0)
            case "**":
                _check_numbers((left, right))
                if isinstance(right, int | float) and abs(right) > 64:
                    raise SecurityError("an exponent of more than 64")
            case "%" if isinstance(left, str):
                _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _budget.get().spend()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            if __obj.__name__ in _WIDENING:
                _check_numbers((*args, *kwargs.values()))
            if __obj.__name__ == "replace":
                _check_replaced(owner, *args)
            if __obj.__name__ == "join" and args:
                args = (_check_joined(owner, args[0]), *args[1:])
        return super().call(__context, __obj, *args, **kwargs)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"access to attribute {attribute!r} of {type(obj).__name__!r} objects")

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return checked


def _check_replaced(text: Any, old: Any = "", new: Any = "", *rest: Any) -> None:
    count = str(text).count(str(old)) if len(str(new)) > len(str(old)) else 0
    _check(len(str(text)) + count * len(str(new)))


def _check_joined(separator: str, items: Iterable[Any]) -> list[Any]:
    items = list(items)
    _check(sum(_size(item) + len(separator) for item in items))
    return items


def _numbers_checked(filter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter)  # keeps jinja2's marks for filters that want the context
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        return filter(*args, **kwargs)

    return checked


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    _check_replaced(text, old, new)
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _join(items: Iterable[Any], separator: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        items = [
            item.get(attribute, "") if isinstance(item, Mapping) else getattr(item, attribute, "")
            for item in items
        ]
    return str(separator).join(map(str, _check_joined(str(separator), items)))


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(text, (*args, *kwargs.values()))
    return str(text) % (kwargs or args)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as json.dumps writes it: nothing is escaped for HTML, non-ASCII stays."""
    if isinstance(indent, int):
        _check_numbers((indent,))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=(separators[0], separators[1]) if separators else None,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise Refused(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@cache
def environment() -> jinja2.Environment:
    env = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=False,
        extensions=["jinja2.ext.loopcontrols", _Generation],
    )
    del env.globals["lipsum"]
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    for name in ("center", "indent", "batch", "slice", "wordwrap", "truncate"):
        env.filters[name] = _numbers_checked(env.filters[name])
    env.filters.update(tojson=_tojson, replace=_replace, join=_join, format=_format)
    env.filters.update(_steps=_steps, _concat=_concat)
    return env
