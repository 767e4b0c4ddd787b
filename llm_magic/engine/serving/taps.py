"""Taps of a request: what is recorded or changed at which of its positions.

A request is evaluated in steps, beside others. `JobTaps.of_step` says which rows of a step its taps
mean. Positions count the tokens of the request from 0, prompt first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ..forward import F32, Change, Read, Taps


@dataclass(frozen=True, slots=True)
class Watch:
    """Records a point at positions `start` .. `start + len(out) - 1` into `out`.

    Attributes:
        point: One of forward.POINTS.
        layer: From 0 on.
        start: The first position.
        out: Float32 [positions, width]; rows that are never evaluated stay as they are.
    """

    point: str
    layer: int
    start: int
    out: F32


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes a point at positions `start` .. `stop - 1`.

    Attributes:
        point: One of forward.CHANGED.
        layer: From 0 on.
        start: The first position.
        stop: The position behind the last one; None: to the end of the answer.
        values: Float32 [1, columns] for every position, or one row for each; then `stop` is set.
        add: Whether the values are added; else they replace what is there.
        column: The first column that is changed.
    """

    point: str
    layer: int
    start: int
    stop: int | None
    values: F32
    add: bool
    column: int = 0


@dataclass(frozen=True, slots=True)
class JobTaps:
    """What a request records and changes.

    Attributes:
        watches: What is recorded. The positions from the first watched one on are evaluated, also
            where the cache holds their keys and values.
        edits: What is changed, in this order at one point.
        key: Names the edits: only requests with the same key share a cache. Empty without edits.
    """

    watches: tuple[Watch, ...] = ()
    edits: tuple[Edit, ...] = ()
    key: bytes = b""

    @property
    def first(self) -> int | None:
        """The first position that is recorded; None: none is."""
        return min((watch.start for watch in self.watches), default=None)

    def of_step(self, row: int, position: int, n: int) -> Taps:
        """The taps of a step in which rows row .. row + n - 1 are positions from `position` on."""
        return Taps(tuple(self._reads(row, position, n)), tuple(self._changes(row, position, n)))

    def _reads(self, row: int, position: int, n: int) -> Iterator[Read]:
        for watch in self.watches:
            a = max(position, watch.start)
            b = min(position + n, watch.start + len(watch.out))
            if a < b:
                out = watch.out[a - watch.start : b - watch.start]
                yield Read(watch.point, watch.layer, row + a - position, out)

    def _changes(self, row: int, position: int, n: int) -> Iterator[Change]:
        for edit in self.edits:
            a = max(position, edit.start)
            b = position + n if edit.stop is None else min(position + n, edit.stop)
            if a < b:
                values = edit.values
                if len(values) > 1:
                    values = values[a - edit.start : b - edit.start]
                first = row + a - position
                yield Change(edit.point, edit.layer, first, b - a, values, edit.add, edit.column)
