"""How much memory this process may still take, and whether a model fits into it.

A model that does not fit would drive the machine into swapping, or be killed by the system together
with the notebook's variables. So sizes are compared before anything is allocated.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llm_magic.errors import ModelError

# What stays free for the notebook itself.
RESERVE = 64 << 20


def available(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take without swapping; None where nothing tells.

    The smaller of what the system has free and what the cgroup (a container's limit) leaves.

    Args:
        root: Where /proc and /sys are found.
    """
    if not sys.platform.startswith("linux"):
        return None
    found = [n for n in (_system(root), _cgroup(root)) if n is not None]
    return min(found, default=None)


def _system(root: Path) -> int | None:
    try:
        lines = (root / "proc" / "meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvail"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _cgroup(root: Path) -> int | None:
    """Room below the memory limit of the cgroup, version 2, then 1. File pages count as room."""
    base = root / "sys" / "fs" / "cgroup"
    for folder, limit, used, key in (
        (base, "memory.max", "memory.current", "inactive_file"),
        (base / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (folder / limit).read_text().strip()
            if most == "max":
                continue
            taken = int((folder / used).read_text())
            return max(0, int(most) - taken + _stat(folder / "memory.stat", key))
        except (OSError, ValueError):
            continue
    return None


def _stat(path: Path, key: str) -> int:
    try:
        rows = (line.split() for line in path.read_text().splitlines())
        return next(int(row[1]) for row in rows if row[0] == key)
    except (OSError, ValueError, IndexError, StopIteration):
        return 0


@dataclass(frozen=True, slots=True)
class Need:
    """What a model takes, in bytes.

    weights: as they lie in memory. position: of KV cache for one token. fixed: of work memory.
    """

    weights: int
    position: int
    fixed: int

    def total(self, n_ctx: int) -> int:
        """With one conversation of so many tokens.

        >>> Need(weights=100, position=2, fixed=50).total(n_ctx=10)
        170
        """
        return self.weights + self.position * n_ctx + self.fixed


def check_fits(
    name: str, need: Need, n_ctx: int, room: Callable[[], int | None] | None = None
) -> None:
    """Refuse a model that does not fit into the memory that is free.

    Args:
        name: Of the model's file.
        need: What it takes.
        n_ctx: The context asked for, in tokens; one conversation of it must fit.
        room: Tells the bytes that are free, or None; without it, `available`.

    Raises:
        ModelError: It does not fit. The message names the sizes and the largest context that would.

    >>> check_fits("m.gguf", Need(10 << 30, 40_000, 0), 4096, lambda: 8 << 30)
    Traceback (most recent call last):
    llm_magic.errors.ModelError: m.gguf needs 10.9 GB of memory (weights 10.7 GB, ...
    """
    free = (room or available)()
    if free is None or need.total(n_ctx) + RESERVE <= free:
        return
    left = free - RESERVE - need.weights - need.fixed
    most = left // need.position // 256 * 256 if need.position else 0
    way = (
        f"a context of {most:,} tokens would fit: ctx={most} (%llm load NAME --ctx {most})"
        if most >= 256
        else "no context fits: choose a smaller model or quantisation, or unload what is loaded "
        "(%llm unload)"
    )
    raise ModelError(
        f"{name} needs {need.total(n_ctx) / 1e9:.1f} GB of memory (weights "
        f"{need.weights / 1e9:.1f} GB, KV cache {need.position * n_ctx / 1e9:.1f} GB for "
        f"{n_ctx:,} tokens, work memory {need.fixed / 1e9:.1f} GB), and {free / 1e9:.1f} GB is "
        f"free; {way}"
    )
