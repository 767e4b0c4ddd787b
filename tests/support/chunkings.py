"""The shared oracle of everything that splits a stream: one text, cut in every way, one outcome.

`all_chunkings(text, ...)` feeds a text to fresh routers as one token, cut at every single position,
character by character, byte by byte and at random cuts. Every run must give the same outcome and
keep the invariants that `route` checks; that outcome is returned.
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from llm_magic.chat.parsing.markup.values import loads
from llm_magic.chat.parsing.router import Router
from llm_magic.events import CallDelta, CallDone, Delta, Token


@dataclass(frozen=True)
class Outcome:
    """What a reader of the stream ends up with.

    calls: (name, arguments). parts: in order. late: whether each call stood in open reasoning.
    """

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    finish: str
    kept: str  # text of the kept tokens, without what a stop string cut off at the end
    late: tuple[bool, ...] = ()

    @property
    def values(self) -> list[tuple[str, Any]]:
        return [(name, loads(arguments)) for name, arguments in self.calls]


def token(piece: str | bytes, id: int | None = 7) -> Token:
    return Token(id, piece.encode() if isinstance(piece, str) else piece, -0.5, 1)


def events_of(pieces: Iterable[str | bytes | Token], reason: str = "stop", **options: Any):
    """(router, events, reason) of one run."""
    router = Router(**options)
    events = []
    for piece in pieces:
        events += router.push(piece if isinstance(piece, Token) else token(piece))
    last, reason = router.finish(reason)
    return router, [*events, *last], reason


def route(pieces: Iterable[str | bytes | Token], reason: str = "stop", **options: Any) -> Outcome:
    """One run and its invariants: every kept token once and in order, calls that add up, text that
    can be sent as UTF-8 JSON."""
    pieces = [p if isinstance(p, Token) else token(p) for p in pieces]
    router, events, reason = events_of(pieces, reason, **options)
    carried = [t for e in events if not isinstance(e, CallDone) for t in e.tokens]
    assert len(carried) == router.kept
    for n, (ours, theirs) in enumerate(zip(carried, pieces, strict=False)):
        assert ours.bytes == theirs.bytes
        assert not ours.trimmed or (router.stopped and n == len(carried) - 1)
    text = {"answer": "", "reasoning": ""}
    parts: list[tuple[str, str]] = []
    open_calls: dict[int, list[str]] = {}
    calls: list[tuple[str, str]] = []
    ids = []
    for event in events:
        match event:
            case Delta(kind, piece):
                json.dumps(piece, ensure_ascii=False).encode()
                text[kind] += piece
                if parts and parts[-1][0] == kind:
                    parts[-1] = (kind, parts[-1][1] + piece)
                elif piece:
                    parts.append((kind, piece))
            case CallDelta(index, id, name, arguments):
                json.dumps(arguments, ensure_ascii=False).encode()
                assert index == len(calls)
                assert (id is None) == (name is None)
                if id is not None:
                    open_calls[index] = [id, name, ""]
                open_calls[index][2] += arguments
            case CallDone(index, call):
                assert index == len(calls)
                assert open_calls.pop(index) == [call.id, call.name, call.arguments]
                calls.append((call.name, call.arguments))
                parts.append(("call", call.name))
                ids.append(call.id)
    assert len(set(ids)) == len(ids)
    assert [(c.name, c.arguments) for c in router.calls] == calls
    kept = b"".join(t.bytes for t in carried)
    if router.stopped and carried and carried[-1].trimmed:
        kept = kept[: -len(carried[-1].bytes)]
    kept = b"" if router.stopped else kept
    return Outcome(
        text["answer"],
        text["reasoning"],
        tuple(calls),
        tuple(parts),
        reason,
        kept.decode("utf-8", "replace"),
        tuple(c.in_reasoning for c in router.calls),
    )


def cuts(text: str, seed: int = 0, random_cuts: int = 12) -> Iterator[list[str | bytes]]:
    """The text in one piece, cut once at every position, in single characters, in single bytes, and
    in random pieces."""
    yield [text]
    for i in range(1, len(text)):
        yield [text[:i], text[i:]]
    yield list(text)
    data = text.encode()
    yield [data[i : i + 1] for i in range(len(data))]
    rng = random.Random(seed)
    for _ in range(random_cuts):
        places = sorted(rng.choices(range(len(data) + 1), k=rng.randint(1, 12)))
        yield [data[a:b] for a, b in pairwise([0, *places, len(data)])]


def all_chunkings(text: str, reason: str = "stop", **options: Any) -> Outcome:
    """The outcome of a text, which must not depend on how it is cut."""
    first: Outcome | None = None
    for pieces in cuts(text):
        outcome = route(pieces, reason, **options)
        if first is None:
            first = outcome
        assert outcome == first, pieces
    assert first is not None
    return first
