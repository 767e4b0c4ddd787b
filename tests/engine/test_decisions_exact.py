"""Decisions of real models against float32 on exactly the weights of the same file.

The right probabilities are stored; tests/data/decisions/make.py makes them.
"""

import json
from pathlib import Path

import pytest

BOUND = 0.002  # of a probability
FILE = Path(__file__).parents[1] / "data" / "decisions" / "float32.json"
STORED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.model
def test_probabilities_are_those_of_float32(smollm2):
    assert len(STORED) >= 5
    for item in STORED:
        found, right = smollm2.decide(item["text"], **item["options"]), item["probabilities"]
        assert list(found.probabilities) == list(right)
        for name, p in right.items():
            assert abs(found.probabilities[name] - p) <= BOUND, (item["text"], name)
        assert found.choice == max(right, key=right.get)


@pytest.mark.model
def test_real_decisions_have_the_same_bits_in_every_batch_and_order(smollm2):
    texts = [f"Is {n} an even number?" for n in range(12)]
    alone = [smollm2.decide(t, yes_no=True, reuse=False).logprobs for t in texts]
    assert [d.logprobs for d in smollm2.decide_many(texts, yes_no=True)] == alone
    back = smollm2.decide_many(texts[::-1], choices=["no", "yes"], reuse=False)[::-1]
    assert [dict(d.logprobs) for d in back] == [{n: row[n] for n in ("no", "yes")} for row in alone]
