"""What a loaded model takes of the machine's memory, in a process of its own."""

import random
from pathlib import Path

import pytest

from llm_magic.bench.worker import Worker

MOST = 1.3  # resident, against the file and what is filled of the cache


@pytest.mark.parametrize(
    "fixture",
    [
        pytest.param("smollm2_path", marks=pytest.mark.model),
        pytest.param("gemma3_path", marks=pytest.mark.gemma),  # 262,144 tokens to name
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_a_model_takes_little_more_than_its_file_and_its_cache(request, fixture):
    path = request.getfixturevalue(fixture)
    rng = random.Random(3)

    def ids(n):
        return [rng.randrange(300, 30000) for _ in range(n)]

    with Worker("llm_magic", str(path), 2) as worker:
        worker.ask("prepare")
        before = worker.ask("memory")
        worker.ask("load")
        for _ in range(2):  # two conversations: what is there once weighs less beside them
            worker.ask("prefill", ids(2048))
        worker.ask("streams", [ids(8) for _ in range(4)], 16)
        worker.ask("logprobs", ids(1), 16)
        taken, cache = worker.ask("memory") - before, worker.ask("kv_bytes")
    assert cache > 60e6
    assert taken <= MOST * (path.stat().st_size + cache)
