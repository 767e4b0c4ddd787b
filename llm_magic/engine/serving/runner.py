"""The runner: one step, and what its results mean for the requests in it.

A request that is evaluated up to its last token gets a sample, and one more for each guess behind
it that was right. A request that fails ends alone, where the fault is its own.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from llm_magic.errors import EngineError, LLMError, named
from llm_magic.events import Finish, FinishReason, Prefill, Timings, Token, Top, Usage

from ..forward import F32, I32, StepResult, Taps
from .job import Model, RequestState
from .planner import MIN_SHARED, Batch
from .sampler import Pick, Summary
from .slots import Slot, Slots

HOLD_SECONDS = 0.004  # a token may wait so long for the next one, see _hand_over
MAX_SUMMARY = 20  # alternatives that a forward pass lists; more are found by the sampler

# Notes how long a step took: (rows, seconds, whether it collected logits, whether it only decoded).
Learn = Callable[[int, float, bool, bool], None]


class Runner:
    """Runs the steps of one model. All calls come from the owner thread.

    Args:
        model: What is evaluated.
        slots: The book-keeping of its KV slots.
        learn: Told how long each step took.
        ended: Told of each request that ends, before its last event is sent.
    """

    def __init__(
        self, model: Model, slots: Slots, learn: Learn, ended: Callable[[RequestState], None]
    ) -> None:
        self._model, self._slots = model, slots
        self._learn, self._ended = learn, ended
        self._released = False  # whether a slot was released since the last `inherit`

    def follow(self, run: RequestState, leader: RequestState, n: int) -> bool:
        """Take over n tokens. False if that failed and the run has ended."""
        assert leader.slot is not None
        return self._take(run, leader.slot, n)

    def inherit(self, active: Sequence[RequestState]) -> None:
        """Give requests the beginnings that have ended in other slots since the last call.

        A request that waits for the beginning of another one got its slot before that was there.
        """
        if not self._released:
            return
        self._released = False
        for run in list(active):  # one that fails leaves it
            if len(run.ids) - run.done <= MIN_SHARED:
                continue
            slot, n = self._slots.longest(run.ids, min(run.reusable, len(run.ids) - 1), run.job.key)
            if slot is not None and n >= run.done + MIN_SHARED:
                self._take(run, slot, n)

    def _take(self, run: RequestState, source: Slot, n: int) -> bool:
        assert run.slot is not None
        try:
            self._slots.share(source, run.slot, n)
        except Exception as e:
            self.fail([(run, 0)], e)
            return False
        run.cached += n - run.done
        run.done = n
        if run.drawn == 0:
            run.out.put(Prefill(n, run.n_prompt, run.cached))
        return True

    def step(self, batch: Batch) -> None:
        """Evaluate a batch and hand its results to their requests."""
        rows, taps = self._rows(batch)
        n, wanted = len(rows[0]), len(rows[3])
        began, top = time.perf_counter(), self._top(batch, wanted)
        try:
            result = self._model.forward.step(*rows, top, taps)
        except Exception as e:
            self.fail(batch, e)
            return
        collects = any(run.job.collect is not None for run, _ in batch)
        seconds = time.perf_counter() - began
        self._learn(n, seconds, collects, wanted == n and not collects)
        try:
            self._settle(batch, result.logits, _summaries(result))
        except Exception as e:
            self.fail(batch, e)
        self._hand_over(batch, seconds < HOLD_SECONDS and wanted == n)

    def _rows(self, batch: Batch) -> tuple[tuple[I32, I32, I32, I32], Taps | None]:
        """(tokens, slots, positions and wanted rows of a step, its taps)"""
        n = sum(count + len(run.draft) for run, count in batch)
        tokens, slots = np.empty(n, np.int32), np.empty(n, np.int32)
        positions = np.empty(n, np.int32)
        want: list[int] = []
        taps: list[Taps] = []
        row = 0
        for run, count in batch:
            assert run.slot is not None
            end = row + count + len(run.draft)
            tokens[row:end] = (*run.ids[run.done : run.done + count], *run.draft)
            slots[row:end] = run.slot.index
            positions[row:end] = np.arange(run.done, run.done + end - row)
            if run.job.taps is not None:
                taps.append(run.job.taps.of_step(row, run.done, end - row))
            if run.job.collect is not None:
                want.extend(range(row + run.uncollected(count), end))
            elif run.done + count == len(run.ids):
                want.extend(range(row + count - 1, end))
            row = end
        return (tokens, slots, positions, np.array(want, np.int32)), _together(taps)

    def _settle(self, batch: Batch, logits: F32, summaries: list[Summary] | None) -> None:
        """Book what was evaluated, sample where a request reached its last token."""
        row = 0
        for run, count in batch:
            assert run.slot is not None
            start, skipped = run.done, run.uncollected(count)
            self._slots.advance(run.slot, run.ids[start : start + count])
            run.done += count
            if run.job.collect is not None:
                self._collect(run, start + skipped, logits[row : row + count - skipped])
                row += count - skipped
                continue
            if run.drawn == 0:
                run.out.put(Prefill(run.done, run.n_prompt, run.cached))
            if run.done == len(run.ids):
                end = row + 1 + len(run.draft)
                self._draw(run, logits[row:end], summaries[row:end] if summaries else None)
                row = end

    def _draw(self, run: RequestState, logits: F32, summaries: list[Summary] | None) -> None:
        """Sample after the last token, and after each guess that equals the sample before it."""
        guesses, run.draft = (*run.draft, None), ()  # of this step only: it may lose its slot now
        for i, guess in enumerate(guesses):
            self._sample(run, logits[i], summaries[i] if summaries else None)
            if run.slot is None or guess is None or run.ids[-1] != guess:
                return  # it has ended, or what lies behind in the cache is not what was said
            self._slots.advance(run.slot, (guess,))
            run.done += 1
            run.guessed += 1

    def _hand_over(self, batch: Batch, brief: bool) -> None:
        """Wake consumers: after all have been served, and where steps are brief for two tokens at
        once.

        A consumer that wakes asks for the interpreter and for a core, both of which the next token
        needs. What is held goes out with the next step at the latest, or with the end.
        """
        now = time.perf_counter()
        for run, _ in batch:
            held = len(run.out.held)
            if held and not (brief and held == 1 and now - run.out.flushed < HOLD_SECONDS):
                run.out.flush(now)

    def _collect(self, run: RequestState, start: int, logits: F32) -> None:
        assert run.job.collect is not None
        try:
            if len(logits):
                run.job.collect(start, logits)
        except Exception as e:  # of this request only
            self.fail([(run, 0)], e)
            return
        run.out.put(Prefill(run.done, run.n_prompt, run.cached))
        if run.done == len(run.ids):
            self.finish(run, "stop", None)

    def _top(self, batch: Batch, wanted: int) -> int:
        """How many entries the step lists for each wanted row; 0: no summaries.

        Either all requests of a model are reported from the step's summaries or none is: the
        log-sum-exp of the kernels and that of the sampler differ in the last bit.
        """
        tops = [run.job.top for run, _ in batch if run.job.collect is None]
        # A padded output matrix has rows without a token, which the sums would count.
        if self._model.forward.n_vocab != self._model.n_vocab or not wanted or not tops:
            return 0
        return min(max(1, *tops), MAX_SUMMARY)

    def _sample(self, run: RequestState, logits: F32, summary: Summary | None) -> None:
        assert run.sampler is not None
        try:
            pick = run.sampler.pick(logits, summary)
            ends = self._model.end_ids if run.job.end_ids is None else run.job.end_ids
            if pick.id in ends:
                self.finish(run, "stop", None)
                return
            run.sampler.accept(pick.id)
        except Exception as e:  # of this request only (its guide, its settings)
            self.fail([(run, 0)], e)
            return
        now = time.perf_counter()
        run.first = run.first or now
        run.last = now
        run.times.append(now)
        run.ids.append(pick.id)
        run.out.hold(self._token(pick, now - run.submitted))
        limit = run.job.sampling.max_tokens
        if (limit is not None and run.drawn >= limit) or len(run.ids) >= self._model.forward.n_ctx:
            self.finish(run, "length", None)

    def _token(self, pick: Pick, at: float) -> Token:
        text = self._model.token_bytes
        top = tuple(Top(i, text(i), _finite(lp), ok) for i, lp, ok in pick.top)
        return Token(pick.id, text(pick.id), _finite(pick.logprob), pick.rank, top, at, pick.masked)

    def finish(self, run: RequestState, reason: FinishReason, keep: int | None) -> None:
        kept = run.drawn if keep is None else min(keep, run.drawn)
        self._ended(run)
        if run.slot is not None:
            self._slots.truncate(run.slot, run.n_prompt + kept)
            self._slots.release(run.slot)
            self._released = True
            run.slot = None
        usage = Usage(run.n_prompt, run.cached, kept, min(run.guessed, kept))
        run.out.put(Finish(reason, usage, self._timings(run, kept)))

    def fail(self, batch: Batch, error: Exception) -> None:
        """These requests end with an error. Their slots may hold half a step: forget them."""
        for run, _ in batch:
            self._ended(run)
            if run.slot is not None:
                self._slots.truncate(run.slot, 0)
                self._slots.release(run.slot)
                run.slot = None
            run.out.put(engine_error(error, shared=len(batch) > 1))

    def _timings(self, run: RequestState, kept: int) -> Timings:
        now = time.perf_counter()
        started = run.started or now
        first = run.first or now
        prefill = first - started
        decode = run.times[kept - 1] - first if kept > 1 else 0.0
        new = run.n_prompt - run.cached
        return Timings(
            queued=started - run.submitted,
            prefill=prefill,
            decode=decode,
            first_token=(run.first - run.submitted) if run.first else 0.0,
            prefill_tps=new / prefill if prefill > 0 and run.first else 0.0,
            decode_tps=(kept - 1) / decode if decode > 0 else 0.0,
        )


def _together(taps: list[Taps]) -> Taps | None:
    """The taps of a step, of all its requests; None: nothing is recorded or changed."""
    reads = tuple(read for one in taps for read in one.reads)
    changes = tuple(change for one in taps for change in one.changes)
    return Taps(reads, changes) if reads or changes else None


def _summaries(result: StepResult) -> list[Summary] | None:
    """The step's summaries, row by row."""
    if result.summaries is None:
        return None
    rows = zip(result.summaries.lse.tolist(), result.summaries.ids.tolist(), strict=True)
    return [Summary(lse, tuple(ids)) for lse, ids in rows]


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None  # numpy's takes a microsecond for one number


def engine_error(error: Exception, shared: bool = False) -> LLMError:
    """shared: by several requests, each of which needs its own: its reader writes there what came
    before."""
    ours = isinstance(error, LLMError)
    if ours and not shared:
        return cast(LLMError, error)
    wrapped = EngineError(str(error) if ours else f"generation failed: {named(error)}")
    wrapped.__cause__ = error
    return wrapped
