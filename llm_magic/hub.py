"""Model string -> LLM. One shared engine per file and device, for cells, widgets and scripts alike.

Comes in: a model's name, path or endpoint and how to load it. Goes out: the LLM that everybody
shares. This module holds the only global object of the package. It must not know notebooks.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import models
from .engine.gate import Gate
from .errors import NotLoadedError, RequestError
from .events import Progress
from .llm import LLM
from .providers.local import Local

OnProgress = Callable[[Progress], None]


@dataclass(slots=True)
class _Entry:
    """A loaded model under all the names that people used for it."""

    llm: LLM
    key: tuple[str, str]
    names: set[str] = field(default_factory=set)


class Hub:
    """The models of this process. All methods may be called from any thread.

    default: the model that is meant when none is named. gate: see engine.gate; the notebook's hooks
    hold it while a cell runs.
    """

    def __init__(self) -> None:
        self.gate = Gate()
        self.default = "smollm2"
        self._lock = threading.RLock()
        self._entries: list[_Entry] = []
        self._loading: dict[tuple[str, str], Local] = {}
        self._pid = os.getpid()

    def load(
        self,
        name: str | None = None,
        *,
        ctx: int | None = None,
        slots: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        cache_mb: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> LLM:
        """The LLM of that name; loads it if nobody has yet, else shares it.

        ctx: context in tokens (4096, or the model's own limit if that is less). slots:
        conversations kept in the KV cache (4). threads: CPU threads (all cores the process may
        use; never more than its processors). device: a tinygrad device (CPU). cache_mb: megabytes
        of KV cache that conversations may keep while nobody continues them (all that the slots
        hold). Asking a loaded model for more of these grows it; for less, changes nothing. Raises
        what models.resolve and the engine raise; a failed load leaves nothing behind.
        """
        sizes = {"ctx": ctx, "slots": slots, "threads": threads, "cache_mb": cache_mb}
        for what, value in sizes.items():
            if value is not None and (type(value) is not int or value < 1):
                raise RequestError(f"{what} is {value!r}; it must be a whole number, 1 or more")
        self._after_fork()
        name = str(name or self.default)
        entry = self._named(name)
        if entry is not None and not isinstance(entry.llm.provider, Local):
            return entry.llm
        say = on_progress or _silent
        resolved = models.resolve(name, progress=lambda s, d, t: say(Progress(s, d, t)))
        key = (os.path.realpath(resolved.path), (device or "CPU").upper())
        path = Path(resolved.path)
        while True:
            with self._lock:
                self._forget_closed()
                entry = next((e for e in self._entries if e.key == key), None)
                mine = entry is None and key not in self._loading
                if mine:
                    self._loading[key] = Local(
                        resolved.name,
                        path,
                        ctx,
                        slots,
                        threads,
                        device,
                        self.gate,
                        cache_mb,
                        resolved.sampling,
                    )
                local = self._loading.get(key)
            if entry is None:
                assert local is not None
                try:
                    entry = self._wait(name, key, local, say)
                except Exception:
                    if mine:
                        raise
                    continue  # what somebody else asked for failed, or was interrupted
                if mine:
                    return entry.llm
            if isinstance(provider := entry.llm.provider, Local):
                provider.grow(ctx, slots, threads, cache_mb)
            entry.names.add(name)
            return entry.llm

    def _wait(self, name: str, key: tuple[str, str], local: Local, say: OnProgress) -> _Entry:
        """Wait for a load that this or another thread began."""
        try:
            local.wait(say)
        except KeyboardInterrupt:
            local.close(wait=False)
            raise
        finally:
            with self._lock:
                if (local.failed or local.closed) and self._loading.get(key) is local:
                    del self._loading[key]
        with self._lock:
            if self._loading.get(key) is local:  # and not the next one, begun after an unload
                del self._loading[key]
            entry = next((e for e in self._entries if e.key == key), None)
            if entry is None:
                entry = _Entry(LLM(local), key)
                self._entries.append(entry)
            entry.names |= {name, local.model}
            return entry

    def add(self, name: str, llm: LLM) -> None:
        """Offer a ready LLM under a name. A loaded model of that name is not touched but hidden."""
        with self._lock:
            for entry in self._entries:
                entry.names.discard(name)
            self._entries.insert(0, _Entry(llm, (name, "added"), {name}))

    def get(self, name: str | None = None) -> LLM | None:
        """The LLM of that name if it is loaded."""
        entry = self._named(str(name or self.default))
        return None if entry is None else entry.llm

    def loaded(self) -> list[LLM]:
        with self._lock:
            self._forget_closed()
            return [entry.llm for entry in self._entries]

    def unload(self, name: str | None = None) -> list[str]:
        """Free one model, or all; returns the names. NotLoadedError if there is no such model."""
        with self._lock:
            self._forget_closed()
            gone = [e for e in self._entries if name is None or name in e.names]
            if not gone and name is not None:
                names = sorted(n for e in self._entries for n in e.names)
                raise NotLoadedError(
                    f"{name!r} is not loaded; loaded: {', '.join(names) or 'none'}"
                )
            self._entries = [e for e in self._entries if e not in gone]
        for entry in gone:
            entry.llm.unload()
        return [entry.llm.model for entry in gone]

    def _named(self, name: str) -> _Entry | None:
        with self._lock:
            self._forget_closed()
            return next((e for e in self._entries if name in e.names), None)

    def _forget_closed(self) -> None:
        self._entries = [e for e in self._entries if not e.llm.provider.closed]

    def _after_fork(self) -> None:
        """A forked child has the parent's objects but not its threads: it starts with nothing."""
        if self._pid != os.getpid():
            self.gate, self._lock = Gate(), threading.RLock()
            self._entries, self._loading = [], {}
            self._pid = os.getpid()


def _silent(progress: Progress) -> None:
    """Nobody watches."""


hub = Hub()
