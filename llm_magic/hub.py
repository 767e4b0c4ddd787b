"""Model names to LLMs: one shared engine for each file and device.

Cells, widgets and scripts load through `hub`, so that a model is in memory once. `hub` is one of
the package's globals; docs/decisions/globals.md lists all of them.
"""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import models
from .arguments import count, shown
from .engine.encoder.config import is_encoder
from .engine.gate import Gate
from .errors import NotLoadedError, RequestError
from .events import Progress
from .llm import LLM
from .providers.encoder import EncoderProvider
from .providers.local import Local

OnProgress = Callable[[Progress], None]
ENCODER = "encoder"  # in the place of a device: such a model always runs on the CPU
Key = tuple[str, str]  # the real path of a model's file, and the device


@dataclass(slots=True)
class _Entry:
    """A loaded model and every name that it was loaded by."""

    llm: LLM
    key: Key
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
        self._encoders = threading.Lock()  # one embedding model is loaded at a time
        self._entries: list[_Entry] = []
        self._loading: dict[Key, Local] = {}
        self._pid = os.getpid()

    def load(
        self,
        name: "str | Sequence[str] | None" = None,
        /,
        *,
        ctx: int | None = None,
        slots: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        cache_mb: int | None = None,
        on_progress: OnProgress | None = None,
        **server: object,
    ) -> LLM:
        """The LLM of that name, loaded on the first call and shared from then on.

        Asking a loaded model for larger sizes grows it; smaller ones change nothing. A load that
        fails or is interrupted leaves nothing behind.

        Args:
            name: A model's name, path, folder or `owner/repo[:file]`; the address of a server, or
                a list of addresses; None: the default model.
            ctx: Context in tokens; None: 4096, or the model's own limit if that is less.
            slots: Conversations kept in the KV cache; None: 4.
            threads: CPU threads; None: all cores that the process may use.
            device: A tinygrad device; None: CPU.
            cache_mb: Megabytes of KV cache that conversations may keep while nobody continues
                them; None: all that the slots hold.
            on_progress: Called on this thread while the model is downloaded, loaded and compiled.
            **server: Options of a connection, see `connect`.

        Raises:
            RequestError: An argument is not valid.
            ModelError: The model cannot be found, fetched, read or evaluated.
            RemoteError: A server cannot be reached, or refuses the key.
        """
        self._after_fork()
        if (urls := _addresses(name)) is not None:
            sizes = {"ctx": ctx, "slots": slots, "threads": threads, "device": device,
                     "cache_mb": cache_mb}  # fmt: skip
            return self._remote(urls, sizes, on_progress, server)
        if server:
            raise RequestError(f"{', '.join(server)}: only the address of a server takes these")
        name = _name(name, self.default)
        ctx, slots, threads, cache_mb = (
            None if value is None else count(what, value, 1)
            for what, value in (
                ("ctx", ctx), ("slots", slots), ("threads", threads), ("cache_mb", cache_mb),
            )
        )  # fmt: skip
        if device is not None and not isinstance(device, str):
            raise RequestError(f"device is {shown(device)}; it must be the name of a device")
        entry = self._named(name)
        if entry is not None and not isinstance(entry.llm.provider, Local):
            return entry.llm
        say = on_progress or _silent
        resolved = models.resolve(name, progress=lambda s, d, t: say(Progress(s, d, t)))
        key = (os.path.realpath(resolved.path), (device or "CPU").upper())
        path = Path(resolved.path)
        if is_encoder(path):
            return self._encoder(resolved.name, name, path, say)
        local: Local | None = None
        try:
            while True:
                local, mine = self._registered(key, lambda: Local(
                    resolved.name, path, ctx, slots, threads, device, self.gate, cache_mb,
                    resolved.sampling,
                ))  # fmt: skip
                try:
                    llm = self._wait(name, key, local, say)
                except Exception:
                    if mine or not (local.failed or local.closed):
                        raise
                    continue  # what another caller asked for failed, or was interrupted
                if not mine:
                    local.grow(ctx, slots, threads, cache_mb)
                return llm
        except BaseException:
            self._abandon(key, local)
            raise

    def connect(
        self,
        urls: "str | Sequence[str]",
        *,
        api_key: "str | Callable[[], str] | None" = None,
        name: str | None = None,
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> LLM:
        """The LLM of a server, or of several servers with the same model.

        Args:
            urls: `http://HOST:PORT/v1#MODEL`, or several; the model may be left out where a server
                has one.
            api_key: The name of an environment variable that holds the key, or a function that
                returns it.
            name: The model's name here; None: MODEL@HOST:PORT.
            on_progress: Called while a server is still loading its model.
            **options: Those of `providers.http.connect.connect`: dialect, timeouts, verify, client
                and log.

        Raises:
            RequestError: An argument is not valid.
            RemoteError: No server can be reached, or one refuses the key.
        """
        from .providers.http import addresses
        from .providers.http.connect import connect

        listed = [urls] if isinstance(urls, str) else list(urls)
        shown = [addresses.parse(url).shown for url in listed]
        try:
            remote = connect(
                listed, api_key, name=name, on_progress=on_progress or _silent, **options
            )
        except TypeError as e:
            raise RequestError(f"connect: {e}") from None
        llm = LLM(remote)
        with self._lock:
            self._forget_closed()
            names = {remote.model, *shown[:1]} if name is None else {name}
            for entry in self._entries:
                if entry.key[1] == "server":
                    entry.names -= names
            self._entries.append(_Entry(llm, (" ".join(shown), "server"), names))
            gone = [e for e in self._entries if not e.names]
            self._entries = [e for e in self._entries if e.names]
        for entry in gone:  # connected anew under the same names
            entry.llm.unload()
        return llm

    def _remote(
        self,
        urls: list[str],
        sizes: Mapping[str, object],
        say: OnProgress | None,
        server: Mapping[str, Any],
    ) -> LLM:
        """The LLM of addresses: connected already, or now."""
        from .providers.http import addresses

        if given := [name for name, value in sizes.items() if value is not None]:
            raise RequestError(f"{', '.join(given)}: a server was given these when it was started")
        key = (" ".join(addresses.parse(url).shown for url in urls), "server")
        with self._lock:
            self._forget_closed()
            found = next((e.llm for e in self._entries if e.key == key), None)
        if found is not None and not any(value is not None for value in server.values()):
            return found
        return self.connect(urls, on_progress=say, **server)

    def _encoder(self, model: str, name: str, path: Path, say: OnProgress) -> LLM:
        """The embedding model of a file, loaded by the first call."""
        key = (os.path.realpath(path), ENCODER)
        with self._encoders:
            with self._lock:
                self._forget_closed()
                entry = next((e for e in self._entries if e.key == key), None)
            if entry is None:
                entry = _Entry(LLM(EncoderProvider(model, path, say)), key)
                with self._lock:
                    self._entries.append(entry)
            with self._lock:
                entry.names |= {name, model}
            return entry.llm

    def _abandon(self, key: Key, local: Local | None) -> None:
        """This call has failed, wherever it was: no engine may stay that nobody can see."""
        with self._lock:
            if local is None or any(entry.llm.provider is local for entry in self._entries):
                return
            if self._loading.get(key) is local:
                del self._loading[key]
        local.close(wait=False)

    def _registered(self, key: Key, make: Callable[[], Local]) -> tuple[Local, bool]:
        """The model of that key, loaded or not, and whether this call made it.

        It is registered before it is started, so an interrupt leaves nothing unknown behind.
        """
        with self._lock:
            self._forget_closed()
            for entry in self._entries:
                if entry.key == key and isinstance(entry.llm.provider, Local):
                    return entry.llm.provider, False
            if key in self._loading:
                return self._loading[key], False
            local = self._loading[key] = make()
            return local, True

    def _wait(self, name: str, key: Key, local: Local, say: OnProgress) -> LLM:
        """Wait for a load that this or another thread began."""
        try:
            local.wait(say)
        finally:
            with self._lock:
                if (local.failed or local.closed) and self._loading.get(key) is local:
                    del self._loading[key]
        with self._lock:
            entry = next((e for e in self._entries if e.key == key), None)
            if entry is None:
                entry = _Entry(LLM(local), key)
                self._entries.append(entry)
            if self._loading.get(key) is local:  # and not the next one, begun after an unload
                del self._loading[key]
            entry.names |= {name, local.model}
            return entry.llm

    def add(self, name: str, llm: LLM) -> None:
        """Offer a ready LLM under a name. A loaded model of that name is not touched but hidden."""
        with self._lock:
            for entry in self._entries:
                entry.names.discard(name)
            self._entries.insert(0, _Entry(llm, (name, "added"), {name}))

    def get(self, name: str | None = None) -> LLM | None:
        """The LLM of that name if it is loaded."""
        entry = self._named(_name(name, self.default))
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

    def remove(self, name: str) -> models.Removed:
        """Delete the files of a fetched model that is not loaded; see `models.remove`."""
        with self._lock:
            self._forget_closed()
            used = {entry.key[0] for entry in self._entries} | {key[0] for key in self._loading}
        return models.remove(_name(name, self.default), used)

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
            self._encoders = threading.Lock()
            self._entries, self._loading = [], {}
            self._pid = os.getpid()


def _addresses(name: object) -> list[str] | None:
    """The addresses of servers; None where a model of this process is meant."""
    from .providers.http import is_address

    if isinstance(name, str):
        return [name] if is_address(name) else None
    if isinstance(name, list | tuple):
        wrong = [n for n in name if not isinstance(n, str) or not is_address(n)]
        if wrong or not name:
            raise RequestError(f"model is {shown(name)}; a list must hold addresses of servers")
        return list(name)
    return None


def _name(name: object, default: str) -> str:
    """A model's name; None and "" are the default one. A path object counts as its text."""
    if name is None or (isinstance(name, str) and not name):
        return default
    if isinstance(name, os.PathLike):
        name = os.fspath(name)
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise RequestError(f"model is {shown(name)}; it must be a model's name or path")
    return name


def _silent(progress: Progress) -> None:
    """Ignore the progress of a load."""


hub = Hub()
