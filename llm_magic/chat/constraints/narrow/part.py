"""A part of a schema: simple values, references, unions, conditions."""

from collections.abc import Sequence

from llm_magic.chat.schema import pointer

from .arrays import Arrays
from .base import Work
from .negate import TYPES, excluded, negated
from .numbers import EDGE, NUMERIC, float_limits, is_small, whole_limits
from .objects import Objects
from .schema_types import Path, Resolver, Subschema
from .words import (
    ANY_REF,
    COPIED,
    IN_PLACE,
    KEYWORDS,
    LARGE,
    MAX_MULTIPLE,
    NATIVE,
    PATTERNS,
    Node,
    any_of,
    pattern_fault,
)


class Part(Arrays, Objects):
    """One part of a schema while it is translated."""

    def __init__(self, job: Work, given: Node, path: Path, resolver: Resolver, alone: bool) -> None:
        self.job, self.given, self.path, self.resolver = job, given, path, resolver
        in_place = IN_PLACE & given.keys()
        self.alone = alone and not in_place
        self.whole = alone  # no parent schema constrains this value; a sibling keyword may
        # With a single in-place keyword, the schema inside it stands alone as well.
        meaning = KEYWORDS & given.keys()
        self.passes = alone and meaning <= {*in_place, "type"} and len(in_place) == 1
        self.out: Node = {}
        self.all_of: list[Subschema] = []

    def build(self) -> Subschema:
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

    # ------------------------------------------------------------------ simple values

    def _exclusive_limits(self) -> None:
        """Convert draft 4, where exclusiveMinimum and exclusiveMaximum are booleans."""
        for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            flag = self.given.get(exclusive)
            if isinstance(flag, bool):
                del self.given[exclusive]
                if flag and limit in self.given:
                    self.given[exclusive] = self.given.pop(limit)

    def _numbers(self) -> None:
        """Set limits that the compiler holds exactly, where the schema has none or wider ones.

        The compiler reads every number as a 64-bit float. Numbers have no exponent and a bounded
        count of digits.
        """
        types = self.out.get("type", TYPES)
        kinds = {types} if isinstance(types, str) else set(types)
        given = {key: self.out.pop(key) for key in NUMERIC if key in self.out}
        if not kinds & {"number", "integer"} or not (given or "type" in self.out):
            return
        limits = whole_limits(given) if "number" not in kinds else float_limits(given)
        if limits is None:
            for key in NUMERIC[:4]:
                if abs(given.get(key, 0)) > EDGE and "number" not in kinds:
                    raise self.refuse(key, "whole numbers from 2^63 on are not written")
                if abs(given.get(key, 0)) > LARGE and "number" in kinds:
                    raise self.refuse(key, f"numbers beyond {LARGE:g} are not written")
            left = [t for t in TYPES if t in kinds and t not in ("number", "integer")]
            if left:
                self.out["type"] = left
            else:  # the compiler finds that there is none, and the error names this place
                self.out |= {"minimum": 1, "maximum": 0}
            return
        if "multipleOf" in given and not is_small(given["multipleOf"]):
            raise self.refuse("multipleOf", f"more than {MAX_MULTIPLE:,} steps up to a whole one")
        self.out |= limits
        if "multipleOf" in given:
            self.out["multipleOf"] = given["multipleOf"]

    def _strings(self) -> None:
        pattern, name = self.given.get("pattern"), self.given.get("format")
        if pattern is not None:
            fault = pattern_fault(pattern)
            if fault:
                raise self.refuse("pattern", fault)
            self.out["pattern"] = pattern
        if name is None or not self.may_be("string"):
            return
        if name in NATIVE:
            self.out["format"] = name
        elif name in PATTERNS:
            self.all_of.append({"type": self.given.get("type", "string"), **PATTERNS[name]})

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
            self.all_of.append(any_of(parts))
        if "oneOf" in given:
            self.all_of.append(self._one_of(given["oneOf"]))

    def _one_of(self, options: Sequence[Subschema]) -> Subschema:
        """Narrow each option so that no value of it is valid under another option.

        Options that cannot be narrowed so are left out; if none is left, oneOf is refused.
        """
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
        return any_of(parts)

    def _typed(self, option: Subschema) -> Subschema:
        """The option; without a type of its own it gets the type of the whole part."""
        silent = isinstance(option, dict) and not {"type", "$ref", "enum", "const"} & option.keys()
        if silent and "type" in self.given and KEYWORDS & option.keys():
            return {"type": self.given["type"], **option}
        return option

    def _apart(self, part: Subschema, others: Sequence[Subschema]) -> Subschema:
        for other in others:
            part = excluded(part, other, self._look, self._valid)
            if part is None:
                return None
        return part

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
        self.all_of.append(any_of(options))

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
