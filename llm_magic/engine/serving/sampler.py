"""From the logits of one position to a token: bias, penalties, mask, filters, a seeded draw.

A reported logprob is the natural log of the softmax of the RAW logits: temperature, penalties,
bias, filters and masks never change it.

The order is that of llama.cpp's default sampler chain: logit bias; repeat, frequency and presence
penalties; DRY; min_tokens; the constraint's mask. Then temperature 0 takes the argmax; otherwise
top-k, typical, top-p, min-p and XTC filter the unscaled distribution, the temperature scales what
is left, and one token is drawn. Mirostat 2 replaces the filters.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from llm_magic.errors import EngineError, RequestError
from llm_magic.sampling import FIELDS, LARGEST, Sampling

from .dry import Dry

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

NEVER = np.float32(-np.inf)
DEFAULT_WINDOW = cast(int, FIELDS["repeat_last_n"].default)
DEFAULT_THRESHOLD = cast(float, FIELDS["xtc_threshold"].default)
BLOCK = 256  # entries that partial selection and the draw look at together


class Guide(Protocol):
    """A constraint during decoding. Called on the owner thread; must never block."""

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Bit i (packed, little-endian) says whether token i is allowed; None = all are."""

    def accept(self, token: int) -> None:
        """This token was chosen."""


@dataclass(frozen=True, slots=True)
class Pick:
    """The outcome of one position.

    top: (id, logprob, allowed) by falling raw probability. masked: probability that the guide
    removed, None without a mask. end: the chosen token ends the generation.
    """

    id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float, bool], ...]
    masked: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What a forward pass already knows about one row of logits (it may compute it in parallel).

    lse: natural log of the sum of exp(logits); not finite where a logit is not a number. top: ids
    by falling logit, as many as asked or more.
    """

    lse: float
    top: tuple[int, ...]


def log_sum_exp(logits: F32) -> float:
    """log(sum(exp(logits))) to float32 rounding (relative error of the sum: 1e-6). EngineError on
    NaN."""
    top = logits.max()
    if not np.isfinite(top):
        raise _not_numbers()
    # numpy sums float32 pairwise; a float64 sum would convert 50,000 numbers first.
    return float(top) + float(np.log(np.exp(logits - top).sum()))


def _not_numbers() -> EngineError:
    return EngineError(
        "the model produced NaN logits: the weights file may be corrupt, or this is a bug in the "
        "engine"
    )


@functools.lru_cache(maxsize=8)
def _starts(n: int) -> I64:
    """First index of each block of BLOCK entries."""
    return np.arange(0, n, BLOCK)


def top_ids(logits: F32, n: int) -> I64:
    """Ids of the n largest logits by falling value (ties: smaller id first).

    The n-th largest block maximum is a bound that at least n entries reach, and few more:
    a vocabulary is never sorted nor partitioned as a whole.
    """
    n = min(n, len(logits))
    if n <= 0:
        return np.empty(0, np.int64)
    if n == 1:
        return np.array([logits.argmax()])
    some: I64 = np.arange(len(logits))
    if n * BLOCK < len(logits):
        best = np.maximum.reduceat(logits, _starts(len(logits)))
        edge = np.partition(best, len(best) - n)[len(best) - n]
        # at least n entries reach edge: one in each of the n best blocks
        some = np.flatnonzero(logits >= edge)
    values = logits[some]
    if n < len(some):
        edge = np.partition(values, len(values) - n)[len(values) - n]
        keep = values >= edge  # more than n where several equal the last: the sort below decides
        some, values = some[keep], values[keep]
    return some[np.lexsort((some, -values))][:n]


def unpack(mask: npt.NDArray[np.uint32], n: int) -> npt.NDArray[np.bool_]:
    """The first n bits of a packed mask as booleans; ids beyond its end are not allowed."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:n].astype(bool)
    return bits if len(bits) == n else np.pad(bits, (0, n - len(bits)))


def _masked(raw: F32, lse: float, allowed: npt.NDArray[np.bool_]) -> float:
    """The probability of what is not allowed. Gathered by index on the smaller side: at a fixed
    place of a grammar a handful of tokens is allowed, inside a text all but a few."""
    n = int(np.count_nonzero(allowed))
    few = np.flatnonzero(allowed if n < len(raw) - n else ~allowed)
    part = float(np.exp(raw[few] - np.float32(lse)).sum(dtype=np.float64))
    return min(max(1.0 - part, 0.0), 1.0) if n < len(raw) - n else part


def _subset(ids: I64 | None, values: F32, keep: I64) -> tuple[I64, F32]:
    return (keep if ids is None else ids[keep]), values[keep]


def _nucleus(values: F32, p: float) -> I64:
    """Top-p (arXiv:1904.09751): indices of the smallest set of likely tokens with mass >= p."""
    weights = np.exp(values - values.max())
    total = float(weights.sum())
    # All tokens below (1-p)/n together weigh less than 1-p, so the nucleus lies above: that leaves
    # a few hundred candidates to sort instead of the vocabulary.
    some = np.flatnonzero(weights >= min((1 - p) / len(weights) * total, 1.0))
    order = some[np.lexsort((some, -weights[some]))]
    mass = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(np.searchsorted(mass, p * total * (1 - 1e-6))) + 1]


def _typical(values: F32, p: float) -> I64:
    """Locally typical sampling (arXiv:2202.00666): indices of mass p around expected surprise."""
    some = np.flatnonzero(values > NEVER)
    logp = values[some].astype(np.float64)
    logp -= logp.max()
    logp -= np.log(np.exp(logp).sum())
    probs = np.exp(logp)
    distance = np.abs(-logp - float(-(probs * logp).sum()))
    order = np.argsort(distance, kind="stable")
    mass = np.cumsum(probs[order])
    return some[order[: int(np.searchsorted(mass, p - 1e-12)) + 1]]


def _xtc(values: F32, threshold: float) -> I64:
    """XTC ("exclude top choices", as in llama.cpp): of the candidates with at least the threshold's
    probability only the least likely one stays; all below the threshold stay."""
    weights = np.exp(values - values.max())
    above = np.flatnonzero(weights >= np.float32(threshold) * weights.sum())
    keep = np.ones(len(values), np.bool_)
    if len(above) > 1:
        keep[above] = False
        # Of equal ones the last: ties are ordered by rising id everywhere.
        keep[above[len(above) - 1 - int(values[above][::-1].argmin())]] = True
    return np.flatnonzero(keep)


class Sampler:
    """Draws the tokens of one request. Holds the random state and the history for penalties.

    n_vocab: ids from here on can never be drawn (a padded output matrix has more rows).
    history: the prompt, for the penalties' window. breakers: see `Dry`.
    """

    def __init__(
        self,
        sampling: Sampling,
        n_vocab: int,
        end_ids: frozenset[int] = frozenset(),
        history: Sequence[int] = (),
        guide: Guide | None = None,
        top: int = 0,
        breakers: frozenset[int] = frozenset(),
    ) -> None:
        self._s = sampling
        self._dry = Dry(sampling, breakers)
        self._n_vocab = n_vocab
        self._ends = np.array(sorted(i for i in end_ids if i < n_vocab), np.int64)
        self._guide = guide
        self._top = top
        self._history = list(history) if self._penalises or self._dry.active else []
        self._rng = np.random.Generator(np.random.PCG64(sampling.seed))
        self._bias = self._read_bias()
        self._mu = 2 * sampling.mirostat[0] if sampling.mirostat else 0.0
        self._drawn = 0
        # Kept: memory of this size goes back to the system when freed, and faulting it in again
        # costs more than the arithmetic.
        self._logits, self._weights = np.empty(0, np.float32), np.empty(0, np.float32)

    @property
    def _penalises(self) -> bool:
        s = self._s
        return bool((s.repeat_penalty or 1.0) != 1.0 or s.frequency_penalty or s.presence_penalty)

    @property
    def plain(self) -> bool:
        """Greedy, and nothing can change the logits: the argmax of the raw logits is the answer."""
        return self._s.greedy and not self._changes

    @property
    def _changes(self) -> bool:
        """Something may change the logits at this position: they must be copied first."""
        waiting = self._drawn < (self._s.min_tokens or 0)
        penalised = self._penalises or self._dry.active
        return bool(self._guide is not None or self._bias or penalised or waiting)

    def _read_bias(self) -> list[tuple[int, float]]:
        out = []
        for token, bias in self._s.logit_bias or ():
            if not isinstance(token, int):
                raise RequestError(f"logit_bias: {token!r} is not a token id")
            if not 0 <= token < self._n_vocab:
                raise RequestError(
                    f"logit_bias: token {token} is outside the vocabulary of {self._n_vocab}"
                )
            out.append((token, max(bias, -LARGEST) if bias > -math.inf else bias))
        return out

    def pick(self, row: F32, summary: Summary | None = None) -> Pick:
        """Choose a token from logits float32 [>= n_vocab]. The row is not changed."""
        raw = row[: self._n_vocab]
        lse = summary.lse if summary else log_sum_exp(raw)
        if not math.isfinite(lse):
            raise _not_numbers()
        if self.plain:
            id_ = summary.top[0] if summary else int(raw.argmax())
            return self._report(raw, lse, id_, summary, None, None)
        logits, allowed = raw, None
        if self._changes:
            logits, allowed = self._shape(raw)
            if logits.max() == NEVER:
                raise EngineError("the constraint allows no token at this position")
        masked = None if allowed is None else _masked(raw, lse, allowed)
        id_ = int(logits.argmax()) if self._s.greedy else self._draw(logits)
        return self._report(raw, lse, id_, summary, allowed, masked)

    def accept(self, id_: int) -> None:
        """The picked token was taken: penalties, min_tokens and the guide advance."""
        self._drawn += 1
        if self._penalises or self._dry.active:
            self._history.append(id_)
        if self._guide is not None:
            self._guide.accept(id_)

    # ------------------------------------------------------------------ changing the logits

    def _shape(self, raw: F32) -> tuple[F32, npt.NDArray[np.bool_] | None]:
        if len(self._logits) != len(raw):
            self._logits = np.empty(len(raw), np.float32)
        logits = self._logits
        np.copyto(logits, raw)
        for token, bias in self._bias:
            logits[token] += np.float32(bias)
        if self._penalises:
            self._penalise(logits)
        if self._dry.active:
            self._dry.apply(logits, self._history)
        allowed = None
        if self._drawn < (self._s.min_tokens or 0):
            logits[self._ends] = NEVER
        if self._guide is not None and (mask := self._guide.mask()) is not None:
            allowed = unpack(mask, len(raw))
            # Seven times faster than logits[~allowed] = NEVER, which branches at every entry.
            np.copyto(logits, NEVER, where=~allowed)
        return logits, allowed

    def _penalise(self, logits: F32) -> None:
        """Repeat penalty of CTRL (arXiv:1909.05858) in llama.cpp's form; frequency and presence
        penalties as in the OpenAI API. A window of 0 is off, -1 is everything."""
        s = self._s
        window = DEFAULT_WINDOW if s.repeat_last_n is None else s.repeat_last_n
        recent = self._history if window < 0 else self._history[len(self._history) - window :]
        if window == 0 or not recent:
            return
        ids, counts = np.unique(np.array(recent, np.int64), return_counts=True)
        inside = ids < len(logits)
        ids, counts = ids[inside], counts[inside]
        values = logits[ids]
        penalty = np.float32(s.repeat_penalty or 1.0)
        values = np.where(values > 0, values / penalty, values * penalty)
        values -= np.float32(s.frequency_penalty or 0.0) * counts.astype(np.float32)
        values -= np.float32(s.presence_penalty or 0.0)
        logits[ids] = values

    # ------------------------------------------------------------------ drawing

    @property
    def _heat(self) -> float:
        """What logits are divided by: the temperature, as far as float32 can tell. Negative: the
        distribution is left as it is."""
        temperature = self._s.temperature or 1.0
        return min(max(temperature, 1 / LARGEST), LARGEST) if temperature > 0 else 1.0

    def _draw(self, logits: F32) -> int:
        if self._s.mirostat is not None:
            return self._mirostat(logits)
        ids, values = self._filter(logits)
        if len(self._weights) < len(values):
            self._weights = np.empty(len(values), np.float32)
        weights = self._weights[: len(values)]
        np.subtract(values, values.max(), out=weights)
        weights *= np.float32(1 / self._heat)
        i = self._roulette(np.exp(weights, out=weights))
        return i if ids is None else int(ids[i])

    def _roulette(self, weights: F32 | F64) -> int:
        """An index drawn with these weights: first a block by its sum, then an entry of it."""
        starts = _starts(len(weights))
        sums = np.cumsum(np.add.reduceat(weights, starts).astype(np.float64))
        point = self._rng.random() * sums[-1]
        block = min(int(np.searchsorted(sums, point, side="right")), len(sums) - 1)
        while sums[block] == (sums[block - 1] if block else 0.0):
            block -= 1  # rounding must not choose a block without weight
        first = int(starts[block])
        inside = np.cumsum(weights[first : first + BLOCK], dtype=np.float64)
        point -= sums[block - 1] if block else 0.0
        i = min(int(np.searchsorted(inside, point, side="right")), len(inside) - 1)
        while weights[first + i] == 0:
            i -= 1
        return first + i

    def stages(self, row: F32) -> Iterator[tuple[str, I64, F32]]:
        """What is left of logits [>= n_vocab] behind each step, in the order of `pick`.

        Yields (name of the step, ids, their logits), the raw logits first and the scaled ones
        last. Only steps that are set appear. Without a constraint.
        """
        raw = row[: self._n_vocab]
        every = np.arange(len(raw))
        yield "logits", every, raw.copy()
        logits = raw
        if self._changes:
            logits, _ = self._shape(raw)
            kept = np.flatnonzero(logits > NEVER)
            yield "penalties", kept, logits[kept]
        if self._s.greedy:
            best = np.array([int(logits.argmax())])
            yield "greedy", best, logits[best]
            return
        last: tuple[I64, F32] = (every, logits)
        for name, ids, values in self._filters(logits):
            last = (every if ids is None else ids, values)
            yield name, *last
        ids, values = last
        if self._s.mirostat is None:
            yield "temperature", ids, values * np.float32(1 / self._heat)

    def _filter(self, logits: F32) -> tuple[I64 | None, F32]:
        """Candidates that pass top-k, typical, top-p, min-p and XTC: ids (None: all), logits."""
        out: tuple[I64 | None, F32] = None, logits
        for _, *left in self._filters(logits):
            out = cast("tuple[I64 | None, F32]", tuple(left))
        return out

    def _filters(self, logits: F32) -> Iterator[tuple[str, I64 | None, F32]]:
        """What each filter that is set leaves of those before it."""
        s = self._s
        ids: I64 | None = None
        values = logits
        if s.top_k is not None and 0 < s.top_k < len(values):
            ids, values = _subset(ids, values, top_ids(values, s.top_k))
            yield "top_k", ids, values
        if s.typical_p is not None and s.typical_p < 1:
            ids, values = _subset(ids, values, _typical(values, s.typical_p))
            yield "typical_p", ids, values
        if s.top_p is not None and s.top_p < 1:
            ids, values = _subset(ids, values, _nucleus(values, s.top_p))
            yield "top_p", ids, values
        if s.min_p is not None and s.min_p > 0:
            edge = values.max() + np.float32(np.log(s.min_p))
            ids, values = _subset(ids, values, np.flatnonzero(values >= edge))
            yield "min_p", ids, values
        # Drawn only where XTC is on: without it a seed gives the same answer as ever.
        if s.xtc_probability and self._rng.random() <= s.xtc_probability:
            threshold = DEFAULT_THRESHOLD if s.xtc_threshold is None else s.xtc_threshold
            ids, values = _subset(ids, values, _xtc(values, threshold))
            yield "xtc", ids, values

    def _mirostat(self, logits: F32) -> int:
        """Mirostat 2 (arXiv:2007.14966): cut at surprise mu (bits), then move mu towards tau."""
        assert self._s.mirostat is not None
        tau, eta = self._s.mirostat
        ids: I64 = np.flatnonzero(logits > NEVER)
        values = logits[ids].astype(np.float64) / self._heat
        probs = np.exp(values - values.max())
        probs /= probs.sum()
        surprise = -np.log2(np.maximum(probs, 1e-300))
        keep = surprise <= max(self._mu, float(surprise.min()))
        probs = np.where(keep, probs, 0.0)
        probs /= probs.sum()
        i = self._roulette(probs)
        self._mu -= eta * (-np.log2(probs[i]) - tau)
        return int(ids[i])

    # ------------------------------------------------------------------ reporting

    def _report(
        self,
        raw: F32,
        lse: float,
        id_: int,
        summary: Summary | None,
        allowed: npt.NDArray[np.bool_] | None,
        masked: float | None,
    ) -> Pick:
        best = summary.top if summary and len(summary.top) >= self._top else None
        if self._top and best is None:
            best = tuple(int(i) for i in top_ids(raw, self._top))
        top = tuple(
            (i, min(float(raw[i]) - lse, 0.0), allowed is None or bool(allowed[i]))
            for i in (best or ())[: self._top]
        )
        value = raw[id_]
        rank = 1 if best and best[0] == id_ else 1 + int(np.count_nonzero(raw > value))
        return Pick(id_, min(float(value) - lse, 0.0), rank, top, masked)
