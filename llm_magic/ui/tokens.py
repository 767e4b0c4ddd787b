"""Tokens made visible: blanks, line ends, single bytes and invisible characters.

Comes in: the bytes of tokens. Goes out: text that shows every one of them. It must not know models.
"""

import unicodedata

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
