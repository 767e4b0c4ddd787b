"""Text that arrives in pieces, and generators that wait for more of it.

Each generator yields while what it looks for may still come, and returns it once it is certain. Its
decisions depend on the characters only, not on how the text was cut. An ended tape never makes a
reader wait.
"""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Tools = Mapping[str, Mapping[str, Any]]  # name -> JSON schema of the parameters
BLANK = " \t\r\n"
MAX_DEPTH = 64  # of nested values; what is deeper is text


@dataclass(frozen=True, slots=True)
class Begin:
    """A call starts. Its `Args` follow; their texts concatenate to the arguments of its `Done`."""

    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Args:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """Something between calls that is none: content."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A complete call. `Begin` and `Args` may be missing."""

    name: str
    arguments: str
    id: str | None = None


Piece = Begin | Args | Text | Done
Wait = Generator[None, None, T]
Pieces = Generator[Piece | None, None, T]
Reader = Callable[["Tape", str, Tools], Pieces[None]]


class NotACall(Exception):
    """The text up to `tape.pos` is no call."""


class Tape:
    """Text that arrives. `text[:pos]` is read, `base` is the position of `text[0]` in the whole."""

    __slots__ = ("base", "ended", "pos", "text")

    def __init__(self, text: str = "", ended: bool = False) -> None:
        self.text, self.ended = text, ended
        self.pos = self.base = 0

    def drop(self, n: int) -> str:
        """Forget and return the first `n` characters."""
        head, self.text = self.text[:n], self.text[n:]
        self.base += n
        self.pos = max(0, self.pos - n)
        return head


def blank_tail(text: str) -> int:
    """Where the blank lines at the end begin: they belong to markup that follows."""
    end = len(text.rstrip(BLANK))
    breaks = [i for i in (text.find("\n", end), text.find("\r", end)) if i >= 0]
    return min(breaks, default=len(text))


def blank_head(text: str) -> int:
    """Where the blank lines at the start end: they belong to markup that came before."""
    head = text[: len(text) - len(text.lstrip(BLANK))]
    return max(head.rfind("\n"), head.rfind("\r")) + 1


# ----------------------------------------------------------------------------- waiting for text


def peek(tape: Tape) -> Wait[str]:
    """The next character, "" at the end."""
    while tape.pos >= len(tape.text):
        if tape.ended:
            return ""
        yield
    return tape.text[tape.pos]


def blank(tape: Tape) -> Wait[None]:
    """Skip white space."""
    while True:
        while tape.pos < len(tape.text) and tape.text[tape.pos] in BLANK:
            tape.pos += 1
        if tape.pos < len(tape.text) or tape.ended:
            return
        yield


def literal(tape: Tape, *options: str) -> Wait[str]:
    """Read the option that comes next, "" if none does. No option may begin another."""
    while True:
        for option in options:
            if tape.text.startswith(option, tape.pos):
                tape.pos += len(option)
                return option
        rest = tape.text[tape.pos : tape.pos + 64]
        if tape.ended or not any(option.startswith(rest) for option in options):
            return ""
        yield


def optional(tape: Tape, *options: str) -> Wait[str]:
    """Read white space and an option behind it, or nothing at all."""
    start = tape.pos
    yield from blank(tape)
    found = yield from literal(tape, *options)
    if not found:
        tape.pos = start
    return found


def closing(tape: Tape, *options: str) -> Wait[str]:
    """Read white space and a closing tag behind it, or nothing; the tag may be cut by the end."""
    start = tape.pos
    found = yield from optional(tape, *options)
    if not found and tape.ended:
        rest = tape.text[start:].lstrip(BLANK)
        if rest and any(option.startswith(rest) for option in options):
            tape.pos = len(tape.text)
            return rest
    return found


def require(tape: Tape, *options: str) -> Wait[str]:
    found = yield from literal(tape, *options)
    if not found:
        raise NotACall
    return found


@cache
def _finder(options: tuple[str, ...]) -> tuple[Callable[..., re.Match[str] | None], int]:
    return re.compile("|".join(map(re.escape, options))).search, max(map(len, options))


def until(tape: Tape, *closers: str) -> Wait[tuple[str, str]]:
    """The text before the first closer, and that closer ("" at the end); both are read."""
    search, longest = _finder(closers)
    start = scan = tape.pos
    while True:
        if match := search(tape.text, scan):
            tape.pos = match.end()
            return tape.text[start : match.start()], match.group()
        if tape.ended:
            tape.pos = len(tape.text)
            return tape.text[start:], ""
        scan = max(start, len(tape.text) - longest + 1)
        yield


Check = Callable[["Tape"], Wait[bool]]


def value_until(tape: Tape, closers: Mapping[str, Check]) -> Wait[tuple[str, str]]:
    """The text before the first closer that is one, and that closer ("" at the end); both are read.

    A value can hold the markup's own tags. A tag closes it only where the text behind it can follow
    that tag: the check of the tag reads that text, and its position is not kept.

    Args:
        tape: The text, at the start of the value.
        closers: What may end the value, with the check of each.
    """
    start = tape.pos
    while True:
        _, tag = yield from until(tape, *closers)
        after = tape.pos
        if not tag:
            return tape.text[start:after], ""
        closes = yield from closers[tag](tape)
        tape.pos = after
        if closes:
            return tape.text[start : after - len(tag)], tag


def followed_by(*options: str, end: bool = True) -> Check:
    """A check that one of these comes next, behind white space. end: or nothing at all."""

    def check(tape: Tape) -> Wait[bool]:
        yield from blank(tape)
        if (yield from literal(tape, *options)):
            return True
        # A tag that the end of the output cuts is that tag.
        rest = tape.text[tape.pos :]
        return end and tape.ended and (not rest or any(o.startswith(rest) for o in options))

    return check


def run(tape: Tape, chars: re.Pattern[str]) -> Wait[str]:
    """The longest run of these characters; NotACall when there is none."""
    start = tape.pos
    while True:
        if match := chars.match(tape.text, tape.pos):
            tape.pos = match.end()
        if tape.pos < len(tape.text) or tape.ended:
            break
        yield
    if tape.pos == start:
        raise NotACall
    return tape.text[start : tape.pos]
