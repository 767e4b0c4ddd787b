"""Constraints as token masks: JSON schema, regex, choices, grammar -> Guide (by llguidance).

Comes in: a Constraint (data) and a vocabulary (bytes of every token). Goes out: a Guide that the
sampler asks for a mask before each token. It must not know engines, templates or notebooks.

llguidance never raises: in its error state it allows only the end token, so a wrong schema would
quietly give empty output. Here every step is checked, and a constraint that cannot be used is a
SchemaError before anything is generated.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import llguidance
import llguidance.numpy
import numpy as np
import numpy.typing as npt

from ..errors import EngineError, SchemaError
from ..events import Choices, Constraint, Grammar, Regex, Schema, ToolSpec
from .callgrammar import call_grammar
from .gbnf import as_lark
from .narrow import narrowed
from .schema import as_schema
from .syntax import ReasoningTags, Syntax

Mask = npt.NDArray[np.uint32]

# At most this much white space between two JSON tokens: with any amount allowed, a model may spin
# on newlines until its budget is gone. Indentation eight levels deep still fits.
JSON_SPACE = r"[ \n\t]{0,20}"
GAP_TOKENS = 3  # of white space between the reasoning and what is bound


class Guide(Protocol):
    """What a sampler asks; engine.sampling.Guide has the same shape."""

    def mask(self) -> Mask | None: ...

    def accept(self, token: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a constraint must know of a tokenizer.

    tokens: bytes of each id; of a control token its name. controls: ids of control tokens, which
    are never part of constrained text. encode: text -> ids without control tokens.
    """

    tokens: Sequence[bytes]
    controls: frozenset[int]
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class _Wrapped:
    """A vocabulary in the form that llguidance.TokenizerWrapper reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = min(vocabulary.end_ids)
        self.bos_token_id = None
        # llguidance tells control tokens from text of the same spelling by a leading 0xFF byte.
        self.tokens = [
            b"\xff" + (t or b"<%d>" % i) if i in vocabulary.controls else t
            for i, t in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(vocabulary.controls)
        self._encode = vocabulary.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class Constrainer:
    """Compiles constraints for one vocabulary. The costly tokenizer table is built on first use.

    (One second at 262,144 tokens: it is kept off the load path.) Methods are thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._lock = threading.Lock()
        self._table: Any = None
        self._tags: dict[ReasoningTags, _Tags] = {}
        self._openers: dict[tuple[str, ReasoningTags | None], _Openers] = {}

    @property
    def table(self) -> Any:
        with self._lock:
            if self._table is None:
                ends = sorted(self.vocabulary.end_ids)
                if not ends:
                    raise SchemaError("this model has no end token: constraints cannot end")
                wrapper = llguidance.TokenizerWrapper(_Wrapped(self.vocabulary))
                self._table = llguidance.LLTokenizer(
                    wrapper, n_vocab=len(self.vocabulary.tokens), eos_token=ends
                )
            return self._table

    def guide(self, constraint: Constraint) -> "Matcher":
        """A fresh Guide. SchemaError says what cannot be used, with the path in a schema."""
        try:
            return self.grammar_guide(grammar_of(constraint))
        except SchemaError as e:
            raise _located(e, constraint) from None

    def call_guide(
        self,
        tools: Sequence[ToolSpec],
        syntax: Syntax,
        template: str = "",
        answer: Constraint | None = None,
    ) -> "tuple[Matcher, Syntax]":
        """A fresh Guide for one call of one of the tools, and the syntax in which it will come.

        template: the chat template's source. answer: what may come instead of a call.
        """
        words = self.vocabulary.tokens
        controls = {words[i].decode("utf-8", "replace"): i for i in self.vocabulary.controls}
        lark, syntax = call_grammar(tools, syntax, controls, template, answer)
        return self.grammar_guide(str(llguidance.LLMatcher.grammar_from_lark(lark))), syntax

    def grammar_guide(self, grammar: str) -> "Matcher":
        """A fresh Guide for a grammar in llguidance's own form."""
        matcher = llguidance.LLMatcher(self.table, grammar, log_level=0)
        if matcher.is_error():
            raise SchemaError(_sentence(matcher.get_error()))
        return Matcher(matcher, self.vocabulary)

    def late(self, guide: "Matcher", tags: ReasoningTags, opened: bool) -> "Late":
        """The guide behind free reasoning; see Late."""
        with self._lock:
            if tags not in self._tags:
                self._tags[tags] = _Tags(self.vocabulary, tags)
            return Late(guide, self._tags[tags], opened)

    def no_calls(self, syntax: Syntax, tags: ReasoningTags | None) -> "NoCalls":
        """A Guide for answers that must not be calls."""
        key = (syntax.name, tags)
        with self._lock:
            if key not in self._openers:
                self._openers[key] = _Openers(self.vocabulary, syntax, tags)
            return NoCalls(self._openers[key])


class Matcher:
    """A Guide over one llguidance matcher. Used by one thread at a time."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary) -> None:
        n = len(vocabulary.tokens)
        self._matcher = matcher
        self._bits: Mask = np.empty((n + 31) // 32, np.uint32)  # one buffer for all positions
        self._where = (self._bits.ctypes.data, self._bits.nbytes)
        self._ends = vocabulary.end_ids

    @property
    def complete(self) -> bool:
        """What was accepted so far is a whole sentence of the constraint."""
        return bool(self._matcher.is_accepting())

    def mask(self) -> Mask:
        self._matcher.unsafe_compute_mask_ptr(*self._where)
        self._check()
        return self._bits

    def allows(self, token: int) -> bool:
        return bool(self._matcher.validate_tokens([token]))

    def accept(self, token: int) -> None:
        if token in self._ends:
            return
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the constraint failed: {_sentence(self._matcher.get_error())}")


# ----------------------------------------------------------------------------- reasoning first


class _Tags:
    """Masks around one pair of reasoning tags, each made when it is first needed."""

    def __init__(self, vocabulary: Vocabulary, tags: ReasoningTags) -> None:
        self.vocabulary = vocabulary
        self.opening = tags.open.encode()
        # In channels reasoning ends where the final message begins, whatever comes between.
        close = "<|channel|>final<|message|>" if tags.channels else tags.close
        self.closing = close.encode()
        self._openers: dict[int, Mask] = {}
        self._free: dict[int, Mask] = {}

    def openers(self, n: int) -> Mask:
        """Tokens that go on with the opening tag behind its first `n` bytes."""
        if n not in self._openers:
            rest = self.opening[n:]
            tokens = self.vocabulary.tokens
            self._openers[n] = self._mask(
                i for i, t in enumerate(tokens) if t and rest.startswith(t)
            )
        return self._openers[n]

    def free(self, n: int) -> Mask:
        """Tokens that may follow inside, behind `n` bytes of the closing tag: all but the ends, and
        those that would close and go on with text that no constraint has seen."""
        if n not in self._free:
            begun, last = self.closing[:n], self.closing[-1:]
            tokens = self.vocabulary.tokens
            late = (i for i, t in enumerate(tokens) if last in t and self._beyond(begun + t))
            self._free[n] = ~(self._mask(late) | self._mask(self.vocabulary.end_ids))
        return self._free[n]

    @cached_property
    def blank(self) -> Mask:
        """Tokens of white space."""
        tokens = self.vocabulary.tokens
        return self._mask(i for i, t in enumerate(tokens) if t and not t.strip(b" \n"))

    def begun(self, text: bytes) -> int:
        """How much of the closing tag a text ends with."""
        closing = self.closing
        return next((n for n in range(len(closing) - 1, 0, -1) if text.endswith(closing[:n])), 0)

    def _beyond(self, text: bytes) -> bool:
        _, found, rest = text.partition(self.closing)
        return bool(found and rest.strip())

    def _mask(self, ids: Iterable[int]) -> Mask:
        return _packed(len(self.vocabulary.tokens), ids)


class Late:
    """A Guide that lets a model reason freely first and binds what comes after the closing tag.

    opened: reasoning has begun in the prompt. Otherwise it begins only if the output starts with
    the opening tag; any other start is bound from the first token on.
    """

    def __init__(self, guide: Matcher, tags: _Tags, opened: bool) -> None:
        self._guide, self._tags = guide, tags
        self._state = "inside" if opened else "start"
        self._text = b""
        self._gap = 0

    @property
    def complete(self) -> bool:
        return self._state in ("gap", "bound") and self._guide.complete

    def mask(self) -> Mask | None:
        match self._state:
            case "start":
                return self._guide.mask() | self._tags.openers(0)
            case "opening":
                return self._tags.openers(len(self._text))
            case "inside":
                return self._tags.free(self._tags.begun(self._text))
            case "gap" if self._gap < GAP_TOKENS:
                return self._guide.mask() | self._tags.blank
        return self._guide.mask()

    def accept(self, token: int) -> None:
        if self._state in ("start", "gap") and self._guide.allows(token):
            self._state = "bound"
        match self._state:
            case "bound":
                self._guide.accept(token)
            case "gap":
                self._gap += 1
            case "inside":
                self._inside(self._text + self._tags.vocabulary.tokens[token])
            case _:
                self._text += self._tags.vocabulary.tokens[token]
                done = self._text == self._tags.opening
                self._state, self._text = ("inside", b"") if done else ("opening", self._text)

    def _inside(self, text: bytes) -> None:
        if self._tags.closing in text:
            self._state = "gap"
        self._text = text[-len(self._tags.closing) :]


# ----------------------------------------------------------------------------- no calls


class _Openers:
    """Masks against the strings that open a call, each made when it is first needed."""

    def __init__(self, vocabulary: Vocabulary, syntax: Syntax, tags: ReasoningTags | None) -> None:
        self.tokens = vocabulary.tokens
        self.openers = tuple(opener.encode() for opener in syntax.open)
        self.closing = tags.close.encode() if tags else b""
        self.longest = max(map(len, (*self.openers, self.closing)), default=0)
        self._bare = syntax.bare.encode()
        self._masks: dict[bytes | None, Mask | None] = {}

    def mask(self, begun: bytes | None) -> Mask | None:
        """What may follow `begun`, the beginning of an opener; None: what may start the answer."""
        if begun not in self._masks:
            bad = self._starts if begun is None else lambda token: self._completes(begun + token)
            ids = [i for i, token in enumerate(self.tokens) if token and bad(token)]
            self._masks[begun] = ~_packed(len(self.tokens), ids) if ids else None
        return self._masks[begun]

    def _starts(self, token: bytes) -> bool:
        text = token.strip()
        if not text:
            return False
        opens = any(o.startswith(text) or text.startswith(o) for o in self.openers)
        return opens or text[:1] in self._bare

    def _completes(self, text: bytes) -> bool:
        return any(opener in text for opener in self.openers)

    def begun(self, text: bytes) -> bytes:
        """The longest beginning of an opener that a text ends with."""
        ends = (text[-n:] for n in range(min(self.longest - 1, len(text)), 0, -1))
        return next((end for end in ends if any(o.startswith(end) for o in self.openers)), b"")


class NoCalls:
    """A Guide that keeps a model from calling: its answer cannot start like a call, nor come to one
    later on. A model that has just seen calls would otherwise write one more, as text."""

    def __init__(self, openers: _Openers) -> None:
        self._openers = openers
        self._text = b""
        self._started = False

    def mask(self) -> Mask | None:
        if not self._started:
            return self._openers.mask(None)
        return self._openers.mask(self._openers.begun(self._text))

    def accept(self, token: int) -> None:
        openers = self._openers
        self._text = (self._text + openers.tokens[token])[-2 * openers.longest - 1 :]
        self._started = self._started or bool(self._text.strip())
        if openers.closing and self._text.endswith(openers.closing):  # the answer starts now
            self._started, self._text = False, b""


def _packed(n: int, ids: Iterable[int]) -> Mask:
    """A bit mask over n tokens with these ones set."""
    bits = np.zeros((n + 31) // 32 * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


# ----------------------------------------------------------------------------- grammars


def grammar_of(constraint: Constraint) -> str:
    """The constraint in llguidance's form. SchemaError for what can be seen to be wrong already."""
    match constraint:
        case Schema(schema):
            return schema_grammar(schema)
        case Regex(pattern):
            return _regex(pattern)
        case Choices(options):
            return _choices(options)
        case Grammar(text):
            return str(llguidance.LLMatcher.grammar_from_lark(as_lark(text)))


def schema_grammar(schema: Any) -> str:
    """A JSON schema (dict, bool, type, dataclass, pydantic model) as a grammar."""
    return _json_grammar(narrowed(as_schema(schema)))


def _json_grammar(schema: Mapping[str, Any]) -> str:
    options = {
        "whitespace_pattern": JSON_SPACE,
        "whitespace_flexible": True,
        "json_allow_general_unicode_escapes": True,
    }
    return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), options))


def _regex(pattern: str) -> str:
    if not isinstance(pattern, str) or not pattern:
        raise SchemaError("the regular expression is empty")
    # The whole output must match: anchors at the ends say what is so anyway.
    body = pattern.removeprefix("^")
    if body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2:
        body = body[:-1]
    return str(llguidance.LLMatcher.grammar_from_regex(body))


def _choices(options: Sequence[str]) -> str:
    if not options or not all(isinstance(o, str) and o for o in options):
        raise SchemaError("choices must be one or more texts, none of them empty")
    return str(llguidance.LLMatcher.grammar_from_regex("|".join(map(_literal, options))))


def _literal(text: str) -> str:
    """A regular expression for a text, in the syntax that Rust's regex crate reads."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02x}" for c in text)


# ----------------------------------------------------------------------------- errors


def _sentence(message: str) -> str:
    """What went wrong, without the parser's state that may follow."""
    lines = [line.strip() for line in message.strip().splitlines()]
    said = next((line for line in reversed(lines) if line.startswith("error:")), "")
    return said.removeprefix("error:").strip() or (lines[0] if lines else "unknown reason")


def _located(error: SchemaError, constraint: Constraint) -> SchemaError:
    """The error with the place in the schema, which the grammar compiler does not tell."""
    if error.path or not isinstance(constraint, Schema):
        return SchemaError(f"the constraint cannot be used: {error}", error.path)
    path = _culprit(narrowed(as_schema(constraint.schema)))
    return SchemaError(f"the constraint cannot be used at {path}: {error}", path)


def _culprit(schema: Mapping[str, Any]) -> str:
    """The path of the deepest part of a narrowed schema that fails when it stands alone."""
    path, node = "#", schema
    while True:
        for part in _parts(node):
            alone = _json_grammar({**part, "$defs": schema.get("$defs", {})})
            failed, _ = llguidance.LLMatcher.validate_grammar_with_warnings(alone)
            if failed:
                path, node = part.get("$comment", path), part
                break
        else:
            return path


def _parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas right inside a schema."""
    for key, value in node.items():
        if key in ("enum", "$comment"):
            continue
        inner = value.values() if key in ("properties", "patternProperties", "$defs") else [value]
        for part in value if isinstance(value, list) else inner:
            if isinstance(part, Mapping):
                yield part
