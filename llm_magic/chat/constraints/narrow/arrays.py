"""Keywords of arrays: items, prefixItems, contains and uniqueItems."""

from itertools import permutations

from .base import Base
from .schema_types import Subschema
from .words import ARRAY, MAX_CONTAINS, MAX_UNIQUE


class Arrays(Base):
    """Translates the keywords of arrays."""

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
        # An item that no value fits ends the array before it.
        parts = out.get("prefixItems", [])
        stop = next((i for i, p in enumerate(parts) if p is False), None)
        if stop is not None:
            out["prefixItems"] = parts[:stop]
            out["items"] = False
        if self.alone and "type" not in given:
            out["type"] = "array"

    def _contains(self) -> None:
        """Apply contains: the required items come first."""
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

    def _unique(self, heads: Subschema, rest: Subschema) -> None:
        """Apply uniqueItems by listing all arrangements of a small enumeration.

        A grammar cannot exclude a repeated item in any other case.
        """
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
