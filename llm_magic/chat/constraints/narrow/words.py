"""The keywords of JSON schema, by what is done with them, and what is put in the place of some.

Comes in: nothing. Goes out: constants, and small questions about schemas. It must not know the
schema at work.
"""

from collections.abc import Sequence
from typing import Any

import llguidance

Node = dict[str, Any]


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

NATIVE = words("date-time time date duration email hostname ipv4 ipv6 uuid uri")
# Formats of the standard that llguidance lacks: a plain part of each.
PATTERNS = {
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
MAX_CONTAINS = 16
MAX_UNIQUE = 5  # values of an enumeration whose arrangements are listed


def any_of(parts: Sequence[Any]) -> Any:
    valid = [part for part in parts if part is not False]
    if not valid:
        return False
    return valid[0] if len(valid) == 1 else {"anyOf": valid}


def pattern_fault(pattern: str) -> str:
    """What the compiler says against a regular expression; "" if it takes it."""
    schema = {"type": "string", "pattern": pattern}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar)
    if not failed:
        return ""
    lines = [line.strip() for line in messages[0].splitlines()]
    said = str(next((line for line in lines if line.startswith("error:")), lines[0]))
    return said.removeprefix("error:").strip()
