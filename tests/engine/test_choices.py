"""Whole choices scored behind one prompt: against the log-probabilities of every position."""

import math
import threading
from collections import Counter

import numpy as np
import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic.errors import ContextOverflowError, RequestError
from llm_magic.providers.choices import log_softmax

CHOICES = ["yes", "no", "maybe so", "never ever"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    llm = llm_magic.load(
        str(toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", ctx=256)), ctx=128
    )
    yield llm
    llm.unload()


def reference(llm, prompt, choices, ended=False):
    """The same from all log-probabilities of prompt and choice, one choice at a time."""
    out = []
    ends = sorted(llm.provider.engine.loaded().tokenizer.end_ids)
    for text in choices:
        ids = [p.id for p in llm.provider.tokenize(text, special=False, start=False)]
        rows = llm.logprobs([*prompt, *ids]).astype(np.float64)
        total = math.fsum(rows[len(prompt) - 1 + i, token] for i, token in enumerate(ids))
        out.append(total + (math.log(np.exp(rows[-1, ends]).sum()) if ended else 0.0))
    return out


def test_a_choice_counts_as_a_whole_and_the_probabilities_sum_to_one(toy):  # F264
    reply = toy.complete("Is it so?", choices=CHOICES)
    expected = reference(toy, reply.prompt_ids, CHOICES)
    assert list(reply.choices) == CHOICES
    assert math.fsum(reply.choices.values()) == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(
        [math.log(p) for p in reply.choices.values()], log_softmax(expected), atol=2e-5
    )
    assert reply.text == CHOICES[int(np.argmax(expected))]
    assert b"".join(t.bytes for t in reply.tokens).decode() == reply.text
    assert reply.usage.completion == len(reply.tokens)
    scores = toy.score_choices("Is it so?", CHOICES)
    np.testing.assert_allclose(list(scores.values()), expected, atol=2e-5)


def test_a_choice_that_begins_another_one_counts_its_end(toy):
    choices = ["a", "ab", "abc"]
    scores = toy.score_choices("x", choices)
    ids = [p.id for p in toy.tokenize("x")]
    np.testing.assert_allclose(
        list(scores.values()), reference(toy, ids, choices, ended=True), atol=3e-5
    )


def test_scores_are_the_same_bits_alone_in_a_crowd_and_cached(toy):
    alone = toy.score_choices("Is it so?", CHOICES, reuse=False)
    assert toy.score_choices("Is it so?", CHOICES) == alone
    assert toy.score_choices("Is it so?", CHOICES[::-1]) == alone
    found = []

    def ask():
        found.append(toy.score_choices("Is it so?", CHOICES, reuse=False))

    crowd = [threading.Thread(target=ask) for _ in range(6)]
    for thread in crowd:
        thread.start()
    toy.complete("something else", max_tokens=30)
    for thread in crowd:
        thread.join()
    assert found == [alone] * 6


def test_the_most_likely_choice_is_taken_where_no_temperature_is_asked_for(toy):  # F264
    for seed in range(12):
        reply = toy.chat("Say", choices=CHOICES, seed=seed)
        assert reply.text == max(reply.choices, key=reply.choices.get)
        assert reply.sampling.temperature == 0


def test_a_temperature_draws_from_the_probabilities_by_the_seed(toy):
    replies = [toy.complete("Say", choices=CHOICES, temperature=1.0, seed=i) for i in range(60)]
    again = toy.complete("Say", choices=CHOICES, temperature=1.0, seed=7)
    assert again.text == replies[7].text
    counts = Counter(reply.text for reply in replies)
    for text, p in replies[0].choices.items():
        spread = 4 * math.sqrt(60 * p * (1 - p)) + 1
        assert abs(counts[text] - 60 * p) <= spread


def test_logprobs_show_what_else_was_likely_and_that_it_was_no_choice(toy):
    reply = toy.complete("Is it so?", choices=CHOICES, logprobs=4)
    assert all(len(t.top) == 4 for t in reply.tokens)
    first = reply.tokens[0]
    own = {p.id for text in CHOICES for p in toy.provider.tokenize(text, False, False)[:1]}
    assert all(a.allowed == (a.id in own) for a in first.top)
    assert first.rank >= 1


def test_choices_that_do_not_fit_or_are_none_are_refused(toy):
    with pytest.raises(ContextOverflowError):
        toy.complete("x", choices=["ab" * 200, "b"])
    with pytest.raises(RequestError):
        toy.score_choices("x", [])


def test_many_choices_share_the_slots(toy):
    many = [f"choice {i}" for i in range(40)]
    reply = toy.complete("Which?", choices=many)
    assert math.fsum(reply.choices.values()) == pytest.approx(1.0)
    assert reply.text == max(reply.choices, key=reply.choices.get)
    assert toy.status().running == 0
