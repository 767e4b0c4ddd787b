"""Control vectors: directions in the residual stream that stand for a tone or a topic.

A direction is found from texts that show it and texts that show its opposite, and is added to the
stream while the model reads and writes (Zou et al., arXiv:2310.01405; repeng; llama.cpp's
cvector-generator). Files are those of llama.cpp: a GGUF of architecture `controlvector` with a
tensor `direction.{block}` for each block, which is added behind the block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import RequestError
from ..taps import Add, Edit, Inside, Taps

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

METHODS = ("pca_diff", "mean_diff")


@dataclass(frozen=True, slots=True, eq=False)
class ControlVector:
    """A direction for each block, and how strongly it is added.

    >>> vector = ControlVector({1: [0.0, 1.0]}, "llama") * 4
    >>> vector.scale, [edit.layer for edit in vector.edits()]
    (4.0, [1])

    Attributes:
        directions: Block -> float [dim]; added to `resid_post` of the block.
        model: The architecture that it was made for, as in the file.
        scale: Its strength; 0 changes nothing, negative means the opposite.
    """

    directions: Mapping[int, Any]
    model: str = ""
    scale: float = field(default=1.0)

    def __mul__(self, factor: float) -> "ControlVector":
        """The same directions, `factor` times as strong."""
        return replace(self, scale=self.scale * float(factor))

    __rmul__ = __mul__

    def __neg__(self) -> "ControlVector":
        return self * -1

    def edits(self) -> tuple[Edit, ...]:
        """What a request gets as `edit`: the directions as `Add`."""
        return tuple(Add("resid_post", i, v, self.scale) for i, v in self.directions.items())

    def save(self, path: str | Path) -> None:
        """Write the file that llama.cpp and repeng read; its scale is in the vectors.

        Args:
            path: The file, named `.gguf`.
        """
        import numpy as np

        from ..engine.control_vectors import write

        scaled = {i: np.float32(self.scale) * np.asarray(v, np.float32)
                  for i, v in self.directions.items()}  # fmt: skip
        write(Path(path), scaled, self.model)

    @classmethod
    def load(cls, path: str | Path) -> "ControlVector":
        """Read a control vector of llama.cpp or repeng.

        Args:
            path: The GGUF file.

        Raises:
            RequestError: It cannot be read, or holds no control vector.
        """
        from ..engine.control_vectors import read

        return cls(*read(Path(path)))


def train(
    inside: Inside,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    method: str,
    layers: Sequence[int] | None,
    model: str,
) -> ControlVector:
    """The control vector of pairs of texts; see `LLM.steering`.

    The stream behind the last token of each text is recorded. Each direction has length 1 and
    points from the negative texts to the positive ones.

    Args:
        inside: The model.
        pairs: (positive, negative) as token ids.
        method: One of METHODS.
        layers: Blocks; None: all but the first, as in llama.cpp.
        model: The architecture's name, for the file.
    """
    import numpy as np

    if method not in METHODS:
        raise RequestError(f"method is {method!r}; it must be one of {', '.join(METHODS)}")
    n = inside.anatomy.n_layers
    blocks = list(range(1, n)) if layers is None else [range(n)[i] for i in layers]
    read = [("resid_post", i) for i in blocks]

    def ends(ids: Sequence[int]) -> "F32":
        found = inside.capture(ids, Taps(cast(Any, read), len(ids) - 1))
        return np.stack([found.arrays["resid_post", i][0] for i in blocks])

    differences = np.stack([ends(a) - ends(b) for a, b in pairs], 1)  # [blocks, pairs, dim]
    make = principal if method == "pca_diff" else mean
    return ControlVector({i: make(d) for i, d in zip(blocks, differences, strict=True)}, model)


def mean(differences: "F32") -> "F32":
    """The mean of differences [pairs, dim], of length 1."""
    import numpy as np

    vector = differences.mean(0, dtype=np.float64)
    length = float(np.sqrt(np.square(vector).sum()))
    return cast("F32", (vector / max(length, 1e-12)).astype(np.float32))


def principal(differences: "F32") -> "F32":
    """The first principal direction of differences [pairs, dim] about zero, of length 1.

    As in llama.cpp the differences are not centred: their mean is what is looked for. The sign is
    that of the mean.
    """
    import numpy as np

    rows = differences.astype(np.float64)
    # Of the pairs' products with each other: there are fewer pairs than entries.
    _, mixes = np.linalg.eigh(rows @ rows.T)
    vector = mixes[:, -1] @ rows
    vector /= max(float(np.sqrt(np.square(vector).sum())), 1e-300)
    if vector @ rows.mean(0) < 0:
        vector = -vector
    return cast("F32", vector.astype(np.float32))
