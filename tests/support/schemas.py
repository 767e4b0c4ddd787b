"""JSON schemas for tests: by hand after the shapes that people send, and by a generator that goes
through all keywords; and random walks through a constraint, with every allowed token as likely.

Import as `from schemas import BY_HAND, generated, shipped, walk`.
"""

import importlib.metadata
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from llm_magic.chat.constraints.compiler import Constrainer
from llm_magic.chat.constraints.guides import Vocabulary

# ----------------------------------------------------------------------------- by hand


def obj(required: str = "", **properties: Any) -> dict[str, Any]:
    """A closed object; `required` names properties, "*" all of them."""
    names = list(properties) if required == "*" else required.split()
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**closed, "required": names} if names else closed


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": t} for t in ("string", "integer", "number", "boolean"))
DEFS = {
    "address": obj(
        "street city", street=STRING, city=STRING, zip={"type": "string", "pattern": r"^\d{5}$"}
    ),
    "node": obj(
        "value", value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
    ),
    "tree": obj(
        "name",
        name=STRING,
        children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3},
    ),
    "even": {
        "type": "object",
        "properties": {"odd": {"$ref": "#/$defs/odd"}},
        "additionalProperties": False,
    },
    "odd": {
        "type": "object",
        "properties": {"even": {"$ref": "#/$defs/even"}},
        "additionalProperties": False,
    },
}


def with_defs(schema: dict[str, Any], *names: str) -> dict[str, Any]:
    return {**schema, "$defs": {name: DEFS[name] for name in names}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def array(items: Any, low: int = 0, high: int | None = None) -> dict[str, Any]:
    out = {"type": "array", "items": items, "minItems": low}
    return out if high is None else {**out, "maxItems": high}


def options(*values: Any) -> dict[str, Any]:
    return {"enum": list(values)}


TOOL_ARGUMENTS = {
    "weather": obj(
        "city",
        city={"type": "string", "description": "City and country"},
        unit={"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    ),
    "search": obj(
        "query",
        query={"type": "string", "minLength": 1, "maxLength": 200},
        limit={"type": "integer", "minimum": 1, "maximum": 100},
        safe=BOOLEAN,
    ),
    "send mail": obj(
        "to subject",
        to=array({"type": "string", "format": "email"}, 1, 5),
        subject=STRING,
        body=STRING,
        urgent=BOOLEAN,
    ),
    "calendar": obj(
        "*",
        title=STRING,
        start={"type": "string", "format": "date-time"},
        minutes={"type": "integer", "multipleOf": 15, "minimum": 15, "maximum": 480},
    ),
    "sql": obj("*", query={"type": "string", "pattern": "^(SELECT|WITH) "}),
    "shell": obj("command", command=array(STRING, 1), timeout={"type": ["number", "null"]}),
    "no arguments": obj(),
    "file edit": obj(
        "path edits",
        path={"type": "string", "minLength": 1},
        edits=array(obj("*", line={"type": "integer", "minimum": 1}, text=STRING), 1, 4),
    ),
    "convert": obj(
        "*",
        amount={"type": "number", "exclusiveMinimum": 0},
        source={"type": "string", "pattern": "^[A-Z]{3}$"},
        target={"type": "string", "pattern": "^[A-Z]{3}$"},
    ),
    "filter": obj(
        "where", where={"anyOf": [obj("*", equals=STRING), obj("*", between=array(NUMBER, 2, 2))]}
    ),
}
PAYLOADS = {
    "user": obj(
        "id email",
        id={"type": "string", "format": "uuid"},
        email={"type": "string", "format": "email"},
        name={"type": ["string", "null"]},
        roles=array(options("admin", "editor", "reader"), 0, 3),
    ),
    "order": with_defs(
        obj(
            "*",
            number={"type": "string", "pattern": "^ORD-[0-9]{6}$"},
            ship_to=ref("address"),
            lines=array(obj("*", sku=STRING, quantity={"type": "integer", "minimum": 1}), 1, 5),
        ),
        "address",
    ),
    "point": obj("*", type={"const": "Point"}, coordinates=array(NUMBER, 2, 3)),
    "geometry": {
        "oneOf": [
            obj("*", type={"const": "Point"}, at=array(NUMBER, 2, 2)),
            obj("*", type={"const": "Line"}, points=array(array(NUMBER, 2, 2), 2, 4)),
        ]
    },
    "chat message": obj(
        "role content",
        role=options("system", "user", "assistant"),
        content={"anyOf": [STRING, array(obj("*", type={"const": "text"}, text=STRING), 1, 3)]},
    ),
    "usage": obj(
        "*", prompt={"type": "integer", "minimum": 0}, completion={"type": "integer", "minimum": 0}
    ),
    "page": obj(
        "items",
        items=array(obj("id", id=INTEGER, tags=array(STRING, 0, 3)), 0, 4),
        next={"type": ["string", "null"]},
    ),
    "event": obj(
        "*", at={"type": "string", "format": "date-time"}, kind=options("click", "view"), value={}
    ),
    "error": obj(
        "code message",
        code={"type": "integer", "minimum": 400, "maximum": 599},
        message=STRING,
        details={"type": "object", "additionalProperties": STRING},
    ),
    "money": obj(
        "*",
        amount={"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 1000},
        currency={"const": "EUR"},
    ),
    "network": obj(
        "*",
        host={"type": "string", "format": "hostname"},
        v4={"type": "string", "format": "ipv4"},
        v6={"type": "string", "format": "ipv6"},
        url={"type": "string", "format": "uri"},
    ),
    "openapi nullable": {
        "type": "object",
        "properties": {"a": {"type": "string", "nullable": True, "example": "x"}},
    },
    "hal links": {
        "type": "object",
        "patternProperties": {"^[a-z]+$": obj("*", href=STRING)},
        "additionalProperties": False,
    },
    "json rpc": {
        "type": "object",
        "required": ["jsonrpc", "method"],
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "method": STRING,
            "params": {"type": ["array", "object"]},
            "id": {"type": ["string", "integer", "null"]},
        },
    },
    "discriminated": {
        "oneOf": [ref("cat"), ref("dog")],
        "discriminator": {"propertyName": "kind"},
        "$defs": {
            "cat": obj("*", kind={"const": "cat"}, lives=INTEGER),
            "dog": obj("*", kind={"const": "dog"}, good=BOOLEAN),
        },
    },
    "extraction": obj(
        "*",
        people=array(
            obj(
                "name", name=STRING, age={"type": ["integer", "null"], "minimum": 0, "maximum": 130}
            ),
            0,
            4,
        ),
        sentiment={"type": "number", "minimum": -1, "maximum": 1},
    ),
}
CONFIGURATION = {
    "service": obj(
        "image",
        image=STRING,
        ports=array({"type": "string", "pattern": r"^\d+:\d+$"}, 0, 3),
        environment={
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "null"]},
        },
        restart=options("no", "always", "on-failure"),
    ),
    "package": obj(
        "name version",
        name={"type": "string", "pattern": "^[a-z][a-z0-9-]*$"},
        version={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        private=BOOLEAN,
        dependencies={"type": "object", "additionalProperties": STRING},
    ),
    "conditional": {
        "type": "object",
        "properties": {"kind": options("tcp", "unix"), "port": INTEGER, "path": STRING},
        "required": ["kind"],
        "if": {"properties": {"kind": {"const": "tcp"}}},
        "then": {"required": ["port"]},
        "else": {"required": ["path"]},
    },
    "dependent": {
        "type": "object",
        "properties": {"user": STRING, "password": STRING},
        "dependentRequired": {"user": ["password"]},
    },
    "old dependencies": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": INTEGER, "b": INTEGER},
        "dependencies": {"a": ["b"]},
    },
    "names": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z_]+$"},
        "additionalProperties": INTEGER,
    },
    "sized": {
        "type": "object",
        "properties": {"a": STRING, "b": STRING, "c": STRING},
        "minProperties": 2,
        "maxProperties": 2,
    },
    "tuple": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": [STRING, INTEGER],
        "additionalItems": False,
        "minItems": 2,
    },
    "prefix": {"type": "array", "prefixItems": [STRING, BOOLEAN], "items": INTEGER},
    "old exclusive": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "number",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
    },
    "matrix": array(array(INTEGER, 2, 2), 2, 2),
    "modes": {"type": "array", "items": options("r", "w", "x"), "uniqueItems": True, "minItems": 1},
    "merged": {
        "allOf": [
            {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
            {"properties": {"b": STRING}, "required": ["b"]},
        ]
    },
    "not null": {"not": {"type": "null"}},
    "excluded name": {"type": "string", "not": {"enum": ["root", "admin"]}},
    "contains": {"type": "array", "items": INTEGER, "contains": {"minimum": 100}},
    "only declared": {
        "type": "object",
        "properties": {"a": INTEGER},
        "unevaluatedProperties": False,
    },
    "inherited": {
        "allOf": [{"$ref": "#/$defs/base"}],
        "type": "object",
        "properties": {"b": STRING},
        "unevaluatedProperties": False,
        "$defs": {"base": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}},
    },
    "anchor": {"$ref": "#it", "$defs": {"x": {"$anchor": "it", "type": "boolean"}}},
    "own address": {
        "$id": "https://example.org/a",
        "$ref": "a#/definitions/x",
        "definitions": {"x": INTEGER},
    },
}
RECURSIVE = {
    "list": with_defs(ref("node"), "node"),
    "tree": with_defs(ref("tree"), "tree"),
    "mutual": with_defs(ref("even"), "even", "odd"),
    "itself": {
        "type": "object",
        "properties": {"next": {"$ref": "#"}},
        "additionalProperties": False,
    },
    "json": {},
    "true": True,
    "expression": {
        "anyOf": [NUMBER, obj("*", op=options("+", "*"), args=array({"$ref": "#"}, 2, 2))]
    },
    "menu": {
        "type": "array",
        "maxItems": 3,
        "items": obj("label", label=STRING, items={"$ref": "#"}),
    },
}
TEXTS = {
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in (
            "date-time",
            "date",
            "time",
            "duration",
            "email",
            "hostname",
            "ipv4",
            "ipv6",
            "uuid",
            "uri",
            "uri-reference",
            "json-pointer",
            "regex",
            "idn-email",
            "password",
            "x-own",
        )
    },
    **{
        f"pattern {p}": {"type": "string", "pattern": p}
        for p in (
            "^[a-z]+$",
            r"^\d{3}-\d{4}$",
            "a|b",
            "^(foo|bar)(baz)?$",
            r"^\S+@\S+$",
            "[0-9]",
            "^$",
            r"^[^\n]{1,20}$",
            r"^#(?:[0-9a-fA-F]{3}){1,2}$",
            r"^v\d+(\.\d+){0,2}$",
            r"^\w+$",
            "é+",
            "^😀{1,2}$",
            r"^a\\!$",
        )
    },
    "short": {"type": "string", "maxLength": 3},
    "empty": {"type": "string", "maxLength": 0},
    "exact": {"type": "string", "minLength": 5, "maxLength": 5},
    "either": {"type": ["string", "null"], "maxLength": 8},
    "mixed": options("a", 1, None, True, 2.5, {"k": [1]}),
    "constant": {"const": {"a": [1, 2, {"b": None}]}},
    "quotes": options('"', "\\", "\n", "\u2028", "</script>"),
}
# Each with the path that the error names.
REFUSED = {
    "look-ahead": (
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}},
        "#/properties/a/pattern",
    ),
    "back reference": (
        {"type": "array", "items": {"type": "string", "pattern": r"(a)\1"}},
        "#/items/pattern",
    ),
    "broken pattern": ({"type": "string", "pattern": "["}, "#/pattern"),
    "misspelt": (
        {"type": "object", "properties": {"a": {"type": "string", "maxLenght": 3}}},
        "#/properties/a/maxLenght",
    ),
    "unique": ({"type": "array", "items": STRING, "uniqueItems": True}, "#/uniqueItems"),
    "overlap": ({"oneOf": [NUMBER, INTEGER]}, "#/oneOf"),
    "nowhere": (
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}},
        "#/properties/a/$ref",
    ),
    "far away": ({"$ref": "https://example.org/other.json"}, "#/$ref"),
    "not pattern": ({"not": {"pattern": "^a"}}, "#/not"),
    "counted": ({"type": "array", "contains": INTEGER, "maxContains": 2}, "#/maxContains"),
    "impossible": (
        {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
        },
        "#/properties/a",
    ),
    "nothing": (False, "#"),
    "no type": ({"type": "text"}, "#/type"),
}
BY_HAND: dict[str, Any] = {**TOOL_ARGUMENTS, **PAYLOADS, **CONFIGURATION, **RECURSIVE, **TEXTS}

# ----------------------------------------------------------------------------- generated


class _Maker:
    """Random schemas that use every keyword. Values exist for each of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def any(self, depth: int) -> Any:
        kinds = [self.string, self.number, self.simple, self.listed]
        if depth > 0:
            kinds += [self.array, self.object, self.object, self.union, self.merged, self.condition]
        out = self.rng.choice(kinds)(depth - 1)
        if self.rng.random() < 0.2:
            out = {"title": "Part", "description": "One of many.", **out}
        return out

    def string(self, depth: int) -> Any:
        low = self.rng.randrange(4)
        extra = self.rng.choice(
            [
                {},
                {"minLength": low},
                {"maxLength": low + 3},
                {"minLength": low, "maxLength": low + 5},
                {"pattern": self.rng.choice(["^[a-f]*$", r"\d", "^x|y$", r"^[A-Z][a-z]{1,4}$"])},
                {"format": self.rng.choice(["date", "time", "uuid", "ipv4", "email", "byte"])},
                {"contentEncoding": "base64"},
            ]
        )
        return {"type": "string", **extra}

    def number(self, depth: int) -> Any:
        a = self.rng.randrange(-50, 50)
        kind = self.rng.choice(["integer", "number"])
        extra = self.rng.choice(
            [
                {},
                {"minimum": a},
                {"maximum": a},
                {"minimum": a, "maximum": a + 10},
                {"exclusiveMinimum": a, "exclusiveMaximum": a + 10},
                {"multipleOf": self.rng.choice([1, 5, 7])},
                {"minimum": 0, "maximum": 100, "multipleOf": 10},
            ]
        )
        return {"type": kind, **extra}

    def simple(self, depth: int) -> Any:
        kinds = ["boolean", "null", "string", "integer"]
        return {"type": self.rng.choice([*kinds, self.rng.sample(kinds, 2)])}

    def listed(self, depth: int) -> Any:
        values = ["red", "green", 3, 4.5, None, True, "ü", [1], {"a": 1}]
        chosen = self.rng.sample(values, self.rng.randrange(1, 5))
        return {"const": chosen[0]} if self.rng.random() < 0.3 else {"enum": chosen}

    def array(self, depth: int) -> Any:
        low = self.rng.randrange(3)
        out: dict[str, Any] = {"type": "array", "maxItems": low + self.rng.randrange(1, 4)}
        form = self.rng.randrange(5)
        if form == 0:
            heads = [self.any(depth) for _ in range(low + 1)]
            rest = self.rng.choice([False, self.any(depth)])
            out |= {
                "prefixItems": heads,
                "items": rest,
                "minItems": low,
                "maxItems": low + 1 + bool(rest),
            }
        elif form == 1:
            out |= {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 3}
        elif form == 2:
            out |= {"items": {"type": "integer"}, "contains": {"minimum": 10}, "minContains": 1}
        else:
            out |= {"items": self.any(depth), "minItems": low}
        return out

    def object(self, depth: int) -> Any:
        names = self.rng.sample(
            ["id", "name", "size", "kind", "größe", "a b", "x/y", "~t"], self.rng.randrange(1, 5)
        )
        properties = {name: self.any(depth) for name in names}
        out: dict[str, Any] = {"type": "object", "properties": properties}
        out["required"] = self.rng.sample(names, self.rng.randrange(len(names) + 1))
        form = self.rng.randrange(9)
        if form == 0:
            out["additionalProperties"] = self.any(depth - 1)
        elif form == 1:
            out |= {
                "patternProperties": {"^p_": self.any(depth - 1)},
                "additionalProperties": False,
            }
        elif form == 2:
            out |= {"dependentRequired": {names[0]: names[-1:]}}
        elif form == 3:
            out |= {"propertyNames": {"maxLength": 12}, "additionalProperties": {"type": "integer"}}
        elif form == 4:
            out |= {"minProperties": 1, "maxProperties": len(names)}
        elif form == 5:
            out |= {"unevaluatedProperties": False}
        elif form == 6:
            out |= {"dependentSchemas": {names[0]: {"required": names[-1:]}}}
        else:
            out |= {"additionalProperties": False}
        return out

    def union(self, depth: int) -> Any:
        if self.rng.random() < 0.5:
            return {"anyOf": [self.any(depth) for _ in range(self.rng.randrange(2, 4))]}
        form = self.rng.randrange(3)
        if form == 0:
            return {
                "oneOf": [
                    {"type": "string"},
                    {"type": "array", "items": self.any(depth)},
                    {"type": "null"},
                ]
            }
        if form == 1:
            return {
                "oneOf": [
                    obj("kind value", kind={"const": k}, value=self.any(depth)) for k in "abc"
                ]
            }
        return {"oneOf": [obj("*", **{name: self.any(depth)}) for name in ("left", "right")]}

    def merged(self, depth: int) -> Any:
        form = self.rng.randrange(3)
        if form == 0:
            a, b = (
                {"type": "object", "properties": {n: self.any(0)}, "required": [n]} for n in "ab"
            )
            return {"allOf": [a, b]}
        if form == 1:
            return {"$ref": "#/$defs/shared"}
        return {"type": "integer", "allOf": [{"minimum": 0}, {"maximum": 20}]}

    def condition(self, depth: int) -> Any:
        form = self.rng.randrange(3)
        if form == 0:
            return {"type": self.rng.choice(["string", "boolean"]), "not": {"const": "no"}}
        if form == 1:
            return {"not": {"type": ["object", "array", "string"]}}
        kinds = {"enum": ["one", "two"]}
        return {
            "type": "object",
            "properties": {"kind": kinds, "n": INTEGER},
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "one"}}, "required": ["kind"]},
            "then": {"required": ["n"]},
        }


def generated(n: int, seed: int = 0) -> list[Any]:
    """n schemas, the same ones for the same seed."""
    out = []
    for i in range(n):
        maker = _Maker(seed * 1_000_003 + i)
        schema = maker.any(3)
        if "#/$defs/shared" in json.dumps(schema):
            schema = {**schema, "$defs": {"shared": obj("*", shared=BOOLEAN)}}
        out.append(schema)
    return out


# ----------------------------------------------------------------------------- shipped by others


def shipped(limit: int = 100_000) -> Iterator[tuple[str, Any]]:
    """(file, schema) of the JSON schemas in installed packages, files up to `limit` bytes."""
    seen = set()
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if not file.name.endswith(".json") or "schema" not in str(file).lower():
                continue
            place = distribution.locate_file(file)
            try:
                text = place.read_text("utf-8")
                data = json.loads(text)
            except (OSError, ValueError):
                continue
            if str(file) in seen or len(text) > limit or not isinstance(data, dict):
                continue
            if {
                "properties",
                "$ref",
                "anyOf",
                "oneOf",
                "allOf",
                "definitions",
                "$defs",
            } & data.keys():
                seen.add(str(file))
                yield str(file), data


# ----------------------------------------------------------------------------- random walks

END = 256
_TEXT = """{"|":|, "|"}|": "|":[|"]|],|},|null|true|false|12|0.5|-1|  |~  |the| the|name|"name"|ing|
20|-01|T1|:00|é|ü|a@|.org|http://|\\n|\\u00|e9|kind|value|one|two"""
_PIECES = [piece.replace("~", "\n") for piece in _TEXT.replace("\n", "").split("|")]
_BYTES = [bytes([i]) for i in range(256)]
# The last two are the halves of an emoji: tokens need not be whole characters.
TOKENS = [
    *_BYTES,
    b"<end>",
    *(p.encode() for p in _PIECES),
    b"\xf0\x9f",
    b"\x98\x80",
    b"<think>",
    b"</think>",
    b"<tool_call>",
]
CONTROLS = frozenset({END, len(TOKENS) - 1})


@cache
def constrainer() -> Constrainer:
    return Constrainer(
        Vocabulary(TOKENS, CONTROLS, frozenset({END}), lambda text: list(text.encode()))
    )


_CLOSERS = [END, *b'"}]']  # the quote first: inside a text, brackets are text
_TURNS = frozenset(b"@.:-/TZ")  # without one of these an e-mail address, say, has no end


def allowed(mask: Any) -> Any:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(TOKENS)])


def walk(guide: Any, rng: random.Random, free: int = 40, most: int = 4000) -> bytes | None:
    """A random sentence of a constraint, every allowed token as likely as any other.

    After `free` tokens it takes what closes, where that is allowed, so as to come to an end. None
    when it did not within `most` tokens.
    """
    out = b""
    for i in range(most):
        ids = allowed(guide.mask())
        assert len(ids), f"nothing is allowed after {out!r}"
        token = int(rng.choice(ids))
        if i >= free:
            known = set(ids.tolist())
            if out.rstrip().endswith(b"{"):
                known -= {ord('"')}  # an object can end here: no further level
            turns = sorted(_TURNS & known) if rng.random() < 0.5 else []
            token = next((c for c in _CLOSERS if c in known), rng.choice(turns) if turns else token)
        if token == END:
            return out
        guide.accept(token)
        out += TOKENS[token]
    return None
