"""The ledger: every generation of one notebook, in the order in which they ended."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.reply_log import ReplyLog

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
        self.log: ReplyLog | None = None  # the file that replies are added to
        self.logging = False  # whether they are

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

    def add(self, entry: Entry, reply: Reply | None = None) -> None:
        """Append an entry and call the watchers, on this thread.

        Args:
            entry: The line.
            reply: What it is about, for the log.
        """
        self._entries = (*self._entries, entry)
        if reply is not None and self.log is not None and self.logging:
            self._write(self.log, entry, reply)
        for watcher in list(self._watchers):
            watcher()

    def _write(self, log: ReplyLog, entry: Entry, reply: Reply) -> None:
        """Add a reply to the log. A full disk must not take away an answer that is there."""
        try:
            log.add(reply, entry.cell, os.path.basename(os.environ.get("JPY_SESSION_NAME", "")))
        except RequestError as e:
            self.logging = False
            warnings.warn(f"the log is off now: {e}", stacklevel=2)

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call `watcher`, which must return at once, after each new entry."""
        if watcher not in self._watchers:
            self._watchers.append(watcher)

    def forget(self, watcher: Callable[[], None]) -> None:
        """Stop calling `watcher`."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
