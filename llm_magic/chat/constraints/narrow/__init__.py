"""A JSON schema in the keywords that the grammar compiler knows.

Comes in: a valid JSON schema. Goes out: a schema whose values are all valid under the first, so
that what a grammar of it produces needs no check afterwards. It must not know tokens.

llguidance compiles a part of JSON schema. What it lacks is rewritten here, with the same meaning
where that can be said, else with a narrower one; never with a wider one. What cannot be rewritten
is a SchemaError with the path. The rules, beyond what each function says:

- Unknown keywords are errors (a misspelt maxLength would bind nothing), except those that carry no
  meaning for validation: annotations of OpenAPI, pydantic and editors, `x-...`, and names with a
  dot, colon, hyphen or @, which are no keyword of any draft.
- An object that lists its properties gets no others, unless the schema says something about others.
- Properties come in the order of the schema.
- Numbers are written without exponent, with at most nine decimals, and where the schema sets no
  limit they have one: 2^53 - 1 for integers, 10^15 for others.
- Unknown formats bind nothing, as the standard says; the known ones do.
"""

import difflib
from collections.abc import Mapping
from typing import Any, cast

import jsonschema_specifications  # type: ignore[import-untyped]
import referencing.exceptions
import referencing.jsonschema
from referencing import Resource

from llm_magic.chat.schema import draft_of, pointer
from llm_magic.errors import SchemaError

from .part import Part
from .words import ANNOTATIONS, ANY, ANY_NAME, ANY_REF, KEYWORDS, OURS, Node

_STANDARD: Any = jsonschema_specifications.REGISTRY


def narrowed(schema: Any) -> Node:
    """The schema for the grammar compiler. SchemaError with the path of what cannot be used.

    Each part carries the path of the part that it stands for as "$comment".
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    job = Narrowing(schema)
    out = job.node(schema, (), job.resolver, alone=True)
    if out is False:
        raise SchemaError("no value is valid under the schema at #", "#")
    if job.defs:
        out = {**out, "$defs": job.defs}
    return cast(Node, out)


class Narrowing:
    """The work on one schema. defs: what references point at, once for each use (see `alone`).

    `alone`: nothing else applies to the same value, so that closing an object hides nothing.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.defs: Node = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._keep: list[Any] = []  # objects whose id() is a key above must live on
        draft = draft_of(root)
        specification = _specification(draft)
        resource = Resource.from_contents(root, default_specification=specification)
        registry: Any = _STANDARD.with_resource(resource.id() or "", resource)
        self.resolver: Any = registry.resolver_with_root(resource)
        self.validator: Any = draft(root, registry=registry)
        self._specification = specification

    # ------------------------------------------------------------------ one part

    def node(self, schema: Any, path: tuple[Any, ...], resolver: Any, alone: bool) -> Any:
        """A part of the schema in the compiler's keywords; False when no value is valid."""
        if isinstance(schema, bool):
            return self.any(alone) if schema else False
        self._check_keywords(schema, path)
        if "$id" in schema and path:
            resolver = resolver.in_subresource(self._specification.create_resource(schema))
        if "enum" in schema or "const" in schema:
            return self._enumeration(schema, path)
        part = Part(self, dict(schema), path, resolver, alone)
        return part.build()

    def any(self, alone: bool) -> Any:
        """Any JSON value. Where it meets other schemas of the same value it is `true`: the compiler
        would never come to the end of two recursive ones."""
        if not alone:
            return True
        self.defs.setdefault(ANY_NAME, ANY)
        return dict(ANY_REF)

    def reference(self, ref: str, path: tuple[Any, ...], resolver: Any, alone: bool) -> Node:
        """The target of a reference, moved to `defs`."""
        try:
            found = resolver.lookup(ref)
        except (referencing.exceptions.Unresolvable, ValueError) as e:
            where = pointer((*path, "$ref"))
            raise SchemaError(f"the reference {ref!r} leads nowhere at {where}", where) from e
        key = (id(found.contents), alone)
        if key not in self._names:
            name = f"{OURS}{len(self._names)}"
            self._names[key] = name
            self._keep.append(found.contents)
            at = tuple(ref[2:].split("/")) if ref.startswith("#/") else (*path, "$ref")
            # A part that refers to itself finds its name before it has its content.
            self.defs[name] = True
            self.defs[name] = self.node(found.contents, at, found.resolver, alone)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _enumeration(self, schema: Node, path: tuple[Any, ...]) -> Any:
        """The listed values that the rest of the part allows; the rest is then of no use."""
        values = schema.get("enum", [schema.get("const")])
        check = self.validator.evolve(schema=schema)
        valid = [v for v in values if check.is_valid(v)]
        if not valid:
            return False
        return {"enum": valid, "$comment": pointer(path)}

    def _check_keywords(self, schema: Mapping[str, Any], path: tuple[Any, ...]) -> None:
        for key in schema:
            if key in KEYWORDS or key in ANNOTATIONS or key.startswith("x-"):
                continue
            if any(c in key for c in ".:-@ /"):
                continue
            where = pointer((*path, key))
            near = difflib.get_close_matches(key, KEYWORDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SchemaError(f"unknown keyword {key!r} at {where}{hint}", where)


def _specification(draft: Any) -> Any:
    """How references work in a draft."""
    name = str(draft.META_SCHEMA.get("$schema", "")).rstrip("#")
    return referencing.jsonschema.specification_with(name)
