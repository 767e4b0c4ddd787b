"""Types of the parts of a JSON schema, and of the ways to one."""

from typing import Any, Protocol

# A part of a schema: True, False or an object, whose keywords are read one by one.
Subschema = Any
Keyword = object  # the value of a keyword
Path = tuple[str | int, ...]  # keys from the whole schema down to a part


class Resolved(Protocol):
    """What a reference points at."""

    @property
    def contents(self) -> Any: ...

    @property
    def resolver(self) -> "Resolver": ...


class Resolver(Protocol):
    """The resolver of the package `referencing`, which does not export its type."""

    def lookup(self, ref: str) -> Resolved: ...

    def in_subresource(self, subresource: Any) -> "Resolver": ...
