"""Rules of a GBNF grammar as trees, and sets of characters as ranges of code points."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Chars = tuple[tuple[int, int], ...]  # ranges of code points, both ends included, sorted


LAST = 0x10FFFF


EVERY: Chars = ((0, LAST),)


@dataclass(slots=True)
class Node:
    """A node of a rule's syntax tree.

    kind: chars (one character of a set), id (Lark text in `value`), name; of several parts:
    sequence, choice, repeat (its suffix in `value`).
    """

    kind: str
    value: str = ""
    parts: list["Node"] = field(default_factory=list)
    chars: Chars = ()

    def walk(self) -> Iterator["Node"]:
        yield self
        for part in self.parts:
            yield from part.walk()

    def ends(self, ending: set[str]) -> bool:
        """Whether the node has a finite sentence, given the rules that are known to have one."""
        match self.kind:
            case "name":
                return self.value in ending
            case "chars":
                return bool(self.chars)
            case "choice":
                return any(part.ends(ending) for part in self.parts)
            case "repeat":
                return self.least() == 0 or self.parts[0].ends(ending)
        return all(part.ends(ending) for part in self.parts)

    def count(self) -> int:
        """The largest number of copies that nested repetitions make of one part."""
        inside = max((part.count() for part in self.parts), default=1)
        counts = re.findall(r"\d+", self.value) if self.kind == "repeat" else []
        return inside * max([1, *map(int, counts)])

    def least(self) -> int:
        """The smallest count of a repetition."""
        count = re.match(r"\{(\d+)", self.value)
        return int(count[1]) if count else int(self.value == "+")

    def names(self) -> set[str]:
        return {node.value for node in self.walk() if node.kind == "name"}


def merged(ranges: Iterable[tuple[int, int]]) -> Chars:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def complement(chars: Chars) -> Chars:
    edges = [-1, *(edge for pair in chars for edge in pair), LAST + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in pairs if low + 1 <= high - 1)


def meet(a: Chars, b: Chars) -> bool:
    return any(low <= top and bottom <= high for low, high in a for bottom, top in b)
