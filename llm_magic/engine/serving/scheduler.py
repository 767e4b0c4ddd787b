"""The owner thread: queue, slots, batches, cancellation, timing.

Comes in: jobs (token ids and settings) from any thread. Goes out: per job a Generation that yields
Queued, Prefill, Token and one Finish. It must not know text, roles, stop strings or notebooks.

Thread rules. Everything that touches the forward pass happens on one thread, the owner. Other
threads talk to it through `_inbox` and read their Generation's queue. A field that both sides touch
is written by one of them only and says so.

One step evaluates rows of many requests at once: a running request adds its last token, a new one
adds a chunk of its prompt. A request that is evaluated up to its last token gets a sample. Behind
its last token a running request may add guesses at what follows (speculation.py),
and gets one sample more for each that was right.
"""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from llm_magic.errors import ContextOverflowError, EngineError, LLMError, NotLoadedError, named
from llm_magic.events import (
    Finish,
    FinishReason,
    Prefill,
    Queued,
    Sampling,
    Timings,
    Token,
    Top,
    Usage,
)
from llm_magic.prefix import common_prefix
from llm_magic.sampling import check

from ..forward import F32, Forward, StepResult
from ..gate import Gate
from . import switch_interval
from .generation import RUN_AHEAD as RUN_AHEAD
from .generation import Channel
from .generation import Generation as Generation
from .sampler import Guide, Pick, Sampler, Summary
from .slots import Slot, Slots
from .speculation import Costs, Draft, Drafts, share

T = TypeVar("T")

STEP_SECONDS = 0.05  # aim for one step: cancels act, and running streams speak, this often
ALONE = 4  # times that for a request that nobody runs beside: its weights are read less often
MIN_CHUNK = 8
MIN_SHARED = 16  # tokens of a common beginning that are worth waiting for and copying
FIRST_CHUNK = 64  # rows of the first step of a model whose speed nobody knows yet
PARK_SECONDS = 0.25  # a consumer that reads nothing for so long may lose its slot to those who wait
HOLD_SECONDS = 0.004  # a token may wait so long for the next one, see _hand_over
MOST_GUESSED = 3  # tokens of one request that a step checks
MAX_SUMMARY = 20  # alternatives that a forward pass lists; more are found by the sampler


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate, in ids.

    top: alternatives to report per token. guess: check guesses at the next tokens where that is
    faster; what comes out is the same. end_ids: None = the model's own. collect: instead of
    generating, hand over the logits of every position: called on the owner thread with
    (index of the first row, float32 [rows, n_vocab]); the array is only valid during the call.
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


@dataclass(slots=True, eq=False)
class _Run:
    """A job on the owner's side. ids = prompt + drawn tokens; the first `done` are in the slot."""

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


class Scheduler:
    """Runs the owner thread. `loader` is called on it once; `ready` holds its result.

    Methods may be called from any thread unless they start with an underscore.
    """

    def __init__(self, loader: Callable[[], Model], gate: Gate | None = None) -> None:
        self._gate = gate or Gate()
        self._loader: Callable[[], Model] | None = loader
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._error: BaseException | None = None
        self._waiting: deque[_Run] = deque()
        self._active: list[_Run] = []  # those that have a slot
        self._parked: list[_Run] = []  # those that lost it because nobody read them
        self._working = False
        self._rows: dict[bool, int] = {}  # see _chunk; empty until something has been measured
        self._costs = Costs()
        self._model: Model | None = None
        self._slots: Slots | None = None
        self.ready: Future[Model] = Future()
        self._thread = threading.Thread(target=self._main, name="llm_magic engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ any thread

    def submit(self, job: Job) -> Generation:
        """Queue a job. Raises before anything is computed when its settings or length are wrong."""
        model = self._loaded()
        check(job.sampling)
        self._check_ids(job, model)
        channel = Channel()
        out = Generation(channel, self._poke, self._check_alive, self._gate)
        sampler = None
        if job.collect is None:
            ends = model.end_ids if job.end_ids is None else job.end_ids
            sampler = Sampler(
                job.sampling, model.n_vocab, ends, job.ids, job.guide, job.top, job.breakers
            )
        run = _Run(job, channel, list(job.ids), sampler, time.perf_counter())
        self._post(lambda: self._enqueue(run))
        return out

    def call(self, f: Callable[[], T]) -> T:
        """Run f on the owner thread between two steps and return its result."""
        future: Future[T] = Future()

        def task() -> None:
            try:
                future.set_result(f())
            except BaseException as e:
                future.set_exception(e)

        self._loaded()
        self._post(task)
        with self._gate.lend():
            while True:
                try:
                    return future.result(timeout=0.5)
                except TimeoutError:
                    if future.done():
                        raise
                    self._check_alive()

    def resize(self, n_ctx: int, n_slots: int) -> None:
        """Grow to at least these sizes, between two steps. Running requests go on."""

        def grow() -> None:
            model = self._loaded()
            forward, slots = model.forward, self._slots
            assert slots is not None
            forward.resize(max(n_ctx, forward.n_ctx), max(n_slots, forward.n_slots))
            slots.grow(forward.n_slots)

        self.call(grow)

    def allow(self, cache_bytes: int | None) -> None:
        """Let conversations that nobody continues keep more of the cache; less changes nothing."""

        def grow() -> None:
            assert self._slots is not None
            self._slots.allow(self._loaded().positions(cache_bytes))

        self.call(grow)

    def close(self, wait: bool = True) -> None:
        """Stop the thread and free the model. Running requests fail. Idempotent.

        wait: return when that is done; without, it is done soon.
        """
        self._closed = True
        self._inbox.put(None)
        if not wait:
            return
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            with self._gate.lend():
                self._thread.join()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._active) + len(self._parked)

    @property
    def slots(self) -> Slots | None:
        return self._slots

    def _loaded(self) -> Model:
        self._check_alive()
        if not self.ready.done():
            raise NotLoadedError("the model is still loading")
        return self.ready.result()

    def _check_alive(self) -> None:
        if self._pid != os.getpid():
            raise NotLoadedError(
                "the model was loaded before this process was forked; load it again here"
            )
        if self._closed or not self._thread.is_alive():
            raise NotLoadedError("the model was unloaded") from self._error

    def _check_ids(self, job: Job, model: Model) -> None:
        n_ctx = model.forward.n_ctx
        limit = n_ctx if job.collect else n_ctx - 1  # a generated token needs a place
        if len(job.ids) > limit:
            raise ContextOverflowError(len(job.ids), n_ctx)
        bad = next((i for i in job.ids if not 0 <= i < model.forward.n_vocab), None)
        if bad is not None:
            raise EngineError(f"token id {bad} is outside the vocabulary of {model.n_vocab}")

    def _post(self, task: Callable[[], None]) -> None:
        self._inbox.put(task)

    def _poke(self) -> None:
        self._inbox.put(_nothing)

    # ------------------------------------------------------------------ the owner thread

    def _main(self) -> None:
        try:
            assert self._loader is not None
            model, self._loader = self._loader(), None  # the loader may hold what close must free
            self._model = model
            forward, budget = model.forward, model.positions(model.cache_bytes)
            self._slots = Slots(forward.n_slots, forward.copy, forward.forget, budget)
            del forward
        except BaseException as e:
            self._closed = True
            self.ready.set_exception(e)
            return
        self.ready.set_result(model)
        del model
        try:
            while self._read_inbox():
                self._reap()
                self._admit()
                if batch := self._plan():
                    self._step(batch)
        except BaseException as e:  # a fault of this file: nobody may wait for ever
            self._error = e
        finally:
            self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._work(False)
        for run in self._all():
            run.out.put(self._unloaded())
        self._active.clear()
        self._parked.clear()
        self._waiting.clear()
        while True:  # tasks that came too late
            try:
                if (task := self._inbox.get_nowait()) is not None:
                    task()
            except queue.Empty:
                break
        for run in self._waiting:
            run.out.put(self._unloaded())
        self._waiting.clear()
        if self._model is not None:
            self._model.forward.close()
        self._model = self._slots = None
        self.ready = Future()
        self.ready.set_exception(NotLoadedError("the model was unloaded"))

    def _unloaded(self) -> LLMError:
        """One for each request: its reader writes there what came before."""
        error = NotLoadedError("the model was unloaded while this request was running")
        error.__cause__ = self._error
        return error

    def _all(self) -> list[_Run]:
        return [*self._active, *self._parked, *self._waiting]

    def _read_inbox(self) -> bool:
        """Do what other threads asked for. Sleeps while there is nothing to evaluate."""
        while True:
            pause = self._pause()
            self._work(pause == 0.0)
            try:
                task = self._inbox.get(block=pause > 0, timeout=pause if pause < math.inf else None)
            except queue.Empty:
                return True
            if task is None:
                return False
            task()

    def _work(self, on: bool) -> None:
        """Note whether there is something to evaluate."""
        if on != self._working:
            self._working = on
            (switch_interval.begin if on else switch_interval.end)()

    def _pause(self) -> float:
        """Seconds for which there is nothing to do unless somebody asks for something."""
        slots = self._slots
        if slots is None or any(run.out.stop for run in self._all()):
            return 0.0
        runnable = [run.readable for run in self._active]  # of all: each notes its own state
        if any(runnable):
            return 0.0
        if not self._waiting and not any(run.readable for run in self._parked):
            return math.inf
        return 0.0 if slots.free else min((run.patience for run in self._active), default=math.inf)

    def _enqueue(self, run: _Run) -> None:
        self._waiting.append(run)
        ahead = len(self._waiting) - 1
        if self._slots is not None and ahead >= self._slots.free:
            run.out.put(Queued(ahead + len(self._active)))

    def _admit(self) -> None:
        """Give slots to those who wait, first come, first served: parked ones came before."""
        slots = self._slots
        assert slots is not None
        for run in [*(r for r in self._parked if r.readable), *self._waiting]:
            if not slots.free and not self._park():
                return
            self._drop(run)
            self._start(run)

    def _park(self) -> bool:
        """Take the slot of a request whose consumer stopped reading; it resumes when it reads."""
        for run in self._active:
            if run.patience == 0.0:
                assert self._slots is not None
                assert run.slot is not None
                self._slots.release(run.slot)
                run.slot, run.done = None, 0
                self._active.remove(run)
                self._parked.append(run)
                return True
        return False

    def _start(self, run: _Run) -> None:
        slots = self._slots
        assert slots is not None
        try:
            got = slots.acquire(run.ids, run.job.reuse and run.job.collect is None)
        except Exception as e:
            run.out.put(_engine_error(e))
            return
        assert got is not None
        run.slot, run.done = got
        self._active.append(run)
        if run.started is None:
            run.started = time.perf_counter()
            run.cached = run.done
            run.out.put(Prefill(run.done, run.n_prompt, run.done))
            if run.job.sampling.max_tokens == 0 or not run.ids:
                self._finish(run, "length" if run.ids else "stop", None)

    def _reap(self) -> None:
        for run in [r for r in self._all() if r.out.stop is not None]:
            assert run.out.stop is not None
            self._finish(run, *run.out.stop)

    def _plan(self) -> list[tuple[_Run, int]]:
        """Who evaluates how many tokens in the next step: running requests first, then prompts.

        Prompts share what is left evenly, so a short one is not kept behind a long one.
        """
        assert self._model is not None
        runs = self._without_followers([r for r in self._active if r.readable])
        most = self._model.forward.max_rows
        ready = [r for r in runs if len(r.ids) - r.done == 1]
        if len(ready) > most:
            ready.sort(key=lambda r: r.last)  # those that waited longest
        batch = [(r, 1) for r in ready[:most]]
        prompts = [r for r in runs if len(r.ids) - r.done > 1]
        self._guess(batch, with_prompts=bool(prompts))
        if not prompts:
            return batch
        collects = any(r.job.collect is not None for r in prompts)
        aim = self._chunk(collects)
        if collects in self._rows and len(self._all()) == 1:
            aim *= ALONE
        room = min(most, max(aim, len(batch) + MIN_CHUNK)) - len(batch)
        more = self._model.forward.max_wanted - len(batch) - len(prompts)  # each may want one row
        for i, run in enumerate(sorted(prompts, key=lambda r: len(r.ids) - r.done)):
            share = max(1, room // (len(prompts) - i)) if room > 0 else 0
            n = min(share, len(run.ids) - run.done)
            if run.job.collect is not None and n > 0:
                n = min(n, 1 + max(0, more))
                more -= n - 1
            if n > 0:
                batch.append((run, n))
                room -= n
        return batch

    def _guess(self, batch: list[tuple[_Run, int]], with_prompts: bool) -> None:
        """Give requests that decode guesses to check. With prompts in the step, rows are spoken
        for; a guess is only checked where a row has the same bits in every batch."""
        assert self._model is not None
        forward = self._model.forward
        drafts: list[Draft | None] = []
        for run, _ in batch:
            run.draft = ()
            most = min(MOST_GUESSED, run.out.room - 1, forward.n_ctx - len(run.ids))
            if (limit := run.job.sampling.max_tokens) is not None:
                most = min(most, limit - run.drawn - 1)
            if with_prompts or not forward.batch_invariant or not run.job.guess or most < 1:
                drafts.append(None)
                continue
            run.drafts = run.drafts or Drafts(run.ids)
            drafts.append(run.drafts.guess(most))
        room = min(forward.max_rows, forward.max_wanted) - len(batch)
        for (run, _), draft, n in zip(
            batch, drafts, share(drafts, room, self._costs.row), strict=True
        ):
            run.draft = draft.ids[:n] if draft is not None else ()

    def _without_followers(self, runs: list[_Run]) -> list[_Run]:
        """Those that evaluate something now.

        Several answers to one prompt, or to prompts with one beginning, come at once: the first one
        evaluates the beginning, the others wait for it and get a copy.
        """
        out: list[_Run] = []
        for run in runs:
            leader, n = self._leader(run, out)
            if leader is None or (leader.done >= n and self._follow(run, leader, n)):
                out.append(run)
        return out

    def _leader(self, run: _Run, earlier: list[_Run]) -> tuple[_Run | None, int]:
        """(who evaluates or has evaluated what this run begins with, how many tokens of it)"""
        found, best = None, run.done + MIN_SHARED - 1
        if not run.job.reuse or run.job.collect is not None or len(run.ids) <= best:
            return None, 0
        for other in earlier:
            known = max(other.done, other.n_prompt)  # what was drawn last may never be evaluated
            n = min(common_prefix(other.ids, run.ids), len(run.ids) - 1, known)
            if n > best and other.done >= run.done:
                found, best = other, n
        return found, best

    def _follow(self, run: _Run, leader: _Run, n: int) -> bool:
        """Take over n tokens. False if that failed and the run has ended."""
        assert self._slots is not None
        assert leader.slot is not None
        assert run.slot is not None
        try:
            self._slots.share(leader.slot, run.slot, n)
        except Exception as e:
            self._fail([(run, 0)], e)
            return False
        run.cached += n - run.done
        run.done = n
        if run.drawn == 0:
            run.out.put(Prefill(n, run.n_prompt, run.cached))
        return True

    def _chunk(self, collects: bool) -> int:
        """Rows of a step that take about STEP_SECONDS. All logits of a row cost more than a row."""
        assert self._model is not None
        return min(self._model.forward.max_rows, self._rows.get(collects, FIRST_CHUNK))

    def _learn(self, n: int, seconds: float, collects: bool) -> None:
        """How many rows fit, from a step that was full, or too long.

        A step costs its weights once and then so much a row: short ones say little about long ones.
        So the number moves half way, and at most doubles; it settles after a few steps.
        """
        assert self._model is not None
        rows, most = self._chunk(collects), self._model.forward.max_rows
        if 2 * n >= rows or seconds > STEP_SECONDS:
            fit = n * STEP_SECONDS / max(seconds, 1e-6)
            self._rows[collects] = max(MIN_CHUNK, int(min((rows + fit) / 2, 2 * rows, most)))

    def _step(self, batch: list[tuple[_Run, int]]) -> None:
        assert self._model is not None
        forward = self._model.forward
        n = sum(count + len(run.draft) for run, count in batch)
        tokens, slots = np.empty(n, np.int32), np.empty(n, np.int32)
        positions = np.empty(n, np.int32)
        want: list[int] = []
        row = 0
        for run, count in batch:
            assert run.slot is not None
            end = row + count + len(run.draft)
            tokens[row:end] = (*run.ids[run.done : run.done + count], *run.draft)
            slots[row:end] = run.slot.index
            positions[row:end] = np.arange(run.done, run.done + end - row)
            if run.job.collect is not None:
                want.extend(range(row, end))
            elif run.done + count == len(run.ids):
                want.extend(range(row + count - 1, end))
            row = end
        began, top = time.perf_counter(), self._top(batch, len(want))
        rows = (tokens, slots, positions, np.array(want, np.int32))
        try:
            result = forward.step(*rows, top)
        except Exception as e:
            self._fail(batch, e)
            return
        collects = any(run.job.collect is not None for run, _ in batch)
        seconds = time.perf_counter() - began
        self._learn(n, seconds, collects)
        if len(want) == n and not collects:
            self._costs.learn(n, seconds)
        try:
            self._settle(batch, result.logits, _summaries(result))
        except Exception as e:
            self._fail(batch, e)
        self._hand_over(batch, seconds < HOLD_SECONDS and len(want) == n)

    def _settle(
        self, batch: list[tuple[_Run, int]], logits: F32, summaries: list[Summary] | None
    ) -> None:
        """Book what was evaluated, sample where a request reached its last token."""
        assert self._model is not None
        assert self._slots is not None
        row = 0
        for run, count in batch:
            assert run.slot is not None
            start = run.done
            self._slots.advance(run.slot, run.ids[start : start + count])
            run.done += count
            if run.job.collect is not None:
                self._collect(run, start, logits[row : row + count])
                row += count
                continue
            if run.drawn == 0:
                run.out.put(Prefill(run.done, run.n_prompt, run.cached))
            if run.done == len(run.ids):
                end = row + 1 + len(run.draft)
                self._draw(run, logits[row:end], summaries[row:end] if summaries else None)
                row = end

    def _draw(self, run: _Run, logits: F32, summaries: list[Summary] | None) -> None:
        """Sample after the last token, and after each guess that equals the sample before it."""
        assert self._slots is not None
        guesses, run.draft = (*run.draft, None), ()  # of this step only: it may lose its slot now
        for i, guess in enumerate(guesses):
            self._sample(run, logits[i], summaries[i] if summaries else None)
            if run.slot is None or guess is None or run.ids[-1] != guess:
                return  # it has ended, or what lies behind in the cache is not what was said
            self._slots.advance(run.slot, (guess,))
            run.done += 1
            run.guessed += 1

    def _hand_over(self, batch: list[tuple[_Run, int]], brief: bool) -> None:
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

    def _collect(self, run: _Run, start: int, logits: F32) -> None:
        assert run.job.collect is not None
        try:
            run.job.collect(start, logits)
        except Exception as e:  # of this request only
            self._fail([(run, 0)], e)
            return
        run.out.put(Prefill(run.done, run.n_prompt, 0))
        if run.done == len(run.ids):
            self._finish(run, "stop", None)

    def _top(self, batch: list[tuple[_Run, int]], wanted: int) -> int:
        """How many entries the step lists for each wanted row; 0: no summaries.

        Either all requests of a model are reported from the step's summaries or none is: the
        log-sum-exp of the kernels and that of the sampler differ in the last bit.
        """
        assert self._model is not None
        tops = [run.job.top for run, _ in batch if run.job.collect is None]
        # A padded output matrix has rows without a token, which the sums would count.
        if self._model.forward.n_vocab != self._model.n_vocab or not wanted or not tops:
            return 0
        return min(max(1, *tops), MAX_SUMMARY)

    def _sample(self, run: _Run, logits: F32, summary: Summary | None) -> None:
        assert self._model is not None
        assert run.sampler is not None
        try:
            pick = run.sampler.pick(logits, summary)
            ends = self._model.end_ids if run.job.end_ids is None else run.job.end_ids
            if pick.id in ends:
                self._finish(run, "stop", None)
                return
            run.sampler.accept(pick.id)
        except Exception as e:  # of this request only (its guide, its settings)
            self._fail([(run, 0)], e)
            return
        now = time.perf_counter()
        run.first = run.first or now
        run.last = now
        run.times.append(now)
        run.ids.append(pick.id)
        run.out.hold(self._token(pick, now - run.submitted))
        limit = run.job.sampling.max_tokens
        if (limit is not None and run.drawn >= limit) or len(run.ids) >= self._model.forward.n_ctx:
            self._finish(run, "length", None)

    def _token(self, pick: Pick, at: float) -> Token:
        assert self._model is not None
        text = self._model.token_bytes
        top = tuple(Top(i, text(i), _finite(lp), ok) for i, lp, ok in pick.top)
        return Token(pick.id, text(pick.id), _finite(pick.logprob), pick.rank, top, at, pick.masked)

    def _finish(self, run: _Run, reason: FinishReason, keep: int | None) -> None:
        kept = run.drawn if keep is None else min(keep, run.drawn)
        self._drop(run)
        if run.slot is not None:
            assert self._slots is not None
            self._slots.truncate(run.slot, run.n_prompt + kept)
            self._slots.release(run.slot)
            run.slot = None
        usage = Usage(run.n_prompt, run.cached, kept, min(run.guessed, kept))
        run.out.put(Finish(reason, usage, self._timings(run, kept)))

    def _fail(self, batch: list[tuple[_Run, int]], error: Exception) -> None:
        """These requests end with an error. Their slots may hold half a step: forget them."""
        for run, _ in batch:
            self._drop(run)
            if run.slot is not None:
                assert self._slots is not None
                self._slots.truncate(run.slot, 0)
                self._slots.release(run.slot)
                run.slot = None
            run.out.put(_engine_error(error, shared=len(batch) > 1))

    def _drop(self, run: _Run) -> None:
        for where in (self._active, self._parked, self._waiting):
            if run in where:
                where.remove(run)

    def _timings(self, run: _Run, kept: int) -> Timings:
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


def _summaries(result: StepResult) -> list[Summary] | None:
    """The step's summaries, row by row."""
    if result.summaries is None:
        return None
    rows = zip(result.summaries.lse.tolist(), result.summaries.ids.tolist(), strict=True)
    return [Summary(lse, tuple(ids)) for lse, ids in rows]


def _nothing() -> None:
    """A task that only wakes the owner."""


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None  # numpy's takes a microsecond for one number


def _engine_error(error: Exception, shared: bool = False) -> LLMError:
    """shared: by several requests, each of which needs its own: its reader writes there what came
    before."""
    ours = isinstance(error, LLMError)
    if ours and not shared:
        return cast(LLMError, error)
    wrapped = EngineError(str(error) if ours else f"generation failed: {named(error)}")
    wrapped.__cause__ = error
    return wrapped
