"""What the rendering of one request may spend: steps, characters, memory and time.

Everything is paid for before it is computed. A value has a weight: its characters, and one for each
entry of a list or dictionary, nested ones included. No value may weigh more than MAX_WEIGHT, so
that one operation on any value ends in milliseconds; the sum of all that a request makes is limited
by MAX_SPENT, which is never given back, so that the memory is limited too. Between operations the
clock is looked at. After the first overrun nothing can be spent any more.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

from llm_magic.errors import TemplateError

MAX_STEPS = 300_000  # loop rounds, calls, filters and outputs
MAX_WEIGHT = 1 << 24  # of one value
MAX_SPENT = 1 << 28  # bytes, about, of all values that are made
MAX_SECONDS = 3.0  # of the thread's own CPU time
MAX_DEPTH = 100  # of nested lists
MAX_BITS = 4096  # of an integer
MAX_NUMBER = 1_000_000  # widths and precisions


class Overrun(SecurityError):
    """The template asked for more than the budget holds."""


class TemplateOverrun(TemplateError):
    """The template asked for more steps, memory or time than one request has."""


class Budget:
    """What one request may still spend.

    >>> budget = Budget()
    >>> budget.spend(MAX_SPENT + 1)
    Traceback (most recent call last):
    llm_magic.chat.prompts.budget.Overrun: more than 268435456 bytes
    >>> budget.step()
    Traceback (most recent call last):
    llm_magic.chat.prompts.budget.Overrun: more than 268435456 bytes
    """

    __slots__ = ("_deadline", "_overrun", "_spent", "_steps")

    def __init__(self) -> None:
        self._steps = self._spent = 0
        self._deadline = time.thread_time() + MAX_SECONDS
        self._overrun = ""

    def step(self) -> None:
        """Pay for one round, call, filter or output."""
        self._steps += 1
        if self._overrun or self._steps > MAX_STEPS:
            self.refuse(f"more than {MAX_STEPS} steps")
        if not self._steps & 15:
            self.check_time()

    def spend(self, size: int) -> None:
        """Pay for a value of this many bytes, or for as much work."""
        self._spent += size
        if self._overrun or self._spent > MAX_SPENT:
            self.refuse(f"more than {MAX_SPENT} bytes")
        if size > 1 << 16:
            self.check_time()

    def check_time(self) -> None:
        if self._overrun or time.thread_time() > self._deadline:
            self.refuse(f"more than {MAX_SECONDS:g} seconds")

    def refuse(self, reason: str) -> None:
        self._overrun = self._overrun or reason
        raise Overrun(self._overrun)

    def text(self, size: int) -> None:
        """Pay for a text of this length."""
        if size > MAX_WEIGHT:
            self.refuse(f"a text of more than {MAX_WEIGHT} characters")
        self.spend(size)

    def weigh(self, *values: object) -> tuple[int, int, int]:
        """Weight, entries and depth of values together. Refuses what is too heavy or too deep."""
        weight = entries = deepest = 0
        stack = [(value, 1) for value in values]
        while stack:
            value, depth = stack.pop()
            entries += 1
            weight += 1
            if isinstance(value, str | bytes):
                weight += len(value)
            elif isinstance(value, int):
                self.integer(value)
            elif isinstance(value, list | tuple | set | frozenset):
                stack += [(item, depth + 1) for item in value]
            elif isinstance(value, Namespace):
                stack.append((object.__getattribute__(value, "_Namespace__attrs"), depth + 1))
            elif isinstance(value, Mapping):
                stack += [(item, depth + 1) for pair in value.items() for item in pair]
            deepest = max(deepest, depth)
            if weight + len(stack) > MAX_WEIGHT:
                self.refuse(f"a value of more than {MAX_WEIGHT} characters and entries")
            if depth > MAX_DEPTH:
                self.refuse(f"a list nested more than {MAX_DEPTH} deep")
            if not entries & 4095:
                self.spend(4096)
                self.check_time()
        return weight, entries, deepest

    def integer(self, value: int) -> None:
        if value.bit_length() > MAX_BITS:
            self.refuse(f"an integer of more than {MAX_BITS} bits")

    def number(self, value: object) -> None:
        """Check what may be a width, a count or a precision."""
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            self.refuse(f"a number of more than {MAX_NUMBER}")


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def budgeted() -> Iterator[Budget]:
    """Give a block a budget, unless one around it has one already: a request has one in all."""
    if (outer := _budget.get(None)) is not None:
        yield outer
        return
    token = _budget.set(Budget())
    try:
        yield _budget.get()
    finally:
        _budget.reset(token)


def current() -> Budget:
    """The budget of the running request."""
    return _budget.get()
