"""The number of threads, and the helper threads that share the work of a kernel step.

A helper is a daemon thread of Python that stays inside one compiled function (c/team.h): it holds
no GIL, spins briefly for work and then sleeps. The caller never waits for a helper that has not
taken a task, so a forked child, which has no helpers, works alone.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .job import TEAM, TEAM_BYTES
from .memory import Region

MAX_THREADS = 256
SPIN_THOUSAND_TICKS = 300  # about 0.1 ms: longer than the gap between the phases of a step


def processors() -> int:
    """Processors that this process may use, hardware threads counted one by one: more threads than
    these would only wait for each other."""
    if hasattr(os, "sched_getaffinity"):
        mine = len(os.sched_getaffinity(0))
    else:
        mine = os.cpu_count() or 1
    return max(1, min(mine, _quota(Path("/sys/fs/cgroup")) or mine))


def available_cores() -> int:
    """Cores that this process may use: affinity, cut by a cgroup's quota.

    Two hardware threads of one core count once: they share the units that the kernels keep busy.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = _cores(os.sched_getaffinity(0), Path("/sys/devices/system/cpu"))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _quota(Path("/sys/fs/cgroup")) or cores))


def _cores(cpus: set[int], root: Path) -> int:
    """Physical cores among the system's numbers of processors."""

    def core(cpu: int) -> str:
        try:
            return (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            return f"cpu {cpu}"

    return len({core(cpu) for cpu in cpus})


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


Command = Callable[[str, int], None]  # runs a command that needs no memory but the team's address


@dataclass(slots=True)
class _Crew:
    """What helpers use; they and the finalizer keep it alive, so that none outlives its memory."""

    memory: Region
    command: Command
    words: npt.NDArray[np.int32]
    pid: int
    helpers: list[threading.Thread] = field(default_factory=list)

    def dismiss(self) -> None:
        """Send the helpers home, if they live in this process."""
        if self.helpers and self.pid == os.getpid():
            self.command("dismiss", self.memory.address)
            for helper in self.helpers:
                if helper is not threading.current_thread():  # the collector may run anywhere
                    helper.join()
        self.helpers = []
        self.words[TEAM["helpers"]] = self.words[TEAM["stop"]] = 0


class Team:
    """The helpers of one KernelForward. All calls come from the thread that calls its steps.

    They end with `stop`, with the last reference to the team, or before the interpreter exits.
    """

    def __init__(self, threads: int) -> None:
        self.memory = Region(TEAM_BYTES)
        words = self.memory.view(np.int32, TEAM_BYTES // 4)
        words[TEAM["spin"]] = SPIN_THOUSAND_TICKS
        self._words = words
        self._crew: _Crew | None = None
        self.threads = _allowed(threads)

    def bind(self, command: Command) -> None:
        """Name the function that runs kernel commands. It must not refer to this team."""
        self._crew = _Crew(self.memory, command, self._words, os.getpid())
        weakref.finalize(self, self._crew.dismiss)

    def ready(self) -> None:
        """Start the helpers if they do not run in this process (first step, or after a fork)."""
        crew = self._crew
        if crew is None:
            return
        if crew.pid != os.getpid():
            crew.pid, crew.helpers = os.getpid(), []
            self._words[: TEAM["helpers"]] = 0  # the parent's hand-shake, perhaps half done
        if len(crew.helpers) < self.threads - 1:
            for _ in range(self.threads - 1 - len(crew.helpers)):
                helper = threading.Thread(
                    target=crew.command,
                    args=("help", self.memory.address),
                    name="llm_magic kernel",
                    daemon=True,
                )
                try:
                    helper.start()
                except RuntimeError:  # a limit of the system, or the interpreter is ending
                    break
                crew.helpers.append(helper)
            self._words[TEAM["helpers"]] = len(crew.helpers)

    def resize(self, threads: int) -> None:
        """Use so many threads from the next step on."""
        if threads < self.threads:
            self.stop()
        self.threads = _allowed(threads)

    def stop(self) -> None:
        """Send the helpers home. They start again with the next step."""
        if self._crew is not None:
            self._crew.dismiss()


def _allowed(threads: int) -> int:
    # Elsewhere there is no futex to sleep on.
    return max(1, min(threads, MAX_THREADS)) if sys.platform == "linux" else 1
