"""Log-probabilities of a server as tokens: chat form and legacy form, with exact bytes.

A number that cannot be true is marked as missing (None): minus infinity that is written as -9999,
and the 0.0 that llama-server puts beside tokens of a draft model. Bytes that have no token of the
server become a token without an id and without a logprob.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llm_magic.events import Token, Top

NEVER = -9998.0  # OpenAI and vLLM write -9999 for minus infinity
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
_ID = re.compile(r"token_id:(\d+)")


def tokens_of(
    logprobs: object, top: int | None, at: float = 0.0, ids: object = None
) -> tuple[Token, ...]:
    """The tokens of one `logprobs` object.

    Args:
        logprobs: {"content": [...]} of chats, or {"tokens": [...]} of completions.
        top: How many alternatives were asked for; more are left out.
        at: Seconds since the request.
        ids: The token ids that vLLM sends beside them.
    """
    if not isinstance(logprobs, Mapping):
        return ()
    content = logprobs.get("content")
    if isinstance(content, list):
        tokens = tuple(
            _chat(entry, top or 0, at) for entry in content if isinstance(entry, Mapping)
        )
    else:
        tokens = _legacy(logprobs, top or 0, at)
    if isinstance(ids, list) and len(ids) == len(tokens):
        pairs = zip(tokens, ids, strict=True)
        tokens = tuple(_with_id(t, i) if t.id is None else t for t, i in pairs)
    return tokens


def _with_id(token: Token, id: object) -> Token:
    return Token(
        _id(id), token.bytes, token.logprob, token.rank, token.top, token.at, forced=token.forced
    )


def _chat(entry: Mapping[str, Any], top: int, at: float) -> Token:
    listed = entry.get("top_logprobs")
    rows = [row for row in listed if isinstance(row, Mapping)] if isinstance(listed, list) else []
    tops = [Top(_id(row.get("id")), _entry_bytes(row), logprob(row.get("logprob"))) for row in rows]
    own = _entry_bytes(entry)
    value = logprob(entry.get("logprob"))
    if value == 0.0 and top and not tops:
        value = None  # a token of a draft model: the server did not evaluate its probability
    return Token(_id(entry.get("id")), own, value, _rank(own, value, tops), tuple(tops[:top]), at)


def _legacy(logprobs: Mapping[str, Any], top: int, at: float) -> tuple[Token, ...]:
    texts, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    alternatives = logprobs.get("top_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list):
        return ()
    rows: Sequence[object] = alternatives if isinstance(alternatives, list) else ()
    out = []
    for i, (text, value) in enumerate(zip(texts, values, strict=False)):
        row = rows[i] if i < len(rows) else None
        named = row.items() if isinstance(row, Mapping) else ()
        tops = [Top(_text_id(t), text_bytes(t), logprob(p)) for t, p in named]
        tops.sort(key=lambda a: -math.inf if a.logprob is None else a.logprob, reverse=True)
        own, number = text_bytes(text), logprob(value)
        rank = _rank(own, number, tops)
        out.append(Token(_text_id(text), own, number, rank, tuple(tops[:top]), at))
    return tuple(out)


def logprob(value: object) -> float | None:
    """A log-probability; None for what is missing or cannot be one.

    >>> logprob(-0.5), logprob(-9999.0), logprob(None), logprob(0.3)
    (-0.5, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if NEVER < value <= 1e-6 else None


def text_bytes(text: object) -> bytes:
    r"""The bytes of a token that is written as text; some servers write "bytes:\xe2\x9c".

    >>> text_bytes("bytes:\\xe2\\x9c"), text_bytes(" cat")
    (b'\xe2\x9c', b' cat')
    """
    if not isinstance(text, str):
        return b""
    if match := _BYTES.fullmatch(text):
        return bytes.fromhex(match[1].replace("\\x", ""))
    return text.encode("utf-8", "replace")


def _entry_bytes(entry: Mapping[str, Any]) -> bytes:
    listed = entry.get("bytes")
    if isinstance(listed, list) and all(isinstance(b, int) and 0 <= b < 256 for b in listed):
        return bytes(listed)
    return text_bytes(entry.get("token"))


def _id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text_id(text: object) -> int | None:
    match = _ID.fullmatch(text) if isinstance(text, str) else None
    return int(match[1]) if match else None


def _rank(own: bytes, value: float | None, tops: Sequence[Top]) -> int | None:
    """The place among the alternatives: exact where the token is one of them."""
    if value is None:
        return None
    return next((i for i, t in enumerate(tops, 1) if t.bytes == own and t.logprob == value), None)


# ----------------------------------------------------------------------------- tokens and texts


def aligned(text: bytes, tokens: Sequence[Token], at: float) -> tuple[Token, ...]:
    """The tokens of a piece of text, so that their bytes are the text.

    A server may send a character when its last token has come, without the tokens before; or write
    U+FFFD for the bytes of an incomplete character. The text is what counts: tokens that agree with
    it keep their bytes, and what lies between goes to the token there, or to one that is marked as
    unknown.

    >>> [t.bytes for t in aligned(b"ab", [Token(7, b"b", -1.0, 1)], 0.0)]
    [b'a', b'b']
    """
    own = b"".join(t.bytes for t in tokens)
    if own == text or own.decode("utf-8", "replace").encode() == text:
        return tuple(tokens)  # also where the end is half a character
    start, head = 0, 0
    while head < len(tokens) and text.startswith(tokens[head].bytes, start):
        start += len(tokens[head].bytes)
        head += 1
    end, tail = len(text), len(tokens)
    while tail > head and end - len(tokens[tail - 1].bytes) >= start:
        own = tokens[tail - 1].bytes
        if text[end - len(own) : end] != own:
            break
        end -= len(own)
        tail -= 1
    between = text[start:end]
    middle = [_with_bytes(t, b"") for t in tokens[head:tail]]
    if middle:
        middle[-1] = _with_bytes(middle[-1], between)
    elif between:
        middle = [Token(None, between, None, None, at=at)]
    return (*tokens[:head], *middle, *tokens[tail:])


def _with_bytes(token: Token, own: bytes) -> Token:
    return Token(token.id, own, token.logprob, token.rank, token.top, token.at)


def split(tokens: Sequence[Token], n: int) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
    """The tokens of the first `n` bytes, and those behind them; one on the border is cut."""
    first: list[Token] = []
    for i, token in enumerate(tokens):
        if n <= 0:
            return tuple(first), tuple(tokens[i:])
        if len(token.bytes) > n:
            rest = _with_bytes(token, token.bytes[n:])
            first.append(_with_bytes(token, token.bytes[:n]))
            return tuple(first), (rest, *tokens[i + 1 :])
        first.append(token)
        n -= len(token.bytes)
    return tuple(first), ()
