"""Sampling and logprobs: group (f) of the cases, LC-30..45."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_magic.arguments import build_request
from llm_magic.engine.serving.sampler import Sampler, Summary, log_sum_exp, top_ids
from llm_magic.errors import EngineError, RequestError
from llm_magic.events import Sampling
from llm_magic.sampling import check


def logits(*values):
    return np.array(values, np.float32)


def sampler(n=3, top=0, ends=(), guide=None, history=(), **settings):
    return Sampler(Sampling(**settings), n, frozenset(ends), history, guide, top)


def support(values, draws=1000, **settings):
    settings.setdefault("temperature", 1.0)
    s = sampler(len(values), seed=3, **settings)
    row = logits(*values)
    return {s.pick(row).id for _ in range(draws)}


RAW = [-0.4076, -1.4076, -2.4076]


# B073, LC-43
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"temperature": 0.5}, {"temperature": 1.0, "top_p": 0.1},
     {"temperature": 0.5, "top_k": 1}, {"temperature": -1.0}, {"mirostat": (5.0, 0.1)}],
)  # fmt: skip
def test_logprobs_are_of_the_raw_logits_whatever_the_sampler(settings):
    pick = sampler(top=3, seed=0, **settings).pick(logits(2, 1, 0))
    assert [lp for _, lp, _ in pick.top] == pytest.approx(RAW, abs=1e-4)
    assert pick.logprob == pytest.approx(RAW[pick.id], abs=1e-4)
    assert pick.rank == pick.id + 1


# B073
def test_the_temperature_view_differs_and_can_be_computed_from_the_raw_one():
    # log softmax(logits / T): what a label "after temperature" would show; ours is raw.
    scaled = logits(2, 1, 0) / 0.5
    assert scaled - log_sum_exp(scaled) == pytest.approx([-0.1429, -2.1429, -4.1429], abs=1e-4)


# B074
@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=50))
def test_logprobs_are_never_positive_and_sum_to_one(values):
    row = logits(*values)
    pick = sampler(len(values), top=len(values), temperature=0.0).pick(row)
    logprobs = [lp for _, lp, _ in pick.top]
    assert all(lp <= 0 for lp in logprobs)
    assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-4)
    assert logprobs == sorted(logprobs, reverse=True)  # LC-44
    assert pick.id == int(row.argmax())


# B076
def test_forbidden_candidates_are_marked_and_json_stays_valid():
    class OnlyToken2:
        def mask(self):
            return np.array([0b100], np.uint32)

        def accept(self, token):
            assert token == 2

    s = sampler(3, top=3, guide=OnlyToken2(), temperature=0.0)
    pick = s.pick(logits(2, 1, 0))
    s.accept(pick.id)
    assert pick.id == 2
    assert [ok for _, _, ok in pick.top] == [False, False, True]
    assert pick.masked == pytest.approx(math.exp(RAW[0]) + math.exp(RAW[1]), abs=1e-4)
    json.dumps([pick.top, pick.logprob, pick.masked], allow_nan=False)


# B076
def test_a_logit_of_minus_infinity_is_no_nan():
    pick = sampler(3, top=3, temperature=0.0).pick(logits(1, -np.inf, 0))
    assert pick.logprob == pytest.approx(-0.3133, abs=1e-4)
    assert pick.top[2][1] == -math.inf  # becomes None in a Token


def test_a_mask_that_allows_nothing_is_an_error():
    class Nothing:
        def mask(self):
            return np.zeros(1, np.uint32)

        def accept(self, token):
            raise AssertionError

    for settings in ({"temperature": 0.0}, {"seed": 1}, {"top_p": 0.9}, {"typical_p": 0.5},
                     {"min_p": 0.1}, {"top_k": 2}, {"mirostat": (5.0, 0.1)}):  # fmt: skip
        with pytest.raises(EngineError, match="allows no token"):
            sampler(3, guide=Nothing(), **{"temperature": 1.0} | settings).pick(logits(2, 1, 0))


@pytest.mark.parametrize("bias", [math.nan, math.inf, 1e300])
def test_a_bias_that_is_no_number_is_named(bias):
    with pytest.raises(RequestError, match=r"logit_bias of token 1 .* forbid"):
        check(Sampling(logit_bias=((1, bias),)))


def test_minus_infinity_forbids_a_token_and_so_does_what_is_almost_as_low():
    for low in (-math.inf, -1e300):
        assert support([9, 1, 0], logit_bias=((0, low),)) == {1, 2}


@pytest.mark.parametrize("settings", [{}, {"mirostat": (5.0, 0.1)}, {"top_p": 0.9}])
def test_the_most_extreme_temperatures_are_their_limits(settings):
    """Divided by them as they are, logits would be 0 / 0 and infinity times 0."""
    for cold in (5e-324, 1e-320, 1e-40, 1e-30):
        assert support([0, 1, 3], draws=50, temperature=cold, **settings) == {2}
    for hot in (1e30, 1e39, 1e300):
        assert support([0, 1, -math.inf], temperature=hot, top_k=2) == {0, 1}
        biased = {"logit_bias": ((2, -math.inf),), "temperature": hot}
        assert support([0, 1, 3], **biased) == {0, 1}


def test_sums_that_are_no_numbers_are_an_error_also_where_the_forward_pass_made_them():
    for lse in (math.nan, math.inf, -math.inf):
        for settings in ({"temperature": 0.0}, {"temperature": 1.0}):
            with pytest.raises(EngineError, match="NaN logits"):
                sampler(3, **settings).pick(logits(2, 1, 0), Summary(lse, (0, 1)))


# B079
@pytest.mark.parametrize(
    ("top_k", "wanted"),
    [(0, {0, 1, 2}), (-1, {0, 1, 2}), (1, {1}), (3, {0, 1, 2}), (10**6, {0, 1, 2})],
)
def test_top_k_keeps_the_k_most_likely(top_k, wanted):
    assert support([3, 5, 4], top_k=top_k) == wanted


# B079
def test_top_k_one_is_greedy_for_any_seed_and_temperature():
    for seed in range(20):
        assert sampler(3, temperature=9.0, top_k=1, seed=seed).pick(logits(0, 5, 1)).id == 1


# B080
def test_repeat_penalty_divides_positive_and_multiplies_negative_logits():
    s = sampler(2, history=(0, 1, 1), repeat_penalty=1.25, temperature=0.0)
    row = logits(2, -2)
    s._penalise(row)
    assert row == pytest.approx([1.6, -2.5])
    unchanged = logits(2, -2)
    sampler(2, history=(0, 1), repeat_penalty=1.0)._penalise(unchanged)
    assert unchanged == pytest.approx([2, -2])


# LC-31
def test_frequency_and_presence_penalties_and_their_window():
    row = logits(1, 1, 1)
    sampler(3, history=(0, 1, 1), frequency_penalty=0.5, presence_penalty=0.25)._penalise(row)
    assert row == pytest.approx([0.25, -0.25, 1])
    row = logits(1, 1, 1)
    sampler(3, history=(0, 1, 2), presence_penalty=1.0, repeat_last_n=1)._penalise(row)
    assert row == pytest.approx([1, 1, 0])
    row = logits(1, 1, 1)
    sampler(3, history=(0, 1, 2), presence_penalty=1.0, repeat_last_n=0)._penalise(row)
    assert row == pytest.approx([1, 1, 1])


def test_penalties_see_drawn_tokens():
    s = sampler(2, temperature=0.0, presence_penalty=3.0)
    row = logits(2, 1)
    first = s.pick(row)
    s.accept(first.id)
    assert (first.id, s.pick(row).id) == (0, 1)
    assert row == pytest.approx([2, 1])  # the caller's row is not changed


# B082, LC-31
@pytest.mark.parametrize("bias", [{"0": -100}, {0: -100}, [(0, -100)]])
def test_logit_bias_by_string_or_number(bias):
    request = build_request("x", Sampling(), {"logit_bias": bias})
    s = Sampler(request.sampling.over(Sampling(temperature=0.0)), 3)
    pick = s.pick(logits(5, 4, 0))
    assert pick.id == 1
    assert pick.logprob == pytest.approx(-1.3182, abs=1e-3)  # raw
    with pytest.raises(RequestError, match="token 7 is outside"):
        sampler(3, logit_bias=((7, 1.0),))


# LC-11
def test_min_tokens_suppress_end_tokens():
    s = sampler(3, ends=(0,), min_tokens=2, temperature=0.0)
    row = logits(5, 1, 0)
    for wanted in (1, 1, 0):
        pick = s.pick(row)
        assert pick.id == wanted
        s.accept(pick.id)


def test_top_p_and_min_p_and_typical():
    values = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert support(values, top_p=0.79) == {0, 1}
    assert support(values, top_p=0.81) == {0, 1, 2}
    assert support(values, top_p=0.0) == {0}
    assert support(values, min_p=0.2) == {0, 1, 2}
    assert support(values, min_p=1.0) == {0}
    # entropy 1.142 nats; distances 0.449, 0.062, 0.755, 1.854: the second token is the most typical
    assert support(values, typical_p=0.2) == {1}
    assert support(values, typical_p=0.7) == {0, 1}


def test_top_p_of_a_flat_distribution_keeps_enough():
    n = 500
    assert len(support([0.0] * n, draws=6000, top_p=0.5)) == pytest.approx(n / 2, rel=0.02)


# LC-32
def test_a_negative_temperature_leaves_the_distribution_alone():  # LAI-4
    values = [math.log(p) for p in (0.7, 0.2, 0.1)]
    s = sampler(3, temperature=-1.0, seed=5)
    counts = np.bincount([s.pick(logits(*values)).id for _ in range(6000)], minlength=3) / 6000
    assert counts == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


# LAI-4
def test_temperature_really_samples_with_the_right_weights():
    values = [math.log(p) for p in (0.7, 0.2, 0.1)]
    s = sampler(3, temperature=0.5, seed=5)
    counts = np.bincount([s.pick(logits(*values)).id for _ in range(6000)], minlength=3) / 6000
    assert counts == pytest.approx([0.907, 0.074, 0.019], abs=0.02)


# LAI-3
def test_an_explicit_zero_is_greedy_and_unset_is_not():
    assert sampler(temperature=0.0).plain
    chat = Sampling(temperature=0.7)
    assert Sampling(temperature=0.0).over(chat).temperature == 0.0
    assert Sampling().over(chat).temperature == 0.7


# LC-31
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_mirostat_moves_towards_its_target(tau):
    rng = np.random.default_rng(0)
    s = sampler(500, mirostat=(tau, 0.1), temperature=1.0, seed=1)
    mus = []
    for _ in range(800):
        s.pick(rng.normal(0, 2, 500).astype(np.float32))
        mus.append(s._mu)
    # mu moves by eta * (tau - surprise): where it rests, the mean surprise is tau (bits, after the
    # cut, as in llama.cpp).
    assert tau - (mus[-1] - mus[200]) / (0.1 * 599) == pytest.approx(tau, abs=0.05)
    assert 0 < np.mean(mus[200:]) < 12


# LC-42
def test_the_chosen_token_has_its_logprob_even_outside_the_top():
    s = sampler(4, top=1, temperature=50.0, seed=0)
    picks = [s.pick(logits(9, 1, 1, 1)) for _ in range(50)]
    outside = next(p for p in picks if p.id != 0)
    assert [i for i, _, _ in outside.top] == [0]
    assert outside.logprob == pytest.approx(-8.001, abs=1e-2)
    assert outside.rank == 2


# B091
def test_padded_rows_are_never_drawn_nor_counted():
    row = logits(1, 2, 99, 99)
    pick = sampler(2, temperature=0.0, top=4).pick(row)
    assert pick.id == 1
    assert pick.logprob == pytest.approx(-0.3133, abs=1e-4)
    assert len(pick.top) == 2


def test_a_summary_of_the_forward_pass_gives_the_same_pick():
    rng = np.random.default_rng(1)
    row = rng.normal(0, 3, 1000).astype(np.float32)
    summary = Summary(log_sum_exp(row), tuple(int(i) for i in top_ids(row, 5)))
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 4}):
        a = sampler(1000, top=5, **settings).pick(row, summary)
        b = sampler(1000, top=5, **settings).pick(row)
        assert a == b


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 45))
def test_top_ids_are_a_stable_partial_sort(values, n):
    row = logits(*values)
    wanted = sorted(range(len(values)), key=lambda i: (-values[i], i))[:n]
    assert top_ids(row, n).tolist() == wanted


@pytest.mark.parametrize(
    "bad",
    [{"top_p": -0.1}, {"min_p": 2.0}, {"repeat_penalty": 0.0}, {"max_tokens": -1},
     {"temperature": math.nan}, {"typical_p": 0.0}, {"mirostat": (0.0, 1.0)}, {"seed": -1},
     # beyond what float32 can hold: sums of these are no numbers
     {"repeat_penalty": math.inf}, {"repeat_penalty": 1e-300}, {"frequency_penalty": -1e300},
     {"presence_penalty": 1e39}, {"mirostat": (math.inf, 0.1)}, {"mirostat": (5.0, math.inf)}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_named(bad):
    with pytest.raises(RequestError, match=next(iter(bad))):
        check(Sampling(**bad))


# LC-33
def test_same_seed_same_tokens():
    row = np.zeros(100, np.float32)
    a, b, c = (sampler(100, temperature=1.0, seed=s) for s in (1, 1, 2))
    draws = [[s.pick(row).id for _ in range(20)] for s in (a, b, c)]
    assert draws[0] == draws[1] != draws[2]
