"""Constraints that a compiler could die of, or a model never finish."""

import enum
import re
import sys
from typing import Literal

import numpy as np
import pytest
from support.schemas import constrainer

from llm_magic.chat.constraints import compiler, kinds
from llm_magic.chat.schema import as_schema
from llm_magic.errors import RequestError, SchemaError
from llm_magic.events import Choices, Grammar, Regex, Schema


def accepts(constraint, text: str) -> bool:
    matcher = constrainer().guide(constraint)
    for byte in text.encode():
        if not matcher.allows(byte):
            return False
        matcher.accept(byte)
    return matcher.complete


def schema(value) -> Schema:
    return Schema(as_schema(value))


def test_the_limits_of_64_bit_integers_do_not_end_the_process():
    # F257
    for value in (-(2**63), -(2**63) + 1, 2**63 - 1, 2**63, 2**64, -(10**30), 10**400):
        assert accepts(schema({"const": value}), str(value))
        assert accepts(schema({"enum": [value, 1]}), "1")
        with pytest.raises(SchemaError) as caught:
            constrainer().guide(schema({"properties": {"a": {"const": value}}}))
        assert caught.value.path == "#/properties/a/const"
    lark = 'start: %json {"const": -9223372036854775808}'
    with pytest.raises(SchemaError, match="beyond"):
        constrainer().guide(Grammar(lark))


@pytest.mark.parametrize("levels", [70, 3000, 100_000])
def test_deep_schemas_and_grammars_are_refused(levels):
    # F257 F312
    array, union = {"type": "integer"}, {"type": "integer"}
    for _ in range(levels):
        array, union = {"type": "array", "items": array}, {"anyOf": [union]}
    brackets = "(" * levels + '"b"' + ")" * levels
    for make in (
        lambda: schema(array),
        lambda: schema(union),
        lambda: Grammar(f"root ::= {brackets}"),
        lambda: Grammar(f"start: {brackets}"),
        lambda: Regex("(" * levels + "a" + ")" * levels),
    ):
        with pytest.raises(SchemaError, match=r"levels deep|nested more|longer than"):
            constrainer().guide(make())


def test_a_schema_that_contains_itself_is_refused():
    loop: dict = {"type": "array"}
    loop["items"] = loop
    shared: list = []
    for _ in range(50):
        shared = [shared, shared]
    for value in (loop, {"enum": shared}):
        with pytest.raises(SchemaError, match=r"levels deep|more than 200,000 values"):
            as_schema(value)


def test_whole_numbers_beyond_two_to_53_are_exact():
    # F250
    big = 9007199254740993
    assert accepts(schema({"const": big}), str(big))
    assert not accepts(schema({"const": big}), str(big - 1))
    ids = [1234567890123456789, 1234567890123456790]
    assert [accepts(schema({"enum": ids}), str(n)) for n in (*ids, ids[0] + 2)] == [
        True,
        True,
        False,
    ]
    assert accepts(schema({"enum": [{"id": ids[0]}]}), '{"id": 1234567890123456789}')
    for low in (big, big + 1, 2**60 + 1):
        bound = schema({"type": "integer", "minimum": low})
        assert not accepts(bound, str(low - 1))
        assert accepts(bound, str(low + 1000))


def test_the_limits_of_int64_and_of_floats_are_taken():
    # F250
    int64 = schema({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1})
    for text, good in (("0", 1), ("-9007199254740993", 1), (str(2**63), 0), (str(-(2**63) - 1), 0)):
        assert accepts(int64, text) == bool(good), text
    for limit in (1e20, 1e300, 10**400):
        bound = schema({"type": "number", "minimum": -limit, "exclusiveMaximum": limit})
        assert accepts(bound, "-12.5")
    with pytest.raises(SchemaError, match=r"numbers from 2\^63 on"):
        constrainer().guide(schema({"type": "integer", "minimum": 2**70}))
    with pytest.raises(SchemaError, match="multipleOf"):
        constrainer().guide(schema({"type": "integer", "multipleOf": 2**31}))


@pytest.mark.parametrize(
    "constraint",
    [
        Grammar('root ::= root "a"'),
        Grammar('root ::= "a" root'),
        Grammar('root ::= "a" | b\nb ::= "c" b'),
        Grammar("root ::= a\na ::= b\nb ::= a"),
        Grammar('start: "a" start'),
        Grammar('start: "a" | b\nb: "c" b'),
        Schema({"$ref": "#"}),
        Schema({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}),
        Schema({"type": "object", "properties": {"me": {"$ref": "#"}}, "required": ["me"]}),
        Schema({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        Schema({"allOf": [{"$ref": "#"}]}),
    ],
)  # fmt: skip
def test_what_has_no_finite_sentence_is_refused_at_once(constraint):
    # F251
    with pytest.raises(SchemaError, match=r"never ends|no finite value"):
        constrainer().guide(constraint)


def test_parts_without_a_finite_value_are_left_out():
    # F251
    loop = {"type": "object", "properties": {"me": {"$ref": "#/$defs/loop"}}, "required": ["me"]}
    parts = {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/loop"}}
    bound = schema({"type": "object", "properties": parts, "$defs": {"loop": loop}})
    assert accepts(bound, '{"a": 1}')
    assert not accepts(bound, '{"b": {')
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert accepts(schema(tree), '{"next": {"next": {}}}')


@pytest.mark.parametrize("pattern", ["^a$", "a", "^(a|b)$", "^a{1}$"])
def test_patterns_that_only_listed_names_match_leave_no_dead_end(pattern):
    # F253
    closed = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "patternProperties": {pattern: {"minimum": 5}},
        "additionalProperties": False,
    }
    for bound in (schema(closed), schema({"type": "array", "items": closed})):
        matcher = constrainer().guide(bound)
        text = '{"a": 7' if bound.schema["type"] == "object" else '[{"a": 7'
        for byte in text.encode():
            assert matcher.allows(byte)
            matcher.accept(byte)
        matcher.accept(ord("}"))
        assert matcher.mask().any()
    assert not accepts(schema(closed), '{"a": 3}')


def calls(job) -> int:
    """How many functions, those of C included, a job calls."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        job()
    finally:
        sys.setprofile(None)
    return counted


def test_thousands_of_texts_compile_in_linear_time():
    # F255 F312
    def work(n: int) -> int:
        listed = {"enum": [f"word number {i * 7919}" for i in range(n)]}
        return calls(lambda: compiler.grammar_of(schema(listed)))

    work(10)
    assert work(4000) < 2.2 * work(2000)
    assert as_schema({"enum": range(20_000)})["enum"] == list(range(20_000))
    assert accepts(schema({"enum": range(20_000)}), "19999")
    assert accepts(schema({"enum": [f"word {i}" for i in range(5000)]}), '"word 4999"')


def test_a_repetition_of_nothing_is_read():
    # F255
    assert accepts(Grammar('root ::= "a" "b"{0} "c"'), "ac")
    assert accepts(Grammar('root ::= "a" ("b"){0,0}'), "a")
    for counts in ("{3,1}", "{1000000}", "{99999999999}"):
        with pytest.raises(SchemaError, match="repeats"):
            constrainer().guide(Grammar(f'root ::= "a"{counts}'))


def test_patterns_that_python_does_not_know_can_be_checked():
    # F258
    letters = {"type": "string", "pattern": r"^\p{L}+$"}
    bound = schema({"oneOf": [letters, {"enum": ["über", "12"]}]})
    assert accepts(bound, '"12"')
    assert not accepts(bound, '"??"')
    assert accepts(schema({"enum": ["über", "12"], "pattern": r"^\p{L}+$"}), '"über"')
    slow = schema({"enum": ["x" * 40, "xxy"], "pattern": "^(x+x+)+y$"})
    assert accepts(slow, '"xxy"')


# ----------------------------------------------------------------------------- what users give


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def test_choices_may_be_one_text_an_enum_class_or_a_literal():
    # F205
    assert kinds.choices("yes|no") == Choices(("yes", "no"))
    assert kinds.choices(" yes | no ") == Choices(("yes", "no"))
    assert kinds.choices(Colour) == Choices(("red", "blue"))
    assert kinds.choices([Colour.RED, "green"]) == Choices(("red", "green"))
    assert kinds.choices(Literal["a", "b"]) == Choices(("a", "b"))
    assert kinds.choices(np.array(["a", "b"])) == Choices(("a", "b"))


def test_a_compiled_pattern_keeps_its_flags():
    # F205
    bound = kinds.regex(re.compile("yes # agreed", re.IGNORECASE | re.VERBOSE))
    assert accepts(bound, "YES")
    assert not accepts(bound, "no")
    assert kinds.regex(re.compile("a|b")) == Regex("a|b")
    assert accepts(kinds.regex(re.compile("a.b", re.DOTALL)), "a\nb")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"choices": 5}, "choices is 5"),
        ({"choices": []}, "choices is empty"),
        ({"choices": "a||b"}, "choices holds ''"),
        ({"choices": [1, 2]}, "choices holds 1"),
        ({"choices": {"a": 1}}, "choices is {'a': 1}"),
        ({"regex": 5}, "regex is 5"),
        ({"regex": re.compile(b"a")}, "pattern of bytes"),
        ({"grammar": 5}, "grammar is 5"),
        ({"grammar": " "}, "grammar is empty"),
        ({"schema": 5}, "5 has no JSON schema"),
        ({"schema": {"enum": {1, 2}}}, "not JSON"),
        ({"schema": {"enum": [float("nan")]}}, "not JSON"),
        ({"regex": "a", "choices": "b"}, "regex and choices cannot be used together"),
    ],
)
def test_what_is_no_constraint_is_an_error_that_names_it(options, said):
    # F205 F312
    with pytest.raises(RequestError, match=re.escape(said)):
        kinds.constraint_of(options)


def test_half_characters_are_mended_as_in_prompts():
    # F206
    assert kinds.choices(["a\ud800"]) == Choices(("a\ufffd",))
    assert kinds.regex("a\ud83d\ude00") == Regex("a\U0001f600")
    for constraint in (
        Choices(("\ud800", "b")), Regex("[\ud800b]"), Grammar('root ::= "\ud800" | "b"'),
        Grammar('start: "\ud800" | "b"'), schema({"enum": ["\ud800", "b"]}),
        schema({"properties": {"\ud800": {"pattern": "\ud800"}}}),
    ):  # fmt: skip
        assert constrainer().guide(constraint).mask().any()


def test_a_new_kind_of_constraint_is_a_class_and_two_rows(monkeypatch):
    from dataclasses import dataclass

    from llm_magic.llm import COMPLETE, build_request

    @dataclass(frozen=True, slots=True)
    class Prefix:
        text: str

    row = kinds.Kind("prefix", lambda value: Prefix(str(value)), lambda _, text: text.upper(), "")
    monkeypatch.setitem(kinds.KINDS, Prefix, row)
    monkeypatch.setitem(
        compiler.GRAMMARS, Prefix, lambda given: compiler.regex_grammar(given.text + "[a-z]*")
    )
    constraint = build_request("x", COMPLETE, {"prefix": "ab"}).constraint
    assert accepts(constraint, "abc")
    assert not accepts(constraint, "b")
    assert kinds.parse(constraint, "abc") == "ABC"
