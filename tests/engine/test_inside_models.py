"""Activations of real models against transformers in float32 (tests/data/inside).

Goldens: the stream behind some blocks, a pattern, and the logit lens of every block and position.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from conftest import missing
from support.kernels_oracle import portable_forward
from support.llamacpp import last_logits

import llm_magic
from llm_magic.engine.forward import Read, Taps
from llm_magic.engine.portable.forward import MAX_ROWS

DATA = Path(__file__).parents[1] / "data" / "inside"
PATTERN = 5
MODELS = [
    pytest.param("smollm2", marks=pytest.mark.model),
    pytest.param("gemma3-270m", marks=pytest.mark.gemma),
]


def golden(name):
    with np.load(DATA / f"{name.split('-')[0]}.npz") as file:
        return {key: file[key] for key in file.files}


def off(got, expected):
    """Relative error of each vector, the largest."""
    error = np.linalg.norm(got - expected, axis=-1)
    return float((error / np.linalg.norm(expected, axis=-1)).max())


@pytest.mark.parametrize("name", MODELS)
def test_records_and_lenses_are_those_of_transformers(name):
    reference = golden(name)
    llm = llm_magic.load(name)
    found = llm.inspect(reference["ids"].tolist(), read=["blocks.*.hook_resid_post"])
    for block, expected, norm in zip(
        reference["blocks"], reference["streams"], reference["norms"], strict=True
    ):
        stream = found["resid_post", int(block)]
        # Activations of 15 bits in every product of every block.
        assert off(stream[:, reference["entries"]], expected) <= 5e-3, block
        np.testing.assert_allclose(np.linalg.norm(stream, axis=-1), norm, rtol=2e-3)
    pattern = llm.inspect(reference["ids"].tolist(), ("pattern", PATTERN))["pattern", PATTERN]
    np.testing.assert_allclose(pattern, reference["pattern"], atol=5e-3)
    lens = found.lens()
    same = lens.ids[:, :, 0] == reference["lens"]
    assert same.mean() >= 0.999, f"{(~same).sum()} of {same.size} cells differ"
    logits = llm.provider.logprobs(found.ids)
    np.testing.assert_array_equal(lens.ids[-1, :, 0], logits.argmax(-1))
    llm.unload()


@pytest.mark.parametrize("name", MODELS)
def test_a_control_vector_steers_as_in_transformers(name, tmp_path):
    """Through its file; the vectors are those of tests/data/inside/regenerate.py."""
    reference = golden(name)
    llm = llm_magic.load(name)
    dim, last = llm.provider.inside.anatomy.dim, llm.provider.inside.anatomy.n_layers - 1
    directions = {i: np.random.default_rng(i).standard_normal(dim) for i in range(3, 9)}
    llm_magic.ControlVector(directions, "llama").save(tmp_path / "v.gguf")
    vector = llm.control_vector(tmp_path / "v.gguf")
    found = llm.inspect(reference["ids"].tolist(), ("resid_post", last), edit=vector)
    stream = found["resid_post", last]
    assert off(stream[:, reference["entries"]], reference["steered"]) <= 1e-2
    best = llm.provider.inside.likeliest(stream, 1).ids[:, 0]
    np.testing.assert_array_equal(best, reference["steered_best"])
    llm.unload()


@pytest.mark.model
@pytest.mark.peers
def test_a_control_vector_moves_the_logits_as_in_llamacpp(smollm2_path):
    """Within llama.cpp's own rounding, which the same prompt without a vector shows."""
    if importlib.util.find_spec("xllamacpp") is None:
        missing("peers", "pip install '.[peers]'")
    llm = llm_magic.load("smollm2")
    ids = [piece.id for piece in llm.tokenize("The weather in the mountains was")]
    anatomy = llm.provider.inside.anatomy
    added = np.zeros((anatomy.n_layers - 1, anatomy.dim), np.float32)
    for i in range(3, 9):  # its rows begin with layer 1
        added[i - 1] = np.random.default_rng(i).standard_normal(anatomy.dim)
    vector = llm_magic.ControlVector({i: added[i - 1] for i in range(3, 9)}, "llama")
    own = llm.logprobs(ids)[-1]
    theirs = logprobs_of(last_logits(smollm2_path, ids, len(own)))
    steered = logprobs_of(last_logits(smollm2_path, ids, len(own), added))
    rounding = np.abs(own - theirs).max()
    reply = llm.complete(ids, edit=vector, max_tokens=1, logprobs=20, temperature=0)
    top = reply.tokens[0].top
    assert top[0].id == steered.argmax()
    assert max(abs(t.logprob - steered[t.id]) for t in top) <= rounding < 0.6
    assert max(abs(t.logprob - theirs[t.id]) for t in top) > 4 * rounding  # the vector does much
    llm.unload()


def logprobs_of(logits):
    wide = logits.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


@pytest.mark.model
def test_the_portable_path_is_transformers_to_four_digits(smollm2_path):
    reference = golden("smollm2")
    forward = portable_forward(smollm2_path, n_ctx=64, n_slots=1)
    ids = reference["ids"].astype(np.int32)
    assert len(ids) <= MAX_ROWS
    rows = np.arange(len(ids), dtype=np.int32)
    out = [np.empty((len(ids), forward.config.dim), np.float32) for _ in reference["blocks"]]
    pairs = zip(reference["blocks"], out, strict=True)
    reads = tuple(Read("resid_post", int(b), 0, o) for b, o in pairs)
    forward.step(ids, rows * 0, rows, rows[:0], taps=Taps(reads))
    for stream, expected in zip(out, reference["streams"], strict=True):
        assert off(stream[:, reference["entries"]], expected) <= 1e-4
    forward.close()


@pytest.mark.model
def test_a_lens_of_64_tokens_is_one_small_page(smollm2):
    text = "The quick brown fox jumps over the lazy dog. " * 8
    found = smollm2.inspect(smollm2._ids_of(text)[:64])
    assert len(found.positions) == 64
    lens = found.lens()
    assert lens.ids.shape == (30, 64, 5)
    assert len(lens.html.encode()) <= 200_000
    assert len(found.lens(colour="entropy").html.encode()) <= 200_000


@pytest.mark.model
def test_off_costs_nothing(smollm2):
    """The same bits before and behind requests with taps, and no taps in the job of a step."""
    plain = [(t.id, t.logprob) for t in smollm2.complete("Once upon a time", max_tokens=8).tokens]
    forward = smollm2.provider.engine.loaded().forward
    smollm2.complete("Once upon a time", max_tokens=8, taps=llm_magic.Taps("blocks.0.*"))
    again = smollm2.complete("Once upon a time", max_tokens=8, reuse=False)
    assert int(forward._words[4]) == 0  # of the last step: no taps
    assert [(t.id, t.logprob) for t in again.tokens] == plain
