"""How far two models part on a text: the numbers by which quantisations are compared.

The definitions are those of llama-perplexity (`--kl-divergence` of llama.cpp): the text is cut into
windows of 512 tokens, each begins with BOS where the vocabulary wants one, and the second half of
each window is scored, so that every scored token has at least 256 before it. Two things differ: all
tokens of the vocabulary count (llama-perplexity leaves out those below e^-16), and the first
model's log-probabilities keep all of their bits (there they are stored in 16). A text that is
shorter than a window is one window, and all of its tokens but the first are scored.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .arguments import count, shown
from .chat.view_protocols import Bundle, MimeTypes
from .errors import RequestError
from .extension_points import DIVERGENCE_VIEW
from .provider import Provider, require

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    F64 = npt.NDArray[np.float64]

WINDOW = 512
LEAST = 2  # tokens of a text that can be scored
Progress = Callable[[int, int], object]  # windows of how many are done


class Model(Protocol):
    """What is compared; llm.LLM is one."""

    provider: Provider

    @property
    def model(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Place:
    """One token of the text.

    Attributes:
        token: Its bytes.
        kl: KL divergence of the second model's distribution from the first one's at this place, in
            nats; None where it is not scored.
        logprobs: The token's own log-probability by the first and by the second model.
        tops: The most likely token there by each.
        parts: Whether these are two tokens: the models would have said different things.
    """

    token: bytes
    kl: float | None = None
    logprobs: tuple[float, float] = (0.0, 0.0)
    tops: tuple[bytes, bytes] = (b"", b"")
    parts: bool = False


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far a model parts from another one, the base, on a text.

    With P the base's distribution and Q the other's at each scored token:

    Attributes:
        base: The name of the model that counts as right.
        model: The name of the other one.
        window: Tokens of a window.
        windows: How many windows there are.
        places: Every token of the windows.
    """

    base: str
    model: str
    window: int
    windows: int
    places: tuple[Place, ...] = field(repr=False)

    @property
    def scored(self) -> tuple[Place, ...]:
        """The tokens that are scored."""
        return tuple(place for place in self.places if place.kl is not None)

    @property
    def kl(self) -> tuple[float, ...]:
        """sum P (ln P - ln Q) at each scored token, in nats."""
        return tuple(place.kl for place in self.places if place.kl is not None)

    @property
    def mean(self) -> float:
        """Mean KL divergence."""
        return _mean(self.kl)

    @property
    def median(self) -> float:
        """Median KL divergence."""
        return self.percentile(50)

    @property
    def maximum(self) -> float:
        """The largest KL divergence."""
        return max(self.kl)

    def percentile(self, percent: float) -> float:
        """The KL divergence that so many per cent of the tokens do not exceed.

        Between two values it is interpolated linearly, as in llama-perplexity and in numpy.
        """
        ranked = sorted(self.kl)
        place = percent / 100 * (len(ranked) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ranked) - 1)
        return ranked[low] + (place - low) * (ranked[high] - ranked[low])

    @property
    def same_top(self) -> float:
        """The share of tokens where both hold the same token for the most likely."""
        return _mean([float(not place.parts) for place in self.scored])

    @property
    def perplexities(self) -> tuple[float, float]:
        """exp of the mean of -ln p(token), by the base and by the other model."""
        base, other = (_mean([-p.logprobs[i] for p in self.scored]) for i in (0, 1))
        return math.exp(min(base, 700.0)), math.exp(min(other, 700.0))

    @property
    def log_ratio(self) -> float:
        """ln(PPL(Q) / PPL(base))."""
        return _mean([p.logprobs[0] - p.logprobs[1] for p in self.scored])

    @property
    def ratio(self) -> float:
        """PPL(Q) / PPL(base)."""
        return math.exp(min(self.log_ratio, 700.0))

    @property
    def mean_change(self) -> float:
        """Mean of p_Q(token) - p_P(token): how much likelier the text's own tokens are."""
        return _mean(self._changes)

    @property
    def rms_change(self) -> float:
        """Root of the mean square of the same."""
        return math.sqrt(_mean([change * change for change in self._changes]))

    @property
    def _changes(self) -> list[float]:
        return [math.exp(p.logprobs[1]) - math.exp(p.logprobs[0]) for p in self.scored]

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors of mean, log_ratio, ratio and same_top, of independent tokens."""
        differences = [p.logprobs[0] - p.logprobs[1] for p in self.scored]
        share, n = self.same_top, len(self.kl)
        ratio = _error(differences)
        return {
            "mean": _error(self.kl),
            "log_ratio": ratio,
            "ratio": self.ratio * ratio,
            "same_top": math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else 0.0,
        }

    def __repr__(self) -> str:
        return str(DIVERGENCE_VIEW.load().divergence(self).plain)

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        view = DIVERGENCE_VIEW.load().divergence(self)
        bundle: Bundle = view._repr_mimebundle_(include, exclude)
        return bundle


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _error(values: Sequence[float]) -> float:
    """Standard error of a mean; 0 of ten values or fewer, as llama-perplexity has it."""
    n, mean = len(values), _mean(values)
    spread = math.fsum(v * v for v in values) / n - mean * mean if n else 0.0
    return math.sqrt(spread / (n - 1)) if n > 10 and spread > 0 else 0.0


# ----------------------------------------------------------------------------- measuring


def compare_models(
    base: Model, model: Model, text: str, *, window: int = WINDOW, progress: Progress | None = None
) -> Divergence:
    """How far a model parts from another one on a text: which quantisation is good enough.

    Both must have the same vocabulary, as quantisations of one model have. A model compared with
    itself is exactly 0.

    Args:
        base: The model that counts as right, such as the largest file that fits.
        model: The other one.
        text: What both read; a few thousand words give stable numbers.
        window: Tokens of a window.
        progress: Called with (windows done, windows).

    Returns:
        The numbers; a notebook shows them with the text shaded by where the two part.

    Raises:
        RequestError: The text is too short, or the vocabularies differ.
        UnsupportedError: A provider cannot score texts.
    """
    for llm in (base, model):
        require(llm.provider, "score", "tokenize")
    if not isinstance(text, str):
        raise RequestError(f"text is {shown(text)}; it must be a text")
    size = count("window", window, 4)
    read, bos = _same_ids(base, model, text)
    ids, known = tuple(id_ for id_, _ in read), dict(read)
    windows = _windows(ids, size, bos)
    places: list[Place] = []
    for done, cut in enumerate(windows):
        if progress is not None:
            progress(done, len(windows))
        first = size // 2 if len(cut) == size else 0
        # A BOS in the place of a token is not the text's own.
        own = cut[1:] if bos is not None else cut
        places += _places(base.provider, model.provider, cut, len(own), first, known)
    if progress is not None:
        progress(len(windows), len(windows))
    return Divergence(base.model, model.model, min(size, len(ids)), len(windows), tuple(places))


def _same_ids(base: Model, model: Model, text: str) -> tuple[list[tuple[int, bytes]], int | None]:
    """The tokens of the text, which both must agree on, and the BOS that begins each window."""
    first, second = (
        [(piece.id, piece.bytes) for piece in llm.provider.tokenize(text)] for llm in (base, model)
    )
    if first != second:
        raise RequestError(
            f"{base.model} and {model.model} cut the text into different tokens; only models of "
            "one vocabulary, such as quantisations of one model, can be compared"
        )
    if len(first) < LEAST:
        raise RequestError(f"the text has {len(first)} tokens; at least {LEAST} are needed")
    plain = base.provider.tokenize(text, start=False)
    starts = len(first) > len(plain) and first[1:] == [(p.id, p.bytes) for p in plain]
    return first, first[0][0] if starts else None


def _windows(ids: tuple[int, ...], size: int, bos: int | None) -> list[tuple[int, ...]]:
    """Whole windows; what is left at the end is left out. A short text is a window by itself."""
    if len(ids) < size:
        return [ids]
    cuts = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    return cuts if bos is None else [(bos, *cut[1:]) for cut in cuts]


def _places(
    base: Provider, model: Provider, cut: tuple[int, ...], own: int, first: int,
    known: dict[int, bytes],
) -> list[Place]:  # fmt: skip
    """The last `own` tokens of one window; those behind position `first` are scored."""
    import numpy as np

    p, q = base.logprobs(cut)[first:-1], model.logprobs(cut)[first:-1]
    if p.shape != q.shape:
        raise RequestError(
            f"the vocabularies have {p.shape[1]:,} and {q.shape[1]:,} tokens; only models of one "
            "vocabulary can be compared"
        )
    kl = [_kl(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(p, q, strict=True)]
    tops = [(int(a.argmax()), int(b.argmax())) for a, b in zip(p, q, strict=True)]
    for i in {i for pair in tops for i in pair if i not in known}:
        known[i] = base.detokenize([i]).encode()
    places = [Place(known[i]) for i in cut[len(cut) - own : first + 1]]
    for i, (value, (a, b)) in enumerate(zip(kl, tops, strict=True)):
        token = cut[first + 1 + i]
        chances = float(p[i, token]), float(q[i, token])
        places.append(Place(known[token], value, chances, (known[a], known[b]), a != b))
    return places


def _kl(p: "F64", q: "F64") -> float:
    """sum P (ln P - ln Q) in nats, from log-probabilities."""
    import numpy as np

    return float((np.exp(p) * (p - q)).sum())
