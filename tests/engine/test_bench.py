"""The benchmark's parts that need a compiler, a kernel or a model."""

import threading

import pytest
from support.toy import toy_gguf

from llm_magic.bench import measure, random_model
from llm_magic.bench.measure import Task
from llm_magic.bench.report import OURS
from llm_magic.engine.kernels.bandwidth import read_bandwidth


def test_bandwidth_is_that_of_a_memory():
    one = read_bandwidth(1, size=1 << 26, tries=2)
    assert 1e9 < one < 2e12
    before = threading.active_count()
    assert read_bandwidth(3, size=1 << 26, tries=1) > 1e9
    assert threading.active_count() == before


@pytest.mark.slow
@pytest.mark.kernel
def test_a_run_on_a_toy_measures_everything_but_peers(tmp_path):
    path = toy_gguf(tmp_path / "toy.gguf", ctx=4096, types="Q8_0", vocab=2000)
    tasks = [
        [Task("prefill 32", "prefill", (32,))],
        [
            Task("decode at 0", "decode", (1,), 16),
            Task("decode with 5 logprobs", "logprobs", (1,), 16, alone=True),
            Task("decode beside a Python loop", "busy", (1,), 16, alone=True),
        ],
        [Task("1 stream", "streams", (4,), 16), Task("4 streams", "streams", (4,) * 4, 16)],
    ]
    said = []
    report = measure.run(
        str(path), threads=2, rounds=1, quick=True, say=said.append, tasks=tasks
    )  # fmt: skip
    assert report.subjects == [OURS]
    assert report.notes == ()
    assert not report.failures
    assert all(value > 0 for result in report.results for value in result.values)
    assert set(report.facts) == {
        "share of the bandwidth", "speed kept with 5 logprobs", "speed kept beside a Python loop",
        "4 streams against 1", "cell against llm.stream", "memory against file and cache",
    }  # fmt: skip
    warm, cold = (report.best(t) for t in
                  ("first token of a fresh process", "first token, nothing compiled"))  # fmt: skip
    assert warm < cold
    assert report.kv_bytes > 0
    assert {"cpu", "cores", "features"} <= report.machine.keys()
    assert report.versions["tinygrad"]


@pytest.mark.slow
def test_the_random_model_runs(tmp_path):
    import llm_magic

    shape = random_model.Shape(layers=2, dim=64, heads=4, kv_heads=2, inside=128, tokens=600)
    llm = llm_magic.load(str(random_model.write(tmp_path / "small.gguf", shape)))
    try:
        reply = llm.complete([300, 301, 302], max_tokens=8, logprobs=1)
        assert len(reply.tokens) == 8
        assert all(t.logprob is not None and -20 < t.logprob < 0 for t in reply.tokens)
    finally:
        llm.unload()


# TG-89
@pytest.mark.peers
@pytest.mark.model
@pytest.mark.slow
def test_a_peer_is_measured_beside_us_with_equal_work(smollm2_path, monkeypatch):
    pytest.importorskip("xllamacpp")
    monkeypatch.setattr(measure, "BUDGET", 1e9)  # a busy machine must not leave tasks out
    tasks = [
        [Task("prefill 64", "prefill", (64,))],
        [Task("decode at 16", "decode", (17,), 8)],
        [Task("1 stream", "streams", (4,), 8), Task("4 streams", "streams", (4,) * 4, 8)],
    ]
    report = measure.run(
        str(smollm2_path), ["xllamacpp"], threads=2, rounds=1, quick=True, notebook=False,
        tasks=tasks,
    )  # fmt: skip
    assert not report.failures
    for task in ("prefill 64", "decode at 16", "1 stream", "4 streams",
                 "first token of a fresh process", "resident memory"):  # fmt: skip
        assert report.get(task, "xllamacpp") is not None, report.notes
        assert report.ratio(task, "xllamacpp") > 0
    assert any("xllamacpp: a prebuilt wheel" in note for note in report.notes)
