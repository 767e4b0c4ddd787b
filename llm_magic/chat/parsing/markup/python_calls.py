"""Readers of calls that are written as Python.

Arguments are given as JSON. Nothing is evaluated: the syntax tree may hold only calls of literals.
"""

import ast
import math
import re
from collections.abc import Iterator
from typing import Any

from .json_calls import json_calls
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
    literal,
    optional,
    peek,
    require,
    run,
    until,
)
from .values import dumps, paired

_IDENTIFIER = re.compile(r"[\w.]+")
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def tagged(closer: str) -> Reader:
    """[f(a=1), g()] behind a tag, or as the start of the answer, as Llama 4 writes it."""

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        yield from blank(tape)
        if opener and (yield from _is_json(tape)):
            yield from json_calls(tape, tools, ",")
        else:
            yield from python_calls(tape, tools, known=not opener)
        if opener:
            yield from closing(tape, closer)

    return read


def _is_json(tape: Tape) -> Wait[bool]:
    """Whether an object or a list of objects follows."""
    start = tape.pos
    yield from optional(tape, "[")
    yield from blank(tape)
    found = (yield from peek(tape)) == "{"
    tape.pos = start
    return found


def python_calls(tape: Tape, tools: Tools, known: bool) -> Pieces[None]:
    """Read one call or a list of them. known: the first name must be an offered tool's."""
    start = tape.pos
    if (yield from peek(tape)) == "[":
        tape.pos += 1
        yield from blank(tape)
    name = yield from run(tape, _IDENTIFIER)
    if (known and name.removesuffix(".call") not in tools) or (yield from peek(tape)) != "(":
        raise NotACall
    tape.pos = start if tape.text[start] == "[" else tape.pos
    yield from _balanced(tape)
    yield from python_parse(tape.text[start : tape.pos], tools)


def _balanced(tape: Tape) -> Wait[None]:
    """Read a bracketed Python expression up to its closing bracket."""
    closers: list[str] = []
    while True:
        char = yield from peek(tape)
        if char in ("'", '"'):
            yield from _python_string(tape)
            continue
        if not char or len(closers) > MAX_DEPTH:
            raise NotACall
        tape.pos += 1
        if char in _PAIRS:
            closers.append(_PAIRS[char])
        elif char in ")]}":
            if closers.pop() != char:
                raise NotACall
            if not closers:
                return


def _python_string(tape: Tape) -> Wait[None]:
    char = yield from peek(tape)
    quote = (yield from literal(tape, char * 3)) or (yield from literal(tape, char * 2))
    if quote == char * 2:
        return  # an empty string
    if not quote:
        quote = yield from require(tape, char)
    while True:
        _, found = yield from until(tape, quote, "\\")
        if not found:
            raise NotACall
        if found == quote:
            return
        yield from peek(tape)
        tape.pos += 1


def tool_code(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """Python calls, one a line, in a fenced block, as Gemma writes them."""
    code, fence = yield from until(tape, "```")
    while fence and _inside_text(code):  # this fence is part of a text of the code
        more, closer = yield from until(tape, "```")
        code, fence = code + fence + more, closer
    yield from python_parse(code.strip(), tools)


def _inside_text(code: str) -> bool:
    """Whether a piece of Python ends inside a quoted text of one line."""
    quote = ""
    for token in _QUOTES.findall(code.rpartition("\n")[2]):
        if not quote and token in ("'", '"'):
            quote = token
        elif token == quote:
            quote = ""
    return bool(quote)


_QUOTES = re.compile(r"\\.|['\"]")


def python_parse(code: str, tools: Tools) -> Iterator[Done]:
    """The calls of a piece of Python that holds nothing else."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotACall from None
    calls: list[Done] = []
    for statement in body:
        if not isinstance(statement, ast.Expr | ast.Assign) or statement.value is None:
            raise NotACall
        value = _printed(statement.value)
        for node in value.elts if isinstance(value, ast.List) else [value]:
            calls.append(_python_call(node, tools))
    if not calls:
        raise NotACall
    yield from calls


def _printed(node: ast.expr) -> ast.expr:
    """The call inside print(...), which Gemma likes to put around it."""
    match node:
        case ast.Call(func=ast.Name(id="print"), args=[ast.Call() as call], keywords=[]):
            return call
    return node


def _python_call(node: ast.expr, tools: Tools) -> Done:
    if not isinstance(node, ast.Call):
        raise NotACall
    name = ast.unparse(node.func).removesuffix(".call")
    known = list(tools.get(name, {}).get("properties", {}))
    if len(node.args) > len(known):
        raise NotACall
    arguments = {key: _python_value(arg) for key, arg in zip(known, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise NotACall
        arguments[keyword.arg] = _python_value(keyword.value)
    return Done(name, dumps(arguments))


_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}


def _python_value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | None as value):
            return paired(value)
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()) as positive):
            return -_python_value(positive)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return [_python_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_python_value(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise NotACall
            return dict(zip(names, map(_python_value, values), strict=True))
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
    raise NotACall
