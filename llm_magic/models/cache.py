"""The folder of fetched models: finished files, unfinished work, remembered checksums.

Files in `files` are complete: work is done in a folder of its own under `tmp`, and moves there in
one step. An interrupted download leaves nothing there, and processes that make the same file at
once do not collide. A checksum is remembered (`stamps`) with the file's size and times, so that a
start costs a few stat calls, not 100 MB of hashing.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import DownloadError

STALE = 2 * 86400  # seconds until an abandoned workspace is swept away
SETTLED = 0.05  # a file that changed this recently (s) might change again within one clock tick


def cache_dir() -> Path:
    """LLM_MAGIC_CACHE, else the user's cache folder. It may not exist yet."""
    if named := os.environ.get("LLM_MAGIC_CACHE"):
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("llm_magic", appauthor=False))


def files() -> Path:
    """The folder of finished files."""
    return cache_dir() / "files"


@contextlib.contextmanager
def workspace(need: int) -> Iterator[Path]:
    """A new folder on the cache's disk, which has `need` bytes free; removed afterwards.

    Raises DownloadError where the cache can't be written or the disk is too full.
    """
    root = cache_dir() / "tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        free = shutil.disk_usage(root).free
        tmp = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    except OSError as e:
        raise DownloadError(
            f"the cache folder {root} can't be written ({e}); LLM_MAGIC_CACHE names another"
        ) from e
    try:
        if free < need:
            raise DownloadError(
                f"{need / 1e6:,.0f} MB are needed, but {root} has only {free / 1e6:,.0f} MB; "
                "LLM_MAGIC_CACHE names another folder"
            )
        yield tmp
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def finished_parts(sha256: str) -> Path:
    """The folder for complete parts of an unfinished download of the file with this SHA-256.

    It may not exist yet. Parts that were not used for two days are removed.
    """
    root = cache_dir() / "parts"
    with contextlib.suppress(OSError):
        _sweep(root)
    return root / sha256[:16]


def place(made: Path, target: Path) -> None:
    """Move a finished file to its name in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(made, target)
    except PermissionError:
        # Windows: another process has put the file there and mapped it.
        if not (target.exists() and target.stat().st_size == made.stat().st_size):
            raise


def sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file in hex, remembered until the file's size or times change."""
    real = Path(os.path.realpath(path))
    state, stamp = _state(real), _stamp(real)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(stamp.read_text())
        if note["state"] == state:
            return str(note["sha256"])
    with open(real, "rb") as f:
        digest = hashlib.file_digest(f, "sha256").hexdigest()
    if _state(real) == state and time.time() - real.stat().st_mtime > SETTLED:
        note = {"path": str(real), "state": state, "sha256": digest}
        with contextlib.suppress(OSError):  # a read-only cache: hash again next time
            _write(stamp, json.dumps(note))
    return digest


def forget(path: Path) -> None:
    """Drop the remembered checksum of a file that is about to be removed."""
    with contextlib.suppress(OSError):
        _stamp(path).unlink()


def _stamp(real: Path) -> Path:
    return cache_dir() / "stamps" / f"{hashlib.sha1(os.fsencode(real)).hexdigest()}.json"


def _state(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _sweep(root: Path) -> None:
    """Remove old files of killed processes."""
    for old in root.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > STALE:
                shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}")
    made.write_text(text)
    os.replace(made, path)
