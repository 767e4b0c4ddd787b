"""Python objects as JSON values."""

import contextlib
import dataclasses
import datetime
import enum
import math
from collections.abc import KeysView, Mapping, ValuesView
from typing import cast

from ..json_types import Json
from ..utf8 import whole


def to_json(value: object) -> Json:
    """A Python value as JSON knows it: None, bool, int, float, str, lists and dictionaries.

    Enumerations become their values, dates ISO texts, NumPy scalars and arrays numbers and lists,
    dataclasses, NamedTuples and pydantic models objects. Numbers that are not finite become None,
    and what JSON does not know becomes its text.

    >>> to_json({"day": datetime.date(2026, 5, 1), "sizes": {3}})
    {'day': '2026-05-01', 'sizes': [3]}
    """
    match value:
        case enum.Enum():
            return to_json(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(k): to_json(v) for k, v in value.items()}
        case list() | set() | frozenset() | range() | KeysView() | ValuesView():
            return [to_json(v) for v in value]
        case tuple():
            named = getattr(value, "_asdict", None)
            return to_json(named()) if named else [to_json(v) for v in value]
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
    if isinstance(value, type):
        return str(value)
    if callable(show := getattr(value, "_repr_llm_", None)):  # a Reply is its text
        with contextlib.suppress(Exception):  # a broken view: the value's own text then
            return whole(str(show()))
    if callable(dump := getattr(value, "model_dump", None)):
        return cast(Json, dump(mode="json"))
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if callable(items := getattr(value, "tolist", None)):  # NumPy scalars and arrays
        return to_json(items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return str(value)
