"""Special tokens in a text: the spans that are tokens before any tokenising."""

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class Span(NamedTuple):
    """Characters [start, end) of the text are token `id`."""

    start: int
    end: int
    id: int


class SpecialFinder:
    """Finds special tokens as llama.cpp does: the longest token of all takes its places first.

    Longest is measured in bytes over the whole text, so an early short match never hides a later
    long one. Equal lengths go by id.

    control: (text, id) of tokens that are recognised only where the caller asks for it.
    user: (text, id) of tokens that are recognised in any text.
    """

    __slots__ = ("_control", "_lengths", "_rank", "_starts", "_table", "_two")

    def __init__(self, control: Iterable[tuple[str, int]], user: Iterable[tuple[str, int]]) -> None:
        control = list(control)
        self._table = dict(control) | dict(user)
        self._control = frozenset(i for _, i in control)
        sizes = {i: len(t.encode("utf-8", "surrogatepass")) for t, i in self._table.items()}
        order = sorted(sizes, key=lambda i: (-sizes[i], i))
        self._rank = {i: rank for rank, i in enumerate(order)}
        # Vocabularies hold thousands of these: positions are found by first character, rejected
        # by the first two, and only then looked up once for each length that occurs.
        lengths: dict[str, set[int]] = {}
        for text in self._table:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}
        self._two = frozenset(text[:2] for text in self._table)
        starts = "".join(map(re.escape, self._lengths))
        self._starts = re.compile(f"[{starts}]") if starts else None

    def find(self, text: str, control: bool, cuts: Iterable[int] = ()) -> list[Span]:
        """The special tokens in `text`, in order.

        control: whether control tokens count.
        cuts: positions in `text`; a control token with one strictly inside does not count.
        """
        found = self._candidates(text)
        if not control:
            found = [span for span in found if span.id not in self._control]
        elif marks := sorted(cuts):
            found = [
                span
                for span in found
                if span.id not in self._control
                or bisect_right(marks, span.start) == bisect_right(marks, span.end - 1)
            ]
        if not found:
            return found
        found.sort(key=lambda span: (self._rank[span.id], span.start))
        taken = bytearray(len(text))
        kept = []
        for span in found:
            if taken.find(1, span.start, span.end) < 0:
                taken[span.start : span.end] = b"\1" * (span.end - span.start)
                kept.append(span)
        kept.sort()
        return kept

    def _candidates(self, text: str) -> list[Span]:
        if self._starts is None:
            return []
        out, table, two = [], self._table, self._two
        for match in self._starts.finditer(text):
            start = match.start()
            first = match.group()
            if text[start : start + 2] not in two:
                if (i := table.get(first)) is not None:
                    out.append(Span(start, start + 1, i))
                continue
            for length in self._lengths[first]:
                if (i := table.get(text[start : start + length])) is not None:
                    end = min(start + length, len(text))
                    if end == start + length:
                        out.append(Span(start, end, i))
        return out
