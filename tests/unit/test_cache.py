"""Which slot a request gets, and how much of it is kept."""

from llm_magic.engine.serving.slots import Slots
from llm_magic.prefix import common_prefix


def filled(*contents):
    copies = []
    slots = Slots(len(contents), lambda s, t, n: copies.append((s, t, n)))
    for slot, ids in zip(slots, contents, strict=True):
        slot.ids = list(ids)
        slots.touch(slot)
    return slots, copies


def test_the_common_prefix_of_ids_is_counted():
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    for a, b, n in (("", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("xbc", "abc", 0)):
        assert common_prefix(a, b) == n


# TG-80
def test_the_longest_match_wins_and_one_token_is_always_evaluated():
    slots, copies = filled([1, 2], [1, 2, 3, 4], [9], [])
    slot, n = slots.acquire([1, 2, 3, 4])
    assert (slot.index, n, slot.ids) == (1, 3, [1, 2, 3])
    assert copies == []


# LC-72
def test_without_a_match_the_least_recently_used_slot_goes():
    slots, _ = filled([1], [2], [3])
    slots.touch(next(iter(slots)))
    slot, n = slots.acquire([7, 8])
    assert (slot.index, n) == (1, 0)


def test_empty_slots_are_taken_before_used_ones():
    slots, _ = filled([1], [], [3])
    assert slots.acquire([7, 8])[0].index == 1


def test_a_short_shared_prefix_is_copied_and_does_not_wipe_out_a_long_conversation():
    long = list(range(100))
    slots, copies = filled(long, [], [3])
    slot, n = slots.acquire([0, 1, 2, 500, 501])
    assert (slot.index, n, slot.ids) == (1, 3, [0, 1, 2])
    assert copies == [(0, 1, 3)]
    assert next(iter(slots)).ids == long


def test_a_busy_slot_can_still_give_its_prefix():
    slots, copies = filled([1, 2, 3, 4], [])
    first, _ = slots.acquire([1, 2, 3, 4, 5])
    second, n = slots.acquire([1, 2, 3, 9])
    assert first.index == 0
    assert (second.index, n, copies) == (1, 3, [(0, 1, 3)])


def test_reuse_can_be_switched_off_and_all_busy_gives_none():
    slots, _ = filled([1, 2, 3])
    slot, n = slots.acquire([1, 2, 3, 4], 0)
    assert (n, slot.ids) == (0, [])
    assert slots.acquire([1]) is None
    slots.release(slot)
    assert slots.acquire([1]) is not None


def test_statistics_count_hits_and_misses():
    slots, _ = filled([1, 2, 3])
    slots.acquire([1, 2, 3, 4, 5])
    assert (slots.hits, slots.misses, slots.free) == (3, 2, 0)


# LC-72
def test_slots_that_nobody_uses_keep_within_their_budget_oldest_first():
    forgotten = []
    slots = Slots(4, lambda s, t, n: None, forgotten.append, budget=25)
    taken = [slots.acquire(list(range(i, i + 11)))[0] for i in (100, 200, 300)]
    for slot in taken:
        slots.advance(slot, list(range(10)))
    slots.release(taken[1])
    slots.release(taken[0])
    assert forgotten == []  # 20 of 25
    slots.release(taken[2])
    assert forgotten == [taken[1].index]
    assert [len(slot.ids) for slot in taken] == [10, 0, 10]


def test_a_slot_in_use_is_not_forgotten_and_one_beyond_the_budget_is():
    forgotten = []
    slots = Slots(2, lambda s, t, n: None, forgotten.append, budget=5)
    busy, _ = slots.acquire([1] * 20)
    slots.advance(busy, [1] * 20)
    short, _ = slots.acquire([2] * 3)
    slots.advance(short, [2] * 3)
    slots.release(short)
    assert (forgotten, len(busy.ids)) == ([], 20)
    slots.release(busy)
    assert forgotten == [short.index, busy.index]
    assert slots.cached_tokens == 0


def test_a_budget_grows_and_never_shrinks():
    slots = Slots(1, lambda s, t, n: None, budget=5)
    slots.allow(3)
    slot, _ = slots.acquire([1] * 5)
    slots.advance(slot, [1] * 5)
    slots.release(slot)
    assert slots.cached_tokens == 5
    slots.allow(None)
    slot, _ = slots.acquire([1] * 50)
    slots.advance(slot, [1] * 45)
    slots.release(slot)
    assert slots.cached_tokens == 50
    slots.allow(1)  # there was no limit: it stays so
    assert slots.acquire([1] * 50)[1] == 49
