"""The record of an output: what its replies need to be generated again, and how it was drawn.

`metadata` writes it into the output's metadata, in docs mode too: nbval compares the data of an
output, not its metadata. `differences` draws the output again and says what is not the same.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from html import unescape
from typing import Any, cast

from llm_magic import __version__
from llm_magic.asked import sampling_out
from llm_magic.chat import saved
from llm_magic.chat.json_values import to_json
from llm_magic.chat.record import checksum, record_out, sealed
from llm_magic.chat.reply import Reply
from llm_magic.chat.view_protocols import Bundle
from llm_magic.json_types import JsonObject

from . import mime
from .summary import model_name

KEY = "llm_magic_record"
AROUND = 24  # characters shown around a difference
_LOOK = ("format", "language", "heat", "docs", "save_prompt", "json_tokens")
# Of the vendor JSON: what depends on the notebook's own types, or is compared by its digest.
_APART = frozenset({"parsed", "prompt"})


def metadata(
    reply: Reply, look: mime.Look, data: Bundle, note: str = "", prepared: str = ""
) -> Bundle:
    """The metadata of an output.

    Args:
        reply: What it shows.
        look: How.
        data: What `mime.bundle` made of the other arguments.
        note: What happened to the reply, in words.
        prepared: How long loading took, in words.
    """
    drawn: JsonObject = {name: cast("Any", getattr(look, name)) for name in _LOOK}
    drawn |= {"show": sorted(look.show), "note": note, "prepared": prepared, "cell": look.cell}
    if not look.docs:  # there they are not shown
        drawn |= {"usage": to_json(asdict(reply.usage)), "timings": to_json(asdict(reply.timings))}
    else:
        drawn |= {"usage": to_json(asdict(reply.usage))}
    drawn |= {"prompt": _digest(reply.prompt), "asked": bool(reply.messages)}
    return _sealed([reply], look, data, {"as": "reply", **drawn})


def parts(replies: Sequence[Reply], look: mime.Look, data: Bundle, form: str = "parts") -> Bundle:
    """The metadata of an output that shows replies in a form of its own.

    Args:
        replies: What it shows.
        look: The settings of the notebook.
        data: The output.
        form: "parts": their texts; "branch": the newest branch of one reply.
    """
    return _sealed(replies, look, data, {"as": form, "cell": look.cell, "docs": look.docs})


def _sealed(replies: Sequence[Reply], look: mime.Look, data: Bundle, drawn: JsonObject) -> Bundle:
    sums: JsonObject = {kind: checksum(value) for kind, value in data.items()}
    drawn = {**drawn, "llm_magic": __version__, "sums": sums}
    records = [_record(reply, look) for reply in replies]
    return {KEY: sealed(records, drawn=drawn)}


def _record(reply: Reply, look: mime.Look) -> JsonObject:
    found = record_out(
        reply, sampling_out(reply.sampling), model_name(reply.model), look.save_prompt,
        look.json_tokens,
    )  # fmt: skip
    if reply.branches and "unchecked" not in found:
        found["branches"] = [[at, _record(branch, look)] for at, branch in reply.branches]
    return found


def _digest(text: str | None) -> str:
    if text is None:
        return ""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# ----------------------------------------------------------------------------- drawn again


def differences(
    data: Mapping[str, Any],
    replies: Sequence[Reply],
    drawn: Mapping[str, object],
    exact: bool = True,
) -> list[str]:
    """What an output shows that its replies, as they are now, do not say.

    Args:
        data: The MIME bundle of the notebook's file.
        replies: The replies as they were generated again.
        drawn: How it was drawn, from the record.
        exact: Whether the replies have every bit of those that were drawn. Where they have not,
            the texts are compared, and the numbers beside them are not.
    """
    data = {k: _KEPT.sub(r"\1", v) if k == "text/html" else v for k, v in data.items()}
    try:
        found = list(_drawn(data, replies, drawn, exact))
    except (ValueError, KeyError, TypeError) as e:
        found = [f"the output cannot be drawn again: {e}"]
    return [*found, *_changed(data, drawn, found)]


def _drawn(
    data: Mapping[str, Any], replies: Sequence[Reply], drawn: Mapping[str, object], exact: bool
) -> Iterator[str]:
    if drawn.get("as") == "reply":
        yield from _reply(data, replies[0], drawn, exact)
    elif drawn.get("as") == "branch":
        yield from _parts(data, [r.branches[-1][1] for r in replies if r.branches])
    else:
        yield from _parts(data, replies)


def _changed(
    data: Mapping[str, Any], drawn: Mapping[str, object], found: Sequence[str]
) -> Iterator[str]:
    """Parts of the output that are not what was saved, where nothing else has told of them."""
    sums = saved.object_in(drawn.get("sums", {}), "sums")
    for kind in dict.fromkeys([*sums, *data]):
        told = any(line.startswith(kind) for line in found)
        if not told and (kind not in data or sums.get(kind) != checksum(data[kind])):
            yield f"{kind}: it was changed after it was saved"


def _parts(data: Mapping[str, Any], replies: Sequence[Reply]) -> Iterator[str]:
    for number, reply in enumerate(replies, 1):
        for kind in ("text/plain", "text/html"):
            shown = _words(kind, str(data.get(kind, "")))
            if kind in data and _squeezed(reply.text) not in _squeezed(shown):
                yield f"{kind}: it does not hold the text of reply {number}, {reply.text[:60]!r}"


def _reply(
    data: Mapping[str, Any], reply: Reply, drawn: Mapping[str, object], exact: bool
) -> Iterator[str]:
    look = _look_in(drawn)
    reply = _as_saved(reply, data, drawn)
    note, prepared = (saved.text_in(drawn.get(name, ""), name) for name in ("note", "prepared"))
    again = mime.bundle(reply, look, note, prepared)
    # What was given to the answer brought numbers along that no one can make again; the messages
    # of a prompt that is shown are not in the record.
    brought = any(t.forced and t.rank is None and t.logprob is not None for t in reply.tokens)
    loose = not exact or brought or "prompt" in look.show
    if loose:
        yield from _parts({k: v for k, v in data.items() if k == "text/html"}, [reply])
    same = drawn.get("llm_magic") == __version__
    for kind in ("text/plain", "text/markdown", "text/html"):
        if kind in data or kind in again:
            then, now = str(data.get(kind, "")), str(again.get(kind, ""))
            yield from _text(kind, then, now, loose, same)
    if isinstance(told := data.get(mime.VENDOR), Mapping):
        yield from _json(told, again.get(mime.VENDOR) or {}, drawn, loose)


def _look_in(drawn: Mapping[str, object]) -> mime.Look:
    values = {name: cast("Any", drawn[name]) for name in _LOOK}
    show = frozenset(map(str, saved.list_in(drawn.get("show", []), "show")))
    return mime.Look(**values, show=show)


def _as_saved(reply: Reply, data: Mapping[str, Any], drawn: Mapping[str, object]) -> Reply:
    """The reply with the times of the saved one: they are shown, and nobody can measure them
    again."""
    if "usage" in drawn:
        reply = replace(reply, usage=saved.usage_in(drawn["usage"]))
    if "timings" in drawn:
        reply = replace(reply, timings=saved.timings_in(drawn["timings"]))
    if not drawn.get("asked"):
        reply = replace(reply, messages=())
    told = data.get(mime.VENDOR)
    if not isinstance(told, Mapping):
        return reply
    return _timed(reply, Reply.from_dict(told))


def _timed(reply: Reply, old: Reply) -> Reply:
    """A reply with the times of another one's tokens, and its branches with all of theirs."""
    if len(old.tokens) == len(reply.tokens):
        pairs = zip(reply.tokens, old.tokens, strict=True)
        reply = replace(reply, tokens=tuple(replace(t, at=then.at) for t, then in pairs))
    if len(old.branches) != len(reply.branches):
        return reply
    return replace(
        reply,
        branches=tuple(
            (at, replace(_timed(new, then), timings=then.timings, usage=then.usage))
            for (at, new), (_, then) in zip(reply.branches, old.branches, strict=True)
        ),
    )


def _text(kind: str, then: str, now: str, loose: bool, same: bool) -> Iterator[str]:
    """same: this version of the package drew it. Another one may draw the same words with other
    colours."""
    if then == now or (loose and kind == "text/html"):
        return
    a, b = _words(kind, then), _words(kind, now)
    if _squeezed(a) != _squeezed(b):
        a, b = _squeezed(a), _squeezed(b)
    elif not same:
        return
    elif a == b:
        a, b = then, now
    yield _first(kind, a, b)


def _first(kind: str, then: str, now: str) -> str:
    """The first difference of two texts: where it is, and what stands there."""
    match = (
        difflib.SequenceMatcher(None, then, now, autojunk=False)
        if max(len(then), len(now)) < 4000
        else None
    )
    at = next((i for i, (x, y) in enumerate(zip(then, now, strict=False)) if x != y),
              min(len(then), len(now)))  # fmt: skip
    if match is not None:
        changed = [op for op in match.get_opcodes() if op[0] != "equal"]
        more = f"; {len(changed)} places differ" if len(changed) > 1 else ""
    else:
        more = ""
    start = max(0, at - AROUND)
    return (
        f"{kind}, character {at}: {then[start : at + AROUND]!r} is saved, the reply says "
        f"{now[start : at + AROUND]!r}{more}"
    )


# The frame of an output that is updated after its cell, around what is drawn.
_KEPT = re.compile(r'(?s)\A(?:<style>[^<]*</style>)?<div class="llm-kept-[\w-]*">(.*)</div>\Z')
_TAG = re.compile(r"<style>.*?</style>|<[^>]*>", re.DOTALL)
_TIP = re.compile(r'\b(?:title|value|aria-label)="([^"]*)"')


def _words(kind: str, text: str) -> str:
    """What a person reads of an output, tooltips included."""
    if kind != "text/html":
        return text
    tips = " ".join(_TIP.findall(text))
    return unescape(f"{_TAG.sub('', text)} {tips}")


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _json(
    then: Mapping[str, Any], now: Mapping[str, Any], drawn: Mapping[str, object], loose: bool
) -> Iterator[str]:
    """The first difference of two saved replies, by its path."""
    prompt = then.get("prompt")
    if isinstance(prompt, str) and _digest(prompt) != drawn.get("prompt"):
        yield f"{mime.VENDOR}, prompt: it was changed"
    a = {k: v for k, v in then.items() if k not in _APART}
    b = {k: v for k, v in now.items() if k not in _APART}
    if loose:
        apart = ("tokens", "branches", "choices")
        yield from _said(then.get("tokens"), now.get("tokens"))
        a, b = ({k: v for k, v in d.items() if k not in apart} for d in (a, b))
    if (path := _apart(a, b)) is not None:
        place, x, y = path
        yield f"{mime.VENDOR}, {place}: {_short(x)} is saved, the reply says {_short(y)}"


def _said(then: Any, now: Any) -> Iterator[str]:
    """The first token record of another id or text."""
    if not isinstance(then, list) or not isinstance(now, list):
        return
    for i, (x, y) in enumerate(zip(then, now, strict=False)):
        if str(x).split("|")[:2] != str(y).split("|")[:2]:
            yield f"{mime.VENDOR}, tokens[{i}]: {_short(x)} is saved, the reply says {_short(y)}"
            return


def _apart(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any] | None:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in dict.fromkeys([*a, *b]):
            if (found := _apart(a.get(key), b.get(key), f"{path}.{key}".lstrip("."))) is not None:
                return found
        return None
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if (found := _apart(x, y, f"{path}[{i}]")) is not None:
                return found
        return None
    return None if a == b else (path, a, b)


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
