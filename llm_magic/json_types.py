"""Types of JSON values. Standard library only."""

from collections.abc import Mapping, Sequence

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
JsonObject = dict[str, Json]


def json_type(value: object) -> str:
    """The name of a value's type in JSON schemas.

    >>> [json_type(value) for value in (None, True, 1, 0.5, "a", [], {})]
    ['null', 'boolean', 'integer', 'number', 'string', 'array', 'object']
    """
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"
