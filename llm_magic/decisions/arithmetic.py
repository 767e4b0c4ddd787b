"""Sums over choices and orders that do not depend on the order of their terms.

`math.fsum` is correctly rounded, so the order of its terms changes no bit. Logarithms are natural.
"""

import math
from collections.abc import Iterable, Mapping, Sequence


def log_sum(values: Iterable[float]) -> float:
    """The logarithm of the sum of exponentials; -inf of none.

    >>> math.exp(log_sum([math.log(0.25), math.log(0.5)]))
    0.75
    """
    listed = list(values)
    best = max(listed, default=-math.inf)
    if not math.isfinite(best):
        return best
    return best + math.log(math.fsum(math.exp(value - best) for value in listed))


def normalised(values: Mapping[str, float]) -> dict[str, float]:
    """Log-probabilities whose probabilities sum to 1. Where every value is -inf, all are equal.

    >>> {k: math.exp(v) for k, v in normalised({"a": -700.0, "b": -700.0}).items()}
    {'a': 0.5, 'b': 0.5}
    """
    best = max(values.values())
    if not math.isfinite(best):
        return dict.fromkeys(values, -math.log(len(values)))
    # Differences first: those of large numbers are exact where the numbers are close.
    steps = {name: value - best for name, value in values.items()}
    total = log_sum(steps.values())
    return {name: step - total for name, step in steps.items()}


def mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The logarithms of the mean probability of each name over rows with the same names.

    >>> rows = [{"a": math.log(0.9), "b": math.log(0.1)}, {"a": math.log(0.7), "b": math.log(0.3)}]
    >>> {name: round(math.exp(v), 3) for name, v in mean_of(rows).items()}
    {'a': 0.8, 'b': 0.2}
    """
    if len(rows) == 1:
        return dict(rows[0])
    share = math.log(len(rows))
    return {name: log_sum(row[name] for row in rows) - share for name in rows[0]}


def entropy(logprobs: Iterable[float]) -> float:
    """-sum p log p, in nats.

    >>> round(entropy([math.log(0.5)] * 2), 6) == round(math.log(2), 6)
    True
    """
    # A probability that rounds to just above 1 must not give an entropy below 0.
    return max(0.0, -math.fsum(math.exp(v) * v for v in logprobs if v > -math.inf))


def best_of(logprobs: Mapping[str, float]) -> str:
    """The most likely name; of equally likely ones the first in the order of their characters.

    >>> best_of({"b": -1.0, "a": -1.0, "c": -2.0})
    'a'
    """
    return min(logprobs, key=lambda name: (-logprobs[name], name))


def probabilities(logprobs: Mapping[str, float]) -> dict[str, float]:
    """The probability of each name."""
    return {name: math.exp(value) for name, value in logprobs.items()}
