"""Every architecture of the table: both of our paths, transformers in float32, llama.cpp.

The small files have random weights in float32, so a difference beyond llama.cpp's float16 cache is
a difference in what is computed: a norm, a rotation, a scale, a window.
"""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import missing
from support import families
from support.families import CASES, Case
from support.kernels_oracle import evaluate, kernel_forward, log_softmax

from llm_magic.engine import device
from llm_magic.engine.arch import ARCHITECTURES, RECURRENT, read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.portable.forward import MAX_ROWS, Portable
from llm_magic.errors import UnsupportedModelError

LENGTHS = tuple(range(1, 41, 3))  # of prompts; the windows of the files are 8 tokens
WITHIN = 0.03  # nats: llama.cpp keeps keys and values in float16
EXACT = 1e-3  # of a logit: transformers in float32
GOLDENS = Path(__file__).resolve().parents[1] / "data" / "architectures" / "logits.npz"

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


@dataclass
class Built:
    """A case, its file, and what our two paths compute for its tokens: logits [n, vocabulary]."""

    name: str
    case: Case
    path: Path
    ids: list[int]
    portable: np.ndarray
    kernels: np.ndarray
    alone: dict[int, np.ndarray]  # what the kernels compute for a row by itself


@pytest.fixture(scope="module", params=sorted(CASES))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    name, case = request.param, CASES[request.param]
    path = families.write(tmp_path_factory.mktemp("family") / f"{name}.gguf", case)
    ids = families.ids(case)
    kernels = kernel_forward(path, n_ctx=case.n_ctx, n_slots=1)
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        portable = Portable(file, config, case.n_ctx, 1, device.prepare().name)
    parts = [evaluate(portable, ids[i : i + MAX_ROWS], at=i) for i in range(0, len(ids), MAX_ROWS)]
    together = evaluate(kernels, ids)
    alone = {i: evaluate(kernels, ids[i : i + 1], at=i)[0] for i in families.rows(case)}
    made = Built(name, case, path, ids, np.concatenate(parts), together, alone)
    portable.close()
    kernels.close()
    return made


def test_logits_are_those_of_transformers(built: Built) -> None:
    """float32 of the same weights, computed by another program."""
    goldens = np.load(GOLDENS)
    if built.name not in goldens.files:
        assert not built.case.peer  # then llama.cpp is its reference
        pytest.skip("transformers has no model of this family")
    distance = np.abs(built.portable[families.rows(built.case)] - goldens[built.name])
    assert distance.max() < EXACT


def test_both_paths_compute_the_same(built: Built) -> None:
    kernels, exact = log_softmax(built.kernels), log_softmax(built.portable)
    assert np.abs(kernels - exact).mean() < 0.001
    assert np.abs(kernels - exact).max() < 0.01
    assert (kernels.argmax(-1) == exact.argmax(-1)).mean() >= 0.95


def test_a_row_has_the_same_bits_alone_and_in_a_batch(built: Built) -> None:
    for i, logits in built.alone.items():
        np.testing.assert_array_equal(built.kernels[i], logits)


@pytest.mark.peers
def test_an_architecture_computes_what_llama_cpp_does(built: Built) -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        missing("peers", "pip install 'llm-magic[peers]'")
    if built.case.peer:
        pytest.skip(built.case.peer)
    command = [sys.executable, "-c", PEER, str(built.path)]
    command += [json.dumps(built.ids), json.dumps(LENGTHS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [line for line in ran.stdout.splitlines() if line.startswith("RESULT")]
    assert found, ran.stderr[-2000:]
    ours = log_softmax(built.kernels)
    told = dict(zip(LENGTHS, json.loads(found[0].removeprefix("RESULT")), strict=True))
    told = {n: rows for n, rows in told.items() if rows}
    assert told
    assert max(told) > 20
    for n, theirs in told.items():
        ids = [row[0] for row in theirs]
        distance = np.abs(ours[n - 1][ids] - np.array([row[1] for row in theirs]))
        assert distance.max() < WITHIN, (n, distance.max())
        assert ids[0] == ours[n - 1].argmax()


def test_every_architecture_has_a_case() -> None:
    assert {case.arch for case in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", sorted(RECURRENT))
def test_recurrent_models_are_declared_out_by_name(name: str) -> None:
    """TG-81: their state could only be reused by extension; none is loaded."""
    with pytest.raises(UnsupportedModelError, match=f"'{name}' is recurrent.*supported: .*llama"):
        read_config({"general.architecture": name}, {})
