"""Block types of ggml: their exact float32 values, and the tiles that the kernels compute with.

The values have the bits that ggml's reference code computes (`gguf.quants` is the oracle of the
tests). Each type is one row of `QUANTS`: its sizes, a function that decodes it, the kernels' tile
for it, and, where that is the tile of another type, the function that rewrites the blocks without
changing a value.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c. Types of few bits are in
lowbit.py. Blocks are decoded in runs of `RUN` values, so that temporaries stay in the L2 cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedModelError
from . import lowbit
from .gguf import GGUF, TensorInfo

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

RUN = 1 << 16  # values; 256 KiB of output. 0.15 s for SmolLM2; 4 times slower from 1 << 19 on
LISTED = 40  # names of unsupported tensors per type in an error


@dataclass(frozen=True, slots=True)
class QuantType:
    """A block type.

    Attributes:
        block: Values in a block.
        bytes: Bytes of a block.
        decode: Writes the values [n, block] of blocks [n, bytes].
        tile: The kernels' layout for it, a key of `kernels.layout.KINDS`.
        rewrite: Blocks [n, bytes] as blocks of `tile`, where that is another type; the values stay
            the same bit by bit.
    """

    name: str
    block: int
    bytes: int
    decode: Callable[[U8, F32], None]
    tile: str
    rewrite: Callable[[U8], U8] | None = None


# ----------------------------------------------------------------------------- plain numbers


def _f32(raw: U8, out: F32) -> None:
    out[...] = raw.view("<f4")


def _f16(raw: U8, out: F32) -> None:
    out[...] = raw.view("<f2")


def _bf16(raw: U8, out: F32) -> None:
    np.left_shift(raw.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32)


# ----------------------------------------------------------------------------- blocks of 32


def _half(raw: U8, at: int) -> F32:
    """The float16 at byte `at` of every block, [n, 1]."""
    return lowbit.half(raw, at)[:, None]


def _nibbles(qs: U8, group: int) -> U8:
    """[n, k] -> [n, k / group, 2, group]: the low halves of each group, then the high halves."""
    n, k = qs.shape
    grouped = qs.reshape(n, k // group, 1, group)
    out = np.empty((n, k // group, 2, group), np.uint8)
    np.bitwise_and(grouped, 15, out=out[:, :, :1])
    np.right_shift(grouped, 4, out=out[:, :, 1:])
    return out


def _fives(raw: U8, at: int) -> U8:
    """[n, 32] values of 5 bits: 4 bytes of high bits at `at`, 16 bytes of low halves after them."""
    q = _nibbles(raw[:, at + 4 : at + 20], 16).reshape(-1, 32)
    high = np.unpackbits(raw[:, at : at + 4], axis=1, bitorder="little")
    q |= high << 4
    return q


def _q4_0(raw: U8, out: F32) -> None:
    out[...] = _nibbles(raw[:, 2:], 16).reshape(out.shape)
    out -= 8
    out *= _half(raw, 0)


def _q4_1(raw: U8, out: F32) -> None:
    out[...] = _nibbles(raw[:, 4:], 16).reshape(out.shape)
    out *= _half(raw, 0)
    out += _half(raw, 2)


def _q5_0(raw: U8, out: F32) -> None:
    out[...] = _fives(raw, 2)
    out -= 16
    out *= _half(raw, 0)


def _q5_1(raw: U8, out: F32) -> None:
    out[...] = _fives(raw, 4)
    out *= _half(raw, 0)
    out += _half(raw, 2)


def _q8_0(raw: U8, out: F32) -> None:
    out[...] = raw[:, 2:].view(np.int8)
    out *= _half(raw, 0)


# ----------------------------------------------------------------------------- blocks of 256


def _scales(raw: U8) -> tuple[F32, F32]:
    """Scale and minimum of the eight groups of 32 in Q4_K and Q5_K, [n, 8, 1] each.

    Bytes 0-3: two float16 that scale both; 4-15: eight 6-bit scales and minima. The first four of
    each lie in the low 6 bits of bytes 4-7 and 8-11; of the last four, bytes 12-15 hold the low 4
    bits (scale, minimum) and bytes 4-11 the high 2.
    """
    a, b, c = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    least = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return (_half(raw, 0) * scale)[:, :, None], (_half(raw, 2) * least)[:, :, None]


def _q4_k(raw: U8, out: F32) -> None:
    scale, least = _scales(raw)
    groups = out.reshape(-1, 8, 32)
    groups[...] = _nibbles(raw[:, 16:], 32).reshape(groups.shape)
    groups *= scale
    groups -= least


def _q5_k(raw: U8, out: F32) -> None:
    scale, least = _scales(raw)
    groups = out.reshape(-1, 8, 32)
    q = _nibbles(raw[:, 48:], 32).reshape(groups.shape)
    bits = np.arange(8, dtype=np.uint8)[:, None]  # bit g of byte i belongs to value i of group g
    q |= (raw[:, 16:48][:, None, :] >> bits & 1) << 4
    groups[...] = q
    groups *= scale
    groups -= least


def _q6_k(raw: U8, out: F32) -> None:
    # Two halves of 128 values: 64 bytes of low 4 bits, 32 bytes of high 2 bits, four quarters each.
    n = len(raw)
    low = raw[:, :128].reshape(n, 2, 2, 32)
    q = np.empty((n, 2, 4, 32), np.uint8)
    np.bitwise_and(low, 15, out=q[:, :, :2])
    np.right_shift(low, 4, out=q[:, :, 2:])
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    q |= (raw[:, 128:192].reshape(n, 2, 1, 32) >> shifts & 3) << 4
    scale = _half(raw, 208) * raw[:, 192:208].view(np.int8)
    groups = out.reshape(n, 16, 16)
    groups[...] = q.reshape(groups.shape)
    groups -= 32
    groups *= scale[:, :, None]


# ----------------------------------------------------------------------------- the table


def _native(name: str, block: int, size: int, decode: Callable[[U8, F32], None]) -> QuantType:
    return QuantType(name, block, size, decode, name)


def _scaled(name: str, size: int) -> QuantType:
    """A type of `lowbit.SCALED`: 8.6 bits a weight in the kernels, whatever the file takes."""
    decode = partial(_decode_scaled, name)
    return QuantType(name, 256, size, decode, "SCALED", partial(lowbit.as_scaled, name))


def _ternary(name: str, size: int) -> QuantType:
    """A type of -1, 0 and 1: as Q4_0, 4.5 bits a weight in the kernels."""
    decode = partial(_decode_scaled, name)
    return QuantType(name, 256, size, decode, "Q4_0", partial(lowbit.as_q4_0, name))


def _decode_scaled(name: str, raw: U8, out: F32) -> None:
    lowbit.values(lowbit.SCALED[name](raw), out)


QUANTS: dict[int, QuantType] = {
    0: _native("F32", 1, 4, _f32),
    1: _native("F16", 1, 2, _f16),
    2: _native("Q4_0", 32, 18, _q4_0),
    3: _native("Q4_1", 32, 20, _q4_1),
    6: _native("Q5_0", 32, 22, _q5_0),
    7: _native("Q5_1", 32, 24, _q5_1),
    8: _native("Q8_0", 32, 34, _q8_0),
    10: _native("Q2_K", 256, 84, lowbit.q2_k),
    11: _native("Q3_K", 256, 110, lowbit.q3_k),
    12: _native("Q4_K", 256, 144, _q4_k),
    13: _native("Q5_K", 256, 176, _q5_k),
    14: _native("Q6_K", 256, 210, _q6_k),
    16: _scaled("IQ2_XXS", 66),
    17: _scaled("IQ2_XS", 74),
    18: _scaled("IQ3_XXS", 98),
    19: _scaled("IQ1_S", 50),
    20: _native("IQ4_NL", 32, 18, lowbit.iq4_nl),
    21: _scaled("IQ3_S", 110),
    22: _scaled("IQ2_S", 82),
    23: _native("IQ4_XS", 256, 136, lowbit.iq4_xs),
    29: _scaled("IQ1_M", 56),
    30: _native("BF16", 1, 2, _bf16),
    34: _ternary("TQ1_0", 54),
    35: _ternary("TQ2_0", 66),
    39: _native("MXFP4", 32, 17, lowbit.mxfp4),
    40: QuantType("NVFP4", 64, 36, lowbit.nvfp4, "F16", lowbit.nvfp4_as_f16),
}


def in_tile_blocks(info: TensorInfo) -> tuple[str, U8]:
    """A tensor's data as the kernels' packing reads it: the kind of tile, and its file's blocks.

    Types that have tiles of their own are passed on as they are, the others rewritten.
    """
    quant = QUANTS[info.type]
    data = info.load()
    if quant.rewrite is None:
        return quant.tile, data
    blocks = data.reshape(-1, quant.bytes)
    step = max(1, RUN * 16 // quant.block)
    parts = [quant.rewrite(blocks[i : i + step]) for i in range(0, len(blocks), step)]
    return quant.tile, np.concatenate(parts).reshape(-1)


def check_supported(gguf: GGUF) -> None:
    """Raise UnsupportedModelError naming every tensor whose type has no row in `QUANTS`."""
    unknown: dict[str, list[str]] = {}
    for t in gguf.tensors.values():
        if t.type not in QUANTS:
            unknown.setdefault(t.type_name, []).append(t.name)
    if not unknown:
        return
    parts = []
    for kind, names in unknown.items():
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        parts.append(f"{kind}: {', '.join(name[:80] for name in names[:LISTED])}{more}")
    have = ", ".join(q.name for q in QUANTS.values())
    raise UnsupportedModelError(
        f"{gguf.path.name} has tensors of unsupported types: {'; '.join(parts)}. Supported: {have}"
    )


def dequantize(info: TensorInfo, out: F32 | None = None) -> F32:
    """The exact values of a tensor: float32 of `info.shape`, new or written into `out`.

    out: C-contiguous float32 with as many elements. Memory beyond it stays under a megabyte.
    Raises UnsupportedModelError for a type without a row in `QUANTS`.
    """
    if info.type not in QUANTS:
        raise UnsupportedModelError(f"tensor {info.name} has unsupported type {info.type_name}")
    if out is None:
        out = np.empty(info.shape, np.float32)
    return decode(info.type, info.load(), out.reshape(-1)).reshape(info.shape)


def decode(kind: int, data: npt.NDArray[Any], out: F32 | None = None) -> F32:
    """The values of whole blocks, flat: uint8 [n * bytes] -> float32 [n * block].

    Raises ValueError when `data` ends inside a block or `out` is not flat float32 of that size.
    """
    quant = QUANTS[kind]
    if data.dtype != np.uint8 or data.size % quant.bytes:
        raise ValueError(f"{data.size} bytes are not whole blocks of {quant.name} ({quant.bytes})")
    blocks = data.reshape(-1, quant.bytes)
    if out is None:
        out = np.empty(len(blocks) * quant.block, np.float32)
    if out.dtype != np.float32 or out.shape != (len(blocks) * quant.block,):
        raise ValueError(f"out must be float32 [{len(blocks) * quant.block}]")
    values = out.reshape(-1, quant.block)
    step = RUN // quant.block
    with np.errstate(all="ignore"):  # a damaged scale gives inf or nan, as it does in ggml
        for i in range(0, len(blocks), step):
            quant.decode(blocks[i : i + step], values[i : i + step])
    return out
