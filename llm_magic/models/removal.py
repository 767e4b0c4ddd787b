"""Deletes the files of fetched models from the cache, and nothing else."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError, ModelNotFoundError
from . import web, wheels
from .cache import files, finished_parts, forget
from .table import Packaged


@dataclass(frozen=True, slots=True)
class Removed:
    """The files of a model that were removed, and their bytes together."""

    name: str
    files: tuple[Path, ...]
    size: int


def of_packages(m: Packaged) -> list[Path]:
    """The cached files of a model that comes in packages, those of a broken download included.

    Raises:
        ModelError: The file lies in an installed package.
    """
    target, parts = files() / m.file, finished_parts(m.sha256)
    held = [p for p in (target, *(parts.iterdir() if parts.is_dir() else ())) if p.exists()]
    if not held and (found := wheels.have(m)):
        raise ModelError(
            f"{m.name} is part of an installed package ({found[0]}): "
            f"pip uninstall {m.wheels[0].package}"
        )
    return held


def of_url(url: str) -> list[Path]:
    """The files that were fetched from a URL: several where it is a split set."""
    return _present(web.url_paths(url))


def of_hub(repo: str, file: str | None) -> list[Path]:
    """The model files of a repository in the hub's cache; the small files beside them stay."""
    first = web.cached_in_hub(repo, file)
    return [] if first is None else split_set(first)


def of_path(path: Path) -> list[Path]:
    """A file of the cache. Raises ModelError for a file that lies anywhere else."""
    if not path.exists():
        return []
    if path.is_dir():
        raise ModelError(f"{path} is a folder: name the model's file")
    if not path.resolve().is_relative_to(files().resolve()):
        raise ModelError(
            f"{path} is a file of your own, not of the cache: it is not removed here. "
            "Delete it as you delete other files"
        )
    return split_set(path)


def split_set(first: Path) -> list[Path]:
    """The files of the split set that a file belongs to; of any other file, only itself."""
    part = web.SHARD.fullmatch(first.name)
    if part is None:
        return [first]
    numbers = range(1, int(part["count"]) + 1)
    return _present(
        [first.with_name(f"{part['head']}-{n:05d}-of-{part['count']}.gguf") for n in numbers]
    )


def remove(name: str, found: Sequence[Path]) -> Removed:
    """Remove the files; of a link within a cache (the hub has them), what it points to as well.

    Raises:
        ModelNotFoundError: There is no file.
        ModelError: The system does not allow it.
    """
    if not found:
        raise ModelNotFoundError(f"{name} is not on this machine: there is nothing to remove")
    size = sum(p.stat().st_size for p in found)
    try:
        for path in found:
            real = Path(os.path.realpath(path))
            forget(real)
            path.unlink()
            if real != path and real.is_relative_to(_home(path)):
                real.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there are others in it
            found[0].parent.rmdir()
    except OSError as e:
        raise ModelError(f"{name} cannot be removed: {e}") from e
    return Removed(name, tuple(found), size)


def _home(path: Path) -> Path:
    """The folder that belongs to one cache alone: of a repository of the hub, or ours."""
    repository = next((p for p in path.parents if p.name.startswith("models--")), files())
    return Path(os.path.realpath(repository))


def _present(paths: Sequence[Path]) -> list[Path]:
    return [p for p in paths if p.exists()]
