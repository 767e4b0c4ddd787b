"""Compile random schemas, regexes, grammars and choices: each compiles or is a SchemaError.

`python -m tests.fuzz.test_constraints 10000` runs 10,000 inputs in child processes.
"""

import os
import random
import string
import sys
import time
from typing import Any

from support import isolated
from support.schemas import allowed, constrainer

from llm_magic.chat.schema import as_schema
from llm_magic.errors import EngineError, SchemaError
from llm_magic.events import Choices, Constraint, Grammar, Regex, Schema

COUNT = int(os.environ.get("LLM_MAGIC_FUZZ", "1500"))
SLOW = 10.0  # seconds of CPU for one constraint

NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 10, 255, -128, 0.1, 0.5, -0.25, 1e-9, 1e-320, 1e15, 1e20, -1e300, 1.5e308,
    2**31, -(2**31), 2**32, 2**53 - 1, 2**53, 2**53 + 1, -(2**53), 2**62, 2**63 - 1, 2**63,
    -(2**63), -(2**63) + 1, 2**64, 2**64 - 1, -(2**64), 10**19, 10**30, -(10**30), 10**400, -0.0,
    9007199254740993, 1234567890123456789, 9.5, 100.001, 65536, 65537, 4294967295, 99999999999,
]  # fmt: skip
COUNTS: list[Any] = [0, 1, 2, 3, 5, 16, 64, 1000, 100_000, 10**6, 10**9, 2**31, 2**32, 2**63]
TEXTS = [
    "",
    "a",
    "ab",
    "é",
    "\ud800",
    "😀",
    "\x00",
    "\n",
    '"',
    "\\",
    "a" * 300,
    "$ref",
    "#",
    "<|end|>",
]
NAMES = ["a", "b", "c", "name", "é", "", "a/b", "~", "\ud800"]
# fmt: off
PATTERNS = [
    r"a+", r"^[a-z]{2,5}$", r"\d{3}", r"\p{L}+", r"(a|b)*c", r"^\p{Lu}", r"a{1000}",
    r"(a{100}){100}",
    r"((a{100}){100}){100}", r"(?=a)b", r"(?<!a)b", r"\1", r"[", r"(", r"a**", r"", r"^$", r".",
    r"\w+@\w+",
    r"(?i)abc", r"\bfoo\b", r"[^\x00-\x{10FFFF}]", r"(.*a){20}", r"(x+x+)+y", r"\u0041", r"\S\s\D",
    r"[\w-]+", r"(?P<n>a)", r"$^", r"a|", r"|", r"\ud800", r"[\p{Greek}&&\p{Lu}]", r"(a?){50}a{50}",
]
FORMATS = ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
           "uri",
           "idn-email", "iri", "uri-template", "json-pointer", "regex", "unknown"]
# fmt: on
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


def value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(7 if depth < 3 else 5):
        case 0:
            return rng.choice([None, True, False])
        case 1 | 2:
            return rng.choice(NUMBERS)
        case 3 | 4:
            return rng.choice(TEXTS)
        case 5:
            return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(NAMES): value(rng, depth + 1) for _ in range(rng.randrange(3))}


def schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 4 or rng.random() < 0.08:
        return rng.choice([True, False, {}, {"type": rng.choice(TYPES)}])
    out: dict[str, Any] = {}
    if rng.random() < 0.6:
        out["type"] = rng.choice(TYPES) if rng.random() < 0.85 else rng.sample(TYPES, 2)
    for _ in range(rng.randrange(1, 4)):
        name, part = _keyword(rng, depth)
        out[name] = part
    if depth == 0:
        out["$defs"] = {n: schema(rng, 2) for n in ("x", "y")}
    return out


def _keyword(rng: random.Random, depth: int) -> tuple[str, Any]:
    def inner() -> Any:
        return schema(rng, depth + 1)

    def several() -> list[Any]:
        return [inner() for _ in range(rng.randrange(1, 4))]

    name = rng.choice([
        "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
        "minLength", "maxLength", "pattern", "format", "items", "prefixItems", "contains",
        "minItems",
        "maxItems", "uniqueItems", "properties", "required", "additionalProperties",
        "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired",
        "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref", "properties", "anyOf",
        "minContains", "unevaluatedProperties", "dependentSchemas",
    ])  # fmt: skip
    match name:
        case "enum":
            return name, [value(rng) for _ in range(rng.randrange(1, 5))]
        case "const":
            return name, value(rng)
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
            return name, rng.choice(NUMBERS)
        case "pattern":
            return name, pattern(rng)
        case "format":
            return name, rng.choice(FORMATS)
        case "uniqueItems":
            return name, rng.random() < 0.5
        case "prefixItems" | "anyOf" | "oneOf" | "allOf":
            return name, several()
        case "properties" | "dependentSchemas":
            return name, {rng.choice(NAMES): inner() for _ in range(rng.randrange(1, 4))}
        case "patternProperties":
            return name, {pattern(rng): inner() for _ in range(rng.randrange(1, 3))}
        case "required":
            return name, rng.sample(NAMES, rng.randrange(3))
        case "dependentRequired":
            return name, {rng.choice(NAMES): rng.sample(NAMES, 2)}
        case "$ref":
            return name, rng.choice(["#", "#/$defs/x", "#/$defs/y", "#/properties/a", "#/nowhere"])
    if name.startswith(("min", "max")):
        return name, rng.choice(COUNTS)
    return name, inner()


def pattern(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(PATTERNS)
    if rng.random() < 0.5:
        return "".join(rng.choice(PATTERNS) for _ in range(rng.randrange(1, 4)))
    return "".join(rng.choice(r"ab.*+?()[]{}|^$\d1,-é") for _ in range(rng.randrange(1, 25)))


def gbnf(rng: random.Random) -> str:
    names = ["root", "a", "b", "c-d"][: rng.randrange(1, 5)]
    return "\n".join(f"{name} ::= {_body(rng, names, 0)}" for name in names)


def _body(rng: random.Random, names: list[str], depth: int) -> str:
    def item() -> str:
        match rng.randrange(7 if depth < 4 else 4):
            case 0:
                return rng.choice(['"a"', '"xy"', '""', r'"\n"', '"é"', r'"\x41"'])
            case 1:
                return rng.choice(["[a-z]", "[^a]", "[0-9]", "[]", "[^]", r"[\]]", "[z-a]", "."])
            case 2 | 3:
                return rng.choice(names)
            case 4:
                return "<[97]>"
        return f"({_body(rng, names, depth + 1)})"

    def suffix() -> str:
        counts = ["{0}", "{2}", "{1,3}", "{3,1}", "{0,}", "{1000}", "{1000000}", "{99999999999}"]
        return rng.choice(["", "", "", "*", "+", "?", rng.choice(counts)])

    options = [
        " ".join(item() + suffix() for _ in range(rng.randrange(4)))
        for _ in range(rng.randrange(1, 4))
    ]
    return " | ".join(options)


def lark(rng: random.Random) -> str:
    lines = [
        f"start: {_larks(rng)}",
        f"a: {_larks(rng)}",
        f"b: {_larks(rng)}",
        f"T: {pattern(rng)!r}",
    ]
    return "\n".join(lines[: rng.randrange(1, 5)])


def _larks(rng: random.Random) -> str:
    items = ["a", "b", "T", '"x"', "/[a-z]+/", "start", "(a | b)", "[a]", "a*", "b{2,3}", "T~3", "",
             '%json {"type": "integer"}', '%json {"const": -9223372036854775808}', "%regex",
             "<[97]>", "/(a{1000}){1000}/", f"/{pattern(rng)}/"]  # fmt: skip
    return " | ".join(" ".join(rng.choices(items, k=rng.randrange(1, 4))) for _ in range(2))


def deep(rng: random.Random) -> Constraint:
    """Nesting and size beyond what anybody means."""
    n = rng.choice([20, 60, 100, 130, 200, 1000, 5000, 50_000])
    out: Any = {"type": "integer"}
    match rng.randrange(8):
        case 0:
            return Grammar('root ::= "a" ' + "(" * n + '"b"' + ")" * n)
        case 1:
            return Regex("(" * n + "a" + ")" * n)
        case 2:
            return Grammar("start: " + "(" * n + '"b"' + ")" * n)
        case 3:
            return Choices(tuple(f"{i} {'x' * rng.randrange(9)}" for i in range(n)))
        case 4:
            return Schema(as_schema({"enum": [f"{i}" for i in range(n)]}))
        case 5:
            return Regex("(a|" * n + "b" + ")" * n)
    wrap = rng.choice(
        ["items", "anyOf", "properties", "not", "allOf", "oneOf", "additionalProperties"]
    )
    for _ in range(n):
        if wrap in ("anyOf", "allOf", "oneOf"):
            out = {wrap: [out]}
        elif wrap == "properties":
            out = {"properties": {"a": out}, "required": ["a"]}
        else:
            out = {wrap: out}
    return Schema(as_schema(out))


def constraint(seed: int) -> Constraint:
    """The constraint of a seed. Raises SchemaError where its schema is none."""
    rng = random.Random(seed)
    match rng.randrange(12):
        case 0:
            return Regex(pattern(rng))
        case 1:
            return Grammar(gbnf(rng))
        case 2:
            return Grammar(lark(rng))
        case 3:
            return deep(rng)
        case 4:
            texts = ["".join(rng.choices(string.printable, k=3)) for _ in range(5)]
            return Choices(tuple(rng.choices(TEXTS, k=2) + texts))
    return Schema(as_schema(schema(rng)))


def check(seed: int) -> str:
    """Compile one constraint and take some steps; a SchemaError is as good as a grammar."""
    start = time.thread_time()
    try:
        given = constraint(seed)
        kind = type(given).__name__
        guide = constrainer().guide(given)
    except SchemaError:
        return "SchemaError"
    rng = random.Random(seed)
    for _ in range(12):
        try:
            ids = allowed(guide.mask())
            assert len(ids), f"nothing is allowed: {given}"
            guide.accept(int(rng.choice(ids)))
        except EngineError as e:
            if "too many" not in str(e):
                raise
            return "limit"  # of the compiler's own, met in good time
    spent = time.thread_time() - start
    assert spent < SLOW, f"{spent:.1f} s for {str(given)[:500]}"
    return kind


def test_no_constraint_ends_the_process_or_raises_anything_but_a_schema_error():
    # F250 F251 F255 F257 F258 F312
    report = isolated.run("fuzz.test_constraints", COUNT)
    assert not report.findings, str(report)
    assert report.outcomes["Schema"], str(report)
    assert report.outcomes["SchemaError"], str(report)


if __name__ == "__main__":
    print(isolated.run("fuzz.test_constraints", *map(int, sys.argv[1:]), verbose=True))
