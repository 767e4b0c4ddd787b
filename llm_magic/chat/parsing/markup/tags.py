"""Readers of call markup, one per family of syntaxes.

What comes in: a `Tape`, its position behind the opening tag, and that tag ("" where the answer's
first character announced a call). What goes out: a generator of `Begin`, `Args`, `Text` and `Done`
pieces, each as soon as it is certain, and None when it needs more text. `NotACall` says that the
text from the tag to `tape.pos` is ordinary text.

A reader keeps no index across a `Done`: whoever drives it may then drop the text before `tape.pos`.
"""

import re
from typing import Any

from .json_calls import json_array, json_call, json_calls, stream_json
from .python_calls import python_calls
from .tape import (
    MAX_DEPTH,
    Begin,
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
from .values import Parameters, coerce, dumps, loads_or, unwrapped

NAME = re.compile(r"[\w.\-/:]+")
KEY = re.compile(r"[^<>\n=]+")


def xml_call(tape: Tape, tools: Tools) -> Pieces[None]:
    """Read NAME><parameter=KEY>value</parameter>...</function>; the last tag may be missing."""
    name = yield from run(tape, NAME)
    yield from require(tape, ">")
    yield Begin(name)
    parameters = Parameters(name, tools)
    while True:
        yield from blank(tape)
        tag = yield from literal(tape, "<parameter=", "</function>", "</tool_call>")
        if tag == "<parameter=":
            key = yield from run(tape, KEY)
            yield from require(tape, ">")
            value, closer = yield from until(tape, "</parameter>", "<parameter=", "</function>")
            if not closer:
                raise NotACall  # cut inside a value: not what the model meant to pass
            if closer != "</parameter>":
                tape.pos -= len(closer)
            value = unwrapped(value)
            yield parameters.add(key, coerce(value, parameters.schemas.get(key)))
            continue
        if tag == "</tool_call>":
            tape.pos -= len(tag)
        elif not tag and (yield from peek(tape)):
            raise NotACall
        break
    yield parameters.close()
    yield Done(name, parameters.text)


def tagged(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """Hermes and Qwen: JSON or <function=...> between <tool_call> and </tool_call>; both tags may
    be missing where the inner form shows that it is a call."""
    if opener == "<function=":
        yield from xml_call(tape, tools)
    else:
        yield from blank(tape)
        if (yield from peek(tape)) == "<":
            yield from require(tape, "<function=")
            yield from xml_call(tape, tools)
        else:
            yield from json_calls(tape, tools, ",", bare=not opener)
    while (yield from optional(tape, "<function=")):
        yield from xml_call(tape, tools)
    yield from closing(tape, "</tool_call>")


def glm(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """NAME<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>."""
    yield from blank(tape)
    name = yield from run(tape, NAME)
    parameters = Parameters(name, tools)
    yield from blank(tape)
    tag = yield from require(tape, "<arg_key>", "</tool_call>")
    yield Begin(name)
    while tag == "<arg_key>":
        key, closer = yield from until(tape, "</arg_key>")
        yield from blank(tape)
        yield from require(tape, "<arg_value>")
        value, closer = yield from until(tape, "</arg_value>")
        if not closer:
            raise NotACall
        yield parameters.add(key.strip(), coerce(value, parameters.schemas.get(key.strip())))
        yield from blank(tape)
        tag = yield from literal(tape, "<arg_key>", "</tool_call>")
    if not tag and (yield from peek(tape)):
        raise NotACall
    yield parameters.close()
    yield Done(name, parameters.text)


def invoke(prefix: str, closer: str) -> Reader:
    """<invoke name="f"><parameter name="k">v</parameter></invoke> ... closer, with a prefix."""
    begin, end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
    begin_value, end_value = f'<{prefix}parameter name="', f"</{prefix}parameter>"

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        yield from blank(tape)
        yield from require(tape, begin)
        while True:
            name, tag = yield from until(tape, '"', "\n")
            yield from blank(tape)
            yield from require(tape, ">")
            if tag != '"' or not name:
                raise NotACall
            yield Begin(name)
            parameters = Parameters(name, tools)
            while True:
                yield from blank(tape)
                if (yield from require(tape, begin_value, end)) == end:
                    break
                key, _ = yield from until(tape, '"')
                flags, _ = yield from until(tape, ">")
                value, tag = yield from until(tape, end_value)
                if not tag:
                    raise NotACall
                schema = parameters.schemas.get(key)
                schema = {"type": "string"} if 'string="true"' in flags else schema
                yield parameters.add(key, coerce(unwrapped(value), schema))
            yield parameters.close()
            yield Done(name, parameters.text)
            if not (yield from optional(tape, begin)):
                break
        yield from closing(tape, closer)

    return read


def llama3(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """JSON calls separated by ";", or NAME.call(key="value") of the built-in tools."""
    yield from blank(tape)
    if (yield from peek(tape)) in ("{", "["):
        yield from json_calls(tape, tools, ";,", bare=not opener)
    else:
        yield from python_calls(tape, tools, known=True)


def mistral(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """[{...}, ...] (old), or NAME[CALL_ID]id[ARGS]{...} (new; the two tags may be missing)."""
    yield from blank(tape)
    first = yield from peek(tape)
    if first == "[":
        yield from json_array(tape, tools)
        return
    if first == "{":
        yield (yield from json_call(tape, tools))
        return
    name = yield from run(tape, NAME)
    yield from blank(tape)
    id = None
    tag = yield from literal(tape, "[CALL_ID]", "[ARGS]")
    if tag == "[CALL_ID]":
        id = (yield from run(tape, NAME)) or None
        yield from blank(tape)
        yield from literal(tape, "[ARGS]")
    yield from blank(tape)
    if (yield from peek(tape)) != "{":
        raise NotACall
    yield Begin(name, id)
    yield Done(name, (yield from stream_json(tape)), id)


def kimi(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>, in a section."""
    if opener == "<|tool_calls_section_begin|>":
        yield from blank(tape)
        yield from require(tape, "<|tool_call_begin|>")
    while True:
        yield from blank(tape)
        id = yield from run(tape, NAME)
        yield from blank(tape)
        yield from require(tape, "<|tool_call_argument_begin|>")
        yield from blank(tape)
        name = id.removeprefix("functions.").rsplit(":", 1)[0]
        yield Begin(name, id)
        yield Done(name, (yield from stream_json(tape)), id)
        yield from closing(tape, "<|tool_call_end|>")
        if not (yield from optional(tape, "<|tool_call_begin|>")):
            break
    yield from closing(tape, "<|tool_calls_section_end|>")


def deepseek(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """NAME<sep>{...}, or function<sep>NAME and a fenced JSON block, each between its own tags."""
    begin, sep, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    if opener != begin:
        yield from blank(tape)
        yield from require(tape, begin)
    while True:
        name = yield from run(tape, NAME)
        yield from require(tape, sep)
        fence = ""
        if name == "function" and (yield from peek(tape)) != "{":
            name = yield from run(tape, NAME)
            yield from blank(tape)
            fence = yield from literal(tape, "```json")
        yield from blank(tape)
        yield Begin(name)
        yield Done(name, (yield from stream_json(tape)))
        if fence:
            yield from closing(tape, "```")
        yield from closing(tape, end)
        if not (yield from optional(tape, begin)):
            break
    yield from closing(tape, "<｜tool▁calls▁end｜>")


def json_until(closer: str) -> Reader:
    """Objects or lists of calls and a closing tag, as Granite and Phi write them."""

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        yield from json_calls(tape, tools, ",")
        yield from closing(tape, closer)

    return read


def bare_json(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """Calls as the whole answer, with nothing around them."""
    yield from json_calls(tape, tools, ";,", bare=True)


def gemma_call(quote: str, closer: str) -> Reader:
    """call:NAME{key:<quote>text<quote>,key:3} closer."""

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        yield from blank(tape)
        yield from require(tape, "call:")
        name = yield from run(tape, _IDENTIFIER)
        value = yield from _gemma_value(tape, quote, 0)
        if not isinstance(value, dict):
            raise NotACall
        yield Done(name, dumps(value))
        yield from closing(tape, closer)

    return read


_IDENTIFIER = re.compile(r"[\w.\-]+")
_BARE_KEY = re.compile(r"[^:{}\[\],<\n]+")
_BARE_VALUE = re.compile(r"[^{}\[\],<\n]+")


def _gemma_value(tape: Tape, quote: str, depth: int) -> Wait[Any]:
    yield from blank(tape)
    if (yield from literal(tape, quote)):
        text, tag = yield from until(tape, quote)
        if not tag:
            raise NotACall
        return text
    bracket = yield from literal(tape, "{", "[")
    if not bracket:
        return loads_or((yield from run(tape, _BARE_VALUE)).strip())
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
                    key, _ = yield from until(tape, quote)
                else:
                    key = (yield from run(tape, _BARE_KEY)).strip()
                yield from require(tape, ":")
            items.append((key, (yield from _gemma_value(tape, quote, depth + 1))))
            yield from blank(tape)
            if (yield from require(tape, ",", close)) == close:
                break
    return dict(items) if close == "}" else [value for _, value in items]
