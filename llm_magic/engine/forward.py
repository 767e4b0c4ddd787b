"""The contract between the scheduler and a forward pass.

The portable and the kernel path implement `Forward`: rows of (token id, slot, position) in, logits
of chosen rows out. A forward pass knows nothing about requests, sampling or text.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]


# Places of a layer that taps reach, in the order in which a layer comes to them.
#   resid_pre   [rows, dim]              the residual stream before the layer
#   q, k, v     [rows, heads, head_dim]  after norms and rotation; rotated pairs lie at distance
#                                        rope.dim / 2 (the order of Hugging Face); read only
#   z           [rows, heads, head_dim]  what attention gave, before its output matrix
#   attn_out    [rows, dim]              what attention adds to the stream, after its post-norm
#   resid_mid   [rows, dim]              resid_pre + attn_out
#   mlp_out     [rows, dim]              what the feed-forward part adds, after its post-norm
#   resid_post  [rows, dim]              resid_mid + mlp_out
#   normalized  [rows, dim]              of the last layer: resid_post after the model's last norm,
#                                        which the output matrix is applied to; read only
POINTS = (
    *("resid_pre", "q", "k", "v", "z", "attn_out", "resid_mid", "mlp_out", "resid_post"),
    "normalized",
)
CHANGED = frozenset({"resid_pre", "z", "attn_out", "resid_mid", "mlp_out", "resid_post"})


@dataclass(frozen=True, slots=True)
class Read:
    """Copy a point of rows `first` .. `first + len(out) - 1` of the batch into `out`.

    Attributes:
        point: One of POINTS.
        layer: From 0 on; "normalized" belongs to the last one.
        first: Index of the first row in the batch.
        out: Float32 [rows, width], heads side by side. Written by the step.
    """

    point: str
    layer: int
    first: int
    out: F32


@dataclass(frozen=True, slots=True)
class Change:
    """Add to a point of some rows, or replace it. The layer goes on with the result.

    Attributes:
        point: One of CHANGED.
        layer: From 0 on.
        first: Index of the first row in the batch.
        rows: How many rows are changed.
        values: Float32 [rows, columns], or [1, columns] for all rows alike.
        add: Whether the values are added; else they replace what is there.
        column: The first column that is changed: `head * head_dim` for one head of "z".
    """

    point: str
    layer: int
    first: int
    rows: int
    values: F32
    add: bool
    column: int = 0


@dataclass(frozen=True, slots=True)
class Taps:
    """What a step records or changes besides its logits.

    At one point the changes come first, in the order given; then it is read. Rows that no change
    names keep their bits, and a step without taps computes the same bits as one that only reads.

    The final hidden states of a text, for example for embeddings (pooling), are one read of every
    row of a step, whatever rows `want` names:

        out = np.empty((n, dim), np.float32)
        forward.step(tokens, slots, positions, no_rows, taps=Taps((Read("normalized", n_layers - 1,
                     0, out),)))

    A request does that across its steps with `Job.taps` (serving/taps.py).
    """

    reads: tuple[Read, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class RowSummaries:
    """What a step computed for the wanted rows besides their logits.

    Attributes:
        lse: Natural log of the sum of exponentials of each row, float32 [m]; not finite if a logit
            of the row is NaN or infinite.
        ids: Ids of the largest logits, falling, int32 [m, top]; of equal logits the lower id first.
        values: Their logits, float32 [m, top].
    """

    lse: F32
    ids: I32
    values: F32


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step returns.

    Attributes:
        logits: Float32 [m, n_vocab]. The next step may overwrite it: copy what must stay.
        summaries: Of the wanted rows, if the step was asked for them and the path computes them.
    """

    logits: F32
    summaries: RowSummaries | None = None


class Forward(Protocol):
    """One model with its KV cache, evaluated as a ragged batch. All calls come from one thread."""

    @property
    def n_vocab(self) -> int:
        """Rows of the output matrix; may exceed the tokenizer's vocabulary."""

    @property
    def n_ctx(self) -> int:
        """Positions per slot."""

    @property
    def n_slots(self) -> int:
        """Independent sequences in the KV cache."""

    @property
    def max_rows(self) -> int:
        """The largest number of rows in one step."""

    @property
    def max_wanted(self) -> int:
        """The largest number of rows whose logits one step returns."""

    @property
    def batch_invariant(self) -> bool:
        """Whether a row's logits have the same bits in every batch."""

    @property
    def description(self) -> str:
        """The compute path, as status() shows it: "portable, CPU", "AVX-512 VNNI, 2 threads"."""

    def step(
        self,
        tokens: I32,
        slots: I32,
        positions: I32,
        want: I32,
        top: int = 0,
        taps: Taps | None = None,
    ) -> StepResult:
        """Evaluate rows, write their keys and values, and return the logits of the wanted rows.

        The rows of one slot are adjacent and their positions rise by one; the cache of that slot
        already holds every earlier position. Rows of one slot see each other causally. Slots do
        not see each other.

        Args:
            tokens: Token ids, [n], 1 <= n <= max_rows.
            slots: The slot of each row, [n].
            positions: The position of each row in its slot, [n].
            want: Rising indices of the rows whose logits are returned, [m], 0 <= m <= max_wanted.
            top: How many entries `StepResult.summaries` lists for each wanted row; 0: none are
                computed. A path without summaries ignores it.
            taps: What to record or change inside the step; None: nothing.
        """

    def unembed(self, hidden: F32, top: int = 0) -> StepResult:
        """Logits of any vectors of the residual stream: last norm, output matrix, soft cap.

        For a "resid_post" of the last layer these are the bits of the step's own logits on a path
        that is `batch_invariant`.

        Args:
            hidden: Float32 [n, dim], 1 <= n <= max_wanted.
            top: As for `step`.
        """

    def copy(self, source: int, target: int, n: int) -> None:
        """Copy positions 0 .. n-1 of one slot's cache to another slot."""

    def resize(self, n_ctx: int, n_slots: int) -> None:
        """Grow the KV cache and keep its content. Sizes never shrink."""

    def forget(self, slot: int) -> None:
        """Discard the content of a slot and return its memory to the system where possible."""

    @property
    def position_bytes(self) -> int:
        """Bytes of the cache that one position of one slot takes."""

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated for weights and KV cache."""

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
