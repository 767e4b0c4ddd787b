"""Which part of a prompt made an answer likely: each part is left out once.

The change of the log-probability of what was said, when a part is missing, is the leave-one-out
effect (occlusion). The texts are evaluated side by side and share cached beginnings; every number
has the bits of an evaluation alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..chat.reply import Reply
from ..errors import LLMError, RequestError, UnsupportedError
from ..extension_points import INSIDE_VIEWS
from ..provider import BatchScoring, Provider, inside_of
from ..taps import Inside
from .shown import Shown

PARTS = ("sentences", "messages", "tokens")
_SENTENCE = re.compile(r".+?(?:[.!?…](?=[\s\"'”’)]|$)[\"'”’)]*\s*|\n+|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Cause:
    """One part of the prompt.

    Attributes:
        text: The part.
        start: Its first token in the prompt.
        stop: The token behind its last one.
        effect: The log-probability of what was said with the whole prompt minus that without this
            part, in nats: positive where the part made the answer likelier.
    """

    text: str
    start: int
    stop: int
    effect: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Causes(Shown):
    """The parts of a prompt with their effects: displays as the shaded prompt.

    Attributes:
        answer: The text whose log-probability is meant.
        logprob: Its log-probability behind the whole prompt, in nats.
        parts: What can be left out, in the order of the prompt.
        pieces: The whole prompt as (text, index of its part or None).
    """

    answer: str
    logprob: float
    parts: tuple[Cause, ...]
    pieces: tuple[tuple[str, int | None], ...]

    def explore(self) -> Any:
        """The live view: hover or move through the parts for their effects."""
        return INSIDE_VIEWS.load().explore(self)

    def top(self, n: int = 3) -> tuple[Cause, ...]:
        """The n parts with the largest effects, for or against."""
        return tuple(sorted(self.parts, key=lambda part: -abs(part.effect))[:n])


def sentences(text: str) -> list[str]:
    """A text cut behind its sentences and lines; joined they are the text.

    >>> sentences("It rains. Take a coat!")
    ['It rains. ', 'Take a coat!']
    """
    return [m[0] for m in _SENTENCE.finditer(text) if m[0]]


def causes(provider: Provider, reply: Reply, of: object, parts: str) -> Causes:
    """See `Reply.causes`."""
    inside = inside_of(provider)
    if parts not in PARTS:
        raise RequestError(f"parts is {parts!r}; it must be one of {', '.join(PARTS)}")
    if not reply.prompt_ids:
        raise RequestError("the reply does not hold its prompt, so nothing can be left out of it")
    begun, said = _answer(reply, of)
    prompt = reply.prompt_ids
    spans = _spans(provider, inside, reply, parts)
    # From the last part to the first: each text's beginning is in the cache already.
    order = sorted(range(len(spans)), key=lambda i: -spans[i][0])
    left = [(*prompt[: spans[i][0]], *prompt[spans[i][1] :], *begun) for i in order]
    if any(not ids for ids in left):
        raise RequestError("nothing of the prompt would be left; cut it into smaller parts")
    sums = _logprobs(provider, [(*prompt, *begun), *left], said)
    effects = {i: sums[0] - value for i, value in zip(order, sums[1:], strict=True)}
    texts = [_text(inside, prompt[a:b]) for a, b in spans]
    found = tuple(
        Cause(text, a, b, effects[i])
        for i, (text, (a, b)) in enumerate(zip(texts, spans, strict=True))
    )
    return Causes(_text(inside, said), sums[0], found, _pieces(inside, prompt, spans))


def _logprobs(
    provider: Provider, contexts: Sequence[Sequence[int]], said: Sequence[int]
) -> list[float]:
    """The log-probability of what was said behind each context, evaluated side by side."""
    if not isinstance(provider, BatchScoring):
        raise UnsupportedError("score")
    out = []
    for found in provider.score_continuations((context, said) for context in contexts):
        if isinstance(found, LLMError):
            raise found
        out.append(found.logprob)
    return out


def _answer(reply: Reply, of: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(tokens of the reply before what is meant, the tokens that are meant)"""
    ids = tuple(token.id for token in reply.tokens if token.id is not None)
    if len(ids) < len(reply.tokens) or not ids:
        raise RequestError("the reply has no tokens with ids, so nothing can be asked about it")
    if of == "answer":
        kinds = (*reply.kinds, *("answer",) * len(ids))[: len(ids)]
        at = [i for i, kind in enumerate(kinds) if kind == "answer"] or list(range(len(ids)))
        return ids[: at[0]], ids[at[0] : at[-1] + 1]
    if isinstance(of, Sequence) and len(of) == 2 and all(isinstance(x, int) for x in of):
        a, b = of
        if 0 <= a < b <= len(ids):
            return ids[:a], ids[a:b]
        raise RequestError(f"of is {of!r}; the reply has {len(ids)} tokens, from 0 on")
    raise RequestError(f"of is {of!r}; it must be 'answer' or (first, last + 1) of its tokens")


def _spans(provider: Provider, inside: Inside, reply: Reply, parts: str) -> list[tuple[int, int]]:
    """(first, last + 1) of each part in the tokens of the prompt."""
    n = len(reply.prompt_ids)
    controls = [i for i, t in enumerate(reply.prompt_ids) if _control(provider, t)]
    if parts == "tokens":
        return [(i, i + 1) for i in range(n) if i not in set(controls)]
    if reply.messages:
        cut = _of_messages(provider, reply, parts)
    else:
        kept = [t for t in reply.prompt_ids if not _control(provider, t)]
        text = _text(inside, kept)
        cut = sentences(text) if parts == "sentences" else [text]
    spans = _located(inside, reply.prompt_ids, cut)
    if not spans:
        raise RequestError(f"the prompt has no {parts} that can be left out")
    return spans


def _control(provider: Provider, token: int) -> bool:
    controls = getattr(provider, "controls", None)
    return token in (controls or ())


def _of_messages(provider: Provider, reply: Reply, parts: str) -> list[str]:
    texts = [message.text.strip() for message in reply.messages if message.text.strip()]
    if parts == "messages":
        return texts
    return [sentence for text in texts for sentence in sentences(text)]


def _located(inside: Inside, ids: Sequence[int], cut: Sequence[str]) -> list[tuple[int, int]]:
    """The tokens of each text in turn: those that begin in it."""
    data = [inside.token_bytes(i) for i in ids]
    starts, at = [], 0
    for piece in data:
        starts.append(at)
        at += len(piece)
    whole, begin = b"".join(data), 0
    spans: list[tuple[int, int]] = []
    for text in cut:
        wanted = text.encode()
        found = whole.find(wanted, begin)
        if found < 0:
            wanted = wanted.strip()
            found = whole.find(wanted, begin)
        if found < 0 or not wanted:
            continue
        begin = found + len(wanted)
        # A token belongs to the text in which its first letter stands.
        inside_ = [
            i for i, (s, piece) in enumerate(zip(starts, data, strict=True))
            if found <= s + len(piece) - len(piece.lstrip()) < begin and piece
        ]  # fmt: skip
        if inside_ and (not spans or inside_[0] >= spans[-1][1]):
            spans.append((inside_[0], inside_[-1] + 1))
    return spans


def _pieces(
    inside: Inside, ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> tuple[tuple[str, int | None], ...]:
    out: list[tuple[str, int | None]] = []
    at = 0
    for i, (a, b) in enumerate(spans):
        if at < a:
            out.append((_text(inside, ids[at:a]), None))
        out.append((_text(inside, ids[a:b]), i))
        at = b
    if at < len(ids):
        out.append((_text(inside, ids[at:]), None))
    return tuple(out)


def _text(inside: Inside, ids: Sequence[int]) -> str:
    return b"".join(map(inside.token_bytes, ids)).decode("utf-8", "replace")
