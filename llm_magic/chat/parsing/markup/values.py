"""Argument values: from the text that a model writes to Python values and JSON text.

`coerce` reads a parameter's text by its JSON schema. How the text was marked up does not matter.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping

from llm_magic.json_types import Json, json_type

from .tape import Args, NotACall, Tools


def loads(text: str) -> Json:
    """The value of a JSON text, as models write them: raw control characters in strings are taken,
    NaN and infinities are not, lone surrogates become U+FFFD. ValueError when it is not JSON."""
    try:
        value = json.loads(text, strict=False, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
    return paired(value) if "\\u" in text or "\\U" in text else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


def paired(value: Json) -> Json:
    """A JSON value whose texts hold characters in place of surrogates; lone ones are U+FFFD."""
    match value:
        case str():
            return _paired_text(value)
        case list():
            return [paired(v) for v in value]
        case dict():
            return {_paired_text(k): paired(v) for k, v in value.items()}
    return value


def _paired_text(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


_LINE_BREAK = re.compile(r"\A\r?\n|\r?\n\Z")


def unwrapped(value: str) -> str:
    """The value without the one line break at each end that belongs to the markup."""
    return _LINE_BREAK.sub("", value)


def coerce(value: str, schema: object) -> object:
    """The value of a parameter's text under its JSON schema; the text itself if it fits no type.

    Without a type in the schema: JSON if the text is JSON, else the text.

    >>> coerce("3", {"type": "integer"}), coerce("3", {"type": "string"}), coerce("three", {})
    (3, '3', 'three')
    >>> coerce("['a', True]", {"type": "array"})
    ['a', True]
    """
    types = _types(schema)
    if not types:
        return loads_or(value)
    for type, parse in _PARSERS.items():
        if type in types:
            try:
                return parse(value.strip())
            except ValueError:
                pass
    return value


def _types(schema: object, root: object = None, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema's values may have; none where it does not tell."""
    if not isinstance(schema, Mapping) or depth > 16:
        return frozenset()
    root = schema if root is None else root
    own = schema.get("type")
    types = {type for type in (own if isinstance(own, list) else [own]) if isinstance(type, str)}
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        for option in options if isinstance(options, list) else []:
            types |= _types(option, root, depth + 1)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        of_values = {json_type(value) for value in listed}
        types = types & of_values or of_values
    narrower = schema.get("allOf")
    parts = list(narrower) if isinstance(narrower, list) else []
    if isinstance(ref := schema.get("$ref"), str):
        parts.append(target(ref, root))
    for part in parts:
        others = _types(part, root, depth + 1)
        types = types & others or types or set(others)
    return frozenset(types)


def target(ref: str, root: object) -> object:
    """What a reference inside a schema points at; None when it is not there."""
    for key in ref.removeprefix("#").strip("/").split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, Mapping) else None
    return root


def value_types(schema: object) -> frozenset[str]:
    """The JSON types by which `coerce` reads a text.

    >>> sorted(value_types({"anyOf": [{"type": "string"}, {"const": None}]}))
    ['null', 'string']
    """
    return _types(schema)


def property_schema(schema: Mapping[str, object], name: str) -> dict[str, object]:
    """The schema of one property of an object, standing alone: with what its references need."""
    properties = schema.get("properties")
    part = properties.get(name) if isinstance(properties, Mapping) else None
    shared = {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
    return {**shared, **part} if isinstance(part, Mapping) else shared


def loads_or(value: str) -> Json:
    try:
        return loads(value)
    except ValueError:
        return value


def _integer(value: str) -> int:
    """5, and 5.0 or 1e2, which JSON schema counts as integers too."""
    result = loads(value)
    if isinstance(result, float) and result.is_integer():
        return int(result)
    if not isinstance(result, int) or isinstance(result, bool):
        raise ValueError
    return result


def _of(*kinds: type) -> Callable[[str], Json]:
    def parse(value: str) -> Json:
        result = loads(value)
        if not isinstance(result, kinds) or (isinstance(result, bool) and bool not in kinds):
            raise ValueError
        return result

    return parse


def _word(**words: bool | None) -> Callable[[str], Json]:
    def parse(value: str) -> Json:
        if value.lower() not in words:
            raise ValueError
        return words[value.lower()]

    return parse


def _literal(kind: type) -> Callable[[str], Json]:
    """JSON of one kind, or the same written as a Python literal: ['a', True, None]."""
    strict = _of(kind)

    def parse(value: str) -> Json:
        try:
            return strict(value)
        except ValueError:
            pass
        try:
            found: Json = json.loads(json.dumps(ast.literal_eval(value), allow_nan=False))
        except (SyntaxError, TypeError, RecursionError, MemoryError):
            raise ValueError from None
        if not isinstance(found, kind):
            raise ValueError
        return paired(found)

    return parse


_PARSERS: dict[str, Callable[[str], Json]] = {
    "null": _word(null=None, none=None),
    "boolean": _word(true=True, false=False),
    "integer": _integer,
    "number": _of(int, float),
    "object": _literal(dict),
    "array": _literal(list),
}


class Parameters:
    """Arguments that arrive key by key, as JSON text that grows."""

    def __init__(self, name: str, tools: Tools) -> None:
        schema = tools.get(name, {})
        names = schema.get("properties")
        names = names if isinstance(names, Mapping) else {}
        self.schemas = {key: property_schema(schema, key) for key in names}
        self.text = ""
        self._keys: set[str] = set()

    @property
    def keys(self) -> frozenset[str]:
        """The keys that have come so far."""
        return frozenset(self._keys)

    def add(self, key: str, value: object) -> Args:
        if key in self._keys:
            raise NotACall
        piece = f"{', ' if self._keys else '{'}{dumps(key)}: {dumps(value)}"
        self._keys.add(key)
        self.text += piece
        return Args(piece)

    def close(self) -> Args:
        piece = "}" if self._keys else "{}"
        self.text += piece
        return Args(piece)
