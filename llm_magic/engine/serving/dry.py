"""DRY: penalties for tokens that would continue a repeated passage.

Defined as in llama.cpp. If the last L tokens occurred before, the token that followed them there
loses `multiplier * base ** (L - allowed_length)` of its logit, for L of at least allowed_length and
the longest such passage. A repetition never reaches back over a sequence breaker.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llm_magic.sampling import FIELDS, LARGEST, Sampling

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

FLOAT32_LOG_MAX = 88.7228391  # the exponent is bounded so that the power stays a float32


def _or_default(value: float | None, name: str) -> float:
    default = FIELDS[name].default
    assert isinstance(default, int | float)
    return default if value is None else value


class Dry:
    """The DRY settings of one request.

    breakers: ids of the tokens that contain a sequence breaker; they are never penalised.
    """

    def __init__(self, sampling: Sampling, breakers: frozenset[int]) -> None:
        self._multiplier = sampling.dry_multiplier or 0.0
        self._base = float(_or_default(sampling.dry_base, "dry_base"))
        self._allowed = int(_or_default(sampling.dry_allowed_length, "dry_allowed_length"))
        self._window = int(_or_default(sampling.dry_last_n, "dry_last_n"))
        self._breakers = breakers

    @property
    def active(self) -> bool:
        return self._multiplier > 0 and self._window != 0

    def apply(self, logits: F32, history: Sequence[int]) -> None:
        """Subtract the penalties from the logits, in place."""
        recent = history if self._window < 0 else history[-self._window :]
        reach = self._reach(recent)
        if len(recent) <= self._allowed or reach < self._allowed:
            return
        ids, lengths = self._repeated(np.array(recent, np.int64), reach)
        known = lengths >= self._allowed
        ids, lengths = ids[known], lengths[known]
        if not len(ids):
            return
        longest: dict[int, int] = {}
        for token, length in zip(ids.tolist(), lengths.tolist(), strict=True):
            if token < len(logits) and token not in self._breakers:
                longest[token] = max(length, longest.get(token, 0))
        for token, length in longest.items():
            logits[token] -= np.float32(self._penalty(length - self._allowed))

    def _penalty(self, exponent: int) -> float:
        if (bound := self._bound) is not None:
            exponent = min(exponent, bound)
        return min(self._multiplier * self._base**exponent, LARGEST)

    @property
    def _bound(self) -> int | None:
        """The largest exponent; None where the base is 1, whose powers do not grow."""
        return int(FLOAT32_LOG_MAX / math.log(self._base)) if self._base > 1.000001 else None

    def _reach(self, recent: Sequence[int]) -> int:
        """How many of the last tokens a repetition may have: those behind the last breaker."""
        for i, token in enumerate(reversed(recent)):
            if token in self._breakers:
                return i
        return len(recent)

    def _repeated(self, recent: I64, reach: int) -> tuple[I64, I64]:
        """For each token but the first: how many tokens before it are those at the end.

        Lengths are counted as far as the penalty grows with them.
        """
        n = len(recent)
        most = min(reach, n, self._allowed + (self._bound or 0))
        lengths = np.zeros(n - 1, np.int64)
        ends = np.arange(n - 1)  # where the earlier passage ends
        for k in range(most):
            ends = ends[ends >= k]
            ends = ends[recent[ends - k] == recent[n - 1 - k]]
            if not len(ends):
                break
            lengths[ends] = k + 1
        return recent[1:], lengths
