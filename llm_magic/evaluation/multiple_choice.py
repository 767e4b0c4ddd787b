"""Multiple choice: rows of a table, each with its choices and the right one.

A text is continued as evaluation harnesses do it: the log-likelihood of each choice behind the
context, `acc` by its sum and `acc_norm` by its sum over the bytes of the choice. In a chat the
choices are shown and decided between as by `LLM.decide`.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..arguments import count, shown
from ..decisions import arithmetic
from ..decisions.calibration import Calibration
from ..decisions.methods import DecideOptions, deciding
from ..decisions.question import question
from ..errors import LLMError, RequestError, UnsupportedError
from ..events import Message
from ..provider import BatchScoring, Continuation, Provider, Request, require
from ..sampling import scalar
from ..tables.frames import rows_of
from ..tables.template import Row, Template, missing
from .report import Item

PLACE = {"choices": "{{ choices }}"}  # the name that a decision fills, unless a column has it


@dataclass(frozen=True, slots=True)
class Task:
    """How rows are asked.

    Attributes:
        template: The question of a row.
        choices: The choices of every row, or the column that holds those of each row.
        label: The column of the right choice: its text, or its place from 0.
        shots: Solved rows that stand before each question.
        join: What stands between a question and a choice.
        between: What stands between two solved rows, and before the question.
    """

    template: Template
    choices: tuple[str, ...] | str
    label: str
    shots: tuple[Row, ...] = ()
    join: str = " "
    between: str = "\n\n"

    def choices_of(self, row: Row) -> tuple[str, ...]:
        if isinstance(self.choices, tuple):
            return self.choices
        return question(choices=_listed(_field(row, self.choices))).choices

    def label_of(self, row: Row, choices: Sequence[str]) -> str:
        """The right choice of a row. RequestError if it is none of the choices."""
        value = _field(row, self.label)
        number = scalar(value)
        if isinstance(number, int) and not isinstance(value, bool) and str(value) not in choices:
            if 0 <= number < len(choices):
                return choices[number]
            raise RequestError(f"the label is {number}, and there are {len(choices)} choices")
        if str(value) not in choices:
            known = ", ".join(map(repr, choices))
            raise RequestError(f"the label is {shown(value)}; the choices are {known}")
        return str(value)

    def text(self, row: Row) -> str:
        """The question of a row as one text."""
        return "\n".join(m.text for m in self.template.fill(row))

    def context(self, row: Row) -> str:
        """The solved rows and the question, to be continued."""
        solved = [
            f"{self.text(shot)}{self.join}{self.label_of(shot, self.choices_of(shot))}"
            for shot in self.shots
        ]
        return self.between.join([*solved, self.text(row)])

    def messages(self, row: Row) -> tuple[Message, ...]:
        """The solved rows as turns of a chat, and the question."""
        turns: list[Message] = []
        for shot in self.shots:
            right = self.label_of(shot, self.choices_of(shot))
            turns += [*self.template.fill(shot), Message("assistant", right)]
        first, *rest = self.template.fill(row)
        if turns and first.role == "system":  # once, before everything
            turns = [first, *(m for m in turns if m.role != "system")]
            return (*turns, *rest)
        return (*turns, first, *rest)


def task(
    rows: Sequence[Row],
    columns: Sequence[str],
    template: object,
    choices: object,
    label: str,
    shots: Sequence[Row],
    join: str,
    between: str,
) -> Task:
    """A task from the arguments of `LLM.evaluate`. RequestError before anything is computed."""
    if not rows:
        raise RequestError("data has no rows; there is nothing to evaluate")
    read = Template(template, names=PLACE)
    read.check([*columns, *PLACE])
    if isinstance(choices, str) and choices in columns:
        asked: tuple[str, ...] | str = choices
    elif isinstance(choices, str) and "|" not in choices:
        known = ", ".join(columns)
        raise RequestError(f'choices is {choices!r}; give a column ({known}), "a|b" or a list')
    else:
        asked = question(choices=choices).choices
    if label not in columns:
        raise RequestError(f"there is no column {label!r}; the columns are {', '.join(columns)}")
    made = Task(read, asked, label, tuple(shots), join, between)
    for i, shot in enumerate(shots):
        try:
            made.text(shot)
            made.label_of(shot, made.choices_of(shot))
        except LLMError as e:
            raise RequestError(f"example {i}: {e}") from None
    return made


def drawn(examples: object, shots: int, seed: int) -> list[Row]:
    """So many of the examples, by the seed; the same ones, in the same order, for every row."""
    wanted = count("shots", shots)
    if wanted == 0:
        return []
    if examples is None:
        raise RequestError("shots needs examples=FRAME: solved rows that are not evaluated")
    table = rows_of(examples)
    if len(table) < wanted:
        raise RequestError(f"there are {len(table)} examples; shots is {wanted}")
    return [table[i] for i in random.Random(seed).sample(range(len(table)), wanted)]


def _field(row: Row, name: str) -> object:
    value = row.get(name)
    if not hasattr(value, "__len__") and missing(value):
        raise RequestError(f"the row's {name!r} is missing ({value})")
    return value


def _listed(value: object) -> object:
    """A cell that holds choices: a list, numpy's array, or "a|b"."""
    tolist = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    return tolist() if callable(tolist) else value


# ----------------------------------------------------------------------------- running


def evaluated(
    provider: Provider,
    rows: Sequence[Row],
    asked: Task,
    calibration: Calibration | None = None,
) -> Iterator[Item]:
    """Every row as a text to continue."""
    require(provider, "score")
    if not isinstance(provider, BatchScoring):
        raise UnsupportedError("score", "this provider cannot score given continuations")
    ready: list[tuple[str, tuple[str, ...]] | LLMError] = []
    found: list[Continuation | LLMError] = []
    scored = provider.score_continuations(_pairs(provider, rows, asked, ready))
    i = 0
    for result in scored:
        while isinstance(plan := ready[i], LLMError):
            yield Item(i, error=str(plan))
            i += 1
        found.append(result)
        if len(found) == len(plan[1]):
            yield _item(i, *plan, found, calibration)
            i, found = i + 1, []
    for left in ready[i:]:
        yield Item(i, error=str(left))
        i += 1


def _pairs(
    provider: Provider,
    rows: Sequence[Row],
    asked: Task,
    ready: list[tuple[str, tuple[str, ...]] | LLMError],
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The context and the continuation of every choice of every row. Notes in `ready` the label
    and the choices of each row, or its error."""
    for row in rows:
        try:
            choices = asked.choices_of(row)
            label = asked.label_of(row, choices)
            context = asked.context(row)
            pairs = [encode_pair(provider, context, asked.join + text) for text in choices]
        except LLMError as e:
            ready.append(e)
            continue
        ready.append((label, choices))
        yield from pairs


def encode_pair(
    provider: Provider, context: str, continuation: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of a context, and those that continue it, as evaluation harnesses cut them.

    Both are tokenised as one text, and the continuation begins behind as many tokens as the
    context has alone; white space at the end of the context belongs to the continuation.
    """
    kept = context.rstrip()
    continuation, context = context[len(kept) :] + continuation, kept
    head = provider.render(Request(context)).ids
    whole = provider.render(Request(context + continuation)).ids
    return whole[: len(head)], whole[len(head) :]


def _item(
    i: int,
    label: str,
    choices: tuple[str, ...],
    found: Sequence[Continuation | LLMError],
    calibration: Calibration | None,
) -> Item:
    scores: dict[str, float] = {}
    for text, result in zip(choices, found, strict=True):
        if isinstance(result, LLMError):
            return Item(i, error=str(result))
        scores[text] = result.logprob
    by_bytes = {text: value / len(text.encode()) for text, value in scores.items()}
    logprobs = arithmetic.normalised(scores)
    if calibration is not None:
        logprobs = calibration.apply(logprobs)
    return Item(
        i,
        label,
        arithmetic.best_of(logprobs if calibration is not None else scores),
        arithmetic.best_of(by_bytes),
        arithmetic.probabilities(logprobs),
        scores,
    )


def evaluated_chat(
    provider: Provider,
    rows: Sequence[Row],
    asked: Task,
    options: DecideOptions,
) -> Iterator[Item]:
    """Every row as a question of a chat, in any order; rows with the same choices side by side."""
    groups: dict[tuple[str, ...], list[int]] = {}
    labels: dict[int, str] = {}
    for i, row in enumerate(rows):
        try:
            choices = asked.choices_of(row)
            labels[i] = asked.label_of(row, choices)
            groups.setdefault(choices, []).append(i)
        except LLMError as e:
            yield Item(i, error=str(e))
    for choices, places in groups.items():
        prompts = (_messages(lambda i=i: asked.messages(rows[i])) for i in places)  # type: ignore[misc]
        settings: DecideOptions = {**options, "choices": list(choices)}
        for i, found in zip(places, deciding(provider, prompts, settings), strict=True):
            if isinstance(found, LLMError):
                yield Item(i, error=str(found))
                continue
            yield Item(i, labels[i], found.choice, None, found.probabilities, found.logprobs)


def _messages(make: Callable[[], tuple[Message, ...]]) -> object:
    try:
        return make()
    except LLMError as e:
        return e
