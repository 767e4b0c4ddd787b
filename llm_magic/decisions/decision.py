"""A decision: the probability of every choice, and what follows from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..chat.view_protocols import Bundle, MimeTypes
from ..extension_points import NUMBER_VIEWS
from ..json_types import JsonObject
from ..provider import ChoiceScores
from . import arithmetic
from .question import Question


@dataclass(frozen=True, slots=True)
class Reading:
    """The scores behind one prompt.

    Attributes:
        order: The choices in the order in which this prompt shows them.
        scores: The natural log of each choice's probability behind this prompt, before they are
            normalised over the choices.
    """

    order: tuple[str, ...]
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a model decides between texts, with the probability of each.

    Attributes:
        choice: The most likely text; of equally likely ones the first by its characters.
        probabilities: The probability of each choice, in the order given. They sum to 1.
        logprobs: Their natural logarithms.
        readings: The scores behind each prompt, one for each order of the choices in the prompt.
        order: "invariant" or "given", see `LLM.decide`.
        length: What each log-probability was divided by: "tokens", "bytes" or None.
        ended: Whether the probability that the answer ends behind the choice was counted, because
            one choice is the beginning of another.
        tokens: How many tokens each choice has.
        values: The number of each choice of a scale; None: it is no scale.
        calibrated: Whether a calibration was applied.
        model: The name of the model.

    >>> from llm_magic.llm import LLM
    >>> from llm_magic.providers.scripted import Scripted
    >>> llm = LLM(Scripted([], scores=lambda request, choices: [-0.5, -2.5]))
    >>> decision = llm.decide("Is the sky blue?", yes_no=True, order="given")
    >>> decision.choice, round(decision.probabilities["yes"], 3), round(decision.margin, 3)
    ('yes', 0.881, 0.762)
    """

    choice: str
    probabilities: Mapping[str, float]
    logprobs: Mapping[str, float]
    readings: tuple[Reading, ...] = field(repr=False)
    order: str = "invariant"
    length: str | None = None
    ended: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, float] | None = None
    calibrated: bool = False
    model: str = ""

    @property
    def probability(self) -> float:
        """The probability of the choice."""
        return self.probabilities[self.choice]

    @property
    def margin(self) -> float:
        """How much more likely the choice is than the next one, from 0 to 1."""
        first, second = sorted(self.probabilities.values(), reverse=True)[:2]
        return first - second

    @property
    def entropy(self) -> float:
        """The entropy over the choices, in nats: 0 is certain, log(n) knows nothing."""
        return arithmetic.entropy(self.logprobs.values())

    @property
    def expected(self) -> float | None:
        """The mean of a scale under these probabilities; None: it is no scale."""
        if self.values is None:
            return None
        return math.fsum(self.values[name] * p for name, p in self.probabilities.items())

    @property
    def mass(self) -> float:
        """The probability that an answer is (or begins with) any of the choices, a mean over the
        prompts.

        A small mass means that the model would have said something else.
        """
        return math.fsum(
            math.exp(arithmetic.log_sum(reading.scores.values())) for reading in self.readings
        ) / len(self.readings)

    @property
    def spread(self) -> float:
        """How far the order of the choices moves a probability: the largest range over the
        prompts. 0 where there is one prompt."""
        rows = [_ranking(reading, self.length, self.tokens) for reading in self.readings]
        return max(
            max(math.exp(row[name]) for row in rows) - min(math.exp(row[name]) for row in rows)
            for name in self.logprobs
        )

    def to_dict(self) -> JsonObject:
        """The decision as JSON: what it says, and the scores that it follows from."""
        return {
            "choice": self.choice,
            "probabilities": dict(self.probabilities),
            "logprobs": dict(self.logprobs),
            "margin": self.margin,
            "entropy": self.entropy,
            "mass": self.mass,
            "spread": self.spread,
            "expected": self.expected,
            "order": self.order,
            "length": self.length,
            "ended": self.ended,
            "calibrated": self.calibrated,
            "model": self.model,
            "readings": [
                {"order": list(reading.order), "scores": dict(reading.scores)}
                for reading in self.readings
            ],
        }

    def __repr__(self) -> str:
        return (
            f"Decision({self.choice!r}, p={self.probability:.3f}, margin={self.margin:.3f}, "
            f"entropy={self.entropy:.3f})"
        )

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = NUMBER_VIEWS.load().decision(self, include, exclude)
        return bundle


def decided(
    question: Question,
    scored: Sequence[tuple[tuple[str, ...], ChoiceScores]],
    model: str = "",
) -> Decision:
    """The decision of one question from the scores of its prompts.

    Args:
        question: What was asked.
        scored: The order that each prompt shows, and the scores of `question.choices`.
        model: The name of the model.
    """
    names = question.choices
    tokens = dict(zip(names, scored[0][1].tokens, strict=True))
    readings = tuple(
        Reading(order, dict(zip(names, found.logprobs, strict=True))) for order, found in scored
    )
    rows = [_ranking(reading, question.length, tokens) for reading in readings]
    logprobs = arithmetic.normalised(arithmetic.mean_of(rows))
    values = None
    if question.values is not None:
        values = dict(zip(names, question.values, strict=True))
    return Decision(
        arithmetic.best_of(logprobs),
        {name: math.exp(value) for name, value in logprobs.items()},
        logprobs,
        readings,
        question.order,
        question.length,
        scored[0][1].ended,
        tokens,
        values,
        False,
        model,
    )


def calibrated(decision: Decision, logprobs: Mapping[str, float]) -> Decision:
    """The decision with the log-probabilities that a calibration made of its own."""
    return replace(
        decision,
        choice=arithmetic.best_of(logprobs),
        probabilities={name: math.exp(value) for name, value in logprobs.items()},
        logprobs=dict(logprobs),
        calibrated=True,
    )


def _ranking(reading: Reading, length: str | None, tokens: Mapping[str, int]) -> dict[str, float]:
    """The normalised log-probabilities of one prompt, per token or byte where that is asked for."""
    scores = reading.scores
    if length == "tokens":
        scores = {name: value / tokens[name] for name, value in scores.items()}
    elif length == "bytes":
        scores = {name: value / len(name.encode()) for name, value in scores.items()}
    return arithmetic.normalised(scores)
