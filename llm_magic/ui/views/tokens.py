"""Tokens made visible: blanks, line ends, single bytes, invisible characters; the inspector."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

from llm_magic.events import Piece

from . import html
from .summary import counted

# Joiners and variation selectors belong to the emoji or script around them; alone they are marked.
_JOINERS = frozenset("\u200c\u200d\ufe0e\ufe0f")


def decode(data: bytes) -> str:
    r"""The text of a token; bytes that are not UTF-8 on their own become ⟨hex⟩.

    >>> decode(b"caf\xc3")
    'caf⟨c3⟩'
    """
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
    """A token in running text: as it is, with marks where nothing would be seen.

    >>> flowing(b" cat"), flowing(b"  ")
    (' cat', '··')
    """
    text = decode(data)
    if text and not text.strip(" "):
        return "·" * len(text)
    return _mark(text, {"\n": "⏎\n", "\r": "␍", "\t": "→\t"})


def alone(data: bytes, width: int = 40) -> str:
    """A token in a table cell: every blank is visible; longer ones are cut in the middle.

    >>> alone(b" cat"), alone(b""), alone(b"abcdefghijkl", 8)
    ('␣cat', '∅', 'abcde…kl')
    """
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
    """Pieces in their order, those of a turn set off by its role, and a folded table. cached: how
    many come from the cache."""
    specials = sum(p.special for p in pieces)
    # Of all bytes together: a character may be spread over several tokens.
    said = b"".join(p.bytes or p.text.encode() for p in pieces if not p.special)
    characters = len(said.decode("utf-8", "replace"))
    facts = [counted(len(pieces), "token"), counted(characters, "character")]
    if specials:
        facts.append(counted(specials, "control token"))
    if cached is not None:
        facts.append(f"{cached:,} cached + {len(pieces) - cached:,} new")
    shown, more = pieces[:SHOWN], len(pieces) - SHOWN
    spread = _spread(pieces)
    parts = [
        block(role, "".join(_chips(shown, spread, a, b, cached))) for role, a, b in _segments(shown)
    ]
    if more > 0:
        parts.append(html.note(f"… {more:,} more"))
    parts += [html.note(*facts), html.fold("Table of all tokens", _piece_table(pieces, spread))]
    return "".join(parts)


def _segments(pieces: Sequence[Piece]) -> list[tuple[str, int, int]]:
    """(role, first piece, place behind the last one) of each turn, "" where no role is named.

    Only control tokens begin one: text of a user that looks like a marker does not.
    """
    begins = [(0, "")]
    for i, piece in enumerate(pieces):
        if piece.special:
            behind = "".join(p.text for p in pieces[i + 1 : i + 5])
            begins.append((i, _role(piece.text, behind)))
    return _cut(begins, len(pieces))


Spread = dict[int, tuple[int, bytes]]


def _spread(pieces: Sequence[Piece]) -> Spread:
    """Characters that are spread over tokens: {first piece: (place behind the last, all bytes)}.

    An emoji or a letter outside of the vocabulary is several tokens, none of which is a character.
    """
    found: Spread = {}
    held, start = b"", 0
    for i, piece in enumerate(pieces):
        if piece.special:  # no character goes on behind it
            held = b""
            continue
        start, held = (start if held else i), held + piece.bytes
        try:
            held.decode()
        except UnicodeDecodeError as e:
            held = held if e.end == len(held) and e.reason == "unexpected end of data" else b""
            continue
        if i > start:
            found[start] = i + 1, held.strip()
        held = b""
    return found


def _chips(
    pieces: Sequence[Piece], spread: Spread, start: int, end: int, cached: int | None
) -> Iterator[str]:
    until, whole = 0, b""
    for i, piece in enumerate(pieces[start:end], start):
        if i == cached and i:
            yield "<strong>│ new │</strong>"
        if i in spread and spread[i][0] <= end:
            until, whole = spread[i]
            yield '<span style="border-bottom:2px solid #8c959f">'
        name, (background, color) = (
            ("lm-tc", _CONTROL) if piece.special else (f"lm-t{i % 2}", _SHADES[i % 2])
        )
        tip = html.attribute(f"{piece.id} · {piece.bytes.hex(' ')[:60]}")
        look = f"background-color:{background};color:{color}"
        text = html.escape(piece.text if piece.special else flowing(piece.bytes))
        yield f'<span class="{name}" title="{tip}" style="{look}">{text}</span>'
        if i + 1 == until:
            yield f"</span><strong> = {html.escape(flowing(whole))} </strong>"


def _piece_table(pieces: Sequence[Piece], spread: Spread) -> str:
    kinds = ["control" if p.special else "" for p in pieces]
    for start, (end, whole) in spread.items():
        kinds[start:end] = [f"bytes of {alone(whole, 24)}"] * (end - start)
    rows = [
        (str(i), str(p.id), alone(p.bytes or p.text.encode(), 24), kind, p.bytes.hex(" "))
        for i, (p, kind) in enumerate(zip(pieces, kinds, strict=True))
    ]
    return html.columns(("#", "id", "token", "kind", "bytes"), rows, numbers=(0, 1))


def listing(pieces: Sequence[Piece]) -> str:
    """The pieces as text: `Hello|,|␣world`, and their ids."""
    names = "|".join(p.text if p.special else alone(p.bytes) for p in pieces)
    return f"{counted(len(pieces), 'token')}: {names}\nids: {' '.join(str(p.id) for p in pieces)}"


# ----------------------------------------------------------------------------- the prompt

# Strings that chat templates put around turns.
_MARKER = re.compile(
    r"<[|｜][^|｜<>\s]{1,40}[|｜]>|\[\|\w{1,40}\|\]|</?s>|<(?:bos|eos|pad)>"
    r"|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
)
_ROLES = ("system", "user", "assistant", "tool", "model", "developer")
_ROLE = re.compile(rf"({'|'.join(_ROLES)})(?=\s|<|$)")
_NAMED = {"inst": "user", "/inst": "assistant", "sys": "system"}
_ROLE_LOOK = {
    "system": "border-left:3px solid #8250df",
    "user": "border-left:3px solid #0969da",
    "assistant": "border-left:3px solid #bf5b00",
    "model": "border-left:3px solid #bf5b00",
}


def prompt(text: str, count: int, cached: int) -> str:
    """A rendered prompt: one block per turn, template markers set off, the counts below."""
    blocks = "".join(block(role, _marked(segment)) for role, segment in turns(text))
    facts = [counted(count, "token")] if count else []
    if cached:
        facts.append(f"{cached:,} cached + {count - cached:,} new")
    return blocks + (html.note(*facts) if facts else "")


def turns(text: str) -> list[tuple[str, str]]:
    """(role, text with its markers) of a rendered prompt; "" where no role is named."""
    begins = [(0, "")]
    for marker in _MARKER.finditer(text):
        begins.append((marker.start(), _role(marker[0], text[marker.end() : marker.end() + 20])))
    return [(role, text[a:b]) for role, a, b in _cut(begins, len(text))]


def without_markers(text: str) -> str:
    """A rendered prompt without the strings that templates put around turns."""
    return _MARKER.sub("", text)


def _role(marker: str, behind: str) -> str:
    """The role whose turn a marker opens, which it names itself (`<|user|>`) or which stands behind
    it (`<|im_start|>user`); "" for all other markers."""
    name = marker.strip("<|｜>[] ").lower()
    itself = _NAMED.get(name) or name.rpartition("_")[2]
    if itself in _ROLES:
        return itself
    # Behind the beginning of the text a word is just a word.
    found = _ROLE.match(behind) if "start" in name and "text" not in name else None
    return found[1] if found else ""


def _cut(begins: Sequence[tuple[int, str]], end: int) -> list[tuple[str, int, int]]:
    """(role, first place, place behind the last one) from (place, role); without a role a place
    belongs to what goes before it."""
    named = [begins[0], *((place, role) for place, role in begins[1:] if role)]
    ends = [*(place for place, _ in named[1:]), end]
    return [(role, a, b) for (a, role), b in zip(named, ends, strict=True) if a < b]


def _marked(segment: str) -> str:
    """Text of a prompt with its markers set off."""
    at, parts = 0, []
    for marker in _MARKER.finditer(segment):
        parts.append(html.escape(segment[at : marker.start()]))
        parts.append(chip(marker[0]))
        at = marker.end()
    return "".join(parts) + html.escape(segment[at:])


def chip(name: str) -> str:
    """A word that is no text of the turn around it: a template's marker, a kind of part."""
    background, color = _CONTROL
    look = f"background-color:{background};color:{color}"
    return f'<span class="lm-tc" style="{look}">{html.escape(name)}</span>'


def block(role: str, inner: str, name: str = "") -> str:
    """One turn, with a line of its role's colour beside it and the role in words above it.

    inner: HTML. name: of who speaks in that role.
    """
    look = _ROLE_LOOK.get(role, "border-left:3px solid #8c959f")
    names = [f"<strong>{html.text(word)}</strong>" for word in (role, name) if word]
    head = html.note(*names) if names else ""
    return (
        f'<div style="{look};padding-left:8px;margin:4px 0">{head}'
        f'<pre style="{html.FLOW}">\n{inner}</pre></div>'
    )
