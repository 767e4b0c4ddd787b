"""Runs over tables: how far one is, and prompts side by side. Functions of plain values."""

from collections.abc import Sequence

from llm_magic.columns import aligned
from llm_magic.tables.answers import Answer
from llm_magic.tables.grid import Grid, Summary
from llm_magic.tables.run import State

from . import html, logprobs, progress, summary
from .mime import Fragment

SHOWN = 100  # rows of a grid before the rest is summed up in a line
LABEL, CELL = 40, 60  # characters of a row's label and of an answer


def running(state: State) -> Fragment:
    """The bar while rows are answered: `12 of 40 rows · 3.1 rows/s · 9 s left`."""
    work = progress.Work(_words(state), "", state.done / state.total if state.total else None)
    return Fragment(progress.bar(work), progress.plain(work))


def _words(state: State) -> str:
    parts = [
        f"{state.done:,} of {summary.counted(state.total, 'answer')}",
        _failed(state),
        _rate(state),
        f"{duration(state.left)} left" if state.left is not None else "",
    ]
    return " · ".join(filter(None, parts))


def done(state: State, note: str = "", steady: bool = False) -> Fragment:
    """The line that stays: `40 answers · 2 errors · 3.1 a second · 13 s`.

    Args:
        state: The last one.
        note: What happened, if the run did not simply end.
        steady: Without times, so that it is the same on every run.
    """
    part = f"{state.done:,} of " if state.done < state.total else ""
    parts = [f"{part}{summary.counted(state.total, 'answer')}", _failed(state)]
    if state.known and not steady:
        parts.append(f"{state.known:,} known before")
    if not steady:
        parts += [_rate(state), duration(state.seconds)]
    line = " · ".join(filter(None, [*parts, note]))
    return Fragment(html.note(html.text(line)), line)


def _failed(state: State) -> str:
    return summary.counted(state.failed, "error") if state.failed else ""


def _rate(state: State) -> str:
    if state.rate is None:
        return ""
    if state.rate >= 1:
        return f"{state.rate:,.1f} a second"
    return f"{60 * state.rate:,.1f} a minute"


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.4), duration(75), duration(7300)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# ----------------------------------------------------------------------------- grids


def grid(found: Grid) -> Fragment:
    """Rows and prompts as a table; below it the numbers of each prompt."""
    names = list(found.answers)
    rows = list(zip(found.labels, *found.answers.values(), strict=True))
    cells = [
        [f"<code>{html.escape(summary.one_line(label, LABEL))}</code>",
         *(_cell(answer, answers[0]) for answer in answers)]
        for label, *answers in rows[:SHOWN]
    ]  # fmt: skip
    more = len(rows) - SHOWN
    rest = html.note(f"{more:,} more rows are in .frame") if more > 0 else ""
    head = ("row", *map(html.text, names))
    numbers = html.table(
        ("prompt", "answers", "errors", "mean p", "entropy", "tokens", "unlike the first"),
        [[html.text(cell) for cell in line] for line in _numbers(found.summary)],
        numbers=range(1, 7),
    )
    return Fragment(html.table(head, cells) + rest + numbers, plain(found))


def plain(found: Grid) -> str:
    """The same as text."""
    names = list(found.answers)
    rows = list(zip(found.labels, *found.answers.values(), strict=True))
    lines = [
        [summary.one_line(label, LABEL), *(_said(answer) for answer in answers)]
        for label, *answers in rows[:SHOWN]
    ]
    head = ("prompt", "answers", "errors", "mean p", "entropy", "tokens", "unlike the first")
    table = aligned([["row", *names], *lines], rule=True)
    numbers = aligned([head, *_numbers(found.summary)], range(1, 7), rule=True)
    rest = [f"{len(rows) - SHOWN:,} more rows are in .frame"] if len(rows) > SHOWN else []
    return "\n".join([*table, *rest, "", *numbers])


def _numbers(summaries: Sequence[Summary]) -> list[list[str]]:
    return [
        [s.name, f"{s.rows:,}", f"{s.errors:,}", _percent(s.probability),
         "" if s.entropy is None else f"{s.entropy:.2f}", f"{s.tokens:,}",
         f"{s.differs:,}" if i else ""]
        for i, s in enumerate(summaries)
    ]  # fmt: skip


def _percent(p: float | None) -> str:
    return "" if p is None else logprobs.percent(p)


def _cell(answer: Answer, first: Answer) -> str:
    """An answer; what differs from the first prompt's is bold."""
    text = html.text(_said(answer))
    if answer.error is None and answer.text != first.text:
        text = f"<strong>{text}</strong>"
    numbers = [_percent(answer.probability), _tokens(answer), _odd(answer)]
    return text + html.note(*(html.text(part) for part in numbers if part))


def _tokens(answer: Answer) -> str:
    return "" if answer.tokens is None else summary.counted(answer.tokens, "token")


def _odd(answer: Answer) -> str:
    return "" if answer.finish in (None, "stop") else summary.ended(answer.finish)


def _said(answer: Answer) -> str:
    if answer.error is not None:
        return f"⚠ {summary.one_line(answer.error, CELL)}"
    return summary.one_line(answer.text or "", CELL)
