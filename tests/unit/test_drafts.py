"""Guesses at the next tokens: where they come from, how they are judged, how many are checked."""

import pytest

from llm_magic.engine.serving.speculation import Costs, Draft, Drafts, share


def test_a_guess_is_what_followed_the_same_pair():
    drafts = Drafts([1, 2, 3, 4, 5, 1, 2])
    assert drafts.guess(3) == Draft((3, 4, 5), 0.5)
    assert drafts.guess(3) is None  # nothing new was said: no second guess of the same
    assert Drafts([1, 2, 3, 4, 5]).guess(3) is None
    assert Drafts([1]).guess(3) is None


def test_the_latest_occurrence_counts():
    assert Drafts([1, 2, 3, 1, 2, 4, 1, 2]).guess(1) == Draft((4,), 0.5)


@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_what_repeats_is_continued_beyond_the_end(period):
    ids = (list(range(10, 10 + period)) * 6)[: 4 * period + 1]
    draft = Drafts(ids).guess(7)
    assert draft is not None
    assert draft.ids == tuple(10 + (len(ids) + i) % period for i in range(7))


def test_ids_that_came_several_at_once_are_known():
    ids = [5, 6, 7]
    drafts = Drafts(ids)
    assert drafts.guess(1) is None
    ids += [8, 9, 8, 9]
    assert drafts.guess(2) == Draft((8, 9), 0.5)


def test_a_longer_agreement_is_judged_apart():
    """Where pairs say nothing but long quotations are true, only the latter become likely."""
    drafts = Drafts(ids := [])
    long = list(range(100, 120))
    for round_ in range(12):
        ids += [2000 + round_, 1, 2]
        drafts.guess(1)  # after 1, 2 something new follows every time
        ids += [1000 + round_]
        for id_ in long:
            ids.append(id_)
            drafts.guess(1)
    ids += [8, 1, 2]
    short = drafts.guess(1)
    ids += [7, *long[:12]]
    quoted = drafts.guess(1)
    assert short is not None
    assert quoted is not None
    assert short.likely < 0.6
    assert quoted.likely > 0.9
    assert quoted.ids == (long[12],)


def test_a_wrong_guess_makes_the_next_less_likely_and_old_ones_are_forgotten():
    ids = [1, 2, 3, 1, 2]
    drafts = Drafts(ids)
    seen = []
    for follow in [4] * 3 + [4] * 40:
        draft = drafts.guess(1)
        assert draft is not None
        seen.append(draft.likely)
        ids += [follow, 1, 2]
    assert seen[1] < seen[0]  # 3 was guessed, 4 came
    assert seen[-1] > 0.9


def test_rows_are_checked_while_they_pay():
    sure, even, none = Draft((1, 2, 3), 0.95), Draft((1, 2, 3), 0.5), Draft((1, 2, 3), 0.1)
    assert share([sure], 3, 0.2) == [3]
    assert share([sure], 2, 0.2) == [2]
    assert share([even], 3, 0.2) == [1]  # 0.25 more tokens for 0.2 of a step is less than 1.5 / 1.2
    assert share([none], 3, 0.2) == [0]
    assert share([None, sure], 3, 0.2) == [0, 3]
    assert share([sure], 3, 1.0) == [0]  # where a row costs a step, nothing is won
    # Four streams already use the step well: only what is nearly certain pays.
    assert share([even, even, even, sure], 3, 0.2) == [0, 0, 0, 3]
    assert share([], 3, 0.2) == []


def test_what_a_row_costs_is_learned_from_steps():
    costs = Costs()
    costs.learn(4, 1.0)  # says nothing yet
    assert costs.row == Costs.GUESS
    for _ in range(60):
        costs.learn(1, 0.002)
        costs.learn(3, 0.0032)
    assert costs.row == pytest.approx(0.3, abs=0.01)
    costs.learn(1, 1.0)  # a step that waited
    for _ in range(60):
        costs.learn(1, 0.002)
        costs.learn(2, 0.002)
    assert costs.row < 0.05
