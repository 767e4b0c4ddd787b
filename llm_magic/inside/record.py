"""Activations of one text, by the names of TransformerLens."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import RequestError
from ..taps import (
    OUTSIDE,
    POINTS,
    Capture,
    Inside,
    Key,
    Site,
    Taps,
    full_name,
    layer,
    short_name,
    sites,
    unknown,
)
from .shown import Shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]


class Record(Shown):
    """Activations of one text, by name; `Inspection` adds the views.

    Attributes:
        capture: What was recorded.
        model: The model's name.
    """

    def __init__(self, capture: Capture, model: str = "") -> None:
        self.capture = capture
        self.model = model
        self._arrays = dict(capture.arrays)

    # ------------------------------------------------------------------ arrays

    @property
    def inside(self) -> Inside:
        """The model that it was recorded in."""
        if self.capture.inside is None:
            raise RequestError("this record has no model beside it")
        return self.capture.inside

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens of the text, as ids."""
        return self.capture.ids

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the rows of each array."""
        return self.capture.positions

    @property
    def tokens(self) -> tuple[bytes, ...]:
        """The tokens at `positions`, as bytes."""
        return tuple(self.inside.token_bytes(self.ids[p]) for p in self.positions)

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of what was read."""
        return tuple(map(full_name, self._arrays))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays.values())

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[Site]:
        return iter(self._arrays)

    def __contains__(self, key: object) -> bool:
        try:
            return self._site(key) in self._arrays  # type: ignore[arg-type]
        except RequestError:
            return False

    def __getitem__(self, key: Key) -> "F32":
        """The array of a name.

        Raises:
            RequestError: There is no such name, or it was not read.
        """
        site = self._site(key)
        if site not in self._arrays:
            raise RequestError(
                f"{full_name(site)} was not read; this inspection holds {self._listed()}"
            )
        return self._arrays[site]

    def _site(self, key: Key) -> Site:
        if isinstance(key, str):
            found = sites(key, self.inside.anatomy.n_layers)
            if len(found) != 1:
                raise RequestError(f"{key!r} means {len(found)} arrays; name one of them")
            return found[0]
        name = short_name(key[0])
        if name in OUTSIDE and key[1] is None:
            return name, None
        if name not in POINTS or key[1] is None:
            raise unknown(key, [])
        return name, layer(key[1], self.inside.anatomy.n_layers)

    def _listed(self) -> str:
        names = list(self.names)
        return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]} ... {names[-1]}"

    def need(self, wanted: Sequence[Site], positions: Sequence[int] | None = None) -> "Record":
        """A record of the same text that holds these places: this one, or a new record."""
        at = tuple(self.positions if positions is None else positions)
        if all(site in self._arrays for site in wanted) and at == self.positions:
            return self
        taps = Taps([full_name(site) for site in wanted], at)
        ids, edits = self.ids[: max(at, default=0) + 1], self.capture.edits
        return Record(self.inside.capture(ids, taps, edits), self.model)

    def position(self, at: int) -> int:
        """A position that was read; negative ones count from the last that was."""
        found = self.positions[at] if at < 0 and -at <= len(self.positions) else at
        if found not in self.positions:
            raise RequestError(
                f"position {at} was not read; there are {len(self.positions)}, "
                f"from {self.positions[0]} to {self.positions[-1]}"
            )
        return found

    def token_id(self, token: object) -> int:
        """The id of a token that is given as an id, or as a text of the vocabulary."""
        index = getattr(token, "__index__", None)
        if index is not None:
            return int(index())
        if not isinstance(token, str):
            raise RequestError(f"token is {token!r}; it must be a text or an id")
        return self.inside.token_of(token)
