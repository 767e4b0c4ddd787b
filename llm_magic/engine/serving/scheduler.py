"""The scheduler: the owner thread of one model, its queue and its slots.

A `Job` comes from any thread; the scheduler returns a `Generation` that yields Queued, Prefill,
Token and one Finish. The parts: mailbox.py carries what other threads want to the owner, planner.py
decides which rows the next step takes, runner.py evaluates it and hands the results out.

Thread rules. Everything that touches the forward pass happens on one thread, the owner. Other
threads talk to it through the mailbox and read their Generation's queue. A field that both sides
touch is written by one of them only and says so.
"""

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from llm_magic.errors import ContextOverflowError, LLMError, NotLoadedError, RequestError
from llm_magic.events import Prefill, Queued
from llm_magic.sampling import check

from ..gate import Gate
from . import switch_interval
from .generation import Channel, Generation
from .job import Job, Model, RequestState
from .mailbox import Mailbox
from .planner import Planner
from .runner import Runner, engine_error
from .sampler import Sampler
from .slots import Slots

T = TypeVar("T")


class Scheduler:
    """Runs the owner thread. `loader` is called on it once; `ready` holds its result.

    Nothing runs before `start`, so that a caller can register the scheduler first: an interrupt
    then never leaves a thread that nobody knows of.

    Methods may be called from any thread unless they start with an underscore.
    """

    def __init__(self, loader: Callable[[], Model], gate: Gate | None = None) -> None:
        self._gate = gate or Gate()
        self._loader: Callable[[], Model] | None = loader
        self._mailbox = Mailbox()
        self._pid = os.getpid()
        self._closed = False
        self._error: BaseException | None = None
        self._waiting: deque[RequestState] = deque()
        self._active: list[RequestState] = []  # those that have a slot
        self._parked: list[RequestState] = []  # those that lost it because nobody read them
        self._working = False
        self._model: Model | None = None
        self._slots: Slots | None = None
        self.ready: Future[Model] = Future()
        # Whether loading is over. Written by the owner; a plain flag, since an interrupt of a
        # thread that waits for a Future can leave the Future's lock held.
        self.settled = False
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="llm_magic engine", daemon=True)

    # ------------------------------------------------------------------ any thread

    def start(self) -> None:
        """Start loading. Idempotent; without effect after `close`."""
        with self._starting:
            if not self._closed and self._thread.ident is None and self._pid == os.getpid():
                self._thread.start()

    def submit(self, job: Job) -> Generation:
        """Queue a job. Raises before anything is computed when its settings or length are wrong."""
        model = self._loaded()
        check(job.sampling)
        self._check_ids(job, model)
        channel = Channel()
        out = Generation(channel, self._mailbox.wake, self._check_alive, self._gate)
        sampler = None
        if job.collect is None:
            ends = model.end_ids if job.end_ids is None else job.end_ids
            sampler = Sampler(
                job.sampling, model.n_vocab, ends, job.ids, job.guide, job.top, job.breakers
            )
        run = RequestState(job, channel, list(job.ids), sampler, time.perf_counter())
        self._mailbox.post(lambda: self._enqueue(run))
        return out

    def call(self, f: Callable[[], T]) -> T:
        """Run f on the owner thread between two steps and return its result."""
        self._loaded()
        return self._mailbox.call(f, self._check_alive, self._gate)

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

        Args:
            wait: Whether to return only when that is done.
        """
        self._closed = True
        self._mailbox.stop()
        if self._thread.ident is None:
            with self._starting:  # it may be about to start
                if self._thread.ident is None:
                    self._never_started()
                    return
        if not wait:
            return
        if self._pid == os.getpid() and threading.current_thread() is not self._thread:
            with self._gate.lend():
                self._thread.join()

    def _never_started(self) -> None:
        self._loader = None
        if not self.ready.done():
            self.ready.set_exception(NotLoadedError("the model was unloaded"))
        self.settled = True

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
        limit = n_ctx if job.collect else n_ctx - 1  # a generated token needs a position
        if len(job.ids) > limit:
            raise ContextOverflowError(len(job.ids), n_ctx)
        bad = next((i for i in job.ids if not 0 <= i < model.forward.n_vocab), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary of {model.n_vocab}")

    # ------------------------------------------------------------------ the owner thread

    def _main(self) -> None:
        with self._starting:
            loader, self._loader = self._loader, None  # it may hold what close must free
        if loader is None:
            return  # closed while it started
        try:
            model = loader()
            del loader
            self._model = model
            forward, budget = model.forward, model.positions(model.cache_bytes)
            self._slots = Slots(forward.n_slots, forward.copy, forward.forget, budget)
            self._planner = Planner(forward)
            self._runner = Runner(model, self._slots, self._planner.learn, self._drop)
            del forward
        except BaseException as e:
            self._closed = True
            self.ready.set_exception(e)
            self.settled = True
            return
        self.ready.set_result(model)
        self.settled = True
        del model
        try:
            while self._read_mailbox():
                self._reap()
                self._admit()
                self._runner.inherit(self._active)
                alone = len(self._all()) == 1
                if batch := self._planner.plan(self._active, self._runner.follow, alone):
                    self._runner.step(batch)
        except BaseException as e:  # a fault of the scheduler: nobody may wait for ever
            self._error = e
        finally:
            self._shut()

    def _shut(self) -> None:
        self._closed = True
        self._work(False)
        self._fail_all()
        self._mailbox.drain()
        self._fail_all()
        if self._model is not None:
            self._model.forward.close()
        self._model = self._slots = None
        del self._planner, self._runner
        self.ready = Future()
        self.ready.set_exception(NotLoadedError("the model was unloaded"))

    def _fail_all(self) -> None:
        for run in self._all():
            run.out.put(self._unloaded())
        self._active.clear()
        self._parked.clear()
        self._waiting.clear()

    def _unloaded(self) -> LLMError:
        """One for each request: its reader attaches the partial reply."""
        error = NotLoadedError("the model was unloaded while this request was running")
        error.__cause__ = self._error
        return error

    def _all(self) -> list[RequestState]:
        return [*self._active, *self._parked, *self._waiting]

    def _read_mailbox(self) -> bool:
        """Do what other threads posted. Sleeps while there is nothing to evaluate."""
        while True:
            pause = self._pause()
            self._work(pause == 0.0)
            try:
                task = self._mailbox.read(pause if pause < math.inf else None)
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
        """How long the owner may sleep: 0 if there is work, inf if only a new request can create
        some."""
        slots = self._slots
        if slots is None or any(run.out.stop for run in self._all()):
            return 0.0
        runnable = [run.readable for run in self._active]  # of all: each notes its own state
        if any(runnable):
            return 0.0
        if not self._waiting and not any(run.readable for run in self._parked):
            return math.inf
        return 0.0 if slots.free else min((run.patience for run in self._active), default=math.inf)

    def _enqueue(self, run: RequestState) -> None:
        self._waiting.append(run)
        ahead = len(self._waiting) - 1
        if self._slots is not None and ahead >= self._slots.free:
            run.out.put(Queued(ahead + len(self._active)))

    def _admit(self) -> None:
        """Give slots to those who wait, first come, first served: parked ones came before."""
        slots = self._slots
        assert slots is not None
        for run in [*(r for r in self._parked if r.readable), *self._waiting]:
            if not slots.free and not self._park(slots):
                return
            self._drop(run)
            self._start(run, slots)

    def _park(self, slots: Slots) -> bool:
        """Take the slot of a request whose consumer stopped reading; it resumes when it reads."""
        for run in self._active:
            if run.patience == 0.0:
                assert run.slot is not None
                slots.release(run.slot)
                run.slot, run.done = None, 0
                self._active.remove(run)
                self._parked.append(run)
                return True
        return False

    def _start(self, run: RequestState, slots: Slots) -> None:
        try:
            acquired = slots.acquire(run.ids, run.reusable, run.job.key)
        except Exception as e:
            run.out.put(engine_error(e))
            return
        assert acquired is not None
        run.slot, run.done = acquired
        self._active.append(run)
        if run.started is None:
            run.started = time.perf_counter()
            run.cached = run.done
            run.out.put(Prefill(run.done, run.n_prompt, run.done))
            if run.job.sampling.max_tokens == 0 or not run.ids:
                self._runner.finish(run, "length" if run.ids else "stop", None)

    def _reap(self) -> None:
        for run in [r for r in self._all() if r.out.stop is not None]:
            assert run.out.stop is not None
            self._runner.finish(run, *run.out.stop)

    def _drop(self, run: RequestState) -> None:
        for requests in (self._active, self._parked, self._waiting):
            if run in requests:
                requests.remove(run)
