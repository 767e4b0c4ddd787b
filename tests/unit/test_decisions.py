"""Decisions without a model: orders, sums, bad input, calibration."""

import hashlib
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_magic.decisions import arithmetic
from llm_magic.decisions.calibration import fit, loss
from llm_magic.decisions.question import MAX_ORDERS, question
from llm_magic.errors import Interrupted, LLMError, RequestError, UnsupportedError
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
names = st.lists(texts, min_size=2, max_size=9, unique=True)
scores_of = st.floats(-2000.0, 0.0)


def noise(prompt, choice):
    """A log-probability that follows from the prompt's text and the choice alone."""
    digest = hashlib.blake2b(f"{prompt}\0{choice}".encode(), digest_size=4).digest()
    return -int.from_bytes(digest, "big") / 2**28


def scripted(scores=None):
    def one(request, choices):
        shown = "".join(m.text for m in request.messages) or str(request.prompt)
        return [noise(shown, choice) for choice in choices]

    return LLM(Scripted([], scores=scores or one))


@settings(deadline=None)
@given(st.lists(scores_of, min_size=2, max_size=20))
def test_probabilities_sum_to_one(values):
    llm = scripted(lambda request, choices: values)
    choices = [f"c{i:02d}" for i in range(len(values))]
    d = llm.decide("q", choices=choices, order="given")
    assert math.fsum(d.probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    assert list(d.probabilities) == list(d.logprobs) == choices
    assert d.probability == max(d.probabilities.values())
    assert 0.0 <= d.margin <= 1.0
    assert 0.0 <= d.entropy <= math.log(len(choices)) + 1e-9
    assert all(math.exp(d.logprobs[c]) == d.probabilities[c] for c in choices)


@settings(max_examples=40, deadline=None)
@given(names, st.randoms())
def test_the_order_in_which_choices_are_given_changes_no_bit(choices, random):
    llm = scripted()
    first = llm.decide("Which?", choices=choices)
    mixed = random.sample(choices, len(choices))
    again = llm.decide("Which?", choices=mixed)
    assert again.choice == first.choice
    assert dict(again.probabilities) == dict(first.probabilities)
    assert list(again.probabilities) == mixed
    assert (again.margin, again.entropy) == (first.margin, first.entropy)
    assert (again.spread, again.mass) == (first.spread, first.mass)


@settings(deadline=None)
@given(names)
def test_every_choice_stands_once_in_every_place_of_the_list(choices):
    orders = question(choices=choices).orders
    assert len(orders) == min(len(choices), MAX_ORDERS)
    assert all(sorted(order) == sorted(choices) for order in orders)
    if len(choices) <= MAX_ORDERS:
        for place in zip(*orders, strict=True):
            assert sorted(place) == sorted(choices)


def test_the_order_of_questions_changes_no_bit():
    llm = scripted()
    prompts = [f"question {i}" for i in range(30)]
    there = llm.decide_many(prompts, choices="a|b|c")
    back = llm.decide_many(prompts[::-1], choices="c|b|a")[::-1]
    assert [d.probabilities for d in there] == [
        {name: d.probabilities[name] for name in "abc"} for d in back
    ]


def test_the_given_order_is_one_prompt_and_an_invariant_one_is_several():
    provider = Scripted([], scores=lambda request, choices: [-1.0] * len(choices))
    LLM(provider).decide("Which?", choices=["b", "a", "c"], order="given")
    LLM(provider).decide("Which?", choices=["b", "a", "c"])
    LLM(provider).decide("How warm?", scale=(1, 3))
    lists = [request.messages[-1].text.split(": ")[1] for request in provider.requests]
    assert lists == ["b, a, c", "a, b, c", "b, c, a", "c, a, b", "1, 2, 3", "3, 2, 1"]


def test_choices_stand_where_the_prompt_says_or_nowhere():
    provider = Scripted([], scores=lambda request, choices: [-1.0] * len(choices))
    llm = LLM(provider)
    llm.decide("Of {{ choices }}, which?", choices="a|b", order="given")
    llm.decide("Which?", choices="a|b", listed=False)
    llm.decide("It is", choices=[" a", " b"], complete=True)
    llm.decide([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say."}],
               choices=["one, two", "three"], order="given")  # fmt: skip
    shown = [getattr(r.prompt, "text", r.prompt) for r in provider.requests]
    assert shown[0][0].text == "Of a, b, which?"
    assert shown[1][0].text == "Which?"
    assert shown[2] == "It is"
    assert shown[3][1].text == "Say.\n\nAnswer with one of these: \n- one, two\n- three"
    assert len(shown) == 4


def test_a_scale_has_a_mean():
    llm = scripted(lambda request, choices: [math.log(p) for p in (0.1, 0.2, 0.7)])
    d = llm.decide("How warm?", scale=(-1, 1), order="given")
    assert list(d.probabilities) == ["-1", "0", "1"]
    assert d.expected == pytest.approx(0.6)
    assert llm.decide("q", choices="a|b|c").expected is None


def test_length_normalisation_is_named():
    llm = scripted(lambda request, choices: [-2.0, -6.0])
    choices = ["no", "not at all, by no means"]
    plain = llm.decide("q", choices=choices, order="given")
    assert plain.choice == "no"
    assert llm.decide("q", choices=choices, order="given", length="bytes").choice == choices[1]
    tokens = llm.decide("q", choices=choices, order="given", length="tokens")
    assert tokens.length == "tokens"
    assert tokens.tokens == {"no": 1, choices[1]: 7}
    assert tokens.logprobs[choices[1]] == pytest.approx(-math.log(1 + math.exp(-2 + 6 / 7)))


BAD = [
    ({"choices": []}, "choices is empty"),
    ({"choices": ["a", "b", "a"]}, "holds 'a' twice"),
    ({"choices": "a|b|a"}, "holds 'a' twice"),
    ({"choices": ["a", ""]}, "none empty"),
    ({"choices": ["a", "  "]}, "needs a visible character"),
    ({"choices": ["a", 3]}, "must be a text"),
    ({"choices": ["a", None]}, "must be a text"),
    ({"choices": 3}, "give"),
    ({"choices": ["a"]}, "two or more"),
    ({"choices": [f"{i}." for i in range(1001)]}, "the most are 1000"),
    ({}, "give one of choices"),
    ({"choices": "a|b", "yes_no": True}, "only one"),
    ({"scale": (5, 1)}, "the lower one first"),
    ({"scale": (1, 2.5)}, "two whole numbers"),
    ({"scale": "1-5"}, "two whole numbers"),
    ({"scale": (0, 5000)}, "the most are"),
    ({"choices": "a|b", "order": "random"}, "order is 'random'"),
    ({"choices": "a|b", "length": "words"}, "length is 'words'"),
    ({"choices": "a|b", "complete": True, "system": "x"}, "no system prompt"),
    ({"choices": ["a", "ab"], "complete": True}, "'a' is the beginning of 'ab'"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_choices_are_one_clear_error(options, message):
    with pytest.raises(RequestError, match=message):
        scripted().decide("q", **options)


@pytest.mark.parametrize("prompt", ["", "  ", None, 3.5, [], b"x", [None]])
def test_a_bad_prompt_gets_its_error_and_the_others_their_decisions(prompt):
    llm = scripted()
    found = llm.decide_many(["one", prompt, "two", prompt], yes_no=True, on_error="keep")
    assert [isinstance(item, RequestError) for item in found] == [False, True, False, True]
    assert found[0].probabilities == llm.decide("one", yes_no=True).probabilities
    with pytest.raises(RequestError):
        llm.decide_many(["one", prompt], yes_no=True)


def test_an_error_of_the_provider_is_that_of_its_prompt():
    def scores(request, choices):
        if "bad" in request.messages[-1].text:
            raise RequestError("too long")
        return [-1.0, -2.0]

    found = scripted(scores).decide_many(["a", "bad", "b"], yes_no=True, on_error="keep")
    assert [isinstance(item, LLMError) for item in found] == [False, True, False]


def test_an_interrupt_keeps_the_decisions_so_far():
    calls = itertools.count()

    def scores(request, choices):
        if next(calls) == 6:
            raise KeyboardInterrupt
        return [-1.0, -2.0]

    with pytest.raises(Interrupted) as caught:
        scripted(scores).decide_many("abcdefgh", yes_no=True)
    assert len(caught.value.partial) == 3


def test_prompts_are_read_one_at_a_time():
    read = []

    def prompts():
        for i in range(5):
            read.append(i)
            yield f"q{i}"

    from llm_magic.decisions.methods import deciding

    found = deciding(scripted().provider, prompts(), {"yes_no": True})
    next(found)
    assert len(read) <= 2


def test_a_provider_that_cannot_score_says_so():
    with pytest.raises(UnsupportedError, match="choices"):
        LLM(Scripted(["x"])).decide("q", yes_no=True)


def test_unknown_options_of_many_are_named():
    with pytest.raises(RequestError, match="unknown option 'coices'"):
        scripted().decide_many(["q"], coices="a|b")


def test_equal_choices_are_decided_by_their_characters_not_by_their_order():
    llm = scripted(lambda request, choices: [-1.0] * len(choices))
    assert llm.decide("q", choices="b|a").choice == llm.decide("q", choices="a|b").choice == "a"


# ----------------------------------------------------------------------------- arithmetic


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.just("x"), scores_of, min_size=1), min_size=1, max_size=12),
       st.randoms())  # fmt: skip
def test_a_mean_does_not_depend_on_the_order_of_its_terms(rows, random):
    assert arithmetic.mean_of(rows) == arithmetic.mean_of(random.sample(rows, len(rows)))


def test_choices_without_any_probability_are_equally_likely():
    assert arithmetic.normalised({"a": -math.inf, "b": -math.inf}) == {
        "a": -math.log(2), "b": -math.log(2),
    }  # fmt: skip


# ----------------------------------------------------------------------------- calibration


def rows_of(pairs):
    return [{"a": math.log(p), "b": math.log(1 - p)} for p, _ in pairs], [c for _, c in pairs]


def test_a_temperature_takes_back_too_much_certainty():
    rows, labels = rows_of([(0.99, "a")] * 7 + [(0.99, "b")] * 3)
    found = fit(rows, labels, "temperature")
    assert found.temperature > 3
    assert math.exp(found.apply(rows[0])["a"]) == pytest.approx(0.7, abs=1e-4)
    assert found.after < found.before == pytest.approx(loss(rows, labels, fit(rows, labels)), abs=9)


def test_a_bias_takes_back_what_the_model_prefers():
    rows, labels = rows_of([(0.9, "a"), (0.6, "b")] * 20)
    found = fit(rows, labels, "bias")
    right = [max(found.apply(row), key=found.apply(row).get) for row in rows]
    assert right == labels
    assert found.after < found.before
    assert found.bias["a"] == pytest.approx(-found.bias["b"], abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.sampled_from("ab")), min_size=1, max_size=12))
def test_a_calibration_is_never_worse_on_its_examples_and_does_not_depend_on_their_order(pairs):
    rows, labels = rows_of(pairs)
    for method in ("temperature", "bias"):
        found = fit(rows, labels, method)
        assert found.after <= found.before + 1e-9
        assert fit(rows[::-1], labels[::-1], method).apply(rows[0]) == found.apply(rows[0])


def test_a_calibration_is_for_its_choices_only():
    rows, labels = rows_of([(0.9, "a")])
    found = fit(rows, labels)
    with pytest.raises(RequestError, match="calibrate with these"):
        scripted().decide("q", choices="x|y", calibration=found)
    d = scripted().decide("q", choices="a|b", calibration=fit(*rows_of([(0.99, "b")]), "bias"))
    assert d.calibrated
    assert math.fsum(d.probabilities.values()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("rows", "method", "message"), [
    ([], "temperature", "there are no examples"), ([{"a": 0.0}], "both", "method is 'both'"),
])  # fmt: skip
def test_what_cannot_be_calibrated_is_said(rows, method, message):
    with pytest.raises(RequestError, match=message):
        fit(rows, ["a"] * len(rows), method)
