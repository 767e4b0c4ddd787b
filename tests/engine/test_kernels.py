"""The kernels on toy models: every variant, block type and shape against a float64 forward pass."""

import platform
import re
import subprocess
import sys

import numpy as np
import pytest
from support.kernels_oracle import (
    Oracle,
    evaluate,
    i32,
    kernel_forward,
    log_softmax,
    read_tiles,
    summaries,
)
from support.toy import toy_gguf

from llm_magic.engine import cpu, device
from llm_magic.engine.arch import read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.kernels import job, layout, supports
from llm_magic.engine.kernels.targets import SOURCES, TARGETS, choose, compiled, source, usable
from llm_magic.engine.quants import QUANTS, dequantize
from llm_magic.errors import DeviceError, EngineError, ModelError

VARIANTS = [t.name for t in usable(cpu.cpu_features())]
TYPES = [t.name for t in QUANTS.values()]
# Of log-probabilities. The toys' random layers amplify the rounding of activations to 16 bits by
# some hundred; with 8 bits the largest distance is above 1.
MOST, MEAN = 2e-2, 2e-3
IDS = np.random.default_rng(5).integers(3, 250, 61)


def toy(tmp_path, **options):
    options = {"tokenizer": "none", "vocab": 260} | options
    return toy_gguf(tmp_path / "toy.gguf", **options)


def assert_close(got, expected):
    distance = np.abs(log_softmax(got) - log_softmax(expected))
    assert distance.max() < MOST
    assert distance.mean() < MEAN


# ----------------------------------------------------------------------------- block types


@pytest.mark.parametrize("kind", TYPES)
def test_repacked_tiles_hold_the_exact_weights(tmp_path, kind):
    path = toy(tmp_path, types=kind, dim=256, ff=512, vocab=300)
    forward = kernel_forward(path)
    with open_gguf(path) as file:
        matrices = forward._layout.matrices
        assert len(matrices) == 1 + 2 * 7  # tied: the embedding serves twice
        for index, m in enumerate(matrices):
            exact = dequantize(file.tensors[m.tensor.name]).reshape(m.tensor.shape)
            rows = np.arange(m.tiles * 16) if m.rows is None else m.rows
            known = (rows >= 0) & (rows < len(exact))
            tiles = read_tiles(forward, index)
            assert not tiles[~known].any()
            # d * q + m in float64 from the tile, against float32 from the file
            np.testing.assert_allclose(tiles[known], exact[rows[known]], rtol=2e-6, atol=1e-7)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", TYPES)
def test_every_block_type_computes_what_the_weights_say(tmp_path, kind, variant):
    path = toy(tmp_path, types=kind, dim=256, ff=256, tied=False)
    forward, exact = kernel_forward(path, target=variant), Oracle(path).logits(IDS)
    assert_close(evaluate(forward, IDS), exact)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_block_types_may_be_mixed_within_a_layer(tmp_path, variant):
    types = {"*attn_q*": "Q5_0", "*attn_k*": "F16", "*attn_v*": "Q6_K", "*gate*": "F32",
             "*up*": "Q4_K", "*down*": "BF16", "*output*": "Q8_0", "token*": "Q4_1"}  # fmt: skip
    path = toy(tmp_path, types=types, dim=256, ff=256)
    forward = kernel_forward(path, target=variant)
    assert_close(evaluate(forward, IDS), Oracle(path).logits(IDS))
    forward.close()


# ----------------------------------------------------------------------------- shapes


SHAPES = {
    "adjacent": {},
    "group of 4": {"heads": 8, "kv_heads": 2, "dim": 128},
    "one key head": {"heads": 6, "kv_heads": 1, "dim": 96},
    "group of 9": {"heads": 9, "kv_heads": 1, "dim": 144, "types": "F32"},
    "no groups": {"heads": 4, "kv_heads": 4},
    "odd head": {"heads": 3, "kv_heads": 3, "dim": 60, "types": "F32", "ff": 100},
    "odd everything": {"heads": 5, "kv_heads": 1, "dim": 70, "ff": 33, "types": "F16"},
    "wide head": {"heads": 2, "kv_heads": 1, "head_dim": 256},
    "head of 80": {"heads": 2, "kv_heads": 2, "dim": 160},
    "rope factors": {"rope_freqs": [1, 1, 2, 4, 8, 8, 8, 8]},
    "gemma3": {"arch": "gemma3", "layers": 7, "heads": 4, "kv_heads": 1, "head_dim": 32},
    "gemma3 wide window": {
        "arch": "gemma3", "layers": 6, "metadata": {"gemma3.attention.sliding_window": 100},
    },
    "logits capped": {"metadata": {"llama.final_logit_softcapping": 3.0}},
    "scores capped": {"metadata": {"llama.attn_logit_softcapping": 2.0}},
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_shapes_are_computed_right(tmp_path, shape, variant):
    path = toy(tmp_path, **({"types": "Q8_0"} | SHAPES[shape]))
    n = 2 * layout.SPAN + 50
    forward = kernel_forward(path, n_ctx=n, target=variant, threads=3)
    ids = np.resize(IDS, n)
    exact = Oracle(path).logits(ids)
    # The last ones, a few rows and a single one, share out their spans.
    parts = np.split(np.arange(n), [150, 300, 450, n - 6, n - 1])
    got = [evaluate(forward, ids[part], at=part[0]) for part in parts]
    assert_close(np.concatenate(got), exact)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_a_row_is_the_same_bit_by_bit_in_any_batch(tmp_path, variant, arch):
    path = toy(tmp_path, arch=arch, types={"*down*": "F16", "*": "Q4_1"}, dim=96, heads=6)
    n = 2 * layout.SPAN + 50
    forward = kernel_forward(path, n_ctx=n, target=variant, threads=2)
    ids = np.resize(IDS, n)
    alone = np.concatenate([evaluate(forward, ids[i : i + 1], at=i) for i in range(len(ids))])
    for size in (2, 3, 5, 17, 64, 150):
        parts = [
            evaluate(forward, ids[i : i + size], slot=1, at=i) for i in range(0, len(ids), size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), alone)
    forward.set_threads(1)
    parts = [evaluate(forward, ids[i : i + 1], slot=2, at=i) for i in range(len(ids))]
    np.testing.assert_array_equal(np.concatenate(parts), alone)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_slots_share_a_step_and_do_not_see_each_other(tmp_path, variant):
    path = toy(tmp_path, types="Q5_1")
    forward = kernel_forward(path, target=variant, n_slots=3)
    oracle = Oracle(path)
    texts = [IDS[:20], IDS[20:33], IDS[33:61]]
    for slot, ids in enumerate(texts):
        evaluate(forward, ids[:-3], slot=slot)
    rows = [(ids[-3 + j], s, len(ids) - 3 + j) for s, ids in enumerate(texts) for j in range(3)]
    tokens, slots, positions = (i32(*column) for column in zip(*rows, strict=True))
    got = forward.step(tokens, slots, positions, i32(2, 4, 8)).logits.copy()
    whole = [oracle.logits(ids) for ids in texts]
    assert_close(got, np.stack([whole[0][-1], whole[1][-2], whole[2][-1]]))
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("window", [60, 300])
@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_caches_of_different_lengths_are_shared_out_as_one(tmp_path, variant, window, threads):
    """Shares begin and end within the spans of any slot and key head; no bit depends on it."""
    path = toy(
        tmp_path, arch="gemma3", layers=6, kv_heads=2, types="Q4_1",
        metadata={"gemma3.attention.sliding_window": window},
    )  # fmt: skip
    n = 3 * layout.SPAN
    forward = kernel_forward(path, n_ctx=n, n_slots=4, target=variant, threads=threads)
    ends, rows, alone = (n, 20, layout.SPAN, n - 100), [], []
    for slot, end in enumerate(ends):
        ids = np.resize(IDS[slot:], end)
        for at in range(0, end - 3, 128):
            evaluate(forward, ids[at : min(at + 128, end - 3)], slot=slot, at=at, want=())
        rows += [(ids[at], slot, at) for at in range(end - 3, end)]
        alone += [evaluate(forward, ids[[at]], slot=slot, at=at)[0] for at in range(end - 3, end)]
    for first, last in ((0, 12), (3, 12), (0, 5), (7, 12), (2, 10)):
        tokens, slots, positions = (i32(*column) for column in zip(*rows[first:last], strict=True))
        every = np.arange(last - first, dtype=np.int32)
        got = forward.step(tokens, slots, positions, every).logits
        np.testing.assert_array_equal(got, alone[first:last])
    forward.close()


def test_positions_may_be_written_again(tmp_path):
    path = toy(tmp_path, types="Q8_0")
    forward = kernel_forward(path)
    evaluate(forward, IDS)
    other = np.concatenate([IDS[:30], IDS[:20]])
    got = evaluate(forward, other[30:], at=30)
    assert_close(got, Oracle(path).logits(other)[30:])
    forward.close()


def test_only_the_wanted_rows_are_returned(tmp_path):
    path = toy(tmp_path, types="Q8_0")
    forward = kernel_forward(path)
    exact = Oracle(path).logits(IDS)
    assert evaluate(forward, IDS, want=()).shape == (0, 260)
    some = evaluate(forward, IDS, slot=1, want=(0, 7, 60))
    assert some.shape == (3, 260)
    assert_close(some, exact[[0, 7, 60]])
    # Nothing was wanted of slot 0, but its cache is complete.
    assert_close(evaluate(forward, IDS[60:], at=60), exact[60:])
    forward.close()


def test_growing_keeps_the_cache(tmp_path):
    path = toy(tmp_path, types="Q4_0", arch="gemma3", ctx=2048)
    forward = kernel_forward(path, n_ctx=64, n_slots=2)
    evaluate(forward, IDS[:60], slot=1)
    forward.resize(500, 5)
    assert (forward.n_ctx, forward.n_slots) == (500, 5)
    forward.resize(10, 1)  # never smaller
    assert (forward.n_ctx, forward.n_slots) == (500, 5)
    got = evaluate(forward, np.tile(IDS, 4)[60:240], slot=1, at=60)
    ids = np.concatenate([IDS[:60], np.tile(IDS, 4)[60:240]])
    assert_close(got, Oracle(path).logits(ids)[60:])
    forward.close()


@pytest.mark.parametrize(("n_ctx", "n_slots"), [(2**30, 10**6), (2**31 - 1, 10**9), (200, 10**12)])
def test_growing_beyond_the_memory_is_refused_and_changes_nothing(tmp_path, n_ctx, n_slots):
    forward = kernel_forward(toy(tmp_path, types="Q8_0"), n_ctx=64, n_slots=2)
    expected = evaluate(forward, IDS[:50], slot=1)
    before = forward.memory_bytes, forward.position_bytes, forward.max_wanted
    with pytest.raises(EngineError, match=r"no room for .* conversations of .* tokens: .* GB"):
        forward.resize(n_ctx, n_slots)
    assert (forward.n_ctx, forward.n_slots) == (64, 2)
    assert before == (forward.memory_bytes, forward.position_bytes, forward.max_wanted)
    np.testing.assert_array_equal(evaluate(forward, IDS[40:50], slot=1, at=40), expected[40:])
    forward.resize(100, 3)
    np.testing.assert_array_equal(evaluate(forward, IDS[40:50], slot=1, at=40), expected[40:])
    forward.close()
    with pytest.raises((EngineError, ModelError), match=r"no room|GB is free"):
        kernel_forward(toy(tmp_path), n_ctx=n_ctx, n_slots=n_slots)


@pytest.mark.parametrize("n", [1, 16, 50, 64, 130])
def test_a_copied_prefix_is_that_of_the_source(tmp_path, n):
    path = toy(tmp_path, types="Q4_1", arch="gemma3")
    forward = kernel_forward(path)
    ids = np.tile(IDS, 3)[:150]
    evaluate(forward, ids, slot=0)
    evaluate(forward, ids[::-1], slot=2)
    expected = evaluate(forward, ids[n:], slot=0, at=n)
    forward.copy(0, 2, n)
    np.testing.assert_array_equal(evaluate(forward, ids[n:], slot=2, at=n), expected)
    forward.close()


@pytest.mark.parametrize(
    ("tokens", "slots", "positions", "want"),
    [
        ([260], [0], [0], [0]),
        ([-1], [0], [0], [0]),
        ([1], [4], [0], [0]),
        ([1], [0], [256], [0]),
        ([1], [0], [-1], [0]),
        ([1], [0], [0], [1]),
        ([], [], [], []),
        ([1] * 513, [0] * 513, list(range(513)), []),
    ],
)
def test_rows_outside_the_sizes_are_refused(tmp_path, tokens, slots, positions, want):
    forward = kernel_forward(toy(tmp_path))
    with pytest.raises(EngineError):
        forward.step(i32(*tokens), i32(*slots), i32(*positions), i32(*want))
    forward.close()


# ----------------------------------------------------------------------------- summaries


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("vocab", [17, 260, 5003])
def test_summaries_are_those_of_the_logits(tmp_path, variant, vocab):
    forward = kernel_forward(toy(tmp_path, vocab=vocab), target=variant, threads=3)
    logits = evaluate(forward, IDS % vocab, want=(3, 9, 60))
    for top in (0, 1, 5, 20):
        found = summaries(forward, IDS % vocab, (3, 9, 60), top)
        if top == 0:
            assert found is None
            continue
        best, lse, ids, values = found.ids[:, 0], found.lse, found.ids, found.values
        order = np.argsort(-logits, axis=1, kind="stable")
        np.testing.assert_array_equal(best, order[:, 0])
        keep = min(top, vocab)
        np.testing.assert_array_equal(ids[:, :keep], order[:, :keep])
        np.testing.assert_array_equal(
            values[:, :keep], np.take_along_axis(logits, order[:, :keep], axis=1)
        )
        x = logits.astype(np.float64)
        exact = np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)
        np.testing.assert_allclose(lse, exact, atol=2e-6)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("where", [slice(None), slice(3, 4), slice(259, 260)])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_not_left_out_of_the_sum(tmp_path, variant, where, value):
    weights = np.random.default_rng(3).standard_normal((260, 64)).astype(np.float32)
    weights[where] = value
    path = toy(tmp_path, tied=False, tensors={"output.weight": weights})
    forward = kernel_forward(path, target=variant, threads=2)
    logits = evaluate(forward, IDS[:5])
    bad = np.isnan(logits).any(1) | (logits.max(1) == np.inf)
    assert bad.any()
    lse = summaries(forward, IDS[:5], range(5), 3).lse
    np.testing.assert_array_equal(np.isfinite(lse), ~bad)
    forward.close()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_value_that_is_no_number_does_not_become_one_in_the_cache(tmp_path, variant):
    """A damaged file is named by what it computes; integers cannot hold what is no number."""
    plain = toy(tmp_path, types="F32")
    with open_gguf(plain) as file:
        shape = file.tensors["blk.0.attn_v.weight"].shape
    weights = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    weights[1] = np.nan
    path = toy(tmp_path, types="F32", tensors={"blk.0.attn_v.weight": weights})
    forward = kernel_forward(path, target=variant)
    assert np.isnan(evaluate(forward, IDS[:5])).any(1).all()
    forward.close()


def test_equal_logits_are_summarised_by_rising_id(tmp_path):
    zero = {"token_embd.weight": np.ones((260, 64), np.float32)}
    forward = kernel_forward(toy(tmp_path, tensors=zero), threads=2)
    assert summaries(forward, IDS[:1], (0,), 20).ids[0].tolist() == list(range(20))
    forward.close()


# ----------------------------------------------------------------------------- targets


def test_the_best_variant_of_the_cpu_is_taken():
    def names(*flags):
        return [t.name for t in usable(frozenset(flags))]

    v3 = ("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe")
    v4 = (*v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("flags of x86")
    assert names() == ["plain"]
    assert names("avx2") == ["plain"]  # without FMA the AVX2 code would be illegal
    assert names(*v3) == ["avx2", "plain"]
    assert names(*v3, "avx_vnni") == ["avx2vnni", "avx2", "plain"]
    assert names(*v4) == ["avx2", "plain"]
    assert names(*v4, "avx512_vnni", "avx_vnni")[0] == "avx512vnni"
    assert names(*v4, "avx512_vnni", "amx_tile", "amx_bf16")[:2] == ["avx512amx", "avx512vnni"]
    assert names(*v4, "avx512_vnni", "amx_tile", "amx_int8")[0] == "avx512vnni"
    with pytest.raises(DeviceError, match=r"avx512vnni.*can run: avx2, plain"):
        choose(frozenset(v3), "avx512vnni")


def test_a_variant_can_be_forced(tmp_path, monkeypatch):
    path = toy(tmp_path)
    forward = kernel_forward(path, target="plain", threads=1)
    assert forward.description == "plain C, 1 thread"
    forward.close()
    monkeypatch.setenv("LLM_MAGIC_KERNEL", "plain")
    forward = kernel_forward(path, threads=2)
    assert forward.description == "plain C, 2 threads"
    forward.close()
    with pytest.raises(DeviceError, match="amx"):
        kernel_forward(path, target="amx")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.name}-{t.arch[0]}")
def test_objects_suit_tinygrads_loader(target):
    """Every variant compiles (for other machines too), starts with the entry, links to nothing."""
    from tinygrad.runtime.support.elf import elf_loader

    device.prepare()
    text, binary = compiled(target)
    assert '#include "' not in text
    image, sections, relocations = elf_loader(binary)  # raises on a symbol of another library
    calls = {"x86_64": 4, "arm64": 283}[target.arch[0]]  # R_X86_64_PLT32, R_AARCH64_CALL26
    known = {"x86_64": {2}, "arm64": {275, 277, 278, 284, 285, 286, 299}}[target.arch[0]]
    assert calls not in {kind for _, _, kind, _ in relocations}
    assert {kind for _, _, kind, _ in relocations} <= known
    symbols = _symbols(binary)
    assert symbols["llm_magic_kernel"] == 0
    assert not {s.name for s in sections} & {".data", ".bss", ".tbss"}
    assert len(image) < 1 << 20


def _symbols(binary):
    from tinygrad.runtime.autogen import libc
    from tinygrad.runtime.support.elf import elf_loader

    _, sections, _ = elf_loader(binary)
    table = next(s for s in sections if s.name == ".symtab")
    names = next(s for s in sections if s.name == ".strtab").content
    entries = (libc.Elf64_Sym * (len(table.content) // 24)).from_buffer_copy(table.content)
    return {names[e.st_name : names.index(b"\0", e.st_name)].decode(): e.st_value for e in entries}


def test_c_structs_and_numpy_layouts_agree():
    """The C compiler compares sizes and offsets: a wrong one is an array of negative size."""
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    device.prepare()
    target = choose(cpu.cpu_features())

    def compile_with(*conditions):
        lines = [f"char check{i}[{c} ? 1 : -1];" for i, c in enumerate(conditions)]
        ClangCompiler(list(target.arch)).compile(source(target) + "\n".join(lines))

    structs = {"mat_t": layout.MAT, "layer_t": layout.LAYER, "model_t": layout.MODEL,
               "acts_at": layout.ACTS, "pack_t": layout.PACK}  # fmt: skip
    conditions = [f"sizeof({n}) == {d.itemsize}" for n, d in structs.items()]
    for name, dtype in structs.items():
        conditions += [
            f"__builtin_offsetof({name}, {field}) == {dtype.fields[field][1]}"
            for field in dtype.names
        ]
    conditions += [
        f"sizeof(part_t) * PARTS_MAX == {layout.WORK_BYTES}",
        f"CHUNK == {layout.CHUNK} && SPAN == {layout.SPAN} && MAX_HEAD == {layout.MAX_HEAD}",
        f"SHARED_ROWS == {layout.SHARED_ROWS} && TOP_MAX == {layout.TOP_MAX}",
        *(f"__builtin_offsetof(team_t, {n}) == {4 * i}" for n, i in job.TEAM.items()),
    ]
    compile_with(*conditions)
    with pytest.raises(subprocess.CalledProcessError):
        compile_with(f"sizeof(mat_t) == {layout.MAT.itemsize + 1}")


def test_sources_are_package_data():
    names = {p.name for p in SOURCES.iterdir()}
    assert {f"isa_{t.header}.h" for t in TARGETS} | {"entry.c", "step.h"} <= names
    included = set(re.findall(r'^#include "([^"]+)"', (SOURCES / "entry.c").read_text(), re.M))
    assert included - {"isa.h"} <= names


def test_what_is_not_supported_is_said(tmp_path):
    def reason(**options):
        with open_gguf(toy(tmp_path, **options)) as file:
            shapes = {n: t.shape for n, t in file.tensors.items()}
            return supports(file, read_config(file.metadata, shapes))

    assert reason() is None
    assert "Q8_K" in reason(types={"*down*": "Q8_K"}, dim=256, ff=256)
    assert "1024" in reason(heads=1, kv_heads=1, head_dim=1024)


def test_every_block_type_that_is_read_has_a_kernel():
    """So no type is evaluated on another way, slower or less exact: the others are refused."""
    assert {t.tile for t in QUANTS.values()} == set(layout.KINDS)


def test_importing_the_kernels_does_not_import_tinygrad():
    code = "import sys, llm_magic.engine.kernels; print('tinygrad' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
