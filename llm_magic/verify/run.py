"""A whole notebook: every reply generated again, and every output drawn again."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..chat.record import Record
from ..chat.reply import Reply
from ..errors import LLMError, UnsupportedError
from .finder import Finder
from .notebook import Output, outputs, ran_as
from .replay import replay
from .report import Check, Report, Verdict

# What of an output is not what its replies would draw: (data, replies, how it was drawn, whether
# every bit of them is that of the notebook).
Compare = Callable[[Mapping[str, Any], Sequence[Reply], Mapping[str, object], bool], list[str]]
Tell = Callable[[int, int], object]  # how many outputs of how many are done


def verify(path: Path, finder: Finder, compare: Compare, tell: Tell | None = None) -> Report:
    """Check a notebook.

    Args:
        path: The notebook's file.
        finder: Finds the models.
        compare: Draws an output again and says what differs.
        tell: Called before each output, and at the end.

    Raises:
        RequestError: The file is no notebook.
    """
    found, others = outputs(path)
    checks: list[Check] = []
    for i, output in enumerate(found):
        if tell is not None:
            tell(i, len(found))
        checks += _checked(output, finder, compare)
    if tell is not None:
        tell(len(found), len(found))
    return Report(path.name, tuple(checks), others)


def _checked(output: Output, finder: Finder, compare: Compare) -> Iterator[Check]:
    """The checks of one output: of each reply, and the last one also of how it looks."""
    if output.broken:
        yield Check(output.cell, output.line, "differs", (output.broken,))
        return
    if output.why:
        yield Check(output.cell, output.line, "unchecked", (output.why,))
        return
    replies: list[Reply] = []
    checks: list[Check] = []
    for record in output.records:
        check, reply = _one(output, record, finder)
        checks.append(check)
        if reply is not None:
            replies.append(reply)
    if len(replies) == len(output.records) and all(c.verdict != "differs" for c in checks):
        exact = all(c.verdict == "same" for c in checks)
        looks = [*_edited(output), *compare(output.data, replies, output.drawn, exact)]
        if looks:
            checks[-1] = _with(checks[-1], looks)
    yield from checks


def _one(output: Output, record: Record, finder: Finder) -> tuple[Check, Reply | None]:
    def check(verdict: Verdict, findings: Sequence[str], **facts: Any) -> Check:
        return Check(
            output.cell, output.line, verdict, tuple(findings), record.model, record.variant,
            tokens=len(record.ids), prompt=len(record.prompt), **facts,
        )  # fmt: skip

    if record.unchecked:
        return check("unchecked", [record.unchecked]), None
    found = finder.find(record)
    if isinstance(found, str):
        return check("unchecked", [found]), None
    llm, here = found
    try:
        again = replay(llm.provider, here, record)
    except UnsupportedError as e:
        return check("unchecked", [str(e)], here=here.variant), None
    except ValueError as e:  # RequestError too: the record asks for what cannot be
        return check("differs", [f"the record cannot be generated again: {e}"]), None
    except LLMError as e:
        return check("unchecked", [f"generating failed: {e}"], here=here.variant), None
    verdict: Verdict = "same" if again.exact else "close"
    if again.findings:
        verdict = "differs"
    return (
        check(verdict, again.findings, here=here.variant, worst=again.worst),
        again.reply,
    )


def _edited(output: Output) -> list[str]:
    """Whether the cell is the one that ran."""
    ran = output.drawn.get("cell")
    if not isinstance(ran, str) or not ran or ran_as(output.source, ran):
        return []
    return ["the cell was changed after it ran: the reply answers another text"]


def _with(check: Check, findings: Sequence[str]) -> Check:
    return replace(check, verdict="differs", findings=(*check.findings, *findings))
