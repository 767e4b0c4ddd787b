"""What tools did (calls, approval, duration, result or exception) as folded HTML, text and JSON."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby

from llm_magic.events import ToolRecord

from . import html, summary

HEAD = 100  # characters of a call, and of its result, on the line that says what happened
SHOWN = 4_000  # characters of a result or an output before the rest is left out
WAIT = 0.01  # seconds: who decides faster is a program, and its time says nothing
_WORDS = {
    "ok": "ok",
    "error": "raised an exception",
    "invalid": "arguments were not valid",
    "unknown": "no such tool",
    "refused": "refused",
    "timeout": "timed out",
    "interrupted": "interrupted",
    "repeated": "answered from the record",
}
_MARKS = {"ok": "✓", "refused": "⊘", "repeated": "↻"}


def fragment(trace: Sequence[ToolRecord], *, opened: bool = False) -> str:
    """All rounds, folded; one line per call while folded. Empty without calls."""
    if not trace:
        return ""
    rounds = groupby(trace, key=lambda record: record.round)
    body = "".join(_round(number, list(records)) for number, records in rounds)
    return (
        f'<div style="margin-bottom:8px">{html.fold(_headline(trace), body, opened=opened)}</div>'
    )


def plain(trace: Sequence[ToolRecord]) -> str:
    """The same as text, one line per call."""
    return "\n".join(f"round {r.round}: {_line(r)}" for r in trace)


def export(trace: Sequence[ToolRecord]) -> str:
    """The same as JSON, one object per call; what JSON cannot hold is written as text."""
    return json.dumps([asdict(r) for r in trace], ensure_ascii=False, indent=1, default=repr)


def _headline(trace: Sequence[ToolRecord]) -> str:
    count = len(trace)
    failed = sum(r.status not in ("ok", "repeated") for r in trace)
    parts = [f"{count} tool call{'s' * (count != 1)}"]
    if failed:
        parts.append(f"{failed} not ok")
    parts.append(_seconds(sum(r.seconds for r in trace)))
    if asked := _seconds(sum(r.waited for r in trace if r.waited >= WAIT)):
        parts.append(f"waited {asked} for approval")
    return " · ".join(filter(None, parts))


def _round(number: int, records: list[ToolRecord]) -> str:
    return html.note(f"round {number}") + "".join(_call(r) for r in records)


def _call(record: ToolRecord) -> str:
    arguments = record.arguments if record.arguments is not None else record.call.arguments
    parts = [_field("arguments", _as_json(arguments), "json")]
    if record.result:
        parts.append(_field("result", record.result))
    if record.stdout:
        parts.append(_field("printed", record.stdout))
    if record.error:
        parts.append(_field("exception", record.error))
    head = f"{_mark(record)} <code>{html.escape(_written(record))}</code> "
    head += html.text(_rest(record)) + (f" → {html.text(said)}" if (said := _said(record)) else "")
    return f'<div style="margin-left:14px">{html.fold(head, "".join(parts))}</div>'


def _field(name: str, value: str, language: str = "") -> str:
    cut = value[:SHOWN]
    left = len(value) - len(cut)
    more = html.note(f"{left:,} more characters") if left else ""
    return html.note(name) + html.code(cut, language) + more


def _mark(record: ToolRecord) -> str:
    return _MARKS.get(record.status, "✗")


def _line(record: ToolRecord) -> str:
    said = _said(record)
    return f"{_mark(record)} {_written(record)} {_rest(record)}" + (f" → {said}" if said else "")


def _written(record: ToolRecord) -> str:
    arguments = record.arguments
    if arguments is None:  # not looked at, since the call failed before that
        arguments = record.call.arguments
        with suppress(ValueError):
            arguments = json.loads(arguments)
    return summary.call(record.call.name, arguments, HEAD)


def _said(record: ToolRecord) -> str:
    """What came back, in a line: the exception where there is one, else the result."""
    text = record.error if record.status == "error" and record.error else record.result
    return summary.one_line(" ".join(text.split()), HEAD)


def _rest(record: ToolRecord) -> str:
    """What became of the call, how long it ran, and who let it run after how long."""
    after = f" after {_seconds(record.waited)}" if record.waited >= WAIT else ""
    parts = [_WORDS.get(record.status, record.status)]
    if record.status == record.approval:  # refused: it did not run
        parts[0] += after
    else:
        parts.append(_seconds(record.seconds))
        if record.approval != "auto":
            parts.append(record.approval + after)
    if record.call.in_reasoning:
        parts.append("written inside reasoning that was never closed")
    return "· " + " · ".join(filter(None, parts))


def _seconds(seconds: float) -> str:
    if seconds <= 0:
        return ""
    if seconds < 5e-4:
        return "<1 ms"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _as_json(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=1, default=repr)
