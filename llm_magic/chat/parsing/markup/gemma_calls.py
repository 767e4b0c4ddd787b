"""Readers of calls in Gemma's form: bare keys, and texts between quotes that are control tokens."""

import re
from collections.abc import Mapping
from typing import Any

from .tape import (
    MAX_DEPTH,
    Done,
    NotACall,
    Pieces,
    Reader,
    Tape,
    Tools,
    Wait,
    blank,
    closing,
    followed_by,
    literal,
    require,
    run,
    value_until,
)
from .values import coerce, dumps


def gemma_call(quote: str, closer: str) -> Reader:
    """call:NAME{key:<quote>text<quote>,key:3} closer."""

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        yield from blank(tape)
        yield from require(tape, "call:")
        name = yield from run(tape, _IDENTIFIER)
        value = yield from _gemma_value(tape, quote, 0, tools.get(name))
        if not isinstance(value, dict):
            raise NotACall
        yield Done(name, dumps(value))
        yield from closing(tape, closer)

    return read


_IDENTIFIER = re.compile(r"[\w.\-]+")


_BARE_KEY = re.compile(r"[^:{}\[\],<\n]+")


_BARE_VALUE = re.compile(r"[^{}\[\],<\n]+")


_AFTER_TEXT = followed_by(",", "}", "]", ":")


def _gemma_value(tape: Tape, quote: str, depth: int, schema: object) -> Wait[object]:
    yield from blank(tape)
    if (yield from literal(tape, quote)):
        return (yield from _gemma_text(tape, quote))
    bracket = yield from literal(tape, "{", "[")
    if not bracket:
        return coerce((yield from run(tape, _BARE_VALUE)).strip(), schema)
    if depth == MAX_DEPTH:
        raise NotACall
    close = "}" if bracket == "{" else "]"
    items: list[tuple[str, Any]] = []
    yield from blank(tape)
    if not (yield from literal(tape, close)):
        while True:
            key = ""
            if close == "}":
                yield from blank(tape)
                if (yield from literal(tape, quote)):
                    key = yield from _gemma_text(tape, quote)
                else:
                    key = (yield from run(tape, _BARE_KEY)).strip()
                yield from require(tape, ":")
            part = _part(schema, key if close == "}" else None)
            items.append((key, (yield from _gemma_value(tape, quote, depth + 1, part))))
            yield from blank(tape)
            if (yield from require(tape, ",", close)) == close:
                break
    return dict(items) if close == "}" else [value for _, value in items]


def _gemma_text(tape: Tape, quote: str) -> Wait[str]:
    text, tag = yield from value_until(tape, {quote: _AFTER_TEXT})
    if not tag:
        raise NotACall
    return text


def _part(schema: object, key: str | None) -> object:
    """The schema of a property, or of the items where there is no key; None if it does not say."""
    if not isinstance(schema, Mapping):
        return None
    if key is None:
        return schema.get("items")
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
