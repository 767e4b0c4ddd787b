"""DRY and XTC against slow references, written from the definitions of llama.cpp."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_magic.engine.serving.dry import Dry
from llm_magic.engine.serving.sampler import Sampler, _xtc
from llm_magic.sampling import Sampling

N = 12


def dry_penalties(history, multiplier, base, allowed, window, breakers):
    """Token -> penalty, position by position, with no shortcut."""
    recent = history if window < 0 else history[max(0, len(history) - window) :]
    n = len(recent)
    if n <= allowed:
        return {}
    reach = n
    for i in range(n):
        if recent[n - 1 - i] in breakers:
            reach = i
            break
    if reach < allowed:
        return {}
    longest = {}
    for end in range(n - 1):  # an earlier passage that ends here
        length = 0
        while length <= end and recent[end - length] == recent[n - 1 - length]:
            length += 1
        length = min(length, reach)
        if length >= allowed:
            follower = recent[end + 1]
            longest[follower] = max(longest.get(follower, 0), length)
    most = int(88.7228391 / math.log(base)) if base > 1.000001 else None
    out = {}
    for token, length in longest.items():
        if token not in breakers:
            exponent = length - allowed if most is None else min(length - allowed, most)
            out[token] = multiplier * base**exponent
    return out


@given(
    history=st.lists(st.integers(0, 3), max_size=40),
    base=st.sampled_from([1.0, 1.5, 1.75, 4.0, 1e6]),
    allowed=st.integers(0, 4),
    window=st.sampled_from([-1, 1, 5, 20, 100]),
    breakers=st.frozensets(st.integers(0, 3), max_size=2),
)
def test_dry_penalties_are_those_of_the_definition(history, base, allowed, window, breakers):
    settings = Sampling(
        dry_multiplier=0.8, dry_base=base, dry_allowed_length=allowed, dry_last_n=window
    )
    logits = np.zeros(N, np.float32)
    Dry(settings, breakers).apply(logits, history)
    expected = np.zeros(N)
    for token, penalty in dry_penalties(history, 0.8, base, allowed, window, breakers).items():
        expected[token] = -min(penalty, 1e30)
    np.testing.assert_allclose(logits, expected, rtol=1e-6)


def test_dry_leads_a_greedy_answer_out_of_a_loop():
    history = [1, 2, 3, 1, 2, 3, 1, 2]
    row = np.array([0, 0, 0, 2.0, 1.9], np.float32)
    plain = Sampler(Sampling(temperature=0.0), 5, history=history)
    dry = Sampler(Sampling(temperature=0.0, dry_multiplier=0.8), 5, history=history)
    assert plain.pick(row).id == 3
    assert dry.pick(row).id == 4
    assert dry.pick(row).logprob == pytest.approx(
        1.9 - math.log(3 + math.exp(2.0) + math.exp(1.9)), abs=1e-5
    )  # of the raw logits
    dry.accept(4)
    assert dry.pick(row).id == 3  # nothing repeats any more


def test_a_window_of_zero_or_a_multiplier_of_zero_turns_dry_off():
    assert not Dry(Sampling(dry_multiplier=0.8, dry_last_n=0), frozenset()).active
    assert not Dry(Sampling(), frozenset()).active


def xtc_reference(values, threshold):
    probabilities = np.exp(values - values.max())
    probabilities = probabilities / probabilities.sum()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    last = 0
    for place, i in enumerate(order):
        if probabilities[i] >= threshold:
            last = place
        else:
            break
    return sorted(order[last:])


@given(
    values=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.5]), min_size=2, max_size=12),
    threshold=st.sampled_from([0.0, 0.03, 0.11, 0.23, 0.51, 0.9, 1.0]),
)
def test_xtc_removes_what_the_definition_removes(values, threshold):
    row = np.array(values, np.float32)
    assert _xtc(row, threshold).tolist() == xtc_reference(row, threshold)


@pytest.mark.parametrize(("probability", "seen"), [(0.0, {0, 1, 2, 3}), (1.0, {2, 3})])
def test_xtc_acts_with_its_probability(probability, seen):
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    settings = Sampling(temperature=1.0, seed=2, xtc_probability=probability, xtc_threshold=0.12)
    s = Sampler(settings, 4)
    assert {s.pick(row).id for _ in range(400)} == seen


def test_xtc_that_is_off_changes_no_draw():
    row = np.random.default_rng(0).normal(0, 2, 50).astype(np.float32)
    plain = Sampler(Sampling(temperature=1.0, seed=7), 50)
    off = Sampler(Sampling(temperature=1.0, seed=7, xtc_probability=0.0), 50)
    assert [plain.pick(row).id for _ in range(50)] == [off.pick(row).id for _ in range(50)]
