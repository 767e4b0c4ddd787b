"""The benchmark's side of a subject process: it asks for a measurement, the process answers."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping

from ..errors import RequestError

TIMEOUT = 900.0  # seconds for one measurement; a subject that needs more has failed


class Worker:
    """A subject process. Close it, or use it as a context.

    `program` is the command that starts the process, without its arguments.
    """

    program: tuple[str, ...] = (sys.executable, "-m", "llm_magic.bench.subject_process")

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
        command = [*self.program, name, path, str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
            env=os.environ | dict(environment or {}),
        )  # fmt: skip

    def ask(self, method: str, *arguments: object) -> float:
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
