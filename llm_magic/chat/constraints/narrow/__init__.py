"""Rewrites a JSON schema with the keywords that the grammar compiler supports.

Every value of the narrowed schema is valid under the original one, so the output of its grammar
needs no check afterwards.

llguidance compiles a subset of JSON schema. Other keywords are rewritten here: with the same
meaning where possible, else with a narrower one, never with a wider one. A keyword that cannot be
rewritten raises SchemaError with its path. Further rules:

- Unknown keywords are errors (a misspelt maxLength would be ignored), except those that carry no
  meaning for validation: annotations of OpenAPI, pydantic and editors, `x-...`, and names with a
  dot, colon, hyphen or @, which are no keyword of any draft.
- An object that lists its properties has no others, unless a keyword allows them.
- Properties come in the order of the schema.
- Numbers are written without exponent, with at most nine decimals, and where the schema sets no
  limit they have one: 2^53 - 1 for integers, 10^15 for others.
- Unknown formats are ignored, as the standard says; known formats are enforced.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import cast

import jsonschema
import jsonschema_specifications  # type: ignore[import-untyped]
import referencing.exceptions
import referencing.jsonschema
from referencing import Resource
from referencing.exceptions import Unresolvable

from llm_magic.chat.schema import draft_of, pointer
from llm_magic.errors import SchemaError

from .finite import pruned
from .numbers import beyond
from .part import Part
from .schema_types import Path, Resolver, Subschema
from .words import ANNOTATIONS, ANY, ANY_NAME, ANY_REF, KEYWORDS, OURS, Node, matches, pattern_fault

_STANDARD: Subschema = jsonschema_specifications.REGISTRY


def narrowed(schema: Subschema, large: bool = False) -> Node:
    """The schema for the grammar compiler.

    Args:
        schema: a valid JSON schema.
        large: a whole schema that lists values may list numbers that the compiler does not hold
            exactly: the caller writes them as text.

    Returns:
        A schema in which each part carries the path of the part that it stands for as "$comment".

    Raises:
        SchemaError: with the path of what cannot be used.

    >>> narrowed({"type": "boolean", "title": "on or off"})
    {'type': 'boolean', '$comment': '#'}
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    try:
        job = Narrowing(schema, large)
        out = job.node(schema, (), job.resolver, alone=True)
        if out is False:
            raise SchemaError("no value is valid under the schema at #", "#")
        if out is True:
            out = job.any(alone=True)
        if job.defs:
            out = {**out, "$defs": job.defs}
        return pruned(cast(Node, out))
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None


class Narrowing:
    """Translates one schema. defs: targets of references, one for each value of `alone`.

    `alone`: no other schema constrains the same value, so closing an object hides nothing.
    """

    def __init__(self, root: Mapping[str, Subschema], large: bool) -> None:
        self.root, self._large = root, large
        self.defs: Node = {}
        self._names: dict[tuple[int, bool], str] = {}
        self._keep: list[Subschema] = []  # objects whose id() is a key above must live on
        draft = draft_of(root)
        specification = _specification(draft)
        resource = Resource.from_contents(root, default_specification=specification)
        registry: Subschema = _STANDARD.with_resource(resource.id() or "", resource)
        self.resolver: Resolver = registry.resolver_with_root(resource)
        checks = {"pattern": _check_pattern}
        extended = jsonschema.validators.extend(draft, checks)
        self.validator: Subschema = extended(root, registry=registry)
        self._specification = specification

    # ------------------------------------------------------------------ one part

    def node(self, schema: Subschema, path: Path, resolver: Resolver, alone: bool) -> Subschema:
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

    def any(self, alone: bool) -> Subschema:
        """The schema of any JSON value.

        Beside other schemas of the same value it is `true`, since the compiler does not terminate
        on the intersection of two recursive schemas.
        """
        if not alone:
            return True
        self.defs.setdefault(ANY_NAME, ANY)
        return dict(ANY_REF)

    def reference(self, ref: str, path: Path, resolver: Resolver, alone: bool) -> Node:
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

    def _enumeration(self, schema: Node, path: Path) -> Subschema:
        """The listed values that the other keywords of the part allow, without those keywords."""
        key = "enum" if "enum" in schema else "const"
        values = schema["enum"] if key == "enum" else [schema["const"]]
        rest = {k: v for k, v in schema.items() if k != key and k not in ANNOTATIONS}
        valid = [v for v in values if self.valid(rest, v, path)] if rest else values
        if not valid:
            return False
        large = next((n for v in valid for n in beyond(v)), None)
        if large is not None and (path or not self._large):
            where = pointer((*path, key))
            raise SchemaError(
                f"{large} at {where} is beyond 2^53, which cannot be written exactly inside a"
                " schema; use a text with the same digits",
                where,
            )
        return {"enum": valid, "$comment": pointer(path)}

    def valid(self, schema: Subschema, value: object, path: Path) -> bool:
        """Whether a value is valid under a part of the schema."""
        try:
            return bool(self.validator.evolve(schema=schema).is_valid(value))
        except (re.error, OverflowError, RecursionError, Unresolvable) as e:
            where = pointer(path)
            raise SchemaError(f"the values at {where} cannot be checked: {e}", where) from None

    def _check_keywords(self, schema: Mapping[str, Subschema], path: Path) -> None:
        for key in schema:
            if key in KEYWORDS or key in ANNOTATIONS or key.startswith("x-"):
                continue
            if any(c in key for c in ".:-@ /"):
                continue
            where = pointer((*path, key))
            near = difflib.get_close_matches(key, KEYWORDS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SchemaError(f"unknown keyword {key!r} at {where}{hint}", where)


def _specification(draft: Subschema) -> Subschema:
    """The rules of references in a draft."""
    name = str(draft.META_SCHEMA.get("$schema", "")).rstrip("#")
    return referencing.jsonschema.specification_with(name)


def _check_pattern(
    validator: Subschema, pattern: str, instance: Subschema, schema: Subschema
) -> Iterator[jsonschema.ValidationError]:
    """Check `pattern` with the compiler: `re` lacks \\p{L} and may need exponential time."""
    if isinstance(instance, str) and (pattern_fault(pattern) or not matches(pattern, instance)):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")
