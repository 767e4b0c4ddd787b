"""Rotary position embeddings: which entries of a head rotate, and how fast."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Pairs = Literal["adjacent", "halves"]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): fast pairs keep their angles, slow ones turn `factor` times slower.

    A pair that turns more than `fast` times within the `original` context is fast, one that turns
    less than `slow` times is slow; between them the angles are mixed. whole: the ends of that
    range are rounded outwards to whole pairs, as in the paper's code.
    """

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def ramp(self, base: float, dim: int) -> F64:
        """How far each pair is on the way from fast (0) to slow (1), float64 [dim // 2]."""

        def pair(turns: float) -> float:
            return dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = pair(self.fast), pair(self.slow)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        steps = np.arange(dim // 2, dtype=np.float64) - low
        return np.clip(steps / max(high - low, 0.001), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021) of one kind of layer.

    The first `dim` entries of a head turn, the rest stays. pairs: "adjacent" turns (0, 1), (2, 3)
    (GGUF files of `llama` have their rows permuted for it); "halves" turns (i, i + dim/2).
    The angle of pair i at position p is p / linear * base ** (-2i / dim) / factors[i], mixed as
    `yarn` says. NTK-aware scaling is another `base`.

    Attributes:
        base: The wavelength grows from 2 pi to about 2 pi * base.
        dim: Entries of a head that turn, even.
        pairs: Which entries turn together.
        linear: Positions are divided by it ("linear" rope scaling).
        factors: Role of the tensor whose entries divide the angles (Llama 3.1, longrope), or None.
        long_factors: Role of the tensor that takes its place where the context is longer than
            `original` tokens (longrope: Ding et al. 2024).
        yarn: Scaling that differs between pairs.
        magnitude: Cosines and sines are multiplied by it (YaRN, longrope): queries and keys grow.
    """

    base: float
    dim: int
    pairs: Pairs
    linear: float = 1.0
    factors: str | None = None
    long_factors: str | None = None
    original: int = 0
    yarn: Yarn | None = None
    magnitude: float = 1.0

    def at_context(self, n_ctx: int) -> "Rope":
        """With the factors for a context of so many tokens."""
        if self.long_factors is None:
            return self
        factors = self.long_factors if n_ctx > self.original else self.factors
        return replace(self, factors=factors, long_factors=None)

    def inv_freq(self, factors: npt.NDArray[np.float32] | None = None) -> F64:
        """Radians per position of each pair, float64 [dim // 2].

        Args:
            factors: The content of the tensor that `self.factors` names.

        >>> Rope(1e4, 4, "halves").inv_freq()
        array([1.  , 0.01])
        """
        freq = self.base ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim) / self.linear
        if factors is not None:
            freq = freq / factors.astype(np.float64)
        if self.yarn is not None:
            ramp = self.yarn.ramp(self.base, self.dim)
            freq = freq * (1 - ramp) + freq / self.yarn.factor * ramp
        return freq
