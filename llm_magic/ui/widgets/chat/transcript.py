"""A chat as static HTML, Markdown, text and data: what stays in the saved notebook.

Comes in: the turns of the shown path. Goes out: a MIME bundle that needs no kernel, no script and
no style sheet, and from such a bundle in a file the conversation again. It must not know widgets or
threads.
"""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_magic.events import ToolRecord
from llm_magic.ui.views import summary, tooltrace

from .thread import Turn, Turns

VENDOR = "application/vnd.llm-magic.chat+json"
MAX_DATA = 250_000  # characters of the conversation as data; a longer one is saved as HTML only
_WHO = {"user": "You", "assistant": "Model"}
_EDGE = {"user": "#8a8a8a", "assistant": "#1f77b4"}  # hex only: front ends strip variables


def bundle(
    turns: Turns, model: str, steady: bool = False, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """text/plain, text/markdown, text/html and our own JSON of the turns.

    steady: nothing that differs between two runs, and no JSON. about: what else the JSON holds.
    """
    path = turns.path()
    out: dict[str, Any] = {
        "text/plain": text(path, model, steady),
        "text/markdown": markdown(path, model),
        "text/html": folded(path, model, steady),
    }
    if steady:
        return out
    data = _data(turns) if path else None
    if data is not None:
        out[VENDOR] = {**data, "model": model, **(about or {})}
    return out


def _data(turns: Turns) -> dict[str, Any] | None:
    """The conversation with as much of it as there is room for, or None."""
    for how in ({}, {"versions": False}, {"versions": False, "replies": False}):
        data = turns.to_dict(tokens=False, **how)
        if len(json.dumps(data, ensure_ascii=False)) <= MAX_DATA:
            return data
    return None


def read(path: Path) -> Any:
    """The conversation in a saved file or, as the last transcript, in a notebook.

    Not checked: `Turns.load` does that. Raises ValueError when there is none.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    if not (isinstance(data, Mapping) and "nbformat" in data):
        return data
    held = [output["data"] for _, found in outputs(data) for output in found]
    found = [data[VENDOR] for data in held if VENDOR in data]
    if not found:
        raise ValueError(f"{path.name} holds no transcript of a chat")
    return found[-1]


def outputs(notebook: Any) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """The cells of a notebook, each with those of its outputs that hold data."""
    for cell in _mappings(notebook.get("cells") if isinstance(notebook, Mapping) else None):
        found = _mappings(cell.get("outputs"))
        yield cell, [output for output in found if isinstance(output.get("data"), Mapping)]


def _mappings(items: Any) -> Iterator[Mapping[str, Any]]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping):
            yield item


def title(turns: list[Turn], model: str) -> str:
    n = sum(turn.role == "user" for turn in turns)
    if not n:
        return f"Transcript of the chat with {model}: empty so far"
    return f"Transcript of the chat with {model}: {n} turn{'s' * (n != 1)}"


def text(turns: list[Turn], model: str, steady: bool = False) -> str:
    rows = [title(turns, model)]
    for turn in turns:
        calls = f"\n{tooltrace.plain(_trace(turn, steady))}" if turn.trace else ""
        rows.append(f"{_WHO[turn.role]}: {turn.message.text}{_remark(turn)}{calls}")
    return "\n\n".join(rows)


def markdown(turns: list[Turn], model: str) -> str:
    rows = [f"*{title(turns, model)}*"]
    for turn in turns:
        rows.append(f"**{_WHO[turn.role]}**\n\n{turn.message.text}{_remark(turn)}")
    return "\n\n".join(rows)


def folded(turns: list[Turn], model: str, steady: bool = False) -> str:
    """The HTML: one `details` element, closed. The answers' blocks were made safe when rendered."""
    head = f"<summary>{html.escape(title(turns, model))}</summary>"
    return f"<details>{head}{''.join(_row(turn, steady) for turn in turns)}</details>"


def _row(turn: Turn, steady: bool) -> str:
    if turn.role == "user":
        body = f"<p>{html.escape(turn.text)}</p>".replace("\n", "<br>")
    else:
        body = _thoughts(turn) + tooltrace.fragment(_trace(turn, steady))
        body += "".join(turn.answer.blocks)
        foot = " · ".join([*turn.foot(steady), *filter(None, (turn.note, turn.error))])
        body += f"<p><small>{html.escape(foot)}</small></p>" if foot else ""
    style = f"margin:6px 0;padding:2px 10px;border-left:3px solid {_EDGE[turn.role]}"
    return f'<div style="{style}"><b>{_WHO[turn.role]}</b>{body}</div>'


def _trace(turn: Turn, steady: bool) -> Sequence[ToolRecord]:
    return summary.steady_trace(turn.trace) if steady else turn.trace


def _thoughts(turn: Turn) -> str:
    if not turn.reasoning.blocks:
        return ""
    return f"<details><summary>Reasoning</summary>{''.join(turn.reasoning.blocks)}</details>"


def _remark(turn: Turn) -> str:
    remark = turn.error or turn.note
    return f" [{remark}]" if remark else ""
