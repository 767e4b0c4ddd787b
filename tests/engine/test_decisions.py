"""Decisions of a real engine: the same bits in every batch, and how far from float32."""

import math
import random

import numpy as np
import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic.errors import ContextOverflowError

CHOICES = ["yes", "no", "maybe so", "maybe"]
QUESTIONS = [f"Is the {noun} of it number {i}?" for i in range(16) for noun in
             ("hello", "world", "cat", "time")]  # fmt: skip


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    llm = llm_magic.load(
        str(toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", ctx=256)), ctx=256
    )
    yield llm
    llm.unload()


def bits(decisions):
    return [(d.choice, sorted(d.logprobs.items()), sorted(d.probabilities.items()), d.margin,
             d.entropy, d.mass, d.spread) for d in decisions]  # fmt: skip


def test_decisions_are_the_same_bits_in_every_batch_order_and_cache(toy):
    alone = bits(toy.decide(q, choices=CHOICES, reuse=False) for q in QUESTIONS)
    for n in (1, 2, 7, 64):
        found = [d for i in range(0, len(QUESTIONS), n)
                 for d in toy.decide_many(QUESTIONS[i : i + n], choices=CHOICES)]  # fmt: skip
        assert bits(found) == alone, n
    places = list(range(len(QUESTIONS)))
    random.Random(5).shuffle(places)
    mixed = toy.decide_many([QUESTIONS[i] for i in places], choices=CHOICES[::-1], reuse=False)
    assert bits(mixed) == [alone[i] for i in places]


def test_a_decision_is_the_mean_of_whole_choices_behind_every_order(toy):
    d = toy.decide("Is it so?", choices=CHOICES)
    total = np.zeros(len(CHOICES))
    assert d.ended  # "maybe" begins "maybe so"
    for reading in d.readings:
        text = f"Is it so?\n\nAnswer with one of these: {', '.join(reading.order)}"
        scores = toy.score_choices([{"role": "user", "content": text}], CHOICES, thinking=False)
        assert list(reading.scores.values()) == list(scores.values())
        p = np.exp(list(scores.values()))
        total += p / p.sum()
    np.testing.assert_allclose(list(d.probabilities.values()), total / 4, rtol=1e-12)
    assert d.mass == pytest.approx(
        np.mean([math.fsum(map(math.exp, r.scores.values())) for r in d.readings])
    )


def test_a_prompt_that_does_not_fit_gets_its_error_and_nothing_else_is_lost(toy):
    prompts = ["Is it?", "hello " * 400, "Was it?"]
    found = toy.decide_many(prompts, choices=CHOICES, on_error="keep")
    assert isinstance(found[1], ContextOverflowError)
    assert bits([found[0], found[2]]) == bits(
        toy.decide_many([prompts[0], prompts[2]], choices=CHOICES)
    )
    assert toy.status().running == toy.status().queued == 0


def test_an_abandoned_batch_leaves_nothing_behind(toy):
    from llm_magic.decisions.methods import deciding

    found = deciding(toy.provider, iter(QUESTIONS), {"choices": CHOICES})
    next(found)
    found.close()
    assert toy.decide("Is it so?", choices=CHOICES).choice in CHOICES
    assert toy.status().running == toy.status().queued == 0


def test_many_prompts_take_bounded_memory(toy):
    from llm_magic.decisions.methods import deciding

    most = 0

    def prompts():
        nonlocal most
        for i in range(300):
            most = max(most, toy.status().queued + toy.status().running)
            yield f"number {i}"

    assert sum(1 for _ in deciding(toy.provider, prompts(), {"yes_no": True})) == 300
    assert most <= 40


def test_a_continuation_has_the_logprobs_of_every_position_in_every_batch(toy):
    rng = random.Random(3)
    pairs = [
        ([rng.randrange(3, 60) for _ in range(rng.randrange(1, 40))],
         [rng.randrange(3, 60) for _ in range(rng.randrange(1, 12))])
        for _ in range(24)
    ]  # fmt: skip
    found = list(toy.provider.score_continuations(pairs))
    for (context, ids), got in zip(pairs, found, strict=True):
        rows = toy.logprobs([*context, *ids])[len(context) - 1 : -1]
        np.testing.assert_allclose(got.logprobs, rows[np.arange(len(ids)), ids], atol=2e-6)
        assert got.greedy == all(rows.argmax(-1) == ids)
        assert got.logprob == math.fsum(got.logprobs)
    assert list(toy.provider.score_continuations(pairs[::-1])) == found[::-1]
    best = int(toy.logprobs([5, 6])[-1].argmax())
    assert next(toy.provider.score_continuations([([5, 6], [best])])).greedy


def test_a_continuation_that_cannot_be_scored_gets_its_error(toy):
    asked = [([], [1]), ([1], []), ([1], [10**6]), ([5] * 250, [6] * 8), ([5], [6])]
    found = list(toy.provider.score_continuations(asked))
    assert [type(f).__name__ for f in found] == [
        "RequestError", "RequestError", "RequestError", "ContextOverflowError", "Continuation",
    ]  # fmt: skip
