"""Constraints as token masks: JSON schema, regex, choices, grammar -> Guide (by llguidance).

A Constraint and a vocabulary (the bytes of every token) become a Guide, which the sampler asks for
a mask before each token.

llguidance does not raise errors: in its error state it allows only the end token, so a wrong schema
would give empty output. Every step is checked here, and a constraint that cannot be used is a
SchemaError before anything is generated.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np

from llm_magic.errors import EngineError, SchemaError
from llm_magic.events import Choices, Constraint, Grammar, Regex, Schema, ToolSpec

from ..parsing.syntax import ReasoningTags, Syntax
from ..schema import as_schema
from . import kinds
from .gbnf import as_lark
from .guides import AfterReasoning, Mask, NoCalls, Openers, Tags, Vocabulary
from .narrow import narrowed
from .narrow.numbers import beyond
from .narrow.words import size_fault
from .tool_calls import call_grammar

MAX_CHOICES = 2_000_000  # characters of all choices
# At most this much white space between two JSON tokens: with any amount allowed, a model may spin
# on newlines until its budget is gone. Indentation eight levels deep still fits.
JSON_SPACE = r"[ \n\t]{0,20}"


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
        self._tags: dict[ReasoningTags, Tags] = {}
        self._openers: dict[tuple[str, ReasoningTags | None], Openers] = {}

    @property
    def table(self) -> object:
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
        guide = Matcher(matcher, self.vocabulary)
        if not matcher.is_error():
            empty = not guide.first_mask().any() and not guide.complete
            if empty and not matcher.is_error():
                raise SchemaError("no answer is possible: nothing is allowed at its start")
        if matcher.is_error():
            raise SchemaError(_sentence(matcher.get_error()))
        return guide

    def late(self, guide: "Matcher", tags: ReasoningTags, opened: bool) -> AfterReasoning:
        """The guide, applied after free reasoning; see AfterReasoning."""
        with self._lock:
            if tags not in self._tags:
                self._tags[tags] = Tags(self.vocabulary, tags)
            return AfterReasoning(guide, self._tags[tags], opened)

    def no_calls(self, syntax: Syntax, tags: ReasoningTags | None) -> NoCalls:
        """A Guide for answers that must not be calls."""
        key = (syntax.name, tags)
        with self._lock:
            if key not in self._openers:
                self._openers[key] = Openers(self.vocabulary, syntax, tags)
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

    def first_mask(self) -> Mask:
        """The mask at the start, without a look at whether the compiler has failed."""
        self._matcher.unsafe_compute_mask_ptr(*self._where)
        return self._bits

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


# ----------------------------------------------------------------------------- grammars


def grammar_of(constraint: Constraint) -> str:
    """The constraint in the form that llguidance compiles.

    Raises:
        SchemaError: it can be seen already that the constraint is wrong, or too large or too deep
            for the compiler, which recurses on the native stack.
    """
    return GRAMMARS[type(constraint)](constraint)


def schema_grammar(schema: object) -> str:
    """A JSON schema, or a type that has one, as a grammar."""
    narrow = narrowed(as_schema(schema), large=True)
    values = narrow.get("enum", ())
    if any(True for value in values for _ in beyond(value)):
        # Only text holds these numbers exactly: the values are written out as they will be.
        return choices_grammar([json.dumps(value, ensure_ascii=False) for value in values])
    return _json_grammar(narrow)


def _json_grammar(schema: Mapping[str, object]) -> str:
    options = {
        "whitespace_pattern": JSON_SPACE,
        "whitespace_flexible": True,
        "json_allow_general_unicode_escapes": True,
    }
    try:
        return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), options))
    except ValueError as e:
        raise SchemaError(f"the schema cannot be read by the compiler: {e}") from None


def regex_grammar(pattern: str) -> str:
    """A regular expression as a grammar. The whole output must match: anchors at its ends are left
    out, since they say what is so anyway."""
    body = pattern.removeprefix("^")
    if body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2:
        body = body[:-1]
    if fault := size_fault(body):
        raise SchemaError(f"the regular expression cannot be used: {fault}")
    return str(llguidance.LLMatcher.grammar_from_regex(body))


def choices_grammar(options: Sequence[str]) -> str:
    """Texts as a grammar."""
    if sum(map(len, options)) > MAX_CHOICES:
        raise SchemaError(f"the choices are longer than {MAX_CHOICES:,} characters in all")
    return str(llguidance.LLMatcher.grammar_from_regex("|".join(map(_literal, options))))


def lark_grammar(text: str) -> str:
    """A grammar in Lark, as llguidance has it, in the form that it compiles."""
    return str(llguidance.LLMatcher.grammar_from_lark(text))


def _literal(text: str) -> str:
    """A regular expression for a text, in the syntax that Rust's regex crate reads."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02x}" for c in text)


# A row for each kind of constraint; see kinds.KINDS for the other columns.
GRAMMARS: dict[type[Constraint], Callable[[Any], str]] = {
    Schema: lambda given: schema_grammar(given.schema),
    Regex: lambda given: regex_grammar(kinds.regex(given.pattern).pattern),
    Choices: lambda given: choices_grammar(kinds.choices(given.options).options),
    Grammar: lambda given: lark_grammar(as_lark(kinds.grammar(given.text).text)),
}

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
    path = _culprit(narrowed(as_schema(constraint.schema), large=True))
    return SchemaError(f"the constraint cannot be used at {path}: {error}", path)


def _culprit(schema: Mapping[str, object]) -> str:
    """The path of the deepest part of a narrowed schema that fails when it stands alone."""
    path, node = "#", schema
    while True:
        for part in _parts(node):
            alone = _json_grammar({**part, "$defs": schema.get("$defs", {})})
            failed, _ = llguidance.LLMatcher.validate_grammar_with_warnings(alone)
            if failed:
                path, node = str(part.get("$comment", path)), part
                break
        else:
            return path


def _parts(node: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The schemas right inside a schema."""
    for key, value in node.items():
        if key in ("enum", "$comment"):
            continue
        inner: Iterable[object] = value if isinstance(value, list) else [value]
        if key in ("properties", "patternProperties", "$defs") and isinstance(value, Mapping):
            inner = value.values()
        for part in inner:
            if isinstance(part, Mapping):
                yield part
