"""Evaluations without a model: measures, rows with errors, meanings, and how all of it is shown."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.html_audit import XSS, audit

from llm_magic.chat.reply import Reply
from llm_magic.decisions.calibration import fit
from llm_magic.decisions.decision import Decision
from llm_magic.errors import Interrupted, RequestError, UnsupportedError
from llm_magic.evaluation import metrics
from llm_magic.evaluation.perplexity import Perplexity, _halves, _sliding
from llm_magic.evaluation.report import Evaluation, Item
from llm_magic.evaluation.uncertainty import meanings
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

shares = st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), min_size=1, max_size=60)


def likes(word):
    """A model that gives nine tenths to the choice that begins with the last letter of a prompt."""

    def scores(request, choices):
        text = request.messages[-1].text.split("\n")[0]
        return [math.log(0.9 if text.endswith(c[0]) else 0.1) for c in choices]

    return LLM(Scripted([], scores=scores, model=word))


# ----------------------------------------------------------------------------- measures


@settings(deadline=None)
@given(shares, st.integers(1, 20))
def test_the_calibration_error_is_its_definition(pairs, n):
    p, right = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    total = 0.0
    for i in range(n):
        inside = (p > i / n) & (p <= (i + 1) / n)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - p[inside].mean())
    bins = metrics.reliability(list(p), [bool(r) for r in right], n)
    assert sum(b.n for b in bins) == len(pairs)
    assert metrics.calibration_error(bins) == pytest.approx(total / len(pairs), abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from("ab")), min_size=1, max_size=30))
def test_scores_of_brier_and_log_loss_are_their_definitions(pairs):
    rows = [{"a": p, "b": 1 - p} for p, _ in pairs]
    labels = [label for _, label in pairs]
    table = np.array([[r["a"], r["b"]] for r in rows])
    hot = np.array([[c == "a", c == "b"] for c in labels], float)
    assert metrics.brier(rows, labels) == pytest.approx(((table - hot) ** 2).sum(1).mean())
    assert 0 <= metrics.brier(rows, labels) <= 2
    right = np.maximum((table * hot).sum(1), 5e-324)
    assert metrics.log_loss(rows, labels) == pytest.approx(-np.log(right).mean())


# ----------------------------------------------------------------------------- multiple choice


DATA = [
    {"text": "it is a", "label": "apple"},
    {"text": "it is b", "label": "banana"},
    {"text": "it is b", "label": 0},
    {"text": None, "label": "apple"},
    {"text": "it is a", "label": "cherry"},
    {"text": "it is a", "label": 2},
    {"text": "it is a", "label": float("nan")},
]


@pytest.mark.parametrize("frame", [list, pd.DataFrame, lambda d: pl.DataFrame(d, strict=False)])
def test_rows_of_every_frame_are_evaluated_and_bad_ones_get_their_error(frame):
    data = DATA[:2] + DATA[3:5] if frame not in (list, pd.DataFrame) else DATA
    found = likes("x").evaluate(
        frame(data), "{{ text }}", choices=["apple", "banana"], chat=True, order="given"
    )
    wrong = [item.row for item in found.errors]
    assert wrong == ([2, 3] if len(data) == 4 else [3, 4, 5, 6])
    right = [item.correct for item in found.answered]
    assert right == ([True, True] if len(data) == 4 else [True, True, False])
    assert found.accuracy == pytest.approx(np.mean(right))
    assert found.accuracy_norm is None
    assert found.answered[0].confidence == pytest.approx(0.9)
    assert len(found.frame()) == len(data)


def test_choices_may_be_a_column():
    rows = [
        {"q": "it is x", "c": ["xa", "yb"], "label": "xa"},
        {"q": "it is z", "c": np.array(["zq", "xa", "ww"]), "label": 0},
        {"q": "it is z", "c": "zq|yb", "label": "yb"},
        {"q": "it is z", "c": ["zq", "zq"], "label": "zq"},
        {"q": "it is z", "c": None, "label": "zq"},
    ]
    found = likes("x").evaluate(rows, "{{ q }}", choices="c", chat=True)
    assert [item.correct for item in found.answered] == [True, True, False]
    assert "twice" in found.errors[0].error
    assert "missing" in found.errors[1].error


def test_examples_stand_before_every_question_in_the_order_of_the_seed():
    provider = Scripted([], scores=lambda request, choices: [-1.0, -2.0])
    examples = [{"text": f"e{i}", "label": "ab"[i % 2]} for i in range(10)]
    rows = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    settings = {"choices": "a|b", "chat": True, "order": "given", "shots": 3, "seed": 4}
    LLM(provider).evaluate(rows, "Q {{ text }}", examples=examples, **settings)
    asked = [[m.text for m in request.messages] for request in provider.requests]
    assert asked[0][:-1] == asked[1][:-1]
    assert len(asked[0]) == 7
    assert asked[0][1] in "ab"
    assert asked[0][-1].startswith("Q one")
    again = Scripted([], scores=lambda request, choices: [-1.0, -2.0])
    LLM(again).evaluate(rows, "Q {{ text }}", examples=pd.DataFrame(examples), **settings)
    assert [[m.text for m in r.messages] for r in again.requests] == asked


GOOD = {"data": DATA[:1], "template": "{{ text }}", "choices": "apple|banana", "chat": True}
BAD = [
    ({"data": []}, "no rows"),
    ({"data": 3}, "rows is 3"),
    ({"template": "no column"}, "names no column"),
    ({"template": "{{ txt }}"}, "did you mean 'text'"),
    ({"choices": "fruit"}, "give a column"),
    ({"choices": ["a", "a"]}, "twice"),
    ({"label": "right"}, "no column 'right'"),
    ({"shots": 2}, "shots needs examples"),
    ({"shots": 2, "examples": DATA[:1]}, "there are 1 examples"),
    ({"shots": 1, "examples": [{"text": "x", "label": "y"}]}, "example 0: the label is 'y'"),
    ({"shots": -1}, "shots is -1"),
    ({"chat": False, "order": "given"}, "option of a chat"),
    ({"orders": "given"}, "unknown option 'orders'"),
    ({"calibration": fit([{"x": -0.1, "y": -2.0}], ["x"])}, "calibrate with these"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD)
def test_arguments_that_make_no_sense_are_one_clear_error(change, message):
    given = {**GOOD, **change}
    with pytest.raises(RequestError, match=message):
        likes("x").evaluate(given.pop("data"), given.pop("template"), **given)


def test_a_provider_without_scores_says_so():
    with pytest.raises(UnsupportedError):
        LLM(Scripted([])).evaluate(DATA[:2], "{{ text }}", choices="apple|banana")
    with pytest.raises(UnsupportedError):
        LLM(Scripted([])).perplexity("some text")


def test_an_interrupted_evaluation_keeps_its_rows():
    calls = []

    def scores(request, choices):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return [-1.0, -2.0]

    with pytest.raises(Interrupted) as caught:
        LLM(Scripted([], scores=scores)).evaluate(
            [{"text": str(i), "label": "a"} for i in range(6)], "{{ text }}",
            choices="a|b", chat=True, order="given",
        )  # fmt: skip
    assert len(caught.value.partial.items) == 2


def test_examples_of_a_calibration_come_as_pairs_or_frames():
    llm = likes("x")
    pairs = [("it is a", "apple"), ("it is b", "apple")]
    frame = pd.DataFrame(pairs, columns=["text", "fruit"])
    options = {"choices": "apple|banana", "order": "given"}
    found = llm.calibrate(pairs, **options)
    assert found == llm.calibrate(frame, template="{{ text }}", label="fruit", **options)
    with pytest.raises(RequestError, match="example 1 has the label 'pear'"):
        llm.calibrate([pairs[0], ("x", "pear")], **options)
    with pytest.raises(RequestError, match="no column 'label'"):
        llm.calibrate(frame, template="{{ text }}", **options)
    with pytest.raises(RequestError, match="without another one"):
        llm.calibrate(pairs, calibration=found, **options)


# ----------------------------------------------------------------------------- perplexity


@settings(deadline=None)
@given(st.integers(2, 200), st.integers(2, 50), st.data())
def test_sliding_windows_score_every_token_once_with_at_least_so_much_context(n, window, data):
    stride = data.draw(st.integers(1, window - 1))
    ids = tuple(range(n))
    cut = list(_sliding(ids, window, stride))
    assert [i for _, (_, scored) in cut for i in scored] == list(range(1, n))
    for (a, b), (context, scored) in cut:
        assert (*context, *scored) == ids[a - len(context) : b]
        assert len(context) + len(scored) <= window
        assert len(context) >= min(a, window - stride)


@settings(deadline=None)
@given(st.integers(8, 300), st.integers(2, 40))
def test_windows_of_llama_cpp_score_their_second_half(n, window):
    ids, bos = tuple(range(100, 100 + n)), (1,)
    if n < 2 * window:
        with pytest.raises(RequestError, match="two windows"):
            list(_halves(ids, bos, window))
        return
    cut = list(_halves(ids, bos, window))
    assert len(cut) == n // window
    for i, ((a, b), (context, scored)) in enumerate(cut):
        assert len(scored) == window - window // 2 - 1  # its own count
        assert scored == ids[a:b]
        assert b == (i + 1) * window
        assert context[0] == 1
        assert context[1:] == ids[i * window + 1 : a]


# ----------------------------------------------------------------------------- meanings


def test_samples_fall_into_meanings_whatever_their_order():
    texts = ["Paris", "It is Paris.", "paris", "Rome", "London", "Paris!", "It is Rome"]

    def judge(pairs):
        return [float(("aris" in a) == ("aris" in b) and ("ome" in a) == ("ome" in b))
                for a, b in pairs]  # fmt: skip

    found = meanings([Reply(t) for t in texts], judge)
    assert [(m.text, m.probability) for m in found.meanings] == [
        ("Paris", 4 / 7), ("It is Rome", 2 / 7), ("London", 1 / 7),
    ]  # fmt: skip
    assert found.entropy == pytest.approx(-sum(p * math.log(p) for p in (4 / 7, 2 / 7, 1 / 7)))
    back = meanings([Reply(t) for t in texts[::-1]], judge)
    assert back.entropy == found.entropy
    assert {m.probability for m in back.meanings} == {m.probability for m in found.meanings}


def test_the_same_text_is_not_asked_about_and_has_no_entropy():
    found = meanings([Reply("Yes."), Reply(" yes"), Reply("YES")], lambda pairs: 1 / 0)
    assert len(found.meanings) == 1
    assert found.entropy == 0.0


def test_the_judge_is_asked_in_both_directions():
    answers = iter(["Paris", "Rome", "Paris"])
    provider = Scripted(lambda request: next(answers), scores=lambda request, choices: [-0.1, -3.0])
    found = LLM(provider).uncertainty("The capital?", n=3)
    asked = [r.messages[-1].text for r in provider.requests if len(r.messages[-1].text) > 60]
    assert sum("A: Paris\n\nAnswer B: Rome" in text for text in asked) == 2
    assert sum("A: Rome\n\nAnswer B: Paris" in text for text in asked) == 2
    assert all("Question: The capital?" in text for text in asked)
    assert len(found.meanings) == 1
    assert found.same[("Paris", "Rome")] == pytest.approx(1 / (1 + math.exp(-2.9)))


@pytest.mark.parametrize(("options", "message"), [
    ({"n": 1}, "n is 1"), ({"threshold": 1.0}, "threshold is 1.0"), ({"threshold": "x"}, "thresh"),
])  # fmt: skip
def test_wrong_arguments_of_uncertainty_are_named(options, message):
    with pytest.raises(RequestError, match=message):
        LLM(Scripted(["a"] * 5)).uncertainty("q", **options)


# ----------------------------------------------------------------------------- views


def shown(value):
    data = value._repr_mimebundle_()
    assert audit(data["text/html"]) == []
    return data["text/plain"], data["text/html"]


@pytest.mark.parametrize("hostile", XSS)
def test_no_text_of_a_person_or_a_model_is_obeyed(hostile):
    llm = LLM(Scripted([], scores=lambda request, choices: [-1.0, -2.0]))
    decision = llm.decide("q", choices=[hostile, "b"])
    items = (Item(0, hostile, hostile, "b", {hostile: 0.6, "b": 0.4}), Item(1, error=hostile))
    found = meanings([Reply(hostile), Reply("b")], lambda pairs: [0.0])
    bias = fit([decision.logprobs], ["b"], "bias")
    for value in (decision, Evaluation(items, model=hostile), found, bias):
        shown(value)


def test_a_decision_is_bars_in_the_order_given_with_its_warnings():
    llm = LLM(Scripted([], scores=lambda request, choices: [math.log(0.02), math.log(0.01)]))
    text, page = shown(llm.decide("q", choices=["no", "yes"], order="given"))
    assert text.splitlines()[0].split() == ["→", "no", "67%", "█████████████▍"]
    assert text.splitlines()[1].split()[:2] == ["yes", "33%"]
    assert "margin 0.33 · entropy 0.64 nats · one order of the choices" in text
    assert "all choices together have 3.0% of the model's probability" in text
    assert "█" in page

    def first(request, choices):
        listed = request.messages[-1].text
        return [-0.1 if listed.index(c) == min(map(listed.index, choices)) else -3.0
                for c in choices]  # fmt: skip

    text, _ = shown(LLM(Scripted([], scores=first)).decide("q", choices=["ja", "nein"]))
    assert "the order of the choices moves a probability by 90%" in text
    assert "mean over 2 orders" in text


def test_many_choices_are_cut():
    scores = Scripted([], scores=lambda request, choices: [-float(i) for i in range(60)])
    text, _ = shown(LLM(scores).decide("q", choices=[f"c{i}" for i in range(60)], order="given"))
    assert "10 more choices" in text


def test_an_evaluation_shows_its_measures_and_its_bins():
    items = [Item(i, "a", "ab"[i % 3 == 0], "a", {"a": 0.7, "b": 0.3}) for i in range(9)]
    text, page = shown(Evaluation((*items, Item(9, error="no value")), "smollm2", 2))
    assert "acc       0.667 ± 0.167" in text
    assert "acc_norm          1.000" in text
    assert "row 9: no value" in text
    assert "60% to 70%" in page
    assert "9 rows · choices as continuations · 2 examples before each · smollm2" in text


def test_a_reliability_diagram_has_a_bar_for_each_bin_with_rows():
    items = [Item(i, "a", "a", "a", {"a": 0.55 + 0.04 * i, "b": 0.45 - 0.04 * i}) for i in range(9)]
    ax = Evaluation(tuple(items)).plot(dark=True)
    assert [patch.get_height() for patch in ax.patches] == [1.0] * 4
    assert "ECE" in ax.get_title()
    assert ax.get_xlabel() == "confidence"


def test_a_perplexity_names_its_convention():
    found = Perplexity((-1.0, -2.0, -3.0), 9, "llama.cpp", 512, 512, "smollm2")
    text, _ = shown(found)
    assert found.error == pytest.approx(math.exp(2) * math.sqrt((14 / 3 - 4) / 2))
    assert "llama.cpp, window 512, stride 512" in text
    assert "3 tokens, 9 bytes" in text
    assert "7.3891 ± 4.2661" in text


def test_meanings_are_bars_with_their_members():
    replies = [Reply("Paris"), Reply("It is <Paris>"), Reply("Rome")]
    found = meanings(replies, lambda pairs: [float("Rome" not in p) for p in pairs])
    text, page = shown(found)
    assert text.splitlines()[0].split()[-2:] == ["67%", "█████████████▍"]
    assert "entropy 0.64 nats over 2 meanings of 3 answers" in text
    assert "It is &lt;Paris&gt;" in page
    assert "<details" in page


def test_objects_have_a_short_text_form():
    llm = LLM(Scripted([], scores=lambda request, choices: [-1.0, -2.0]))
    found = llm.decide("q", yes_no=True)
    assert isinstance(found, Decision)
    assert repr(found).startswith("Decision('yes', p=0.731")
    assert repr(Evaluation((Item(0, "a", "a", "a", {"a": 1.0}),))).startswith("Evaluation(n=1")
    assert found.to_dict()["choice"] == "yes"
