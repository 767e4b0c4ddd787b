"""Keywords of objects: allowed properties, required properties and their number."""

from collections.abc import Mapping

from .base import Base
from .schema_types import Subschema
from .words import ANNOTATIONS, OBJECT, OPEN, Node, matches, only_matches, pattern_fault


class Objects(Base):
    """Translates the keywords of objects."""

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
            if fault := pattern_fault(key):
                raise self.refuse(f"patternProperties/{key}", fault)
        self._absorb(properties, patterns)
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

    def _absorb(self, properties: Node, patterns: Node) -> None:
        """Drop patterns that only listed names match.

        The compiler would expect a further name under such a pattern, and none exists.
        """
        for key in list(patterns) if properties else ():
            if only_matches(key, properties):
                part = patterns.pop(key)
                for name in properties:
                    if matches(key, name):
                        both = [properties[name], part]
                        properties[name] = False if False in both else {"allOf": both}

    def _others(self, properties: Node, patterned: bool) -> Subschema:
        """The schema of properties that are not listed."""
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
        """Close an object that several parts describe: only named properties are allowed."""
        keys = self.given.keys()
        if self.alone or not self.whole or self.passes or "minProperties" in keys or OPEN & keys:
            return
        names = self._named(self.given, 0)
        if names:
            own = self.out.get("properties", {})
            self.out["properties"] = {**dict.fromkeys(names, True), **own}
            self.out["additionalProperties"] = False

    def _named(self, schema: Subschema, depth: int) -> list[str] | None:
        """The properties that a schema and its parts name; None if one of them allows others."""
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

    def _evaluated(self, schema: Subschema) -> list[str]:
        """Names of properties that other schemas of the same object constrain in every case."""
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

    def _names(
        self, properties: Node, patterns: Node, others: Subschema
    ) -> tuple[Node, Node, Subschema]:
        """Apply propertyNames: listed names are checked here, all others by a pattern."""
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
        if fault := pattern_fault(pattern):
            raise self.refuse("propertyNames/pattern", fault)
        if patterns:
            raise self.refuse("propertyNames", "a pattern beside patternProperties")
        return properties, {pattern: others} if others is not False else {}, False

    def _sizes(self) -> None:
        """Apply minProperties and maxProperties: require some properties, leave out others.

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
