"""The fields of a GGUF file, read in order and never past its end.

The file is untrusted: every size is compared with the bytes that remain before anything is read or
allocated, and an error names the field and its offset.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError

MAX_NAME = 65535  # the specification's limit for keys


MAX_STRING = 2**28  # far above any template


MAX_ARRAY = 2**24  # far above any vocabulary


_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


_BOOL, _STRING, _ARRAY = 7, 8, 9


_NUMBERS = (0, "u1"), (1, "i1"), (2, "u2"), (3, "i2"), (4, "u4"), (5, "i4"), (6, "f4")


_NUMBERS_64 = (10, "u8"), (11, "i8"), (12, "f8")


_DTYPES = {kind: np.dtype("<" + code) for kind, code in _NUMBERS + _NUMBERS_64}


def read_value(r: "FieldReader", key: str) -> Any:
    field = f"value of {short(key)}"
    kind = r.u32(f"type of {short(key)}")
    if kind == _STRING:
        return r.string(field).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(r, key)
    return _numbers(r, field, kind, 1)[0].item()


def _array(r: "FieldReader", key: str) -> Any:
    at = r.pos
    kind = r.u32(f"element type of {short(key)}")
    field = f"length of array {short(key)}"
    if kind == _ARRAY:
        r.fail(f"element type of {short(key)}", "arrays of arrays are not supported", at)
    count = r.count(field, 8 if kind == _STRING else 1)
    if count > MAX_ARRAY:
        r.fail(field, f"{count} is more than {MAX_ARRAY}", r.pos - 8)
    if kind == _STRING:
        return r.strings(f"element of {short(key)}", count)
    out = _numbers(r, field, kind, count)
    out.setflags(write=False)
    return out


def _numbers(r: "FieldReader", field: str, kind: int, count: int) -> npt.NDArray[Any]:
    """A copy of `count` numbers or bools of one type."""
    dtype = np.dtype(np.uint8) if kind == _BOOL else _DTYPES.get(kind)
    if dtype is None:
        r.fail(f"type in {field}", f"unknown value type {kind}", r.pos)
    at = r.take(field, count * dtype.itemsize)
    out = np.frombuffer(r.buf, dtype, count, at).astype(dtype.newbyteorder("="))
    if kind != _BOOL:
        return out
    if count and out.max() > 1:
        r.fail(field, f"a bool is {out.max()}, not 0 or 1", at)
    return out.astype(np.bool_)


class FieldReader:
    """Fields in file order. `take` is the only way forward, and it never passes the end."""

    __slots__ = ("buf", "end", "path", "pos")

    def __init__(self, buf: mmap.mmap, path: Path) -> None:
        self.buf, self.path = buf, path
        self.pos, self.end = 0, len(buf)

    def fail(self, field: str, message: str, at: int) -> NoReturn:
        raise GGUFError(f"{self.path}: {field}, at offset {at}: {message}")

    def take(self, field: str, n: int) -> int:
        """The position of the next n bytes, which exist."""
        at = self.pos
        if n > self.end - at:
            self.fail(field, f"needs {n} bytes, {self.end - at} are left", at)
        self.pos = at + n
        return at

    def u32(self, field: str) -> int:
        value: int = _U32.unpack_from(self.buf, self.take(field, 4))[0]
        return value

    def u64(self, field: str) -> int:
        value: int = _U64.unpack_from(self.buf, self.take(field, 8))[0]
        return value

    def count(self, field: str, least: int) -> int:
        """A u64 that counts things of at least `least` bytes each, all of them still to come."""
        at = self.pos
        n = self.u64(field)
        if n * least > self.end - self.pos:
            self.fail(field, f"{n} can't fit in the {self.end - self.pos} bytes that are left", at)
        return n

    def string(self, field: str, most: int = MAX_STRING) -> bytes:
        n = self.u64(f"length of {field}")
        if n > most:
            self.fail(f"length of {field}", f"{n} is more than {most}", self.pos - 8)
        at = self.take(field, n)
        return self.buf[at : at + n]

    def name(self, field: str) -> str:
        at = self.pos
        data = self.string(field, MAX_NAME)
        if not data:
            self.fail(field, "is empty", at)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, f"{short(data)} is not UTF-8", at)

    def strings(self, field: str, count: int) -> list[str]:
        """`count` strings. One flat loop: vocabularies have up to 262k of them, merges 500k."""
        buf, pos, end, length = self.buf, self.pos, self.end, _U64.unpack_from
        out: list[str] = []
        for i in range(count):
            start = pos + 8
            stop = start + length(buf, pos)[0] if start <= end else end + 1
            if stop > end:
                self.fail(f"{field} {i}", f"reaches past the end of the file ({end} bytes)", pos)
            out.append(str(buf[start:stop], "utf-8", "surrogateescape"))
            pos = stop
        self.pos = pos
        return out


def short(value: object) -> str:
    """A value from the file for a message: bounded, and with nothing that a terminal obeys."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."
