"""Measures of answers with probabilities. Pure functions; sums are correctly rounded."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers whose confidence lies between `low` and `high`.

    Attributes:
        low: The least confidence; only the first bin holds it.
        high: The greatest confidence.
        n: How many answers there are.
        confidence: Their mean confidence; NaN of none.
        accuracy: The share of them that is right; NaN of none.
    """

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def standard_error(right: Sequence[bool]) -> float:
    """The standard error of a share: sqrt(p (1 - p) / (n - 1)); NaN of fewer than two.

    >>> round(standard_error([True, False, True, True, False]), 4)
    0.2449
    """
    if len(right) < 2:
        return math.nan
    p = mean(right)
    return math.sqrt(p * (1 - p) / (len(right) - 1))


def reliability(
    confidences: Sequence[float], right: Sequence[bool], bins: int = 10
) -> tuple[Bin, ...]:
    """Answers by confidence, in bins of equal width over (0, 1].

    >>> [(b.n, b.accuracy) for b in reliability([0.6, 0.9, 0.95], [False, True, True], 2)]
    [(0, nan), (3, 0.6666666666666666)]
    """
    out = []
    for i in range(bins):
        low, high = i / bins, (i + 1) / bins
        inside = [
            (c, ok)
            for c, ok in zip(confidences, right, strict=True)
            if low < c <= high or (i == 0 and c == 0.0) or (i == bins - 1 and c > 1.0)
        ]
        out.append(
            Bin(
                low, high, len(inside), mean([c for c, _ in inside]), mean([ok for _, ok in inside])
            )
        )
    return tuple(out)


def calibration_error(bins: Sequence[Bin]) -> float:
    """The expected calibration error (Naeini et al. 2015): the mean over answers of
    |accuracy - confidence| of their bin.

    >>> round(calibration_error(reliability([0.9] * 4, [True, True, True, False])), 6)
    0.15
    """
    n = sum(b.n for b in bins)
    gaps = [b.n * abs(b.accuracy - b.confidence) for b in bins if b.n]
    return math.fsum(gaps) / n if n else math.nan


def brier(probabilities: Sequence[Mapping[str, float]], labels: Sequence[str]) -> float:
    """The score of Brier (1950): the mean of sum over choices of (p - 1 if it is right else p)^2.

    0 is certain and right, 2 is certain and wrong.

    >>> brier([{"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}], ["a", "b"])
    0.25
    """
    return mean(
        [
            math.fsum((p - (name == label)) ** 2 for name, p in row.items())
            for row, label in zip(probabilities, labels, strict=True)
        ]
    )


def log_loss(probabilities: Sequence[Mapping[str, float]], labels: Sequence[str]) -> float:
    """The mean of -log p of the right choice, in nats."""
    return mean(
        [
            -math.log(max(row[label], 5e-324))
            for row, label in zip(probabilities, labels, strict=True)
        ]
    )
