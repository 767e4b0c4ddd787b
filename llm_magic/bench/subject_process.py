"""A subject in a process of its own: `python -m llm_magic.bench.subject_process NAME FILE THREADS`.

Each line of stdin is a JSON list [method, argument, ...]; each line of stdout is a JSON object with
a "value", or an "error" that says why there is none.
"""

import json
import os
import sys
import time
from pathlib import Path

from .subjects import SUBJECTS


def work(name: str, path: str, threads: int) -> None:
    """Answer measurements until stdin ends; never returns.

    stdout carries answers only: what libraries print goes to stderr.
    """
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subject = SUBJECTS[name](path, threads)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            answer: dict[str, object] = {"value": _measure(subject, method, arguments)}
        except Exception as e:  # whatever a peer raises is its result
            answer = {"error": f"{type(e).__name__}: {e}"[:500]}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()
    os._exit(0)  # peers may hang while their threads wind up


def _measure(subject: object, method: str, arguments: list[object]) -> float:
    match method:
        case "memory":
            return resident()
        case "load" | "prepare" | "first":  # what they take is what they cost
            call = getattr(subject, "prefill" if method == "first" else method)
            start = time.perf_counter()
            call(*arguments)
            return time.perf_counter() - start
        case _:
            return float(getattr(subject, method)(*arguments))


def resident() -> float:
    """Resident memory of this process, in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux: the peak
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
