"""The kernels on the real models, every variant: true numbers, the same tokens, honest memory."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.kernels_oracle import evaluate, i32, kernel_forward, log_softmax

from llm_magic.engine import cpu, device
from llm_magic.engine.arch import read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.kernels.targets import usable
from llm_magic.engine.portable.forward import Portable

VARIANTS = [t.name for t in usable(cpu.cpu_features())]
MEAN, TOP20 = 0.005, 0.01  # nats, of the distribution after a text
TEXT = 0.001  # of the text's own tokens: with a cache of float16 it was up to 0.0016
MODELS = [
    pytest.param(("smollm2_path", "smollm2.npz"), marks=pytest.mark.model, id="smollm2"),
    pytest.param(("gemma3_path", "gemma3.npz"), marks=pytest.mark.gemma, id="gemma3"),
]
THREADS = 2


def references(folder, name):
    data = np.load(folder / name)
    for key in sorted(k.removesuffix("_ids") for k in data.files if k.endswith("_ids")):
        yield key, data[f"{key}_ids"], data[f"{key}_last"], data[f"{key}_tok"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", MODELS)
def test_logprobs_are_those_of_the_references(request, reference_dir, model, variant):
    fixture, name = model
    forward = kernel_forward(
        request.getfixturevalue(fixture), n_ctx=512, target=variant, threads=THREADS
    )
    seen = 0
    for key, ids, last, tok in references(reference_dir, name):
        n = len(ids)
        # prefill in two chunks, then the last token alone
        first = log_softmax(evaluate(forward, ids[: n // 2]))
        second = log_softmax(evaluate(forward, ids[n // 2 : -1], at=n // 2))
        final = log_softmax(evaluate(forward, ids[-1:], at=n - 1))[0]
        distance, likely = np.abs(final - last), np.argsort(-last)[:20]
        assert distance.mean() <= MEAN, key
        assert distance[likely].max() <= TOP20, key
        assert final.argmax() == last.argmax(), key
        before = np.concatenate([first, second])
        of_text = np.abs(before[np.arange(n - 1), ids[1:]] - tok)
        assert of_text.mean() <= TEXT, key
        seen += 1
    assert seen >= 2
    forward.close()


@pytest.mark.parametrize("model", MODELS)
def test_batches_slots_and_threads_do_not_change_a_bit(request, reference_dir, model):
    fixture, name = model
    forward = kernel_forward(request.getfixturevalue(fixture), n_ctx=700, threads=THREADS)
    ids = np.concatenate([ids for _, ids, _, _ in references(reference_dir, name)])[:300]
    alone = [evaluate(forward, ids[i : i + 1], at=i)[0] for i in range(len(ids))]
    parts = [evaluate(forward, ids[i : i + 77], slot=1, at=i) for i in range(0, len(ids), 77)]
    np.testing.assert_array_equal(np.concatenate(parts), alone)
    # the last row again, in one step with rows of other slots
    forward.set_threads(1)
    evaluate(forward, ids[:9], slot=2)
    step = forward.step(
        i32(ids[9], ids[10], ids[-1]), i32(2, 2, 1), i32(9, 10, len(ids) - 1), i32(1, 2)
    )
    np.testing.assert_array_equal(step.logits, [alone[10], alone[-1]])
    forward.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "variants"),
    [
        pytest.param(*MODELS[0].values, VARIANTS, marks=pytest.mark.model, id="smollm2"),
        pytest.param(*MODELS[1].values, VARIANTS[:1], marks=pytest.mark.gemma, id="gemma3"),
    ],
)
def test_greedy_tokens_are_the_portable_paths(request, reference_dir, model, variants):
    """128 tokens after each of 10 prompts, by every variant. The portable path scores the kernels'
    continuation in batches: by induction, its own greedy tokens are the same if each of them is its
    best choice."""
    fixture, name = model
    path = request.getfixturevalue(fixture)
    text = next(ids for key, ids, _, _ in references(reference_dir, name) if key == "long")
    prompts = [[int(t) for t in text[start : start + 24]] for start in range(0, 300, 30)]
    slots = np.arange(len(prompts), dtype=np.int32)
    said: dict[tuple[int, ...], str] = {}
    for variant in variants:
        forward = kernel_forward(
            path, n_ctx=256, n_slots=len(slots), target=variant, threads=THREADS
        )
        runs = [list(ids) for ids in prompts]
        best = [evaluate(forward, ids, i, want=(23,))[0].argmax() for i, ids in enumerate(runs)]
        for at in range(24, 24 + 128):  # in common steps, which change no bit
            for ids, token in zip(runs, best, strict=True):
                ids.append(int(token))
            step = forward.step(i32(best), slots, np.full_like(slots, at), slots)
            best = step.logits.argmax(-1)
        for i, ids in enumerate(runs):
            said.setdefault(tuple(ids), f"{variant}, prompt {i}")
        forward.close()
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        portable = Portable(file, config, 256, 1, device.prepare().name)
    for ids, who in said.items():  # as a rule each prompt once: all variants say the same
        best = []
        for i in range(0, len(ids) - 1, portable.max_rows):
            part = list(ids[i : min(i + portable.max_rows, len(ids) - 1)])
            best += evaluate(portable, part, at=i).argmax(-1).tolist()
        assert tuple(best[23:]) == ids[24:], who
    portable.close()


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) * 1024


@pytest.mark.model
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux counts memory here")
def test_memory_is_the_file_and_comes_back(smollm2_path):
    evaluate(warm := kernel_forward(smollm2_path, n_ctx=64, n_slots=1), [1])
    warm.close()  # what tinygrad and numpy keep is there now
    before, size = _resident(), smollm2_path.stat().st_size
    forward = kernel_forward(smollm2_path, n_ctx=4096, n_slots=4)
    evaluate(forward, [1, 2, 3])
    assert forward.memory_bytes <= 1.01 * size
    assert _resident() - before <= 1.1 * size
    few, rows = _resident(), np.arange(160, dtype=np.int32)
    forward.step(rows, 0 * rows, rows, rows)  # logits of 31 MB, given back after the next step
    many = _resident()
    evaluate(forward, [1, 2, 3])
    assert many > few + 25e6
    assert _resident() < many - 25e6
    evaluate(forward, np.resize([1, 2, 3], 300), slot=1, want=())  # and so are its activations
    many = _resident()
    evaluate(forward, [1, 2, 3])
    assert _resident() < many - 3e6
    forward.close()
    forward.close()
    assert _resident() - before <= 0.05 * size
    assert forward.memory_bytes == 0
