"""What was recorded inside a model over one text, and what follows from it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..extension_points import INSIDE_VIEWS
from ..taps import Site, full_name
from .attention import Attention
from .attention import attention as look
from .attribution import Attribution, Norms
from .attribution import attribution as attribute
from .attribution import norms as measure
from .lens import Lens, Translators
from .lens import lens as read_lens
from .record import Record

if TYPE_CHECKING:
    from pandas import DataFrame


class Inspection(Record):
    """Activations of one text: `inspection["resid_post", 5]` is float32 [positions, dim].

    Names are those of TransformerLens, whole or short: `inspection["blocks.5.attn.hook_pattern"]`,
    `inspection["attn.hook_pattern", 5]` and `inspection["pattern", 5]` are the same array.
    Displayed, it says what it holds. What a view needs and was not read is recorded when the view
    is asked for.

    Shapes, with P the positions that were read and T all up to the last of them: `resid_pre`,
    `attn_out`, `resid_mid`, `mlp_out`, `resid_post`, `embed`, `normalized` [P, dim]; `rot_q`, `z`
    [P, heads, head_dim]; `rot_k`, `v` [P, key heads, head_dim]; `pattern` [heads, P, T].
    """

    def to_frame(self) -> "DataFrame | list[dict[str, Any]]":
        """One row per array and position: name, block, position, token and the vector's norm."""
        rows = [row for site in self._arrays if site[0] != "pattern" for row in self._rows(site)]
        found: DataFrame | list[dict[str, Any]] = INSIDE_VIEWS.load().frame(rows)
        return found

    def _rows(self, site: Site) -> Iterator[dict[str, Any]]:
        import numpy as np

        array = self._arrays[site].reshape(len(self.positions), -1)
        norms = np.sqrt(np.square(array, dtype=np.float64).sum(-1))
        for position, token, norm in zip(self.positions, self.tokens, norms, strict=True):
            yield {
                "name": full_name(site),
                "block": site[1],
                "position": position,
                "token": token.decode("utf-8", "replace"),
                "norm": float(norm),
            }

    # ------------------------------------------------------------------ views

    def lens(
        self,
        top: int = 5,
        layers: Sequence[int] | None = None,
        colour: str = "probability",
        translators: Translators | None = None,
    ) -> Lens:
        """The logit lens: what the model would say if it stopped behind each block.

        The stream behind each block goes through the last norm and the output matrix. The row of
        the last block is the model's output, bit for bit.

        Args:
            top: How many tokens of each cell are kept, at most 32.
            layers: Blocks; None: all.
            colour: "probability" or "entropy" of a cell.
            translators: Of a tuned lens or a Jacobian lens.
        """
        return read_lens(self, top, layers, colour, translators)

    def attention(
        self, layer: int = -1, head: int | None = None, token: int | None = None
    ) -> Attention:
        """Who looks at whom in a block.

        Args:
            layer: The block; negative ones count from the last.
            head: One head: every token's view, as a grid. None: every head, from one token.
            token: The position that looks; None: the last one that was read.
        """
        return look(self, layer, head, token)

    def norms(self) -> Norms:
        """The length of the stream and of what each part adds to it, by block."""
        return measure(self)

    def attribution(
        self, token: object, against: object = None, position: int = -1, heads: bool = True
    ) -> Attribution:
        """Direct logit attribution: which part of the model speaks for a token.

        The stream at a position is the sum of what all parts added; so is, with the last norm's
        scale held fixed, the logit.

        Args:
            token: The token, a text or an id.
            against: The token whose logit is subtracted; None: the mean of all logits.
            position: A position that was read; negative ones count from the last.
            heads: Whether attention is split into its heads.
        """
        return attribute(self, token, against, position, heads)

    def explore(self) -> Any:
        """The live view: choose block, head and token; hover for more."""
        return INSIDE_VIEWS.load().explore(self)
