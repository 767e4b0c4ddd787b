"""Steps of the kernels as the scheduler calls them: summaries in the same call, bounded logits."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.kernels_oracle import evaluate, i32, kernel_forward
from support.toy import toy_gguf

from llm_magic.engine import cpu
from llm_magic.engine.kernels import forward as kernels
from llm_magic.engine.kernels.targets import usable
from llm_magic.engine.serving import planner
from llm_magic.errors import EngineError
from llm_magic.providers.local import Local

VARIANTS = [t.name for t in usable(cpu.cpu_features())]
IDS = np.random.default_rng(5).integers(3, 250, 61).astype(np.int32)


def batch(n):
    rows = np.arange(n, dtype=np.int32)
    return IDS[:n], 0 * rows, rows


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 3, 20])  # 20: more than the work memory's parts hold at once
def test_a_step_summarizes_in_the_same_call(tmp_path, variant, rows):
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=5003)
    forward = kernel_forward(path, target=variant, threads=3)
    want = np.arange(61 - rows, 61, dtype=np.int32)
    calls, call = [], forward._call

    def counted(*arguments):
        calls.append(int(forward._words[0]))
        call(*arguments)

    forward._call = counted
    plain = forward.step(*batch(61), want)
    assert plain.summaries is None
    logits = plain.logits.copy()
    result = forward.step(*batch(61), want, 5)
    assert len(calls) == 2
    np.testing.assert_array_equal(result.logits, logits)
    np.testing.assert_array_equal(result.summaries.ids[:, 0], logits.argmax(-1))
    fewer = forward.step(*batch(61), want, 2).summaries
    np.testing.assert_array_equal(fewer.ids, result.summaries.ids[:, :2])
    np.testing.assert_array_equal(fewer.lse, result.summaries.lse)
    forward.close()


def test_a_step_refuses_more_entries_than_it_can_list(tmp_path):
    forward = kernel_forward(toy_gguf(tmp_path / "toy.gguf", tokenizer="none"))
    with pytest.raises(EngineError, match="top is 33"):
        forward.step(*batch(3), i32(2), 33)
    forward.close()


def test_logits_of_a_step_are_bounded_by_bytes_and_never_below_the_slots(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "LOGIT_BYTES", 40 * 272 * 4 + 1)
    path = toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=260)  # rows of 288 in memory
    forward = kernel_forward(path, n_slots=2)
    assert forward.max_wanted == 40 * 272 // 288
    with pytest.raises(EngineError):
        forward.step(*batch(61), np.arange(61, dtype=np.int32))
    whole = evaluate(forward, IDS)  # in two parts
    most = np.arange(forward.max_wanted, dtype=np.int32)
    np.testing.assert_array_equal(forward.step(*batch(61), most).logits, whole[: len(most)])
    forward.resize(64, 50)
    assert forward.max_wanted == 50
    most = np.arange(50, dtype=np.int32)
    np.testing.assert_array_equal(forward.step(*batch(61), most).logits, whole[:50])
    forward.close()


@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param("smollm2_path", marks=pytest.mark.model),
        pytest.param("gemma3_path", marks=pytest.mark.gemma),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak here")
def test_the_peak_of_memory_does_not_grow_with_the_text_that_is_scored(
    request, fixture, monkeypatch
):
    monkeypatch.setattr(planner, "STEP_SECONDS", 10.0)  # steps as long as memory allows
    local = Local("memory", request.getfixturevalue(fixture), 4096, 1, 2)
    local.wait(lambda progress: None)
    forward = local.engine.loaded().forward
    ids = np.random.default_rng(3).integers(300, 30000, 1500).tolist()
    local.score(ids[:16])  # what libraries take is there now
    short, cache = peak(lambda: local.score(ids[:16])), forward.memory_bytes
    long = peak(lambda: local.score(ids))
    assert long - short <= (32 << 20) + forward.memory_bytes - cache + 15e6
    local.close()


def peak(work) -> int:
    """Bytes that were resident at most while `work` ran."""
    Path("/proc/self/clear_refs").write_text("5")
    work()
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024
