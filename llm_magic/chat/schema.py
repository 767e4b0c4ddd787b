"""JSON schemas of Python types, and the check that a mapping is a JSON schema.

Types are builtins, Literal, unions, enums, dataclasses, TypedDicts, NamedTuples, pydantic models
and Annotated. Their schemas are of draft 2020-12.
"""

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import re
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ..errors import SchemaError
from ..utf8 import whole
from .json_values import to_json

Hint = object  # a type hint: what may stand behind the colon of an argument
Fields = dict[str, Any]  # a JSON schema, or a part of one

BASIC: dict[Hint, Fields] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array"},  # repeated items fall together when the set is made
    frozenset: {"type": "array"},
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.time: {"type": "string", "format": "time"},
    uuid.UUID: {"type": "string", "format": "uuid"},
    pathlib.Path: {"type": "string"},
    decimal.Decimal: {"type": "number"},
}
LISTS = (
    *(list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection),
    *(collections.abc.MutableSequence,),
)
SETS = (set, frozenset, collections.abc.Set, collections.abc.MutableSet)
_VALUES = ("default", "const", "enum", "examples")
DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)

# What Annotated may carry besides a description: attributes of annotated_types and pydantic's
# FieldInfo, by the keyword of JSON schema that says the same.
_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "pattern": "pattern",
}
_SIZES = {"min_length": ("minLength", "minItems"), "max_length": ("maxLength", "maxItems")}


Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_LEVELS = 64  # of nesting, objects and arrays counted; pydantic's schemas have about 10
MAX_VALUES = 200_000  # in one schema


def as_schema(schema: object) -> Any:
    """A JSON schema from a mapping, a bool, or a type that `type_schema` knows.

    Args:
        schema: a schema in any draft from 4 on, or a Python type.

    Returns:
        The schema in plain lists and dictionaries, which share nothing with the argument.

    Raises:
        SchemaError: the value is neither, is no valid JSON schema, or is nested too deeply.

    >>> as_schema({"enum": range(3)})
    {'enum': [0, 1, 2]}
    >>> as_schema(bool)
    {'type': 'boolean'}
    """
    if isinstance(schema, bool):
        return schema
    try:
        if not isinstance(schema, Mapping):
            schema = type_schema(schema)
        plain = _Plain().value(schema, 0)
        draft_of(plain)
    except RecursionError:
        raise _too_deep() from None
    return plain


def _too_deep() -> SchemaError:
    return SchemaError(f"the schema is nested more than {MAX_LEVELS} levels deep")


class _Plain:
    """Copies a schema into JSON's own types and counts what it holds."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def value(self, value: object, level: int) -> Json:
        self._left -= 1
        if self._left < 0:
            raise SchemaError(f"the schema holds more than {MAX_VALUES:,} values")
        if level > MAX_LEVELS:
            raise _too_deep()
        match value:
            case enum.Enum():
                return self.value(value.value, level)
            case None | bool():
                return value
            case str():
                return whole(value)
            case int():
                return int(value)
            case float():
                if not math.isfinite(value):
                    raise SchemaError(f"the schema is not JSON: it holds {value!r}")
                return float(value)
            case Mapping():
                return {self._key(k): self.value(v, level + 1) for k, v in value.items()}
            case list() | tuple() | range():
                return [self.value(item, level + 1) for item in value]
        if callable(item := getattr(value, "item", None)):  # a NumPy scalar
            return self.value(item(), level + 1)
        raise SchemaError(f"the schema is not JSON: it holds {value!r:.200}")

    @staticmethod
    def _key(key: object) -> str:
        if not isinstance(key, str):
            raise SchemaError(f"the schema is not JSON: the key {key!r:.200} is no text")
        return whole(key)


def draft_of(schema: object) -> Any:
    """The jsonschema validator class of a schema: of the draft that it names, else the newest of
    2020-12, 7 and 4 whose rules it keeps. SchemaError when it keeps none."""
    import jsonschema

    named = jsonschema.validators.validator_for(schema, None)
    drafts = [named] if named else _drafts()
    errors = []
    for draft in drafts:
        try:
            # Without formats: whether a pattern can be used is for the grammar compiler to say.
            draft.check_schema(schema, format_checker=jsonschema.FormatChecker(()))
        except jsonschema.SchemaError as e:
            errors.append(e)
        else:
            return draft
    path = pointer(errors[0].absolute_path)
    raise SchemaError(f"not a JSON schema: {errors[0].message} at {path}", path)


def _drafts() -> list[Any]:
    import jsonschema

    return [
        jsonschema.Draft202012Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft4Validator,
    ]


def pointer(path: collections.abc.Iterable[str | int]) -> str:
    """A path in a schema as a JSON pointer that begins with #."""
    return "#" + "".join("/" + str(p).replace("~", "~0").replace("/", "~1") for p in path)


def type_schema(hint: Hint) -> Fields:
    """The JSON schema of a type. SchemaError names a type that has none.

    A class that contains itself is a reference into "$defs"; everything else stands in its place.
    """
    builder = _Builder()
    out = builder.build(hint)
    return {**out, "$defs": builder.defs} if builder.defs else out


def object_schema(hints: Mapping[str, Hint], required: Sequence[str]) -> Fields:
    """The JSON schema of an object with a property per name. SchemaError names the property."""
    builder = _Builder()
    properties = {}
    for name, hint in hints.items():
        try:
            properties[name] = builder.build(hint)
        except SchemaError as e:
            raise SchemaError(f"{name}: {e}") from None
    out = {**_object(properties), "required": list(required)}
    return {**out, "$defs": builder.defs} if builder.defs else out


class _Builder:
    """One schema in the making. open: classes that are being written, outermost first."""

    def __init__(self) -> None:
        self.defs: Fields = {}
        self._open: list[Hint] = []
        self._recursive: list[Hint] = []

    def build(self, hint: Hint) -> Fields:
        if hint is typing.Any or hint is object:
            return {}
        if is_hashable(hint) and hint in BASIC:
            return dict(BASIC[hint])
        if isinstance(hint, typing.NewType):
            return self.build(hint.__supertype__)
        if (alias := getattr(hint, "__value__", None)) is not None and is_alias(hint):
            return self.build(alias)
        origin: Hint = typing.get_origin(hint)
        if origin is not None:
            return self._generic(hint, origin, typing.get_args(hint))
        return self._class(hint)

    def _generic(self, hint: Hint, origin: Hint, arguments: tuple[Hint, ...]) -> Fields:
        if origin is typing.Annotated:
            return _annotated(self.build(arguments[0]), arguments[1:])
        if origin in (typing.Required, typing.NotRequired, typing.Final):
            return self.build(arguments[0])
        if origin is typing.Literal:
            return _enum(list(arguments))
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is tuple and arguments[-1] is not Ellipsis:
            items = [self.build(a) for a in arguments]
            size = {"minItems": len(items), "maxItems": len(items)}
            return {"type": "array", "prefixItems": items, "items": False, **size}
        if origin in LISTS or origin in SETS or origin is tuple:
            return {"type": "array", "items": self.build(arguments[0])}
        if origin in DICTS and _plain(arguments[0]) is str:
            return {"type": "object", "additionalProperties": self.build(arguments[1])}
        if callable(getattr(origin, "model_json_schema", None)) or dataclasses.is_dataclass(origin):
            return self._class(hint if hasattr(hint, "model_json_schema") else origin)
        raise _unknown(hint)

    def _union(self, options: Sequence[Hint]) -> Fields:
        schemas = [self.build(o) for o in options]
        bare = [s.get("type") for s in schemas if set(s) == {"type"}]
        if len(bare) == len(schemas):
            return {"type": list(dict.fromkeys(bare))}
        return {"anyOf": schemas}

    def _class(self, hint: Hint) -> Fields:
        if not isinstance(hint, type):
            raise _unknown(hint)
        if issubclass(hint, enum.Enum):
            return _enum([member.value for member in hint])
        if callable(getattr(hint, "model_json_schema", None)):
            return self._model(hint)
        if dataclasses.is_dataclass(hint) or typing.is_typeddict(hint) or is_named_tuple(hint):
            return self._record(hint)
        for base in (str, int, float):
            if issubclass(hint, base):
                return dict(BASIC[base])
        raise _unknown(hint)

    def _record(self, hint: type) -> Fields:
        """A dataclass, TypedDict or NamedTuple as an object."""
        reference = {"$ref": f"#/$defs/{hint.__name__}"}
        if hint in self._open:
            self._recursive.append(hint)
            return reference
        self._open.append(hint)
        try:
            out = _object({n: self._field(hint, n, t) for n, t in field_types(hint).items()})
        finally:
            self._open.pop()
        out["required"] = [n for n in out["properties"] if n in _required(hint)]
        if hint in self._recursive:
            self._define(hint.__name__, out)
            return reference
        return out

    def _field(self, hint: Hint, name: str, type_: Hint) -> Fields:
        out = self.build(type_)
        field = getattr(hint, "__dataclass_fields__", {}).get(name)
        if field is None:
            return out
        words = field.metadata.get("description")
        out = {**out, "description": str(words)} if words else out
        return {**out, **default_of(field.default)}

    def _model(self, model: Any) -> Fields:
        """A pydantic model; its definitions move up to ours."""
        try:
            out = cast("Fields", model.model_json_schema())
        except Exception as e:  # pydantic's own error tells which field has no schema
            raise SchemaError(f"{model.__name__} has no JSON schema: {e}") from None
        for name, definition in out.pop("$defs", {}).items():
            self._define(name, _without_unique(definition))
        return cast("Fields", _without_unique(out))

    def _define(self, name: str, schema: object) -> None:
        if self.defs.setdefault(name, schema) != schema:
            raise SchemaError(f"two different types are called {name!r}; rename one of them")


def default_of(value: object) -> Fields:
    """The "default" keyword of a default value, as far as JSON has it."""
    if not _is_json(value):
        return {}
    return {"default": to_json(value)}


def _is_json(value: object) -> bool:
    match value:
        case enum.Enum():
            return _is_json(value.value)
        case None | bool() | int() | str():
            return True
        case float():
            return math.isfinite(value)
        case list() | tuple():
            return all(_is_json(item) for item in value)
        case dict():
            return all(isinstance(k, str) and _is_json(v) for k, v in value.items())
    return False


def _without_unique(schema: object) -> object:
    """A model's schema without uniqueItems, which pydantic writes for sets, as ours has none."""
    match schema:
        case dict():
            return {
                k: v if k in _VALUES else _without_unique(v)
                for k, v in schema.items()
                if k != "uniqueItems" or v is not True
            }
        case list():
            return [_without_unique(item) for item in schema]
    return schema


def is_hashable(hint: object) -> bool:
    try:
        hash(hint)
    except TypeError:  # a list, or a tuple that holds one
        return False
    return True


def is_alias(hint: Hint) -> bool:
    return type(hint).__name__ == "TypeAliasType"  # Python 3.12


def is_named_tuple(hint: Hint) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _unknown(hint: Hint) -> SchemaError:
    return SchemaError(
        f"{hint!r} has no JSON schema: use str, int, float, bool, list, dict, Literal, enums, "
        "dataclasses or pydantic models"
    )


def field_types(hint: type) -> Fields:
    """The types of a dataclass, TypedDict or NamedTuple by field."""
    try:
        found = typing.get_type_hints(hint, include_extras=True)
    except NameError as e:
        raise SchemaError(f"a type in {hint.__name__} cannot be found: {e}") from None
    if dataclasses.is_dataclass(hint):
        return {f.name: found[f.name] for f in dataclasses.fields(hint) if f.init}
    return found


def _required(hint: Any) -> frozenset[str]:
    if dataclasses.is_dataclass(hint):
        missing = dataclasses.MISSING
        fields = dataclasses.fields(hint)
        needed = (f for f in fields if f.default is missing and f.default_factory is missing)
        return frozenset(f.name for f in needed)
    if typing.is_typeddict(hint):
        return _required_keys(hint)
    return frozenset(hint._fields) - frozenset(hint._field_defaults)


def _required_keys(hint: Hint) -> frozenset[str]:
    """The required keys of a TypedDict. `__required_keys__` is wrong where annotations are texts
    (`from __future__ import annotations`), so the markers are read from the evaluated hints."""
    required = set(getattr(hint, "__required_keys__", ()))
    for key, type_ in typing.get_type_hints(hint, include_extras=True).items():
        while typing.get_origin(type_) is typing.Annotated:
            type_ = typing.get_args(type_)[0]
        if typing.get_origin(type_) is typing.Required:
            required.add(key)
        elif typing.get_origin(type_) is typing.NotRequired:
            required.discard(key)
    return frozenset(required)


def _object(properties: Fields) -> Fields:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _enum(values: list[object]) -> Fields:
    values = [v.value if isinstance(v, enum.Enum) else v for v in values]
    if not values or any(type(v) not in (str, int, float, bool, type(None)) for v in values):
        raise SchemaError(f"an enumeration needs one or more JSON values, not {values!r}")
    kinds = {BASIC[type(v)]["type"] for v in values}
    return {**({"type": kinds.pop()} if len(kinds) == 1 else {}), "enum": values}


def _annotated(out: Fields, extras: Sequence[object]) -> Fields:
    for extra in extras:
        if isinstance(extra, str):
            out.setdefault("description", extra)
            continue
        for item in (extra, *(getattr(extra, "metadata", None) or ())):
            out |= _limits(item, out.get("type") == "array")
        words = getattr(extra, "description", None)
        if isinstance(words, str):
            out["description"] = words
    return out


def _limits(item: object, array: bool) -> Fields:
    """Keywords from one annotation, found by its attributes; other objects have none of them."""
    if isinstance(item, type):
        return {}
    found = {k: getattr(item, a, None) for a, k in _LIMITS.items()}
    found |= {names[array]: getattr(item, a, None) for a, names in _SIZES.items()}
    if isinstance(found["pattern"], re.Pattern):
        found["pattern"] = found["pattern"].pattern
    return {k: v for k, v in found.items() if isinstance(v, int | float | str)}


def _plain(hint: Hint) -> Hint:
    origin: Hint = typing.get_origin(hint)
    return typing.get_args(hint)[0] if origin is typing.Annotated else hint
