"""Constraints as token masks: JSON schema, regex, choices, grammar -> Guide (by llguidance).

Comes in: a Constraint (data) and a vocabulary (bytes of every token). Goes out: a Guide that the
sampler asks for a mask before each token. It must not know engines, templates or notebooks.

llguidance never raises: in its error state it allows only the end token, so a wrong schema would
quietly give empty output. Here every step is checked, and a constraint that cannot be used is a
SchemaError before anything is generated.
"""

import dataclasses
import json
import re
import threading
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import jsonschema
import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt
from llguidance.gbnf_to_lark import any_to_lark

from ..errors import EngineError, SchemaError
from ..events import Choices, Constraint, Grammar, Regex, Schema

# At most this much white space between two JSON tokens: with any amount allowed, a model may spin
# on newlines until its budget is gone. Two levels of indentation still fit.
JSON_SPACE = r"[ \n\t]{0,20}"
MAX_ITEMS_HINT = "simplify the schema or split it"


class Guide(Protocol):
    """What a sampler asks; see engine.sampling.Guide, which has the same shape."""

    def mask(self) -> npt.NDArray[np.uint32] | None: ...

    def accept(self, token: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a constraint must know of a tokenizer.

    tokens: bytes of each id. special: ids of control tokens (never part of constrained text).
    encode: text -> ids without control tokens.
    """

    tokens: Sequence[bytes]
    special: frozenset[int]
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class _Wrapped:
    """A vocabulary in the form that llguidance.TokenizerWrapper reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        # llguidance tells control tokens from text of the same spelling by a leading 0xFF byte.
        self.tokens = [
            b"\xff" + (t or b"<%d>" % i) if i in vocabulary.special else t
            for i, t in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(vocabulary.special)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class Constrainer:
    """Compiles constraints for one vocabulary. The costly tokenizer table is built on first use.

    (One second at 262,144 tokens: it is kept off the load path.) Methods are thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._table: Any = None

    @property
    def table(self) -> Any:
        with self._lock:
            if self._table is None:
                ends = sorted(self._vocabulary.end_ids)
                if not ends:
                    raise SchemaError("this model has no end token: constraints cannot end")
                wrapper = llguidance.TokenizerWrapper(_Wrapped(self._vocabulary))
                self._table = llguidance.LLTokenizer(
                    wrapper, n_vocab=len(self._vocabulary.tokens), eos_token=ends
                )
            return self._table

    def guide(self, constraint: Constraint) -> "Matcher":
        """A fresh Guide. SchemaError says what cannot be used, with the path in a schema."""
        return self.grammar_guide(grammar_of(constraint), constraint)

    def grammar_guide(self, grammar: str, constraint: Constraint | None = None) -> "Matcher":
        """A fresh Guide for a grammar in llguidance's own form."""
        matcher = llguidance.LLMatcher(self.table, grammar, log_level=0)
        if matcher.is_error():
            raise _refused(matcher.get_error(), constraint)
        return Matcher(matcher, len(self._vocabulary.tokens), self._vocabulary.end_ids)


class Matcher:
    """A Guide over one llguidance matcher. Used by one thread at a time."""

    def __init__(self, matcher: Any, n_vocab: int, end_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._bits = llguidance.numpy.allocate_token_bitmask(1, n_vocab)
        self._ends = end_ids

    @property
    def complete(self) -> bool:
        """What was accepted so far is a whole sentence of the constraint."""
        return bool(self._matcher.is_accepting())

    def mask(self) -> npt.NDArray[np.uint32]:
        llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        return cast("npt.NDArray[np.uint32]", self._bits[0].view(np.uint32))

    def accept(self, token: int) -> None:
        if token in self._ends:
            return
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the constraint failed: {self._matcher.get_error()}")


class Late:
    """A Guide that lets a model reason freely first and binds what comes after the closing tag.

    opened: reasoning has begun in the prompt. Otherwise it begins only if the output starts with
    the opening tag; any other start is bound from the first token on.
    """

    def __init__(
        self, guide: Guide, tokens: Sequence[bytes], opening: str, closing: str, opened: bool
    ) -> None:
        self._guide, self._tokens = guide, tokens
        self._opening, self._closing = opening.encode(), closing.encode()
        self._inside = opened
        self._bound = False
        self._text = b""

    def mask(self) -> npt.NDArray[np.uint32] | None:
        if self._bound:
            return self._guide.mask()
        if self._inside or not self._text:
            return None if self._inside else self._first()
        return None

    def _first(self) -> npt.NDArray[np.uint32]:
        """At the very start: what the constraint allows, and what the opening tag begins with."""
        guided = self._guide.mask()
        n = len(self._tokens)
        bits = np.full((n + 31) // 32, 0xFFFFFFFF, np.uint32) if guided is None else guided.copy()
        for i, token in enumerate(self._tokens):
            if token and self._opening.startswith(token):
                bits[i // 32] |= np.uint32(1 << (i % 32))
        return bits

    def accept(self, token: int) -> None:
        if self._bound:
            self._guide.accept(token)
            return
        self._text += self._tokens[token]
        if not self._inside:
            if self._text.startswith(self._opening):
                self._inside = True
            elif not self._opening.startswith(self._text):
                self._bind(token)
                return
        if self._inside and self._closing in self._text:
            self._bound = True

    def _bind(self, token: int) -> None:
        self._bound = True
        self._guide.accept(token)


# ----------------------------------------------------------------------------- grammars


def grammar_of(constraint: Constraint) -> str:
    """The constraint in llguidance's form. SchemaError for what can be seen to be wrong already."""
    match constraint:
        case Schema(schema):
            return schema_grammar(schema)
        case Regex(pattern):
            if not pattern:
                raise SchemaError("the regular expression is empty")
            return str(llguidance.LLMatcher.grammar_from_regex(pattern))
        case Choices(options):
            return _choices(options)
        case Grammar(text):
            return _lark(text)


def schema_grammar(schema: Any) -> str:
    """A JSON schema (dict, bool, type, dataclass, pydantic model) as a grammar."""
    schema = as_schema(schema)
    options = {"whitespace_pattern": JSON_SPACE, "whitespace_flexible": True}
    try:
        return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), options))
    except ValueError as e:
        raise SchemaError(f"the schema cannot be used: {e}") from None


def _choices(options: Sequence[str]) -> str:
    if not options or not all(isinstance(o, str) and o for o in options):
        raise SchemaError("choices must be one or more texts, none of them empty")
    longest = sorted(dict.fromkeys(options), key=len, reverse=True)
    return str(llguidance.LLMatcher.grammar_from_regex("|".join(map(_literal, longest))))


def _literal(text: str) -> str:
    """A regular expression for a text, in the syntax that Rust's regex crate reads."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02x}" for c in text)


def _lark(text: str) -> str:
    if not text.strip():
        raise SchemaError("the grammar is empty")
    try:
        return str(llguidance.LLMatcher.grammar_from_lark(any_to_lark(text)))
    except Exception as e:  # the GBNF reader raises whatever its parser meets
        raise SchemaError(f"the grammar cannot be read: {e}") from None


_AT = re.compile(r"(?:at|in|for) (?P<path>[#$/][^\s:,]*)")


def _refused(message: str, constraint: Constraint | None) -> SchemaError:
    """An error that names the place in the schema, which llguidance does not always give."""
    first = message.strip().splitlines()[0] if message.strip() else "unknown reason"
    path = ""
    if isinstance(constraint, Schema):
        found = _AT.search(message)
        path = found["path"] if found else _suspect(as_schema(constraint.schema), message)
    where = f" at {path}" if path else ""
    return SchemaError(f"the constraint cannot be used{where}: {first}", path)


def _suspect(schema: Any, message: str, path: str = "#") -> str:
    """The deepest place in a schema with a keyword or value that the message quotes."""
    names = set(re.findall(r"[\"'`]([^\"'`]+)[\"'`]", message))
    names |= set(re.findall(r"\b(?:keys?|keyword|property):? \[?(\w+)", message))
    best = ""
    stack: list[tuple[str, Any]] = [(path, schema)]
    while stack:
        here, node = stack.pop()
        if isinstance(node, Mapping):
            for key, value in node.items():
                at = f"{here}/{str(key).replace('~', '~0').replace('/', '~1')}"
                hit = key in names or (isinstance(value, str) and value in names)
                if hit and at.count("/") > best.count("/"):
                    best = at
                stack.append((at, value))
        elif isinstance(node, list):
            stack.extend((f"{here}/{i}", value) for i, value in enumerate(node))
    return best or path


# ----------------------------------------------------------------------------- schemas


_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
}


def as_schema(schema: Any) -> Any:
    """A JSON schema from a dict, a bool, a pydantic model, a dataclass or a type hint.

    SchemaError for anything else, and for a dict that is no valid JSON schema (draft 2020-12).
    """
    if isinstance(schema, bool):
        return schema
    if isinstance(schema, Mapping):
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as e:
            path = "#/" + "/".join(map(str, e.absolute_path))
            raise SchemaError(f"not a JSON schema: {e.message} at {path}", path) from None
        return dict(schema)
    return type_schema(schema)


def type_schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type: builtins, Literal, Optional, unions, enums, lists, tuples, dicts,
    dataclasses, TypedDicts, pydantic models, Annotated descriptions. SchemaError names the rest."""
    if hint is Any or hint is typing.Any:
        return {}
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    if callable(maker := getattr(hint, "model_json_schema", None)):
        return cast("dict[str, Any]", maker())
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        out = type_schema(arguments[0])
        words = [a for a in arguments[1:] if isinstance(a, str)]
        return {**out, "description": words[0]} if words else out
    if origin is typing.Literal:
        return _enum(list(arguments))
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [type_schema(a) for a in arguments]}
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        items = [type_schema(a) for a in arguments]
        n = len(items)
        return {"type": "array", "prefixItems": items, "minItems": n, "maxItems": n}
    if origin in (list, set, frozenset, tuple, Sequence, typing.Sequence) or _is_abc(origin):
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    return _class_schema(hint)


def _is_abc(origin: Any) -> bool:
    import collections.abc

    return origin in (collections.abc.Iterable, collections.abc.Collection)


def _class_schema(hint: Any) -> dict[str, Any]:
    import enum

    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum([member.value for member in hint])
    if dataclasses.is_dataclass(hint):
        needed = [
            f.name
            for f in dataclasses.fields(hint)
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        return _object(typing.get_type_hints(hint, include_extras=True), needed)
    if typing.is_typeddict(hint):
        needed = sorted(getattr(hint, "__required_keys__", ()))
        return _object(typing.get_type_hints(hint, include_extras=True), needed)
    raise SchemaError(f"{hint!r} has no JSON schema: use builtins, dataclasses or pydantic models")


def _object(hints: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: type_schema(t) for name, t in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _enum(values: list[Any]) -> dict[str, Any]:
    kinds = {_SIMPLE[type(v)]["type"] for v in values if type(v) in _SIMPLE}
    typed = {"type": kinds.pop()} if len(kinds) == 1 and len(values) else {}
    return {**typed, "enum": values}
