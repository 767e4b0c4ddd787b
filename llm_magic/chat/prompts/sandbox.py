"""The jinja2 environment in which a chat template from a model file runs.

A template's source is not trusted. The immutable sandbox keeps it from reaching Python objects and
from changing what it is given; a budget (budget.py) is asked before each operation that makes or
reads a value: operators, filters, tests, calls, outputs, loops, and lists and blocks being built.
Filters and methods of texts that chat templates do not need are left out.

The environment is what templates are written for: blocks trimmed, loop controls, `raise_exception`,
`strftime_now`, `tojson` that escapes nothing, and a transparent `generation` tag.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .budget import MAX_BITS, budgeted, current
from .filters import all_filters, all_tests
from .metered import MeteredGenerator, built, compared, concat, joined, output, sliced, steps
from .text_costs import pay_format, pay_method

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


# The metered operations are filters that want the context, so that none is computed while the
# template is compiled.


class _Generation(Extension):
    """{% generation %}...{% endgeneration %} marks what a model wrote; it renders as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    code_generator_class = MeteredGenerator
    concat = staticmethod(joined)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = current()
        budget.step()
        if operator == "%" and isinstance(left, str):
            pay_format(left, right if isinstance(right, tuple) else (right,))
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
            args = pay_method(owner, __obj.__name__, args, kwargs)
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
            pay_format(value.__self__, (*args, *kwargs.values()))
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
        finalize=output,
    )
    del env.globals["lipsum"]
    env.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    env.filters = all_filters()
    env.filters.update(_steps=steps, _concat=concat, _built=built, _sliced=sliced)
    env.filters.update(_compared=compared)
    env.tests = all_tests()
    return env
