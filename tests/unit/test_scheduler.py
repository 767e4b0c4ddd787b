"""Queue, slots, batches, cancellation: with a forward pass that notices every wrong position."""

import gc
import random
import threading
import time

import numpy as np
import pytest
from support.fakes import END, FakeForward, fake_scheduler, greedy, job

from llm_magic.engine.serving.generation import RUN_AHEAD
from llm_magic.engine.serving.job import Job
from llm_magic.engine.serving.scheduler import Scheduler
from llm_magic.errors import ContextOverflowError, EngineError, NotLoadedError, RequestError
from llm_magic.events import Finish, Prefill, Queued, Sampling, Token


def run(scheduler, a_job):
    items = list(scheduler.submit(a_job))
    return [i.id for i in items if isinstance(i, Token)], items[-1], items


def test_greedy_tokens_are_those_of_the_oracle(start):
    scheduler, forward = start()
    ids, finish, items = run(scheduler, job([3, 4, 5]))
    assert ids == greedy(forward, [3, 4, 5], 5)
    assert finish.reason == "length"
    assert (finish.usage.prompt, finish.usage.cached, finish.usage.completion) == (3, 0, 5)
    assert sum(isinstance(i, Finish) for i in items) == 1


# LAI-14
def test_stops_at_the_end_token_and_does_not_emit_it(start):
    def shape(prefix, row):
        if len(prefix) == 6:
            row[END] = 100.0
        return row

    scheduler, _ = start(FakeForward(shape=shape))
    ids, finish, _ = run(scheduler, job([3, 4, 5], n=50))
    assert END not in ids
    assert (len(ids), finish.reason, finish.usage.completion) == (3, "stop", 3)  # TG-63


# LAI-13
def test_an_empty_prompt_is_an_empty_answer(start):
    scheduler, forward = start()
    ids, finish, _ = run(scheduler, job([]))
    assert (ids, finish.reason, forward.steps) == ([], "stop", 0)


# LC-13
def test_a_budget_of_zero_yields_no_token_and_length(start):
    scheduler, _ = start()
    ids, finish, _ = run(scheduler, job([3, 4], n=0))
    assert (ids, finish.reason) == ([], "length")
    assert run(scheduler, job([3, 4], n=2))[1].usage.cached == 0


# B093
@pytest.mark.parametrize("n", [1, 7, 8, 9, 16, 17, 31])
@pytest.mark.parametrize("cached", [0, 1, 7, 8])
def test_chunked_prefill_evaluates_the_right_tokens(start, n, cached):  # TG-82
    scheduler, forward = start(n_ctx=80)
    prompt = [2 + i % 40 for i in range(n)]
    if cached:
        run(scheduler, job(prompt[:cached], n=1))
    ids, finish, items = run(scheduler, job(prompt))
    assert ids == greedy(forward, prompt, 5)
    assert finish.usage.cached == min(cached, n - 1)  # TG-80
    fills = [i for i in items if isinstance(i, Prefill)]
    assert fills[0].done == fills[0].cached == finish.usage.cached
    assert fills[-1] == Prefill(n, n, finish.usage.cached)


# B092
def test_the_same_prompt_twice_evaluates_one_token_and_says_the_same(start):
    scheduler, forward = start()
    first, _, _ = run(scheduler, job([3, 4, 5, 6]))
    before = forward.rows
    again, finish, _ = run(scheduler, job([3, 4, 5, 6], n=1))
    assert again == first[:1]
    assert finish.usage.cached == 3
    assert forward.rows == before + 1


# B092, B094
@pytest.mark.parametrize("prompt", [[3, 4, 5, 6], [3, 4], [3, 4, 5, 6, 7, 8], [9, 9, 9], [3, 9]])
def test_warm_equals_cold(start, prompt):  # LC-7
    scheduler, forward = start()
    run(scheduler, job([3, 4, 5, 6]))
    warm, _, _ = run(scheduler, job(prompt))
    cold, finish, _ = run(scheduler, job(prompt, reuse=False))
    assert warm == cold == greedy(forward, prompt, 5)
    assert finish.usage.cached == 0


# B097
def test_the_common_prefix_is_reused_exactly(start):
    scheduler, forward = start(n_ctx=200)
    prompt = [2 + i % 40 for i in range(100)]
    run(scheduler, job(prompt, n=1))
    before = forward.rows
    _, finish, _ = run(scheduler, job([*prompt[:90], 45], n=1))
    assert finish.usage.cached == 90
    assert forward.rows == before + 1


# B098
@pytest.mark.parametrize("ending", ["length", "end", "stop", "interrupted"])
def test_a_token_that_was_drawn_but_not_evaluated_is_not_cached(start, ending):
    def shape(prefix, row):
        if ending == "end" and len(prefix) == 7:
            row[END] = 100.0
        return row

    scheduler, forward = start(FakeForward(shape=shape))
    out = scheduler.submit(job([3, 4, 5], n=4 if ending == "length" else 30))
    ids = []
    for item in out:
        if isinstance(item, Token):
            ids.append(item.id)
            if len(ids) == 4 and ending in ("stop", "interrupted"):
                out.cancel(ending, keep=3 if ending == "stop" else None)
    ids = ids[:3] if ending == "stop" else ids
    follow = [3, 4, 5, *ids, 7, 8]
    warm, finish, _ = run(scheduler, job(follow))
    assert finish.usage.cached >= 3 + len(ids) - 1
    assert warm == greedy(forward, follow, 5)


# B095
def test_a_prompt_beyond_the_window_is_refused_before_anything(start):  # TG-83
    scheduler, forward = start(n_ctx=64)
    with pytest.raises(ContextOverflowError, match="prompt has 120 tokens, context is 64") as e:
        scheduler.submit(job([5] * 120))
    assert (e.value.n_prompt, e.value.n_ctx) == (120, 64)
    assert forward.steps == 0
    with pytest.raises(ContextOverflowError):
        scheduler.submit(job([5] * 64))


# TG-64
def test_running_into_the_window_is_length(start):
    scheduler, _ = start(n_ctx=16)
    ids, finish, _ = run(scheduler, job([5] * 10, n=100))
    assert (len(ids), finish.reason) == (6, "length")


# TG-86
def test_the_ids_given_are_not_changed(start):
    scheduler, _ = start()
    ids = [3, 4, 5]
    run(scheduler, Job(ids, Sampling(temperature=0, max_tokens=3)))
    assert ids == [3, 4, 5]


def test_wrong_settings_are_refused_before_anything(start):
    scheduler, forward = start()
    with pytest.raises(RequestError, match="top_p is 2"):
        scheduler.submit(Job((3,), Sampling(top_p=2.0)))
    with pytest.raises(RequestError, match="token id 99 is outside"):
        scheduler.submit(job([99]))
    assert forward.steps == 0


def test_cancel_in_prefill_stops_between_chunks(start):
    scheduler, forward = start(n_ctx=4096, max_rows=8, delay=0.002)
    out = scheduler.submit(job([5] * 4000))
    for item in out:
        if isinstance(item, Prefill) and item.done > 0:
            out.cancel("interrupted")
            break
    finish = list(out)[-1]
    assert finish.reason == "interrupted"
    assert finish.usage.completion == 0
    assert forward.rows < 2000
    ids, _, _ = run(scheduler, job([5] * 30))
    assert ids == greedy(forward, [5] * 30, 5)


def test_cancel_of_a_queued_request(start):
    scheduler, _ = start(n_slots=1, delay=0.005)
    first = scheduler.submit(job([3], n=60))
    second = scheduler.submit(job([4], n=60))
    reader = threading.Thread(target=lambda: list(first))
    reader.start()
    assert isinstance(next(second), Queued)
    second.cancel()
    assert list(second)[-1].reason == "cancelled"
    first.cancel()
    reader.join()


def test_the_engine_runs_ahead_by_few_tokens(start):
    scheduler, forward = start()
    out = scheduler.submit(job([3, 4, 5], n=50))
    time.sleep(0.2)
    assert forward.rows <= 3 + RUN_AHEAD
    taken = 0
    for item in out:
        if isinstance(item, Token):
            taken += 1
            if taken == 3:
                break
    time.sleep(0.1)
    assert forward.rows <= 3 + taken + RUN_AHEAD
    out.close()


# B110
def test_an_abandoned_stream_does_not_go_on(start):
    scheduler, forward = start(n_slots=1)
    out = scheduler.submit(job([3, 4, 5], n=50))
    for item in out:
        if isinstance(item, Token):
            break
    out.close()
    ids, _, _ = run(scheduler, job([6, 7]))
    assert ids == greedy(forward, [6, 7], 5)
    assert forward.rows <= 3 + 1 + RUN_AHEAD + 2 + 5


def test_unread_streams_do_not_starve_others_and_resume(start):
    scheduler, forward = start(n_slots=2)
    held = [scheduler.submit(job([3, i], n=20)) for i in (10, 11, 12)]
    time.sleep(0.1)
    ids, _, _ = run(scheduler, job([8, 9]))
    assert ids == greedy(forward, [8, 9], 5)
    for i, out in zip((10, 11, 12), held, strict=True):
        assert [t.id for t in out if isinstance(t, Token)] == greedy(forward, [3, i], 20)


# LC-73
def test_requests_of_many_threads_get_their_own_tokens(start):  # TG-88
    scheduler, forward = start(n_slots=3)
    wrong = []

    def client(seed):
        rng = random.Random(seed)
        for _ in range(20):
            prompt = [rng.randrange(2, 50) for _ in range(rng.randrange(1, 30))]
            ids, _, _ = run(scheduler, job(prompt, n=6))
            if ids != greedy(forward, prompt, 6):
                wrong.append(prompt)

    threads = [threading.Thread(target=client, args=(s,)) for s in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert max(len(b) for b in forward.batches) > 1  # they really shared steps


def test_a_short_prompt_is_not_kept_behind_a_long_one(start):
    scheduler, _ = start(n_ctx=4096, max_rows=16, delay=0.0005)
    long = scheduler.submit(job([5] * 3000, n=1))
    started = time.perf_counter()
    run(scheduler, job([6] * 20, n=3))
    short_took = time.perf_counter() - started
    assert not any(isinstance(i, Token) for i in drain_nowait(long))
    long.cancel()
    assert short_took < 1.5


def drain_nowait(generation):
    out = []
    while not generation._channel.items.empty():
        out.append(next(generation))
    return out


# LAI-11
def test_a_failing_step_fails_its_requests_only_and_the_engine_goes_on(start):
    scheduler, forward = start()
    forward.fail_at = 7
    with pytest.raises(EngineError, match="generation failed: RuntimeError: damaged step") as e:
        run(scheduler, job([3, 7, 5]))
    assert isinstance(e.value.__cause__, RuntimeError)
    ids, finish, _ = run(scheduler, job([3, 4, 5]))
    assert ids == greedy(forward, [3, 4, 5], 5)
    assert finish.usage.cached == 0


@pytest.mark.parametrize("how", ["step", "close"])
def test_each_request_gets_an_error_of_its_own(start, how):
    """Its reader writes into it what came before: one object would carry another's text."""

    def refuse(*rows):
        raise EngineError("a row is wrong")

    scheduler, forward = start(delay=0.02)
    outs = [scheduler.submit(job([3, 4, i], n=60)) for i in (5, 6, 8)]
    for out in outs:
        while not isinstance(next(out), Token):
            pass
    if how == "close":
        scheduler.close()
    else:
        scheduler.call(lambda: setattr(forward, "step", refuse))
    errors = []
    for out in outs:
        with pytest.raises((EngineError, NotLoadedError)) as e:
            list(out)
        errors.append(e.value)
    assert len({id(e) for e in errors}) == len(outs)
    if how == "step":
        assert {str(e) for e in errors} == {"a row is wrong"}


def test_a_guide_that_raises_fails_its_request_only(start):
    class Broken:
        def mask(self):
            raise ValueError("broken guide")

        def accept(self, token):
            raise AssertionError

    scheduler, forward = start()
    with pytest.raises(EngineError, match="broken guide"):
        run(scheduler, job([3, 4], guide=Broken()))
    assert run(scheduler, job([3, 4]))[0] == greedy(forward, [3, 4], 5)


def test_weights_that_give_no_numbers_are_an_error_not_token_zero(start):
    def nan(_prefix, row):
        return np.full_like(row, np.nan)

    scheduler, _ = start(FakeForward(shape=nan))
    with pytest.raises(EngineError, match="NaN logits"):
        run(scheduler, job([3]))


# LAI-1, LAI-31
def test_a_failed_load_leaves_nothing_and_says_why():
    def loader():
        raise RuntimeError("no such weights")

    scheduler = Scheduler(loader)
    assert not scheduler.ready.done()
    scheduler.start()
    scheduler.start()
    with pytest.raises(RuntimeError, match="no such weights"):
        scheduler.ready.result(timeout=5)
    with pytest.raises(NotLoadedError):
        scheduler.submit(job([3]))


# LAI-32
def test_close_is_repeatable_and_ends_running_requests(start):
    scheduler, forward = start(delay=0.01)
    out = scheduler.submit(job([3, 4], n=60))
    next(out)
    scheduler.close()
    scheduler.close()
    assert forward.closed
    with pytest.raises(NotLoadedError):
        list(out)
    with pytest.raises(NotLoadedError, match="unloaded"):
        scheduler.submit(job([3]))


# B112
def test_close_lets_go_of_the_model():
    import weakref

    forward = FakeForward()
    ref = weakref.ref(forward)
    scheduler, _ = fake_scheduler(forward)
    list(scheduler.submit(job([3, 4])))
    del forward, _
    scheduler.close()
    gc.collect()
    assert ref() is None


def test_resize_keeps_what_is_cached(start):
    scheduler, forward = start(n_ctx=32, n_slots=1)
    run(scheduler, job([3, 4, 5, 6], n=1))
    scheduler.resize(128, 3)
    assert (forward.n_ctx, forward.n_slots, len(scheduler.slots)) == (128, 3, 3)
    ids, finish, _ = run(scheduler, job([3, 4, 5, 6, 7]))
    assert finish.usage.cached == 4
    assert ids == greedy(forward, [3, 4, 5, 6, 7], 5)
    run(scheduler, job([5] * 100))


def test_collect_hands_over_every_position_in_order(start):
    scheduler, forward = start()
    rows = {}
    prompt = [3 + i % 30 for i in range(21)]

    def collect(first, logits):
        for i, row in enumerate(logits):
            rows[first + i] = row.copy()

    finish = list(scheduler.submit(Job(tuple(prompt), collect=collect)))[-1]
    assert finish.reason == "stop"
    assert sorted(rows) == list(range(21))
    for i, row in rows.items():
        np.testing.assert_array_equal(row, forward.logits(prompt[: i + 1]))


# LC-33
def test_a_seed_gives_the_same_tokens_again(start):
    scheduler, _ = start()

    def draw(seed):
        settings = Sampling(temperature=1.5, max_tokens=12, seed=seed)
        return [t.id for t in scheduler.submit(Job((3, 4), settings)) if isinstance(t, Token)]

    assert draw(1) == draw(1)
    assert len({tuple(draw(seed)) for seed in range(5)}) > 1
    assert draw(None) != draw(None)


def test_random_cancels_leave_a_consistent_cache(start):
    scheduler, forward = start(n_slots=2)
    rng = random.Random(7)
    for _ in range(200):
        prompt = [rng.choice((3, 4)) for _ in range(rng.randrange(1, 20))]
        out = scheduler.submit(job(prompt, n=12))
        limit = rng.randrange(0, 12)
        seen = 0
        for item in out:
            if isinstance(item, Token):
                seen += 1
            if seen >= limit:
                out.cancel("cancelled", keep=rng.choice((None, max(0, seen - 1))))
    ids, _, _ = run(scheduler, job([3, 4, 3, 3]))
    assert ids == greedy(forward, [3, 4, 3, 3], 5)


# TG-68
def test_timings_and_usage_add_up(start):
    scheduler, _ = start(delay=0.002)
    _, finish, items = run(scheduler, job([3] * 20, n=6))
    t = finish.timings
    assert t.prefill >= 0.04
    assert t.prefill_tps == pytest.approx(20 / t.prefill)
    assert t.decode_tps == pytest.approx(5 / t.decode)
    ats = [i.at for i in items if isinstance(i, Token)]
    assert ats == sorted(ats)
    assert ats[0] == pytest.approx(t.first_token, abs=0.01)
    one = run(scheduler, job([9, 9], n=1))[1].timings
    assert one.decode_tps == 0.0


def test_a_scheduler_that_never_started_can_be_closed():  # F303
    calls = []
    scheduler = Scheduler(lambda: calls.append(1))
    scheduler.close()
    scheduler.start()
    with pytest.raises(NotLoadedError):
        scheduler.ready.result(timeout=5)
    assert calls == []


def test_rows_before_the_first_collected_one_may_come_from_the_cache(start):
    scheduler, forward = start(n_ctx=200)
    prompt = [2 + i % 40 for i in range(60)]
    rows = {}

    def collect(first, logits):
        rows.update({first + i: row.copy() for i, row in enumerate(logits)})

    def one(ids, first):
        rows.clear()
        before = forward.rows
        job = Job(tuple(ids), collect=collect, collect_from=first)
        finish = list(scheduler.submit(job))[-1]
        return finish.usage.cached, forward.rows - before

    assert one(prompt, 59) == (0, 60)
    assert list(rows) == [59]
    assert one([*prompt, 5, 6], 59) == (59, 3)
    assert sorted(rows) == [59, 60, 61]
    for position, row in rows.items():
        np.testing.assert_array_equal(row, forward.logits([*prompt, 5, 6][: position + 1]))


def test_requests_that_wait_for_a_beginning_get_it_when_its_request_has_ended(start):
    scheduler, forward = start(max_rows=8, n_slots=4, n_ctx=80)
    beginning = tuple(2 + i % 40 for i in range(45))  # its last step takes the tail too
    seen = {}

    def job(tail):
        def collect(first, logits):
            for i, row in enumerate(logits):
                seen[(*beginning, *tail)[: first + i + 1]] = row.copy()

        return Job((*beginning, *tail), collect=collect, collect_from=len(beginning))

    def submit_all():
        return [scheduler.submit(job((30 + i,))) for i in range(4)]

    for generation in scheduler.call(submit_all):  # none of them begins before all are there
        list(generation)
    assert forward.rows == len(beginning) + 4
    for ids, row in seen.items():
        np.testing.assert_array_equal(row, forward.logits(list(ids)))
    assert len(seen) == 4
