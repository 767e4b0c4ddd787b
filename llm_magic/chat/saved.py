"""The JSON form of the parts of a reply: tokens, kinds, calls, records and settings.

Functions that end in `_out` write, those that end in `_in` read. What is read comes from a file and
is not trusted: a ValueError says what is wrong with it.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from typing import TypeVar, overload

from ..errors import RequestError
from ..events import Sampling, Timings, Token, ToolCall, ToolRecord, Top, Usage
from ..json_types import Json, JsonObject
from ..sampling import FIELDS, read

T = TypeVar("T")

# ----------------------------------------------------------------------------- outwards


# Between the fields of a token. Not a tab: JupyterLab copies the JSON of an output four times as it
# looks for headings, and a string that needs no escapes is copied ten times as fast.
BAR = "|"


def text_out(data: bytes) -> str:
    """Text as inside JSON quotes, without a bar; bytes that are no text as \\x and hex."""
    try:
        return json.dumps(data.decode(), ensure_ascii=False)[1:-1].replace(BAR, r"\u007c")
    except UnicodeDecodeError:
        return r"\x" + data.hex()


def number_out(x: float | None, digits: int) -> str:
    return "" if x is None or not math.isfinite(x) else f"{x:.{digits}f}".rstrip("0").rstrip(".")


def token_out(t: Token) -> str:
    """One token as a line of fields between bars.

    id, text, logprob, rank, milliseconds, flags, then id, text, logprob of each alternative (with
    "!" behind it when it was forbidden). Flags: t trimmed, f forced, m and a number: the masked
    share. One string, since a notebook file puts every item of a list on a line of its own: as
    lists, the records would be four times as long.
    """
    flags = "t" * t.trimmed + "f" * t.forced
    flags += "" if t.masked is None else f"m{t.masked:.6f}"
    row = [id_out(t.id), text_out(t.bytes), number_out(t.logprob, 4), id_out(t.rank)]
    row += [str(round(t.at * 1000)), flags]
    for a in t.top:
        row += [id_out(a.id), text_out(a.bytes)]
        row.append(number_out(a.logprob, 3) + "!" * (not a.allowed))
    return BAR.join(row)


def id_out(i: int | None) -> str:
    return "" if i is None else str(i)


def runs(kinds: Sequence[str]) -> list[list[Json]]:
    """Run lengths of equal items.

    >>> runs(("answer", "answer", "call"))
    [['answer', 2], ['call', 1]]
    """
    return [[kind, sum(1 for _ in group)] for kind, group in groupby(kinds)]


# ----------------------------------------------------------------------------- inwards

MAX_TOKEN_TEXT = 100_000


def fail(what: str) -> ValueError:
    return ValueError(f"not a saved reply: {what}")


@overload
def checked(value: object, kind: type[T], what: str) -> T: ...
@overload
def checked(value: object, kind: tuple[type[T], ...], what: str) -> T: ...
def checked(value: object, kind: type[T] | tuple[type[T], ...], what: str) -> T:
    """`value` if it is of this kind.

    >>> checked("x", int, "a count")
    Traceback (most recent call last):
    ValueError: not a saved reply: a count is a str
    """
    # bool is an int to isinstance, but never a count or a logprob.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise fail(f"{what} is a {type(value).__name__}")
    return value


def text_in(value: object, what: str) -> str:
    return checked(value, str, what)


def whole_in(value: object, what: str) -> int:
    return checked(value, int, what)


def list_in(value: object, what: str) -> list[object]:
    return checked(value, list, what)


def object_in(value: object, what: str) -> Mapping[str, object]:
    """A JSON object. Its keys are texts where the data comes from JSON; others are refused."""
    found: Mapping[object, object] = checked(value, dict, what)
    return {checked(key, str, f"a key of {what}"): item for key, item in found.items()}


def number_in(value: object, what: str) -> float | None:
    """A finite number, or None for null."""
    if value is None:
        return None
    plain: int | float = checked(value, (int, float), what)
    try:
        number = float(plain)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise fail(f"{what} is not finite")
    return number


def pair_in(value: object, what: str) -> tuple[object, object]:
    pair: Sequence[object] = checked(value, (list, tuple), what)
    if len(pair) != 2:
        raise fail(f"{what} is not a pair")
    return pair[0], pair[1]


def bytes_in(text: str) -> bytes:
    try:
        if text.startswith(r"\x"):
            return bytes.fromhex(text[2:])
        return str(json.loads(f'"{text}"')).encode("utf-8", "replace")
    except ValueError:
        raise fail("the text of a token is neither text nor hex bytes") from None


def whole_field(text: str, what: str) -> int | None:
    """A whole number in a token record; None where the field is empty."""
    try:
        return int(text) if text else None
    except ValueError:
        raise fail(f"{what} is not a number") from None


def number_field(text: str, what: str) -> float | None:
    """A finite number in a token record; None where the field is empty."""
    try:
        return number_in(float(text), what) if text else None
    except ValueError:
        raise fail(f"{what} is not a number") from None


def top_in(id_: str, text: str, logprob: str) -> Top:
    allowed = not logprob.endswith("!")
    value = number_field(logprob.removesuffix("!"), "a logprob")
    return Top(whole_field(id_, "a token id"), bytes_in(text), value, allowed)


_FLAGS = re.compile(r"(t?)(f?)(?:m([0-9.]+))?")


def token_in(record: object) -> Token:
    text = text_in(record, "a token")
    if len(text) > MAX_TOKEN_TEXT:
        raise fail("a token record is too long")
    row = text.split("\t" if "\t" in text else BAR)  # tabs: notebooks of the first weeks
    flags = _FLAGS.fullmatch(row[5]) if len(row) >= 6 else None
    if flags is None or len(row) % 3:
        raise fail("a token record has wrong fields")
    return Token(
        id=whole_field(row[0], "a token id"),
        bytes=bytes_in(row[1]),
        logprob=number_field(row[2], "a logprob"),
        rank=whole_field(row[3], "a rank"),
        at=(whole_field(row[4], "a time") or 0) / 1000,
        top=tuple(top_in(*row[i : i + 3]) for i in range(6, len(row), 3)),
        masked=number_field(flags[3] or "", "a masked share"),
        trimmed=bool(flags[1]),
        forced=bool(flags[2]),
    )


def kinds_in(value: object, n: int) -> tuple[str, ...]:
    """The kinds of at most `n` tokens from their run lengths."""
    out: list[str] = []
    for run in list_in(value, "kinds"):
        if not isinstance(run, list) or len(run) != 2:
            raise fail("kinds are not runs")
        kind = run[0]
        if kind not in ("answer", "reasoning", "call"):
            raise fail("a token is of an unknown kind")
        count = whole_in(run[1], "a run length")
        if not 0 <= count <= n - len(out):
            raise fail("kinds are longer than the tokens")
        out.extend([kind] * count)
    return tuple(out)


def usage_in(data: object) -> Usage:
    return Usage(**{name: int(value) for name, value in _amounts(Usage, data, "usage").items()})


def timings_in(data: object) -> Timings:
    return Timings(**_amounts(Timings, data, "timings"))


def _amounts(cls: type[Usage] | type[Timings], data: object, what: str) -> dict[str, float]:
    """The fields of a dataclass of numbers >= 0; unknown keys of newer versions are ignored."""
    data = object_in(data, what)
    values = {}
    for name in (f.name for f in fields(cls) if f.name in data):
        number = number_in(data[name], f"{what}.{name}")
        if number is None or number < 0:
            raise fail(f"{what}.{name} is not a number from 0 up")
        values[name] = number
    return values


def choices_in(data: object) -> dict[str, float] | None:
    """The probabilities of whole choices."""
    if data is None:
        return None
    found = {}
    for text, value in object_in(data, "choices").items():
        p = number_in(value, "the probability of a choice")
        if p is None or not 0 <= p <= 1:
            raise fail("the probability of a choice is not between 0 and 1")
        found[text] = p
    return found


def call_in(value: object) -> ToolCall:
    data = object_in(value, "a call")
    id, name, arguments = (text_in(data.get(k), f"call.{k}") for k in ("id", "name", "arguments"))
    return ToolCall(id, name, arguments, data.get("in_reasoning") is True)


def call_out(call: ToolCall) -> JsonObject:
    """A call as JSON; the mark of one in reasoning only where it is set."""
    mark: JsonObject = {"in_reasoning": True} if call.in_reasoning else {}
    return {"id": call.id, "name": call.name, "arguments": call.arguments} | mark


def trace_in(value: object) -> ToolRecord:
    data = object_in(value, "a tool record")
    error = data.get("error")
    return ToolRecord(
        round=whole_in(data.get("round"), "trace.round"),
        call=call_in(data.get("call")),
        arguments=data.get("arguments"),
        approval=text_in(data.get("approval"), "trace.approval"),
        status=text_in(data.get("status"), "trace.status"),
        seconds=number_in(data.get("seconds"), "trace.seconds") or 0.0,
        result=text_in(data.get("result"), "trace.result"),
        stdout=text_in(data.get("stdout", ""), "trace.stdout"),
        error=None if error is None else text_in(error, "trace.error"),
        waited=number_in(data.get("waited"), "trace.waited") or 0.0,
    )


def sampling_in(value: object) -> Sampling:
    """Settings of a saved reply; what this version does not know is left out."""
    data = object_in(value, "sampling")
    try:
        return read({name: data[name] for name in FIELDS if name in data})
    except RequestError as e:
        raise fail(str(e)) from None
