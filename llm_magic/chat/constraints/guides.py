"""Guides that follow the text of an answer: reasoning before it, and no tool calls in it.

`AfterReasoning` lets a model reason freely before its constrained answer; `NoCalls` keeps an answer
from becoming a tool call.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..parsing.syntax import ReasoningTags, Syntax

Mask = npt.NDArray[np.uint32]

GAP_TOKENS = 3  # white-space tokens allowed between the reasoning and the constrained answer


class Guide(Protocol):
    """Masks the next token and is told which one was sampled. The sampler has the same protocol."""

    def mask(self) -> Mask | None: ...

    def accept(self, token: int) -> None: ...


class Whole(Protocol):
    """A Guide that knows whether the text so far is a complete sentence; see compiler.Matcher."""

    @property
    def complete(self) -> bool: ...

    def mask(self) -> Mask: ...

    def allows(self, token: int) -> bool: ...

    def accept(self, token: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a tokenizer that constraints need.

    tokens: bytes of each id; of a control token its name. controls: ids of control tokens, which
    are never part of constrained text. encode: text -> ids without control tokens.
    """

    tokens: Sequence[bytes]
    controls: frozenset[int]
    end_ids: frozenset[int]
    encode: Callable[[str], list[int]]


# ----------------------------------------------------------------------------- reasoning first


class Tags:
    """Token masks around one pair of reasoning tags. Each is computed on first use."""

    def __init__(self, vocabulary: Vocabulary, tags: ReasoningTags) -> None:
        self.vocabulary = vocabulary
        self.opening = tags.open.encode()
        # In channels reasoning ends where the final message begins, whatever comes between.
        close = "<|channel|>final<|message|>" if tags.channels else tags.close
        self.closing = close.encode()
        self._openers: dict[int, Mask] = {}
        self._free: dict[int, Mask] = {}

    def openers(self, n: int) -> Mask:
        """Tokens that continue the opening tag after its first `n` bytes."""
        if n not in self._openers:
            rest = self.opening[n:]
            tokens = self.vocabulary.tokens
            self._openers[n] = self._mask(
                i for i, t in enumerate(tokens) if t and rest.startswith(t)
            )
        return self._openers[n]

    def free(self, n: int) -> Mask:
        """Tokens allowed inside the reasoning, after `n` bytes of the closing tag.

        Excluded are end tokens, and tokens that hold the rest of the closing tag and more text: the
        constraint would not see that text.
        """
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
        """How many bytes of the closing tag the text ends with."""
        closing = self.closing
        return next((n for n in range(len(closing) - 1, 0, -1) if text.endswith(closing[:n])), 0)

    def _beyond(self, text: bytes) -> bool:
        _, found, rest = text.partition(self.closing)
        return bool(found and rest.strip())

    def _mask(self, ids: Iterable[int]) -> Mask:
        return _packed(len(self.vocabulary.tokens), ids)


class AfterReasoning:
    """A Guide that leaves reasoning free and constrains the text after the closing tag.

    opened: the prompt has opened the reasoning. Otherwise reasoning begins only if the output
    starts with the opening tag; any other output is constrained from its first token.
    """

    def __init__(self, guide: Whole, tags: Tags, opened: bool) -> None:
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


class Openers:
    """Token masks that exclude the strings that open a call. Each is computed on first use."""

    def __init__(self, vocabulary: Vocabulary, syntax: Syntax, tags: ReasoningTags | None) -> None:
        self.tokens = vocabulary.tokens
        self.openers = tuple(opener.encode() for opener in syntax.open)
        self.ends = vocabulary.end_ids
        self.opening = tags.open.encode() if tags else b""
        self.closing = tags.close.encode() if tags else b""
        self.longest = max(map(len, (*self.openers, self.closing)), default=0)
        self._bare = syntax.bare.encode()
        self._masks: dict[bytes | None, Mask | None] = {}

    def mask(self, begun: bytes | None) -> Mask | None:
        """Tokens allowed after `begun`, the beginning of an opener; None: at the answer's start."""
        if begun not in self._masks:
            bad = self._starts if begun is None else lambda token: self._completes(begun + token)
            ids = [
                i
                for i, token in enumerate(self.tokens)
                if token and i not in self.ends and bad(token)
            ]
            self._masks[begun] = ~_packed(len(self.tokens), ids) if ids else None
        return self._masks[begun]

    def _starts(self, token: bytes) -> bool:
        text = token.strip()
        if not text:
            return False
        if any(o.startswith(text) or text.startswith(o) for o in self.openers):
            return True
        return text[:1] in self._bare and not self._reasons(text)

    def _reasons(self, text: bytes) -> bool:
        """Whether a text is, or begins, the opening reasoning tag: reasoning may always start."""
        opening = self.opening
        return bool(opening) and (opening.startswith(text) or text.startswith(opening))

    def _completes(self, text: bytes) -> bool:
        return any(opener in text for opener in self.openers)

    def begun(self, text: bytes) -> bytes:
        """The longest beginning of an opener that the text ends with."""
        ends = (text[-n:] for n in range(min(self.longest - 1, len(text)), 0, -1))
        return next((end for end in ends if any(o.startswith(end) for o in self.openers)), b"")


class NoCalls:
    """A Guide that excludes tool calls: the answer can neither start as a call nor open one later.

    Without it a model that has just seen calls tends to write another one as text.
    """

    def __init__(self, openers: Openers) -> None:
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
    """A bit mask over n tokens in which these ids are set."""
    bits = np.zeros((n + 31) // 32 * 32, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)
