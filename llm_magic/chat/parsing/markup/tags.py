"""Readers of call markup, one for each family of syntaxes.

A reader starts behind the opening tag, which it is told ("" where the first character of the answer
announced a call). It yields `Begin`, `Args`, `Text` and `Done` pieces as soon as each is certain,
and None when it needs more text. It raises `NotACall` if the text from the tag to `tape.pos` is
ordinary text.

A reader keeps no index across a `Done`: the router may then drop the text before `tape.pos`.
"""

import re
from collections.abc import Collection

from .json_calls import json_array, json_call, json_calls, stream_json
from .python_calls import python_calls
from .tape import (
    Args,
    Begin,
    Check,
    Done,
    NotACall,
    Piece,
    Pieces,
    Reader,
    Tape,
    Tools,
    Wait,
    blank,
    closing,
    followed_by,
    literal,
    optional,
    peek,
    require,
    run,
    until,
    value_until,
)
from .values import Parameters, coerce, unwrapped, value_types

NAME = re.compile(r"[\w.\-/:]+")
KEY = re.compile(r"[^<>\n=]+")


def xml_call(tape: Tape, tools: Tools, enclosed: bool = False) -> Pieces[None]:
    """Read NAME><parameter=KEY>value</parameter>...</function>; the last tag may be missing.

    enclosed: the call stands in <tool_call>, so only that tag or another call can follow it.
    """
    name = yield from run(tape, NAME)
    yield from require(tape, ">")
    yield Begin(name)
    yield from blank(tape)
    if (yield from peek(tape)) == "{":  # Llama 3.1: <function=NAME>{...}</function>
        yield Done(name, (yield from stream_json(tape)))
        yield from closing(tape, "</function>")
        return
    parameters = Parameters(name, tools)
    while True:
        yield from blank(tape)
        tag = yield from literal(tape, "<parameter=", "</function>", "</tool_call>")
        if tag == "<parameter=":
            key = yield from run(tape, KEY)
            yield from require(tape, ">")
            schema = parameters.schemas.get(key)
            closers = _xml_closers(parameters, key, enclosed)
            value, closer = yield from value_until(tape, closers)
            if not closer:
                raise NotACall  # cut inside a value: not what the model meant to pass
            if closer != "</parameter>":
                tape.pos -= len(closer)
            yield parameters.add(key, coerce(unwrapped(value), schema))
            continue
        if tag == "</tool_call>":
            tape.pos -= len(tag)
        elif not tag and (yield from peek(tape)):
            raise NotACall
        break
    yield parameters.close()
    yield Done(name, parameters.text)


_AFTER_CALL = ("<tool_call>", "<function=")  # what can follow </tool_call> besides the answer


def _xml_closers(parameters: Parameters, key: str, enclosed: bool) -> dict[str, Check]:
    """What ends the value of parameter `key`, with the check of what follows."""
    given = {*parameters.keys, key}
    call_ends = followed_by("</tool_call>", *_AFTER_CALL)

    def after_value(tape: Tape) -> Wait[bool]:
        yield from blank(tape)
        tag = yield from literal(tape, "<parameter=", "</function>", "</tool_call>")
        if tag == "<parameter=":
            return (yield from _new_key(tape, given))
        if tag == "</function>" and enclosed:
            return (yield from call_ends(tape))
        return bool(tag) or _cut(tape, "<parameter=", "</function>", "</tool_call>")

    def next_parameter(tape: Tape) -> Wait[bool]:
        return (yield from _new_key(tape, given, parameters.schemas))

    # Models leave </parameter> out at times. Then only the end of the call ends the value, or,
    # where the value is no text, the next parameter.
    closers: dict[str, Check] = {
        "</parameter>": after_value,
        "</function>": call_ends,
        "</tool_call>": followed_by(*_AFTER_CALL),
    }
    types = value_types(parameters.schemas.get(key))
    if types and "string" not in types:
        closers["<parameter="] = next_parameter
    return closers


def _new_key(tape: Tape, given: set[str], known: Collection[str] = ()) -> Wait[bool]:
    """Whether KEY> follows, with a key that the call has not used yet (and that is known)."""
    while True:
        match = KEY.match(tape.text, tape.pos)
        if match and match.end() < len(tape.text):
            key = match.group()
            fits = tape.text[match.end()] == ">" and key not in given
            return fits and (not known or key in known)
        if tape.ended or (not match and tape.pos < len(tape.text)):
            return False
        yield


def _cut(tape: Tape, *options: str) -> bool:
    """Whether the output ends here, or inside one of these tags."""
    rest = tape.text[tape.pos :]
    return tape.ended and (not rest or any(option.startswith(rest) for option in options))


def tagged(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """Hermes and Qwen: JSON or <function=...> between <tool_call> and </tool_call>; both tags may
    be missing where the inner form shows that it is a call."""
    enclosed = opener == "<tool_call>"
    if not opener and (yield from literal(tape, *_WRAPPERS)):
        yield from wrapped(tape, tools)
        return
    if opener == "<function=":
        yield from xml_call(tape, tools)
    else:
        yield from blank(tape)
        if (yield from peek(tape)) == "<":
            yield from require(tape, "<function=")
            yield from xml_call(tape, tools, enclosed)
        else:
            yield from json_calls(tape, tools, ",", bare=not opener)
            yield from _spare_bracket(tape, "</tool_call>")
    while (yield from optional(tape, "<function=")):
        yield from xml_call(tape, tools, enclosed)
    yield from closing(tape, "</tool_call>")


# Where a model writes nothing but a call, but in a fence or in the tag of the tools' list (Qwen2.5
# Coder does): what may stand around it. No opening one begins another.
_WRAPPERS = {"```json": "```", "```tool_call": "```", "```\n": "```", "<tools>": "</tools>"}


def wrapped(tape: Tape, tools: Tools) -> Pieces[None]:
    """JSON calls in a fence or in <tools>, as the whole answer; all of them to offered tools.

    An answer that goes on behind the closer is an answer with an example in it.
    """
    opener = next(w for w in _WRAPPERS if tape.text.endswith(w, 0, tape.pos))
    pieces: list[Piece] = []
    for piece in json_calls(tape, tools, ",", bare=True):
        if piece is None:
            yield None
        elif isinstance(piece, Done) and piece.name in tools:
            pieces.append(piece)
        elif not isinstance(piece, Begin | Args):
            raise NotACall
    yield from closing(tape, _WRAPPERS[opener])
    yield from blank(tape)
    if (yield from peek(tape)):
        raise NotACall
    yield from pieces


def _spare_bracket(tape: Tape, closer: str) -> Wait[None]:
    """Skip one closing brace too many, which small models write before the closing tag."""
    start = tape.pos
    if not ((yield from optional(tape, "}")) and (yield from optional(tape, closer))):
        tape.pos = start
    else:
        tape.pos -= len(closer)


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
        key = key.strip()
        yield from blank(tape)
        yield from require(tape, "<arg_value>")
        schema = parameters.schemas.get(key)
        closers = {
            "</arg_value>": followed_by("<arg_key>", "</tool_call>"),
            "</tool_call>": followed_by("<tool_call>"),  # </arg_value> was left out
        }
        types = value_types(schema)
        if types and "string" not in types:
            closers["<arg_key>"] = _any_text
        value, closer = yield from value_until(tape, closers)
        if not closer:
            raise NotACall
        if closer != "</arg_value>":
            tape.pos -= len(closer)
            value = unwrapped(value)
        yield parameters.add(key, coerce(value, schema))
        tag = yield from closing(tape, "<arg_key>", "</tool_call>")
    if not tag:
        yield from blank(tape)
        if (yield from peek(tape)):
            raise NotACall
    yield parameters.close()
    yield Done(name, parameters.text)


def _any_text(tape: Tape) -> Wait[bool]:
    yield from ()
    return True


def invoke(prefix: str, closer: str) -> Reader:
    """<invoke name="f"><parameter name="k">v</parameter></invoke> ... closer, with a prefix."""
    begin, end = f'<{prefix}invoke name="', f"</{prefix}invoke>"
    begin_value, end_value = f'<{prefix}parameter name="', f"</{prefix}parameter>"
    call_ends = followed_by(begin, closer)

    def after_value(tape: Tape) -> Wait[bool]:
        yield from blank(tape)
        tag = yield from literal(tape, begin_value, end)
        return (yield from call_ends(tape)) if tag == end else bool(tag)

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
                value, tag = yield from value_until(tape, {end_value: after_value})
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
    """JSON calls separated by ";", NAME.call(key="value") of the built-in tools, or
    <function=NAME>{...}</function>."""
    if opener == "<function=":
        yield from tagged(tape, opener, tools)
        return
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
        yield from json_array(tape, tools, cut=True)
        while (yield from optional(tape, "[TOOL_CALLS]")) or (yield from _another_list(tape)):
            yield from blank(tape)
            yield from json_array(tape, tools, cut=True)
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


def _another_list(tape: Tape) -> Wait[bool]:
    """Whether a further list of objects follows."""
    start = tape.pos
    found = bool((yield from optional(tape, "[")) and (yield from optional(tape, "{")))
    tape.pos = start
    if found:
        yield from blank(tape)
    return found


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
            fence = yield from literal(tape, "```")
            yield from literal(tape, "json")
        yield from blank(tape)
        yield Begin(name)
        if (yield from peek(tape)) == "{":
            yield Done(name, (yield from stream_json(tape)))
        else:  # no arguments at all
            yield Args("{}")
            yield Done(name, "{}")
        if fence:
            yield from closing(tape, "```")
        yield from closing(tape, end)
        if not (yield from optional(tape, begin)):
            break
    yield from closing(tape, "<｜tool▁calls▁end｜>")


def json_until(*closers: str) -> Reader:
    """Objects or lists of calls and a closing tag, as Granite and Phi write them."""

    def read(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
        if opener.endswith("["):  # functools[{...}]
            tape.pos -= 1
        yield from json_calls(tape, tools, ",", bare=not opener)
        if opener:
            for closer in closers:
                yield from _spare_bracket(tape, closer)
            yield from closing(tape, *closers)

    return read


def bare_json(tape: Tape, opener: str, tools: Tools) -> Pieces[None]:
    """Calls as the whole answer, with nothing around them."""
    yield from json_calls(tape, tools, ";,", bare=True)
