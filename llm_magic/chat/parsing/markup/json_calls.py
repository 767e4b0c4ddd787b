"""Readers of calls that are written as JSON.

They read a tape character by character and give pieces of calls. Argument text is kept exactly as
the model wrote it.
"""

import re

from .tape import (
    MAX_DEPTH,
    Args,
    Begin,
    Done,
    NotACall,
    Piece,
    Pieces,
    Tape,
    Text,
    Tools,
    Wait,
    blank,
    literal,
    optional,
    peek,
    require,
    run,
)
from .values import loads

_PLAIN = re.compile(r'[^"\\]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_HALF_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_NUMBER_CHARS = re.compile(r"[-+.0-9eE]+")


def json_value(tape: Tape, depth: int = 0) -> Wait[None]:
    """Read one JSON value; `tape.pos` follows what is known to be valid. Raw line breaks in strings
    are let through: models write them, and nothing else could be meant."""
    match (yield from peek(tape)):
        case '"':
            yield from json_string(tape)
        case "{" | "[" as bracket:
            if depth == MAX_DEPTH:
                raise NotACall
            tape.pos += 1
            yield from _json_items(tape, "}" if bracket == "{" else "]", depth + 1)
        case "t" | "f" | "n":
            yield from require(tape, "true", "false", "null")
        case _:
            if not _NUMBER.fullmatch((yield from run(tape, _NUMBER_CHARS))):
                raise NotACall


def _json_items(tape: Tape, close: str, depth: int) -> Wait[None]:
    yield from blank(tape)
    if (yield from literal(tape, close)):
        return
    while True:
        if close == "}":
            yield from json_string(tape)
            yield from blank(tape)
            yield from require(tape, ":")
            yield from blank(tape)
        yield from json_value(tape, depth)
        yield from blank(tape)
        if (yield from require(tape, ",", close)) == close:
            return
        yield from blank(tape)


def json_string(tape: Tape) -> Wait[str]:
    """Read one JSON string and return its value."""
    start = tape.pos
    yield from require(tape, '"')
    while True:
        plain = _PLAIN.match(tape.text, tape.pos)
        assert plain is not None
        tape.pos = plain.end()
        match (yield from peek(tape)):
            case '"':
                tape.pos += 1
                return str(loads(tape.text[start : tape.pos]))
            case "":
                raise NotACall
            case "\\":
                yield from _json_escape(tape)


def _json_escape(tape: Tape) -> Wait[None]:
    while not (match := _ESCAPE.match(tape.text, tape.pos)):
        if tape.ended or not _HALF_ESCAPE.fullmatch(tape.text, tape.pos):
            raise NotACall
        yield
    tape.pos = match.end()


_CALL_KEYS = frozenset(("name", "function", "arguments", "parameters", "id", "type"))


def json_call(tape: Tape, tools: Tools, bare: bool = False) -> Pieces[Done]:
    """Read {"name": ..., "arguments" or "parameters": ...} and return the call.

    bare: no tag announced it, so an object with any other key, or with nothing but an unknown name,
    is an answer in JSON.
    """
    name = arguments = id = None
    seen = set()
    yield from require(tape, "{")
    yield from blank(tape)
    while True:
        key = yield from json_string(tape)
        if key in seen or (bare and key not in _CALL_KEYS):
            raise NotACall
        seen.add(key)
        yield from blank(tape)
        yield from require(tape, ":")
        yield from blank(tape)
        first = yield from peek(tape)
        if key in ("arguments", "parameters"):
            if arguments is not None:
                raise NotACall
            arguments = yield from _json_arguments(tape, name, id)
        elif key == "function" and first == "{":
            done = yield from json_call(tape, tools)
            if name:
                raise NotACall
            name, arguments = done.name, done.arguments
        elif key in ("name", "function"):
            if name:
                raise NotACall
            name = yield from json_string(tape)
        elif key == "id" and first == '"':
            id = yield from json_string(tape)
        else:
            yield from json_value(tape, 1)
        yield from blank(tape)
        if (yield from require(tape, ",", "}")) == "}":
            break
        yield from blank(tape)
    if not name or (bare and arguments is None and name not in tools):
        raise NotACall
    return Done(name, arguments or "{}", id)


def _json_arguments(tape: Tape, name: str | None, id: str | None) -> Pieces[str]:
    """Read the value of "arguments": raw text as it stands, streamed when the name is known."""
    first = yield from peek(tape)
    if first == '"':
        return (yield from json_string(tape)).strip() or "{}"
    if first == "n":
        yield from require(tape, "null")
        return "{}"
    if name and first == "{":
        yield Begin(name, id)
        return (yield from stream_json(tape))
    start = tape.pos
    yield from json_value(tape, 1)
    return tape.text[start : tape.pos]


def stream_json(tape: Tape) -> Pieces[str]:
    """Read one JSON value in `Args` pieces and return the whole."""
    start = sent = tape.pos
    for _ in json_value(tape, 1):
        if tape.pos > sent:
            yield Args(tape.text[sent : tape.pos])
            sent = tape.pos
        yield None
    if tape.pos > sent:
        yield Args(tape.text[sent : tape.pos])
    return tape.text[start : tape.pos]


def json_array(tape: Tape, tools: Tools, bare: bool = False, cut: bool = False) -> Pieces[None]:
    """Read a list of calls; nothing is certain before its end. What is no call in it is text.

    cut: the closing bracket may be missing at the end of the output.
    """
    yield from require(tape, "[")
    yield from blank(tape)
    pieces: list[Piece] = []
    while True:
        start = tape.pos
        if not pieces and (yield from peek(tape)) != "{":
            raise NotACall
        yield from json_value(tape, 1)
        pieces.append(_entry(tape.text[start : tape.pos], tools, bare))
        yield from blank(tape)
        if (cut and not (yield from peek(tape))) or (yield from require(tape, ",", "]")) == "]":
            break
        yield from blank(tape)
    if not any(isinstance(p, Done) for p in pieces):
        raise NotACall
    yield from pieces


def _entry(text: str, tools: Tools, bare: bool) -> Piece:
    reader = json_call(Tape(text, ended=True), tools, bare)
    try:
        while True:
            next(reader)
    except StopIteration as end:
        done: Done = end.value
        return done
    except NotACall:
        return Text(text)


def json_calls(tape: Tape, tools: Tools, separators: str = "", bare: bool = False) -> Pieces[None]:
    """Read objects and lists of calls, with white space or a separator between them."""
    yield from blank(tape)
    while True:
        if (yield from peek(tape)) == "[":
            yield from json_array(tape, tools, bare)
        else:
            yield (yield from json_call(tape, tools, bare))
        start = tape.pos
        if separators:
            yield from optional(tape, *separators)
        yield from blank(tape)
        if (yield from peek(tape)) not in ("{", "["):
            tape.pos = start
            return
