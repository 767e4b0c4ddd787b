"""`LLM.map` on the engine: the same bits in every order, prefixes read once, rows that fail."""

import random
from dataclasses import dataclass

import pandas as pd
import pytest

import llm_magic

pytestmark = pytest.mark.model

HEAD = "You read reviews of restaurants and answer in one word. " * 3
TEMPLATE = HEAD + "\n\nReview: {{ review }}"
REVIEWS = [
    "The soup was wonderful.", "We waited for two hours.", "Great staff!", "Cold food.",
    "Fine, but loud.", "Never again!", "The best bread in town.", "It rained in.",
    "My children loved it.", "Too salty for me.",
]  # fmt: skip
NUMBERS = ["answer", "answer_probability", "answer_entropy", "answer_tokens", "answer_finish"]


def ask(
    llm: llm_magic.LLM, rows: object, template: str = TEMPLATE, **options: object
) -> pd.DataFrame:
    return llm.map(rows, template, progress=False, **options)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame({"review": REVIEWS}, index=[f"r{i}" for i in range(len(REVIEWS))])


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 10},
        {"max_tokens": 10, "temperature": 0.9, "seed": 3},
        {"choices": "good|bad|neither"},
        {"scale": (1, 5)},
        {"regex": "[a-z]{3,8}", "max_tokens": 10},
    ],
)
def test_a_shuffled_frame_has_the_same_bits_in_each_row(smollm2, frame, options):
    one = ask(smollm2, frame, **options)
    rows = list(frame.index)
    random.Random(1).shuffle(rows)
    other = ask(smollm2, frame.loc[rows], **options).loc[frame.index]
    alone = ask(smollm2, frame.loc[["r4"]], **options)
    pd.testing.assert_frame_equal(one, other, check_exact=True)
    pd.testing.assert_frame_equal(one.loc[["r4"]], alone, check_exact=True)
    assert one[NUMBERS].notna().all(axis=None)


def test_the_numbers_are_those_of_chat_and_decide(smollm2, frame):
    got = ask(smollm2, frame.head(2), max_tokens=8)
    prompt = TEMPLATE.replace("{{ review }}", REVIEWS[1])
    reply = smollm2.chat(prompt, temperature=0, max_tokens=8)
    assert got["answer"].iloc[1] == reply.text
    assert got["answer_entropy"].iloc[1] == -reply.mean_logprob
    chosen = ask(smollm2, frame.head(2), choices="good|bad").iloc[1]
    decision = smollm2.decide(prompt, choices="good|bad")
    assert chosen["answer"] == decision.choice
    assert chosen["answer_probability"] == decision.probability
    assert chosen["answer_entropy"] == decision.entropy
    rated = ask(smollm2, frame.head(1), scale=(1, 5)).iloc[0]
    assert 1 < rated["answer_expected"] < 5


def test_the_common_beginning_is_read_once(smollm2, frame):
    prompt = TEMPLATE.replace("{{ review }}", "")
    head = len(smollm2.render([{"role": "user", "content": prompt}]).ids) - 8
    before = smollm2.status()
    ask(smollm2, frame, template="Another one. " + TEMPLATE, max_tokens=1)
    after = smollm2.status()
    read = after.cache_misses - before.cache_misses
    # Of ten prompts nine find the beginning; each of them brings some fifteen tokens of its own.
    assert head < read < head + 25 * len(frame)
    assert after.cache_hits - before.cache_hits > (len(frame) - 1) * head


def test_a_row_that_does_not_fit_has_its_error_and_no_other_is_lost(smollm2):
    rows = ["short", "word " * 9_000, "also short"]
    got = ask(smollm2, rows, "Say: {{ text }}", max_tokens=4)
    assert got["answer"].notna().tolist() == [True, False, True]
    assert "context is" in got["answer_error"].iloc[1]
    chosen = ask(smollm2, rows, "Say: {{ text }}", choices="a|b")
    assert chosen["answer"].notna().tolist() == [True, False, True]


def test_the_fields_of_a_schema_are_columns(smollm2, frame):
    @dataclass
    class Review:
        topic: str
        stars: int

    got = ask(smollm2, frame.head(3), schema=Review, max_tokens=60)
    done = got["answer_error"].isna()
    assert done.any()
    assert got.loc[done, "answer_stars"].notna().all()


def test_a_cache_holds_for_the_model_that_made_it(smollm2, frame, tmp_path):
    path = tmp_path / "answers.jsonl"
    first = ask(smollm2, frame.head(3), cache=path, choices="good|bad")
    again = ask(smollm2, frame.head(3), cache=path, choices="good|bad")
    pd.testing.assert_frame_equal(first, again, check_exact=True)
    assert len(path.read_text().splitlines()) == 4
    ask(smollm2, frame.head(3), cache=path, choices="good|bad", order="given")
    assert len(path.read_text().splitlines()) == 7
