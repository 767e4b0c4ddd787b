"""A chat as static HTML, Markdown, text and data: what stays in the saved notebook.

It needs no kernel, no script and no style sheet. It is made of rows, one per turn, and of what
stands around them, so that a page needs to be sent the changed rows only (transcript.js puts them
together). A file that holds such an output gives the conversation back.
"""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_magic.events import ToolRecord
from llm_magic.json_types import JsonObject
from llm_magic.ui.views import summary, tooltrace

from .thread import ChatThread, ChatTurn

VENDOR = "application/vnd.llm-magic.chat+json"
MAX_DATA = 250_000  # characters of the conversation as data; a longer one is saved as HTML only
_WHO = {"user": "You", "assistant": "Model"}
_EDGE = {"user": "#8a8a8a", "assistant": "#1f77b4"}  # hex only: front ends strip variables

Bundle = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A MIME bundle in parts.

    Args:
        frame: For each MIME type of text: what stands before the rows, between two of them, and
            after the last one.
        rows: For each turn, its part of each MIME type; that of `VENDOR` is an object.
        data: The object of `VENDOR` without its turns, or None where there is none.
    """

    frame: Mapping[str, tuple[str, str, str]]
    rows: tuple[Mapping[str, Any], ...]
    data: Mapping[str, Any] | None = None

    def bundle(self) -> Bundle:
        """The output as a whole.

        >>> Transcript({"text/plain": ("<", ", ", ">")}, ({"text/plain": "a"},) * 2).bundle()
        {'text/plain': '<a, a>'}
        """
        out: Bundle = {
            mime: before + between.join(row[mime] for row in self.rows) + after
            for mime, (before, between, after) in self.frame.items()
        }
        if self.data is not None:
            out[VENDOR] = {**self.data, "turns": [row[VENDOR] for row in self.rows]}
        return out

    def since(self, old: "Transcript | None") -> JsonObject:
        """What a page that has the old one needs for the new one.

        >>> row = {"text/plain": "a"}
        >>> old = Transcript({}, (row,))
        >>> Transcript({}, (row, {"text/plain": "b"})).since(old)
        {'frame': {}, 'data': None, 'at': 1, 'rows': [{'text/plain': 'b'}]}
        """
        known = old.rows if old is not None else ()
        at = 0
        while at < min(len(known), len(self.rows)) and known[at] == self.rows[at]:
            at += 1
        frame: JsonObject = {mime: list(parts) for mime, parts in self.frame.items()}
        return {"frame": frame, "data": self.data, "at": at, "rows": list(self.rows[at:])}


def transcript(
    turns: ChatThread, model: str, steady: bool = False, about: Mapping[str, Any] | None = None
) -> Transcript:
    """The conversation that is shown, with text/plain, text/markdown, text/html and our own JSON.

    Args:
        turns: An answer that is being written is left out.
        model: Its name.
        steady: Nothing that differs between two runs, and no JSON.
        about: What else the JSON holds.
    """
    path = [turn for turn in turns.path() if not turn.busy]
    head = title(path, model)
    gap = "\n\n" if path else ""
    summary_ = f"<summary>{html.escape(head)}</summary>"
    frame = {
        "text/plain": (head + gap, "\n\n", ""),
        "text/markdown": (f"*{head}*{gap}", "\n\n", ""),
        # OpenStream: where no widget lives, it is all that shows the conversation.
        "text/html": (f"<details open>{summary_}", "", "</details>"),
    }
    data = None if steady or not path else _data(turns)
    saved: Sequence[Any] = data.pop("turns") if data is not None else ()
    rows: list[dict[str, Any]] = [
        {
            "text/plain": _text(turn, steady),
            "text/markdown": _markdown(turn),
            "text/html": _html(turn, steady),
        }
        for turn in path
    ]
    for row, one in zip(rows, saved, strict=False):
        row[VENDOR] = one
    known = None if data is None else {**data, "model": model, **(about or {})}
    return Transcript(frame, tuple(rows), known)


def bundle(
    turns: ChatThread, model: str, steady: bool = False, about: Mapping[str, Any] | None = None
) -> Bundle:
    """As `transcript`, as a whole."""
    return transcript(turns, model, steady, about).bundle()


def _data(turns: ChatThread) -> dict[str, Any] | None:
    """The conversation with as much of it as there is room for, or None."""
    for how in ({}, {"versions": False}, {"versions": False, "replies": False}):
        data = turns.to_dict(tokens=False, **how)
        if len(json.dumps(data, ensure_ascii=False)) <= MAX_DATA:
            return data
    return None


def read(path: Path) -> Any:
    """The conversation in a saved file or, as the last transcript, in a notebook.

    Not checked: `ChatThread.load` does that. Raises ValueError when there is none.
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
        raise ValueError(f"{path.name} holds no saved chat")
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


def title(turns: list[ChatTurn], model: str) -> str:
    n = sum(turn.role == "user" for turn in turns)
    if not n:
        return f"Transcript of the chat with {model}: empty so far"
    return f"Transcript of the chat with {model}: {n} turn{'s' * (n != 1)}"


def _text(turn: ChatTurn, steady: bool) -> str:
    calls = f"\n{tooltrace.plain(_trace(turn, steady))}" if turn.trace else ""
    return f"{_WHO[turn.role]}: {turn.message.text}{_remark(turn)}{calls}"


def _markdown(turn: ChatTurn) -> str:
    return f"**{_WHO[turn.role]}**\n\n{turn.message.text}{_remark(turn)}"


def _html(turn: ChatTurn, steady: bool) -> str:
    """The blocks of an answer were made safe when they were rendered."""
    if turn.role == "user":
        body = f"<p>{html.escape(turn.text)}</p>".replace("\n", "<br>")
    else:
        body = _thoughts(turn) + tooltrace.fragment(_trace(turn, steady))
        body += "".join(turn.answer.blocks)
        foot = " · ".join([*turn.foot(steady), *filter(None, (turn.note, turn.error))])
        body += f"<p><small>{html.escape(foot)}</small></p>" if foot else ""
    style = f"margin:6px 0;padding:2px 10px;border-left:3px solid {_EDGE[turn.role]}"
    return f'<div style="{style}"><b>{_WHO[turn.role]}</b>{body}</div>'


def _trace(turn: ChatTurn, steady: bool) -> Sequence[ToolRecord]:
    return summary.steady_trace(turn.trace) if steady else turn.trace


def _thoughts(turn: ChatTurn) -> str:
    if not turn.reasoning.blocks:
        return ""
    return f"<details><summary>Reasoning</summary>{''.join(turn.reasoning.blocks)}</details>"


def _remark(turn: ChatTurn) -> str:
    remark = turn.error or turn.note
    return f" [{remark}]" if remark else ""
