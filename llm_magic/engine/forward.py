"""The contract between the scheduler and a forward pass; portable and kernel paths implement it.

Comes in: rows (token id, slot, position). Goes out: logits of chosen rows. It must not know about
requests, sampling or text.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


class Forward(Protocol):
    """One model with its KV cache, evaluated as a ragged batch. All calls come from one thread.

    n_vocab: rows of the output matrix (may exceed the tokenizer's vocabulary).
    n_ctx: positions per slot; n_slots: independent KV sequences; max_rows: most rows in one step;
    max_wanted: most of them whose logits one step returns.
    """

    @property
    def n_vocab(self) -> int: ...

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_slots(self) -> int: ...

    @property
    def max_rows(self) -> int: ...

    @property
    def max_wanted(self) -> int: ...

    @property
    def description(self) -> str:
        """Which path this is, for status(): "portable, CPU" or "AVX-512 VNNI, 2 threads"."""

    def step(self, tokens: I32, slots: I32, positions: I32, want: I32) -> F32:
        """Evaluate rows; write their keys and values; return logits of the rows named by `want`.

        tokens, slots, positions: [n], 1 <= n <= max_rows. The rows of one slot are adjacent and in
        rising, consecutive positions; the cache of that slot already holds every earlier position
        (0 .. first-1). Rows of one slot see each other causally. Slots do not see each other.
        want: [m] row indices, rising; 0 <= m <= max_wanted.
        Returns float32 [m, n_vocab]. The array may be reused by the next step: copy what must stay.
        """

    def copy(self, source: int, target: int, n: int) -> None:
        """Copy positions 0 .. n-1 of one slot's cache to another slot."""

    def resize(self, n_ctx: int, n_slots: int) -> None:
        """Grow the KV cache, keeping what is in it. Sizes never shrink."""

    def forget(self, slot: int) -> None:
        """What this slot holds is not needed any more: give its memory back, where it can be."""

    @property
    def position_bytes(self) -> int:
        """Bytes of the cache that one position of one slot takes."""

    @property
    def memory_bytes(self) -> int:
        """Weights and KV cache that are really allocated."""

    def close(self) -> None:
        """Free weights and cache. Idempotent."""


class Summarizer(Forward, Protocol):
    """A forward pass that finds, in the call of the step, what readers of probabilities need."""

    def step(self, tokens: I32, slots: I32, positions: I32, want: I32, top: int = 0) -> F32:
        """top: `summarize` will be asked for so many entries of the wanted rows; 0: it will not."""

    def summarize(self, n_rows: int, top: int) -> tuple[I32, F32, I32, F32]:
        """Of the first rows that the last step returned: (argmax [n], log of the sum of
        exponentials [n], ids of the `top` largest [n, top], their logits [n, top], falling)."""
