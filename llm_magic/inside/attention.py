"""Attention patterns of a block, as a view of one head or of all heads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RequestError
from ..taps import layer as block_of
from .record import Record
from .shown import Shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attention(Shown):
    """Who looks at whom in a block.

    Attributes:
        layer: The block.
        head: The head that is shown; None: every one.
        positions: The positions that look.
        token: The position whose view is shown; None: all of them, as a grid.
        tokens: All tokens that are looked at, as bytes.
        pattern: Float32 [heads, positions, tokens]; each row sums to 1.
    """

    layer: int
    head: int | None
    positions: tuple[int, ...]
    token: int | None
    tokens: tuple[bytes, ...]
    pattern: "F32"

    def weights(self, head: int, token: int) -> "F32":
        """What the token at a position looks at in a head, float32 [tokens]."""
        row: F32 = self.pattern[head, self.positions.index(token)]
        return row


def attention(inspection: Record, layer: int, head: int | None, token: int | None) -> Attention:
    """See `Inspection.attention`."""
    inside = inspection.inside
    block = block_of(layer, inside.anatomy.n_layers)
    heads = inside.anatomy.n_heads
    if head is not None:
        if not -heads <= head < heads:
            raise RequestError(f"there is no head {head}: a block has {heads}, from 0 on")
        head %= heads
    shown = None if token is None else inspection.position(token)
    if head is None and shown is None:
        shown = inspection.positions[-1]
    held = inspection.need([("pattern", block)])
    pattern = held["pattern", block]
    tokens = tuple(inside.token_bytes(i) for i in inspection.ids[: pattern.shape[-1]])
    return Attention(block, head, held.positions, shown, tokens, pattern)
