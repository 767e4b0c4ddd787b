"""A provider that plays a script: for tests, documentation and demos. No model, no numpy.

Its streams send the same events as the engine's, tokens, logprobs, prefill progress and timings
included, through the same router. Deterministic: nothing depends on a clock.

>>> from llm_magic.llm import LLM
>>> LLM(Scripted(["Hello there."])).chat("Hi").text
'Hello there.'
"""

import functools
import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..chat.constraints.kinds import parse
from ..chat.fold import Fold
from ..chat.parsing.router import Router
from ..chat.parsing.syntax import ReasoningTags, Syntax
from ..chat.stream import Continued, Source, TokenStream
from ..errors import RequestError, UnsupportedError
from ..events import (
    Finish,
    FinishReason,
    Piece,
    Prefill,
    Sampling,
    Timings,
    Token,
    Top,
    Usage,
)
from ..provider import CAPABILITIES, Capability, Pooling, RenderedPrompt, Request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Answer = str | Sequence[str | BaseException] | BaseException
Scores = Callable[[Request, Sequence[str]], Sequence[float]]
Script = Iterable[Answer] | Callable[[Request], Answer]

_WORDS = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")
THINK = ReasoningTags("<think>", "</think>")
_OTHERS = (" the", " a", " and", " it", " of", "\n", " to", " is")


@dataclass(frozen=True, slots=True)
class ScriptedStatus:
    """What status() says about a script."""

    model: str
    played: int


class Scripted:
    """Plays answers in order, or what a function of the request returns.

    An answer is a text (cut into word-like tokens), a list of token texts, or an exception (alone,
    or inside a list: raised after the tokens before it). delay: seconds per token; prefill_delay:
    seconds per 32 prompt words. tags: the reasoning pair to split off; syntax: the tool-call
    syntax's name. scores: the log-probability of each choice from a request and its choices;
    without it, choices are not scored.
    """

    # It follows no constraint, but reads the value of an answer that was written to fit one.
    capabilities: frozenset[Capability] = CAPABILITIES - {
        "score",
        "choices",
        "embed",
        "rerank",
        "inspect",
    }

    def __init__(
        self,
        script: Script,
        *,
        delay: float = 0.0,
        prefill_delay: float = 0.0,
        model: str = "scripted",
        reasoning: ReasoningTags | None = THINK,
        syntax: Syntax | None = None,
        scores: Scores | None = None,
    ) -> None:
        self.model = model
        if scores is not None:
            self.capabilities = self.capabilities | {"choices"}
        self._scores = scores
        self.defaults = Sampling()
        self.end_ids: frozenset[int] = frozenset()  # tokens behind which an answer cannot go on
        self.closed = False
        self.requests: list[Request] = []
        self.delay = delay
        self.prefill_delay = prefill_delay
        self._script = script if callable(script) else iter(script)
        self._reasoning = reasoning
        self._syntax = syntax

    def stream(self, request: Request) -> TokenStream:
        self.requests.append(request)
        if callable(self._script):
            answer = self._script(request)
        else:
            try:
                answer = next(self._script)
            except StopIteration:
                raise RequestError(f"the script of {self.model!r} has no further answer") from None
        prompt = self.render(request)
        words = len(_WORDS.findall(prompt.text))
        source: Source = _Play(self, request, _tokens(answer, request.logprobs or 0), words)
        given = tuple(_as_tokens(request.given))
        if given:
            source = Continued(given, None if given[-1].id in self.end_ids else source, words)
        router = Router(
            stop=request.sampling.stop or (),
            reasoning=self._reasoning if prompt.reasoning else None,
            in_reasoning=prompt.in_reasoning,
            syntax=self._syntax if prompt.calls else None,
            tools=request.tools,
            calls_without_tools=prompt.calls,
            min_tokens=len(given) + (request.sampling.min_tokens or 0),
        )
        fold = Fold(
            self.model, prompt.text, prompt.ids, request.sampling, prompt.messages, prompt.tools
        )
        read = None
        if request.constraint is not None:
            read = functools.partial(parse, request.constraint)
        return TokenStream(source, router, fold, parse=read)

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt as text; a script has no ids."""
        if isinstance(request.prompt, RenderedPrompt):
            return request.prompt
        return RenderedPrompt(
            _prompt_text(request),
            messages=request.messages,
            tools=request.offered,
            reasoning=True,
            calls=bool(request.tools) and request.tool_choice != "none",
        )

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        return [Piece(_id(w), w, w.encode(), False) for w in _WORDS.findall(text)]

    def detokenize(self, ids: Sequence[int]) -> str:
        raise UnsupportedError("detokenize", "a script has no vocabulary")

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        raise UnsupportedError("score")

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        if self._scores is None:
            raise UnsupportedError("choices")
        self.requests.append(request)
        return list(self._scores(request, choices))

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, truncate: bool = False
    ) -> "list[npt.NDArray[np.float32]]":
        raise UnsupportedError("embed")

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        raise UnsupportedError("rerank")

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        raise UnsupportedError("score", "a script has no log-probabilities of given ids")

    def status(self) -> ScriptedStatus:
        return ScriptedStatus(self.model, len(self.requests))

    def close(self) -> None:
        self.closed = True


class _Play:
    """The source of one scripted stream. Sleeps on the reader's thread; a cancel wakes it."""

    def __init__(
        self, owner: Scripted, request: Request, items: list[Token | BaseException], words: int
    ) -> None:
        self._owner = owner
        self._items = items
        self._words = words
        limit = request.sampling.max_tokens
        self._limit = len(items) if limit is None else limit
        self._filled = -1
        self._sent = 0
        self._halt = threading.Event()
        self._reason: tuple[FinishReason, int | None] = ("stop", None)
        self._ended = False

    def __next__(self) -> Prefill | Token | Finish:
        if self._ended:
            raise StopIteration
        if self._halt.is_set():
            return self._finish(*self._reason)
        if self._filled < self._words:
            if self._filled >= 0:
                self._halt.wait(self._owner.prefill_delay)
            self._filled = min(self._words, max(self._filled, 0) + 32) if self._filled >= 0 else 0
            return Prefill(self._filled, self._words, 0)
        if self._sent >= min(self._limit, len(self._items)):
            cut = self._limit < len(self._items)
            return self._finish("length" if cut else "stop", None)
        if self._owner.delay and self._halt.wait(self._owner.delay):
            return self._finish(*self._reason)
        item = self._items[self._sent]
        self._sent += 1
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        return item

    def _finish(self, reason: FinishReason, keep: int | None) -> Finish:
        self._ended = True
        kept = self._sent if keep is None else min(keep, self._sent)
        timings = Timings(
            prefill=0.1, decode=0.1, first_token=0.1, prefill_tps=10.0 * self._words,
            decode_tps=10.0 * kept,
        )  # fmt: skip
        return Finish(reason, Usage(self._words, 0, kept), timings)

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        if not self._halt.is_set():
            self._reason = (cast(FinishReason, reason), keep)
            self._halt.set()

    def close(self) -> None:
        self.cancel()


def _prompt_text(request: Request) -> str:
    prompt = request.prompt
    if isinstance(prompt, str):
        return prompt
    if turns := request.messages:
        return "".join(f"{m.role}: {m.text}\n" for m in turns) + "assistant: "
    ids = prompt.ids if isinstance(prompt, RenderedPrompt) else prompt
    return " ".join(map(str, ids))


def _as_tokens(given: Iterable[Token]) -> Iterator[Token]:
    """Given tokens; a text among them is cut into word-like ones."""
    for token in given:
        if token.id is not None:
            yield token
            continue
        for word in _WORDS.findall(token.bytes.decode("utf-8", "replace")):
            yield Token(_id(word), word.encode(), None, None, forced=True)


def _id(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=2).digest(), "big")


def _tokens(answer: Answer, top: int) -> list[Token | BaseException]:
    if isinstance(answer, BaseException):
        return [answer]
    parts = _WORDS.findall(answer) if isinstance(answer, str) else list(answer)
    return [p if isinstance(p, BaseException) else _token(i, p, top) for i, p in enumerate(parts)]


def _token(i: int, text: str, top: int) -> Token:
    """A token whose logprob looks like a model's, but follows from its text and place alone."""
    seed = hashlib.blake2b(f"{i}:{text}".encode(), digest_size=8).digest()
    logprob = -round((seed[0] / 255) ** 4 * 6, 4)
    rank = 1 if logprob > -0.7 else 2 + seed[1] % 9
    others = [_OTHERS[(seed[2] + j) % len(_OTHERS)] for j in range(top)]
    rest = [(o, min(logprob, -0.7) - 0.5 * j - 0.1) for j, o in enumerate(others) if o != text]
    named = sorted([(text, logprob), *rest], key=lambda pair: -pair[1])[:top]
    tops = tuple(Top(_id(t), t.encode(), round(lp, 4)) for t, lp in named)
    return Token(_id(text), text.encode(), logprob, rank, tops, at=0.1 + 0.01 * i)
