"""Decisions of a real engine: the same bits in every batch, and how far from float32."""

import math
import random

import numpy as np
import pytest
from support.toy import CHATML, toy_gguf

import llm_magic
from llm_magic.bench import labels
from llm_magic.errors import ContextOverflowError, RequestError

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


def test_choices_inside_the_reasoning_of_a_model_are_refused(tmp_path):
    template = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    llm = llm_magic.load(str(toy_gguf(tmp_path / "thinks.gguf", template=template)), ctx=128)
    with pytest.raises(RequestError, match="opens the model's reasoning"):
        llm.decide("Is it so?", choices=CHOICES)
    assert llm.decide("It is", choices=[" so", " on"], complete=True).choice in (" so", " on")
    llm.unload()


def test_labels_of_the_bench_are_scored(toy):
    assert labels.ours(toy.provider, list(range(3, 43)), 32) > 0


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


# ----------------------------------------------------------------------------- evaluations

ROWS = [
    {"q": f"The {noun} of number {i}", "c": ["hello world", "up on", "a"], "label": i % 3}
    for i, noun in enumerate(["cat", "time", "world", "hello"] * 3)
]  # fmt: skip


def test_multiple_choice_counts_log_likelihoods_as_harnesses_do(toy):
    found = toy.evaluate(ROWS, "{{ q }}: ", choices="c")
    for row, item in zip(ROWS, found.items, strict=True):
        sums = []
        context = [p.id for p in toy.tokenize(f"{row['q']}:")]
        for choice in row["c"]:
            ids = [p.id for p in toy.tokenize(f"{row['q']}:  {choice}")]
            rows = toy.logprobs(ids).astype(np.float64)
            places = np.arange(len(context) - 1, len(ids) - 1)
            sums.append(float(rows[places, ids[len(context) :]].sum()))
        np.testing.assert_allclose(list(item.logprobs.values()), sums, atol=2e-5)
        assert item.choice == row["c"][int(np.argmax(sums))]
        per_byte = np.array(sums) / [len(c.encode()) for c in row["c"]]
        assert item.choice_norm == row["c"][int(np.argmax(per_byte))]
        assert math.fsum(item.probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    mixed = toy.evaluate(ROWS[::-1], "{{ q }}: ", choices="c")
    assert [i.logprobs for i in mixed.items] == [i.logprobs for i in found.items][::-1]


def test_a_row_that_does_not_fit_gets_its_error(toy):
    rows = [ROWS[0], {**ROWS[1], "q": "hello " * 400}, ROWS[2]]
    found = toy.evaluate(rows, "{{ q }}", choices="c")
    assert [item.row for item in found.errors] == [1]
    assert len(found.answered) == 2


@pytest.mark.parametrize(("window", "stride"), [(64, 32), (40, 39), (200, 100)])
def test_a_sliding_perplexity_is_that_of_its_windows(toy, window, stride):
    text = "Once upon the time in a cat. " * 12
    found = toy.perplexity(text, window=window, stride=stride)
    ids = [p.id for p in toy.tokenize(text)]
    expected, done = [], 1
    for begin in range(0, len(ids), stride):
        end = min(begin + window, len(ids))
        rows = toy.logprobs(ids[begin:end])
        expected += [float(rows[j - 1 - begin, ids[j]]) for j in range(done, end)]
        done = end
        if end == len(ids):
            break
    np.testing.assert_allclose(found.logprobs, expected, atol=2e-5)
    assert found.value == pytest.approx(math.exp(-np.mean(expected)), rel=1e-5)
    bits = -sum(expected) / math.log(2)
    assert found.bits_per_byte == pytest.approx(
        bits / (len(text) - len(toy.tokenize(text)[0].bytes))
    )


def test_a_perplexity_of_llama_cpp_is_its_definition(toy, tmp_path):
    text = "Once upon the time in a cat. " * 20
    path = tmp_path / "text.txt"
    path.write_text(text)
    found = toy.perplexity(path, convention="llama.cpp", window=32)
    ids = [p.id for p in toy.tokenize(text)]
    nll, count = 0.0, 0
    for i in range(len(ids) // 32):
        rows = toy.logprobs(ids[i * 32 : i * 32 + 32]).astype(np.float64)
        for j in range(16, 31):  # tools/perplexity: first = n_ctx / 2, n_ctx - 1 - first of them
            nll -= rows[j, ids[i * 32 + j + 1]]
            count += 1
    assert found.tokens == count
    assert found.value == pytest.approx(math.exp(nll / count), rel=1e-6)
    assert toy.perplexity(path, convention="llama.cpp", window=32).logprobs == found.logprobs


@pytest.mark.parametrize(("text", "options", "message"), [
    ("", {}, "two or more"), (3, {}, "text is 3"), ("x", {"convention": "own"}, "convention"),
    ("hello " * 9, {"window": 8, "stride": 8}, "less than the window"),
    ("hello", {"convention": "llama.cpp"}, "two windows of 512"),
    ("hello", {"convention": "llama.cpp", "stride": 4}, "leave stride out"),
    ("hello " * 300, {}, "context is"),
])  # fmt: skip
def test_a_text_that_has_no_perplexity_says_why(toy, text, options, message):
    with pytest.raises(RequestError, match=message):
        toy.perplexity(text, **options)


def test_samples_come_in_one_batch_and_fall_into_meanings(toy):
    found = toy.uncertainty("Say.", n=5, max_tokens=4)
    assert len(found.replies) == 5
    assert sorted(i for m in found.meanings for i in m.members) == list(range(5))
    again = toy.uncertainty("Say.", n=5, max_tokens=4)
    assert [r.text for r in again.replies] == [r.text for r in found.replies]
    assert again.same == found.same
