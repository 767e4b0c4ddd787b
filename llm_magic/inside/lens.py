"""Lenses: the stream behind every block, read as if it were the model's last.

The logit lens is nostalgebraist's (2020). A tuned lens (Belrose et al., arXiv:2303.08112) puts an
affine map before it, h + W h + b, a Jacobian lens a linear one, J h.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ..errors import RequestError
from ..extension_points import INSIDE_VIEWS
from ..taps import Inside
from ..taps import layer as block_of
from .record import Record
from .shown import Shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

Colour = Literal["probability", "entropy"]
MOST = 32  # tokens of a cell


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lens(Shown):
    """What each block would say, by position: displays as a grid of block x token.

    Attributes:
        layers: The blocks, one row of the grid each.
        positions: The positions, one column each.
        tokens: The text's tokens at these positions, as bytes.
        ids: Token ids, likeliest first, int32 [layers, positions, top].
        logprobs: Their natural log-probabilities, float32 [layers, positions, top].
        entropy: Of each cell's whole distribution, in nats, [layers, positions]; None unless the
            colour asks for it.
        colour: What shades the cells.
        inside: The model, for the texts of ids.
    """

    layers: tuple[int, ...]
    positions: tuple[int, ...]
    tokens: tuple[bytes, ...]
    ids: "npt.NDArray[np.int32]"
    logprobs: "F32"
    entropy: "F32 | None"
    colour: Colour
    inside: Inside

    def text(self, layer: int, position: int, rank: int = 0) -> str:
        """The text of a cell's token.

        Args:
            layer: Row of the grid.
            position: Column of the grid.
            rank: 0 for the likeliest.
        """
        token = int(self.ids[layer, position, rank])
        return self.inside.token_bytes(token).decode("utf-8", "replace")

    def explore(self) -> Any:
        """The live view: hover a cell for its likeliest tokens."""
        return INSIDE_VIEWS.load().explore(self)

    def appears(self, position: int = -1) -> int | None:
        """The first block from which on the model's answer at a column stays the likeliest.

        Args:
            position: Column of the grid; -1: the last.

        Returns:
            The block; None where the last row alone has it.
        """
        column = self.ids[:, position, 0]
        row = len(column) - 1
        while row and column[row - 1] == column[-1]:
            row -= 1
        return self.layers[row] if row < len(column) - 1 else None


def lens(
    inspection: Record,
    top: int,
    layers: Sequence[int] | None,
    colour: str,
    translators: "Translators | None",
) -> Lens:
    """See `Inspection.lens`."""
    import numpy as np

    if not 1 <= top <= MOST:
        raise RequestError(f"top is {top}; a lens keeps 1 to {MOST} tokens of a cell")
    if colour not in ("probability", "entropy"):
        raise RequestError(f"colour is {colour!r}; it must be 'probability' or 'entropy'")
    inside = inspection.inside
    n = inside.anatomy.n_layers
    blocks = tuple(range(n)) if layers is None else tuple(block_of(i, n) for i in layers)
    held = inspection.need([("resid_post", i) for i in blocks])
    streams = [held["resid_post", i] for i in blocks]
    if translators is not None:
        streams = [translators.apply(i, h) for i, h in zip(blocks, streams, strict=True)]
    found = inside.likeliest(np.concatenate(streams), top, colour == "entropy")
    shape = (len(blocks), len(held.positions))
    return Lens(
        blocks, held.positions, held.tokens, found.ids.reshape(*shape, -1),
        found.logprobs.reshape(*shape, -1),
        None if found.entropy is None else found.entropy.reshape(shape),
        cast(Colour, colour), inside,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Translators:
    """Maps that go before a lens, one for each block that has one.

    Attributes:
        weights: Block -> float32 [dim, dim].
        biases: Block -> float32 [dim], where there is one.
        residual: Whether the input is added: h + W h + b (tuned lens); else W h (Jacobian lens).
    """

    weights: Mapping[int, "F32"]
    biases: Mapping[int, "F32"]
    residual: bool = True

    @classmethod
    def load(cls, path: str | Path, kind: str = "tuned") -> "Translators":
        """Read translators from an .npz or .safetensors file.

        Args:
            path: The file. Arrays are named `0.weight`, `0.bias`, ..., also behind a prefix, as the
                tuned-lens package names them.
            kind: "tuned": h + W h + b; "jacobian": W h.

        Raises:
            RequestError: The file cannot be read, or has no such arrays.
        """
        if kind not in ("tuned", "jacobian"):
            raise RequestError(f"kind is {kind!r}; it must be 'tuned' or 'jacobian'")
        weights: dict[int, F32] = {}
        biases: dict[int, F32] = {}
        for name, array in _arrays(Path(path)).items():
            parts = name.split(".")
            if len(parts) >= 2 and parts[-2].isdigit() and parts[-1] in ("weight", "bias"):
                (weights if parts[-1] == "weight" else biases)[int(parts[-2])] = array
        if not weights:
            raise RequestError(f"{path} has no arrays named like '0.weight'")
        return cls(weights, biases, kind == "tuned")

    def apply(self, block: int, stream: "F32") -> "F32":
        """The stream of a block, [n, dim], through its map; as it is where the block has none."""
        weight = self.weights.get(block)
        if weight is None:
            return stream
        if weight.shape != (stream.shape[1],) * 2:
            raise RequestError(
                f"the translator of block {block} is {list(weight.shape)}, and the model needs "
                f"{[stream.shape[1]] * 2}: it is of another model"
            )
        out = stream @ weight.T
        if (bias := self.biases.get(block)) is not None:
            out = out + bias
        return cast("F32", stream + out if self.residual else out)


def _arrays(path: Path) -> "dict[str, F32]":
    import numpy as np

    try:
        if path.suffix == ".npz":
            with np.load(path) as file:
                return {name: file[name].astype(np.float32) for name in file.files}
        if path.suffix == ".safetensors":
            return _safetensors(path)
    except (OSError, ValueError, KeyError, struct.error) as e:
        raise RequestError(f"{path} cannot be read: {e}") from e
    raise RequestError(
        f"{path.name} is neither .npz nor .safetensors; save the arrays of a .pt file with "
        "numpy.savez first"
    )


def _safetensors(path: Path) -> "dict[str, F32]":
    """Float arrays of a safetensors file: a length, a JSON header, the bytes."""
    import numpy as np

    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    kinds = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    out = {}
    for name, about in header.items():
        if name == "__metadata__" or about["dtype"] not in kinds:
            continue
        a, b = about["data_offsets"]
        flat = np.frombuffer(data[8 + length :][a:b], kinds[about["dtype"]])
        out[name] = flat.reshape(about["shape"]).astype(np.float32)
    return out
