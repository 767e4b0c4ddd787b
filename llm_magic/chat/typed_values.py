"""JSON values as Python objects of a type: dataclasses, enums, dates, pydantic models."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from typing import Any, cast

from ..errors import SchemaError
from ..events import Constraint, Schema
from .parsing.markup.values import loads
from .schema import (
    BASIC,
    DICTS,
    LISTS,
    SETS,
    Hint,
    field_types,
    is_alias,
    is_hashable,
    is_named_tuple,
    type_schema,
)

_READ: dict[Hint, Callable[[Any], object]] = {
    int: lambda value: int(value) if isinstance(value, float) else value,  # 5.0 is an integer
    float: float,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.date: datetime.date.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    uuid.UUID: uuid.UUID,
    pathlib.Path: pathlib.Path,
    decimal.Decimal: lambda value: decimal.Decimal(str(value)),
}


def loads_as(constraint: Constraint, text: str) -> object:
    """The Python value of an answer that a schema has constrained.

    Args:
        constraint: the schema, with the type that it was made from, if there was one.
        text: the whole answer.

    Raises:
        ValueError: the text is not a whole JSON value.
        SchemaError: a validator of the type refuses the value.

    >>> loads_as(Schema({"type": "array"}), "[1, 2]")
    [1, 2]
    """
    value = loads(text)
    hint = constraint.cls if isinstance(constraint, Schema) else None
    if hint is None:
        return value
    try:
        return from_json(hint, value)
    except Exception as e:  # validators are the user's code
        name = getattr(hint, "__name__", hint)
        raise SchemaError(f"the answer fits the schema, but {name} refuses it: {e}") from e


def from_json(hint: Hint, value: Any) -> object:
    """A JSON value, valid under `type_schema(hint)`, as a value of that type.

    Objects become dataclasses, NamedTuples or pydantic models, texts enums, dates or UUIDs, arrays
    tuples or sets. Whatever the type's own code raises comes through.
    """
    if hint is typing.Any or hint is object:
        return value
    if isinstance(hint, typing.NewType):
        return from_json(hint.__supertype__, value)
    if is_alias(hint):
        return from_json(cast(Any, hint).__value__, value)
    if callable(validate := getattr(hint, "model_validate", None)):
        return validate(value)
    origin: Hint = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is not None:
        return _generic_from_json(origin, arguments, value)
    if is_hashable(hint) and hint in _READ:
        return _READ[hint](value)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or is_named_tuple(hint):
        hints = field_types(cast(type, hint))
        values = {name: from_json(hints[name], v) for name, v in value.items()}
        return cast("Callable[..., Any]", hint)(**values)
    own = isinstance(hint, type) and hint not in BASIC and issubclass(hint, str | int | float)
    return cast("Callable[[Any], Any]", hint)(value) if own else value


def _generic_from_json(origin: Hint, arguments: tuple[Hint, ...], value: Any) -> object:
    if origin in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
        return from_json(arguments[0], value)
    if origin is typing.Literal:
        named = (a for a in arguments if isinstance(a, enum.Enum) and a.value == value)
        return next(named, value)
    if origin in (typing.Union, types.UnionType):
        return from_json(_option(arguments, value), value)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(from_json(a, v) for a, v in zip(arguments, value, strict=True))
    if origin in LISTS or origin is tuple or origin in SETS:
        items = [from_json(arguments[0], v) for v in value]
        if origin in LISTS:
            return items
        return (
            tuple(items) if origin is tuple else (frozenset if origin is frozenset else set)(items)
        )
    if origin in DICTS:
        return {k: from_json(arguments[1], v) for k, v in value.items()}
    return from_json(origin, value)


def _option(options: Sequence[Hint], value: object) -> Hint:
    """The first type of a union whose schema the value fits."""
    import jsonschema

    for option in options:
        if jsonschema.Draft202012Validator(type_schema(option)).is_valid(value):
            return option
    return Any
