"""Values inside tool-call markup: what a model writes as a value comes back as that value.

`LLM_MAGIC_EXAMPLES=5000` runs the property tests for longer.
"""

import itertools
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chunkings import Outcome, all_chunkings, route, token

from llm_magic.chat.parsing.router import parse
from llm_magic.chat.parsing.syntax import REASONING, SYNTAXES
from llm_magic.events import Delta, ToolSpec

EXAMPLES = int(os.environ.get("LLM_MAGIC_EXAMPLES", "60"))
WRITE = ToolSpec(
    "write",
    "",
    {
        "type": "object",
        "properties": {
            "body": {"type": "string"},
            "path": {"type": "string"},
            "n": {"type": "integer"},
            "items": {"type": "array"},
        },
    },
)


def run(text: str, syntax: str, **options) -> Outcome:
    return all_chunkings(text, syntax=SYNTAXES[syntax], tools=(WRITE,), **options)


def xml(**values: str) -> str:
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function=write>\n{inner}</function>\n</tool_call>"


def glm(**values: str) -> str:
    pairs = (f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items())
    return f"<tool_call>write\n{''.join(pairs)}</tool_call>"


def minimax(**values: str) -> str:
    inner = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
    return f'<minimax:tool_call>\n<invoke name="write">\n{inner}</invoke>\n</minimax:tool_call>'


def dsml(**values: str) -> str:
    inner = "".join(
        f'<｜DSML｜parameter name="{k}" string="true">{v}</｜DSML｜parameter>\n'
        for k, v in values.items()
    )
    return (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="write">\n{inner}</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>"
    )


def gemma4(**values: str) -> str:
    pairs = ",".join(f'{k}:<|"|>{v}<|"|>' for k, v in values.items())
    return f"<|tool_call>call:write{{{pairs}}}<tool_call|>"


def functiongemma(**values: str) -> str:
    pairs = ",".join(f"{k}:<escape>{v}<escape>" for k, v in values.items())
    return f"<start_function_call>call:write{{{pairs}}}<end_function_call>"


def as_json(**values: str) -> str:
    call = json.dumps({"name": "write", "arguments": values}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def mistral(**values: str) -> str:
    return f"[TOOL_CALLS][{json.dumps({'name': 'write', 'arguments': values})}]"


def gemma(**values: str) -> str:
    return f"```tool_code\nwrite({', '.join(f'{k}={v!r}' for k, v in values.items())})\n```"


WRITERS = {
    "xml": xml,
    "glm": glm,
    "minimax": minimax,
    "dsml": dsml,
    "gemma4": gemma4,
    "functiongemma": functiongemma,
    "hermes": as_json,
    "mistral": mistral,
    "gemma": gemma,
}

# ----------------------------------------------------------------------------- F240


@pytest.mark.parametrize(
    "value",
    [
        "<a></parameter></a>",
        "close </function> tag",
        "Use <parameter=path>p here",
        "</tool_call> is a tag",
        "x</parameter><parameter=body>y",
    ],
)
def test_tags_inside_a_value_belong_to_the_value(value):
    """F240: xml."""
    assert run(xml(body=value, path="p"), "xml").values == [("write", {"body": value, "path": "p"})]


@pytest.mark.parametrize(
    ("syntax", "value"),
    [
        ("glm", "a </arg_value> b"),
        ("glm", "a <arg_key>path</arg_key> b"),
        ("minimax", "a </parameter> b"),
        ("minimax", "a </invoke> b"),
        ("dsml", "a </｜DSML｜parameter> b"),
        ("gemma4", 'a <|"|> b'),
        ("functiongemma", "a <escape> b"),
    ],
)
def test_tags_inside_a_value_belong_to_the_value_in_other_markup(syntax, value):
    """F240."""
    text = WRITERS[syntax](body=value, path="p")
    assert run(text, syntax).values == [("write", {"body": value, "path": "p"})]


PIECES = st.sampled_from([
    "</parameter>", "<parameter=path>", "</arg_value>", "<arg_key>", "</invoke>", "<escape>",
    '<|"|>', "</｜DSML｜parameter>", "\\", '"', "'", "{", "}", "[", "]", "`", "<", ">", "é", "\t",
])  # fmt: skip
# Each piece of markup is followed by a word: the whole end of a call, one tag after the other, is
# the end of the call wherever it stands.
VALUES = st.lists(st.tuples(PIECES, st.text("ab1 \n", min_size=1, max_size=4))).map(
    lambda parts: "v" + "".join(f"{piece}w{text}" for piece, text in parts) + "v"
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data(), VALUES, VALUES, st.sampled_from(sorted(WRITERS)))
def test_a_value_comes_back_from_every_markup_under_every_cut(data, body, path, syntax):
    """F240, F246."""
    text = WRITERS[syntax](body=body, path=path)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))
    edges = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges) if b > a]
    outcome = route(pieces, syntax=SYNTAXES[syntax], tools=(WRITE,))
    assert outcome.values == [("write", {"body": body, "path": path})]
    assert outcome.content == ""


TAGS = sorted(
    {tag for row in SYNTAXES.values() for tag in row.open}
    | {"</tool_call>", "</parameter>", "<parameter=body>", "</function>", "<arg_key>", "[", "]"}
)
NOISE = st.lists(
    st.one_of(st.sampled_from(TAGS), st.text('ab{}[]":, \n<>', max_size=8)), max_size=8
).map("".join)


@settings(max_examples=EXAMPLES, deadline=None)
@given(NOISE, NOISE, st.sampled_from(sorted(SYNTAXES)))
def test_no_text_is_lost(before, behind, syntax):
    """Words outside of markup are in the answer or in the arguments of a call."""
    text = f"first {before}middle{behind} last"
    parts = parse(text, SYNTAXES[syntax], (WRITE,))
    out = "".join(p.text if isinstance(p, Delta) else f"{p.name} {p.arguments}" for p in parts)
    for word in ("first", "middle", "last"):
        assert word in out
    if all(isinstance(p, Delta) for p in parts):
        assert out == text


# ----------------------------------------------------------------------------- F242..F246


@pytest.mark.parametrize("syntax", ["xml", "hermes"])
def test_a_call_in_reasoning_that_never_closes_is_a_call(syntax):
    """F242."""
    text = "<think>\nI will write.\n" + WRITERS[syntax](body="b")
    outcome = run(text, syntax, reasoning=REASONING["think"])
    assert outcome.values == [("write", {"body": "b"})]
    assert outcome.reasoning == "I will write."
    assert outcome.finish == "tool_calls"
    assert outcome.late == (True,)
    closed = run(
        text.replace("write.\n", "write.\n</think>\n"), syntax, reasoning=REASONING["think"]
    )
    assert (closed.values, closed.late) == (outcome.values, (False,))


@pytest.mark.parametrize("rest", ["", " here.", ' {"name": 3} and <tool_call> again', "\n{}\n"])
def test_reasoning_that_only_names_the_tag_stays_reasoning(rest):
    """F242."""
    outcome = run("<think>I use <tool_call>" + rest, "hermes", reasoning=REASONING["think"])
    assert outcome.calls == ()
    assert outcome.content == ""
    assert outcome.reasoning == "I use <tool_call>" + rest


def test_a_call_in_reasoning_that_closes_is_reasoning():
    """F242."""
    draft = as_json(body="draft")
    text = f"<think>\nPerhaps {draft} then.\n</think>\nNo."
    outcome = run(text, "hermes", reasoning=REASONING["think"])
    assert outcome.calls == ()
    assert outcome.reasoning == f"Perhaps {draft} then."
    assert outcome.content == "No."


@pytest.mark.parametrize(
    ("syntax", "text", "values"),
    [
        ("xml", "<tool_call>\n<function=write>\n<parameter=n>\n2\n</tool_call>", [{"n": 2}]),
        (
            "xml",
            "<tool_call>\n<function=write>\n<parameter=n>\n2\n<parameter=body>\nb\n</tool_call>",
            [{"n": 2, "body": "b"}],
        ),
        (
            "glm",
            "<tool_call>write\n<arg_key>body</arg_key>\n<arg_value>b\n</tool_call>",
            [{"body": "b"}],
        ),
        ("mistral", '[TOOL_CALLS][{"name": "write", "arguments": {"n": 1}}', [{"n": 1}]),
        (
            "mistral",
            (
                '[TOOL_CALLS][{"name": "write", "arguments": {"n": 1}}]'
                '[{"name": "write", "arguments": {"n": 2}}]'
            ),
            [{"n": 1}, {"n": 2}],
        ),
        (
            "hermes",
            '<tool_call>\n{"name": "write", "arguments": {"n": 1}}}\n</tool_call>',
            [{"n": 1}],
        ),
        # F245
        ("granite", '<tool_call>[{"name": "write", "arguments": {"n": 1}}]', [{"n": 1}]),
        ("granite", 'functools[{"name": "write", "arguments": {"n": 1}}]', [{"n": 1}]),
        (
            "deepseek",
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n```\n"
                '{"n": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            ),
            [{"n": 1}],
        ),
        (
            "deepseek",
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>write<｜tool▁sep｜><｜tool▁call▁end｜>"
                "<｜tool▁calls▁end｜>"
            ),
            [{}],
        ),
        ("llama3", '<function=write>{"n": 1}</function>', [{"n": 1}]),
        (
            "lfm2",
            '<|tool_call_start|>[{"name": "write", "arguments": {"n": 1}}]<|tool_call_end|>',
            [{"n": 1}],
        ),
        # F246
        (
            "gemma4",
            "<|tool_call>call:write{path:12345,n:3}<tool_call|>",
            [{"path": "12345", "n": 3}],
        ),
        ("xml", xml(items="['a', True, None]"), [{"items": ["a", True, None]}]),
        ("glm", glm(items="('a',)"), [{"items": ["a"]}]),
    ],
)
def test_calls_as_real_models_write_them(syntax, text, values):
    """F243, F245, F246."""
    outcome = run(text, syntax)
    assert outcome.values == [("write", arguments) for arguments in values]
    assert outcome.content == ""


def test_control_tokens_behind_a_bare_call_are_no_text():
    """F244."""
    controls = {50: "<|/tool_call|>", 51: "<|end|>"}
    pieces = [
        token('[{"name": "write", "arguments": {"n": 1}}]'),
        token("<|/tool_call|>", 50),
        token("<|end|>", 51),
    ]
    for syntax in ("granite", "json"):
        outcome = route(pieces, syntax=SYNTAXES[syntax], tools=(WRITE,), controls=controls)
        assert outcome.values == [("write", {"n": 1})]
        assert outcome.content == ""


def test_blank_lines_before_markup_cost_the_same_each(monkeypatch):
    """F248: the work is counted, not timed."""
    from llm_magic.chat.parsing import router

    seen = []
    tail = router.blank_tail
    monkeypatch.setattr(router, "blank_tail", lambda text: seen.append(len(text)) or tail(text))
    for n in (1_000, 4_000):
        seen.clear()
        pieces = ["text", *["\n"] * n, as_json(body="b")]
        outcome = route(pieces, syntax=SYNTAXES["hermes"], tools=(WRITE,))
        assert outcome.values == [("write", {"body": "b"})]
        assert max(seen) <= router.MAX_HELD + 200
