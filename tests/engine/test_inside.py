"""Looking into a model through `LLM`: records, lenses, accounting, edits, causes, the lab."""

import contextlib
import math
from itertools import pairwise

import numpy as np
import pytest
from support import families
from support.kernels_oracle import Oracle
from support.toy import toy_gguf

from llm_magic import LLM, Add, ControlVector, Mean, Patch, Taps, Zero
from llm_magic.engine.serving.sampler import Sampler
from llm_magic.errors import RequestError, UnsupportedError
from llm_magic.events import Sampling
from llm_magic.inside.causes import sentences
from llm_magic.providers.local import Local
from llm_magic.providers.scripted import Scripted
from llm_magic.taps import full_name, sites

TEXT = "The world and the land. Once upon a time and there was a king."
LAYERS = 3


def _llm(path, **options):
    local = Local(path.stem, path, 256, 4, 2, **options)
    local.wait(lambda progress: None)
    return LLM(local)


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def llm(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    kind = "spm" if request.param == "gemma2" else "bpe"
    path = toy_gguf(
        folder / f"{request.param}.gguf",
        arch=request.param,
        layers=LAYERS,
        tokenizer=kind,
        types="Q8_0",
    )
    with contextlib.closing(_llm(path).provider) as provider:
        yield LLM(provider)


@pytest.fixture(scope="module")
def whole(llm):
    return llm.inspect(TEXT, read=["blocks.*", "hook_embed", "ln_final.hook_normalized"])


# ----------------------------------------------------------------------------- records


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek2"])
def test_patterns_times_values_are_what_heads_give(name, tmp_path):
    """Sinks take a part of the attention; values may be shorter than keys."""
    case = families.CASES[name]
    path = families.write(tmp_path / f"{name}.gguf", case)
    with contextlib.closing(_llm(path).provider) as provider:
        record = LLM(provider).inspect(TEXT, read=["blocks.*"])
        for i in range(case.layers):
            pattern, v, z = record["pattern", i], record["v", i], record["z", i]
            v = np.repeat(v, len(pattern) // v.shape[1], 1)[..., : z.shape[-1]]
            np.testing.assert_allclose(np.einsum("hqk,khd->qhd", pattern, v), z, atol=1e-3)
            assert (pattern.sum(-1) < 0.999).any() == (name == "gpt-oss")


def test_an_array_answers_to_all_its_names(whole):
    for key in (
        ("pattern", 1),
        ("attn.hook_pattern", 1),
        ("pattern", -2),
        "blocks.1.attn.hook_pattern",
    ):
        assert whole[key] is whole["pattern", 1]
    assert whole["blocks.2.hook_out"] is whole["resid_post", 2]
    assert "blocks.1.attn.hook_pattern" in whole.names
    assert ("mlp_out", 0) in whole
    assert full_name(("normalized", None)) in whole.names


def test_records_are_those_of_an_independent_forward_pass(llm, whole):
    oracle = Oracle(llm.provider.path)
    oracle.logits(whole.ids)
    for (name, block), got in ((site, whole[site]) for site in whole):
        point = {"rot_q": "q", "rot_k": "k", "embed": "resid_pre"}.get(name, name)
        at = block if block is not None else LAYERS - 1 if name == "normalized" else 0
        expected = oracle.points[point, at]
        if name in ("rot_q", "rot_k") and llm.provider.inside.architecture == "llama":
            continue  # in another order of entries: tests/engine/test_taps.py
        error = np.abs(got.reshape(expected.shape) - expected).max() / np.abs(expected).max()
        assert error <= 1e-3, (name, block)


def test_rows_of_patterns_sum_to_one_and_see_nothing_ahead(whole):
    for i in range(LAYERS):
        pattern = whole["pattern", i]
        np.testing.assert_allclose(pattern.sum(-1), 1, atol=1e-5)
        assert not np.triu(pattern, 1).any()


def test_some_positions_are_rows_of_the_whole(llm, whole):
    few = llm.inspect(TEXT, read=[("resid_mid", 1), ("pattern", 2)], positions=[3, -1])
    n = len(whole.ids)
    assert few.positions == (3, n - 1)
    np.testing.assert_array_equal(few["resid_mid", 1], whole["resid_mid", 1][[3, n - 1]])
    np.testing.assert_array_equal(few["pattern", 2], whole["pattern", 2][:, [3, n - 1]])


def test_an_answer_is_recorded_while_it_is_made(llm):
    reply = llm.complete(TEXT, max_tokens=6, taps=Taps(("resid_post", LAYERS - 1)))
    plain = llm.complete(TEXT, max_tokens=6)
    assert [t.id for t in reply.tokens] == [t.id for t in plain.tokens]
    found = reply.inspection
    assert found.ids == (*reply.prompt_ids, *(t.id for t in reply.tokens))[: len(found.ids)]
    assert len(found.ids) >= len(reply.prompt_ids) + len(reply.tokens) - 1
    again = llm.inspect(found.ids, read=("resid_post", LAYERS - 1))
    np.testing.assert_array_equal(found["resid_post", -1], again["resid_post", -1])
    assert plain.capture is None
    with pytest.raises(RequestError, match="nothing was recorded"):
        _ = plain.inspection


@pytest.mark.parametrize(
    ("read", "says"),
    [
        ("blocks.0.hook_resid_pots", "did you mean blocks.0.hook_resid_post"),
        (("resid_post", LAYERS), f"from 0 to {LAYERS - 1}"),
        (("residual", 0), "unknown activation"),
        (3, "unknown activation|no name"),
    ],
)
def test_names_that_are_none_get_the_near_ones(llm, read, says):
    with pytest.raises((RequestError, TypeError), match=says):
        llm.inspect(TEXT, read=[read])


def test_a_record_larger_than_its_bound_is_refused_with_its_size(llm):
    with pytest.raises(RequestError, match=r"takes \d+ MB .* max_mb=0 allows 0"):
        llm.inspect(TEXT, read="blocks.*", max_mb=0)


def test_another_providers_model_cannot_be_looked_into():
    llm = LLM(Scripted(["x"]))
    with pytest.raises(UnsupportedError, match="inspect"):
        llm.inspect(TEXT)
    for options in ({"edit": Zero("mlp_out", 0)}, {"taps": Taps()}):
        with pytest.raises(UnsupportedError, match="inspect"):
            llm.complete(TEXT, **options)


def test_sites_are_in_the_order_of_the_model():
    assert sites([("pattern", 1), "blocks.0.hook_*", "hook_embed"], 2)[:2] == [
        ("embed", None),
        ("resid_pre", 0),
    ]


# ----------------------------------------------------------------------------- lenses, accounting


def test_the_last_row_of_a_lens_is_the_output_bit_for_bit(llm, whole):
    lens = whole.lens(top=3)
    logits = llm.provider.inside.logits(whole["resid_post", -1])
    expected = np.argsort(-logits, -1, kind="stable")[:, :3]
    np.testing.assert_array_equal(lens.ids[-1], expected)
    reply = llm.complete(TEXT, max_tokens=1, logprobs=3)
    if llm.provider.inside.architecture == "llama":  # the same log-sum-exp of the step
        assert [t.logprob for t in reply.tokens[0].top] == pytest.approx(
            lens.logprobs[-1, -1].tolist(), abs=1e-6
        )
    assert reply.tokens[0].id == lens.ids[-1, -1, 0]
    entropy = whole.lens(colour="entropy").entropy
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    np.testing.assert_allclose(entropy[-1], -(p * np.log(p)).sum(-1), rtol=1e-3)


def test_translators_of_a_tuned_lens_go_before_it(whole, tmp_path):
    from llm_magic.inside.lens import Translators

    dim = whole["resid_post", 0].shape[1]
    np.savez(tmp_path / "t.npz", **{"0.weight": -np.eye(dim), "0.bias": np.ones(dim)})
    tuned = whole.lens(translators=Translators.load(tmp_path / "t.npz"))
    plain = whole.lens()
    np.testing.assert_array_equal(tuned.ids[1:], plain.ids[1:])
    assert len({tuple(row) for row in tuned.ids[0].tolist()}) == 1  # the bias alone
    with pytest.raises(RequestError, match="savez"):
        Translators.load(tmp_path / "t.pt")


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("against", [9, None])
def test_the_parts_of_an_attribution_sum_to_the_difference_of_logits(llm, whole, heads, against):
    found = whole.attribution(7, against, heads=heads)
    logits = llm.provider.inside.logits(whole["resid_post", -1])[-1].astype(np.float64)
    if cap := llm.provider.inside.anatomy.softcap:
        logits = cap * np.arctanh(logits / cap)
    difference = logits[7] - (logits.mean() if against is None else logits[against])
    assert found.total == pytest.approx(difference, abs=1e-6)
    assert math.fsum(part.value for part in found.parts) == pytest.approx(found.total, abs=1e-12)
    rounding = next(part for part in found.parts if part.name == "rounding")
    assert abs(rounding.value) <= 2e-3 * max(1.0, *(abs(p.value) for p in found.parts))
    assert sum(part.head is not None for part in found.parts) == (4 * LAYERS if heads else 0)


def test_views_have_html_and_text(llm, whole):
    reply = llm.complete(TEXT, max_tokens=4)
    shown = [
        whole,
        whole.lens(),
        whole.lens(colour="entropy"),
        whole.attention(1),
        whole.attention(1, head=0),
        whole.attention(1, head=0, token=3),
        whole.norms(),
        whole.attribution(7),
        reply.causes(llm=llm),
        llm.sampling_lab(TEXT, top_k=5),
    ]
    for view in shown:
        bundle = view._repr_mimebundle_()
        assert set(bundle) == {"text/plain", "text/html"}
        assert bundle["text/html"].startswith('<div class="llm-magic">')
        assert repr(view) == bundle["text/plain"]


# ----------------------------------------------------------------------------- edits


def logprobs(reply):
    return [(t.id, t.logprob) for t in reply.tokens]


def run(llm, **options):
    return logprobs(llm.complete(TEXT, max_tokens=6, **options))


def test_strength_zero_and_patching_everything_with_itself_change_no_bit(llm, whole):
    plain = run(llm)
    vector = np.ones(whole["resid_post", 0].shape[1])
    assert run(llm, edit=Add("resid_post", 1, vector, 0.0)) == plain
    for point in ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post", "z"):
        assert run(llm, edit=Patch(point, range(LAYERS), whole)) == plain
    assert run(llm, edit=Add("resid_post", 1, vector)) != plain
    assert run(llm) == plain


def test_edited_and_plain_requests_run_side_by_side(llm, whole):
    vector = np.ones(whole["resid_post", 0].shape[1])
    edits = [(), Add("resid_post", 1, vector), Zero("mlp_out", 0), Zero("z", 1, head=2)]
    edits.append(Mean("attn_out", 1, whole))
    alone = [run(llm, edit=edit) for edit in edits]
    streams = [llm.stream(TEXT, max_tokens=6, edit=edit) for edit in edits]
    running = list(streams)
    while running:
        running = [s for s in running if next(s, None) is not None]
    assert [logprobs(s.reply) for s in streams] == alone
    assert len({tuple(found) for found in alone}) == len(edits)


def test_edits_of_positions_leave_what_is_before_them(llm, whole):
    n = len(whole.ids)
    edited = llm.inspect(TEXT, "blocks.*.hook_resid_post", edit=Zero("resid_post", 0, [4, -1]))
    np.testing.assert_array_equal(edited["resid_post", 2][:4], whole["resid_post", 2][:4])
    assert not edited["resid_post", 0][[4, n - 1]].any()
    np.testing.assert_array_equal(edited["resid_post", 0][5:-1], whole["resid_post", 0][5:-1])
    assert (edited["resid_post", 2][5:] != whole["resid_post", 2][5:]).any()


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (Add("resid_post", 0, [1.0, 2.0]), "needs 64 numbers"),
        (Add("resid_post", LAYERS, np.ones(64)), "there is no block"),
        (Add("rot_q", 0, np.ones(64)), "cannot be edited"),
        (Add("resid_post", 0, np.full(64, np.nan)), "finite"),
        (Add("resid_post", 0, np.ones(64), positions=500), "no position 500"),
        (Zero("z", 0, head=9), "no head 9"),
        (Zero("mlp_out", 0, head=1), "no heads"),
        ("steer", "edit holds a str"),
    ],
)
def test_edits_that_cannot_be_are_refused_by_name(llm, edit, says):
    with pytest.raises(RequestError, match=says):
        llm.complete(TEXT, edit=edit)


# ----------------------------------------------------------------------------- control vectors


PAIRS = ([f"the king {w}" for w in ("and", "was", "upon", "time")],
         [f"the land {w}" for w in ("and", "was", "upon", "time")])  # fmt: skip


def test_a_control_vector_is_the_main_direction_of_differences(llm):
    vector = llm.steering(*PAIRS)
    means = llm.steering(*PAIRS, method="mean_diff")
    for i in range(1, LAYERS):
        ends = [
            np.stack([llm.inspect(t, ("resid_post", i), -1)["resid_post", i][0] for t in texts])
            for texts in PAIRS
        ]
        rows = (ends[0] - ends[1]).astype(np.float64)
        _, _, directions = np.linalg.svd(rows)
        assert abs(directions[0] @ vector.directions[i]) >= 0.999
        mean = rows.mean(0) / np.linalg.norm(rows.mean(0))
        assert mean @ means.directions[i] >= 0.9999
        assert mean @ vector.directions[i] > 0
        assert np.linalg.norm(vector.directions[i]) == pytest.approx(1, abs=1e-5)


def test_a_control_vector_survives_its_file(llm, tmp_path):
    vector = llm.steering(*PAIRS) * 2
    vector.save(tmp_path / "v.gguf")
    again = llm.control_vector(tmp_path / "v.gguf")
    assert again.model == llm.provider.inside.architecture
    for i, direction in vector.directions.items():
        np.testing.assert_array_equal(again.directions[i], 2 * direction)
    assert run(llm, edit=again) == run(llm, edit=vector)
    assert run(llm, edit=vector * 0) == run(llm)
    with pytest.raises(RequestError, match="no control vector"):
        ControlVector.load(llm.provider.path)
    ControlVector({1: np.ones(5)}).save(tmp_path / "other.gguf")
    with pytest.raises(RequestError, match="another model"):
        llm.control_vector(tmp_path / "other.gguf")
    with pytest.raises(RequestError, match="they are pairs"):
        llm.steering(["a"], ["b", "c"])


# ----------------------------------------------------------------------------- causes, the lab


def test_causes_are_those_of_brute_force_bit_for_bit(llm):
    reply = llm.complete(TEXT, max_tokens=5)
    found = reply.causes(llm=llm)
    assert [part.text.strip() for part in found.parts] == [s.strip() for s in sentences(TEXT)]
    said = [t.id for t in reply.tokens]

    def alone(ids):
        pairs = llm.provider.score_continuations([(ids, said)])
        return next(pairs).logprob

    ids = reply.prompt_ids
    assert found.logprob == alone(ids)
    for part in found.parts:
        assert part.effect == found.logprob - alone((*ids[: part.start], *ids[part.stop :]))
    tokens = reply.causes(parts="tokens", of=(1, 3), llm=llm)
    assert len(tokens.parts) in (len(ids), len(ids) - 1)  # BOS stays
    with pytest.raises(RequestError, match="of is"):
        reply.causes(of=(3, 9), llm=llm)
    with pytest.raises(RequestError, match="parts is"):
        reply.causes(parts="words", llm=llm)


def test_causes_evaluate_each_beginning_once(llm):
    """What is left out last comes first, so the rest of each text is all that is evaluated."""
    reply = llm.complete(" ".join(f"The world {i} and the land." for i in range(6)), max_tokens=3)
    forward, rows = llm.provider.engine.loaded().forward, []
    step = forward.step
    forward.step = lambda tokens, *rest: rows.append(len(tokens)) or step(tokens, *rest)
    try:
        parts = reply.causes(llm=llm).parts
    finally:
        del forward.step
    assert len(parts) == 6
    n, said = len(reply.prompt_ids), len(reply.tokens)
    assert sum(rows) <= sum(n - part.stop + said for part in parts) + n + said


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
        {"temperature": 1.3, "typical_p": 0.6, "repeat_penalty": 1.5},
        {"temperature": 0},
    ],
)
def test_the_lab_keeps_what_the_sampler_keeps(llm, settings):
    lab = llm.sampling_lab(TEXT, **settings)
    ids = llm._ids_of(TEXT)
    last = llm.inspect(TEXT, ("resid_post", -1), -1)["resid_post", -1]
    logits = llm.provider.inside.logits(last)[0]
    sampler = Sampler(Sampling(**settings, seed=1), len(logits), history=ids)
    if sampler._s.greedy:
        assert lab.kept == {sampler.pick(logits).id}
        return
    shaped = sampler._shape(logits)[0] if sampler._changes else logits
    kept, values = sampler._filter(shaped)
    assert lab.kept == frozenset(kept.tolist())
    weights = np.exp((values - values.max()).astype(np.float64) / settings["temperature"])
    expected = dict(zip(kept.tolist(), weights / weights.sum(), strict=True))
    for token, p in zip(lab.stages[-1].ids.tolist(), lab.stages[-1].probabilities, strict=True):
        assert p == pytest.approx(expected[token], rel=1e-4)
    names = [stage.name for stage in lab.stages]
    assert names[0] == "logits"
    assert names[-1] == "temperature"
    assert all(len(a) >= len(b) for a, b in pairwise(lab.stages))
    with pytest.raises(RequestError, match="sampling settings only"):
        llm.sampling_lab(TEXT, logprobs=3)


def test_parallel_blocks_have_no_middle_and_add_up_all_the_same(tmp_path):
    path = families.write(tmp_path / "g.gguf", families.CASES["gptneox"])
    with contextlib.closing(_llm(path).provider) as provider:
        llm = LLM(provider)
        for ask in (
            lambda: llm.inspect([5, 6, 7], "blocks.0.hook_resid_mid"),
            lambda: llm.complete([5, 6, 7], edit=Zero("resid_mid", 0), max_tokens=1),
        ):
            with pytest.raises(RequestError, match="it has no resid_mid"):
                ask()
        found = llm.inspect([5, 6, 7], "blocks.*.hook_*")
        assert ("resid_mid", 0) not in found
        assert abs(found.attribution(7).parts[-1].value) <= 1e-3
