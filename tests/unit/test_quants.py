"""Every block type against gguf.quants, bit for bit."""

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy import random_blocks, toy_gguf

from llm_magic.engine import quants
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.quants import QUANTS, check_supported, decode, dequantize
from llm_magic.errors import UnsupportedModelError

KINDS = {q.name: k for k, q in QUANTS.items()}
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
SCALES |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108]}
SCALES |= {"IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}
SCALES |= {k: [0] for k in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S")}


def oracle(kind: str, raw: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(-1)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def test_the_table_has_the_sizes_of_ggml() -> None:
    for kind, q in QUANTS.items():
        assert gguf.GGMLQuantizationType(kind).name == q.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (q.block, q.bytes)


# TG-87
def test_needed_types_are_there() -> None:
    need = (
        "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS "
        "IQ2_S IQ3_XXS IQ3_S IQ4_XS IQ4_NL TQ1_0 TQ2_0 MXFP4 NVFP4"
    )
    assert set(need.split()) == set(KINDS)


def test_every_type_that_gguf_can_decode_is_there() -> None:
    plain = {"F32", "F16"}
    assert {t.name for t in gguf.quants._type_traits} | plain == set(KINDS)


@pytest.mark.parametrize("kind", [q.name for q in QUANTS.values() if q.rewrite])
def test_blocks_rewritten_for_the_kernels_keep_every_value(kind: str) -> None:
    q = QUANTS[KINDS[kind]]
    raw = random_blocks(kind, 300, seed=4)
    kept = q.rewrite(raw)
    if q.tile == "SCALED":
        unit = kept[:, :4].copy().view("<f4")
        scale = kept[:, 4:20].view(np.int8).astype(np.float32) * unit
        values = kept[:, 20:].view(np.int8).astype(np.float32) * np.repeat(scale, 16, axis=1)
        got = values.reshape(-1)
    else:
        got = decode(KINDS[q.tile], kept.reshape(-1))
    assert np.array_equal(got, oracle(kind, raw))


# B089
@pytest.mark.parametrize("kind", KINDS)
def test_random_bytes_decode_like_the_reference(kind: str) -> None:
    # Any byte pattern, infinite and NaN scales included: equal bits, and NaN where NaN is.
    q = QUANTS[KINDS[kind]]
    raw = np.random.default_rng(1).integers(0, 256, (5000, q.bytes), dtype=np.uint8)
    got, want = decode(KINDS[kind], raw), oracle(kind, raw)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert same_bits(got[~nan], want[~nan])


@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("scale", [6e-8, 5.96e-8, 6.0e-5, -6.1e-5, 0.0, -0.0, 65504.0, -65504.0])
def test_extreme_scales_give_the_bits_of_the_reference(kind: str, scale: float) -> None:
    # Smallest subnormal, just below normal, both zeros, largest: finite in, equal bits out.
    q = QUANTS[KINDS[kind]]
    raw = np.random.default_rng(2).integers(0, 256, (64, q.bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        raw[:, at : at + 2] = np.float16([scale]).view(np.uint8)
    got = decode(KINDS[kind], raw)
    assert np.isfinite(got).all()
    assert same_bits(got, oracle(kind, raw))


@settings(max_examples=30, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), n=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_any_number_of_blocks(kind: str, n: int, seed: int) -> None:
    raw = random_blocks(kind, n, seed=seed)
    got, want = decode(KINDS[kind], raw), oracle(kind, raw)
    nan = np.isnan(want)
    assert same_bits(got[~nan], want[~nan])


@pytest.mark.parametrize("kind", KINDS)
def test_runs_do_not_show(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = random_blocks(kind, 37, seed=3)
    whole = decode(KINDS[kind], raw)
    monkeypatch.setattr(quants, "RUN", 5 * QUANTS[KINDS[kind]].block)
    assert same_bits(decode(KINDS[kind], raw), whole)


def test_bf16_keeps_its_bits() -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8)
    assert np.array_equal(decode(30, raw).view(np.uint32), np.arange(65536, dtype=np.uint32) << 16)


def test_f16_covers_every_finite_value() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert np.array_equal(decode(1, halves.view(np.uint8)), halves.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_has_its_shape(kind: str, tmp_path: Path) -> None:
    with open_gguf(toy_gguf(tmp_path / "t.gguf", types=kind, dim=256, ff=256, vocab=300)) as g:
        for info in g.tensors.values():
            got = dequantize(info)
            raw = info.data.reshape(*info.shape[:-1], -1)
            assert got.shape == info.shape
            assert got.dtype == np.float32
            assert same_bits(got.reshape(-1), oracle(info.type_name, raw))


def test_values_are_written_into_given_memory(tmp_path: Path) -> None:
    with open_gguf(toy_gguf(tmp_path / "t.gguf", types="Q4_1")) as g:
        info = g.tensors["blk.0.ffn_up.weight"]
        out = np.full(info.shape, np.nan, np.float32)
        assert np.shares_memory(dequantize(info, out), out)
        assert np.array_equal(out, dequantize(info))
        with pytest.raises(ValueError, match="out must be"):
            dequantize(info, np.empty(7, np.float32))
        with pytest.raises(ValueError, match="out must be"):
            dequantize(info, np.empty(info.shape, np.float64))  # type: ignore[arg-type]


def test_half_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        decode(3, np.zeros(30, np.uint8))


def test_memory_beyond_the_result_is_bounded() -> None:
    raw = random_blocks("Q6_K", 8192)  # 2 million values, 8 MiB of result
    out = np.empty(8192 * 256, np.float32)
    tracemalloc.start()
    decode(14, raw, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# B089
def test_all_unsupported_tensors_are_named_at_once(tmp_path: Path) -> None:
    types = {"*ffn_up*": "Q8_K", "*attn_q*": "Q8_1", "*": "Q4_0"}
    with open_gguf(toy_gguf(tmp_path / "m.gguf", types=types, dim=256, ff=256)) as g:
        with pytest.raises(UnsupportedModelError) as e:
            check_supported(g)
        text = str(e.value)
        for name in ("ffn_up", "attn_q"):
            assert f"blk.0.{name}.weight" in text
            assert f"blk.1.{name}.weight" in text
        assert "Q8_K" in text
        assert "Q8_1" in text
        assert "ffn_down" not in text
        with pytest.raises(UnsupportedModelError, match=r"blk\.0\.ffn_up\.weight .* Q8_K"):
            dequantize(g.tensors["blk.0.ffn_up.weight"])


# B089
def test_mixed_file_is_accepted_whatever_file_type_says(tmp_path: Path) -> None:
    types = {"output.weight": "Q6_K", "*ffn_down*": "Q4_1", "*": "Q4_0"}
    path = toy_gguf(
        tmp_path / "m.gguf",
        types=types,
        dim=256,
        ff=256,
        tied=False,
        metadata={"general.file_type": 2},
    )
    with open_gguf(path) as g:
        check_supported(g)
        assert g.tensors["output.weight"].type_name == "Q6_K"
        assert g.tensors["blk.1.ffn_down.weight"].type_name == "Q4_1"
