"""Requests that share steps: who gets rows, slots and the cache, and that nobody's tokens change.

First with a forward pass that notices every wrong position (fakes.py), where time and failures can
be set; then with real engines, where what each step evaluated is recorded.
"""

import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from support.fakes import greedy, job
from support.toy import toy_gguf

import llm_magic
from llm_magic.engine.serving import runner, switch_interval
from llm_magic.engine.serving.generation import RUN_AHEAD, Channel
from llm_magic.engine.serving.job import PARK_SECONDS, Job
from llm_magic.engine.serving.planner import ALONE, FIRST_CHUNK, STEP_SECONDS
from llm_magic.engine.serving.runner import HOLD_SECONDS
from llm_magic.errors import EngineError, NotLoadedError
from llm_magic.events import Finish, Prefill, Queued, Token


def tokens_of(generation):
    return [item.id for item in generation if isinstance(item, Token)]


def until(condition, seconds=5.0):
    """Wait for a condition; fails when it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


# ----------------------------------------------------------------------------- rows


def test_a_step_wants_no_more_logits_than_it_may(start):
    scheduler, forward = start(n_ctx=512, n_slots=4, max_rows=64)
    forward.max_wanted = 5  # the fake refuses more
    found = {7: {}, 8: {}}

    def collector(token):
        def collect(at, logits):
            found[token].update({at + i: row.copy() for i, row in enumerate(logits)})

        return collect

    runs = [scheduler.submit(job([3, 4], n=100))]
    runs += [scheduler.submit(Job((t,) * 90, collect=collector(t))) for t in found]
    runs += [scheduler.submit(job([9] * 200, n=3))]
    assert tokens_of(runs[3]) == greedy(forward, [9] * 200, 3)
    for run in runs[1:3]:
        list(run)
    for token, rows in found.items():
        assert sorted(rows) == list(range(90))
        for i, row in rows.items():
            np.testing.assert_array_equal(row, forward.logits([token] * (i + 1)))
    assert tokens_of(runs[0]) == greedy(forward, [3, 4], 100)


def test_the_first_step_of_an_unknown_model_is_short(start):
    scheduler, forward = start(n_ctx=4096, max_rows=512)
    list(scheduler.submit(job([5] * 2000, n=1)))
    assert forward.batches[0] == [(forward.batches[0][0][0], FIRST_CHUNK)]
    assert max(count for batch in forward.batches for _, count in batch) > 2 * FIRST_CHUNK


def test_steps_of_a_slow_model_shrink_to_the_time_that_was_aimed_at(start):
    scheduler, forward = start(n_ctx=4096, max_rows=512, delay=0.004)

    def settled(first):
        """Seconds of the steps from number `first` on."""
        until(lambda: len(forward.batches) >= first + 4)
        batches = forward.batches[first : first + 4]
        return [0.004 * sum(count for _, count in batch) for batch in batches]

    out = scheduler.submit(job([5] * 4000, n=1))
    alone = settled(4)  # nobody waits for these steps
    assert max(alone) <= 1.5 * ALONE * STEP_SECONDS
    assert min(alone) > STEP_SECONDS
    other = scheduler.submit(job([6] * 4000, n=1))
    until(lambda: any(len(batch) == 2 for batch in forward.batches))
    beside = settled(len(forward.batches) + 2)
    assert max(beside) <= 1.5 * STEP_SECONDS
    assert min(beside) >= 8 * 0.004
    for run in (out, other):
        run.cancel()
        list(run)


def test_a_short_answer_does_not_make_long_prompts_slow(start):
    scheduler, forward = start(n_ctx=4096, max_rows=512)
    list(scheduler.submit(job([5] * 3000, n=1)))
    list(scheduler.submit(job([6] * 10, n=20)))  # ten rows are as slow as a hundred on real weights
    before = len(forward.batches)
    list(scheduler.submit(job([7] * 3000, n=1)))
    assert forward.batches[before][0][1] > FIRST_CHUNK


def test_a_crowd_of_streams_does_not_starve_a_prompt(start):
    # Steps so slow that the rows of the streams alone fill the time.
    scheduler, forward = start(n_ctx=256, n_slots=14, max_rows=64, delay=0.01)
    stop = threading.Event()

    def chatter(seed):
        with suppress(NotLoadedError):
            while not stop.is_set():
                tokens_of(scheduler.submit(job([3, seed], n=200)))

    threads = [threading.Thread(target=chatter, args=(s,)) for s in range(10, 22)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: scheduler.running == 12)
        before = forward.steps
        assert tokens_of(scheduler.submit(job([5] * 60, n=1))) == greedy(forward, [5] * 60, 1)
        assert forward.steps - before <= 60 / 8 + 3
    finally:
        stop.set()
        scheduler.close()
        for thread in threads:
            thread.join()


# ----------------------------------------------------------------------------- slots


def test_a_reader_that_pauses_briefly_keeps_its_slot(start):
    scheduler, forward = start(n_slots=1)
    first = scheduler.submit(job([3, 4, 5], n=12))
    second = scheduler.submit(job([6, 7]))
    said = []
    for item in first:
        if isinstance(item, Token):
            said.append(item.id)
            if len(said) == 3:
                time.sleep(PARK_SECONDS / 4)
    assert said == greedy(forward, [3, 4, 5], 12)
    assert tokens_of(second) == greedy(forward, [6, 7], 5)
    assert forward.rows == 3 + 11 + 2 + 4  # nothing was evaluated twice


def test_a_reader_that_is_gone_for_long_gives_its_slot_away_and_gets_it_back(start):
    scheduler, forward = start(n_slots=1)
    first = scheduler.submit(job([3, 4, 5], n=12))
    began = time.monotonic()
    assert tokens_of(scheduler.submit(job([6, 7]))) == greedy(forward, [6, 7], 5)
    assert time.monotonic() - began >= 0.8 * PARK_SECONDS
    assert scheduler.running == 1
    assert tokens_of(first) == greedy(forward, [3, 4, 5], 12)


def test_who_was_parked_comes_before_who_never_ran(start):
    scheduler, _ = start(n_slots=1, delay=0.002)
    parked = scheduler.submit(job([3, 4, 5], n=30))
    tokens_of(scheduler.submit(job([6, 7])))  # takes the slot
    ended = []

    def read(name, generation):
        tokens_of(generation)
        ended.append(name)

    running = scheduler.submit(job([8, 9], n=30))
    reader = threading.Thread(target=read, args=("running", running))
    reader.start()
    until(lambda: scheduler.running == 2)
    waiting = scheduler.submit(job([10, 11], n=30))
    threads = [threading.Thread(target=read, args=("parked", parked)),
               threading.Thread(target=read, args=("waiting", waiting))]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in [reader, *threads]:
        thread.join()
    assert ended == ["running", "parked", "waiting"]


def test_waiting_for_a_slot_or_a_reader_takes_no_cpu(start):
    scheduler, _ = start(n_slots=1)
    unread = [scheduler.submit(job([3, i], n=20)) for i in (10, 11)]
    time.sleep(PARK_SECONDS + 0.1)  # by now the first is parked and the second is unread
    spent = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - spent < 0.1
    for generation in unread:
        generation.close()


def test_a_request_that_nobody_holds_is_cancelled(start):
    scheduler, forward = start(n_slots=1)
    scheduler.submit(job([3, 4, 5], n=50))  # an interrupt struck before its stream had a name
    scheduler.call(lambda: None)  # it has begun
    until(lambda: scheduler.running == 0)
    assert forward.rows <= 3 + RUN_AHEAD
    assert tokens_of(scheduler.submit(job([6, 7]))) == greedy(forward, [6, 7], 5)


def test_an_end_that_an_interrupt_took_away_comes_again(start):
    scheduler, _ = start()
    out = scheduler.submit(job([3, 4, 5], n=2))
    until(lambda: out._channel.end is not None)
    while not out._channel.items.empty():
        out._channel.items.get()
    (finish,) = list(out)
    assert isinstance(finish, Finish)
    assert finish.reason == "length"


def test_a_queued_request_can_be_cancelled(start):
    scheduler, forward = start(n_slots=1, delay=0.005)
    first = scheduler.submit(job([3], n=60))
    reader = threading.Thread(target=lambda: list(first))
    reader.start()
    queued = [scheduler.submit(job([4, i], n=60)) for i in range(10, 15)]
    until(lambda: scheduler.queued == 5)
    assert isinstance(next(queued[0]), Queued)
    for generation in queued:
        generation.cancel("interrupted")
    for generation in queued:
        end = list(generation)[-1]
        assert (end.reason, end.usage.completion) == ("interrupted", 0)
    assert scheduler.queued == 0
    first.cancel()
    reader.join()
    assert all(4 not in slot[:1] for slot in forward.kv)  # they never ran


# ----------------------------------------------------------------------------- common beginnings


def at_once(scheduler, jobs):
    """Submit before the owner can begin with any, and read all: (tokens, Finish) of each."""
    gate = threading.Event()
    threading.Thread(target=scheduler.call, args=(gate.wait,)).start()
    streams = [scheduler.submit(j) for j in jobs]
    gate.set()
    found = [None] * len(streams)

    def read(i):
        items = list(streams[i])
        found[i] = [t.id for t in items if isinstance(t, Token)], items[-1], items

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_several_answers_to_one_prompt_evaluate_it_once(start):
    scheduler, forward = start(n_ctx=256, max_rows=16)
    prompt = [3 + i % 40 for i in range(100)]
    found = at_once(scheduler, [job(prompt)] * 4)
    assert all(ids == greedy(forward, prompt, 5) for ids, _, _ in found)
    assert forward.rows == 100 + 3 + 4 * 4  # each evaluates the last token itself
    assert sorted(finish.usage.cached for _, finish, _ in found) == [0, 99, 99, 99]
    for _, finish, items in found:
        fills = [i for i in items if isinstance(i, Prefill)]
        assert fills[-1] == Prefill(100, 100, finish.usage.cached)
        assert [f.done for f in fills] == sorted(f.done for f in fills)
    assert scheduler.slots.hits == 3 * 99
    assert scheduler.slots.misses == 100 + 3


def test_a_common_beginning_is_evaluated_once_and_the_rest_by_each(start):
    scheduler, forward = start(n_ctx=256, max_rows=16)
    base = [3 + i % 40 for i in range(60)]
    prompts = [[*base, 45, 46, 47], [*base[:40], *[48] * 30], [9] * 20, base[:20]]
    found = at_once(scheduler, [job(p) for p in prompts])
    for prompt, (ids, _, _) in zip(prompts, found, strict=True):
        assert ids == greedy(forward, prompt, 5)
    evaluated = 63 + 30 + 20 + 1
    assert forward.rows == evaluated + 4 * 4


def test_who_asks_for_a_cold_start_gets_one_and_short_beginnings_are_not_waited_for(start):
    scheduler, forward = start(n_ctx=256, max_rows=16)
    prompt = [3 + i % 40 for i in range(50)]
    found = at_once(scheduler, [job(prompt), job(prompt, reuse=False), job([*prompt[:10], 47])])
    assert [finish.usage.cached for _, finish, _ in found] == [0, 0, 0]
    assert forward.rows == 50 + 50 + 11 + 3 * 4


def test_followers_go_on_alone_when_their_leader_is_cancelled(start):
    scheduler, forward = start(n_ctx=1024, max_rows=8, delay=0.001)
    prompt = [3 + i % 40 for i in range(600)]
    leader = scheduler.submit(job(prompt))
    until(lambda: forward.steps > 3)
    follower = scheduler.submit(job(prompt))
    until(lambda: forward.steps > 10)
    leader.cancel()
    assert list(leader)[-1].reason == "cancelled"
    assert tokens_of(follower) == greedy(forward, prompt, 5)
    assert forward.rows < 700


def test_a_follower_whose_copy_fails_fails_alone(start):
    scheduler, forward = start(n_ctx=256, max_rows=16)
    prompt = [3 + i % 40 for i in range(100)]

    def fail(source, target, n):
        raise MemoryError("no copy")

    copy, scheduler.slots._copy = scheduler.slots._copy, fail
    gate = threading.Event()
    threading.Thread(target=scheduler.call, args=(gate.wait,)).start()
    streams = [scheduler.submit(job(prompt)) for _ in range(2)]
    gate.set()
    assert tokens_of(streams[0]) == greedy(forward, prompt, 5)
    with pytest.raises(EngineError, match="no copy"):
        list(streams[1])
    scheduler.slots._copy = copy
    assert tokens_of(scheduler.submit(job(prompt))) == greedy(forward, prompt, 5)


# ----------------------------------------------------------------------------- handing over


def test_tokens_of_slow_steps_are_handed_over_one_by_one(start):
    scheduler, forward = start(delay=3 * HOLD_SECONDS)
    seen = []
    for item in scheduler.submit(job([3, 4, 5], n=12)):
        if isinstance(item, Token):
            seen.append(forward.steps)
    assert all(steps <= i + 2 for i, steps in enumerate(seen))  # at most the next step has begun


def test_tokens_of_brief_steps_wait_for_one_more_and_never_past_the_end(start, monkeypatch):
    monkeypatch.setattr(runner, "HOLD_SECONDS", 60.0)
    scheduler, _ = start()
    handed = []
    flush = Channel.flush

    def noted(channel, now):
        if channel.held:
            handed.append(len(channel.held))
        flush(channel, now)

    monkeypatch.setattr(Channel, "flush", noted)
    assert len(tokens_of(scheduler.submit(job([3, 4, 5], n=8)))) == 8
    assert handed == [1, 2, 2, 2, 1]  # the first at once, the last with the end


# ----------------------------------------------------------------------------- failures


def test_a_collector_that_fails_fails_its_own_request_only(start):
    scheduler, forward = start(delay=0.001)
    other = scheduler.submit(job([3, 4, 5], n=30))
    said = []
    reader = threading.Thread(target=lambda: said.extend(tokens_of(other)))
    reader.start()

    def collect(first, logits):
        raise ValueError("no room for logits")

    with pytest.raises(EngineError, match="no room for logits"):
        list(scheduler.submit(Job((6, 7, 8), collect=collect)))
    reader.join()
    assert said == greedy(forward, [3, 4, 5], 30)


def test_a_copy_that_fails_leaves_no_slot_that_lies(start):
    scheduler, forward = start(n_slots=2)
    long = [3 + i % 40 for i in range(40)]
    tokens_of(scheduler.submit(job([9, 8, 7, 6])))
    tokens_of(scheduler.submit(job(long)))
    copy = forward.copy

    def half(source, target, n):
        copy(source, target, n // 2)
        raise MemoryError("half way")

    scheduler.slots._copy = half
    branch = [*long[:10], 44]
    with pytest.raises(EngineError, match="half way"):
        list(scheduler.submit(job(branch)))
    assert scheduler.running == 0
    scheduler.slots._copy = copy
    for prompt in (branch, [9, 8, 7, 6], long):
        assert tokens_of(scheduler.submit(job(prompt))) == greedy(forward, prompt, 5)


# ----------------------------------------------------------------------------- real engines


class Steps:
    """Notes what every step of an engine evaluates: {slot: rows} and how long it took."""

    def __init__(self, llm):
        self.forward = llm.provider.engine.loaded().forward
        self._step, self.of, self.seconds = self.forward.step, [], []

    def __enter__(self):
        def step(tokens, slots, positions, want, *top):
            began = time.perf_counter()
            out = self._step(tokens, slots, positions, want, *top)
            self.seconds.append(time.perf_counter() - began)
            found, counts = np.unique(slots, return_counts=True)
            self.of.append(dict(zip(found.tolist(), counts.tolist(), strict=True)))
            return out

        self.forward.step = step
        return self

    def __exit__(self, *exc):
        del self.forward.step

    @property
    def rows(self):
        return sum(sum(step.values()) for step in self.of)


@pytest.fixture(scope="module", params=["toy", pytest.param("smollm2", marks=pytest.mark.model)])
def llm(request, tmp_path_factory):
    name = request.param
    if name == "toy":
        path = tmp_path_factory.mktemp("toy") / "toy.gguf"
        name = str(toy_gguf(path, ctx=512, types="Q8_0", dim=64, ff=128))
    model = llm_magic.load(name)
    yield model
    model.unload()


def random_ids(llm, n, seed):
    rng = np.random.default_rng(seed)
    most = min(30000, llm.provider.engine.loaded().config.n_tokens)
    return tuple(rng.integers(most // 10, most, n).tolist())


# TG-88
def test_batched_rows_give_the_same_tokens_and_logprobs_as_single_ones(llm):
    prompts = [random_ids(llm, n, n) for n in (1, 7, 33, 90)]
    alone = [llm.complete(ids, max_tokens=24, logprobs=2, reuse=False) for ids in prompts]
    streams = [llm.stream(ids, max_tokens=24, logprobs=2, reuse=False) for ids in prompts]
    with Steps(llm) as steps:
        threads = [threading.Thread(target=list, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert max(len(step) for step in steps.of) == 4  # they did share steps
    for one, stream in zip(alone, streams, strict=True):
        together = stream.reply
        assert [t.id for t in together.tokens] == [t.id for t in one.tokens]
        assert [t.logprob for t in together.tokens] == [t.logprob for t in one.tokens]
        assert [t.top for t in together.tokens] == [t.top for t in one.tokens]


@pytest.mark.parametrize("neighbour", ["many alternatives", "score"])
def test_neighbours_change_no_bit_of_a_logprob(llm, neighbour):
    texts = [f"number {i} of" for i in range(12)]
    alone = [llm.complete(t, max_tokens=6, logprobs=2, temperature=0, reuse=False) for t in texts]
    stop = threading.Event()

    def work():
        while not stop.is_set():
            if neighbour == "score":
                llm.score("the cat in the world and the cat " * 6)
            else:
                llm.complete("hello", max_tokens=40, logprobs=25, reuse=False)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for text, expected in zip(texts, alone, strict=True):
            reply = llm.complete(text, max_tokens=6, logprobs=2, temperature=0, reuse=False)
            said = [(t.id, t.logprob, t.top) for t in reply.tokens]
            assert said == [(t.id, t.logprob, t.top) for t in expected.tokens]
    finally:
        stop.set()
        thread.join()


# B093, B094
def test_a_cached_prefix_says_the_same_as_a_cold_start(llm):  # LC-7
    base = random_ids(llm, 150, 1)
    for cut in (1, 2, 31, 32, 33, 63, 64, 65, 149, 150):
        llm.complete(base, max_tokens=1)
        ids = (*base[:cut], *random_ids(llm, 5, cut))
        warm = llm.complete(ids, max_tokens=12, logprobs=1)
        cold = llm.complete(ids, max_tokens=12, logprobs=1, reuse=False)
        assert warm.usage.cached >= cut
        assert cold.usage.cached == 0
        assert [(t.id, t.logprob) for t in warm.tokens] == [(t.id, t.logprob) for t in cold.tokens]


# B092
def test_a_cell_run_twice_evaluates_one_token_of_its_prompt(llm):
    ids = random_ids(llm, 60, 2)
    first = llm.complete(ids, max_tokens=10)
    with Steps(llm) as steps:
        again = llm.complete(ids, max_tokens=10)
    assert again.text == first.text
    assert again.usage.cached == 59
    assert steps.rows == 10  # the prompt's last token, and nine that were drawn


def test_a_second_turn_evaluates_the_new_turn_only(llm):
    question = {"role": "user", "content": "Hello the world and the cat"}
    first = llm.chat([question], max_tokens=12, temperature=0)
    before = first.usage.prompt
    answer = {"role": "assistant", "content": first.text}
    follow = [question, answer, {"role": "user", "content": "and once upon a time?"}]
    with Steps(llm) as steps:
        second = llm.chat(follow, max_tokens=1, temperature=0)
    new = second.usage.prompt - before - first.usage.completion
    # What was said may be cut into other tokens when it comes back as text: at most that again.
    assert second.usage.cached >= before
    if second.usage.cached >= before + first.usage.completion - 1:
        assert steps.rows <= new + 1
    cold = llm.chat(follow, max_tokens=1, temperature=0, reuse=False)
    assert cold.text == second.text


def test_requests_beyond_the_slots_wait_park_and_say_the_same(llm):
    prompts = [random_ids(llm, 20 + n, 50 + n) for n in range(9)]
    alone = [llm.complete(ids, max_tokens=10).text for ids in prompts]
    streams = [llm.stream(ids, max_tokens=10) for ids in prompts]  # four slots, nobody reads
    time.sleep(PARK_SECONDS)
    for stream, text in zip(reversed(streams), reversed(alone), strict=True):
        list(stream)
        assert stream.reply.text == text


def test_answers_to_one_prompt_at_once_are_those_of_a_cold_engine(llm):
    ids = random_ids(llm, 150, 77)
    cold = llm.complete(ids, max_tokens=10, logprobs=2, reuse=False)
    llm.complete(random_ids(llm, 150, 78), max_tokens=1)
    streams = [llm.stream((*ids, i), max_tokens=10) for i in (40, 41, 42)]
    streams.append(llm.stream(ids, max_tokens=10, logprobs=2))
    for stream in streams:
        list(stream)
    said = streams[-1].reply
    assert [(t.id, t.logprob, t.top) for t in said.tokens] == [
        (t.id, t.logprob, t.top) for t in cold.tokens
    ]
    for i, stream in zip((40, 41, 42), streams, strict=False):
        alone = llm.complete((*ids, i), max_tokens=10, reuse=False)
        assert [t.id for t in stream.reply.tokens] == [t.id for t in alone.tokens]


# LC-72
def test_the_cache_keeps_within_its_bytes_and_gives_memory_back(tmp_path):
    path = toy_gguf(tmp_path / "toy.gguf", ctx=4096, types="Q8_0", layers=4, dim=256, ff=256)
    llm = llm_magic.load(str(path), ctx=4096, cache_mb=1)
    try:
        forward = llm.provider.engine.loaded().forward
        room = 1_000_000 // forward.position_bytes
        assert 200 < room < 1500  # of the four slots' 16,384
        empty = forward.memory_bytes
        prompts = [random_ids(llm, room // 2 - 10, i) for i in range(3)]
        cold = [llm.complete(ids, max_tokens=5, reuse=False).text for ids in prompts]
        long = llm.complete(random_ids(llm, 2 * room, 9), max_tokens=5)
        assert long.usage.completion == 5
        assert llm.status().cached_tokens == 0  # more than may stay
        assert forward.memory_bytes == empty
        for ids, text in zip(prompts, cold, strict=True):
            assert llm.complete(ids, max_tokens=5).text == text
        assert llm.status().cached_tokens <= room
        assert forward.memory_bytes - empty <= 1.2e6  # whole blocks of positions
        kept = llm.complete(prompts[2], max_tokens=5)
        assert (kept.usage.cached, kept.text) == (len(prompts[2]) - 1, cold[2])
        gone = llm.complete(prompts[0], max_tokens=5)
        assert (gone.usage.cached < 5, gone.text) == (True, cold[0])
        assert llm_magic.load(str(path), cache_mb=50) is llm
        for ids in prompts:
            llm.complete(ids, max_tokens=5)
        assert llm.complete(prompts[0], max_tokens=1).usage.cached == len(prompts[0]) - 1
    finally:
        llm.unload()


@pytest.mark.model
@pytest.mark.slow
def test_running_streams_speak_at_every_step_of_a_long_prompt(smollm2_path):
    """Three streams run while 4,000 tokens are evaluated: no step without a token of each, and
    steps are as short as they are meant to be (in the machine's own time: others use it, too)."""
    llm = llm_magic.load(str(smollm2_path))
    long_answers = {"max_tokens": 3500, "min_tokens": 3500}
    streams = [llm.stream(random_ids(llm, 5, s), **long_answers) for s in range(3)]
    at = [[] for _ in streams]

    def read(stream, times):
        for event in stream:
            times.extend(time.perf_counter() for _ in getattr(event, "tokens", ()))

    threads = [threading.Thread(target=read, args=pair) for pair in zip(streams, at, strict=True)]
    for thread in threads:
        thread.start()
    until(lambda: all(len(times) > 5 for times in at))
    with Steps(llm) as steps:
        long = llm.stream(random_ids(llm, 4000, 9), max_tokens=1)
        events = list(long)
    assert isinstance(events[-1], Finish)
    filled = [e for e in events if isinstance(e, Prefill)]
    assert filled[-1].done == 4000
    for stream in streams:
        stream.cancel()
    for thread in threads:
        thread.join()
    llm.unload()
    during = [step for step in steps.of if max(step.values()) > 1]
    assert len(during) > 4
    crowded = [step for step in during if len(step) == 4]
    assert len(crowded) >= 0.9 * len(during)  # a reader may be late once
    # A step's length: what was aimed at, plus the disturbance that a single row sees as well.
    rest = sorted(steps.seconds)[len(steps.seconds) // 2]
    assert rest <= 2 * STEP_SECONDS or rest <= 3 * min(steps.seconds)
    gaps = [b - a for times in at for a, b in pairwise(times)]
    print(f"steps {len(during)}, median {rest * 1e3:.0f} ms, longest {max(steps.seconds) * 1e3:.0f}"
          f" ms; longest silence {max(gaps) * 1e3:.0f} ms")  # fmt: skip


# ----------------------------------------------------------------------------- turns of Python


@pytest.fixture
def interval():
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_while_tokens_are_made_and_as_before_when_idle(start, interval):
    one, _ = start(delay=0.002)
    other, _ = start(delay=0.002)
    seen = []
    first = one.submit(job([3, 4], n=60))
    second = other.submit(job([3, 4], n=10))
    for _ in zip(first, second, strict=False):
        seen.append(sys.getswitchinterval())
    assert switch_interval.SECONDS in [round(s, 6) for s in seen]
    list(second)
    until(lambda: other.running == 0)
    assert switch_interval.SECONDS in [
        round(sys.getswitchinterval(), 6) for _ in first
    ]  # one still works
    until(lambda: sys.getswitchinterval() == 0.005)
    unread = one.submit(job([3, 4], n=60))
    until(lambda: unread._channel.ahead)
    until(lambda: sys.getswitchinterval() == 0.005)  # nobody reads: nothing is made
    unread.close()


def test_turns_that_somebody_has_set_meanwhile_stay(start, interval):
    scheduler, _ = start(delay=0.002)
    stream = scheduler.submit(job([3, 4], n=20))
    until(lambda: round(sys.getswitchinterval(), 6) == switch_interval.SECONDS)
    sys.setswitchinterval(0.003)
    list(stream)
    until(lambda: scheduler.running == 0)
    time.sleep(0.05)
    assert sys.getswitchinterval() == 0.003
    scheduler.close()
    assert sys.getswitchinterval() == 0.003


def test_an_engine_that_is_closed_at_work_gives_its_turns_back(start, interval):
    scheduler, _ = start(delay=0.005)
    stream = scheduler.submit(job([3, 4], n=60))
    until(lambda: round(sys.getswitchinterval(), 6) == switch_interval.SECONDS)
    scheduler.close()
    assert sys.getswitchinterval() == 0.005
    with pytest.raises(NotLoadedError):
        list(stream)
