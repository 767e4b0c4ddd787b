"""A sequence of many strings in one block of memory.

262,144 Python strings and a dictionary of them take 41 MB; this takes 4.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np


class Texts(Sequence[str]):
    """Immutable. Lone surrogates are allowed. Finding a text by its content reads all of them."""

    __slots__ = ("_data", "_ends")

    def __init__(self, texts: Sequence[str]) -> None:
        self._data = "".join(texts).encode("utf-8", "surrogatepass")
        ends = np.zeros(len(texts) + 1, np.int64)  # in characters
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=ends[1:])
        # Every byte but the continuations (10xxxxxx) begins a character.
        begins = np.flatnonzero((np.frombuffer(self._data, np.uint8) & 0xC0) != 0x80)
        self._ends = array(
            "Q", np.append(begins, len(self._data))[ends].astype(np.uint64).tobytes()
        )

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        return self._data[self._ends[i] : self._ends[i + 1]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))
