"""How much memory this process may still take, and whether a model fits into it.

A model that does not fit would drive the machine into swapping, or be killed by the system together
with the notebook's variables. So sizes are compared before anything is allocated.
"""

import sys
from collections.abc import Callable
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


def check_fits(
    name: str,
    weights: int,
    position: int,
    n_ctx: int,
    fixed: int,
    room: Callable[[], int | None] = available,
) -> None:
    """Refuse a model that does not fit into the memory that is free.

    Args:
        name: Of the model's file.
        weights: Bytes of the weights in memory.
        position: Bytes of KV cache for one token.
        n_ctx: The context asked for, in tokens; one conversation of it must fit.
        fixed: Bytes of work memory.
        room: Tells the bytes that are free, or None.

    Raises:
        ModelError: It does not fit. The message names the sizes and the largest context that would.

    >>> check_fits("m.gguf", 10 << 30, 40_000, 4096, 0, lambda: 8 << 30)
    Traceback (most recent call last):
    llm_magic.errors.ModelError: m.gguf needs 10.9 GB of memory (weights 10.7 GB, ...
    """
    free = room()
    need = weights + position * n_ctx + fixed
    if free is None or need + RESERVE <= free:
        return
    most = (free - RESERVE - weights - fixed) // position if position else 0
    most = most // 256 * 256
    way = (
        f"a context of {most:,} tokens would fit: ctx={most} (%llm load NAME --ctx {most})"
        if most >= 256
        else "no context fits: choose a smaller model or quantisation, or unload what is loaded "
        "(%llm unload)"
    )
    raise ModelError(
        f"{name} needs {need / 1e9:.1f} GB of memory (weights {weights / 1e9:.1f} GB, KV cache "
        f"{position * n_ctx / 1e9:.1f} GB for {n_ctx:,} tokens, work memory {fixed / 1e9:.1f} GB), "
        f"and {free / 1e9:.1f} GB is free; {way}"
    )
