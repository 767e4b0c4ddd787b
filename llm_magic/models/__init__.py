"""Names -> files: what a model is called, where its file lies, and how it gets there.

Comes in: a name, a path, a folder, the URL of a .gguf file or `owner/repo[:file]`. Goes out:
`Resolved`, a file on this machine; where the checksum is known it was compared. It must not know
what is inside.

In this package: table.py (the models that have a name), cache.py (files, checksums), wheels.py
(from the package index), web.py (URLs and the hub); here is what a string means.

No network unless a model that is not here is asked for; none at all with LLM_MAGIC_OFFLINE=1.
"""

import contextlib
import difflib
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import ModelError, ModelNotFoundError
from ..sampling import Sampling
from . import web, wheels
from .cache import cache_dir, sha256
from .table import DEFAULT, LINKED, PACKAGED, Linked, Packaged, builtin, key
from .wheels import Progress

__all__ = [
    "DEFAULT",
    "Known",
    "Progress",
    "Resolved",
    "cache_dir",
    "fetch",
    "known",
    "listing",
    "register",
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
    """A model file on this machine. source: path, folder, cache, package, url or hub.

    sampling: settings that the table of named models knows for chats with this one.
    """

    name: str
    path: Path
    source: str
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Known:
    """A row of `known()`. size: bytes (of a file that is still on the web about so many), 0 =
    unknown; cached: loading it needs no network."""

    name: str
    description: str
    size: int
    cached: bool
    licence: str


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
    """Make sure that a model is on this machine, so that it loads without a network later."""
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
        here = wheels.have(m) is not None
        rows.append(Known(m.name, m.description, m.size, here, m.licence))
    for link in LINKED:
        path = web.url_path(link.url)
        here = path.exists()
        size = path.stat().st_size if here else link.size
        rows.append(Known(link.name, link.description, size, here, link.licence))
    for name, target in _registered.items():
        path = Path(target).expanduser()
        size = path.stat().st_size if path.is_file() else 0
        rows.append(Known(name, f"registered: {target}", size, path.exists(), ""))
    return rows


def listing() -> list[str]:
    """`known()` as lines of text."""
    lines = []
    for row in known():
        state = "here" if row.cached else "to fetch"
        size = f"{row.size / 1e6:,.0f} MB" if row.size else ""
        licence = f" [{row.licence}]" if row.licence else ""
        lines.append(f"{row.name:13} {state:8} {size:>8}  {row.description}{licence}")
    return lines


# ----------------------------------------------------------------------------- what a string means


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
            f"{wheels.redact(url)} is a remote endpoint, not a model file: nothing can be loaded "
            "from it here. The URL of a file ends in .gguf"
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
        f"no model {name!r}: it is no known name, no file or folder here, and no owner/repo of the "
        f"Hugging Face hub.{mean} Known names: {', '.join(names)}"
    )


def _stem(file: str) -> str:
    """A model's short name from its file name."""
    part = web.SHARD.fullmatch(file)
    return part["head"] if part else re.sub(r"\.gguf$", "", file, flags=re.I)


def _silent(stage: str, done: int, total: int) -> None:
    pass
