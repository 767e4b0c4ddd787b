"""The run over a table: rows in, a frame with answers out."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from ..arguments import shown
from ..errors import Interrupted, LLMError, RequestError
from ..extension_points import TABLES
from ..provider import Provider
from .answers import Answer, columns
from .cache import Cache
from .frames import Rows, rows_of
from .question import Question
from .run import Asked, Bar, NoBar, Run

T = TypeVar("T")
SLOTS = 8  # requests in flight where a provider does not say how many it works on


def answer_table(
    table: object,
    questions: Mapping[str, Question],
    cache: str | os.PathLike[str] | None,
    strict: bool,
    progress: bool,
) -> Any:
    """A frame with the answers of all questions beside its rows; see `LLM.map`.

    Args:
        table: The rows.
        questions: By the name of their column; each row is asked all of them in this order.
    """

    def made(rows: Rows, answers: Mapping[str, list[Answer]]) -> Any:
        return frame_of(rows, answers, questions)

    return answer_rows(table, questions, cache, strict, progress, made)


def answer_rows(
    table: object,
    questions: Mapping[str, Question],
    cache: str | os.PathLike[str] | None,
    strict: bool,
    progress: bool,
    made: Callable[[Rows, Mapping[str, list[Answer]]], T],
) -> T:
    """What `made` makes of the answers to all questions, of those so far in an error's partial."""
    rows = rows_of(table)
    for name, question in questions.items():
        if not name or not isinstance(name, str):
            raise RequestError(f"out is {shown(name)}; it must be the name of a column")
        if len(rows):
            question.template.check(rows.columns)
    first = next(iter(questions.values()))  # its settings are those of all
    provider = first.llm.provider
    names = list(questions)
    with ExitStack() as stack:
        kept = None if cache is None else stack.enter_context(Cache(cache))
        run = Run(
            _asked(rows, questions), len(rows) * len(names), _slots(provider), kept, strict,
            _bar(provider, progress), first.decide if first.decision is not None else None,
        )  # fmt: skip

        def result() -> T:
            return made(rows, {name: run.answers[i :: len(names)] for i, name in enumerate(names)})

        return _finished(run, result)


def frame_of(
    rows: Rows, answers: Mapping[str, list[Answer]], questions: Mapping[str, Question]
) -> Any:
    """The frame of the rows with the columns of all answers."""
    parts = [columns(name, found, questions[name].constraint) for name, found in answers.items()]
    return rows.beside({column: values for part in parts for column, values in part.items()})


def _asked(rows: Rows, questions: Mapping[str, Question]) -> Iterator[Asked]:
    for i in range(len(rows)):
        row = rows[i]
        for question in questions.values():
            yield question.ask(row)


def _finished(run: Run, result: Callable[[], T]) -> T:
    """Run to the end; what raises carries the result so far."""
    try:
        run.go()
    except LLMError as e:
        run.bar.close(run.state, "failed")
        e.partial = result()
        raise
    except BaseException:
        run.bar.close(run.state, "failed")
        raise
    if not run.interrupted:
        run.bar.close(run.state)
        return result()
    run.bar.close(run.state, "interrupted")
    partial = result()
    done = f"{run.state.done:,} of {run.total:,}"
    raise Interrupted(
        f"interrupted after {done} answers; {run.bar.keep(partial)} has them", partial
    )


def _slots(provider: Provider) -> int:
    slots = getattr(provider.status(), "slots", None)
    return slots if isinstance(slots, int) and slots > 0 else SLOTS


def _bar(provider: Provider, progress: bool) -> Bar:
    if not progress:
        return NoBar()
    bar: Bar = TABLES.load().bar(provider.model)
    return bar
