"""A file of finished answers: a run that was killed goes on from it, and asks nothing twice.

One line of JSON an answer, only ever appended: `{"key": ..., "answer": ...}`. The key is a hash of
everything that an answer depends on (see `key_of`). A line is written in one call when its answer
is there, so a process that is killed loses the rows that were in work and nothing else. A last line
that was cut off is taken away.
"""

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from ..errors import RequestError
from ..json_types import Json, JsonObject

HEAD: JsonObject = {"llm_magic": "answers of llm.map", "version": 1}
SYNC = 1.0  # seconds between two calls of fsync: what a power cut may cost


def key_of(*parts: Json) -> str:
    """A hash of everything that an answer depends on: 32 hexadecimal digits.

    >>> key_of("model", {"a": 1, "b": 2}) == key_of("model", {"b": 2, "a": 1})
    True
    """
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Cache:
    """The answers of a file by key, and the way to add one.

    Args:
        path: The file; it is made if it is not there, with its folder.

    Raises:
        RequestError: The file is something else, cannot be written, or another process uses it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self._where: dict[str, tuple[int, int]] = {}  # key -> place and length of its line
        self._synced = 0.0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115  (closed in close)
        except OSError as e:
            raise RequestError(f"cache {self.path} cannot be written: {e.strerror or e}") from e
        try:
            _lock(self._file, self.path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def __len__(self) -> int:
        return len(self._where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        """Find every whole line; what is no line of ours is left where it is."""
        at, begun = 0, False
        for line in _lines(self.path):
            data = _object(line)
            if not begun:
                begun = data is not None and data.get("llm_magic") == HEAD["llm_magic"]
                if not begun and not _line(HEAD).startswith(line):
                    raise RequestError(
                        f"cache {self.path} is not a file of answers of llm.map; name another file"
                    )
            elif data is not None and isinstance(key := data.get("key"), str):
                self._where.setdefault(key, (at, len(line)))
            if not line.endswith(b"\n"):
                self._mend(at, whole=data is not None)
                break
            at += len(line)
        if not begun:
            self._write(_line(HEAD))

    def _mend(self, at: int, whole: bool) -> None:
        """The last line, which begins at `at`, was cut off: end it, or take it away."""
        if whole:
            self._write(b"\n")
        else:
            self._file.truncate(at)

    def get(self, key: str) -> JsonObject | None:
        """The answer of that key, or None."""
        place = self._where.get(key)
        if place is None:
            return None
        self._file.seek(place[0])
        data = _object(self._file.read(place[1]))
        answer = (data or {}).get("answer")
        return dict(answer) if isinstance(answer, Mapping) else None

    def put(self, key: str, answer: Mapping[str, Json]) -> None:
        """Add an answer. When this returns, the process may be killed without losing it."""
        if key in self._where:
            return
        line = _line({"key": key, "answer": dict(answer)})
        at = self._file.seek(0, io.SEEK_END)
        self._write(line)
        self._where[key] = (at, len(line))
        if time.monotonic() - self._synced > SYNC:
            self._sync()

    def _write(self, data: bytes) -> None:
        try:
            view = memoryview(data)
            while view:  # a disk that is almost full may take a part
                view = view[self._file.write(view) or 0 :]
        except OSError as e:
            raise RequestError(f"cache {self.path} cannot be written: {e.strerror or e}") from e

    def _sync(self) -> None:
        with contextlib.suppress(OSError):  # a pipe, say
            os.fsync(self._file.fileno())
        self._synced = time.monotonic()

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if not self._file.closed:
            self._sync()
            self._file.close()


def _line(data: Mapping[str, Json]) -> bytes:
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _object(line: bytes) -> JsonObject | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _begins_head(line: bytes) -> bool:
    """Whether a process was killed while it wrote the first line."""
    return _line(HEAD).startswith(line)


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file


def _lock(file: io.FileIO, path: Path) -> None:
    """One process at a time: two would answer the same rows twice. It ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows: an open file of another process is not protected there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(
            f"cache {path} is in use by another run; wait for it, or name another file"
        ) from None
    except OSError:
        return  # a file system without locks
