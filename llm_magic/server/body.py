"""The JSON object of a request, field by field, with errors that name the field."""

import json
from collections.abc import Iterable, Mapping

from .problems import ApiError, bad

MAX_DEPTH = 200  # of arrays and objects inside each other


class Body:
    """A JSON object whose fields are read with a type. A field that is null is unset.

    >>> Body({"n": 2, "stream": None}).whole("n", 1)
    2
    >>> Body({"n": "two"}).whole("n", 1)
    Traceback (most recent call last):
    llm_magic.server.problems.ApiError: n is 'two'; it must be a whole number
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = {name: value for name, value in fields.items() if value is not None}

    @classmethod
    def read(cls, data: bytes) -> "Body":
        """The object of a body. ApiError if it is none."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as e:
            raise bad(f"the body is not JSON: {e}") from None
        if not isinstance(value, dict):
            raise bad("the body must be a JSON object")
        if too_deep(value):
            raise bad(f"the body is nested more than {MAX_DEPTH} levels deep")
        return cls(value)

    def get(self, name: str) -> object:
        return self.fields.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self.fields.get(name, default)
        if not isinstance(value, str):
            raise _wrong(name, value, "a text")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def whole(self, name: str, default: int) -> int:
        value = self.fields.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise _wrong(name, value, "a whole number")
        return value

    def between(self, name: str, default: int, least: int, most: int) -> int:
        value = self.whole(name, default)
        if not least <= value <= most:
            raise _wrong(name, value, f"between {least} and {most}")
        return value

    def inner(self, name: str) -> "Body":
        """The fields of an object; none where it is unset."""
        value = self.fields.get(name, {})
        if not isinstance(value, Mapping):
            raise _wrong(name, value, "an object")
        return Body(value)

    def listed(self, name: str) -> list[object]:
        value = self.fields.get(name, [])
        if not isinstance(value, list):
            raise _wrong(name, value, "a list")
        return value

    def one_of(self, name: str, *values: str) -> str:
        """A word of a list; the first one is the default."""
        value = self.fields.get(name, values[0])
        if value not in values:
            raise _wrong(name, value, f"one of {', '.join(values)}")
        return str(value)

    def only(self, known: Iterable[str]) -> None:
        """Refuse a field that would be ignored: the answer would not be what was asked for."""
        names = set(known)
        for name in self.fields:
            if name not in names:
                raise bad(
                    f"this server does not know the field {name!r}; leave it out",
                    name,
                    "unknown_parameter",
                )


def too_deep(value: object) -> bool:
    """Whether a JSON value is nested deeper than what reads it later can follow."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
    return bool(level)


def _wrong(name: str, value: object, wanted: str) -> ApiError:
    shown = repr(value)
    return bad(f"{name} is {shown:.80}; it must be {wanted}", name)
