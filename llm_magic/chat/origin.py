"""What a reply came from: the model's file, the code that evaluated it, and what was asked.

With it a saved reply can be generated again and compared. Nothing here is shown to a person.
"""

import os
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from ..json_types import JsonObject
from ..models.cache import sha256

LARGE = 256 << 20  # bytes of a file that take a noticeable part of a second
SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model's file, or the files of a split one, as they were when it was loaded.

    Attributes:
        paths: In order.
        state: Size and time of the last change of each.
    """

    paths: tuple[str, ...]
    state: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Self:
        """The file as it is now; of a split model, any of its files stands for all."""
        paths = [Path(path)]
        if (shard := SHARD.fullmatch(paths[0].name)) is not None:
            names = (f"{shard[1]}-{i:05d}-of-{shard[2]}.gguf" for i in range(1, int(shard[2]) + 1))
            paths = [paths[0].parent / name for name in names]
        return cls(tuple(os.fspath(p) for p in paths), tuple(_state(p) for p in paths))

    def sha256(self) -> str | None:
        """SHA-256 in hexadecimal digits; of a split model, that of each file, joined by "+".

        None where a file is gone or was changed since it was loaded. A hash is remembered with the
        file's size and times, so only the first call reads the file.
        """
        try:
            if tuple(map(_state, self.paths)) != self.state:
                return None
            return "+".join(sha256(path) for path in self.paths)
        except OSError:
            return None

    def hash_ahead(self) -> None:
        """Hash a large file on a thread, so that nobody waits for it at the end of an answer."""
        if sum(size for size, _ in self.state) > LARGE:
            threading.Thread(target=self.sha256, name="llm_magic hash", daemon=True).start()


def _state(path: str | os.PathLike[str]) -> tuple[int, int]:
    try:
        stat = Path(path).stat()
    except OSError:
        return (0, 0)
    return stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Origin:
    """What a reply came from.

    Attributes:
        file: The model's file.
        variant: The code that evaluated it: "avx512vnni", "plain", "portable", ...
        exact: Whether the same request has the same bits each time, whatever else runs.
        asked: The request apart from prompt and sampling settings, as JSON; what is usual is left
            out. `llm_magic.asked` writes and reads it.
    """

    file: ModelFile
    variant: str
    exact: bool
    asked: JsonObject = field(default_factory=dict)


@runtime_checkable
class Identified(Protocol):
    """A provider that can say which file and code answer."""

    def origin(self) -> Origin:
        """Of everything that it generates now."""
