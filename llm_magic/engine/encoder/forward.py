"""An encoder's forward pass in float32 on the CPU, one text at a time.

A text is evaluated alone, so its vectors have the same bits whatever other texts come with it: the
products have the same shapes, and numpy's matrix product gives the same bits for the same shapes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from llm_magic.errors import GGUFError, UnsupportedModelError

from ..forward import F32
from ..gguf import GGUF
from ..quants import dequantize
from .config import EncoderConfig

Say = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Affine:
    """x @ weight.T + bias; weight is kept transposed, [inputs, outputs]."""

    weight: F32
    bias: F32 | None

    def __call__(self, x: F32) -> F32:
        y = x @ self.weight
        if self.bias is not None:
            y += self.bias
        return y


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, along the last axis."""

    weight: F32
    bias: F32
    eps: float

    def __call__(self, x: F32) -> F32:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        out: F32 = centred / np.sqrt(variance + np.float32(self.eps)) * self.weight + self.bias
        return out


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of one layer. gate: None where the feed-forward part has none."""

    qkv: Affine
    output: Affine
    attention_norm: LayerNorm
    gate: Affine | None
    up: Affine
    down: Affine
    output_norm: LayerNorm


@dataclass(frozen=True, slots=True)
class RankHead:
    """What makes a score of the first token's vector. dense: None where the file has only one."""

    dense: Affine | None
    out: Affine


class EncoderForward:
    """An encoder in memory. Methods may be called from any thread: nothing is changed by them."""

    def __init__(self, gguf: GGUF, config: EncoderConfig, on_progress: Say | None = None) -> None:
        """Read the weights as float32.

        Raises:
            GGUFError: A tensor is missing or has another shape than the metadata says.
            UnsupportedModelError: The file has tensors that this computation does not use.
        """
        self.config = config
        read = _Reader(gguf, config, on_progress or (lambda stage, done, total: None))
        self._tokens = read.matrix("token_embd.weight", None, config.dim)
        self._types = read.optional("token_types.weight", config.dim)
        self._positions = None
        if not config.kind.rope:
            self._positions = read.matrix("position_embd.weight", None, config.dim)
        self._norm = read.norm("token_embd_norm")
        self._layers = [read.layer(i) for i in range(config.n_layers)]
        self.rank = read.rank_head()
        read.finish()
        self.n_ctx = config.n_ctx
        if self._positions is not None:
            self.n_ctx = min(config.n_ctx, len(self._positions))
        self.n_vocab = len(self._tokens)
        self.memory_bytes = read.nbytes

    def encode(self, ids: npt.NDArray[np.int64], second: int | None = None) -> F32:
        """The last layer's vectors of a text's tokens, float32 [tokens, dim].

        Args:
            ids: Token ids, [tokens], at most `n_ctx`.
            second: Where a second text begins, which the model tells apart from the first.
        """
        x = self._tokens[ids]
        if self._types is not None:
            segments = np.zeros(len(ids), np.int64)
            if second is not None and len(self._types) > 1:
                segments[second:] = 1
            x = x + self._types[segments]
        turn = None
        if self._positions is not None:
            x = x + self._positions[: len(ids)]
        else:
            turn = self._angles(len(ids))
        x = self._norm(x)
        for layer in self._layers:
            x = layer.attention_norm(x + layer.output(self._attention(layer, x, turn)))
            h = layer.up(x)
            h = gelu(h) if layer.gate is None else h * _silu(layer.gate(x))
            x = layer.output_norm(x + layer.down(h))
        return x

    def score(self, ids: npt.NDArray[np.int64], second: int) -> float:
        """How well a pair fits, from the head of a model that was trained for reranking."""
        if self.rank is None:
            raise UnsupportedModelError("the file has no rank head (cls.output.weight)")
        first = self.encode(ids, second)[:1]
        if self.rank.dense is not None:
            first = np.tanh(self.rank.dense(first))
        return float(self.rank.out(first)[0, 0])

    def _attention(self, layer: Layer, x: F32, turn: tuple[F32, F32] | None) -> F32:
        heads, size = self.config.n_heads, self.config.head_dim
        q, k, v = layer.qkv(x).reshape(len(x), 3, heads, size).transpose(1, 2, 0, 3)
        if turn is not None:
            q, k = _turned(q, *turn), _turned(k, *turn)
        scores = (q @ k.transpose(0, 2, 1)) * np.float32(size**-0.5)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ v).transpose(1, 0, 2).reshape(len(x), heads * size)
        return cast("F32", mixed)

    def _angles(self, n: int) -> tuple[F32, F32]:
        """Cosines and sines of the rotary angles, float32 [n, head_dim / 2]."""
        size = self.config.head_dim
        freq = self.config.rope_base ** (-np.arange(0, size, 2, dtype=np.float64) / size)
        angles = np.arange(n, dtype=np.float64)[:, None] * freq
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class _Reader:
    """Reads tensors by name, checks their shapes and remembers which were read."""

    def __init__(self, gguf: GGUF, config: EncoderConfig, say: Say) -> None:
        self._gguf, self._config, self._say = gguf, config, say
        self._read: set[str] = set()
        self.nbytes = 0

    def tensor(self, name: str, *shape: int | None) -> F32:
        info = self._gguf.tensors.get(name)
        if info is None:
            raise GGUFError(f"the file lacks {name}")
        if len(info.shape) != len(shape) or any(
            want is not None and want != have for want, have in zip(shape, info.shape, strict=True)
        ):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            raise GGUFError(f"tensor {name} has shape {list(info.shape)}, expected [{wanted}]")
        self._read.add(name)
        self._say("load", len(self._read), len(self._gguf.tensors))
        values = dequantize(info)
        self.nbytes += values.nbytes
        return values

    def matrix(self, name: str, rows: int | None, columns: int) -> F32:
        return self.tensor(name, rows, columns)

    def optional(self, name: str, columns: int) -> F32 | None:
        if name not in self._gguf.tensors:
            return None
        if len(self._gguf.tensors[name].shape) == 1:  # one row is written as a vector
            return self.tensor(name, columns)[None]
        return self.tensor(name, None, columns)

    def affine(self, name: str, rows: int, columns: int) -> Affine:
        weight = self.matrix(f"{name}.weight", rows, columns)
        bias = self.tensor(f"{name}.bias", rows) if f"{name}.bias" in self._gguf.tensors else None
        return Affine(np.ascontiguousarray(weight.T), bias)

    def norm(self, name: str) -> LayerNorm:
        dim = self._config.dim
        weight, bias = self.tensor(f"{name}.weight", dim), self.tensor(f"{name}.bias", dim)
        return LayerNorm(weight, bias, self._config.eps)

    def layer(self, i: int) -> Layer:
        c, at = self._config, f"blk.{i}"
        if f"{at}.attn_qkv.weight" in self._gguf.tensors:
            qkv = self.affine(f"{at}.attn_qkv", 3 * c.dim, c.dim)
        else:
            parts = [self.affine(f"{at}.attn_{role}", c.dim, c.dim) for role in "qkv"]
            qkv = _beside(parts)
        return Layer(
            qkv=qkv,
            output=self.affine(f"{at}.attn_output", c.dim, c.dim),
            attention_norm=self.norm(f"{at}.attn_output_norm"),
            gate=self.affine(f"{at}.ffn_gate", c.n_ff, c.dim) if c.kind.gated else None,
            up=self.affine(f"{at}.ffn_up", c.n_ff, c.dim),
            down=self.affine(f"{at}.ffn_down", c.dim, c.n_ff),
            output_norm=self.norm(f"{at}.layer_output_norm"),
        )

    def rank_head(self) -> RankHead | None:
        tensors, dim = self._gguf.tensors, self._config.dim
        if "cls.output.weight" in tensors:
            dense = self.affine("cls", dim, dim) if "cls.weight" in tensors else None
            return RankHead(dense, self.affine("cls.output", 1, dim))
        if "cls.weight" in tensors:
            return RankHead(None, self.affine("cls", 1, dim))
        return None

    def finish(self) -> None:
        """Refuse what was not read: an unused weight is a computation that is not known."""
        if left := sorted(set(self._gguf.tensors) - self._read):
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise UnsupportedModelError(
                f"unsupported tensors in this {self._config.architecture} model: "
                f"{', '.join(name[:80] for name in left[:5])}{more}"
            )


def _beside(parts: list[Affine]) -> Affine:
    """Several products of the same input as one."""
    weight = np.concatenate([part.weight for part in parts], axis=1)
    if all(part.bias is None for part in parts):
        return Affine(weight, None)
    zeros = (np.zeros(part.weight.shape[1], np.float32) for part in parts)
    biases = [z if p.bias is None else p.bias for z, p in zip(zeros, parts, strict=True)]
    return Affine(weight, np.concatenate(biases))


def _turned(x: F32, cos: F32, sin: F32) -> F32:
    """Rotary positions: entry i turns with entry i + size / 2. x: [heads, tokens, size]."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _silu(x: F32) -> F32:
    with np.errstate(over="ignore"):
        y: F32 = x / (1 + np.exp(-x))
    return y


# erf(x) = x * P(x*x) / Q(x*x) for |x| <= 4, within 4 units in the last place of float32. The
# coefficients are those of Eigen's `generic_fast_erf_float` (unsupported/Eigen, MPL-2.0).
_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_Q = (
    *(-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03),
    *(-7.37332916720468e-03, -1.42647390514189e-02),
)


def erf(x: F32) -> F32:
    """The error function of float32 values, within 1e-6.

    >>> round(float(erf(np.array([1.0], np.float32))[0]), 4)
    0.8427
    """
    x = np.clip(x, np.float32(-4), np.float32(4))
    square = x * x
    return x * _polynomial(square, _P) / _polynomial(square, _Q)


def _polynomial(x: F32, coefficients: tuple[float, ...]) -> F32:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += np.float32(c)
    return y


def gelu(x: F32) -> F32:
    """x * Phi(x) with the normal distribution's Phi, not its approximation by tanh."""
    y: F32 = np.float32(0.5) * x * (1 + erf(x * np.float32(0.5**0.5)))
    return y
