"""Calibration: probabilities that agree with how often a model is right, from labelled examples.

The log-probabilities z of the choices become log_softmax(z / T + b). Temperature scaling (Guo et
al. 2017, "On Calibration of Modern Neural Networks") fits T alone; the bias b, one number for each
choice, takes away what a model prefers before it has read anything (Zhao et al. 2021, "Calibrate
Before Use"). Both minimise the mean negative log-likelihood of the labels; a quadratic penalty
keeps few examples from pulling far.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from ..arguments import shown
from ..chat.view_protocols import Bundle, MimeTypes
from ..errors import RequestError
from ..extension_points import NUMBER_VIEWS
from . import arithmetic

Method = Literal["temperature", "bias"]
Row = Mapping[str, float]

STEPS = 200  # of each search
LOWEST, HIGHEST = 0.05, 20.0  # temperatures
PENALTY = 0.01  # of a bias' square, in nats, beside the mean loss


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found on labelled examples; `LLM.decide(..., calibration=...)` applies it.

    Attributes:
        method: "temperature" or "bias".
        choices: The texts that it holds for.
        temperature: What log-probabilities are divided by: above 1 the model is too sure.
        bias: What is added to the log-probability of each choice.
        n: How many examples there were.
        before: The mean negative log-likelihood of the labels without it, in nats.
        after: The same with it.

    >>> rows = [{"a": math.log(0.99), "b": math.log(0.01)}] * 4
    >>> found = fit(rows, ["a", "a", "a", "b"], "temperature")
    >>> round(found.temperature, 2), round(math.exp(found.apply(rows[0])["a"]), 2)
    (4.18, 0.75)
    """

    method: str
    choices: tuple[str, ...]
    temperature: float = 1.0
    bias: Mapping[str, float] = field(default_factory=dict)
    n: int = 0
    before: float = math.nan
    after: float = math.nan

    def apply(self, logprobs: Row) -> dict[str, float]:
        """The calibrated log-probabilities; they sum to 1 as probabilities."""
        return arithmetic.normalised(
            {
                name: value / self.temperature + self.bias.get(name, 0.0)
                for name, value in logprobs.items()
            }
        )

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = NUMBER_VIEWS.load().calibration(self, include, exclude)
        return bundle

    def check(self, choices: Sequence[str]) -> None:
        """RequestError if it was made for other choices."""
        if set(choices) != set(self.choices):
            raise RequestError(
                f"the calibration is of the choices {', '.join(map(repr, self.choices))}; "
                f"the question has {', '.join(map(repr, choices))}: calibrate with these"
            )


def fit(rows: Sequence[Row], labels: Sequence[str], method: str = "temperature") -> Calibration:
    """The calibration that fits labelled examples best.

    Args:
        rows: The log-probability of every choice, for each example.
        labels: The right choice of each example.
        method: "temperature" (one number) or "bias" (one number for each choice).

    Raises:
        RequestError: There are no examples, or the method is unknown.
    """
    if method not in get_args(Method):
        raise RequestError(f'method is {shown(method)}; it must be "temperature" or "bias"')
    if not rows:
        raise RequestError("there are no examples; a calibration needs labelled ones")
    names = tuple(rows[0])
    start = Calibration(method, names, n=len(rows))
    if cast(Method, method) == "temperature":
        found = Calibration(method, names, temperature=_temperature(rows, labels))
    else:
        found = Calibration(method, names, bias=_bias(rows, labels, names))
    return Calibration(
        method, names, found.temperature, found.bias, len(rows),
        loss(rows, labels, start), loss(rows, labels, found),
    )  # fmt: skip


def loss(rows: Sequence[Row], labels: Sequence[str], by: Calibration) -> float:
    """The mean negative log-likelihood of the labels under a calibration, in nats."""
    return -math.fsum(
        max(by.apply(row)[label], LEAST) for row, label in zip(rows, labels, strict=True)
    ) / len(rows)


LEAST = -700.0  # the logarithm of a probability that float64 can barely hold


def _temperature(rows: Sequence[Row], labels: Sequence[str]) -> float:
    """By golden section over the logarithm of T; the loss has one minimum there."""
    names = tuple(rows[0])

    def at(log_t: float) -> float:
        return loss(rows, labels, Calibration("temperature", names, math.exp(log_t)))

    low, high = math.log(LOWEST), math.log(HIGHEST)
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = at(a), at(b)
    for _ in range(STEPS):
        if high - low < 1e-9:
            break
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = at(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = at(b)
    return math.exp((low + high) / 2)


def _bias(rows: Sequence[Row], labels: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """By gradient steps; the loss is convex, its curvature at most 1/2 + the penalty's."""
    bias = dict.fromkeys(names, 0.0)
    share = {name: labels.count(name) / len(labels) for name in names}
    rate = 1.0 / (0.5 + 2 * PENALTY)
    for _ in range(STEPS * 5):
        by = Calibration("bias", tuple(names), bias=bias)
        applied = [by.apply(row) for row in rows]
        slope = {
            name: math.fsum(math.exp(row[name]) for row in applied) / len(rows)
            - share[name]
            + 2 * PENALTY * bias[name]
            for name in names
        }
        if max(map(abs, slope.values())) < 1e-10:
            break
        bias = {name: bias[name] - rate * slope[name] for name in names}
    return bias
