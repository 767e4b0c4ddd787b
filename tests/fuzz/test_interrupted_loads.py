"""Interrupt loads at random moments: no engine may stay that `hub` does not know of.

`python -m tests.fuzz.test_interrupted_loads 1000` interrupts 1,000 loads and prints what it saw.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
from support.toy import toy_gguf

import llm_magic
from llm_magic.hub import hub

COUNT = int(os.environ.get("LLM_MAGIC_FUZZ", "40"))


def engines() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "llm_magic engine"]


def settled(wanted: int, seconds: float = 30.0) -> bool:
    """Whether at most so many engine threads live, waiting for those that are ending."""
    for _ in range(int(seconds * 100)):
        if len(engines()) <= wanted:
            return True
        time.sleep(0.01)
    return False


def interrupted(path: str, after: float) -> bool:
    """Load once; a signal strikes the main thread after so many seconds."""
    # A timer of the system: it can strike in any bytecode of the load, its first one included.
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        llm_magic.load(path, ctx=64, slots=1, threads=1)
    except KeyboardInterrupt:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return False


def interrupt_loads(path: str, count: int) -> dict[str, float]:
    """Figures of `count` loads that were interrupted, none of which left an engine."""
    rng, struck, memory = random.Random(1), 0, 0
    process = psutil.Process()

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        llm_magic.load(path, ctx=64, slots=1, threads=1).unload()  # compiles
        start = time.perf_counter()
        llm_magic.load(path, ctx=64, slots=1, threads=1).unload()
        whole = time.perf_counter() - start
        tried = 0
        while struck < count:
            tried += 1
            try:
                struck += interrupted(path, rng.uniform(1e-5, 1.2 * whole))
            except KeyboardInterrupt:  # between the load and the end of the timer
                struck += 1
            known = len(hub.loaded())
            assert settled(known), f"{len(engines())} engines, {known} known, load {tried}"
            if known:
                hub.unload()
            assert settled(0), f"an unloaded engine stays, load {tried}"
            if struck == min(20, count):
                gc.collect()
                memory = process.memory_info().rss
        gc.collect()
        grown = (process.memory_info().rss - memory) / 1e6
        return {"loads": tried, "interrupted": struck, "grown_mb": round(grown, 1)}
    finally:
        signal.signal(signal.SIGALRM, before)


def test_interrupted_loads_leave_no_engine_behind(tmp_path: Path) -> None:  # F303
    path = str(toy_gguf(tmp_path / "toy.gguf", ctx=64))
    assert interrupt_loads(path, COUNT)["grown_mb"] < 100


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model = str(toy_gguf(Path(folder) / "toy.gguf", ctx=64))
        print(interrupt_loads(model, int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
