"""Strings in one piece of memory are the strings that went in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_magic.engine.tokenizer.string_table import Texts

ANY = st.lists(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=6))


@given(ANY)
def test_texts_come_back(texts):  # surrogates and zeros included
    packed = Texts(texts)
    assert len(packed) == len(texts)
    assert list(packed) == texts
    assert [packed[i] for i in range(-len(texts), 0)] == texts
    assert packed[1:5] == texts[1:5]


def test_neighbours_do_not_join():
    high, low = "\ud83d", "\ude00"  # halves of one character
    packed = Texts([high, low, "", "\udc80", "é", "\x00", "▁the"])
    assert list(packed) == [high, low, "", "\udc80", "é", "\x00", "▁the"]
    assert packed.index("é") == 4
    assert "the" not in packed


@pytest.mark.parametrize("index", [2, -3])
def test_an_index_outside_is_refused(index):
    with pytest.raises(IndexError):
        Texts(["a", "b"])[index]
