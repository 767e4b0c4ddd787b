"""Every architecture of the table against llama.cpp on the same file, and both of our paths.

The toy files have random weights in float32, so a difference beyond llama.cpp's float16 cache is a
difference in what is computed: a norm, a rotation, a scale, a window.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import missing
from support.kernels_oracle import evaluate, kernel_forward, log_softmax
from support.toy import toy_gguf

from llm_magic.engine import device
from llm_magic.engine.arch import ARCHITECTURES, RECURRENT, read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.portable.forward import Portable
from llm_magic.errors import UnsupportedModelError

IDS = [int(i) for i in np.random.default_rng(5).integers(3, 290, 40)]
LENGTHS = tuple(range(1, 41))  # of prompts; the windows of the toys are 8 tokens
HEAD_IS_A_SHARE = ("llama", "qwen2", "exaone")
WITHIN = 0.05  # nats: llama.cpp keeps keys and values in float16

PEER = """
import json, sys, xllamacpp
path, ids, lengths = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
p = xllamacpp.CommonParams()
p.model.path = path
p.n_ctx, p.n_gpu_layers, p.n_parallel, p.warmup, p.fit_params = 256, 0, 1, False, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(p)
out = []
for n in lengths:
    answer = server.handle_completions({"prompt": ids[:n], "n_predict": 1, "temperature": 0,
        "logprobs": 20, "cache_prompt": False})
    said = answer["choices"][0]["logprobs"]  # none for half a character
    rows = said["content"][0]["top_logprobs"] if said else []
    out.append([[t["id"], t["logprob"]] for t in rows])
print("RESULT" + json.dumps(out))
"""


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def toy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = request.param
    path = tmp_path_factory.mktemp(name) / f"{name}.gguf"
    layers = 7 if name == "gemma3" else 4
    head = 16 if name in HEAD_IS_A_SHARE else 32  # theirs is dim // heads
    return toy_gguf(
        path, arch=name, layers=layers, head_dim=head, heads=4, kv_heads=2, ctx=256, tokenizer="bpe"
    )


@pytest.mark.peers
def test_an_architecture_computes_what_llama_cpp_does(toy: Path) -> None:
    if not _has_xllamacpp():
        missing("peers", "pip install 'llm-magic[peers]'")
    command = [sys.executable, "-c", PEER, str(toy), json.dumps(IDS), json.dumps(LENGTHS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [line for line in ran.stdout.splitlines() if line.startswith("RESULT")]
    assert found, ran.stderr[-2000:]
    forward = kernel_forward(toy)
    ours = log_softmax(evaluate(forward, IDS))
    forward.close()
    told = dict(zip(LENGTHS, json.loads(found[0].removeprefix("RESULT")), strict=True))
    told = {n: rows for n, rows in told.items() if rows}
    assert len(told) >= 5
    assert max(told) > 20
    for n, theirs in told.items():
        ids = [row[0] for row in theirs]
        distance = np.abs(ours[n - 1][ids] - np.array([row[1] for row in theirs]))
        assert distance.max() < WITHIN, (n, distance.max())
        assert ids[0] == ours[n - 1].argmax()


def _has_xllamacpp() -> bool:
    import importlib.util

    return importlib.util.find_spec("xllamacpp") is not None


def test_both_paths_compute_the_same(toy: Path) -> None:
    forward = kernel_forward(toy)
    kernels = log_softmax(evaluate(forward, IDS[:30]))
    forward.close()
    with open_gguf(toy) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        portable = Portable(file, config, 256, 1, device.prepare().name)
    exact = log_softmax(evaluate(portable, IDS[:30]))
    portable.close()
    assert np.abs(kernels - exact).mean() < 0.002
    assert (kernels.argmax(-1) == exact.argmax(-1)).mean() >= 0.95


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_recurrent_models_are_declared_out_by_name(name: str) -> None:
    """TG-81: their state could only be reused by extension; none is loaded."""
    with pytest.raises(UnsupportedModelError, match=f"'{name}' is recurrent.*supported: .*llama"):
        read_config({"general.architecture": name}, {})
