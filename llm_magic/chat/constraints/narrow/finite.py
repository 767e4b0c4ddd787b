"""Removes the parts of a schema that no finite value satisfies.

An object that requires itself, or a reference that only leads to itself, has no value: a model
would write until its tokens are used up. Such parts are taken out where something else is allowed
in their place; else the schema is refused.
"""

from llm_magic.errors import SchemaError

from .schema_types import Subschema
from .words import Node

_PREFIX = "#/$defs/"


def pruned(schema: Node) -> Node:
    """A narrowed schema without the parts that have no finite value.

    Raises:
        SchemaError: nothing is left. Its path is that of the part that cannot end.

    >>> loop = {"$ref": "#/$defs/loop"}
    >>> pruned({"anyOf": [{"type": "null"}, loop], "$defs": {"loop": {"allOf": [loop]}}})
    {'anyOf': [{'type': 'null'}], '$defs': {'loop': False}}
    """
    defs: Node = schema.get("$defs", {})
    if not defs:
        return schema  # without references everything ends
    ending: set[str] = set()
    grown = True
    while grown:
        more = {name for name in defs.keys() - ending if _ends(defs[name], ending)}
        ending |= more
        grown = bool(more)
    if not _ends(schema, ending):
        path = next((p for n in defs.keys() - ending if (p := _path(defs[n]))), "#")
        raise SchemaError(f"no finite value is valid at {path}: it always contains itself", path)
    if ending == defs.keys():
        return schema
    kept = {n: _without(part, ending) if n in ending else False for n, part in defs.items()}
    top = {k: v for k, v in schema.items() if k != "$defs"}
    return {**_without(top, ending), "$defs": kept}


def _path(part: Subschema) -> str:
    return str(part.get("$comment", "")) if isinstance(part, dict) else ""


def _ends(part: Subschema, ending: set[str]) -> bool:
    """Whether a part has a finite value, given the definitions that are known to have one."""
    if isinstance(part, bool):
        return part
    if "$ref" in part and part["$ref"].removeprefix(_PREFIX) not in ending:
        return False
    if not all(_ends(p, ending) for p in part.get("allOf", ())):
        return False
    if "anyOf" in part and not any(_ends(p, ending) for p in part["anyOf"]):
        return False
    types = part.get("type", "any")
    kinds = {types} if isinstance(types, str) else set(types)
    if kinds - {"object", "array"}:
        return True  # a number or a text, or any value
    return ("object" in kinds and _object_ends(part, ending)) or (
        "array" in kinds and _array_ends(part, ending)
    )


def _object_ends(part: Node, ending: set[str]) -> bool:
    properties, others = part.get("properties", {}), part.get("additionalProperties", True)
    patterns = part.get("patternProperties", {})
    return all(
        _ends(properties.get(name, others), ending) or (name not in properties and patterns)
        for name in part.get("required", ())
    )


def _array_ends(part: Node, ending: set[str]) -> bool:
    heads, least = part.get("prefixItems", []), part.get("minItems", 0)
    needed = heads[:least]
    if least > len(heads):
        needed = [*needed, part.get("items", True)]
    return all(_ends(item, ending) for item in needed)


def _without(part: Subschema, ending: set[str]) -> Subschema:
    """The part, which has a finite value, without inner parts that have none."""
    if not isinstance(part, dict):
        return part
    out: Node = {}
    for key, value in part.items():
        match key:
            case "anyOf":
                out[key] = [_without(p, ending) for p in value if _ends(p, ending)]
            case "allOf":
                out[key] = [_without(p, ending) for p in value]
            case "prefixItems":
                out[key] = [_or_false(p, ending) for p in value]
            case "properties" | "patternProperties":
                out[key] = {name: _or_false(p, ending) for name, p in value.items()}
            case "items" | "additionalProperties":
                out[key] = _or_false(value, ending)
            case _:
                out[key] = value
    return out


def _or_false(part: Subschema, ending: set[str]) -> Subschema:
    return _without(part, ending) if _ends(part, ending) else False
