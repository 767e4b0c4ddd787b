"""Taps of requests: the rows of a step that they mean, and caches that edits keep apart."""

import contextlib

import numpy as np
from support.fakes import fake_scheduler

from llm_magic.engine.serving.job import Job
from llm_magic.engine.serving.slots import Slots
from llm_magic.engine.serving.taps import Edit, JobTaps, Watch
from llm_magic.events import Sampling, Token

IDS = tuple(range(10, 30))
GREEDY = Sampling(temperature=0.0, max_tokens=6)


def edit(value, start=0, stop=None):
    return Edit("resid_post", 0, start, stop, np.full((1, 2), value, np.float32), True)


def answer(scheduler, ids=IDS, **options):
    job = Job(ids, GREEDY, **options)
    return [item.id for item in scheduler.submit(job) if isinstance(item, Token)]


def test_the_taps_of_a_step_are_the_part_of_its_positions():
    out = np.zeros((10, 2), np.float32)
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    taps = JobTaps(
        (Watch("q", 1, 5, out),),
        (Edit("z", 0, 6, 10, values, False), edit(1.0, 8)),
    )
    step = taps.of_step(row=100, position=7, n=4)  # positions 7 .. 10
    (read,) = step.reads
    assert (read.point, read.layer, read.first, len(read.out)) == ("q", 1, 100, 4)
    read.out[:] = 1
    np.testing.assert_array_equal(out.any(1).nonzero()[0], [2, 3, 4, 5])
    rows, rest = step.changes
    assert (rows.first, rows.rows) == (100, 3)
    np.testing.assert_array_equal(rows.values, values[1:])
    assert (rest.first, rest.rows, len(rest.values)) == (101, 3, 1)
    assert taps.of_step(0, 0, 5).reads == taps.of_step(0, 0, 5).changes == ()
    assert taps.first == 5


def test_slots_match_only_under_the_same_key():
    slots = Slots(2, lambda source, target, n: None)
    slot, _ = slots.acquire([1, 2, 3, 4], key=b"edited")
    slots.advance(slot, [1, 2, 3, 4])
    slots.release(slot)
    other, n = slots.acquire([1, 2, 3, 4])
    assert (other.index, n) == (1, 0)
    again, n = slots.acquire([1, 2, 3, 4], key=b"edited")
    assert (again.index, n) == (0, 3)
    slots.release(again)
    slots.advance(again, [4])
    assert slots.longest([1, 2, 3, 4], 4) == (None, 0)
    assert slots.longest([1, 2, 3, 4], 4, b"edited") == (again, 4)


def test_an_edited_request_shares_no_cache_with_others():
    """Neither a cached beginning nor that of a request that runs at the same time."""
    scheduler, _ = fake_scheduler()
    with contextlib.closing(scheduler):
        plain = answer(scheduler)
        edited = answer(scheduler, taps=JobTaps(edits=(edit(1.0),), key=b"1"))
        assert edited != plain
        assert answer(scheduler) == plain
        jobs = [
            Job(IDS, GREEDY, taps=JobTaps(edits=(edit(v),), key=bytes([int(v)])) if v else None)
            for v in (0.0, 1.0, 2.0, 1.0)
        ]
        streams = [scheduler.submit(job) for job in jobs]
        found = [[item.id for item in s if isinstance(item, Token)] for s in streams]
        assert found[:2] == [plain, edited]
        assert found[3] == edited
        assert found[2] not in (plain, edited)


def test_what_is_recorded_is_evaluated_though_it_is_cached():
    scheduler, _ = fake_scheduler()
    with contextlib.closing(scheduler):
        plain = answer(scheduler)
        out = np.full((len(IDS) + 6, 2), np.nan, np.float32)
        watch = JobTaps((Watch("resid_post", 0, 3, out[3:]),))
        assert answer(scheduler, taps=watch) == plain
        said = (*IDS, *plain)[3:-1]  # the last token is drawn and never evaluated
        np.testing.assert_array_equal(out[3:-1, 0], said)
        np.testing.assert_array_equal(out[3:-1, 1], np.arange(3, len(out) - 1))
        assert np.isnan(out[:3]).all()


def test_a_request_without_logits_only_records():
    scheduler, _ = fake_scheduler()
    with contextlib.closing(scheduler):
        out = np.zeros((len(IDS), 2), np.float32)
        taps = JobTaps((Watch("resid_post", 0, 0, out),))
        job = Job(IDS, collect=lambda start, rows: None, collect_from=len(IDS), taps=taps)
        for _ in scheduler.submit(job):
            pass
        np.testing.assert_array_equal(out[:, 0], IDS)
