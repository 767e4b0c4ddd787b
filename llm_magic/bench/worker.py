"""A subject in a process of its own: one JSON line asks, one answers.

Comes in: a subject's name, a file, threads; then (method, arguments) per line. Goes out: a number
or the reason why there is none. It must not know what is compared with what.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RequestError
from .subjects import SUBJECTS

TIMEOUT = 900.0  # seconds for one measurement; a subject that needs more has failed


class Worker:
    """The asking side. Close it, or use it as a context. program: what starts the other side."""

    program: tuple[str, ...] = (sys.executable, "-m", "llm_magic.bench")

    def __init__(
        self,
        name: str,
        path: str,
        threads: int,
        environment: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.name, self._timeout = name, timeout
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed by close)
        command = [*self.program, "--worker", name, path, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            env=os.environ | dict(environment or {}),
        )  # fmt: skip

    def ask(self, method: str, *arguments: Any) -> float:
        """The value of one measurement. RequestError with the subject's reason if it has none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late: list[str] = []

        def end() -> None:
            late.append(f"took more than {self._timeout:.0f} s")
            self._process.kill()

        alarm = threading.Timer(self._timeout, end)
        alarm.daemon = True
        alarm.start()
        try:
            self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            raise RequestError(late[0] if late else self._death())
        answer = json.loads(line)
        if "error" in answer:
            raise RequestError(answer["error"])
        return float(answer["value"])

    def _death(self) -> str:
        code = self._process.wait()
        self._said.seek(0)
        last = next((s for s in reversed(self._said.read().splitlines()) if s.strip()), "")
        return f"its process ended with status {code}" + (f": {last[:200]}" if last else "")

    def close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def work(name: str, path: str, threads: int) -> None:
    """The worker's side; never returns. stdout is the channel: libraries print to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subject = SUBJECTS[name](path, threads)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"value": _measure(subject, method, arguments)}
        except Exception as e:  # whatever a peer raises is its result
            answer = {"error": f"{type(e).__name__}: {e}"[:500]}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()
    os._exit(0)  # peers may hang while their threads wind up


def _measure(subject: Any, method: str, arguments: list[Any]) -> float:
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
