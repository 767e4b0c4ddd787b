"""The report of a notebook's check, as HTML and as text."""

from llm_magic.columns import aligned
from llm_magic.verify.report import TOLERANCE, Check, Report, Verdict

from . import html, summary
from .mime import Fragment

WORDS: dict[Verdict, str] = {
    "same": "✓ the same, every bit",
    "close": "≈ the same tokens",
    "differs": "✗ differs",
    "unchecked": "? not checkable",
}
HEAD = ("cell", "", "tokens", "model", "made by", "checked by", "found")
SOURCE = 48  # characters of a cell's first line


def fragment(report: Report) -> Fragment:
    """One row a reply, and what the whole of it means."""
    rows = [
        [f"<code>{html.escape(cell)}</code>" if i == 0 else html.text(cell)
         for i, cell in enumerate(_row(check))]
        for check in report.checks
    ]  # fmt: skip
    page = f"<strong>{html.text(verdict(report))}</strong>"
    if rows:
        page += html.table(HEAD, rows, numbers=(2,))
    page += html.note(*map(html.text, _notes(report)))
    return Fragment(page, plain(report))


def plain(report: Report) -> str:
    """The same as text. Findings stand below their row: they may be long."""
    lines = [f"{report.name}: {verdict(report)}"]
    rows = [_row(check)[:-1] for check in report.checks]
    table = aligned([HEAD[:-1], *rows], (2,), rule=True) if rows else []
    lines += table[:2]
    for check, line in zip(report.checks, table[2:], strict=True):
        lines += [line, *(f"    {finding}" for finding in _found(check))]
    return "\n".join([*lines, *_notes(report)])


def verdict(report: Report) -> str:
    """The report in one line."""
    total = summary.counted(len(report.checks), "reply").replace("replys", "replies")
    if not report.checks:
        return "not checkable: it holds no reply of a model"
    if report.status == 1:
        return f"{report.count('differs')} of {total} differ from what the model says"
    if report.status == 2:
        return f"{report.count('unchecked')} of {total} cannot be checked"
    if close := report.count("close"):
        return f"right: {total}, {close} of them generated again by another variant of the kernels"
    return f"right: {total}, generated again with every bit"


def _row(check: Check) -> list[str]:
    return [
        f"[{check.cell}] {summary.one_line(check.source, SOURCE)}",
        WORDS[check.verdict],
        f"{check.tokens:,}" if check.tokens else "",
        check.model,
        check.made,
        check.here,
        "; ".join(_found(check)),
    ]


def _found(check: Check) -> list[str]:
    if check.verdict == "close":
        return [f"log-probabilities within {check.worst:.1e} nats", *check.findings]
    return list(check.findings)


def _notes(report: Report) -> list[str]:
    notes = []
    if report.count("close"):
        notes.append(
            "≈: another variant of the kernels than the one that made the reply; its "
            f"log-probabilities may differ by {TOLERANCE} nats"
        )
    if report.others:
        cells = summary.counted(report.others, "cell")
        notes.append(f"{cells} with other outputs, which hold no record of a reply")
    return notes
