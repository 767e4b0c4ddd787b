"""Outputs of `%llm`, `%llm status`, `%llm models` and of loading, as HTML and text."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from llm_magic import catalogue, columns
from llm_magic.errors import named
from llm_magic.llm import CHAT, LLM

from ..views import html
from ..views.mime import Fragment

# The fields of a provider's status in the order of display, with their labels.
_FIELDS = {
    "model": "model",
    "device": "device",
    "compute": "compute",
    "ctx": "context",
    "slots": "slots",
    "cache": "cache",
    "reuse": "from the cache",
    "running": "running",
    "queued": "queued",
    "servers": "servers",
    "dim": "vector",
    "pooling": "pooling",
    "memory_bytes": "memory",
    "defaults": "settings of chats",
}


def note(line: str) -> Fragment:
    """One line in a muted colour."""
    return Fragment(html.note(html.text(line)), line)


def overview(
    magic: str, commands: Sequence[tuple[str, str, str]], loaded: Sequence[LLM], model: str
) -> Fragment:
    """What `%llm` alone shows: the loaded models, and the commands as (name, usage, purpose)."""
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
    """One column per loaded model."""
    if not loaded:
        return note(f"no model is loaded; the first cell loads {model}")
    states = [_state(llm) for llm in loaded]
    fields = [f for f in _FIELDS if any(f in s for s in states)]
    plain = "\n".join(" · ".join(f"{_FIELDS[f]} {s[f]}" for f in fields if f in s) for s in states)
    head, *rows = [[_FIELDS[f], *(html.text(s.get(f, "")) for s in states)] for f in fields]
    return Fragment(html.table(head, rows), plain)


def _state(llm: LLM) -> dict[str, str]:
    try:
        status = llm.status()
    except Exception as e:  # a table of several models must not fail with one of them
        return {"model": f"{llm.model} ({named(e)})"}
    known = dataclasses.asdict(status) if dataclasses.is_dataclass(status) else {}  # type: ignore[arg-type]
    known |= {"model": llm.model, "defaults": _settings(llm)} | _cache(known)
    return {name: _words(name, value) for name, value in known.items() if value is not None}


def _settings(llm: LLM) -> str | None:
    """What holds for a chat where nothing else is asked for; None before it is known."""
    try:
        own = dataclasses.asdict(llm.provider.defaults.over(CHAT))
    except Exception:  # of a model that cannot say: see _state
        return None
    return ", ".join(f"{name} {value}" for name, value in own.items() if value is not None)


def _cache(known: Mapping[str, Any]) -> dict[str, str]:
    """The size of the prefix cache, and the prompt tokens that it has saved."""
    names = ("cached_tokens", "cached_bytes", "cache_hits", "cache_misses")
    if any(name not in known for name in names):
        return {}
    tokens, size, hits, misses = (known[name] for name in names)
    state = {"cache": f"{tokens:,} tokens, {size / 1e6:,.1f} MB"}
    if prompt := hits + misses:
        state["reuse"] = f"{hits:,} of {prompt:,} prompt tokens ({hits / prompt:.0%})"
    return state


def _words(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 1e6:,.0f} MB"
    return f"{value:,}" if isinstance(value, int) else str(value)


_LOADED = {"ctx": "context", "slots": "slots", "threads": "threads"}


def loaded(llm: LLM, seconds: float, steady: bool = False) -> Fragment:
    """The result of loading a model."""
    state = _state(llm)
    parts = [f"{state['model']} is loaded"]
    parts += [f"{name} {state[f]}" for f, name in _LOADED.items() if f in state]
    if not steady:
        parts += [f"memory {state['memory_bytes']}"] if "memory_bytes" in state else []
        parts.append(f"{seconds:.1f} s")
    return note(" · ".join(parts))


def connected(llm: LLM, seconds: float, steady: bool = False) -> Fragment:
    """The result of connecting to a server."""
    state = _state(llm)
    parts = [f"connected to {llm.model}"]
    parts += [] if steady else [state.get("compute", "")]
    parts += [f"context {state['ctx']}"] if "ctx" in state else []
    parts += [] if steady else [f"{seconds:.1f} s"]
    return note(" · ".join(filter(None, parts)))


def models(loaded: Sequence[LLM], magic: str) -> Fragment:
    """All models that can be loaded, with hints at the commands."""
    used = {llm.model: _state(llm).get("path") for llm in loaded}
    known = catalogue.rows()
    rows = [catalogue.cells(row, used, used.values()) for row in known]
    paths = {str(row.path) for row in known}
    extra = {n for n, path in used.items() if path not in paths} - {row.name for row in known}
    rows += [(name, "loaded", *[""] * 5) for name in sorted(extra)]
    # Names and sizes do not wrap; long addresses may break anywhere, or they would widen the table.
    look = (*["white-space:nowrap"] * 5, *["overflow-wrap:anywhere"] * 2)
    cells = [
        [
            f'<span style="{how}">{html.text(cell)}</span>'
            for how, cell in zip(look, row, strict=True)
        ]
        for row in rows
    ]
    page = html.table(_MODELS, cells, numbers=(2, 3, 4))
    hints = [hint.format(f"%{magic}") for hint in _HINTS]
    plain = columns.aligned([_MODELS[:6], *(row[:6] for row in rows)], {2, 3, 4})
    notes = "".join(html.note(html.text(hint)) for hint in hints)
    return Fragment(page + notes, "\n".join([*plain, *hints]))


_MODELS = ("model", "state", "size", "memory", "context", "what it is", "licence")
# {0}: the magic's name.
_HINTS = (
    "{0} load NAME fetches and loads a model; {0} fetch NAME only downloads it;"
    " {0} remove NAME deletes what was downloaded.\n"
    "Memory: with one conversation of 4,096 tokens. NAME is also a path to a .gguf file, a folder,"
    " the URL of a .gguf file, or owner/repo[:file] of the Hugging Face hub."
).splitlines()
