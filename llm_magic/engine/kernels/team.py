"""How many threads, and the helper threads that take part in the kernels' steps.

A helper is a daemon thread of Python that stays inside one compiled function (c/team.h): it holds
no GIL, spins briefly for work and then sleeps in the system. The caller never waits for a helper
that has not taken a task, so a forked child, which has none, just works alone.

Comes in: the bound kernel. Goes out: started and stopped helpers. It must not know models.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .memory import Region

# c/team.h, in int32: helpers and spin stand in the fourth cache line, stop beside the sleepers.
TEAM_BYTES = 512
_STOP, _HELPERS, _SPIN = 33, 48, 49
SPIN_THOUSAND_TICKS = 300  # about 0.1 ms: longer than the gap between the phases of a step


def available_cores() -> int:
    """Cores that this process may use: affinity, cut by a cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup")) or cores))


def _quota(root: Path) -> int | None:
    """Whole cores of the cgroup's CPU quota (version 2, then 1), rounded up."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1") or int(period) <= 0:
        return None
    return max(1, -(-int(quota) // int(period)))


class Team:
    """The helpers of one KernelForward. All calls come from the thread that calls its steps.

    call: command -> None, runs the bound kernel with that command on the calling thread.
    """

    def __init__(self, threads: int, call: Callable[[str], None]) -> None:
        self.memory = Region(TEAM_BYTES)
        self._words = self.memory.view(np.int32, TEAM_BYTES // 4)
        self._words[_SPIN] = SPIN_THOUSAND_TICKS
        self._call = call
        self._helpers: list[threading.Thread] = []
        self._pid = os.getpid()
        self.threads = threads if sys.platform == "linux" else 1  # elsewhere there is no futex

    def ready(self) -> None:
        """Start the helpers if they do not run in this process (first step, or after a fork)."""
        if self._pid != os.getpid():
            self._pid, self._helpers = os.getpid(), []
            self._words[:_HELPERS] = 0  # the parent's hand-shake, perhaps half done
        missing = self.threads - 1 - len(self._helpers)
        if missing > 0:
            for _ in range(missing):
                helper = threading.Thread(
                    target=self._call, args=("help",), name="llm_magic kernel", daemon=True
                )
                helper.start()
                self._helpers.append(helper)
            self._words[_HELPERS] = len(self._helpers)

    def resize(self, threads: int) -> None:
        """Use so many threads from the next step on."""
        if threads < self.threads:
            self.stop()
        self.threads = threads if sys.platform == "linux" else 1

    def stop(self) -> None:
        """Send the helpers home. They start again with the next step."""
        if self._helpers and self._pid == os.getpid():
            self._call("dismiss")
            for helper in self._helpers:
                helper.join()
        self._helpers = []
        self._words[_HELPERS] = 0
        self._words[_STOP] = 0
