"""The AMX variant on any CPU with AVX-512 VNNI: tile registers played by loops.

Its integer sums are exact and its arithmetic behind them is that of the VNNI variant, so the two
must agree bit by bit. On a CPU with AMX the other kernel tests run the real instructions as well.
"""

import dataclasses

import numpy as np
import pytest
from kernels_oracle import evaluate, kernel_forward
from toy import toy_gguf

from llm_magic.engine import device
from llm_magic.engine.kernels import forward, layout
from llm_magic.engine.kernels.targets import TARGETS, source, usable

AMX = next(t for t in TARGETS if t.name == "avx512amx")
VNNI = next(t for t in TARGETS if t.name == "avx512vnni")
pytestmark = pytest.mark.skipif(
    VNNI not in usable(device.cpu_features()), reason="this CPU has no AVX-512 VNNI"
)
IDS = np.random.default_rng(6).integers(3, 250, 150)

# What the instructions do, by Intel's description of TDPBSSD.
LOOPS = """
typedef struct { int sums[4][16][16]; signed char rows[2][16][32]; signed char weights[2][8][64]; }
    loops_t;
static inline void loops_load(loops_t *t, int tile, const void *p, int stride) {
  for (int r = 0; r < (tile < 6 ? 16 : 8); r++)
    for (int i = 0; i < (tile < 6 ? 32 : 64); i++) {
      signed char byte = ((const signed char *)p)[r * stride + i];
      if (tile < 6) t->rows[tile - 4][r][i] = byte;
      else t->weights[tile - 6][r][i] = byte;
    }
}
static inline void loops_dot(loops_t *t, int sum, int rows, int weights) {
  for (int r = 0; r < 16; r++)
    for (int o = 0; o < 16; o++)
      for (int i = 0; i < 32; i++)
        t->sums[sum][r][o] +=
            t->rows[rows - 4][r][i] * t->weights[weights - 6][i / 4][o * 4 + i % 4];
}
static inline void loops_move(loops_t *t, int tile, int *to) {
  for (int i = 0; i < 256; i++) {
    if (to) to[i] = t->sums[tile][0][i];
    else t->sums[tile][0][i] = 0;
  }
}
#define TILE_REGISTERS loops_t loops;
#define TILE_ZERO(t) loops_move(&loops, t, 0)
#define TILE_LOAD(t, p, stride) loops_load(&loops, t, p, stride)
#define TILE_DOT(sum, rows, weights) loops_dot(&loops, sum, rows, weights)
#define TILE_STORE(t, p) loops_move(&loops, t, p)
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


SIZES = (1, 8, 11, 12, 15, 16, 17, 3, 33, 34)  # of steps: panels that are full, or nearly


@pytest.mark.parametrize("kind", list(layout.KINDS))
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
