"""The perplexity of a text, in conventions that have a name.

A perplexity depends on how much context each token is given, so two numbers can be compared only
where convention, window and stride are the same. `Perplexity` carries all three.

"sliding": windows of `window` tokens that move on by `stride`; each window scores the tokens that
no window before it has scored (the convention of transformers' documentation). The first token of
the text has no context unless the model starts texts with BOS, and is not scored then.

"llama.cpp": the tokens in whole windows that do not overlap, the rest is left out; the first token
of each is replaced by BOS where the model has one, and the tokens of its second half are scored
(llama-perplexity without `--ppl-stride`).
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from ..arguments import count, shown
from ..chat.view_protocols import Bundle, MimeTypes
from ..errors import LLMError, RequestError, UnsupportedError
from ..extension_points import NUMBER_VIEWS
from ..provider import BatchScoring, Provider, Request, require
from ..utf8 import whole

Convention = Literal["sliding", "llama.cpp"]
Ids = tuple[int, ...]
WINDOW = {"sliding": 1024, "llama.cpp": 512}


@dataclass(frozen=True, slots=True)
class Perplexity:
    """How well a model predicts a text.

    Attributes:
        logprobs: The natural log of the probability of each scored token.
        bytes: Bytes of UTF-8 of the scored tokens.
        convention: "sliding" or "llama.cpp".
        window: Tokens of a window.
        stride: By how many tokens windows move on.
        model: The name of the model.

    >>> found = Perplexity((math.log(0.5), math.log(0.125)), 4, "sliding", 1024, 512)
    >>> found.value, found.bits_per_byte
    (4.0, 1.0)
    """

    logprobs: tuple[float, ...]
    bytes: int
    convention: str
    window: int
    stride: int
    model: str = ""

    @property
    def loss(self) -> float:
        """The mean of -log p of a token, in nats."""
        return -math.fsum(self.logprobs) / len(self.logprobs)

    @property
    def value(self) -> float:
        """The perplexity: exp of the loss."""
        return math.exp(min(self.loss, 709.0))

    @property
    def error(self) -> float:
        """The standard error of the perplexity, as llama-perplexity gives it; NaN of one token."""
        n = len(self.logprobs)
        if n < 2:
            return math.nan
        square = math.fsum(v * v for v in self.logprobs) / n - self.loss**2
        return self.value * math.sqrt(max(0.0, square) / (n - 1))

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the text: comparable between models with different tokens."""
        return -math.fsum(self.logprobs) / math.log(2) / self.bytes if self.bytes else math.nan

    @property
    def tokens(self) -> int:
        """How many tokens were scored."""
        return len(self.logprobs)

    def __repr__(self) -> str:
        return (
            f"Perplexity({self.value:.4f} ± {self.error:.4f}, {self.bits_per_byte:.4f} bits a "
            f"byte, {self.tokens:,} tokens, {self.convention}, window {self.window}, "
            f"stride {self.stride})"
        )

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = NUMBER_VIEWS.load().perplexity(self, include, exclude)
        return bundle


def perplexity(
    provider: Provider,
    text: object,
    convention: str = "sliding",
    window: int | None = None,
    stride: int | None = None,
) -> Perplexity:
    """See `LLM.perplexity`."""
    require(provider, "score", "tokenize")
    if not isinstance(provider, BatchScoring):
        raise UnsupportedError("score", "this provider cannot score given continuations")
    if convention not in get_args(Convention):
        names = " or ".join(map(repr, get_args(Convention)))
        raise RequestError(f"convention is {shown(convention)}; it must be {names}")
    size = count("window", WINDOW[convention] if window is None else window, 2)
    step = _stride(cast(Convention, convention), size, stride)
    read = _text(text)
    pieces = provider.tokenize(read, special=False)
    bos = provider.render(Request("")).ids
    ids = (*bos, *(piece.id for piece in pieces))
    cut = _halves(ids, bos, size) if convention == "llama.cpp" else _sliding(ids, size, step)
    places, pairs = zip(*cut, strict=True)
    logprobs: list[float] = []
    for found in provider.score_continuations(pairs):
        if isinstance(found, LLMError):
            raise found
        logprobs += found.logprobs
    weights = [0] * len(bos) + [len(piece.bytes) for piece in pieces]
    scored = sum(sum(weights[a:b]) for a, b in places)
    return Perplexity(tuple(logprobs), scored, convention, size, step, provider.model)


def _stride(convention: Convention, window: int, stride: int | None) -> int:
    if convention == "llama.cpp":
        if stride is not None:
            raise RequestError('"llama.cpp" has windows that do not overlap; leave stride out')
        return window
    step = count("stride", max(1, window // 2) if stride is None else stride, 1)
    if step >= window:
        raise RequestError(f"stride is {step}; it must be less than the window of {window}")
    return step


def _text(text: object) -> str:
    if isinstance(text, os.PathLike):
        path = Path(text)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise RequestError(f"{path.name} cannot be read as text of UTF-8: {e}") from e
    if not isinstance(text, str):
        raise RequestError(f"text is {shown(text)}; it must be a text, or pathlib.Path of a file")
    return whole(text)


Cut = tuple[tuple[int, int], tuple[Ids, Ids]]  # which tokens are scored; their context, and they


def _sliding(ids: Ids, window: int, stride: int) -> Iterator[Cut]:
    """
    >>> [pair for _, pair in _sliding((1, 2, 3, 4, 5), 3, 2)]
    [((1,), (2, 3)), ((3,), (4, 5))]
    """
    if len(ids) < 2:
        raise RequestError(f"the text has {len(ids)} tokens; a perplexity needs two or more")
    done = 1  # the first token has no context
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        if end > done:
            yield (done, end), (ids[begin:done], ids[done:end])
            done = end
        if end == len(ids):
            return


def _halves(ids: Ids, bos: Sequence[int], window: int) -> Iterator[Cut]:
    """
    >>> [pair for _, pair in _halves((9, 1, 2, 3, 4, 5, 6, 7), (9,), 4)]
    [((9, 1, 2), (3,)), ((9, 5, 6), (7,))]
    """
    n = len(ids) // window
    if n < 2:
        raise RequestError(
            f'the text has {len(ids)} tokens; "llama.cpp" needs two windows of {window}: give more '
            "text, or a smaller window"
        )
    first = window // 2
    for i in range(n):
        chunk = list(ids[i * window : (i + 1) * window])
        chunk[: len(bos)] = bos
        cut = first + 1
        yield (
            (i * window + cut, (i + 1) * window),
            (tuple(chunk[:cut]), tuple(chunk[cut:])),
        )
