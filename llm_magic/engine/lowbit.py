"""Block types of few bits: codebooks, ternary values and 4-bit floats as integers with scales.

Every value of such a block is `unit * scale * q`: a float32 unit, a small integer scale for each 16
values, and an integer q in one byte. The products are exact in float32, so the order in which they
are taken does not matter: the values have the bits that ggml computes.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-quants.c. The codebooks of the IQ
types are tables of numbers that the package `gguf` carries; they are read from there when the first
block of such a type is decoded.
"""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
F32 = npt.NDArray[np.float32]
Ints = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]

SUPER = 256  # values of a super-block
SCALED_BYTES = 276  # of a super-block in the form of `scaled_blocks`


class Scaled(NamedTuple):
    """Super-blocks as integers: value i of block b is unit[b] * scale[b, i // 16] * q[b, i]."""

    unit: F32  # [n]
    scale: I8  # [n, 16]
    q: I8  # [n, 256]


def values(block: Scaled, out: F32) -> None:
    """Write the float32 values [n, 256]."""
    scale = block.unit[:, None] * block.scale  # [n, 16]
    out.reshape(-1, 16, 16)[...] = block.q.reshape(-1, 16, 16)
    out.reshape(-1, 16, 16)[...] *= scale[:, :, None]


def scaled_blocks(block: Scaled) -> U8:
    """Super-blocks as bytes [n, 276]: unit float32, 16 scales, 256 integers."""
    unit = np.ascontiguousarray(block.unit, "<f4").view(np.uint8).reshape(-1, 4)
    return np.concatenate([unit, block.scale.view(np.uint8), block.q.view(np.uint8)], axis=1)


# ----------------------------------------------------------------------------- parts of blocks


def half(raw: U8, at: int) -> F32:
    """The float16 at byte `at` of every block, [n]."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view("<f2").astype(np.float32)[:, 0]


def _words(raw: U8, kind: str) -> npt.NDArray[np.uint16]:
    """Bytes [n, k] as little-endian numbers of `kind`, "<u2" or "<u4"."""
    return np.ascontiguousarray(raw).view(kind)


def _pairs(raw: U8) -> U8:
    """Low and high nibble of each byte, one after the other: [n, k] -> [n, 2 k]."""
    return np.stack([raw & 15, raw >> 4], axis=-1).reshape(len(raw), -1)


def _bits(raw: U8) -> U8:
    """[n, k] bytes -> [n, 8 k] bits, the lowest first."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def _quarters(raw: U8) -> U8:
    """Two-bit numbers of groups of 32 bytes [n, 32 k]: [n, 128 k], all lowest pairs first."""
    n, k = raw.shape
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return (raw.reshape(n, k // 32, 1, 32) >> shifts & np.uint8(3)).reshape(n, -1)


def _signed(magnitude: I8, negative: U8) -> I8:
    """The numbers with a minus where `negative` is 1; both have as many entries."""
    sign = negative.reshape(magnitude.shape).astype(np.int8)
    return (magnitude ^ -sign) + sign


def _odd(scale: Ints) -> I8:
    return (2 * scale.astype(np.int8) + 1).astype(np.int8)


@functools.cache
def _codebook(kind: str) -> I8:
    """The grid of an IQ type: int8 [entries, 4 or 8]."""
    from gguf import quants

    table = getattr(quants, kind)
    table.init_grid()
    return np.asarray(table.grid).reshape(table.grid_shape).astype(np.int8)


@functools.cache
def _even_signs() -> U8:
    """Signs of eight values by seven bits [128, 8]: the eighth makes the number of minuses even."""
    seven = _bits(np.arange(128, dtype=np.uint8)[:, None])
    seven[:, 7] = seven.sum(axis=1) & 1
    return seven


# ----------------------------------------------------------------------------- codebooks of 2 bits


def _iq2_xxs(raw: U8) -> Scaled:
    # 32 values: four bytes that name rows of the grid, then 4 x 7 bits of signs and 4 of scale.
    words = _words(raw[:, 2:], "<u4").reshape(len(raw), 8, 2)
    signs = _even_signs()[words[..., 1:] >> np.arange(0, 28, 7, dtype=np.uint32) & 127]
    rows = raw[:, 2:].reshape(len(raw), 8, 8)[..., :4]
    q = _signed(_codebook("IQ2_XXS")[rows], signs)
    scale = np.repeat(_odd((words[..., 1] >> 28).astype(np.uint8)), 2, axis=1)
    return Scaled(half(raw, 0) * np.float32(0.125), scale, q.reshape(-1, SUPER))


def _iq2_xs(raw: U8) -> Scaled:
    words = _words(raw[:, 2:66], "<u2")  # 9 bits: a row of the grid, 7: signs
    q = _signed(_codebook("IQ2_XS")[words & 511], _even_signs()[words >> 9])
    return Scaled(half(raw, 0) * np.float32(0.125), _odd(_pairs(raw[:, 66:])), q.reshape(-1, 256))


def _iq2_s(raw: U8) -> Scaled:
    high = raw[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    rows = raw[:, 2:34] | high.reshape(len(raw), -1).astype(np.uint16) << 8
    q = _signed(_codebook("IQ2_S")[rows].reshape(-1, SUPER), _bits(raw[:, 34:66]))
    return Scaled(half(raw, 0) * np.float32(0.125), _odd(_pairs(raw[:, 74:])), q)


# ----------------------------------------------------------------------------- codebooks of 3 bits


def _iq3_xxs(raw: U8) -> Scaled:
    words = _words(raw[:, 66:], "<u4")
    signs = _even_signs()[words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127]
    q = _signed(_codebook("IQ3_XXS")[raw[:, 2:66]].reshape(-1, SUPER), signs)
    scale = np.repeat(_odd((words >> 28).astype(np.uint8)), 2, axis=1)
    return Scaled(half(raw, 0) * np.float32(0.25), scale, q)


def _iq3_s(raw: U8) -> Scaled:
    rows = raw[:, 2:66] | _bits(raw[:, 66:74]).astype(np.uint16) << 8
    q = _signed(_codebook("IQ3_S")[rows].reshape(-1, SUPER), _bits(raw[:, 74:106]))
    return Scaled(half(raw, 0), np.repeat(_odd(_pairs(raw[:, 106:])), 2, axis=1), q)


# ----------------------------------------------------------------------------- below 2 bits


def _shifted(rows: npt.NDArray[np.integer], minus: npt.NDArray[np.bool_]) -> I8:
    """Grid values -1, 0, 1 plus or minus one eighth, in eighths: [..., 8]."""
    grid: I8 = _codebook("IQ1_S")[rows] * np.int8(8)
    eighth: I8 = np.where(minus, np.int8(-1), np.int8(1))[..., None]
    return grid + eighth


def _iq1_s(raw: U8) -> Scaled:
    high = _words(raw[:, 34:], "<u2")  # of 32 values: 4 x 3 bits of rows, 3 of scale, the sign
    more = (high[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7) << 8
    rows = raw[:, 2:34].reshape(-1, 8, 4) | more
    q = _shifted(rows, np.repeat(high >> 15 == 1, 4, axis=1).reshape(-1, 8, 4))
    scale = np.repeat(_odd((high >> 12 & 7).astype(np.uint8)), 2, axis=1)
    return Scaled(half(raw, 0) * np.float32(0.125), scale, q.reshape(-1, SUPER))


def _iq1_m(raw: U8) -> Scaled:
    # Four words of 4 x 3 bits of scales; their highest four bits are together the float16 unit.
    words = _words(raw[:, 48:], "<u2")
    unit = np.bitwise_or.reduce((words >> 12) << np.arange(0, 16, 4, dtype=np.uint16), axis=1)
    three = words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7
    high = _pairs(raw[:, 32:48])
    rows = raw[:, :32] | (high & 7).astype(np.uint16) << 8
    q = _shifted(rows, high & 8 != 0)
    f32 = unit.astype("<u2").view("<f2").astype(np.float32) * np.float32(0.125)
    return Scaled(f32, _odd(three.reshape(-1, 16).astype(np.uint8)), q.reshape(-1, SUPER))


_PLAIN = np.ones(16, np.int8)


def _tq1_0(raw: U8) -> Scaled:
    # Five (four in the last bytes) ternary digits a byte, as a fraction: times 3, over 256.
    def digits(part: U8, count: int) -> U8:
        powers = (3 ** np.arange(count)).astype(np.uint8)[:, None]
        return (part[:, None, :] * powers).reshape(len(part), -1)

    parts = (digits(raw[:, :32], 5), digits(raw[:, 32:48], 5), digits(raw[:, 48:52], 4))
    q = (np.concatenate(parts, axis=1).astype(np.uint16) * 3 >> 8).astype(np.int8) - np.int8(1)
    return Scaled(half(raw, 52), np.broadcast_to(_PLAIN, (len(raw), 16)), q)


def _tq2_0(raw: U8) -> Scaled:
    q = _quarters(raw[:, :64]).astype(np.int8) - np.int8(1)
    return Scaled(half(raw, 64), np.broadcast_to(_PLAIN, (len(raw), 16)), q)


SCALED = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}


# ----------------------------------------------------------------------------- 2 to 4 bits


def q2_k(raw: U8, out: F32) -> None:
    """16 groups of 16: a 4-bit scale and a 4-bit minimum each, values of 2 bits."""
    groups = out.reshape(-1, 16, 16)
    groups[...] = _quarters(raw[:, 16:80]).reshape(groups.shape)
    groups *= (half(raw, 80)[:, None] * (raw[:, :16] & 15))[:, :, None]
    groups -= (half(raw, 82)[:, None] * (raw[:, :16] >> 4))[:, :, None]


def q3_k(raw: U8, out: F32) -> None:
    """16 groups of 16 with a 6-bit scale each; values of 3 bits, whose highest lies apart."""
    n = len(raw)
    high = (raw[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1).reshape(n, -1)
    q = (_quarters(raw[:, 32:96]) | high << 2).astype(np.int8) - np.int8(4)
    low = np.concatenate([raw[:, 96:104] & 15, raw[:, 96:104] >> 4], axis=1)
    two = raw[:, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scale = (low | two.reshape(n, 16) << 4).astype(np.int8) - np.int8(32)
    values(Scaled(half(raw, 108), scale, q), out)


# The 16 values of IQ4_NL and IQ4_XS (ggml's kvalues_iq4nl), and of 4-bit floats (E2M1) doubled.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def _nibbles(raw: U8, group: int) -> U8:
    """[n, k] -> [n, k / group, 2 * group]: low halves of each group of bytes, then high halves."""
    parts = raw.reshape(len(raw), -1, group)
    return np.concatenate([parts & 15, parts >> 4], axis=2)


def iq4_nl(raw: U8, out: F32) -> None:
    out[...] = IQ4[_nibbles(raw[:, 2:], 16).reshape(out.shape)]
    out *= half(raw, 0)[:, None]


def iq4_xs(raw: U8, out: F32) -> None:
    high = _words(raw[:, 2:4], "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = (_pairs(raw[:, 4:8]) | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    groups = out.reshape(-1, 8, 32)
    groups[...] = IQ4[_nibbles(raw[:, 8:], 16)]
    groups *= (half(raw, 0)[:, None] * scale)[:, :, None]


def mxfp4(raw: U8, out: F32) -> None:
    """32 values of E2M1 with a common exponent (OCP Microscaling Formats 1.0)."""
    e = raw[:, 0].astype(np.uint32)
    # Half of 2^(e - 127), since the values are doubled: subnormal for e = 0 and 1.
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - 1) << np.uint32(23))
    out[...] = E2M1[_nibbles(raw[:, 1:], 16).reshape(out.shape)]
    out *= bits.astype(np.uint32).view(np.float32)[:, None]


def nvfp4(raw: U8, out: F32) -> None:
    """Four groups of 16 values of E2M1, each with a scale in unsigned E4M3."""
    exponent, fraction = raw[:, :4] >> 3 & 15, (raw[:, :4] & 7).astype(np.float32)
    normal = np.ldexp(1 + fraction / 8, exponent.astype(np.int32) - 7)
    scale = np.where(exponent == 0, np.ldexp(fraction, -9), normal).astype(np.float32)
    scale[(raw[:, :4] == 0) | (raw[:, :4] == 0x7F)] = 0  # 0x7F: not a number, taken as 0 by ggml
    groups = out.reshape(-1, 4, 16)
    groups[...] = E2M1[_nibbles(raw[:, 4:], 8)]
    groups *= (scale * np.float32(0.5))[:, :, None]


# ----------------------------------------------------------------------------- kernel routes


def as_scaled(kind: str, raw: U8) -> U8:
    """Blocks of a type of `SCALED` in the kernels' form of scaled bytes, [n, 276]."""
    return scaled_blocks(SCALED[kind](raw))


def as_q4_0(kind: str, raw: U8) -> U8:
    """Ternary super-blocks as eight blocks of Q4_0 each: -1, 0, 1 are its 7, 8, 9."""
    block = SCALED[kind](raw)
    q = (block.q.reshape(-1, 8, 2, 16) + np.int8(8)).astype(np.uint8)
    out = np.empty((len(raw), 8, 18), np.uint8)
    out[:, :, :2] = raw[:, None, -2:]
    out[:, :, 2:] = q[:, :, 0] | q[:, :, 1] << 4
    return out.reshape(-1, 18)


def nvfp4_as_f16(raw: U8) -> U8:
    """Values of NVFP4 as float16: at most six bits and exponents within its range, so exact."""
    out = np.empty((len(raw), 64), np.float32)
    nvfp4(raw, out)
    return out.astype("<f2").view(np.uint8)
