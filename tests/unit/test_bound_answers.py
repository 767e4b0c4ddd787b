"""Whatever a constraint lets a model write, our own readers accept."""

import datetime
import json
import random
from typing import Any, Literal

import pytest
from support.schemas import TOKENS, constrainer, walk

from llm_magic.chat.constraints import kinds
from llm_magic.chat.parsing.router import parse as parse_calls
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.errors import SchemaError
from llm_magic.events import ToolCall, ToolSpec

TYPES = [
    datetime.datetime, datetime.date, datetime.time, int, float, bool, str, Literal["a", 1, None],
    list[datetime.date], dict[str, int], datetime.datetime | None, tuple[int, str],
]  # fmt: skip


@pytest.mark.parametrize("hint", TYPES, ids=str)
def test_an_answer_is_a_value_of_its_type(hint):
    # F254
    bound, rng = kinds.schema(hint), random.Random(1)
    read = 0
    for _ in range(12):
        out = walk(constrainer().guide(bound), rng, most=400)
        if out is not None:
            kinds.parse(bound, out.decode())
            read += 1
    assert read


@pytest.mark.parametrize(
    ("hint", "text", "good"),
    [
        (datetime.datetime, "2023-05-09T07:12:00Z", True),
        (datetime.datetime, "2023-05-09T07:12:00z", False),
        (datetime.datetime, "2023-05-09T07:12:60Z", False),
        (datetime.datetime, "2023-02-29T07:12:00Z", False),
        (datetime.datetime, "2024-02-29T07:12:00+05:30", True),
        (datetime.datetime, "0000-01-01T00:00:00Z", False),
        (datetime.date, "1900-02-29", False),
        (datetime.date, "2000-02-29", True),
        (datetime.date, "2023-04-31", False),
        (datetime.time, "24:00:00Z", False),
        (datetime.time, "23:59:59.123456Z", True),
    ],
)
def test_dates_and_times_are_those_that_exist(hint, text, good):
    # F254
    matcher = constrainer().guide(kinds.schema(hint))
    allowed = True
    for byte in json.dumps(text).encode():
        allowed = allowed and matcher.allows(byte)
        if allowed:
            matcher.accept(byte)
    assert (allowed and matcher.complete) == good


PARTS: list[dict[str, Any]] = [
    {"const": "7"}, {"enum": ["7", "true", "x"]}, {"const": 7}, {"enum": ["7", 8, None, True]},
    {"allOf": [{"type": "string"}]}, {"allOf": [{"type": "integer"}]}, {"$ref": "#/$defs/text"},
    {"$ref": "#/$defs/number"}, {"type": ["string", "null"]}, {"type": "string", "minLength": 3},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "string", "format": "date"},
    {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, {"type": "boolean"},
    {"type": "string", "pattern": "^[0-9]{2}$"}, {"type": "string", "maxLength": 4}, {},
    {"type": "array", "items": {"type": "string"}},
    {"type": "string", "format": "email"}, {"oneOf": [{"type": "string", "pattern": "^a"}]},
    {"type": "object", "properties": {"a": {"const": "1"}}, "required": ["a"]},
]  # fmt: skip
DEFS = {"text": {"type": "string", "enum": ["1", "null"]}, "number": {"type": "integer"}}


@pytest.mark.parametrize("name", ["xml", "glm", "hermes", "pythonic", "gemma", "kimi"])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: json.dumps(part)[:40])
def test_a_bound_call_is_valid_under_the_tools_schema(name, part):
    # F252
    import jsonschema

    schema = {"type": "object", "properties": {"x": part}, "required": ["x"], "$defs": DEFS}
    tool, rng, read = ToolSpec("f", "a tool", schema), random.Random(1), 0
    for _ in range(6):
        matcher, syntax = constrainer().call_guide((tool,), SYNTAXES[name])
        out = walk(matcher, rng, most=500)
        if out is None:
            continue
        calls = parse_calls(out.decode(), syntax, (tool,))
        assert [type(call) for call in calls] == [ToolCall], out
        jsonschema.validate(json.loads(calls[0].arguments), schema)
        read += 1
    # Few random walks meet a closing tag, or the end of an e-mail address.
    endless = part.get("format") == "email" or (
        name in ("xml", "glm") and '"string"' in json.dumps(part)
    )
    assert read or endless


def walk_ids(text: str) -> list[int]:
    """Token ids of a call in the form of glm, up to its closing tag."""
    return [TOKENS.index(b"<tool_call>"), *text.encode()]


def test_texts_between_tags_come_to_an_end():
    # F252
    for part, text in (
        ({"type": ["string", "null"]}, "abc"),
        ({"type": ["string", "null"]}, "null"),
        ({"type": "string", "minLength": 3}, "7 < 8"),
        ({"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}, "2024-02-29"),
        ({"type": "string", "pattern": "^[0-9]{2}$"}, "07"),
    ):
        schema = {"type": "object", "properties": {"x": part}, "required": ["x"]}
        tool = ToolSpec("f", "", schema)
        matcher, syntax = constrainer().call_guide((tool,), SYNTAXES["glm"])
        for token in walk_ids(f"f\n<arg_key>x</arg_key>\n<arg_value>{text}</arg_value>\n"):
            matcher.accept(token)
        assert matcher.mask().any(), (part, text, syntax)


def test_a_fence_inside_a_text_does_not_end_a_call():
    # F252
    tool = ToolSpec("f", "", {"type": "object", "properties": {"x": {"type": "string"}}})
    text = '```tool_code\nf(x="a ``` b")\n```'
    (call,) = parse_calls(text, SYNTAXES["gemma"], (tool,))
    assert json.loads(call.arguments) == {"x": "a ``` b"}


def test_a_schema_without_values_is_refused_for_calls_too():
    schema = {"type": "object", "properties": {"x": False}, "required": ["x"]}
    with pytest.raises(SchemaError):
        constrainer().call_guide((ToolSpec("f", "", schema),), SYNTAXES["hermes"])
