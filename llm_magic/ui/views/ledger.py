"""The ledger: every generation of one notebook, in the order in which they ended."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from .throughput import Entry


class Ledger(Sequence[Entry]):
    """A list of entries that any thread may read and extend.

    `watch` and `forget` are for views that show it while it grows.

    >>> ledger, seen = Ledger(), []
    >>> ledger.watch(lambda: seen.append(len(ledger)))
    >>> ledger.add(Entry(1, "smollm2", 12, 0, 5, 0.0, 90.0, 0.1, "stop"))
    >>> seen, ledger[0].tokens
    ([1], 5)
    """

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
        """Append an entry and call the watchers, on this thread."""
        self._entries = (*self._entries, entry)
        for watcher in list(self._watchers):
            watcher()

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher`, which must return at once, after each new entry."""
        if watcher not in self._watchers:
            self._watchers.append(watcher)

    def forget(self, watcher: Callable[[], None]) -> None:
        """Stop calling `watcher`."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
