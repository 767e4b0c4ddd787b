"""The JSON form of what a Reply is made of: tokens, kinds, calls, records, settings.

Comes in: these, or JSON from a file, which is not trusted: ValueError says what is wrong with it.
Goes out: the other one. It must not know what a Reply is.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..errors import RequestError
from ..events import Sampling, Token, ToolCall, ToolRecord, Top, Usage
from ..sampling import FIELDS, read

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


def runs(kinds: Sequence[str]) -> list[list[Any]]:
    """Run lengths: [["answer", 12], ["call", 30]]."""
    out: list[list[Any]] = []
    for kind in kinds:
        if out and out[-1][0] == kind:
            out[-1][1] += 1
        else:
            out.append([kind, 1])
    return out


# ----------------------------------------------------------------------------- inwards

MAX_TOKEN_TEXT = 100_000


def fail(what: str) -> ValueError:
    return ValueError(f"not a saved reply: {what}")


def checked(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    # bool is an int to isinstance, but never a count or a logprob.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise fail(f"{what} is a {type(value).__name__}")
    return value


def number_in(value: Any, what: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(checked(value, (int, float), what))
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise fail(f"{what} is not finite")
    return number


def pair_in(value: Any, what: str) -> Sequence[Any]:
    pair: Sequence[Any] = checked(value, (list, tuple), what)
    if len(pair) != 2:
        raise fail(f"{what} is not a pair")
    return pair


def bytes_in(text: str) -> bytes:
    try:
        if text.startswith(r"\x"):
            return bytes.fromhex(text[2:])
        return str(json.loads(f'"{text}"')).encode("utf-8", "replace")
    except ValueError:
        raise fail("the text of a token is neither text nor hex bytes") from None


def field_in(text: str, kind: type[int] | type[float], what: str) -> Any:
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        raise fail(f"{what} is not a number") from None
    return number_in(value, what) if kind is float else value


def top_in(id_: str, text: str, logprob: str) -> Top:
    allowed = not logprob.endswith("!")
    value = field_in(logprob.removesuffix("!"), float, "a logprob")
    return Top(field_in(id_, int, "a token id"), bytes_in(text), value, allowed)


_FLAGS = re.compile(r"(t?)(f?)(?:m([0-9.]+))?")


def token_in(text: Any) -> Token:
    if len(checked(text, str, "a token")) > MAX_TOKEN_TEXT:
        raise fail("a token record is too long")
    row = text.split("\t" if "\t" in text else BAR)  # tabs: notebooks of the first weeks
    flags = _FLAGS.fullmatch(row[5]) if len(row) >= 6 else None
    if flags is None or len(row) % 3:
        raise fail("a token record has wrong fields")
    return Token(
        id=field_in(row[0], int, "a token id"),
        bytes=bytes_in(row[1]),
        logprob=field_in(row[2], float, "a logprob"),
        rank=field_in(row[3], int, "a rank"),
        at=(field_in(row[4], int, "a time") or 0) / 1000,
        top=tuple(top_in(*row[i : i + 3]) for i in range(6, len(row), 3)),
        masked=field_in(flags[3] or "", float, "a masked share"),
        trimmed=bool(flags[1]),
        forced=bool(flags[2]),
    )


def kinds_in(runs: Any, n: int) -> tuple[str, ...]:
    out: list[str] = []
    for run in checked(runs, list, "kinds"):
        if not (
            isinstance(run, list) and len(run) == 2 and run[0] in ("answer", "reasoning", "call")
        ):
            raise fail("kinds are not runs")
        if not 0 <= checked(run[1], int, "a run length") <= n - len(out):
            raise fail("kinds are longer than the tokens")
        out.extend([run[0]] * run[1])
    return tuple(out)


def record_in(cls: Any, data: Any, what: str) -> Any:
    """A flat dataclass of numbers; unknown keys of newer versions are ignored."""
    data = checked(data, Mapping, what)
    values = {f.name: data[f.name] for f in fields(cls) if f.name in data}
    for name, value in values.items():
        number = number_in(value, f"{what}.{name}")
        if number is None or number < 0:
            raise fail(f"{what}.{name} is not a positive number")
        values[name] = int(number) if cls is Usage else number
    return cls(**values)


def call_in(data: Any) -> ToolCall:
    data = checked(data, Mapping, "a call")
    return ToolCall(*(checked(data.get(k), str, f"call.{k}") for k in ("id", "name", "arguments")))


def trace_in(data: Any) -> ToolRecord:
    data = checked(data, Mapping, "a tool record")
    texts = {k: checked(data.get(k), str, f"trace.{k}") for k in ("approval", "status", "result")}
    error = data.get("error")
    return ToolRecord(
        round=checked(data.get("round"), int, "trace.round"),
        call=call_in(data.get("call")),
        arguments=data.get("arguments"),
        seconds=number_in(data.get("seconds"), "trace.seconds") or 0.0,
        stdout=checked(data.get("stdout", ""), str, "trace.stdout"),
        error=None if error is None else checked(error, str, "trace.error"),
        waited=number_in(data.get("waited"), "trace.waited") or 0.0,
        **texts,
    )


def sampling_in(data: Any) -> Sampling:
    """Settings of a saved reply. Unknown fields are ignored: another release may have written
    them."""
    data = checked(data, Mapping, "sampling")
    try:
        return read({name: data[name] for name in FIELDS if name in data})
    except RequestError as e:
        raise fail(str(e)) from None
