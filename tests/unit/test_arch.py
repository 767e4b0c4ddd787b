"""The architecture table: metadata and shapes -> Config, or an error that names what is wrong."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import families
from support.families import CASES
from support.toy import toy_gguf

from llm_magic.engine.arch import ARCHITECTURES, read_config
from llm_magic.engine.blocks import LAYER_WEIGHTS, Attention, Block, FeedForward, QKNorm
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.rope import Rope
from llm_magic.errors import GGUFError, ModelError, UnsupportedModelError

ATTENTION_BIASES = ("attn_q_bias", "attn_k_bias", "attn_v_bias")


def layer_weight(role, layer):
    return LAYER_WEIGHTS[role].format(i=layer)


def parts(path):
    """(metadata, shapes) of a file, as copies that a test may change."""
    with open_gguf(path) as file:
        return dict(file.metadata), {name: t.shape for name, t in file.tensors.items()}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return parts(toy_gguf(tmp_path_factory.mktemp("m") / "m.gguf", rope_base=5e5, rms_eps=2e-6))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return parts(
        toy_gguf(path, arch="gemma3", layers=12, tokenizer="spm", head_dim=32, rope_base=1e6)
    )


def changed(pair, keys=(), shapes=()):
    """The pair with some entries replaced, or left out where the new value is None."""
    out = []
    for old, new in zip(pair, (keys, shapes), strict=True):
        merged = {**old, **dict(new)}
        out.append({k: v for k, v in merged.items() if v is not None})
    return out


def refused(error, *pair, keys=(), shapes=()):
    with pytest.raises(error) as caught:
        read_config(*changed(pair, keys, shapes))
    return str(caught.value)


# ---------------------------------------------------------------------- what is read


def test_llama(llama):
    config = read_config(*llama)
    assert config.architecture == "llama"
    assert (config.n_layers, config.dim, config.ff) == (2, 64, 128)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.q_dim, config.kv_dim, config.n_ctx_train) == (64, 32, 512)
    assert [(layer.rope, layer.window) for layer in config.layers] == [
        (Rope(5e5, 16, "adjacent"), None)
    ] * 2
    assert config.norm_eps == pytest.approx(2e-6)
    assert config.attention_scale == 0.25
    assert (config.tied, config.embedding_scale) == (True, 1.0)
    assert config.blocks == (Block((Attention(), FeedForward("silu", width=128))),)
    assert config.attention_softcap is config.logit_softcap is None
    assert config.n_vocab == config.n_tokens == len(llama[0]["tokenizer.ggml.tokens"])
    assert config.tensors() == llama[1]


def test_gemma3(gemma):
    config = read_config(*gemma)
    local, full = (Rope(1e4, 32, "halves"), 8), (Rope(1e6, 32, "halves"), None)
    turns = [(layer.rope, layer.window) for layer in config.layers]
    assert turns == [*[local] * 5, full] * 2
    assert config.embedding_scale == 8.0
    parts = (
        Attention(qk_norm=QKNorm(), post="rms"),
        FeedForward("gelu_tanh", post="rms", width=config.ff),
    )
    assert config.blocks == (Block(parts),)
    assert config.attention_scale == pytest.approx(32**-0.5)
    assert config.tensors() == gemma[1]


def test_config_is_a_value(llama):
    config = read_config(*llama)
    assert config == read_config(*llama)
    assert hash(config) == hash(read_config(*llama))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.dim = 3


def test_untied_output_and_defaults(llama):
    keys = {"llama.rope.freq_base": None, "llama.rope.dimension_count": None}
    keys |= {"llama.attention.head_count_kv": None}
    shapes = {"output.weight": llama[1]["token_embd.weight"]}
    shapes |= {layer_weight(f"attn_{m}", i): (64, 64) for m in "kv" for i in range(2)}
    config = read_config(*changed(llama, keys, shapes))
    assert not config.tied
    assert config.n_kv_heads == 4
    assert config.layers[0].rope == Rope(1e4, 16, "adjacent")


def test_options_of_the_file(llama):
    keys = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
        "llama.attention.scale": 0.125,
        "llama.attn_logit_softcapping": 50.0,
        "llama.final_logit_softcapping": 30.0,
    }
    config = read_config(*changed(llama, keys))
    assert config.layers[0].rope.linear == 4.0
    assert config.attention_scale == 0.125
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    old = read_config(*changed(llama, {"llama.rope.scale_linear": 2.0}))
    assert old.layers[0].rope.linear == 2.0


def test_counts_for_each_layer_may_be_lists_of_one_value(llama):
    keys = {
        "llama.attention.head_count_kv": np.array([2, 2]),
        "llama.feed_forward_length": [128, 128],
    }
    assert read_config(*changed(llama, keys)) == read_config(*llama)
    text = refused(UnsupportedModelError, *llama, keys={"llama.feed_forward_length": [128, 64]})
    assert "llama.feed_forward_length" in text


def test_gemma3_patterns_of_the_window(gemma):
    flags = np.array([True, True, False] * 4)
    config = read_config(*changed(gemma, {"gemma3.attention.sliding_window_pattern": flags}))
    assert [layer.window for layer in config.layers] == [8, 8, None] * 4
    config = read_config(*changed(gemma, {"gemma3.attention.sliding_window_pattern": 3}))
    assert [layer.window for layer in config.layers] == [8, 8, None] * 4
    keys = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    config = read_config(*changed(gemma, keys | {"gemma3.rope.freq_base_swa": 2e4}))
    assert config.layers[0].rope == Rope(2e4, 32, "halves", 1.0)  # scaling: full layers only
    assert config.layers[5].rope == Rope(1e6, 32, "halves", 8.0)
    keys = {"gemma3.attention.sliding_window_pattern": [True]}
    assert "sliding_window_pattern" in refused(GGUFError, *gemma, keys=keys)
    keys = {"gemma3.attention.sliding_window": None}
    assert "gemma3.attention.sliding_window" in refused(GGUFError, *gemma, keys=keys)


def test_gemma3_of_62_layers_scales_by_its_width():
    """27B: queries were scaled by (dim / heads) ** -0.5 = 168 ** -0.5, heads are 128 wide."""
    scale = ARCHITECTURES["gemma3"].attention_scale
    assert scale(62, 5376, 32, 128) == pytest.approx(168**-0.5)
    assert scale(48, 3840, 16, 256) == pytest.approx(256**-0.5)


# ---------------------------------------------------------------------- rope


# B088
def test_rope_freqs_divide_the_frequencies(llama):
    rope = Rope(1e4, 8, "adjacent")
    plain = rope.inv_freq()
    assert plain == pytest.approx([1.0, 0.1, 0.01, 0.001])
    factors = np.array([1, 1, 8, 8], np.float32)
    assert rope.inv_freq(factors) == pytest.approx([1.0, 0.1, 0.00125, 0.000125])
    near, far = (np.cos(p * plain) - np.cos(p * rope.inv_freq(factors)) for p in (1, 5000))
    assert np.abs(near).max() < 1e-3 < 0.1 < np.abs(far).max()
    config = read_config(*changed(llama, shapes={"rope_freqs.weight": (8,)}))
    assert config.layers[0].rope.factors == "rope_factors"
    assert "rope_freqs.weight" in config.tensors()
    text = refused(GGUFError, *llama, shapes={"rope_freqs.weight": (7,)})
    assert text == "tensor rope_freqs.weight has shape [7], expected [8]"


# B088
def test_factors_of_llama_3_1():
    """The file's factors are 1 below a wavelength of 2048, 8 above 8192, smooth between."""
    base, dim, factor, low, high, old = 5e5, 128, 8.0, 1.0, 4.0, 8192
    freq = Rope(base, dim, "adjacent").inv_freq()
    wavelength = 2 * math.pi / freq
    smooth = np.clip((old / wavelength - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / factor + smooth)
    scaled = Rope(base, dim, "adjacent").inv_freq(factors.astype(np.float32))
    assert scaled[wavelength < old / high] == pytest.approx(freq[wavelength < old / high])
    assert scaled[wavelength > old / low] == pytest.approx(freq[wavelength > old / low] / 8)


def test_linear_scaling_divides_positions():
    rope = Rope(1e4, 4, "halves", linear=4.0)
    assert 8 * rope.inv_freq() == pytest.approx(2 * Rope(1e4, 4, "halves").inv_freq())


def test_yarn_keeps_fast_pairs_and_slows_slow_ones(llama):
    """Peng et al. 2023; what the model does to its magnitude is in the file."""
    keys = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 64,
        "llama.rope.freq_base": 1e4,
    }
    rope = read_config(*changed(llama, keys)).layers[0].rope
    plain = Rope(1e4, 16, "adjacent").inv_freq()
    assert rope.inv_freq()[0] == pytest.approx(plain[0])
    assert rope.inv_freq()[-1] == pytest.approx(plain[-1] / 4)
    assert rope.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    undone = keys | {"llama.rope.scaling.yarn_log_multiplier": 1.0}
    assert read_config(*changed(llama, undone)).layers[0].rope.magnitude == pytest.approx(1.0)
    assert "llama.rope.scaling.factor" in refused(
        GGUFError, *llama, keys=keys | {"llama.rope.scaling.factor": None}
    )
    text = refused(GGUFError, *llama, keys=keys | {"llama.rope.freq_base": 1.0})
    assert "rope.freq_base" in text


def test_a_context_that_no_part_computes_is_left_out():
    """Queries of Ministral 3 grow with their position beyond the original context."""
    case = CASES["mistral3"]
    metadata = {f"mistral3.{key}": value for key, value in families.keys(case).items()}
    metadata["general.architecture"] = "mistral3"
    assert read_config(metadata, families.tensors(case)).n_ctx_train == 64
    del metadata["mistral3.attention.temperature_scale"]
    assert read_config(metadata, families.tensors(case)).n_ctx_train == families.CTX


def test_longrope_takes_the_factors_of_its_context(llama):
    shapes = {"rope_factors_long.weight": (8,), "rope_factors_short.weight": (8,)}
    keys = {"llama.rope.scaling.original_context_length": 128}
    config = read_config(*changed(llama, keys, shapes))
    short, long = config.at_context(128), config.at_context(129)
    assert short.layers[0].rope.factors == "rope_factors_short"
    assert long.layers[0].rope.factors == "rope_factors_long"
    assert (short.n_ctx_most, long.n_ctx_most, long.n_ctx_train) == (128, 512, 512)
    assert short.at_context(64) == short
    assert config.tensors() == llama[1] | shapes
    shapes["rope_factors_short.weight"] = None
    text = refused(GGUFError, *llama, keys=keys, shapes=shapes)
    assert text == "the file lacks rope_factors_short.weight"


@pytest.mark.parametrize("kind", ["dynamic", 7])
def test_other_rope_scalings_are_refused_by_name(llama, kind):
    text = refused(UnsupportedModelError, *llama, keys={"llama.rope.scaling.type": kind})
    assert f"rope scaling {kind!r}" in text
    assert "linear" in text


# ---------------------------------------------------------------------- what is refused


# LAI-30
@pytest.mark.parametrize("name", ["bert", "nomic-bert", "whisper", "sd3", "LLaMA"])
def test_other_model_types_are_refused_with_their_name(llama, name):
    text = refused(UnsupportedModelError, *llama, keys={"general.architecture": name})
    known = ", ".join(sorted(ARCHITECTURES))
    assert text == f"architecture {name!r} is not supported; supported: {known}"


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.block_count",
        "llama.rope.freq_base",
        "llama.rope.scaling.type",
    ],
)
@pytest.mark.parametrize("value", ["x" * 1_000_000, ["x" * 1_000_000, "y"], np.ones(1_000_000)])
def test_a_value_of_any_length_gives_a_short_message(llama, key, value):
    assert len(refused(ModelError, *llama, keys={key: value})) < 600


REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_keys_are_named(llama, key):
    assert refused(GGUFError, *llama, keys={f"llama.{key}": None}) == f"metadata lacks llama.{key}"


@pytest.mark.parametrize("key", [k for k in REQUIRED if "epsilon" not in k])
@pytest.mark.parametrize("value", [0, -1, 2**31, 2**64, 1.5, "8", True, [], ["8", "8"], [1.5]])
def test_wrong_counts_are_named(llama, key, value):
    assert f"llama.{key}" in refused(GGUFError, *llama, keys={f"llama.{key}": value})


@pytest.mark.parametrize("value", [0.0, -1e-5, math.nan, math.inf, "x", True, np.ones(2)])
@pytest.mark.parametrize("key", ["attention.layer_norm_rms_epsilon", "rope.freq_base"])
def test_wrong_numbers_are_named(llama, key, value):
    assert f"llama.{key}" in refused(GGUFError, *llama, keys={f"llama.{key}": value})


@pytest.mark.parametrize("value", [math.nan, -1.0, "x", np.ones(2)])
@pytest.mark.parametrize("key", ["attention.scale", "final_logit_softcapping", "rope.scale_linear"])
def test_wrong_options_are_named_and_zero_means_unset(llama, key, value):
    assert f"llama.{key}" in refused(GGUFError, *llama, keys={f"llama.{key}": value})
    assert read_config(*changed(llama, {f"llama.{key}": 0.0})) == read_config(*llama)


@pytest.mark.parametrize("value", [7, "abc", np.ones(3)])
def test_a_vocabulary_that_is_no_list(llama, value):
    text = refused(GGUFError, *llama, keys={"tokenizer.ggml.tokens": value})
    assert "tokenizer.ggml.tokens" in text


@pytest.mark.parametrize("value", [None, 3])
def test_no_architecture(llama, value):
    text = refused(GGUFError, *llama, keys={"general.architecture": value})
    assert text == "metadata lacks general.architecture"


def test_numbers_that_contradict_each_other(llama):
    def text(**keys):
        dotted = {f"llama.{k.replace('__', '.')}": v for k, v in keys.items()}
        return refused(ModelError, *llama, keys=dotted)

    assert "(4) is not a multiple of llama.attention.head_count_kv (3)" in text(
        attention__head_count_kv=3
    )
    assert "(64) is not a multiple of llama.attention.head_count (5)" in text(
        attention__head_count=5, attention__head_count_kv=5
    )
    assert "at most 16, not 32" in text(rope__dimension_count=32)
    assert "must be even" in text(rope__dimension_count=7)
    assert "values have 8 entries" in text(attention__value_length=8)
    assert "block_count is 900, the file has" in text(block_count=900)
    assert "the file lacks blk.2.attn_k.weight" in text(block_count=3)


def test_tensors_that_are_missing_or_have_another_shape(llama):
    text = refused(GGUFError, *llama, shapes={"blk.1.ffn_up.weight": None})
    assert text == "the file lacks blk.1.ffn_up.weight"
    every = {name: None for name in llama[1] if name.startswith("blk.")}
    text = refused(GGUFError, *llama, shapes=every, keys={"llama.block_count": 1})
    assert "blk.0.attn_k.weight" in text
    text = refused(GGUFError, *llama, shapes={"blk.0.attn_q.weight": (64, 63)})
    assert text == "tensor blk.0.attn_q.weight has shape [64, 63], expected [64, 64]"
    for shape in (None, (64,), (2, 2, 64)):
        text = refused(GGUFError, *llama, shapes={"token_embd.weight": shape})
        assert "token_embd.weight is missing or not a matrix" in text


def test_tensors_that_mean_another_computation_are_refused(llama):
    """A mixture of experts, a bias: numbers without them would be wrong in silence."""
    extra = {f"blk.{i}.ffn_gate_inp.weight": (8, 64) for i in range(2)}
    text = refused(UnsupportedModelError, *llama, shapes=extra)
    assert "blk.0.ffn_gate_inp.weight, blk.1.ffn_gate_inp.weight" in text
    many = {f"blk.0.extra{i}.weight": (1,) for i in range(20)}
    assert "and 12 more" in refused(UnsupportedModelError, *llama, shapes=many)
    harmless = {"blk.0.attn_rot_embd.weight": (8,)}
    assert read_config(*changed(llama, shapes=harmless)) == read_config(*llama)


def test_biases_count_when_they_are_there(llama):
    biases = {
        layer_weight(f"attn_{m}_bias", i): (n,)
        for i in (0, 1)
        for m, n in zip("qkv", (64, 32, 32), strict=True)
    }
    config = read_config(*changed(llama, shapes=biases))
    assert config.layers[0].block.attention.biases == set(ATTENTION_BIASES)
    del biases["blk.1.attn_k.bias"]
    assert refused(GGUFError, *llama, shapes=biases) == "the file lacks blk.1.attn_k.bias"
    outputs = {layer_weight("attn_output_bias", i): (64,) for i in (0, 1)}
    config = read_config(*changed(llama, shapes=outputs))
    assert config.layers[0].block.attention.biases == {"attn_output_bias"}


# B091
def test_more_rows_than_tokens_load_and_fewer_do_not(tmp_path):
    config = read_config(*parts(toy_gguf(tmp_path / "more.gguf", embed_rows=320)))
    assert config.n_vocab == 320
    assert config.n_tokens == 299
    pair = parts(toy_gguf(tmp_path / "fewer.gguf", embed_rows=290))
    text = refused(GGUFError, *pair)
    assert text == ("tokenizer.ggml.tokens has 299 entries, but token_embd.weight only 290 rows")
    alone = read_config(*parts(toy_gguf(tmp_path / "none.gguf", tokenizer="none", vocab=70)))
    assert alone.n_vocab == alone.n_tokens == 70


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.integers(0, 255), max_size=3).map(np.array),
    st.lists(st.floats(), max_size=3).map(np.array),
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(CASES)), st.data())
def test_any_value_of_a_family_gives_a_config_or_an_error_of_ours(name, data):
    case = CASES[name]
    metadata = {f"{case.arch}.{key}": value for key, value in families.keys(case).items()}
    metadata["general.architecture"] = case.arch
    shapes = families.tensors(case)
    assert read_config(metadata, shapes).tensors() == shapes
    lies = data.draw(st.dictionaries(st.sampled_from(sorted(metadata)), JUNK, max_size=2))
    try:
        config = read_config(*changed((metadata, shapes), lies))
    except ModelError:
        return
    assert config.at_context(16).tensors().keys() <= shapes.keys()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_metadata_gives_a_config_or_an_error_of_ours(gemma, data):
    keys = st.sampled_from([*gemma[0], "gemma3.rope.scaling.type", "gemma3.attention.scale",
                            "gemma3.attention.sliding_window_pattern"])  # fmt: skip
    lies = data.draw(st.dictionaries(keys, JUNK, min_size=1, max_size=2))
    try:
        config = read_config(*changed(gemma, lies))
    except ModelError:
        return
    assert config.tensors().keys() <= gemma[1].keys()
