"""Negations of JSON schemas, and differences of two schemas."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from llm_magic.json_types import json_type

from .schema_types import Keyword, Subschema

Look = Callable[[Subschema], Subschema]  # follows references
Valid = Callable[[Subschema, Subschema], bool]  # (schema, value)

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def negated(schema: Subschema, look: Look, depth: int = 0) -> Subschema:
    """A schema whose values are all invalid under this one; None if no keyword can express it.

    It may be narrower than the full negation.
    """
    schema = look(schema)
    if isinstance(schema, bool):
        return not schema
    if depth > 16:
        return None
    options = []
    for key, value in schema.items():
        opposite = _OPPOSITES.get(key)
        if opposite is not None and (part := opposite(value, schema, look, depth + 1)) is not None:
            options.append(part)
    options = [o for o in options if o is not False]
    if options:
        return options[0] if len(options) == 1 else {"anyOf": options}
    meaning = [k for k in schema if k in _OPPOSITES or k in _MEANT]
    return None if meaning else False  # {} allows everything: nothing is invalid


# Keywords that constrain a value and cannot be negated here.
_MEANT = frozenset(
    (
        *("pattern", "format", "items", "prefixItems", "contains", "uniqueItems", "multipleOf"),
        *("patternProperties", "additionalProperties", "propertyNames", "if", "oneOf"),
        *("minProperties", "maxProperties", "dependentRequired"),
    )
)


def _not_type(value: str | Sequence[str], schema: Subschema, look: Look, depth: int) -> Subschema:
    kinds = {value} if isinstance(value, str) else set(value)
    if "number" in kinds:
        kinds.add("integer")
    if "integer" in kinds:
        kinds.add("number")  # a number may happen to be whole
    return {"type": [t for t in TYPES if t not in kinds]}


def _not_enum(values: Sequence[Keyword], schema: Subschema, look: Look, depth: int) -> Subschema:
    texts = [v for v in values if isinstance(v, str)]
    kinds = {json_type(v) for v in values}
    if kinds <= {"string"}:
        return {"type": "string", "pattern": f"^{other_than(texts)}$"}
    if kinds <= {"boolean"}:
        left = [b for b in (True, False) if b not in values]
        return {"enum": left} if left else {"type": ["null", "string"]}
    if kinds <= {"integer", "number"}:
        return {"type": "number", "exclusiveMinimum": max(cast("Sequence[float]", values))}
    others = [t for t in ("null", "boolean", "string") if t not in kinds]
    return {"type": others} if others else None


def _not_required(names: Sequence[str], schema: Subschema, look: Look, depth: int) -> Subschema:
    missing = [{"type": "object", "properties": {n: False}} for n in names]
    return {"anyOf": missing} if missing else None


def _not_properties(
    parts: Mapping[str, Subschema], schema: Subschema, look: Look, depth: int
) -> Subschema:
    options = []
    for name, part in parts.items():
        opposite = negated(part, look, depth)
        if opposite is not None and opposite is not False:
            options.append({"type": "object", "required": [name], "properties": {name: opposite}})
    return {"anyOf": options} if options else None


def _not_all(parts: Sequence[Subschema], schema: Subschema, look: Look, depth: int) -> Subschema:
    found = [negated(part, look, depth) for part in parts]
    options = [f for f in found if f is not None and f is not False]
    return {"anyOf": options} if options else None


def _not_any(parts: Sequence[Subschema], schema: Subschema, look: Look, depth: int) -> Subschema:
    found = [negated(part, look, depth) for part in parts]
    return None if any(f is None for f in found) else {"allOf": found}


def _limit(keyword: str, kind: str, step: int) -> Callable[..., Subschema]:
    def opposite(value: float, schema: Subschema, look: Look, depth: int) -> Subschema:
        limit = value + step
        return {"type": kind, keyword: limit} if kind == "number" or limit >= 0 else None

    return opposite


_OPPOSITES: dict[str, Callable[[Subschema, Subschema, Look, int], Subschema]] = {
    "type": _not_type,
    "enum": _not_enum,
    "const": lambda value, schema, look, depth: _not_enum([value], schema, look, depth),
    "required": _not_required,
    "properties": _not_properties,
    "allOf": _not_all,
    "anyOf": _not_any,
    "not": lambda value, schema, look, depth: value,
    "minimum": _limit("exclusiveMaximum", "number", 0),
    "maximum": _limit("exclusiveMinimum", "number", 0),
    "exclusiveMinimum": _limit("maximum", "number", 0),
    "exclusiveMaximum": _limit("minimum", "number", 0),
    "minLength": _limit("maxLength", "string", -1),
    "maxLength": _limit("minLength", "string", 1),
    "minItems": _limit("maxItems", "array", -1),
    "maxItems": _limit("minItems", "array", 1),
}


def other_than(texts: Sequence[str]) -> str:
    """A regular expression that matches all texts but these (each at most 64 characters)."""
    heads = {t[0] for t in texts if t}
    options = [""] if "" not in texts else []
    if heads:
        # A character class must not be empty and not hold what it excludes in another spelling.
        options.append(f"[^{''.join(map(_in_class, sorted(heads)))}](.|\\n)*")
        for head in sorted(heads):
            rest = [t[1:] for t in texts if t.startswith(head)]
            options.append(f"{re.escape(head)}{other_than(rest)}")
    else:
        options.append(r"(.|\n)+")
    return f"({'|'.join(options)})"


def _in_class(char: str) -> str:
    return f"\\{char}" if char in r"\]^-[&~" else char


# ----------------------------------------------------------------------------- one or the other


def excluded(part: Subschema, other: Subschema, look: Look, valid: Valid) -> Subschema:
    """`part` without the values that are valid under `other`; None if no keyword can express it.

    part is narrowed already (its objects may be closed); other is as the schema has it.
    """
    mine, theirs = look(part), look(other)
    if mine is False or theirs is False:
        return part
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
        return None
    if "enum" in mine:
        left = [v for v in mine["enum"] if not valid(other, v)]
        return {**mine, "enum": left} if left else None
    for key in ("anyOf", "allOf"):
        if set(mine) <= {key, "$comment"}:
            return _excluded_parts(mine, key, other, look, valid)
    if not _types(mine) & _types(theirs):
        return part
    if set(theirs) & {"anyOf", "oneOf"} and not set(theirs) & {"type", "properties"}:
        for option in theirs.get("anyOf", theirs.get("oneOf")):
            part = excluded(part, option, look, valid)
            if part is None:
                return None
        return part
    if "object" in _types(mine) & _types(theirs):
        return _excluded_object(part, mine, theirs, look, valid)
    return None


def _excluded_parts(
    mine: Subschema, key: str, other: Subschema, look: Look, valid: Valid
) -> Subschema:
    parts = [excluded(p, other, look, valid) for p in mine[key]]
    if key == "anyOf":
        left = [p for p in parts if p is not None]
        return {**mine, "anyOf": left} if left else None
    for i, part in enumerate(parts):  # one of them is enough
        if part is not None:
            return {**mine, "allOf": [*mine["allOf"][:i], part, *mine["allOf"][i + 1 :]]}
    return None


def _excluded_object(
    part: Subschema, mine: Subschema, theirs: Subschema, look: Look, valid: Valid
) -> Subschema:
    """Objects that lack a property required by the other, or differ from it in one property."""
    if _types(mine) != {"object"}:
        return None
    own = mine.get("properties", {})
    closed = _closed(mine)
    needed = list(theirs.get("required", ()))
    for name in needed:
        if own.get(name, not closed) is False:
            return part  # it can't have what the other must have
    foreign = theirs.get("properties", {})
    for name in mine.get("required", ()):
        if name in foreign and name in own:
            narrower = excluded(own[name], foreign[name], look, valid)
            if narrower is not None:
                return {**mine, "properties": {**own, name: narrower}}
        if name not in foreign and _closed(theirs):
            return part
    for name in needed:
        if name not in mine.get("required", ()):
            return {**mine, "properties": {**own, name: False}}
    return None


def _closed(schema: Mapping[str, Subschema]) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _types(schema: Mapping[str, Subschema]) -> frozenset[str]:
    """The JSON types that values of a schema may have."""
    if "enum" in schema or "const" in schema:
        kinds = {json_type(v) for v in schema.get("enum", [schema.get("const")])}
    else:
        own = schema.get("type", TYPES)
        kinds = {own} if isinstance(own, str) else set(own)
    if "type" in schema and ("enum" in schema or "const" in schema):
        own = schema["type"]
        kinds &= {own, "integer"} if isinstance(own, str) else {*own, "integer"}
    if kinds & {"integer", "number"}:
        kinds |= {"integer", "number"}
    return frozenset(kinds)
