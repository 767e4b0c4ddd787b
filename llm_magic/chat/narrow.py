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
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, cast

import jsonschema_specifications  # type: ignore[import-untyped]
import llguidance
import referencing.exceptions
import referencing.jsonschema
from referencing import Resource

from ..errors import SchemaError
from .negate import excluded, negated
from .schema import draft_of, pointer

Node = dict[str, Any]
_STANDARD: Any = jsonschema_specifications.REGISTRY


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANNOTATIONS = _words("""
    title description default examples example deprecated readOnly writeOnly nullable
    $comment $schema $id id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $defs definitions
    contentEncoding contentMediaType contentSchema discriminator xml externalDocs
    enumNames enumDescriptions enumDescription markdownDescription markdownEnumDescriptions
    deprecationMessage errorMessage defaultSnippets doNotSuggest suggestSortText allowComments
    allowTrailingCommas propertyOrder options order scope optional uiSchema
""")
KEYWORDS = _words("""
    type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum
    maxLength minLength pattern format
    items prefixItems additionalItems unevaluatedItems contains minContains maxContains
    maxItems minItems uniqueItems
    properties patternProperties additionalProperties unevaluatedProperties propertyNames
    required maxProperties minProperties dependentRequired dependentSchemas dependencies
    allOf anyOf oneOf not if then else $ref $dynamicRef $recursiveRef
""")
IN_PLACE = _words("""
    allOf anyOf oneOf not if then else $ref $dynamicRef $recursiveRef dependentSchemas dependencies
""")
OBJECT = _words("""
    properties patternProperties additionalProperties required propertyNames minProperties
    maxProperties dependentRequired unevaluatedProperties
""")
# Keywords by which an object says itself what else it may hold.
OPEN = _words("additionalProperties patternProperties propertyNames unevaluatedProperties")
ARRAY = _words("items prefixItems minItems maxItems contains uniqueItems additionalItems")
COPIED = (
    *("type", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *("maxLength", "minLength", "maxItems", "minItems", "required"),
)

_NATIVE = _words("date-time time date duration email hostname ipv4 ipv6 uuid uri")
# Formats of the standard that llguidance lacks: a plain part of each.
_PATTERNS = {
    "idn-email": {"format": "email"},
    "idn-hostname": {"format": "hostname"},
    "iri": {"format": "uri"},
    "uri-reference": {"pattern": r"^[A-Za-z0-9_~.-]*(/[A-Za-z0-9_~.-]+)*(#[A-Za-z0-9_~.-]*)?$"},
    "iri-reference": {"pattern": r"^[A-Za-z0-9_~.-]*(/[A-Za-z0-9_~.-]+)*(#[A-Za-z0-9_~.-]*)?$"},
    "uri-template": {"pattern": r"^(/([A-Za-z0-9_~.-]+|\{[a-z]+\}))+$"},
    "json-pointer": {"pattern": r"^(/[A-Za-z0-9_.-]*)*$"},
    "relative-json-pointer": {"pattern": r"^[1-9][0-9]*(/[A-Za-z0-9_.-]*)*$"},
    "regex": {"pattern": r"^[A-Za-z0-9 _]*$"},
}

ANY_REF = {"$ref": "#/$defs/any"}
# Whole numbers that every reader of JSON holds exactly (RFC 8259, section 6), and what is left of
# the others: a model that is free to write 0.333333... or 1e999 may well do so.
SAFE, LARGE, STEP = 2**53 - 1, 1e15, 1e-9
ANY: Node = {
    "anyOf": [
        {"type": ["null", "boolean", "string"]},
        {"type": "number", "minimum": -LARGE, "maximum": LARGE, "multipleOf": STEP},
        {"type": "array", "items": ANY_REF},
        {"type": "object", "additionalProperties": ANY_REF},
    ]
}
MAX_CONTAINS = 16
MAX_UNIQUE = 5  # values of an enumeration whose arrangements are listed


def narrowed(schema: Any) -> Node:
    """The schema for the grammar compiler. SchemaError with the path of what cannot be used.

    Each part carries the path of the part that it stands for as "$comment".
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    job = _Narrowing(schema)
    out = job.node(schema, (), job.resolver, alone=True)
    if out is False:
        raise SchemaError("no value is valid under the schema at #", "#")
    if job.defs:
        out = {**out, "$defs": job.defs}
    return cast(Node, out)


class _Narrowing:
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
        part = _Part(self, dict(schema), path, resolver, alone)
        return part.build()

    def any(self, alone: bool) -> Any:
        """Any JSON value. Where it meets other schemas of the same value it is `true`: the compiler
        would never come to the end of two recursive ones."""
        if not alone:
            return True
        self.defs.setdefault("any", ANY)
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
            name = f"r{len(self._names)}"
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


class _Part:
    """One part under work: `given` is what is left to translate, `out` what it has become."""

    def __init__(
        self, job: _Narrowing, given: Node, path: tuple[Any, ...], resolver: Any, alone: bool
    ) -> None:
        self.job, self.given, self.path, self.resolver = job, given, path, resolver
        in_place = IN_PLACE & given.keys()
        self.alone = alone and not in_place
        self.whole = alone  # nothing applies from outside; something may from within
        # The only thing that applies here: what is in it stands alone as well.
        meaning = KEYWORDS & given.keys()
        self.passes = alone and meaning <= {*in_place, "type"} and len(in_place) == 1
        self.out: Node = {}
        self.all_of: list[Any] = []

    def build(self) -> Any:
        given, out = self.given, self.out
        if isinstance(given.get("type"), list) and not all(
            isinstance(t, str) for t in given["type"]
        ):
            raise self.refuse("type", "schemas as types, as draft 3 had them")
        self._exclusive_limits()
        for key in COPIED:
            if key in given:
                out[key] = given[key]
        for step in (
            self._numbers, self._strings, self._references, self._arrays, self._objects,
            self._close, self._dependencies, self._unions, self._conditions,
        ):  # fmt: skip
            step()
        if any(part is False for part in self.all_of):
            return False
        parts = [part for part in self.all_of if part is not True and part != ANY_REF]
        if parts:
            out["allOf"] = parts
        if not out:
            return self.job.any(self.alone)
        if set(out) == {"allOf"} and len(parts) == 1:
            out = parts[0]
        out.setdefault("$comment", pointer(self.path))
        return out

    def child(self, schema: Any, *keys: Any, alone: bool | None = None) -> Any:
        alone = self.alone if alone is None else alone
        return self.job.node(schema, (*self.path, *keys), self.resolver, alone)

    def refuse(self, keyword: str, why: str) -> SchemaError:
        where = pointer((*self.path, keyword))
        return SchemaError(f"{keyword} cannot be used at {where}: {why}", where)

    def may_be(self, kind: str) -> bool:
        types = self.given.get("type")
        return types is None or kind == types or (isinstance(types, list) and kind in types)

    # ------------------------------------------------------------------ simple values

    def _exclusive_limits(self) -> None:
        """Draft 4 had booleans beside minimum and maximum."""
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            flag = self.given.get(exclusive)
            if isinstance(flag, bool):
                del self.given[exclusive]
                if flag and limit in self.given:
                    self.given[exclusive] = self.given.pop(limit)

    def _numbers(self) -> None:
        """No exponents and no endless digits: limits where the schema has none."""
        types = self.out.get("type")
        kinds = {types} if isinstance(types, str) else set(types or ())
        if not kinds & {"number", "integer"}:
            return
        whole = "number" not in kinds
        most = SAFE if whole else LARGE
        low = self.out.get("minimum", self.out.get("exclusiveMinimum"))
        high = self.out.get("maximum", self.out.get("exclusiveMaximum"))
        if low is None and (high is None or high > -most):
            self.out["minimum"] = -most
        if high is None and (low is None or low < most):
            self.out["maximum"] = most
        wide = low is None or high is None or high - low >= 1e6 * STEP
        if not whole and wide and "multipleOf" not in self.out:
            self.out["multipleOf"] = STEP

    def _strings(self) -> None:
        pattern, name = self.given.get("pattern"), self.given.get("format")
        if pattern is not None:
            fault = _pattern_fault(pattern)
            if fault:
                raise self.refuse("pattern", fault)
            self.out["pattern"] = pattern
        if name is None or not self.may_be("string"):
            return
        if name in _NATIVE:
            self.out["format"] = name
        elif name in _PATTERNS:
            self.all_of.append({"type": self.given.get("type", "string"), **_PATTERNS[name]})

    # ------------------------------------------------------------------ references and unions

    def _references(self) -> None:
        given = self.given
        ref = given.get("$ref", given.get("$dynamicRef", given.get("$recursiveRef")))
        if ref is None:
            return
        self.all_of.append(self.job.reference(ref, self.path, self.resolver, self.passes))

    def _unions(self) -> None:
        given = self.given
        for i, part in enumerate(given.get("allOf", ())):
            self.all_of.append(
                self.child(
                    part, "allOf", i, alone=self.passes and i == 0 == len(given["allOf"]) - 1
                )
            )
        if "anyOf" in given:
            parts = [
                self.child(p, "anyOf", i, alone=self.passes) for i, p in enumerate(given["anyOf"])
            ]
            self.all_of.append(_any_of(parts))
        if "oneOf" in given:
            self.all_of.append(self._one_of(given["oneOf"]))

    def _one_of(self, options: Sequence[Any]) -> Any:
        """Each option narrowed so that no value of it is valid under another; those that cannot be
        are left out. With none left it is refused."""
        parts = []
        options = [self._typed(option) for option in options]
        for i, option in enumerate(options):
            part = self.child(option, "oneOf", i, alone=self.passes)
            others = [o for j, o in enumerate(options) if j != i]
            if part is False:
                continue
            kept = self._apart(part, others)
            if kept is not None:
                parts.append(kept)
        if not parts:
            raise self.refuse("oneOf", "its options overlap, and cannot be told apart; use anyOf")
        return _any_of(parts)

    def _typed(self, option: Any) -> Any:
        """An option that says nothing of its type, with that of the whole."""
        silent = isinstance(option, dict) and not {"type", "$ref", "enum", "const"} & option.keys()
        if silent and "type" in self.given and KEYWORDS & option.keys():
            return {"type": self.given["type"], **option}
        return option

    def _apart(self, part: Any, others: Sequence[Any]) -> Any:
        for other in others:
            part = excluded(part, other, self._look, self._valid)
            if part is None:
                return None
        return part

    def _look(self, schema: Any) -> Any:
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

    def _valid(self, schema: Any, value: Any) -> bool:
        return bool(self.job.validator.evolve(schema=schema).is_valid(value))

    # ------------------------------------------------------------------ conditions

    def _conditions(self) -> None:
        given = self.given
        if "not" in given:
            opposite = negated(given["not"], self._look)
            if opposite is None:
                raise self.refuse("not", "its opposite cannot be said in other keywords")
            whole = self.passes and isinstance(opposite, dict) and set(opposite) == {"type"}
            whole = whole and "type" not in given
            self.all_of.append(self.child(opposite, "not", alone=whole))
        if "if" not in given:
            return
        yes = [self.child(given[k], k, alone=False) for k in ("if", "then") if k in given]
        options = [{"allOf": yes} if False not in yes else False]
        opposite = negated(given["if"], self._look)
        if opposite is not None:
            no = [self.child(opposite, "if", alone=False)]
            no += [self.child(given["else"], "else", alone=False)] if "else" in given else []
            options.append({"allOf": no} if False not in no else False)
        self.all_of.append(_any_of(options))

    def _dependencies(self) -> None:
        given = self.given
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, then in given.get(key, {}).items():
                if isinstance(then, list):
                    then = {"required": then}
                absent = {"properties": {name: False}}
                present = self.child(then, key, name, alone=False)
                if present is False:
                    self.all_of.append(absent)
                else:
                    self.all_of.append({"anyOf": [absent, present]})

    # ------------------------------------------------------------------ arrays

    def _arrays(self) -> None:
        given, out = self.given, self.out
        if not self.may_be("array") or not (ARRAY & given.keys() or "type" in given):
            return
        items = given.get("items", True)
        heads, rest = given.get("prefixItems"), items
        if isinstance(items, list):
            heads, rest = items, given.get("additionalItems", True)
        if given.get("unevaluatedItems") is False and "items" not in given:
            if not self.alone:
                raise self.refuse("unevaluatedItems", "beside other schemas of the same array")
            rest = False
        out["items"] = self.child(rest, "items")
        if heads is not None:
            names = "items" if isinstance(items, list) else "prefixItems"
            out["prefixItems"] = [self.child(h, names, i) for i, h in enumerate(heads)]
        if "contains" in given:
            self._contains()
        if given.get("uniqueItems") is True:
            self._unique(heads, rest)
        # The first items that cannot be make the array end before them.
        parts = out.get("prefixItems", [])
        stop = next((i for i, p in enumerate(parts) if p is False), None)
        if stop is not None:
            out["prefixItems"] = parts[:stop]
            out["items"] = False
        if self.alone and "type" not in given:
            out["type"] = "array"

    def _contains(self) -> None:
        """The items that must be contained come first."""
        given, out = self.given, self.out
        least = given.get("minContains", 1)
        if "maxContains" in given:
            raise self.refuse("maxContains", "the items that are not counted cannot be told apart")
        if least > MAX_CONTAINS:
            raise self.refuse("minContains", f"more than {MAX_CONTAINS}")
        if not least:
            return
        wanted = self.child(given["contains"], "contains", alone=False)
        heads = list(out.get("prefixItems", ()))
        heads += [out["items"]] * (least - len(heads))
        for i in range(least):
            heads[i] = {"allOf": [heads[i], wanted]} if heads[i] is not False else False
        out["prefixItems"] = heads
        out["minItems"] = max(given.get("minItems", 0), least)

    def _unique(self, heads: Any, rest: Any) -> None:
        """All arrangements of a small enumeration; anything else could only be told when it is too
        late to take a repeated item back."""
        given, out = self.given, self.out
        if given.get("maxItems", 2) <= 1:
            return
        if heads is not None:
            raise self.refuse("uniqueItems", "beside a list of item schemas")
        values = self._values(self._look(rest))
        if values is None:
            raise self.refuse(
                "uniqueItems",
                "a repetition cannot be ruled out while the array is written; leave it out, or list"
                " the allowed items in an enum",
            )
        low, high = given.get("minItems", 0), min(given.get("maxItems", len(values)), len(values))
        sizes = range(low, high + 1)
        if len(values) > MAX_UNIQUE:  # in the order of the enumeration only
            chosen = [values[:n] for n in sizes]
            chosen += [[v] for v in values[1:]] if 1 in sizes else []
        else:
            chosen = [list(p) for n in sizes for p in permutations(values, n)]
        out.pop("items")
        out.pop("minItems", None)
        out.pop("maxItems", None)
        self.all_of.append({"enum": chosen} if chosen else False)

    def _values(self, schema: Any) -> list[Any] | None:
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

    # ------------------------------------------------------------------ objects

    def _objects(self) -> None:
        given, out = self.given, self.out
        if not self.may_be("object"):
            out.pop("required", None)
            return
        if not (OBJECT & given.keys() or "type" in given):
            return
        if self.alone and "type" not in given:
            out["type"] = "object"
        properties = {
            name: self.child(part, "properties", name)
            for name, part in given.get("properties", {}).items()
        }
        patterns = {
            key: self.child(part, "patternProperties", key)
            for key, part in given.get("patternProperties", {}).items()
        }
        for key in patterns:
            if fault := _pattern_fault(key):
                raise self.refuse(f"patternProperties/{key}", fault)
        others = self._others(properties, bool(patterns))
        if "propertyNames" in given:
            properties, patterns, others = self._names(properties, patterns, others)
        for name in out.get("required", ()):
            if name not in properties and not patterns and others is not False:
                properties[name] = others
        if properties:
            out["properties"] = properties
        if patterns:
            out["patternProperties"] = patterns
        out["additionalProperties"] = others
        self._sizes()

    def _others(self, properties: Node, patterned: bool) -> Any:
        """What properties that are not listed may be."""
        given = self.given
        if "additionalProperties" in given:
            return self.child(given["additionalProperties"], "additionalProperties")
        rest = given.get("unevaluatedProperties")
        if rest is not None and rest is not True:
            if self.alone:
                return self.child(rest, "unevaluatedProperties")
            if rest is not False:
                raise self.refuse(
                    "unevaluatedProperties", "beside other schemas of the same object"
                )
            own = dict(properties)
            properties.clear()  # what is inherited comes first
            properties.update({n: self.job.any(self.alone) for n in self._evaluated(given)})
            properties.update(own)
            return False
        unlisted = set(given.get("required", ())) - properties.keys()
        closes = self.alone and properties and not patterned and not unlisted and rest is None
        return (
            False
            if closes and len(properties) >= given.get("minProperties", 0)
            else self.job.any(self.alone)
        )

    def _close(self) -> None:
        """An object that is described in several parts gets no properties but those they name."""
        keys = self.given.keys()
        if self.alone or not self.whole or self.passes or "minProperties" in keys or OPEN & keys:
            return
        names = self._named(self.given, 0)
        if names:
            own = self.out.get("properties", {})
            self.out["properties"] = {**dict.fromkeys(names, True), **own}
            self.out["additionalProperties"] = False

    def _named(self, schema: Any, depth: int) -> list[str] | None:
        """The properties that a schema or its parts name; None when one allows others."""
        if not isinstance(schema, Mapping) or depth > 16:
            return []
        if depth and OPEN & schema.keys() and schema.get("additionalProperties") is not False:
            return None
        parts = [schema[k] for k in ("if", "then", "else") if k in schema]
        parts += [part for k in ("allOf", "anyOf", "oneOf") for part in schema.get(k, ())]
        parts += schema.get("dependentSchemas", {}).values()
        for name, part in schema.get("dependencies", {}).items():
            parts += [{"required": [name, *part]} if isinstance(part, list) else part]
        for name, others in schema.get("dependentRequired", {}).items():
            parts.append({"required": [name, *others]})
        parts += [self._look({"$ref": schema["$ref"]})] if "$ref" in schema else []
        names: list[str] = []
        for part in parts:
            more = self._named(part, depth + 1)
            if more is None:
                return None
            names += more
        return [*names, *schema.get("properties", ()), *schema.get("required", ())]

    def _evaluated(self, schema: Any) -> list[str]:
        """Names of properties that other schemas of the same object certainly look at."""
        schema = (
            self._look(schema)
            if isinstance(schema, Mapping) and set(schema) == {"$ref"}
            else schema
        )
        if not isinstance(schema, Mapping):
            return []
        names = list(schema.get("properties", ()))
        parts = [*schema.get("allOf", ())]
        if "$ref" in schema:
            parts.append(self._look({"$ref": schema["$ref"]}))
        return [name for part in parts for name in self._evaluated(part)] + names

    def _names(self, properties: Node, patterns: Node, others: Any) -> tuple[Node, Node, Any]:
        """propertyNames: names that are listed are checked here, all others by a pattern."""
        rule = self._look(self.given["propertyNames"])
        properties = {n: p if self._valid(rule, n) else False for n, p in properties.items()}
        if isinstance(rule, bool):
            return properties, patterns, others if rule else False
        listed = self._values(rule)
        if listed is not None:
            names = (n for n in listed if isinstance(n, str) and n not in properties)
            if patterns:
                raise self.refuse("propertyNames", "an enumeration beside patternProperties")
            extra = dict.fromkeys(names, others) if others is not False else {}
            return {**properties, **extra}, {}, False
        pattern = rule.get("pattern")
        if pattern is None:
            low, high = rule.get("minLength", 0), rule.get("maxLength", "")
            pattern = f"^[A-Za-z0-9_]{{{low},{high}}}$"
        elif {"minLength", "maxLength"} & rule.keys():
            raise self.refuse("propertyNames", "a pattern and a length at the same time")
        if set(rule) - {"pattern", "minLength", "maxLength", "type", *ANNOTATIONS}:
            raise self.refuse("propertyNames", "only pattern, enum and lengths can be kept")
        if fault := _pattern_fault(pattern):
            raise self.refuse("propertyNames/pattern", fault)
        if patterns:
            raise self.refuse("propertyNames", "a pattern beside patternProperties")
        return properties, {pattern: others} if others is not False else {}, False

    def _sizes(self) -> None:
        """minProperties and maxProperties, by which properties are required and which are left out.

        Two unlisted properties may have the same name, so they never count for more than one.
        """
        given, out = self.given, self.out
        low, high = given.get("minProperties", 0), given.get("maxProperties")
        properties = {n: p for n, p in out.get("properties", {}).items() if p is not False}
        required = list(out.get("required", ()))
        open_ended = out["additionalProperties"] is not False or "patternProperties" in out
        for name in properties:
            if len(required) < low and name not in required:
                required.append(name)
        if len(required) < low:
            if not open_ended:
                self.all_of.append(False)
            elif low - len(required) > 1 or properties:
                raise self.refuse("minProperties", "unlisted properties might repeat a name")
            else:
                out["minProperties"] = 1
        if required:
            out["required"] = required
        if high is None:
            return
        if len(required) > high:
            self.all_of.append(False)
        if not properties:
            out["maxProperties"] = high
            return
        for name in reversed(list(properties)):
            if len(properties) > high and name not in required:
                del properties[name]
                out["properties"][name] = False
        if open_ended:
            out["additionalProperties"] = False
            out.pop("patternProperties", None)


def _any_of(parts: Sequence[Any]) -> Any:
    valid = [part for part in parts if part is not False]
    if not valid:
        return False
    return valid[0] if len(valid) == 1 else {"anyOf": valid}


def _pattern_fault(pattern: str) -> str:
    """What the compiler says against a regular expression; "" if it takes it."""
    schema = {"type": "string", "pattern": pattern}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if not failed:
        return ""
    lines = [line.strip() for line in messages[0].splitlines()]
    said = str(next((line for line in lines if line.startswith("error:")), lines[0]))
    return said.removeprefix("error:").strip()


def _specification(draft: Any) -> Any:
    """How references work in a draft."""
    name = str(draft.META_SCHEMA.get("$schema", "")).rstrip("#")
    return referencing.jsonschema.specification_with(name)
