"""The keywords of JSON schema by their treatment, and the replacements of formats."""

import re
from collections.abc import Iterable, Sequence

import llguidance

from .negate import other_than
from .schema_types import Subschema

Node = dict[str, Subschema]


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ANNOTATIONS = words("""
    title description default examples example deprecated readOnly writeOnly nullable
    $comment $schema $id id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $defs definitions
    contentEncoding contentMediaType contentSchema discriminator xml externalDocs
    enumNames enumDescriptions enumDescription markdownDescription markdownEnumDescriptions
    deprecationMessage errorMessage defaultSnippets doNotSuggest suggestSortText allowComments
    allowTrailingCommas propertyOrder options order scope optional uiSchema
""")
KEYWORDS = words("""
    type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum
    maxLength minLength pattern format
    items prefixItems additionalItems unevaluatedItems contains minContains maxContains
    maxItems minItems uniqueItems
    properties patternProperties additionalProperties unevaluatedProperties propertyNames
    required maxProperties minProperties dependentRequired dependentSchemas dependencies
    allOf anyOf oneOf not if then else $ref $dynamicRef $recursiveRef
""")
IN_PLACE = words("""
    allOf anyOf oneOf not if then else $ref $dynamicRef $recursiveRef dependentSchemas dependencies
""")
OBJECT = words("""
    properties patternProperties additionalProperties required propertyNames minProperties
    maxProperties dependentRequired unevaluatedProperties
""")
# Keywords by which an object says itself what else it may hold.
OPEN = words("additionalProperties patternProperties propertyNames unevaluatedProperties")
ARRAY = words("items prefixItems minItems maxItems contains uniqueItems additionalItems")
COPIED = (
    *("type", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
    *("maxLength", "minLength", "maxItems", "minItems", "required"),
)

NATIVE = words("duration email hostname ipv4 ipv6 uuid uri")
# Dates that exist (in the years 1 to 9999) and times that Python's datetime reads: no second 60, no
# lower-case t and z, at most six decimals.
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29"
_DATE = f"({_YEAR}-{_DAY}|{_LEAP})"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR})"
# Formats that llguidance lacks, or knows in a wider form than readers take: a plain part of each.
PATTERNS = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
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

# A plain part of the formats that llguidance knows inside JSON, for texts that are not JSON.
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
RAW_FORMATS = {
    "email": r"[a-z0-9]+([._-][a-z0-9]+)*@[a-z0-9]+(-[a-z0-9]+)*(\.[a-z]{2,10})+",
    "hostname": r"[a-z0-9]{1,30}(-[a-z0-9]{1,20})?(\.[a-z]{2,10}){1,4}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": r"([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "uri": r"https?://[a-z0-9]+(\.[a-z0-9]+)*(/[A-Za-z0-9._~-]*)*",
    "duration": r"P[1-9][0-9]{0,3}D",
}

# Names of our own definitions: none that a schema is likely to have.
OURS = "narrowed-"
ANY_NAME = f"{OURS}any"
ANY_REF = {"$ref": f"#/$defs/{ANY_NAME}"}
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
MAX_PATTERN = 50_000  # characters of a regular expression
MAX_BRACKETS = 50
MAX_REPEATS = 10_000
MAX_MULTIPLE = 10_000  # of multipleOf, without its decimal point: the compiler counts remainders
MAX_CONTAINS = 16
MAX_UNIQUE = 5  # values of an enumeration whose arrangements are listed


def any_of(parts: Sequence[Subschema]) -> Subschema:
    valid = [part for part in parts if part is not False]
    if not valid:
        return False
    return valid[0] if len(valid) == 1 else {"anyOf": valid}


def pattern_fault(pattern: str) -> str:
    """The compiler's objection to a regular expression; "" if it accepts it."""
    return size_fault(pattern) or _fault({"type": "string", "pattern": pattern})


def size_fault(pattern: str) -> str:
    """Why a regular expression is too large for the compiler; "" if it is not."""
    if len(pattern) > MAX_PATTERN:
        return f"it is longer than {MAX_PATTERN:,} characters"
    deep, repeated = nesting(pattern)
    if deep > MAX_BRACKETS:
        return f"its brackets are nested more than {MAX_BRACKETS} deep"
    if repeated > MAX_REPEATS:
        return f"it repeats a part more than {MAX_REPEATS:,} times"
    return ""


def matches(pattern: str, text: str) -> bool:
    """Whether a regular expression is found in a text, as the compiler reads expressions."""
    return not _fault({"allOf": [{"type": "string", "pattern": pattern}, {"enum": [text]}]})


def only_matches(pattern: str, texts: Iterable[str]) -> bool:
    """Whether a regular expression matches no other texts than these."""
    others = f"^{other_than(list(texts))}$"
    string = {"type": "string"}
    return bool(_fault({"allOf": [{**string, "pattern": pattern}, {**string, "pattern": others}]}))


def nesting(pattern: str) -> tuple[int, int]:
    """How deep the brackets of a regular expression are nested, and how often it repeats a part,
    repetitions inside repetitions multiplied.

    >>> nesting(r"a(b(c){3}|[((]\\(){1,20}")
    (2, 60)
    """
    deepest, counts = 0, [1]  # of the open groups
    last = 1  # of what a count would repeat
    for token in _REGEX_TOKEN.findall(pattern):
        if token == "(":
            counts.append(1)
            deepest = max(deepest, len(counts) - 1)
        elif token == ")" and len(counts) > 1:
            last = counts.pop()
        elif token[0] == "{" and len(token) > 1:
            last *= max(1, *(int(n) for n in re.findall(r"\d+", token)))
        else:
            last = 1
        counts[-1] = max(counts[-1], last)
    return deepest, max(counts)


_REGEX_TOKEN = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\{\d{1,12},?\d{0,12}\}|[^\\]", re.DOTALL)


def _fault(schema: Node) -> str:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if not failed:
        return ""
    lines = [line.strip() for line in messages[0].splitlines()]
    said = str(next((line for line in lines if line.startswith("error:")), lines[0]))
    return said.removeprefix("error:").strip()
