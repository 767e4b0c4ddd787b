"""Tokens made visible: blanks, line ends, single bytes and invisible characters; the inspector.

Comes in: the bytes of tokens, or the pieces of a tokenised text. Goes out: text and HTML that show
every one of them. It must not know models.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from ..events import Piece
from . import html

# Joiners and variation selectors belong to the emoji or script around them; alone they are marked.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")


def decode(data: bytes) -> str:
    """The text of a token; bytes that are not UTF-8 on their own become ⟨hex⟩."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    parts: list[str] = []
    run = bytearray()
    for char in data.decode("utf-8", "surrogateescape"):
        if "\udc80" <= char <= "\udcff":
            run.append(ord(char) - 0xDC00)
            continue
        if run:
            parts.append(f"⟨{run.hex()}⟩")
            run.clear()
        parts.append(char)
    if run:
        parts.append(f"⟨{run.hex()}⟩")
    return "".join(parts)


def flowing(data: bytes) -> str:
    """A token in running text: as it is, with marks where nothing would be seen."""
    text = decode(data)
    if text and not text.strip(" "):
        return "·" * len(text)
    return _mark(text, {"\n": "⏎\n", "\r": "␍", "\t": "→\t"})


def alone(data: bytes, width: int = 40) -> str:
    """A token in a table cell: every blank is visible; longer ones are cut in the middle."""
    text = _mark(decode(data), {" ": "␣", "\n": "⏎", "\r": "␍", "\t": "→"})
    if len(text) > width:
        text = text[: width - width // 3 - 1] + "…" + text[-(width // 3) :]
    return text or "∅"


def _mark(text: str, names: dict[str, str]) -> str:
    return "".join(names.get(c) or (_code(c) if _hidden(c, text) else c) for c in text)


def _hidden(char: str, text: str) -> bool:
    if char in _JOINERS:
        return len(text) == 1
    # Cf holds the direction overrides, which would reorder everything after them.
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _code(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩"


# ----------------------------------------------------------------------------- the inspector

# Two quiet shades in turn show where tokens end; control tokens and the cached part have their own,
# and a mark each, for where there is no colour. Text and background contrast >= 4.5:1.
_SHADES = (("#e8eef7", "#1b2733"), ("#f6ecd9", "#2b2100"))
_CONTROL = ("#5b3fa8", "#ffffff")
DARK = {
    ".lm-t0": "background:#22303f!important;color:#e3edf7!important",
    ".lm-t1": "background:#3a3018!important;color:#f7ead0!important",
    ".lm-tc": "background:#b9a3f5!important;color:#1a1030!important",
}
SHOWN = 2_000  # pieces before the rest is left to the table


def inspector(pieces: Sequence[Piece], cached: int | None = None) -> str:
    """Pieces in their order, and a folded table. cached: how many come from the cache."""
    specials = sum(p.special for p in pieces)
    characters = sum(len(p.text) for p in pieces if not p.special)
    facts = [f"{len(pieces):,} tokens", f"{characters:,} characters"]
    if specials:
        facts.append(f"{specials:,} control tokens")
    if cached is not None:
        facts.append(f"{cached:,} cached + {len(pieces) - cached:,} new")
    flow = "".join(_chips(pieces[:SHOWN], cached))
    if len(pieces) > SHOWN:
        flow += f"… {len(pieces) - SHOWN:,} more"
    return (
        f'<pre style="{html.FLOW}">{flow}</pre>' + html.note(*facts)
        + html.fold("Table of all tokens", _piece_table(pieces))
    )  # fmt: skip


def _chips(pieces: Sequence[Piece], cached: int | None) -> Iterator[str]:
    for i, piece in enumerate(pieces):
        if i == cached and i:
            yield "<strong>│ new │</strong>"
        name, (background, color) = (
            ("lm-tc", _CONTROL) if piece.special else (f"lm-t{i % 2}", _SHADES[i % 2])
        )
        tip = html.attribute(f"{piece.id} · {piece.bytes.hex(' ')[:60]}")
        look = f"background-color:{background};color:{color}"
        text = html.escape(piece.text if piece.special else flowing(piece.bytes))
        yield f'<span class="{name}" title="{tip}" style="{look}">{text}</span>'


def _piece_table(pieces: Sequence[Piece]) -> str:
    rows = [
        (
            str(i),
            str(p.id),
            alone(p.bytes or p.text.encode(), 24),
            "control" if p.special else "",
            p.bytes.hex(" "),
        )
        for i, p in enumerate(pieces)
    ]
    return html.columns(("#", "id", "token", "kind", "bytes"), rows, numbers=(0, 1))


def listing(pieces: Sequence[Piece]) -> str:
    """The pieces as text: `Hello|,|␣world`, and their ids."""
    names = "|".join(p.text if p.special else alone(p.bytes) for p in pieces)
    return f"{len(pieces)} tokens: {names}\nids: {' '.join(str(p.id) for p in pieces)}"


# ----------------------------------------------------------------------------- the prompt

# Strings that chat templates put around turns; what stands behind an opening one is a role.
_MARKER = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:bos|eos|pad)>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
)
_ROLES = ("system", "user", "assistant", "tool", "model", "developer")
_ROLE = re.compile(rf"({'|'.join(_ROLES)})(?=\s|<|$)")
_ROLE_LOOK = {
    "system": "border-left:3px solid #8250df",
    "user": "border-left:3px solid #0969da",
    "assistant": "border-left:3px solid #bf5b00",
    "model": "border-left:3px solid #bf5b00",
}


def prompt(text: str, count: int, cached: int) -> str:
    """A rendered prompt: one block per turn, template markers set off, the counts below."""
    blocks = "".join(_turn(role, segment) for role, segment in turns(text))
    facts = [f"{count:,} tokens"] if count else []
    if cached:
        facts.append(f"{cached:,} cached + {count - cached:,} new")
    return blocks + (html.note(*facts) if facts else "")


def turns(text: str) -> list[tuple[str, str]]:
    """(role, text with its markers) of a rendered prompt; "" where no role is named."""
    starts = [0]
    roles = [""]
    for marker in _MARKER.finditer(text):
        role = _ROLE.match(text, marker.end())
        if role is not None:
            starts.append(marker.start())
            roles.append(role[1])
    ends = [*starts[1:], len(text)]
    return [(r, text[a:b]) for r, a, b in zip(roles, starts, ends, strict=True) if text[a:b]]


def _turn(role: str, segment: str) -> str:
    look = _ROLE_LOOK.get(role, "border-left:3px solid #8c959f")
    background, color = _CONTROL
    at, parts = 0, []
    for marker in _MARKER.finditer(segment):
        parts.append(html.escape(segment[at : marker.start()]))
        parts.append(
            f'<span class="lm-tc" style="background-color:{background};color:{color}">'
            f"{html.escape(marker[0])}</span>"
        )
        at = marker.end()
    parts.append(html.escape(segment[at:]))
    name = html.note(f"<strong>{role}</strong>") if role else ""
    return (
        f'<div style="{look};padding-left:8px;margin:4px 0">{name}'
        f'<pre style="{html.FLOW}">\n{"".join(parts)}</pre></div>'
    )
