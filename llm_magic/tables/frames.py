"""Frames of pandas and polars, and lists, as rows; columns of answers as a frame beside them.

pandas and polars are imported only where one of their frames is given or asked for.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..arguments import shown
from ..errors import RequestError
from .template import Row, row_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

TEXT = "text"  # the column of a list of texts
Kind = Literal["text", "number", "count", "any"]
Columns = Mapping[str, tuple[Kind, Sequence[object]]]


class Rows(Protocol):
    """The rows of a table, and the frame that holds them."""

    @property
    def columns(self) -> Sequence[str]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Row: ...

    def beside(self, columns: Columns) -> Any:
        """A new frame: these rows, their index, and these columns of as many values.

        A column of the same name is replaced. None is the frame's own missing value.
        """


def rows_of(table: object) -> Rows:
    """The rows of a frame of pandas or polars, of a series, or of a list of texts or dicts.

    >>> rows = rows_of(["a", "b"])
    >>> len(rows), rows[1], rows.columns
    (2, {'text': 'b'}, ['text'])

    Raises:
        RequestError: It is none of these.
    """
    kind = type(table)
    home = kind.__module__.partition(".")[0]
    if home == "pandas" and kind.__name__ in ("DataFrame", "Series"):
        return Pandas(_as_frame(table))
    if home == "polars" and kind.__name__ in ("DataFrame", "Series"):
        return Polars(_as_polars(table))
    if home == "polars" and kind.__name__ == "LazyFrame":
        raise RequestError("rows is a LazyFrame of polars; give rows.collect()")
    if isinstance(table, str | bytes | Mapping) or not isinstance(table, Sequence):
        if not (hasattr(table, "__iter__") and hasattr(table, "__len__")):
            raise _no_rows(table)
        if isinstance(table, str | bytes | Mapping):
            raise _no_rows(table)
        table = list(table)
    return Listed(table)


def _no_rows(table: object) -> RequestError:
    return RequestError(
        f"rows is {shown(table)}; it must be a frame of pandas or polars, a list of texts or a "
        "list of dicts"
    )


def _as_frame(table: Any) -> "pd.DataFrame":
    if type(table).__name__ == "Series":
        table = table.to_frame(TEXT if table.name is None else str(table.name))
    twice = [str(name) for name in table.columns[table.columns.duplicated()]]
    if twice:
        raise RequestError(f"the frame has several columns {twice[0]!r}; rename all but one")
    return table


def _as_polars(table: Any) -> "pl.DataFrame":
    if type(table).__name__ == "Series":
        table = table.to_frame(table.name or TEXT)
    return table


class Pandas:
    """Rows of a pandas frame. Values keep the type of their column."""

    def __init__(self, frame: "pd.DataFrame") -> None:
        self.frame = frame
        self.columns = [str(name) for name in frame.columns]
        self._arrays = [frame[name].array for name in frame.columns]

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> Row:
        return {name: array[i] for name, array in zip(self.columns, self._arrays, strict=True)}

    def beside(self, columns: Columns) -> "pd.DataFrame":
        import pandas as pd

        types = {"text": "string", "number": "Float64", "count": "Int64"}
        made = {}
        for name, (kind, values) in columns.items():
            if kind == "any":
                series = pd.Series(list(values), index=self.frame.index, dtype=object)
                made[name] = series.convert_dtypes()
            else:
                array = pd.array(list(values), dtype=types[kind])
                made[name] = pd.Series(array, index=self.frame.index)
        kept = self.frame.drop(columns=[c for c in self.frame.columns if str(c) in made])
        return pd.concat([kept, pd.DataFrame(made, index=self.frame.index)], axis=1)


class Polars:
    """Rows of a polars frame."""

    def __init__(self, frame: "pl.DataFrame") -> None:
        self.frame = frame
        self.columns = list(frame.columns)

    def __len__(self) -> int:
        return int(self.frame.height)

    def __getitem__(self, i: int) -> Row:
        return dict(self.frame.row(i, named=True))

    def beside(self, columns: Columns) -> "pl.DataFrame":
        import polars as pl

        types = {"text": pl.String, "number": pl.Float64, "count": pl.Int64}
        made = [
            _polars_any(name, values)
            if kind == "any"
            else pl.Series(name, list(values), dtype=types[kind])
            for name, (kind, values) in columns.items()
        ]
        return self.frame.with_columns(made)


def _polars_any(name: str, values: Sequence[object]) -> "pl.Series":
    import polars as pl

    try:
        return pl.Series(name, list(values))
    except (TypeError, ValueError, pl.exceptions.PolarsError):  # values of several kinds
        return pl.Series(name, [None if v is None else str(v) for v in values], dtype=pl.String)


class Listed:
    """Rows of a list: texts and numbers are the column `text`, dicts are rows as they are.

    The answers come as a pandas frame, or where only polars is installed as one of polars.
    """

    def __init__(self, items: Sequence[object]) -> None:
        self._rows = [row_of(item, TEXT) for item in items]
        names = dict.fromkeys(name for row in self._rows for name in row)
        self.columns = list(names) or [TEXT]
        installed_frames()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: int) -> Row:
        return self._rows[i]

    def beside(self, columns: Columns) -> Any:
        if installed_frames() == "polars":
            import polars as pl

            data = {name: [row.get(name) for row in self._rows] for name in self.columns}
            return Polars(pl.DataFrame(data, strict=False)).beside(columns)
        import pandas as pd

        frame = pd.DataFrame([dict(row) for row in self._rows], columns=self.columns)
        return Pandas(frame.convert_dtypes()).beside(columns)


def installed_frames() -> str:
    """ "pandas", or "polars" where only that is installed.

    Raises:
        RequestError: Neither is.
    """
    for name in ("pandas", "polars"):
        if importlib.util.find_spec(name) is not None:
            return name
    raise RequestError(
        "answers come as a data frame, and neither pandas nor polars is installed: pip install "
        "'llm-magic[tables]'"
    )
