"""Several prompts about the same rows: answers side by side, with the numbers of each prompt."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..chat.view_protocols import Bundle, MimeTypes
from ..extension_points import TABLES
from .answers import Answer
from .frames import Rows
from .question import Question
from .table import answer_rows, frame_of


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one prompt over all rows.

    Attributes:
        name: Of the prompt.
        rows: Rows that have an answer.
        errors: Rows that have none.
        probability: Mean of the answers' probabilities; None without any.
        entropy: Mean of the answers' entropies in nats; None without any.
        tokens: Of all answers together.
        differs: Rows whose answer is not that of the first prompt.
    """

    name: str
    rows: int
    errors: int
    probability: float | None
    entropy: float | None
    tokens: int
    differs: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Answers of several prompts to the same rows.

    Attributes:
        frame: The rows with the columns of `LLM.map` for each prompt.
        answers: For each prompt the answers in the order of the rows.
        labels: What each row put into the templates, in one line.
    """

    frame: Any = field(repr=False)
    answers: Mapping[str, tuple[Answer, ...]] = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)

    @property
    def summary(self) -> tuple[Summary, ...]:
        """The numbers of each prompt, in order."""
        first = next(iter(self.answers.values()))
        return tuple(_summary(name, found, first) for name, found in self.answers.items())

    def __repr__(self) -> str:
        return str(TABLES.load().grid(self).plain)

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = TABLES.load().grid(self)._repr_mimebundle_(include, exclude)
        return bundle


def _summary(name: str, answers: tuple[Answer, ...], first: tuple[Answer, ...]) -> Summary:
    good = [a for a in answers if a.error is None]
    return Summary(
        name,
        len(good),
        len(answers) - len(good),
        _mean([a.probability for a in good]),
        _mean([a.entropy for a in good]),
        sum(a.tokens or 0 for a in good),
        sum(a.text != b.text for a, b in zip(answers, first, strict=True)),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def answer_grid(
    table: object,
    questions: Mapping[str, Question],
    cache: str | os.PathLike[str] | None,
    strict: bool,
    progress: bool,
) -> Grid:
    """The answers of all questions to all rows; see `LLM.grid`."""

    def made(rows: Rows, answers: Mapping[str, list[Answer]]) -> Grid:
        used = dict.fromkeys(n for q in questions.values() for n in q.template.columns)
        labels = (_label(rows[i], list(used)) for i in range(len(rows)))
        return Grid(
            frame_of(rows, answers, questions),
            {name: tuple(found) for name, found in answers.items()},
            tuple(labels),
        )

    return answer_rows(table, questions, cache, strict, progress, made)


def _label(row: Mapping[str, object], used: list[str]) -> str:
    return " · ".join(" ".join(str(row[name]).split()) for name in used if name in row)
