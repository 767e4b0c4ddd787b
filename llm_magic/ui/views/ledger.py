"""Every generation of one notebook in the order of its end, whoever asked for it.

Comes in: entries, from any thread. Goes out: the list, and a call to everybody who watches it. It
must not know how entries are made or drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from .throughput import Entry


class Ledger(Sequence[Entry]):
    """The list. `watch` and `forget` are for those who show it while it grows."""

    def __init__(self) -> None:
        self._entries: tuple[Entry, ...] = ()  # replaced as a whole: any thread may read it
        self._watchers: list[Callable[[], None]] = []

    @overload
    def __getitem__(self, i: int) -> Entry: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Entry, ...]: ...
    def __getitem__(self, i: int | slice) -> Entry | tuple[Entry, ...]:
        return self._entries[i]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """One generation more; those who watch are told at once, on this thread."""
        self._entries = (*self._entries, entry)
        for told in list(self._watchers):
            told()

    def watch(self, told: Callable[[], None]) -> None:
        """Call `told`, which must return at once, after each new entry."""
        if told not in self._watchers:
            self._watchers.append(told)

    def forget(self, told: Callable[[], None]) -> None:
        """Do not call it any more."""
        if told in self._watchers:
            self._watchers.remove(told)
