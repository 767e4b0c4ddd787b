"""What the scheduler is given: jobs and a loaded model; and the state of a job under way."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llm_magic.sampling import Sampling

from ..forward import F32, Forward
from .generation import Channel
from .sampler import Guide, Sampler
from .slots import Slot
from .speculation import Drafts
from .taps import JobTaps

PARK_SECONDS = 0.25  # a consumer that reads nothing for so long may lose its slot to those who wait


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate, in ids.

    Attributes:
        ids: The prompt.
        sampling: How to draw tokens.
        top: Alternatives to report per token.
        breakers: Ids of the tokens that end a repetition for DRY.
        guide: The constraint, if there is one.
        reuse: Whether a cached prefix is used.
        guess: Whether guesses at the next tokens are checked; what comes out is the same.
        end_ids: Tokens that end the answer; None: the model's own.
        collect: Instead of generating, hand over the logits of every position from `collect_from`
            on. Called on the owner thread with (position of the first row, float32 [rows,
            n_vocab]); the array is only valid during the call.
        collect_from: The first position whose logits are handed over. Positions before it may come
            from the cache.
        taps: What is recorded or changed inside the model; None: nothing. With `collect` and
            `collect_from=len(ids)` only what is recorded is computed, no logits.
    """

    ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    top: int = 0
    breakers: frozenset[int] = frozenset()
    guide: Guide | None = None
    reuse: bool = True
    guess: bool = True
    end_ids: frozenset[int] | None = None
    collect: Callable[[int, F32], None] | None = None
    collect_from: int = 0
    taps: JobTaps | None = None

    @property
    def key(self) -> bytes:
        """Only jobs with the same key share keys and values: edits change them."""
        return b"" if self.taps is None else self.taps.key


@dataclass(frozen=True, slots=True)
class Model:
    """What the owner thread needs of a loaded model.

    n_vocab: of the tokenizer: ids from here on are never drawn. cache_bytes: what conversations
    that nobody continues may keep of the KV cache; None: all that its slots hold.
    """

    forward: Forward
    n_vocab: int
    end_ids: frozenset[int]
    token_bytes: Callable[[int], bytes]
    cache_bytes: int | None = None

    def positions(self, cache_bytes: int | None) -> int | None:
        """How many tokens that many bytes of cache hold."""
        return None if cache_bytes is None else cache_bytes // self.forward.position_bytes


@dataclass(slots=True, eq=False)
class RequestState:
    """A job on the owner's side. ids: prompt and drawn tokens; the first `done` are in the slot."""

    job: Job
    out: Channel
    ids: list[int]
    sampler: Sampler | None
    submitted: float
    slot: Slot | None = None
    done: int = 0
    cached: int = 0
    started: float | None = None
    first: float | None = None  # time of the first token
    last: float = 0.0  # time of the latest token
    stalled: float | None = None  # since when its consumer has not been reading
    times: list[float] = field(default_factory=list)
    drafts: Drafts | None = None  # from its first guess on
    draft: tuple[int, ...] = ()  # guesses in the step under way
    guessed: int = 0  # drawn tokens that had been guessed

    @property
    def n_prompt(self) -> int:
        return len(self.job.ids)

    @property
    def drawn(self) -> int:
        return len(self.ids) - self.n_prompt

    @property
    def reusable(self) -> int:
        """How many leading tokens may come from the cache: their logits are not needed."""
        if not self.job.reuse:
            return 0
        most = len(self.ids) - 1 if self.job.collect is None else self.job.collect_from
        watched = None if self.job.taps is None else self.job.taps.first
        return most if watched is None else min(most, watched)

    def uncollected(self, n: int) -> int:
        """How many of the next n rows are evaluated for the cache only: their logits are not
        collected."""
        return min(n, max(0, self.job.collect_from - self.done))

    @property
    def readable(self) -> bool:
        """Its consumer reads: it may go on. Notes since when it does not."""
        self.out.stalled = ahead = self.out.ahead
        if not ahead:
            self.stalled = None
        elif self.stalled is None:
            self.stalled = time.perf_counter()
        return not self.out.ahead  # asked again after the flag is up: no reader slips between

    @property
    def patience(self) -> float:
        """Seconds until its slot may be given to others; infinite while its consumer reads."""
        if self.stalled is None or not self.out.ahead:
            return math.inf
        return max(0.0, self.stalled + PARK_SECONDS - time.perf_counter())
