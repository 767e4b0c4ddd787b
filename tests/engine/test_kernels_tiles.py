"""The AMX variant on any CPU with AVX-512 VNNI: tile registers played by loops.

Its sums are exact integers and its arithmetic behind them is that of the VNNI variant, so the two
must agree bit by bit. On a CPU with AMX the same tests run the real instructions as well.
"""

import dataclasses

import numpy as np
import pytest
from support.kernels_oracle import evaluate, kernel_forward
from support.toy import toy_gguf

from llm_magic.engine import cpu
from llm_magic.engine.kernels import forward
from llm_magic.engine.kernels.targets import TARGETS, source, usable
from llm_magic.engine.quants import QUANTS

AMX = next(t for t in TARGETS if t.name == "avx512amx")
VNNI = next(t for t in TARGETS if t.name == "avx512vnni")
pytestmark = pytest.mark.skipif(
    VNNI not in usable(cpu.cpu_features()), reason="this CPU has no AVX-512 VNNI"
)
IDS = np.random.default_rng(6).integers(3, 250, 150)

# What the instructions do, by Intel's description of TDPBF16PS: even and odd inputs apart, each
# step rounded to float32.
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


@pytest.fixture
def loops(monkeypatch):
    """Builds a forward pass of the AMX sources, with loops for the instructions."""
    target = dataclasses.replace(AMX, arch=VNNI.arch, needs=VNNI.needs)

    def build(_):
        from tinygrad.runtime.support.compiler_cpu import ClangCompiler

        text = LOOPS + source(target)
        return text, ClangCompiler(list(target.arch)).compile_cached(text)

    def make(path, **options):
        with monkeypatch.context() as patch:
            patch.setattr(forward, "choose", lambda features, forced: target)
            patch.setattr(forward, "compiled", build)
            return kernel_forward(path, **options)

    return make


def logits(forward, sizes):
    at, out = 0, []
    for n in sizes:
        out.append(evaluate(forward, IDS[at : at + n], at=at))
        at += n
    forward.close()
    return np.concatenate(out)


# One block type for each kind of tile.
KINDS = list({t.tile: t.name for t in reversed(QUANTS.values())}.values())
SIZES = (1, 8, 11, 12, 15, 16, 17, 3, 33, 34)  # of steps: panels that are full, or nearly


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_give_the_same_bits_for_every_block_type(tmp_path, loops, kind):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types=kind, dim=256, ff=512)
    expected = logits(kernel_forward(path, target="avx512vnni"), SIZES)
    np.testing.assert_array_equal(logits(loops(path), SIZES), expected)
    # alone, rows go the other way: what a row gives does not depend on its batch
    np.testing.assert_array_equal(logits(loops(path), [1] * len(IDS)), expected[: len(IDS)])


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_tiles_give_the_same_bits_for_odd_shapes(tmp_path, loops, arch):
    types = {"*down*": "F16", "*gate*": "Q8_0", "*": "Q5_1"}
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=270, arch=arch, types=types,
                    dim=96, heads=6, ff=160)  # fmt: skip
    expected = logits(kernel_forward(path, target="avx512vnni", threads=1), SIZES)
    np.testing.assert_array_equal(logits(loops(path, threads=3), SIZES), expected)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("F32", "F16", "BF16")])
def test_the_largest_sums_are_exact(tmp_path, loops, kind):
    """All weights of a block but one at one end of their range, all inputs at theirs: float32 holds
    integers up to 2^24, and 32 x 16 x 32639 is 0.4 % less."""
    ends = np.ones((512, 512), np.float32)
    ends[:, ::32] = 0  # where a block has a minimum, something else must be it
    ends[::2] *= -1
    shapes = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256),
              "attn_output": (256, 256), "ffn_gate": (512, 256), "ffn_up": (512, 256),
              "ffn_down": (256, 512)}  # fmt: skip
    tensors = {f"blk.{i}.{m}.weight": ends[:n, :k].copy() for i in range(2)
               for m, (n, k) in shapes.items()}  # fmt: skip
    for norm in ("attn_norm", "ffn_norm"):
        tensors |= {f"blk.{i}.{norm}.weight": np.ones(256, np.float32) for i in range(2)}
    rows = np.random.default_rng(8).normal(0, 1, (300, 1)).astype(np.float32)
    tensors["token_embd.weight"] = np.repeat(rows, 256, axis=1)
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=300, types=kind, dim=256, ff=512,
                    tensors=tensors)  # fmt: skip
    expected = logits(kernel_forward(path, target="avx512vnni"), (150,))
    np.testing.assert_array_equal(logits(loops(path), (150,)), expected)
    assert np.isfinite(expected).all()
