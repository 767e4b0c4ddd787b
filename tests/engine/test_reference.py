"""The portable path on the real models against log-probabilities computed outside the project.

The references are float32 numpy on exactly dequantised weights. The bounds are tighter than the
acceptance rows (mean 1e-4, maximum 2e-3): they are what was measured, rounded up.
"""

import numpy as np
import pytest

from llm_magic.engine import device
from llm_magic.engine.arch import read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.portable.forward import Portable

MEAN, MOST = 1e-4, 5e-4


def portable(path, n_ctx=512):
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        return Portable(file, config, n_ctx, 1, device.prepare().name)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    forward = portable(smollm2_path)
    yield forward
    forward.close()


@pytest.fixture(scope="module")
def gemma3(gemma3_path):
    forward = portable(gemma3_path)
    yield forward
    forward.close()


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def evaluate(forward, ids, at=0):
    """Log-probability of each id given those before it, [n - 1], and all of them after the last."""
    of_next, last = [], None
    for i in range(at, len(ids), forward.max_rows):
        part = ids[i : i + forward.max_rows]
        n = len(part)
        rows = np.arange(n, dtype=np.int32)
        step = forward.step(part, np.zeros(n, np.int32), rows + i, rows)
        logprobs = log_softmax(step.logits)
        follows = ids[i + 1 : i + 1 + n]
        of_next.append(logprobs[np.arange(len(follows)), follows])
        last = logprobs[-1]
    return np.concatenate(of_next), last


def compare(forward, reference_dir, name):
    data = np.load(reference_dir / name)
    keys = sorted(k.removesuffix("_ids") for k in data.files if k.endswith("_ids"))
    assert len(keys) >= 2
    for key in keys:
        ids = data[f"{key}_ids"].astype(np.int32)
        token, last = evaluate(forward, ids)
        for got, right in ((token, data[f"{key}_tok"]), (last, data[f"{key}_last"])):
            assert got.shape == right.shape
            error = np.abs(got - right)
            assert error.mean() <= MEAN, key
            assert error.max() <= MOST, key
        top = np.argsort(data[f"{key}_last"])[::-1][:5]
        assert last.argmax() == top[0], key
        assert (np.argsort(last)[::-1][:5] == top).all(), key
        again, _ = evaluate(forward, ids, at=len(ids) - 7)  # the last rows on a filled cache
        assert np.abs(again - token[-6:]).max() <= MOST, key


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_equals_the_reference_at_every_position(smollm2, reference_dir):
    compare(smollm2, reference_dir, "smollm2.npz")


@pytest.mark.gemma
@pytest.mark.slow
def test_gemma3_equals_the_reference_at_every_position(gemma3, reference_dir):
    compare(gemma3, reference_dir, "gemma3.npz")


@pytest.mark.model
def test_memory_of_smollm2_is_one_copy_of_its_weights(smollm2):
    """134.5 million parameters in float32, the tied matrix once, and the filled cache."""
    assert 538e6 < smollm2.memory_bytes < 620e6


@pytest.mark.gemma
def test_memory_of_gemma3_is_one_copy_of_its_weights(gemma3):
    assert 1.07e9 < gemma3.memory_bytes < 1.2e9
