"""State and helpers shared by the translations of a schema's part."""

from collections.abc import Mapping
from typing import Protocol

import referencing.exceptions

from llm_magic.chat.schema import pointer
from llm_magic.errors import SchemaError

from .schema_types import Path, Resolver, Subschema
from .words import Node


class Work(Protocol):
    """The interface of Narrowing that the translation of a part uses."""

    defs: Node

    def valid(self, schema: Subschema, value: object, path: Path) -> bool: ...

    def node(self, schema: Subschema, path: Path, resolver: Resolver, alone: bool) -> Subschema: ...

    def any(self, alone: bool) -> Subschema: ...

    def reference(self, ref: str, path: Path, resolver: Resolver, alone: bool) -> Node: ...


class Base:
    """One part while it is translated: `given` is the input, `out` and `all_of` (further schemas of
    the same value) are the result.

    alone: no other schema constrains the same value. whole: no parent schema constrains it; a
    sibling keyword may. passes: the part holds one schema only, which then stands alone too.
    """

    job: Work
    given: Node
    path: Path
    resolver: Resolver
    alone: bool
    whole: bool
    passes: bool
    out: Node
    all_of: list[Subschema]

    def child(self, schema: Subschema, *keys: str | int, alone: bool | None = None) -> Subschema:
        alone = self.alone if alone is None else alone
        return self.job.node(schema, (*self.path, *keys), self.resolver, alone)

    def refuse(self, keyword: str, why: str) -> SchemaError:
        where = pointer((*self.path, keyword))
        return SchemaError(f"{keyword} cannot be used at {where}: {why}", where)

    def may_be(self, kind: str) -> bool:
        types = self.given.get("type")
        return types is None or kind == types or (isinstance(types, list) and kind in types)

    def _look(self, schema: Subschema) -> Subschema:
        """A part with its references followed, in the original or in the narrowed schema."""
        seen = 0
        while isinstance(schema, Mapping) and "$ref" in schema and seen < 32:
            ref, seen = schema["$ref"], seen + 1
            if ref.startswith("#/$defs/") and ref[8:] in self.job.defs:
                schema = self.job.defs[ref[8:]]
                continue
            try:
                schema = self.resolver.lookup(ref).contents
            except (referencing.exceptions.Unresolvable, ValueError):
                return schema
        return schema

    def _valid(self, schema: Subschema, value: object) -> bool:
        return self.job.valid(schema, value, self.path)

    def _values(self, schema: Subschema) -> list[Subschema] | None:
        if not isinstance(schema, Mapping):
            return None
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return [v for v in values if self._valid(schema, v)]
        match schema.get("type"):
            case "boolean":
                return [True, False]
            case "null":
                return [None]
        return None
