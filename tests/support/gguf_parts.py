"""A GGUF file in parts that can be changed one by one and put together again, right or wrong.

The reader trusts its file: it is meant for the files of `toy_gguf`. The writer checks nothing.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


@dataclass(slots=True)
class Entry:
    """One metadata entry. kind: of the value; payload: the value's bytes."""

    key: bytes
    kind: int
    payload: bytes


@dataclass(slots=True)
class Array:
    """The value of an array entry. items: the elements' bytes, those of strings without length."""

    kind: int
    items: list[bytes]

    @classmethod
    def read(cls, payload: bytes) -> "Array":
        kind, count = struct.unpack_from("<IQ", payload)
        if kind != STRING:
            size = SIZES[kind]
            return cls(kind, [payload[12 + size * i :][:size] for i in range(count)])
        items, at = [], 12
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", payload, at)
            items.append(payload[at + 8 : at + 8 + length])
            at += 8 + length
        return cls(kind, items)

    def payload(self) -> bytes:
        items = map(string, self.items) if self.kind == STRING else self.items
        return struct.pack("<IQ", self.kind, len(self.items)) + b"".join(items)


@dataclass(slots=True)
class Tensor:
    """One tensor entry. dims: fastest first; offset: from the start of the data."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass(slots=True)
class Parts:
    """A whole file. data: the bytes of all tensors. n_kv, n_tensors: None: as many as there are."""

    entries: list[Entry]
    tensors: list[Tensor]
    data: bytes
    version: int = 3
    n_kv: int | None = None
    n_tensors: int | None = None

    @classmethod
    def read(cls, path: Path) -> "Parts":
        raw = path.read_bytes()
        version, n_tensors, n_kv = struct.unpack_from("<IQQ", raw, 4)
        at, entries, tensors = 24, [], []
        for _ in range(n_kv):
            key, at = _string(raw, at)
            (kind,) = struct.unpack_from("<I", raw, at)
            end = _value_end(raw, at + 4, kind)
            entries.append(Entry(key, kind, raw[at + 4 : end]))
            at = end
        for _ in range(n_tensors):
            name, at = _string(raw, at)
            (n_dims,) = struct.unpack_from("<I", raw, at)
            *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", raw, at + 4)
            tensors.append(Tensor(name, dims, kind, offset))
            at += 16 + 8 * n_dims
        return cls(entries, tensors, raw[-(-at // 32) * 32 :], version)

    def copy(self) -> "Parts":
        """Parts that can be changed without changing these."""
        return Parts(
            [Entry(e.key, e.kind, e.payload) for e in self.entries],
            [Tensor(t.name, list(t.dims), t.kind, t.offset) for t in self.tensors],
            self.data, self.version, self.n_kv, self.n_tensors,
        )  # fmt: skip

    def header(self) -> bytes:
        """The bytes before the data, without the padding between the two."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.entries) if self.n_kv is None else self.n_kv
        head = b"GGUF" + struct.pack("<IQQ", self.version, n_tensors, n_kv)
        parts = [string(e.key) + struct.pack("<I", e.kind) + e.payload for e in self.entries]
        for t in self.tensors:
            n = len(t.dims)
            parts.append(string(t.name) + struct.pack(f"<I{n}QIQ", n, *t.dims, t.kind, t.offset))
        return head + b"".join(parts)

    def file(self) -> bytes:
        head = self.header()
        return head + bytes(-len(head) % 32) + self.data


def string(data: bytes) -> bytes:
    """The bytes of a string: its length, then its text."""
    return struct.pack("<Q", len(data)) + data


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 8 + struct.unpack_from("<Q", raw, at)[0]
    return raw[at + 8 : end], end


def _value_end(raw: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _string(raw, at)[1]
    if kind != ARRAY:
        return at + SIZES[kind]
    inner, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if inner != STRING:
        return int(at + SIZES[inner] * count)
    for _ in range(count):
        at = _string(raw, at)[1]
    return at
