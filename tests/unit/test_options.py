"""Every setting of a form is read back as what it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_magic.ui.options import find

TEXTS = st.text(st.sampled_from("a |\\\\,=nts\n\t"), min_size=1, max_size=6)


@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_stop_texts_survive_a_form(texts):
    option = find("stop")
    assert option.check(option.shown(tuple(texts))) == tuple(texts)


@given(st.lists(st.tuples(TEXTS, st.sampled_from([1.0, -2.5])), min_size=1, max_size=3))
def test_logit_biases_survive_a_form(pairs):
    option = find("logit_bias")
    assert option.check(option.shown(tuple(pairs))) == tuple(pairs)


@pytest.mark.parametrize("typed", [" yes=5", {" yes": 5}])
def test_a_leading_space_belongs_to_the_token(typed):
    assert find("logit_bias").check(typed) == ((" yes", 5.0),)
