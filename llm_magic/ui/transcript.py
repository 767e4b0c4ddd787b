"""A chat as static HTML, Markdown and text: what stays in the saved notebook.

Comes in: the turns of the shown path. Goes out: a MIME bundle that needs no kernel, no script and
no style sheet. It must not know widgets or threads.
"""

import html
from collections.abc import Sequence
from typing import Any

from .turns import Turn

_WHO = {"user": "You", "assistant": "Model"}
# Hex colours only, and text colour beside every background: front ends strip the rest.
_ROW = "margin:6px 0;padding:6px 10px;border-left:3px solid {edge};"
_EDGE = {"user": "#9a9a9a", "assistant": "#1f77b4"}


def bundle(turns: Sequence[Turn], model: str) -> dict[str, Any]:
    """text/plain, text/markdown and text/html of the turns."""
    return {
        "text/plain": text(turns, model),
        "text/markdown": markdown(turns, model),
        "text/html": folded(turns, model),
    }


def title(turns: Sequence[Turn], model: str) -> str:
    n = sum(turn.role == "user" for turn in turns)
    if not n:
        return f"Transcript of the chat with {model}: empty so far"
    return f"Transcript of the chat with {model}: {n} turn{'s' * (n != 1)}"


def text(turns: Sequence[Turn], model: str) -> str:
    rows = [title(turns, model)]
    for turn in turns:
        rows.append(f"{_WHO[turn.role]}: {turn.message.text}{_remark(turn)}")
    return "\n\n".join(rows)


def markdown(turns: Sequence[Turn], model: str) -> str:
    rows = [f"*{title(turns, model)}*"]
    for turn in turns:
        rows.append(f"**{_WHO[turn.role]}**\n\n{turn.message.text}{_remark(turn)}")
    return "\n\n".join(rows)


def folded(turns: Sequence[Turn], model: str) -> str:
    """The HTML: one `details` element, closed. The answers' blocks were made safe when rendered."""
    head = f"<summary>{html.escape(title(turns, model))}</summary>"
    return f"<details>{head}{''.join(_row(turn) for turn in turns)}</details>"


def _row(turn: Turn) -> str:
    if turn.role == "user":
        body = f"<p>{html.escape(turn.text)}</p>".replace("\n", "<br>")
    else:
        body = _thoughts(turn) + "".join(turn.answer.blocks)
        foot = " · ".join([*turn.foot(), *filter(None, (turn.note, turn.error))])
        body += f"<p><small>{html.escape(foot)}</small></p>" if foot else ""
    style = _ROW.format(edge=_EDGE[turn.role])
    return f'<div style="{style}"><b>{_WHO[turn.role]}</b>{body}</div>'


def _thoughts(turn: Turn) -> str:
    if not turn.reasoning.blocks:
        return ""
    return f"<details><summary>Reasoning</summary>{''.join(turn.reasoning.blocks)}</details>"


def _remark(turn: Turn) -> str:
    remark = turn.error or turn.note
    return f" [{remark}]" if remark else ""
