"""Answers at several strengths of a control vector, side by side."""

from llm_magic.columns import aligned
from llm_magic.inside.strengths import Strengths

from .. import html
from ..tokens import alone


def page(strengths: Strengths) -> str:
    """A column for each strength."""
    head = [f"{scale:+g}" if scale else "0 (as it is)" for scale in strengths.scales]
    look = "text-align:left;vertical-align:top;min-width:12em"
    cells = "".join(f'<td style="{look}">{html.verbatim(r.text)}</td>' for r in strengths.replies)
    names = "".join(f'<th style="text-align:left">{name}</th>' for name in head)
    return (
        html.note(f"<strong>{html.text(strengths.prompt)}</strong>")
        + '<div style="overflow-x:auto"><table class="lm-compare" style="font-size:13px">'
        + f"<tr>{names}</tr><tr>{cells}</tr></table></div>"
        + html.note("strength of the control vector; all answers were made in one batch")
    )


def plain(strengths: Strengths) -> str:
    """A line for each strength."""
    rows = [
        (f"{scale:+g}", alone(reply.text.encode(), 90).replace("␣", " "))
        for scale, reply in zip(strengths.scales, strengths.replies, strict=True)
    ]
    return "\n".join(aligned(rows, [0]))
