"""Literal strings to look for in text that arrives in pieces."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache


class Patterns:
    """Literal strings to look for in text that arrives in pieces. The earliest start wins.

    Memory and time grow linearly with the strings, however long they are.
    """

    def __init__(self, literals: Sequence[str]) -> None:
        # Shortest first: at one start, what is complete first wins, however the text is cut.
        ordered = sorted(dict.fromkeys(filter(None, literals)), key=len)
        self._search = re.compile("|".join(map(re.escape, ordered)) or "(?!)").search
        self._sorted = sorted(ordered)
        self._first = frozenset(s[0] for s in ordered)
        self._longest = max(map(len, ordered), default=1) - 1

    def find(self, text: str, start: int = 0) -> re.Match[str] | None:
        return self._search(text, start)

    def hold(self, text: str) -> int:
        """Where the longest tail starts that may still become one of the strings."""
        for start in range(max(0, len(text) - self._longest), len(text)):
            if text[start] not in self._first:
                continue
            tail = text[start:]
            # In sorted order the strings that go on behind the tail come right after it.
            after = bisect_right(self._sorted, tail)
            if after < len(self._sorted) and self._sorted[after].startswith(tail):
                return start
        return len(text)


@lru_cache(64)
def compiled_patterns(literals: tuple[str, ...]) -> Patterns:
    return Patterns(literals)
