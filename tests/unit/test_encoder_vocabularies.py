"""WordPiece and unigram vocabularies, built by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_magic.engine.tokenizer.tokenizer import Tokenizer, build_tokenizer
from llm_magic.errors import GGUFError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁un", "▁a", "aff", "able", "▁!", "▁the", "▁日", "b"]


def wordpiece(**more: object) -> Tokenizer:
    metadata = {
        "model": "bert",
        "tokens": WORDS,
        "token_type": np.array([3, 3, 3, 3, *[1] * (len(WORDS) - 4)]),
        "cls_token_id": 2,
        "seperator_token_id": 3,
        "unknown_token_id": 1,
        "padding_token_id": 0,
    }
    return build_tokenizer({f"tokenizer.ggml.{k}": v for k, v in (metadata | more).items()})


def test_a_word_is_cut_into_the_longest_tokens_that_it_begins_with() -> None:
    t = wordpiece()
    assert t.encode("The unaffable!") == [9, 4, 6, 7, 8]
    assert t.encode("thé 日日 ab") == [9, 10, 10, 5, 11]
    assert t.encode("xyz the") == [1, 9]
    assert t.encode("unaffx") == [1]  # a word is known as a whole or not at all
    assert t.decode([9, 4, 6, 7, 8]) == "the unaffable !"
    assert t.token_text(6) == "aff"
    assert (t.id_of("▁un"), t.id_of("[SEP]"), t.id_of("un")) == (4, 3, None)


def test_control_tokens_of_an_encoder_are_recognised_only_when_asked_for() -> None:
    t = wordpiece()
    assert t.encode("the[SEP]a", special=True) == [9, 3, 5]
    assert 3 not in t.encode("the[SEP]a", special=False)
    assert t.whole("the [SEP]")[0] == 2
    assert t.whole("the") == [2, 9, 3]
    assert t.whole("the", "a") == [2, 9, 3, 5, 3]


def test_case_is_kept_where_the_file_says_so() -> None:
    t = wordpiece(**{"normalizer.lowercase": False})
    assert t.encode("The the") == [1, 9]


def test_a_wordpiece_vocabulary_needs_its_unknown_token() -> None:
    with pytest.raises(GGUFError, match="unknown_token_id is missing"):
        wordpiece(unknown_token_id=-1)


PIECES = {"<s>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -3.0, "▁a": -2.5, "a": -2.0, "b": -2.2,
          "ab": -3.5, "▁ab": -5.0, "ba": -3.0, "aba": -6.0, "▁b": -4.0}  # fmt: skip


def unigram(**more: object) -> Tokenizer:
    metadata = {
        "model": "t5",
        "tokens": list(PIECES),
        "scores": np.array(list(PIECES.values()), np.float32),
        "token_type": np.array([3, 3, 2, *[1] * (len(PIECES) - 3)]),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "unknown_token_id": 2,
        "add_bos_token": True,
        "add_eos_token": True,
    }
    return build_tokenizer({f"tokenizer.ggml.{k}": v for k, v in (metadata | more).items()})


def best(text: str) -> float:
    """The greatest sum of scores over all cuts of a text."""
    sums = []
    for n in range(len(text)):
        for cuts in itertools.combinations(range(1, len(text)), n):
            parts = [text[i:j] for i, j in itertools.pairwise((0, *cuts, len(text)))]
            if all(part in PIECES for part in parts):
                sums.append(sum(PIECES[part] for part in parts))
    return max(sums)


@settings(max_examples=60, deadline=None)
@given(st.text("ab", min_size=1, max_size=8))
def test_the_cut_with_the_greatest_sum_of_scores_is_taken(text: str) -> None:
    t = unigram()
    ids = t.encode(text)
    assert t.decode(ids) == text
    got = sum(list(PIECES.values())[i] for i in ids)
    assert math.isclose(got, best("▁" + text), abs_tol=1e-5)


def test_two_texts_of_a_unigram_vocabulary_have_two_ends_between_them() -> None:
    # LB-65: query </s></s> document
    t = unigram()
    a, b = t.encode("a"), t.encode("b")
    assert t.whole("a", "b") == [0, *a, 1, 1, *b, 1]
    assert t.whole("a") == [0, *a, 1]


def test_a_damaged_normalisation_is_named() -> None:
    with pytest.raises(GGUFError, match="precompiled_charsmap"):
        unigram(precompiled_charsmap=np.array([255, 255, 255, 255, 1], np.uint8))
    with pytest.raises(GGUFError, match="precompiled_charsmap is not a list of bytes"):
        unigram(precompiled_charsmap="abc")
