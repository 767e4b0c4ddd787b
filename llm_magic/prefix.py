"""How much two texts, or two runs of token ids, have in common at their beginning.

Standard library only, so that the engine, the chat layer and notebooks can share it.
"""

from typing import TypeVar

S = TypeVar("S", str, list[int])


def common_prefix(a: S, b: S) -> int:
    """Length of the longest common prefix, by bisection over slices (compared in C)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
