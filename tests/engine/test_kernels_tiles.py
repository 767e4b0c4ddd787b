"""Rows in bulk on tile registers (AMX): by the real instructions where this CPU has them, and by
loops in their place on any CPU with AVX-512 VNNI."""

import dataclasses

import numpy as np
import pytest
from kernels_oracle import Oracle, evaluate, i32, kernel_forward, log_softmax
from toy import toy_gguf

from llm_magic.engine import device
from llm_magic.engine.kernels import forward as kernels
from llm_magic.engine.kernels import layout
from llm_magic.engine.kernels.targets import TARGETS, source, usable

AMX = next(t for t in TARGETS if t.name == "avx512amx")
VNNI = next(t for t in TARGETS if t.name == "avx512vnni")
HERE = usable(device.cpu_features())
pytestmark = pytest.mark.skipif(VNNI not in HERE, reason="this CPU has no AVX-512 VNNI")
IDS = np.random.default_rng(6).integers(3, 250, 150)
MOST, MEAN = 2e-2, 2e-3  # of log-probabilities of a toy, as in test_kernels.py

# What the instructions do, by Intel's description of TDPBF16PS: even and odd inputs apart.
LOOPS = """
typedef struct { float t[8][16][16]; } loops_t;
static inline void loops_load(loops_t *l, int t, const void *p) {
  for (int r = 0; r < 16; r++)
    for (int i = 0; i < 16; i++) l->t[t][r][i] = ((const float *)p)[r * 16 + i];
}
static inline void loops_store(loops_t *l, int t, float *p) {
  for (int r = 0; r < 16; r++)
    for (int i = 0; i < 16; i++) p[r * 16 + i] = l->t[t][r][i];
}
static inline float loops_half(float two, int odd) {
  union { float f; unsigned u; } bits = {two};
  bits.u = odd ? bits.u & 0xffff0000 : bits.u << 16;
  return bits.f;
}
static inline void loops_dot(loops_t *l, int sum, int rows, int weights) {
  for (int r = 0; r < 16; r++) {
    float part[2][16];
    for (int o = 0; o < 16; o++) part[0][o] = part[1][o] = 0;
    for (int k = 0; k < 16; k++)
      for (int odd = 0; odd < 2; odd++) {
        const float x = loops_half(l->t[rows][r][k], odd);
        for (int o = 0; o < 16; o++)
          part[odd][o] = __builtin_fmaf(x, loops_half(l->t[weights][k][o], odd), part[odd][o]);
      }
    for (int o = 0; o < 16; o++) l->t[sum][r][o] += part[0][o] + part[1][o];
  }
}
static inline void loops_zero(loops_t *l, int t) {
  for (int i = 0; i < 256; i++) l->t[t][0][i] = 0;
}
#define TILE_REGISTERS loops_t loops;
#define TILE_ZERO(t) loops_zero(&loops, t)
#define TILE_LOAD(t, p) loops_load(&loops, t, p)
#define TILE_DOT(sum, rows, weights) loops_dot(&loops, sum, rows, weights)
#define TILE_STORE(t, p) loops_store(&loops, t, p)
static inline void tiles_on(void) {}
static inline void tiles_off(void) {}
"""


@pytest.fixture(params=["loops", pytest.param("amx", marks=pytest.mark.skipif(
    AMX not in HERE, reason="this CPU has no AMX"))])  # fmt: skip
def tiles(request, monkeypatch):
    """Makes a forward pass of the AMX sources."""
    if request.param == "amx":
        return lambda path, **options: kernel_forward(path, target="avx512amx", **options)
    target = dataclasses.replace(AMX, arch=VNNI.arch, needs=VNNI.needs)

    def build(_):
        from tinygrad.runtime.support.compiler_cpu import ClangCompiler

        text = LOOPS + source(target)
        return text, ClangCompiler(list(target.arch)).compile_cached(text)

    def make(path, **options):
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "choose", lambda features, forced: target)
            patch.setattr(kernels, "compiled", build)
            return kernel_forward(path, **options)

    return make


def assert_close(got, expected):
    distance = np.abs(log_softmax(got) - log_softmax(expected))
    assert distance.max() < MOST
    assert distance.mean() < MEAN


def in_steps(forward, sizes, bulk, slot=0):
    at, out = 0, []
    for n in sizes:
        out.append(evaluate(forward, IDS[at : at + n], slot=slot, at=at, bulk=bulk))
        at += n
    return np.concatenate(out)


SIZES = (1, 8, 11, 12, 15, 16, 17, 3, 33, 34)  # of steps: panels that are full, or nearly


@pytest.mark.parametrize("kind", list(layout.KINDS))
def test_every_block_type_computes_what_the_weights_say(tmp_path, tiles, kind):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types=kind,
                    dim=256 if "_K" in kind else 288, ff=512)  # fmt: skip
    forward = tiles(path, threads=3)
    exact = Oracle(path).logits(IDS)
    together = evaluate(forward, IDS, bulk=True)
    assert_close(together, exact)
    # Not what vector registers give, to the last bit; nearly. Floats go over these in any case.
    apart = evaluate(forward, IDS, slot=1)
    assert np.array_equal(apart, together) == (kind in layout.FLOATS)
    assert_close(together, apart)
    # What a row gives does not depend on its batch.
    np.testing.assert_array_equal(in_steps(forward, SIZES, True, slot=2), together)
    forward.close()


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_odd_shapes_and_matrices_of_floats(tmp_path, tiles, arch):
    types = {"*down*": "F16", "*attn_k*": "BF16", "*gate*": "Q8_0", "*": "Q5_1"}
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=270, arch=arch, types=types,
                    dim=96, heads=6, ff=160, layers=3)  # fmt: skip
    forward = tiles(path, threads=2)
    assert_close(in_steps(forward, SIZES, True), Oracle(path).logits(IDS))
    one = tiles(path, threads=1)
    np.testing.assert_array_equal(evaluate(one, IDS, bulk=True), in_steps(forward, SIZES, True))
    for f in (forward, one):
        f.close()


@pytest.mark.parametrize("others", [1, 3, 16, 17, 40])
def test_rows_of_both_ways_share_a_step_and_none_sees_it(tmp_path, tiles, others):
    """Rows of another slot before and behind those in bulk, and the prompt's own last one."""
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types="Q4_1", layers=3)
    forward = tiles(path, threads=3)
    mine = np.arange(len(IDS)) < len(IDS) - 1
    expected = evaluate(forward, IDS, bulk=mine)
    theirs = [evaluate(forward, IDS[i : i + 1], slot=1, at=i)[0] for i in range(2 * others)]
    n, m = len(IDS), others
    first = (IDS[:m], np.full(m, 2), np.arange(m), np.zeros(m, bool))
    prompt = (IDS, np.full(n, 3), np.arange(n), mine)
    evaluate(forward, IDS[:m], slot=1)
    second = (IDS[m : 2 * m], np.full(m, 1), np.arange(m, 2 * m), np.zeros(m, bool))
    parts = [np.concatenate(p) for p in zip(first, prompt, second, strict=True)]
    want = i32(*range(n + 2 * m))
    got = forward.step(*(p.astype(np.int32) for p in parts[:3]), want, bulk=parts[3]).copy()
    np.testing.assert_array_equal(got[m : m + n], expected)
    np.testing.assert_array_equal(got[:m], theirs[:m])
    np.testing.assert_array_equal(got[m + n :], theirs[m:])
    # Some rows wanted, in their order.
    some = i32(0, m, m + 1, m + n - 2, m + n - 1, n + 2 * m - 1)
    again = forward.step(*(p.astype(np.int32) for p in parts[:3]), some, bulk=parts[3])
    np.testing.assert_array_equal(again, got[some])
    forward.close()


def test_as_many_rows_as_a_step_takes(tmp_path, tiles):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types="Q4_0", ctx=600)
    forward = tiles(path, n_ctx=600, threads=2)
    ids = np.resize(IDS, forward.max_rows)
    bulk = np.arange(len(ids)) > 0  # one row before them: the widest gap
    expected = evaluate(forward, ids, slot=1, bulk=bulk)
    halves = [evaluate(forward, ids[:256], bulk=bulk[:256])]
    halves.append(evaluate(forward, ids[256:], at=256, bulk=bulk[256:]))
    np.testing.assert_array_equal(np.concatenate(halves), expected)
    forward.close()


def test_other_variants_take_the_flag_and_make_no_difference(tmp_path):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types="Q4_0")
    forward = kernel_forward(path, target="avx512vnni")
    assert forward.bulk_rows == 0
    np.testing.assert_array_equal(evaluate(forward, IDS, bulk=True), evaluate(forward, IDS, slot=1))
    forward.close()
