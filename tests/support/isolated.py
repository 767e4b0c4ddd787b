"""Run a fuzzer's inputs in child processes and report what ends, hangs or breaks one of them.

A fuzzer is a module with `check(seed) -> str`: it makes one input from the seed, tries it and
returns a word for the outcome. An exception is a finding. `run` gives the seeds to child processes
with a limit of memory; a child that dies or is silent for too long is a finding too, and the rest
of its seeds goes to the next child.
"""

import importlib
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Report:
    """Outcomes by word, and findings as (seed, what happened)."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    verbose: bool = False

    def note(self, seed: int, word: str, what: str) -> None:
        self.outcomes[word] += 1
        self.findings.append((seed, what))
        if self.verbose:
            print(f"seed {seed}: {word}: {what}", flush=True)

    def __str__(self) -> str:
        lines = [f"{sum(self.outcomes.values())} inputs: {dict(self.outcomes)}"]
        lines += [f"seed {seed}: {what}" for seed, what in self.findings]
        return "\n".join(lines)


def run(
    module: str, n: int, first: int = 0, seconds_each: float = 20, memory: int = 4 << 30,
    verbose: bool = False,
) -> Report:  # fmt: skip
    """Check the seeds first .. first + n - 1 of a fuzzer module in child processes.

    verbose: print each finding when it is made.
    """
    report, at = Report(verbose=verbose), first
    while at < first + n:
        at = _one_child(module, at, first + n, seconds_each, memory, report)
    return report


def _one_child(
    module: str, at: int, stop: int, seconds_each: float, memory: int, report: Report
) -> int:
    """Run one child from seed `at`; returns the seed to go on with."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-m", "support.isolated", module, str(at), str(stop), str(memory)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    noise: list[str] = []
    begun = False
    try:
        while True:
            line = lines.get(timeout=seconds_each + (0 if begun else 60))
            if line is None:
                break
            if not line.startswith("\x01"):
                noise.append(line)
                continue
            _, word, *rest = line.rstrip("\n").split("\x01")
            if word == "ok":
                report.outcomes[rest[0]] += 1
            else:
                report.note(at, "FINDING", rest[0].replace("\x02", "\n"))
            at, begun = at + 1, True
    except queue.Empty:
        child.kill()
        report.note(at, "HANG", f"no end within {seconds_each} s")
        return at + 1
    finally:
        child.kill()
        child.wait()
    if at < stop:
        tail = "".join(noise[-8:])
        report.note(at, "DEATH", f"the process ended with {child.returncode}: {tail}")
        at += 1
    return at


def _read(child: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def _child(module: str, at: int, stop: int, memory: int) -> None:
    fuzzer = importlib.import_module(module)
    if os.name == "posix" and sys.platform != "darwin":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for seed in range(at, stop):
        try:
            print("\x01ok\x01" + fuzzer.check(seed), flush=True)
        except BaseException:  # whatever it is: no input may raise anything
            trace = traceback.format_exc(limit=-6)[-3000:].replace("\n", "\x02")
            print("\x01finding\x01" + trace.replace("\x01", ""), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], *map(int, sys.argv[2:5]))
