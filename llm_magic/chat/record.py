"""What a saved reply carries so that it can be generated again: its record.

The record lies in the metadata of the notebook's output. It holds what a page need not show: the
hash of the model's file, the code that evaluated it, the prompt's ids, the settings with their
seed, the tokens, and log-probabilities with all of their bits. What is read comes from a file and
is not trusted: a ValueError says what is wrong with it.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

from ..json_types import Json, JsonObject
from . import saved
from .reply import Reply

VERSION = 1
MAX_TOKENS = 1_000_000
MAX_DEPTH = 32  # of branches of branches
REMOTE = "its provider does not say which model file answered"
TOOLS = "tools ran between its tokens, and what they did is not done again"
SECRET = "the prompt is not saved (save_prompt is off)"
LONG = "it is longer than the replies whose tokens are saved (save_tokens)"
NO_FILE = "the model's file was gone or had changed when the reply was saved"


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read.

    Attributes:
        model: The model's name.
        sha256: Of its file.
        variant: The code that evaluated it.
        exact: Whether that code gives the same bits each time.
        asked: The request apart from prompt and settings, see `llm_magic.asked`.
        sampling: The settings as JSON.
        prompt: Ids of the prompt.
        ids: Ids of the answer's tokens, given ones included.
        logprobs: Of each token; None where it has none.
        finish: Why the answer ended.
        choices: Probabilities of whole choices.
        branches: Continuations from other tokens, each with its position.
        unchecked: Why it cannot be generated again; "" where it can.
    """

    model: str
    sha256: str = ""
    variant: str = ""
    exact: bool = False
    asked: Mapping[str, object] = field(default_factory=dict)
    sampling: Mapping[str, object] = field(default_factory=dict)
    prompt: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[float | None, ...] = ()
    finish: str | None = None
    choices: Mapping[str, float] | None = None
    branches: tuple[tuple[int, "Record"], ...] = ()
    unchecked: str = ""


# ----------------------------------------------------------------------------- outwards


def record_out(
    reply: Reply,
    sampling: JsonObject,
    model: str,
    prompt: bool = True,
    max_tokens: int | None = None,
) -> JsonObject:
    """The record of a reply as JSON; where it cannot be generated again, the reason.

    Args:
        reply: The reply.
        sampling: Its settings as JSON.
        model: Its model's name as people may see it.
        prompt: Whether the prompt may be saved.
        max_tokens: The longest reply whose tokens may be saved; None: every.
    """
    why = _why_not(reply, prompt, max_tokens)
    origin = reply.origin
    digest = origin.file.sha256() if origin is not None and not why else None
    if not why and digest is None:
        why = NO_FILE
    if why or origin is None or digest is None:
        return {"model": model, "unchecked": why}
    found: JsonObject = {
        "model": model,
        "sha256": digest,
        "variant": origin.variant,
        "exact": origin.exact,
        # As one text: the writers of notebooks sort the keys of objects, and the order of the
        # properties of a schema is that of the answer.
        "asked": json.dumps(origin.asked, ensure_ascii=False),
        "sampling": sampling,
        "prompt": _ids_out(reply.prompt_ids),
        "ids": _ids_out([t.id for t in reply.tokens if t.id is not None]),
        "logprobs": " ".join(_bits_out(t.logprob) for t in reply.tokens),
        "finish": reply.finish_reason,
    }
    if reply.choices is not None:
        found["choices"] = dict(reply.choices)
    return found


def _why_not(reply: Reply, prompt: bool, max_tokens: int | None) -> str:
    if reply.trace:
        return TOOLS
    if reply.origin is None or any(t.id is None for t in reply.tokens):
        return REMOTE
    if not prompt:
        return SECRET
    if max_tokens is not None and len(reply.tokens) > max_tokens:
        return LONG
    return ""


def _ids_out(ids: Sequence[int]) -> str:
    """One string: a notebook file puts every item of a list on a line of its own."""
    return " ".join(map(str, ids))


def _bits_out(x: float | None) -> str:
    """The shortest text that is read as the same float."""
    return "-" if x is None or not math.isfinite(x) else repr(x)


def sealed(records: Sequence[Json], **also: Json) -> JsonObject:
    """Records with a checksum, so that a changed character of theirs is found whatever it means."""
    found: JsonObject = {"version": VERSION, **also, "replies": list(records)}
    return found | {"sum": _sum(found)}


def _sum(data: Mapping[str, object]) -> str:
    return checksum({k: v for k, v in data.items() if k != "sum"})


def checksum(data: object) -> str:
    """A hash of JSON values, 16 hexadecimal digits.

    Numbers count by their value: a page that saves a notebook writes 1.0 as 1.

    >>> checksum({"a": 1.0, "b": [True]}) == checksum({"b": [True], "a": 1})
    True
    """
    text = json.dumps(_plain(data), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _plain(value: object) -> object:
    match value:
        case bool() | None | str():
            return value
        case int() | float():
            return repr(float(value))
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return str(value)


# ----------------------------------------------------------------------------- inwards


def unsealed(data: object) -> Mapping[str, object]:
    """The metadata of `sealed`.

    Raises:
        ValueError: It is none, of another version, or a character of it was changed.
    """
    found = saved.object_in(data, "the record")
    if found.get("version") != VERSION:
        raise ValueError(f"the record is of version {found.get('version')!r}, not {VERSION}")
    if found.get("sum") != _sum(found):
        raise ValueError("the record was changed: its checksum is not that of its content")
    return found


def record_in(value: object, depth: int = 0) -> Record:
    """A record of `record_out`.

    Args:
        value: The JSON.
        depth: How many replies it is a branch of.

    Raises:
        ValueError: It is none.
    """
    if depth > MAX_DEPTH:
        raise saved.fail("branches are nested too deeply")
    data = saved.object_in(value, "a record")
    model = saved.text_in(data.get("model"), "model")
    if why := saved.text_in(data.get("unchecked", ""), "unchecked"):
        return Record(model, unchecked=why)
    ids = _ids_in(data.get("ids"), "ids")
    logprobs = saved.text_in(data.get("logprobs"), "logprobs").split()
    if len(logprobs) != len(ids):
        raise saved.fail("there are not as many logprobs as ids")
    finish = data.get("finish")
    branches = (
        saved.pair_in(pair, "a branch") for pair in saved.list_in(data.get("branches", []), "it")
    )
    return Record(
        model=model,
        sha256=saved.text_in(data.get("sha256"), "sha256"),
        variant=saved.text_in(data.get("variant"), "variant"),
        exact=saved.checked(data.get("exact"), bool, "exact"),
        asked=saved.object_in(_json_in(data.get("asked")), "asked"),
        sampling=saved.object_in(data.get("sampling"), "sampling"),
        prompt=_ids_in(data.get("prompt"), "prompt"),
        ids=ids,
        logprobs=tuple(map(_bits_in, logprobs)),
        finish=None if finish is None else saved.text_in(finish, "finish"),
        choices=saved.choices_in(data.get("choices")),
        branches=tuple(
            (saved.whole_in(at, "a place"), record_in(b, depth + 1)) for at, b in branches
        ),
    )


def _json_in(value: object) -> object:
    try:
        return json.loads(saved.text_in(value, "asked"))
    except (ValueError, RecursionError):
        raise saved.fail("what was asked is no JSON") from None


def _ids_in(value: object, what: str) -> tuple[int, ...]:
    words = saved.text_in(value, what).split()
    if len(words) > MAX_TOKENS:
        raise saved.fail(f"{what} has too many tokens")
    ids = tuple(map(saved.whole_field, words, repeat(what)))
    return tuple(i for i in ids if i is not None)


def _bits_in(word: str) -> float | None:
    return None if word == "-" else saved.number_field(word, "a logprob")
