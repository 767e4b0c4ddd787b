"""Taps as the table that the C code reads: the rows of each point, and the address of the data.

The rows of TAP are in the order in which a step reaches them, and mirror tap_t in c/taps.h field by
field. A wrong size would read or write outside of an array, so it is refused here.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_magic.errors import EngineError

from ..blocks import Config
from ..forward import CHANGED, F32, POINTS, Change, Read, Taps

READ, ADD, REPLACE = range(3)  # c/taps.h
TAP = np.dtype(
    [(f, "i4") for f in ("layer", "point", "kind", "first", "rows", "column", "columns", "pad")]
    + [("data", "i8"), ("stride", "i8")]
)


def width(config: Config, point: str) -> int:
    """Numbers of one row of a point."""
    return {"q": config.q_dim, "z": config.o_dim, "k": config.kv_dim, "v": config.kv_dim}.get(
        point, config.dim
    )


def table(taps: Taps, config: Config, n_rows: int, head_pad: int) -> npt.NDArray[Any]:
    """The taps of a step of `n_rows` rows, sorted. The arrays must live until the step is done.

    head_pad: Entries of a head in the rows of queries, keys and values.
    """
    rows = [row for change in taps.changes for row in _change(change, config, n_rows)]
    rows += [row for read in taps.reads for row in _read(read, config, n_rows, head_pad)]
    out = np.array(rows, TAP)
    order = np.lexsort((np.arange(len(out)), out["kind"] == READ, out["point"], out["layer"]))
    return np.ascontiguousarray(out[order])


def _read(read: Read, config: Config, n_rows: int, head_pad: int) -> Iterator[tuple[int, ...]]:
    out, wide = read.out, width(config, read.point)
    n = _checked(out, read.point, read.layer, read.first, len(out), config, n_rows)
    if out.shape[1] != wide or not out.flags.writeable:
        raise EngineError(f"a read of {read.point} fills arrays of {wide} columns")
    fixed = (read.layer, POINTS.index(read.point), READ, read.first, n)
    at, stride, head = out.ctypes.data, out.strides[0] // 4, config.head_dim
    if head_pad == head or read.point not in ("q", "k", "v"):
        yield (*fixed, 0, wide, 0, at, stride)
        return
    for h in range(wide // head):
        yield (*fixed, h * head_pad, head, 0, at + 4 * h * head, stride)


def _change(change: Change, config: Config, n_rows: int) -> Iterator[tuple[int, ...]]:
    values = change.values
    if change.point not in CHANGED:
        raise EngineError(f"{change.point} can be read, but not changed")
    n = _checked(values, change.point, change.layer, change.first, change.rows, config, n_rows)
    end = change.column + values.shape[1]
    if len(values) not in (1, n) or not 0 <= change.column <= end <= width(config, change.point):
        raise EngineError(f"the values of a change do not fit the rows of {change.point}")
    stride = values.strides[0] // 4 if len(values) == n > 1 else 0
    kind = ADD if change.add else REPLACE
    at = values.ctypes.data
    yield (change.layer, POINTS.index(change.point), kind, change.first, n, change.column,
           values.shape[1], 0, at, stride)  # fmt: skip


def _checked(
    array: F32, point: str, layer: int, first: int, rows: int, config: Config, n_rows: int
) -> int:
    """The number of rows, after a look at what would reach outside of memory."""
    plain = array.dtype == np.float32 and array.ndim == 2 and array.strides[1] == 4
    if point not in POINTS or not plain or not 0 <= layer < config.n_layers:
        raise EngineError(f"a tap on {point!r} of layer {layer} is outside the model")
    if not 0 <= first <= first + rows <= n_rows:
        raise EngineError("a tap names rows that are not in the step")
    return rows
