"""A GGUF file (or a set of split files) as metadata and memory-mapped tensors.

`GGUF` has a dict of metadata and a dict of `TensorInfo`, whose bytes are views on the mapping, so
opening reads the header only. The file is untrusted: see gguf_fields.py.

Layout (little endian, versions 2 and 3): "GGUF", version u32, tensor count u64, entry count u64;
entries of key, type u32, value; tensor entries of name, n_dims u32, dims u64[n_dims], type u32,
offset u64; padding to `general.alignment` (32); tensor data, offsets counted from there.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import contextlib
import math
import mmap
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import GGUFError, ModelError, ModelNotFoundError
from .gguf_fields import FieldReader, read_value, short

MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
READ = 1 << 26  # bytes of one read call
MAX_ELEMENTS = 2**63  # ggml counts elements in int64
KV_MIN, TENSOR_MIN = 13, 33  # bytes of the shortest possible entry: sizes are checked by them

# Type ids that ggml once had; their sizes are gone with them.
REMOVED_TYPES = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
OLD_FORMATS = (b"ggml", b"lmgg", b"fmgg", b"ggmf", b"tjgg", b"ggjt", b"algg", b"ggla")
SHARD_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.S)


@dataclass(frozen=True, slots=True, eq=False)
class TensorInfo:
    """One tensor. shape: row-major (the last axis is contiguous), the reverse of the file's dims.

    type, type_name: the ggml type, for example 3, "Q4_1". data: uint8 [nbytes], read-only view of
    the file's mapping, valid as long as somebody holds it. offset: of data in `path`, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    type_name: str
    data: npt.NDArray[np.uint8] = field(repr=False)
    offset: int
    nbytes: int
    path: Path
    file: "File | None" = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=object))

    def part(self, first: int, shape: tuple[int, ...]) -> "TensorInfo":
        """Rows of a tensor as a tensor of their own, on the same memory.

        Args:
            first: The first row. Rows have the last axis' length, those of a vector one element.
            shape: Row-major shape of the part: as many elements as the rows it takes.
        """
        width = self.shape[-1] if len(self.shape) > 1 else 1
        bytes_per_row = self.nbytes * width // self.size
        at, nbytes = first * bytes_per_row, math.prod(shape) // width * bytes_per_row
        return replace(
            self,
            shape=shape,
            data=self.data[at : at + nbytes],
            offset=self.offset + at,
            nbytes=nbytes,
        )

    def load(self) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, uint8 [nbytes], read from the file into memory of their own.

        A file that another program shortens meanwhile is an error here; through the mapping
        (`data`) the system would end the process.

        Raises:
            GGUFError: The file has become shorter since it was opened.
        """
        if self.file is None or not hasattr(os, "pread"):
            return np.ascontiguousarray(self.data)
        return self.file.read(self.offset, self.nbytes, self.name)


class File:
    """A model file that stays open beside its mapping, so that parts of it can be read safely."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by `close`)

    def read(self, offset: int, nbytes: int, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of tensor `name`. Raises GGUFError where the file ends before them."""
        out = np.empty(nbytes, np.uint8)
        view, done = out.data, 0
        while done < nbytes:
            n = os.preadv(self._file.fileno(), [view[done : done + READ]], offset + done)
            if not n:
                raise GGUFError(
                    f"{self.path} became shorter while it was read: tensor {name} ends at byte "
                    f"{offset + nbytes:,}, the file at {offset + done:,}. Fetch or copy it again"
                )
            done += n
        return out

    def close(self) -> None:
        self._file.close()


class GGUF:
    """An open model file. Not mutable in meaning: read it from any thread, `close` it once.

    path: the file, or the first of a split set; paths: all files of the set in order.
    metadata: bool, int, float, str; arrays of numbers and bools are read-only numpy arrays, arrays
    of strings are list[str]. A string that is not UTF-8 holds U+FFFD for the wrong bytes; inside
    arrays (token lists) it holds surrogates, and `s.encode("utf-8", "surrogateescape")` gives the
    bytes of the file.
    tensors: by name, in the order of the file(s).
    """

    __slots__ = ("_files", "_maps", "metadata", "nbytes", "path", "paths", "tensors", "version")

    def __init__(
        self,
        paths: tuple[Path, ...],
        version: int,
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
        maps: list[mmap.mmap],
        files: Sequence[File] = (),
    ) -> None:
        self.path, self.paths, self.version = paths[0], paths, version
        self.metadata, self.tensors = metadata, tensors
        self.nbytes = sum(t.nbytes for t in tensors.values())
        self._maps, self._files = maps, files

    @property
    def closed(self) -> bool:
        return not self._maps

    def close(self) -> None:
        """Drop the mapping; `metadata` stays. A tensor view that is still held keeps its file."""
        self.tensors = {}
        maps, self._maps = self._maps, []
        for m in maps:
            with contextlib.suppress(BufferError):  # a view outlives us: the map goes with it
                m.close()
        for file in self._files:
            file.close()

    def __enter__(self) -> "GGUF":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name = self.metadata.get("general.name", self.path.name)
        return f"<GGUF {name!r}: {len(self.tensors)} tensors, {self.nbytes:,} bytes>"


def open_gguf(path: str | os.PathLike[str], *, vocab_only: bool = False) -> GGUF:
    """Open a model file; of a split set, any file opens the whole set.

    vocab_only: accept a file without tensors (a tokenizer alone).
    Raises ModelNotFoundError when the file or another file of its set is missing, GGUFError naming
    the field and its offset when a file is damaged, hostile or not GGUF at all.
    """
    shard = _read_shard(Path(path))
    count = shard.split("split.count", 1)
    shards = [shard] if count <= 1 else list(_read_set(shard, count))
    tensors: dict[str, TensorInfo] = {}
    for part in shards:
        for name, info in part.tensors.items():
            if name in tensors:
                where = f"{tensors[name].path.name} and {part.path.name}"
                raise GGUFError(f"tensor {short(name)} is in two files of the set: {where}")
            tensors[name] = info
    if count > 1:
        total = shards[0].split("split.tensors.count", len(tensors))
        if total != len(tensors):
            raise GGUFError(
                f"{shards[0].path}: split.tensors.count is {total}, "
                f"but the {count} files hold {len(tensors)} tensors"
            )
    if not tensors and not vocab_only:
        raise GGUFError(f"{path}: the file holds no tensors (tensor count at offset 8 is 0)")
    return GGUF(
        tuple(part.path for part in shards),
        shards[0].version,
        shards[0].metadata,
        tensors,
        [part.map for part in shards],
        [part.file for part in shards],
    )


# ----------------------------------------------------------------------------- split sets


@dataclass(frozen=True, slots=True)
class _Shard:
    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    map: mmap.mmap
    file: File

    def split(self, key: str, default: int) -> int:
        value = self.metadata.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise GGUFError(f"{self.path}: {key} is {short(value)}, not a count")
        return value


def _read_set(opened: _Shard, count: int) -> Iterator[_Shard]:
    """All files of the set that `opened` belongs to, in order; each is what its name says."""
    name = SHARD_NAME.fullmatch(opened.path.name)
    if name is None or int(name["count"]) != count:
        raise GGUFError(
            f"{opened.path}: split.count says that it is one of {count} files, so its name must "
            f"end in -0000N-of-{count:05d}.gguf; without that the other files can't be found"
        )
    names = [f"{name['prefix']}-{no + 1:05d}-of-{count:05d}.gguf" for no in range(count)]
    missing = [n for n in names if not (opened.path.parent / n).exists()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ModelNotFoundError(
            f"{opened.path} is one of {count} files of a model; "
            f"missing beside it: {', '.join(missing[:5])}{more}"
        )
    for no, n in enumerate(names):
        shard = opened if n == opened.path.name else _read_shard(opened.path.parent / n)
        if shard.split("split.count", 0) != count or shard.split("split.no", -1) != no:
            raise GGUFError(
                f"{shard.path}: the name says file {no + 1} of {count}, but split.no is "
                f"{short(shard.metadata.get('split.no'))} (counted from 0) and split.count is "
                f"{short(shard.metadata.get('split.count'))}: files of a set were renamed or mixed"
            )
        yield shard


# ----------------------------------------------------------------------------- one file


def _map(path: Path) -> mmap.mmap:
    try:
        mode = os.stat(path).st_mode  # before open(): opening a pipe would block
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise GGUFError(f"{path} is {kind}, not a GGUF file")
        with open(path, "rb") as f:
            if os.fstat(f.fileno()).st_size == 0:
                raise GGUFError(f"{path}: the file is empty")
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"no such file: {path}") from None
    except OSError as e:
        raise ModelError(f"{path} can't be read: {e.strerror or e}") from e


def _read_shard(path: Path) -> _Shard:
    buf = _map(path)
    r = FieldReader(buf, path)
    _check_magic(r)
    version = _check_version(r)
    n_tensors = r.count("tensor count", TENSOR_MIN)
    n_kv = r.count("metadata entry count", KV_MIN)
    metadata: dict[str, Any] = {}
    alignment = DEFAULT_ALIGNMENT
    for i in range(n_kv):
        at = r.pos
        key = r.name(f"key of metadata entry {i}")
        if key in metadata:
            r.fail(f"key of metadata entry {i}", f"{short(key)} occurs twice", at)
        at = r.pos
        metadata[key] = read_value(r, key)
        if key == "general.alignment":
            alignment = _alignment(r, metadata[key], at)
    entries = [_tensor_entry(r, i) for i in range(n_tensors)]
    placed = _place(r, entries, alignment)
    try:
        file = File(path)
    except OSError as e:
        raise ModelError(f"{path} can't be read: {e.strerror or e}") from e
    tensors = {name: replace(info, file=file) for name, info in placed.items()}
    return _Shard(path, version, metadata, tensors, buf, file)


def _check_magic(r: "FieldReader") -> None:
    magic = bytes(r.buf[:4])
    if magic == b"GGUF":
        r.pos = 4
        return
    head = bytes(r.buf[:64])
    if head.startswith(b"version https://git-lfs"):
        why = "it is a Git LFS pointer; fetch the real file with `git lfs pull`"
    elif magic in OLD_FORMATS:
        why = f"it is the old format {magic.decode()!r} from before GGUF; convert it again"
    elif head.lstrip()[:1] == b"<":
        why = "it looks like a web page, so the download got an error page"
    elif head[8:9] == b"{":
        why = "it looks like safetensors; this engine reads GGUF"
    else:
        why = f"it begins with {magic!r}"
    r.fail("magic", f"not a GGUF file: {why}", 0)


def _check_version(r: "FieldReader") -> int:
    version = r.u32("version")
    if version & 0xFFFF == 0 and version:
        r.fail("version", "big-endian file; only little-endian files are supported", 4)
    if version not in (2, 3):
        r.fail("version", f"version {version} is not supported, versions 2 and 3 are", 4)
    return version


def _alignment(r: "FieldReader", value: object, at: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
        r.fail("general.alignment", f"{short(value)} is not a power of two", at)
    return value


# ----------------------------------------------------------------------------- tensors


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    nbytes: int
    offset: int  # from the start of the data
    at: int  # of this entry in the file


def _tensor_entry(r: "FieldReader", i: int) -> _Entry:
    at = r.pos
    name = r.name(f"name of tensor {i}")
    what = short(name)
    n_dims = r.u32(f"n_dims of tensor {what}")
    if not 1 <= n_dims <= MAX_DIMS:
        r.fail(f"n_dims of tensor {what}", f"{n_dims} is outside 1..{MAX_DIMS}", r.pos - 4)
    at_dims = r.pos
    dims = [r.u64(f"dim {d} of tensor {what}") for d in range(n_dims)]
    elements = 1
    for d, n in enumerate(dims):
        elements *= n
        if n == 0 or elements >= MAX_ELEMENTS:
            why = "is 0" if n == 0 else f"is {n}: {elements} elements are more than a file can hold"
            r.fail(f"dim {d} of tensor {what}", why, at_dims + 8 * d)
    kind = _type(r, what)
    block, size = GGML_QUANT_SIZES[kind]
    if dims[0] % block:
        why = f"{dims[0]} is not a multiple of the {block} values in a block of {kind.name}"
        r.fail(f"dim 0 of tensor {what}", why, at_dims)
    offset = r.u64(f"offset of tensor {what}")
    return _Entry(name, tuple(reversed(dims)), kind, elements // block * size, offset, at)


def _type(r: "FieldReader", what: str) -> GGMLQuantizationType:
    kind = r.u32(f"type of tensor {what}")
    try:
        return GGMLQuantizationType(kind)
    except ValueError:
        removed = REMOVED_TYPES.get(kind)
        why = (
            f"type {removed} ({kind}) was removed from ggml" if removed else f"unknown type {kind}"
        )
        r.fail(f"type of tensor {what}", why, r.pos - 4)


def _place(r: "FieldReader", entries: list[_Entry], alignment: int) -> dict[str, TensorInfo]:
    """Tensors on their bytes, which exist, are aligned and belong to no other tensor."""
    if not entries:
        return {}
    start = -(-r.pos // alignment) * alignment
    end = 0  # of the tensor before, relative to start
    for e in sorted(entries, key=lambda e: e.offset):
        what = short(e.name)
        if e.offset % alignment:
            r.fail(f"offset of tensor {what}", f"{e.offset} is not a multiple of {alignment}", e.at)
        if e.offset < end:
            r.fail(f"offset of tensor {what}", f"{e.offset} overlaps the tensor before", e.at)
        end = e.offset + e.nbytes
        if start + end > r.end:
            r.fail(
                f"data of tensor {what}",
                f"ends at byte {start + end}, the file has {r.end}: it is incomplete or damaged",
                start + e.offset,
            )
    out: dict[str, TensorInfo] = {}
    for e in entries:
        if e.name in out:
            r.fail("name of tensor", f"{short(e.name)} occurs twice", e.at)
        at = start + e.offset
        data = np.frombuffer(r.buf, np.uint8, e.nbytes, at)
        kind = e.type
        out[e.name] = TensorInfo(e.name, e.shape, int(kind), kind.name, data, at, e.nbytes, r.path)
    return out


# ----------------------------------------------------------------------------- fields
