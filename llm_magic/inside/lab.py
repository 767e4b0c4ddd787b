"""The sampling lab: what each step of the sampler leaves of one position's distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RequestError
from ..sampling import Sampling
from ..taps import Inside, Taps
from .shown import Shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What is left behind one step.

    Attributes:
        name: The step: "logits", "penalties", "top_k", ..., "temperature", or "greedy".
        ids: The tokens that are left, likeliest first, int64 [n].
        probabilities: Of them, normalised over what is left, float64 [n].
    """

    name: str
    ids: "I64"
    probabilities: "npt.NDArray[np.float64]"

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, token: int) -> float:
        """The probability of a token; 0 where it was removed."""
        at = (self.ids == token).nonzero()[0]
        return float(self.probabilities[at[0]]) if len(at) else 0.0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lab(Shown):
    """One position's distribution, step by step in the order of the sampler.

    Attributes:
        sampling: The settings.
        stages: The raw distribution first, what is drawn from last.
        inside: The model, for the texts of ids.
    """

    sampling: Sampling
    stages: tuple[Stage, ...]
    inside: Inside

    @property
    def kept(self) -> frozenset[int]:
        """The tokens that can be drawn."""
        return frozenset(self.stages[-1].ids.tolist())


def lab(inside: Inside, ids: Sequence[int], sampling: Sampling) -> Lab:
    """The lab behind a text; see `LLM.sampling_lab`."""
    import numpy as np

    if not ids:
        raise RequestError("there is no distribution behind an empty prompt")
    last = inside.anatomy.n_layers - 1
    found = inside.capture(ids, Taps(("resid_post", last), len(ids) - 1))
    logits = inside.logits(found.arrays["resid_post", last])[0]
    stages = []
    for name, kept, values in inside.stages(logits, sampling, ids):
        finite = values > -np.inf
        kept, left = kept[finite], values[finite].astype(np.float64)
        order = np.lexsort((kept, -left))
        weights = np.exp(left[order] - left.max())
        stages.append(Stage(name, kept[order], weights / weights.sum()))
    return Lab(sampling, tuple(stages), inside)
