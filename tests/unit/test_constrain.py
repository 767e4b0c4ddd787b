"""Constraints as masks: what they let through, what they refuse, reasoning before them."""

import itertools
import json
import random

import numpy as np
import pytest
from support import schemas
from support.schemas import CONTROLS, END, REFUSED, TOKENS, allowed, constrainer, walk

from llm_magic.chat.constraints.compiler import Constrainer
from llm_magic.chat.constraints.guides import AfterReasoning, Vocabulary
from llm_magic.chat.constraints.narrow import narrowed
from llm_magic.chat.parsing.router import parse as parse_calls
from llm_magic.chat.parsing.syntax import REASONING, SYNTAXES
from llm_magic.chat.schema import as_schema
from llm_magic.chat.tools.definition import as_tool
from llm_magic.errors import EngineError, SchemaError
from llm_magic.events import Choices, Grammar, Regex, Schema, ToolCall

WORDS = {token: i for i, token in reversed(list(enumerate(TOKENS)))}


def guide(constraint):
    return constrainer().guide(constraint)


def accepts(constraint, text: str | bytes) -> bool:
    """Whether a text, byte by byte, is a whole sentence of a constraint."""
    matcher = guide(constraint)
    for byte in text.encode() if isinstance(text, str) else text:
        if not matcher.allows(byte):
            return False
        matcher.accept(byte)
    return matcher.complete


def driven(constraint, *wishes: bytes, most: int = 3000) -> bytes:
    """What comes out when the first allowed one of these tokens is always taken, else the end,
    else the first allowed token that is neither white space nor a wish."""
    matcher, out = guide(constraint), b""
    ids = [WORDS[w] for w in wishes]
    for _ in range(most):
        known = allowed(matcher.mask())
        token = next((i for i in ids if i in known), None)
        if token is None:
            if END in known:
                return out
            quote = [i for i in known if TOKENS[i] == b'"']
            token = int(quote[0] if quote else next(i for i in known if TOKENS[i].strip()))
        matcher.accept(token)
        out += TOKENS[token]
    raise AssertionError(f"no end within {most} tokens: {out[-80:]!r}")


# ----------------------------------------------------------------------------- errors


# B122
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_used_is_refused_with_its_path(name):
    schema, path = REFUSED[name]
    with pytest.raises(SchemaError) as caught:
        guide(Schema(as_schema(schema)))
    assert caught.value.path == path
    assert path in str(caught.value)


# B122
def test_the_case_as_reported():
    # An escape that some engines do not know must not lose the pattern; an unknown keyword is named
    assert accepts(Schema({"type": "string", "pattern": "^a\\!$"}), '"a!"')
    assert not accepts(Schema({"type": "string", "pattern": "^a\\!$"}), '"ab"')
    with pytest.raises(
        SchemaError, match=r"unknown keyword 'patern' at #/patern; did you mean 'pattern'"
    ):
        guide(Schema({"type": "string", "patern": "a"}))


def test_the_compilers_own_options_in_a_schema_are_ignored():
    lenient = {"type": "string", "x-guidance": {"lenient": True}, "maxLength": 1}
    assert not accepts(Schema(lenient), '"ab"')
    with pytest.raises(SchemaError):
        guide(Schema({"not": {"pattern": "a"}, "x-guidance": {"lenient": True}}))


def test_annotations_bind_nothing_and_are_no_error():
    schema = {"type": "integer", "x-unit": "m", "markdownDescription": "*n*", "jupyter.lab.x": 1}
    assert accepts(Schema(schema), "12")


# B122
@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Regex(""), "empty"),
        (Regex("("), "unclosed group"),
        (Regex(r"(a)\1"), "backreference"),
        (Choices(()), "choices is empty"),
        (Choices(("a", "")), "none empty"),
        (Grammar(" \n"), "empty"),
        (Grammar("start: nowhere"), "nowhere"),
        (Grammar('root ::= "a" x'), "'x', which is missing"),
        (Grammar('rule ::= "a"'), "no rule called root"),
        (Grammar('root ::= "a'), "line 1"),
        (Grammar('root ::= "a"\nroot ::= "b"'), "two rules"),
    ],
)
def test_other_constraints_that_cannot_be_used(constraint, said):
    with pytest.raises(SchemaError, match=said):
        guide(constraint)


def test_a_token_that_was_not_allowed_is_an_error_not_an_empty_answer():
    matcher = guide(Choices(("yes",)))
    with pytest.raises(EngineError, match="constraint failed"):
        matcher.accept(ord("n"))
    with pytest.raises(EngineError):
        matcher.mask()


def test_a_vocabulary_without_an_end_cannot_be_constrained():
    with pytest.raises(SchemaError, match="no end token"):
        Constrainer(Vocabulary([b"a"], frozenset(), frozenset(), lambda text: [0])).guide(
            Regex("a")
        )


# ----------------------------------------------------------------------------- what is let through


def test_regex_binds_the_whole_output():
    assert accepts(Regex(r"\d{4}-\d{2}"), "2024-05")
    assert accepts(Regex(r"^\d{4}$"), "2024")  # anchors at the ends say what is so anyway
    assert accepts(Regex(r"a\$"), "a$")
    assert not accepts(Regex(r"\d{4}"), "20245")
    assert not accepts(Regex(r"\d{4}"), "202")


def test_choices_are_taken_literally():
    options = ("yes", "yes, please", "a.c", "(x)|", "ä😀", "two\nlines")
    assert all(accepts(Choices(options), text) for text in options)
    assert not accepts(Choices(options), "abc")
    assert {walk(guide(Choices(options)), random.Random(i)).decode() for i in range(200)} == set(
        options
    )


LARK = 'start: greeting name\ngreeting: /hello|bye/ " "\nname: /[A-Z][a-z]+/'
GBNF = """
# the example of llama.cpp's readme, in short
root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \\t\\n]*
"""


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (LARK, ["hello Ada", "bye Bob"], ["hello ada", "hi Ada"]),
        (GBNF, ["a=1\n", "(a+2)*b = 3\n"], ["a=\n", "a=1"]),
        ('root ::= "caf\\u00e9" [\\u00e0-\\u00ff]+ "\\x41"', ["caféëA"], ["cafeA"]),
        ('root ::= "a"\n  | "b"\n', ["a", "b"], ["c"]),
        ('root ::= a-b aB{2}\na-b ::= "x" # no clash\naB ::= [^\\n]', ["xyz"], ["xy", "xy\n"]),
        ("root ::= [/\\]^-]+ .", ["/]-^\n"], ["a"]),
        ('root ::= r?\nr ::= "(" r? ")"', ["", "(())"], ["(", "())"]),
    ],
)
def test_grammars_lark_and_gbnf(grammar, good, bad):
    assert all(accepts(Grammar(grammar), text) for text in good)
    assert not any(accepts(Grammar(grammar), text) for text in bad)


def test_listed_properties_are_all_there_are():
    # A model left alone with "any further property" does not come to an end.
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(Schema(schema), '{"a":1}')
    assert not accepts(Schema(schema), '{"a":1,"b":2}')
    assert accepts(Schema({**schema, "additionalProperties": True}), '{"a":1,"b":2}')


def test_numbers_come_to_an_end_and_fit_into_a_float():
    for schema in ({"type": "number"}, {"type": ["number", "null"]}, {}):
        for text in ("-12.75", "0.1", "3.0", "299792458", "0.000000001"):
            assert accepts(Schema(schema), text)
        for text in ("1e999", "1e5", "0.3333333333333", "9" * 20):
            assert not accepts(Schema(schema), text)
    assert accepts(Schema({"type": "integer"}), "9007199254740991")
    assert not accepts(Schema({"type": "integer"}), "9007199254740992")
    assert accepts(Schema({"type": "integer", "minimum": 10**17}), str(10**17 + 1))
    assert accepts(Schema({"type": "number", "minimum": 0, "maximum": 1e-9}), "0.00000000025")


# B124
@pytest.mark.parametrize("space", [b" ", b"\n", b"\t", b"  ", b"\n  "])
def test_white_space_is_bounded(space):
    schema = {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 10},
            "at": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3},
            "deep": {
                "type": "object",
                "properties": {"flag": {"type": "boolean"}},
                "required": ["flag"],
            },
        },
        "required": ["title", "at", "deep"],
    }
    out = driven(Schema(schema), space, most=800).decode()
    assert set(json.loads(out)) == {"title", "at", "deep"}
    runs = [len(list(run)) for blank, run in itertools.groupby(out, str.isspace) if blank]
    assert max(runs) <= 20


STRING = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


# B125
@pytest.mark.parametrize("raw", [b"\n", b"\t", b"\x00", b"\x1f"])
def test_raw_control_characters_are_masked_inside_strings(raw):
    matcher = guide(Schema(STRING))
    for byte in b'{"a":"x':
        matcher.accept(byte)
    assert raw[0] not in allowed(matcher.mask())


# B125
def test_escapes_and_characters_in_two_tokens():
    assert accepts(Schema(STRING), '{"a":"\\u00e9\\n\\"\\\\\\ud83d\\ude00"}')
    assert not accepts(Schema(STRING), '{"a":"\\ud83d"}')  # half a pair
    assert not accepts(Schema(STRING), '{"a":"\\x41"}')
    halves = (WORDS[b"\xf0\x9f"], WORDS[b"\x98\x80"])
    matcher = guide(Schema(STRING))
    for token in (*b'{"a":"', *halves):
        assert matcher.allows(token)
        matcher.accept(token)
    matcher = guide(Schema(STRING))
    for token in (*b'{"a":"', halves[0]):
        matcher.accept(token)
    known = allowed(matcher.mask())  # only bytes that go on with the character
    assert all(0x80 <= TOKENS[i][0] < 0xC0 for i in known)
    assert ord('"') not in known


# B125
def test_round_trip_of_what_a_stubborn_model_writes():
    rng = random.Random(0)
    for wishes in ([b"\\u00", b"e9"], [b"\xf0\x9f", b"\x98\x80"], [b"\\n"], [b"\n", b"\t"]):
        bound = {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2}
        matcher, out = guide(Schema(bound)), b""
        while True:
            known = allowed(matcher.mask()).tolist()
            chosen = [i for i in map(WORDS.get, wishes) if i in known] or known
            token = END if END in known else rng.choice(chosen)
            if token == END:
                break
            matcher.accept(token)
            out += TOKENS[token]
        value = json.loads(out)
        assert json.loads(json.dumps(value)) == value
        assert all(len(text) <= 5 for text in value)


def test_control_tokens_are_never_text():
    matcher = guide(Regex(r"<tool_call>.*"))
    assert len(TOKENS) - 1 not in allowed(matcher.mask())  # the control token of that spelling
    assert ord("<") in allowed(matcher.mask())


def test_the_mask_shares_no_memory_between_requests():
    one, two = guide(Choices(("a",))), guide(Choices(("b",)))
    mask = one.mask()
    two.mask()
    assert allowed(mask).tolist() == [ord("a")]


# ----------------------------------------------------------------------------- narrowing


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        # oneOf: exactly one
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"a"', "1"], ["true"]),
        (
            {
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            },
            ['{"a":1}', '{"b":1}'],
            ['{"a":1,"b":1}', "{}"],
        ),
        # if, then, else
        (
            schemas.BY_HAND["conditional"],
            ['{"kind":"tcp","port":1}', '{"kind":"unix","path":"x"}'],
            ['{"kind":"tcp"}', '{"kind":"unix","port":1}'],
        ),
        # not
        (
            schemas.BY_HAND["excluded name"],
            ['"roo"', '"rooty"', '"x"', '""'],
            ['"root"', '"admin"'],
        ),
        ({"not": {"type": ["string", "null"]}}, ["1", "true", "[]"], ['"a"', "null"]),
        ({"type": "integer", "not": {"minimum": 5}}, ["4"], ["5"]),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "not": {"required": ["a"]},
            },
            ["{}"],
            ['{"a":1}'],
        ),
        # dependencies
        (
            schemas.BY_HAND["dependent"],
            ["{}", '{"password":"b"}', '{"user":"a","password":"b"}'],
            ['{"user":"a"}'],
        ),
        # names and sizes
        (schemas.BY_HAND["names"], ['{"ab":1}', "{}"], ['{"A":1}']),
        (schemas.BY_HAND["sized"], ['{"a":"","b":""}'], ['{"a":""}', '{"a":"","b":"","c":""}']),
        # items
        (schemas.BY_HAND["modes"], ['["w","r"]', '["x"]'], ['["r","r"]', "[]"]),
        (schemas.BY_HAND["contains"], ["[100]", "[250,1]"], ["[1]", "[]"]),
        (schemas.BY_HAND["tuple"], ['["a",1]'], ['["a"]', '["a",1,2]']),
        # what is inherited is evaluated
        (
            schemas.BY_HAND["inherited"],
            ['{"a":1}', '{"a":1,"b":"x"}'],
            ['{"b":"x"}', '{"a":1,"c":2}'],
        ),
        # enumerations are filtered by their neighbours
        ({"type": "string", "enum": ["a", "bcd", 3], "maxLength": 1}, ['"a"'], ['"bcd"', "3"]),
        # old drafts
        (schemas.BY_HAND["old exclusive"], ["0.5", "9"], ["0", "10"]),
        ({"type": "string", "format": "no-such-format"}, ['"x"'], ["1"]),
    ],
)
def test_keywords_that_the_compiler_lacks(schema, good, bad):
    assert [t for t in good if not accepts(Schema(schema), t)] == []
    assert [t for t in bad if accepts(Schema(schema), t)] == []


def test_every_part_knows_where_it_came_from():
    out = narrowed(
        {"type": "array", "items": {"type": "object", "properties": {"a/b": {"type": "string"}}}}
    )
    assert out["items"]["properties"]["a/b"]["$comment"] == "#/items/properties/a~1b"


# ----------------------------------------------------------------------------- reasoning first

THINK, OPEN, CLOSE = REASONING["think"], WORDS[b"<think>"], WORDS[b"</think>"]


def late(constraint, opened=False, tags=THINK) -> AfterReasoning:
    return constrainer().late(guide(constraint), tags, opened)


def feed(bound: AfterReasoning, *tokens: int | bytes) -> None:
    for token in tokens:
        for id_ in [token] if isinstance(token, int) else list(token):
            assert id_ in allowed(bound.mask()), (token, id_)
            bound.accept(id_)


def test_reasoning_is_free_and_the_answer_is_bound():
    bound = late(Choices(("yes", "no")))
    feed(bound, OPEN, b"Well... <b> }", CLOSE, b"\n\n", b"yes")
    assert allowed(bound.mask()).tolist() == [END]
    assert bound.complete


def test_without_the_opening_tag_the_answer_is_bound_from_the_start():
    bound = late(Choices(("yes", "no")))
    known = allowed(bound.mask())
    assert {ord("y"), ord("n"), ord("<"), OPEN} == set(known.tolist())
    feed(bound, b"no")
    assert allowed(bound.mask()).tolist() == [END]


def test_the_tags_may_come_in_pieces():
    bound = late(Regex("[0-9]+"))
    feed(bound, b"<th", b"ink>", b"so </th at </thi", b"nk>", b"\n", b"42")
    assert bound.complete


def test_reasoning_that_the_prompt_has_opened():
    bound = late(Regex("[0-9]+"), opened=True)
    feed(bound, b"hm", CLOSE, b"7")
    assert bound.complete


def test_reasoning_cannot_end_the_answer_nor_hide_part_of_it():
    tokens = [*TOKENS, b"</think>{", b"nk>{", b"nk>\n", b">1"]
    own = Constrainer(
        Vocabulary(tokens, CONTROLS, frozenset({END}), lambda text: list(text.encode()))
    )
    bound = own.late(own.guide(Regex("[0-9]+")), THINK, True)

    def bits():
        return np.unpackbits(bound.mask().view(np.uint8), bitorder="little")

    n = len(TOKENS)
    assert bits()[[END, n, n + 1, n + 2, n + 3]].tolist() == [0, 0, 1, 1, 1]
    for byte in b"a</thi":
        bound.accept(byte)
    assert bits()[[END, n, n + 1, n + 2, n + 3]].tolist() == [0, 0, 0, 1, 1]
    bound.accept(n + 2)  # closes, with white space behind: the answer starts
    assert not bound.complete
    assert bits()[ord("5")]
    assert not bits()[ord("a")]


def test_white_space_behind_the_reasoning_is_bounded():
    bound = late(Regex("[0-9]"), opened=True)
    feed(bound, CLOSE, b"\n\n\n")
    assert ord("\n") not in allowed(bound.mask())


def test_in_channels_the_final_message_is_bound():
    bound = late(Choices(("yes",)), opened=True, tags=REASONING["gpt-oss"])
    feed(bound, b"thinking<|end|><|start|>assistant<|channel|>final<|message|>", b"yes")
    assert bound.complete


# ----------------------------------------------------------------------------- calls


def weather(city: str, days: int = 3, tags: list[str] | None = None) -> str:
    """The weather."""
    return ""


def now() -> str:
    """The time."""
    return ""


TOOLS = tuple(as_tool(f) for f in (weather, now))


@pytest.mark.parametrize("name", SYNTAXES)
def test_calls_in_each_syntax_are_read_back_and_valid(name):
    specs = tuple(tool.spec for tool in TOOLS)
    rng, seen = random.Random(name), 0
    for _ in range(12):
        matcher, syntax = constrainer().call_guide(specs, SYNTAXES[name])
        out = walk(matcher, rng, most=600)
        if out is None:
            continue
        parts = parse_calls(out.decode(), syntax, specs)
        assert [type(part) for part in parts] == [ToolCall], out
        tool = TOOLS[0] if parts[0].name == "weather" else TOOLS[1]
        assert tool.problems(json.loads(parts[0].arguments)) == []
        seen += 1
    assert seen >= 3


def test_new_and_old_forms_follow_the_template():
    specs = (TOOLS[1].spec,)
    for template, start in (
        ("[TOOL_CALLS]", b'[TOOL_CALLS][{"name'),
        ("[ARGS]", b"[TOOL_CALLS]now[ARGS]{"),
    ):
        matcher, _ = constrainer().call_guide(specs, SYNTAXES["mistral"], template)
        assert walk(matcher, random.Random(0)).startswith(start)


def test_tags_that_are_control_tokens_are_written_as_such():
    control = len(TOKENS) - 1
    matcher, _ = constrainer().call_guide((TOOLS[1].spec,), SYNTAXES["hermes"])
    assert allowed(matcher.mask()).tolist() == [control]


def test_an_answer_or_a_call():
    specs = tuple(tool.spec for tool in TOOLS)
    answers = (
        (Schema({"type": "integer"}), b"7"),
        (Choices(("yes",)), b"yes"),
        (Regex("a/b"), b"a/b"),
    )
    for answer, text in answers:
        matcher, _ = constrainer().call_guide(specs, SYNTAXES["hermes"], answer=answer)
        assert {len(TOKENS) - 1, text[0]} <= set(allowed(matcher.mask()).tolist())
        for byte in text:
            matcher.accept(byte)
        assert matcher.complete


# ----------------------------------------------------------------------------- no calls


def free_of_calls(name: str = "hermes", tags=None):
    return constrainer().no_calls(SYNTAXES[name], tags)


def forbidden(guide) -> set[bytes]:
    mask = guide.mask()
    return (
        set() if mask is None else {TOKENS[i] for i in set(range(len(TOKENS))) - set(allowed(mask))}
    )


def test_an_answer_that_must_not_be_a_call_cannot_start_like_one():
    # Hermes: <tool_call> (here also a control token), or bare JSON.
    first = forbidden(free_of_calls())
    assert first >= {b"<", b"`", b"{", b'{"', b"<tool_call>"}
    assert not first & {b"<end>", b"a", b" ", b"}"}  # an empty answer is no call
    guide = free_of_calls()
    guide.accept(ord("\n"))  # blank lines start nothing
    assert b"{" in forbidden(guide)
    guide.accept(ord("A"))
    assert forbidden(guide) == {b"<tool_call>"}
    for byte in b" {<b>":  # text like any other
        guide.accept(byte)
    assert forbidden(guide) == {b"<tool_call>"}


def test_an_answer_that_must_not_be_a_call_cannot_come_to_one():
    guide = free_of_calls()
    for byte in b"See <tool_call":
        guide.accept(byte)
    assert forbidden(guide) == {b">", b"<tool_call>"}
    guide.accept(ord("s"))
    assert forbidden(guide) == {b"<tool_call>"}


def test_behind_reasoning_the_answer_starts_anew():
    guide = free_of_calls(tags=THINK)
    assert b"<think>" not in forbidden(guide)  # though "<" may announce a call
    assert b"<tool_call>" in forbidden(guide)
    for token in (OPEN, *b"I could {", CLOSE):
        guide.accept(token)
    assert b"{" in forbidden(guide)
