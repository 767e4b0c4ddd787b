"""The variants for 64-bit ARM, run by qemu's user emulation where it is installed."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from conftest import missing
from support.kernels_oracle import evaluate, i32, kernel_forward
from support.toy import toy_gguf

from llm_magic.engine import device
from llm_magic.engine.kernels.targets import TARGETS, compiled

pytestmark = pytest.mark.slow
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
ARM = [t for t in TARGETS if t.arch[0] == "arm64"]
NAMES = ("job", "plan", "weights", "kv", "scratch", "logits", "team")

# Puts the memory of a KernelForward back from files, runs the kernel, writes the results.
MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
void llm_magic_kernel(void *, void *, void *, void *, void *, void *, void *);
int main(int argc, char **argv) {
  void *regions[7];
  for (int i = 0; i < 7; i++) {
    FILE *f = fopen(argv[1 + i], "rb");
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    regions[i] = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    if (fread(regions[i], 1, n, f) != (size_t)n) return 2;
    fclose(f);
  }
  llm_magic_kernel(regions[0], regions[1], regions[2], regions[3], regions[4], regions[5],
                   regions[6]);
  FILE *f = fopen(argv[6], "rb+");
  fseek(f, 0, SEEK_END);
  long n = ftell(f);
  rewind(f);
  fwrite(regions[5], 1, n, f);
  fclose(f);
  return 0;
}
"""


@pytest.fixture(scope="module", params=ARM, ids=lambda t: t.name)
def program(request, tmp_path_factory):
    if QEMU is None:
        missing("qemu", "apt-get install qemu-user-static")
    pytest.importorskip("ziglang")
    device.prepare()
    folder = tmp_path_factory.mktemp("arm")
    (folder / "kernel.o").write_bytes(compiled(request.param)[1])
    (folder / "main.c").write_text(MAIN)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl", "-static"]
    subprocess.run([*command, "main.c", "kernel.o", "-o", "run"], cwd=folder, check=True)
    return folder / "run"


def emulate(program, forward, folder, n):
    """Logits of the step that stands in the job memory, as the other machine computes them."""
    m = forward._row * n * 4
    sizes = {"logits": m, "kv": 1 << 22, "scratch": forward._scratch.nbytes}
    for name, region in zip(NAMES, forward._regions(), strict=True):
        (folder / name).write_bytes(region.bytes[: sizes.get(name, region.nbytes)].tobytes())
    (folder / "logits").write_bytes(bytes(m))
    subprocess.run([QEMU, program, *(folder / n for n in NAMES)], check=True, timeout=300)
    raw = np.fromfile(folder / "logits", np.float32).reshape(n, forward._row)
    return raw[:, : forward.n_vocab]


@pytest.mark.parametrize(
    "options",
    [
        {"types": {"*attn_q*": "Q4_0", "*attn_k*": "Q5_1", "*attn_v*": "Q6_K", "*gate*": "Q4_K",
                   "*up*": "Q5_K", "*down*": "Q5_0", "*output*": "Q4_1", "token*": "Q8_0"},
         "dim": 256, "ff": 256},
        {"types": {"*attn*": "F16", "*gate*": "F32", "*": "BF16"}, "arch": "gemma3",
         "heads": 6, "kv_heads": 2, "dim": 90, "head_dim": 20, "ff": 50},
    ],
    ids=["quants", "floats"],
)  # fmt: skip
def test_arm_computes_what_x86_does(program, tmp_path, options):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=130, **options)
    forward = kernel_forward(path, target="plain", threads=1, n_ctx=128, n_slots=1)
    # Emulated rows see the cache that x86 wrote; both then compute the same 11 rows.
    ids = np.random.default_rng(1).integers(3, 120, 91)
    evaluate(forward, ids[:80])
    expected = evaluate(forward, ids[80:], at=80)
    got = emulate(program, forward, tmp_path, 11)
    # Same integers, other order of float sums: far below what the rounding to 16 bits costs.
    assert np.abs(got - expected).max() < 2e-2
    assert np.abs(got - expected).mean() < 1e-3
    np.testing.assert_array_equal(got.argmax(-1), expected.argmax(-1))
    forward.close()


def test_the_emulated_step_is_not_the_one_that_was_left_behind(program, tmp_path):
    """Another token in the job memory gives other logits: the check above compares something."""
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=130, types="Q8_0")
    forward = kernel_forward(path, target="plain", threads=1, n_ctx=128, n_slots=1)
    evaluate(forward, [5, 6, 7])
    forward.step(i32(9), i32(0), i32(3), i32(0))
    first = emulate(program, forward, tmp_path, 1)
    forward.step(i32(10), i32(0), i32(3), i32(0))
    assert np.abs(emulate(program, forward, tmp_path, 1) - first).max() > 0.1
    forward.close()
