"""What is loaded and what there is, as small outputs of the `%llm` commands.

Comes in: the loaded LLMs and the table of models. Goes out: fragments (HTML and text). It must not
know options or shells.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import models as files
from ..llm import LLM
from . import html
from .bundles import Fragment

# Fields of a provider's status in this order, with the words for people; others are left out.
_FIELDS = {
    "model": "model",
    "device": "device",
    "threads": "threads",
    "ctx": "context",
    "slots": "slots",
    "cached_tokens": "cached tokens",
    "running": "running",
    "queued": "queued",
    "memory_bytes": "memory",
}


def note(line: str) -> Fragment:
    """One quiet line."""
    return Fragment(html.note(html.text(line)), line)


def overview(
    magic: str, commands: Sequence[tuple[str, str, str]], loaded: Sequence[LLM], model: str
) -> Fragment:
    """What `%llm` alone shows: what is loaded, and what can be typed: (command, usage, purpose)."""
    state = table(loaded, model)
    everything = [*((f"%{magic} {name}", usage, what) for name, usage, what in commands)]
    everything.append(
        (f"%%{magic}", "[options]", f"ask: the cell is the prompt (%%{magic}? for help)")
    )
    lines = [f"{name} {usage}: {what}" for name, usage, what in everything]
    rows = [
        (f"<code>{html.escape(name)}</code> <small>{html.text(usage)}</small>", html.text(what))
        for name, usage, what in everything
    ]
    return Fragment(
        state.body + html.table(("command", "what it does"), rows),
        "\n".join([state.plain, "", *lines]),
    )


def table(loaded: Sequence[LLM], model: str) -> Fragment:
    """One row per loaded model."""
    if not loaded:
        return note(f"no model is loaded; the first cell loads {model}")
    states = [_state(llm) for llm in loaded]
    columns = [f for f in _FIELDS if any(f in s for s in states)]
    rows = [[s.get(f, "") for f in columns] for s in states]
    head = [_FIELDS[f] for f in columns]
    numbers = range(2, len(columns))
    plain = "\n".join(
        " · ".join(f"{h} {cell}" for h, cell in zip(head, row, strict=True) if cell) for row in rows
    )
    cells = [[html.text(cell) for cell in row] for row in rows]
    return Fragment(html.table(head, cells, numbers=numbers), plain)


def _state(llm: LLM) -> dict[str, str]:
    try:
        status = llm.status()
    except Exception as e:  # a table of several models must not fail with one of them
        return {"model": f"{llm.model} ({type(e).__name__}: {e})"}
    fields = dataclasses.asdict(status) if dataclasses.is_dataclass(status) else {}  # type: ignore[arg-type]
    values = {name: fields[name] for name in _FIELDS if fields.get(name) is not None}
    return {name: _words(name, value) for name, value in values.items()} | {"model": llm.model}


def _words(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,}" if isinstance(value, int) else str(value)


def loaded(llm: LLM, seconds: float, steady: bool = False) -> Fragment:
    """What a load ended with."""
    state = _state(llm)
    parts = [f"{state['model']} is loaded"]
    parts += [f"{_FIELDS[f]} {state[f]}" for f in ("ctx", "slots", "threads") if f in state]
    if not steady:
        parts += [f"{_FIELDS[f]} {state[f]}" for f in ("memory_bytes",) if f in state]
        parts.append(f"{seconds:.1f} s")
    return note(" · ".join(parts))


def models(loaded: Sequence[LLM]) -> Fragment:
    """All names that can be loaded."""
    names = {llm.model for llm in loaded}
    known = files.known()
    rows = [
        (
            row.name,
            "loaded" if row.name in names else "here" if row.cached else "to fetch",
            f"{row.size / 1e6:,.0f} MB" if row.size else "",
            row.description,
            row.licence,
        )
        for row in known
    ]
    extra = names - {row.name for row in known}
    rows += [(name, "loaded", "", "", "") for name in sorted(extra)]
    cells = [[html.text(cell) for cell in row] for row in rows]
    page = html.table(("model", "state", "size", "what it is", "licence"), cells, numbers=(2,))
    hint = "also: a path to a .gguf file, a folder, or owner/repo[:file] of the Hugging Face hub"
    plain = "\n".join(f"{r[0]:14} {r[1]:9} {r[2]:>8}  {r[3]}" for r in rows)
    return Fragment(page + html.note(html.text(hint)), f"{plain}\n{hint}")
