"""Tool-call syntaxes, detection, values: every text over all chunkings."""

import json
import re

import pytest
from support.chunkings import all_chunkings, events_of, token

from llm_magic.chat.parsing.markup.values import coerce, loads, unwrapped
from llm_magic.chat.parsing.router import Router, parse
from llm_magic.chat.parsing.syntax import (
    REASONING,
    SYNTAXES,
    call_arguments,
    detect_reasoning,
    detect_syntax,
    new_call_id,
    write_call,
)
from llm_magic.events import Delta, ToolCall, ToolSpec

TOOLS = (
    ToolSpec(
        "f",
        "",
        {
            "type": "object",
            "properties": {
                "day": {"type": "integer"},
                "n": {"type": "integer"},
                "s": {"type": "string"},
                "b": {"type": "boolean"},
                "o": {"type": "object"},
                "code": {"type": "string"},
            },
        },
    ),
    ToolSpec("g"),
)


def run(text, syntax="hermes", reasoning=None, **options):
    options.setdefault("tools", TOOLS)
    return all_chunkings(text, syntax=SYNTAXES[syntax], reasoning=reasoning, **options)


def calls(text, syntax="hermes", **options):
    outcome = run(text, syntax, **options)
    assert outcome.content == ""
    assert outcome.finish == "tool_calls"
    return outcome.values


# ----------------------------------------------------------------------------- one row a syntax

ROWS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"s": "a"}}\n</tool_call>',
    "xml": "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>",
    "llama3": '<|python_tag|>{"name": "f", "parameters": {"s": "a"}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"s": "a"}}]',
    "gemma": "```tool_code\nf(s='a')\n```",
    "functiongemma": "<start_function_call>call:f{s:<escape>a<escape>}<end_function_call>",
    "gemma4": '<|tool_call>call:f{s:<|"|>a<|"|>}<tool_call|>',
    "glm": "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n</tool_call>",
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        '<|tool_call_argument_begin|>{"s": "a"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "deepseek": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"s": "a"}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>"
    ),
    "dsml": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="s" string="true">a</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">a</parameter>\n</invoke>\n'
        "</minimax:tool_call>"
    ),
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"s": "a"}}]',
    "gpt-oss": (
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"s": "a"}<|call|>'
    ),
    "lfm2": '<|tool_call_start|>[f(s="a")]<|tool_call_end|>',
    "pythonic": '[f(s="a")]',
    "json": '{"name": "f", "arguments": {"s": "a"}}',
}
INLINE = sorted(set(ROWS) - {"pythonic", "json", "gpt-oss"})  # may stand behind other text


def test_every_syntax_has_a_row():
    assert set(ROWS) == set(SYNTAXES)


# LAI-6, LAI-9, LAI-10
@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_call_in_each_syntax(name):
    assert calls(ROWS[name], name) == [("f", {"s": "a"})]


# LC-62, TG-50, B049
@pytest.mark.parametrize("name", INLINE)
def test_text_before_between_and_after(name):
    text = f"One.\n\n{ROWS[name]}\n{ROWS[name]}\n\nTwo {ROWS[name]} three"
    outcome = run(text, name)
    assert outcome.parts == (
        ("answer", "One."),
        ("call", "f"),
        ("call", "f"),
        ("answer", "\nTwo "),
        ("call", "f"),
        ("answer", " three"),
    )


# TG-40
@pytest.mark.parametrize("name", sorted(ROWS))
def test_without_tools_everything_is_content(name):
    if name != "gpt-oss":  # its channels are no tool markup
        outcome = run(ROWS[name], name, tools=())
        assert outcome.content == ROWS[name]
        assert outcome.finish == "stop"


# TG-40
@pytest.mark.parametrize("name", sorted(ROWS))
def test_calls_without_tools_is_an_option(name):
    if name not in ("pythonic",):  # untagged Python counts for offered tools only
        outcome = run(ROWS[name], name, tools=(), calls_without_tools=True)
        assert outcome.values == [("f", {"s": "a"})]


# TG-48
@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("reason", ["length", "interrupted", "cancelled"])
def test_calls_change_the_reason_stop_and_no_other(name, reason):
    outcome = run(ROWS[name], name, reason=reason)
    assert outcome.finish == reason
    assert len(outcome.calls) == 1


# B046, TG-46
@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_call_cut_anywhere_loses_nothing(name):
    row = ROWS[name]
    for end in range(1, len(row)):
        outcome = run(row[:end], name, reason="length")
        if not outcome.calls:
            assert row[:end] in (outcome.content, outcome.content + outcome.reasoning)
        else:
            assert outcome.values in ([("f", {"s": "a"})], [("f", {})])
            assert outcome.content == ""


# ----------------------------------------------------------------------------- Hermes


# LAI-52, LAI-55
def test_several_calls_and_one_that_fails():
    text = (
        '<tool_call>{"name": "f", "arguments": {"s": "ü"}}</tool_call>'
        "<tool_call>[1]</tool_call>"
        '<tool_call>{"arguments": {}}</tool_call>'
        '<tool_call>{"name": "g"}</tool_call>'
        '<tool_call>{"name": "g", "arguments": "{\\"s\\": 1}"}</tool_call>'
    )
    outcome = run(text)
    assert outcome.calls == (("f", '{"s": "ü"}'), ("g", "{}"), ("g", '{"s": 1}'))
    # LAI-54, TG-49: what fails is content, tags included
    assert outcome.content == '<tool_call>[1]</tool_call><tool_call>{"arguments": {}}</tool_call>'


# LAI-53
def test_reasoning_and_content_around_a_call():
    text = "<think>a</think>\n\nText\n" + ROWS["hermes"] + "\n"
    outcome = run(text, reasoning=REASONING["think"])
    assert (outcome.reasoning, outcome.content) == ("a", "Text")
    assert len(outcome.calls) == 1


# TG-43, TG-44
@pytest.mark.parametrize(
    ("arguments", "raw"),
    [
        ("", "{}"),
        (', "arguments": {}', "{}"),
        (', "arguments": null', "{}"),
        (', "arguments": ""', "{}"),
        (', "arguments": { "a" : [1 , 2] }', '{ "a" : [1 , 2] }'),
        (', "parameters": {"a": "\\u00e9"}', '{"a": "\\u00e9"}'),
        (', "arguments": "{\\"a\\": \\"b\\"}"', '{"a": "b"}'),
        (', "arguments": "no json"', "no json"),
        (', "arguments": [1]', "[1]"),
        (', "id": "x1", "type": "function", "index": 0, "arguments": {"a": 1}', '{"a": 1}'),
    ],
)
def test_arguments_are_the_raw_text(arguments, raw):
    text = f'<tool_call>{{"name": "f"{arguments}}}</tool_call>'
    assert run(text).calls == (("f", raw),)


def test_the_name_may_come_last_and_the_call_may_be_nested():
    assert calls('<tool_call>{"arguments": {"s": 1}, "name": "f"}</tool_call>') == [("f", {"s": 1})]
    nested = '{"type": "function", "function": {"name": "f", "arguments": {"s": 1}}}'
    assert calls(f"<tool_call>{nested}</tool_call>") == [("f", {"s": 1})]


# B043
def test_closing_braces_behind_numbers_and_objects():
    text = '<tool_call>\n{"name":"f","arguments":{"n":7,"o":{"k":[true,null]}}}\n</tool_call>'
    assert calls(text) == [("f", {"n": 7, "o": {"k": [True, None]}})]


# B044
def test_arguments_are_what_the_model_wrote():
    raw = '{"items": [{"k":1},{"k":2}]}'
    assert run(f'<tool_call>{{"name":"f","arguments": {raw}}}').calls == (("f", raw),)


# B046, TG-46, TG-49
@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": }}</tool_call> done',
        '<tool_call>{"name":"f"',
        '<tool_call>{"name":"f","arguments":{"a": 1',
        '<tool_call>{"name":"f","arguments":{"a": 1}} oops'[:-6],
        "<tool_call>",
        "<tool_call>\n\n",
        "<tool_call> is a tag",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": "f", "name": "g"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}, "arguments": {"x": 1}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": \'x\'}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\\x"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100 + "]" * 100 + "}</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=f><parameter=a>1</function",
        "a\n\n<tool_call>x\n\nb",
    ],
)
def test_what_is_no_call_is_content_to_the_letter(text):
    if text.endswith('{"a": 1}}'):
        assert len(run(text).calls) == 1  # TG-45: only the tag is missing
        return
    for name in ("hermes", "xml"):
        outcome = run(text, name)
        assert outcome.content == text
        assert outcome.calls == ()
        assert outcome.finish == "stop"


# TG-46
def test_a_failed_call_is_logged(caplog):
    with caplog.at_level("INFO", logger="llm_magic"):
        run('<tool_call>{"name": 5}</tool_call>')
    assert "no tool call" in caplog.text
    assert '"name": ' in caplog.text


# TG-45, TG-50
def test_an_unclosed_call_behind_a_closed_one():
    text = ROWS["hermes"] + '\n<tool_call>{"name": "g", "arguments": {}}'
    assert calls(text, reason="stop") == [("f", {"s": "a"}), ("g", {})]
    broken = '<tool_call>{"name": "f"\n<tool_call>{"name": "g", "arguments": {}}'
    outcome = run(broken)
    assert outcome.content == '<tool_call>{"name": "f"\n'
    assert outcome.values == [("g", {})]


# TG-50a
def test_failed_calls_keep_their_place():
    text = f"A <tool_call>oops</tool_call> B {ROWS['hermes']} C <tool_call>{{}}</tool_call>"
    assert run(text).parts == (
        ("answer", "A <tool_call>oops</tool_call> B "),
        ("call", "f"),
        ("answer", " C <tool_call>{}</tool_call>"),
    )


# B047
def test_text_behind_an_untagged_call():
    text = '{"name":"clock","arguments":{"tz":"UTC"}} Checking now.'
    for name in ("json", "hermes", "llama3"):
        outcome = run(text, name)
        assert outcome.values == [("clock", {"tz": "UTC"})]
        assert outcome.content == " Checking now."  # spaces stay, blank lines beside markup go


# B049
def test_parallel_calls():
    text = f"{ROWS['hermes']}\n{ROWS['hermes']}\n"
    outcome = run(text)
    assert len(outcome.calls) == 2
    assert outcome.content == ""


# B055
def test_a_call_without_its_opening_tag_is_content():
    text = 'okay\n{"name":"tally","arguments":{"s":"x"}}\n</tool_call>'
    outcome = run(text)
    assert outcome.content == text
    assert outcome.calls == ()


# B055
def test_at_the_start_of_the_answer_it_is_a_call():
    assert calls('\n{"name":"tally","arguments":{"s":"x"}}\n</tool_call>') == [
        ("tally", {"s": "x"})
    ]


# B056
def test_text_between_reasoning_and_the_first_call():
    text = (
        '<think>t</think>\nI will look that up.\n<tool_call>{"name":"f","arguments":{}}</tool_call>'
    )
    outcome = run(text, reasoning=REASONING["think"])
    assert (outcome.reasoning, outcome.content) == ("t", "I will look that up.")
    assert outcome.values == [("f", {})]


# B061
def test_escaped_surrogates():
    text = '<tool_call>{"name":"f","arguments":{"t":"\\ud83d\\ude00"}}</tool_call>'
    assert calls(text) == [("f", {"t": "\U0001f600"})]
    lone = '<tool_call>{"name":"f","arguments":{"t":"\\ud83d"}}</tool_call>'
    assert calls(lone) == [("f", {"t": "\ufffd"})]
    inner = '<tool_call>{"name":"f\\ud83d","arguments":"{\\"t\\": \\"\\ud83d\\"}"}</tool_call>'
    assert calls(inner) == [("f\ufffd", {"t": "\ufffd"})]


def test_strings_hold_braces_quotes_tags_and_raw_line_breaks():
    value = 'a}b{"c"\\ </tool_call> <tool_call> [TOOL_CALLS] ü 😀'
    text = f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'s': value}})}</tool_call>"
    assert calls(text) == [("f", {"s": value})]
    assert calls('<tool_call>{"name":"f","arguments":{"s":"a\n\tb"}}') == [("f", {"s": "a\n\tb"})]


def test_several_objects_or_a_list_in_one_tag():
    one, two = '{"name":"f","arguments":{}}', '{"name":"g","arguments":{}}'
    for body in (f"{one}\n{two}", f"{one},{two}", f"[{one}, {two}]"):
        assert calls(f"<tool_call>{body}</tool_call>") == [("f", {}), ("g", {})]


# ----------------------------------------------------------------------------- XML


# B058, TG-43
def test_one_line_break_at_each_end_and_nothing_else():
    text = (
        "<tool_call>\n<function=f>\n<parameter=code>\n    x = 1\n\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    assert calls(text, "xml") == [("f", {"code": "    x = 1\n"})]
    assert unwrapped("\r\n a \r\n") == " a "
    assert unwrapped("a") == "a"


# B059, LAI-56
@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("day", "next Friday", "next Friday"),
        ("n", "3", 3),
        ("n", " 3 ", 3),
        ("n", "3.5", "3.5"),
        ("n", "true", "true"),
        ("s", "3", "3"),
        ("s", "null", "null"),
        ("b", "true", True),
        ("b", "False", False),
        ("o", "{'a': 1}", {"a": 1}),  # F246: a Python literal
        ("o", '{"a": 1}', {"a": 1}),
        ("new", "[1, 2]", [1, 2]),
        ("new", '"x"', "x"),
        ("new", "NaN", "NaN"),
        ("new", "1e999", "1e999"),
        ("new", "free text", "free text"),
    ],
)
def test_values_follow_the_schema(key, value, expected):
    text = f"<tool_call><function=f><parameter={key}>{value}</parameter></function></tool_call>"
    assert calls(text, "xml") == [("f", {key: expected})]


# B059
@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("null", {"type": ["string", "null"]}, None),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"enum": [1, 2]}, 2),
        ("2.5", {"type": "number"}, 2.5),
        ("2", {"type": "number"}, 2),
        ("[1]", {"type": "array"}, [1]),
        ("[1]", {"type": "object"}, "[1]"),
        ("x", {"$ref": "#/$defs/X"}, "x"),
        ("x", True, "x"),
        ("x", {"type": 3}, "x"),
    ],
)
def test_coercion(value, schema, expected):
    result = coerce(value, schema)
    assert result == expected
    assert type(result) is type(expected)


# TG-43, TG-45
def test_closing_tags_are_optional():
    for end in ("", "</function>", "\n</tool_call>", "\n</function>\n</tool_call>"):
        text = f"<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>{end}"
        assert calls(text, "xml") == [("f", {"n": 3})]
    text = "<function=f>\n<parameter=n>3\n<parameter=s>x\n</function>"
    assert calls(text, "xml") == [("f", {"n": 3, "s": "x"})]
    assert calls("<function=g></function>\n<function=f>\n</function></tool_call>", "xml") == [
        ("g", {}),
        ("f", {}),
    ]


def test_xml_cut_inside_a_value_is_no_call():
    text = "<tool_call><function=f><parameter=s>rm -rf /ho"
    assert run(text, "xml", reason="length").content == text


def test_xml_values_may_hold_markup():
    value = "a < b && c > d </p> <b>\n{x}"
    text = f"<tool_call><function=f><parameter=s>\n{value}\n</parameter></function></tool_call>"
    assert calls(text, "xml") == [("f", {"s": value})]


# ----------------------------------------------------------------------------- Llama 3


# B053, LAI-57
@pytest.mark.parametrize("separator", [";", "; ", "\n", " ;\n", "", ", "])
@pytest.mark.parametrize("tag", ["<|python_tag|>", ""])
def test_separators(separator, tag):
    text = (
        f'{tag}{{"name":"a","parameters":{{"s":"x;y"}}}}{separator}{{"name":"b","parameters":{{}}}}'
    )
    assert calls(text, "llama3") == [("a", {"s": "x;y"}), ("b", {})]


# LAI-57
def test_lists_arguments_and_text_around():
    text = 'Hi <|python_tag|>[{"name":"f","arguments":{"s":1}},{"name":"g","parameters":{}}]; bye'
    outcome = run(text, "llama3")
    assert outcome.values == [("f", {"s": 1}), ("g", {})]
    assert outcome.content == "Hi ; bye"


def test_llama3_builtin_tools_and_code():
    search = (ToolSpec("brave_search"),)
    text = '<|python_tag|>brave_search.call(query="x y")'
    assert calls(text, "llama3", tools=search) == [("brave_search", {"query": "x y"})]
    assert run(text, "llama3").content == text
    code = "<|python_tag|>import os\nprint(os.name)"
    assert run(code, "llama3").content == code


# ----------------------------------------------------------------------------- Mistral


# B050, LAI-58
def test_several_calls_and_trailing_text():
    text = '[TOOL_CALLS]find[ARGS]{"q": "a}b"}[TOOL_CALLS]find[ARGS]{"q": "c"}'
    assert calls(text, "mistral") == [("find", {"q": "a}b"}), ("find", {"q": "c"})]
    outcome = run('[TOOL_CALLS]open[ARGS]{"p": "x"}\n\nOne moment.', "mistral")
    assert outcome.values == [("open", {"p": "x"})]
    assert outcome.content == "One moment."


# B052
@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]fetch[ARGS]{"n": 3}',
        '[TOOL_CALLS] fetch [ARGS] {"n": 3}',
        '[TOOL_CALLS]fetch{"n": 3}',
        '[TOOL_CALLS]fetch[CALL_ID]abc123def[ARGS]{"n": 3}',
        '[TOOL_CALLS] [{"name": "fetch", "arguments": {"n": 3}, "id": "abc123def"}]',
        '[TOOL_CALLS]{"name": "fetch", "arguments": {"n": 3}}',
    ],
)
def test_forms_of_a_mistral_call(text):
    outcome = run(text, "mistral")
    assert outcome.calls == (("fetch", '{"n": 3}'),)
    assert outcome.content == ""


def test_mistral_keeps_the_models_ids():
    text = "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]g[CALL_ID]abc123def[ARGS]{}"
    found = [c for c in parse(text, SYNTAXES["mistral"], TOOLS) if isinstance(c, ToolCall)]
    assert found[0].id == "abc123def"
    assert found[1].id != "abc123def"  # one call, one id


# LAI-58
def test_an_invalid_list_is_content():
    text = 'text [TOOL_CALLS][{"name":"f","arguments":{"a":1}}, oops'
    outcome = run(text, "mistral")
    assert outcome.content == text
    assert outcome.calls == ()


# ----------------------------------------------------------------------------- the others


def test_gemma_forms():
    text = "```tool_code\nprint(f(s='a', n=-2))\nx = g(k=[1, {'a': None}, (True,)])\n```\nok"
    outcome = run(text, "gemma")
    assert outcome.values == [("f", {"s": "a", "n": -2}), ("g", {"k": [1, {"a": None}, [True]]})]
    assert outcome.content == "ok"
    code = "```tool_code\nimport os\n```"
    assert run(code, "gemma").content == code


def test_functiongemma_values():
    text = (
        "<start_function_call>call:f{s:<escape>To, {kyo}: <b><escape>,n:3,b:true,"
        "o:{k:[1.5,<escape>x<escape>,[]],e:{}},w:bare}<end_function_call>"
    )
    assert calls(text, "functiongemma") == [
        (
            "f",
            {
                "s": "To, {kyo}: <b>",
                "n": 3,
                "b": True,
                "o": {"k": [1.5, "x", []], "e": {}},
                "w": "bare",
            },
        )
    ]


def test_glm_values_follow_the_schema():
    text = (
        "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n<arg_key>s</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g</tool_call>"
    )
    assert calls(text, "glm") == [("f", {"n": 3, "s": "3"}), ("g", {})]


def test_kimi_sections_and_ids():
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"s": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}'
        "<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert calls(text, "kimi") == [("f", {"s": 1}), ("g", {})]
    found = [c.id for c in parse(text, SYNTAXES["kimi"], TOOLS) if isinstance(c, ToolCall)]
    assert found == ["functions.f:0", "functions.g:1"]


def test_deepseek_old_form():
    text = (
        "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
        '{"s": "```"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )
    outcome = run(text, "deepseek")
    assert outcome.values == [("f", {"s": "```"}), ("g", {})]
    assert outcome.content == "Sure."


def test_gpt_oss_channels():
    text = (
        "<|channel|>analysis<|message|>First.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Second.<|end|><|start|>assistant<|channel|>commentary<|message|>Looking.<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>"
        '{"s": 1}<|call|><|start|>assistant<|channel|>final<|message|>Done\nhere.<|return|>'
    )
    outcome = run(text, "gpt-oss", reasoning=REASONING["gpt-oss"])
    assert outcome.reasoning == "First.\n\nSecond."
    assert outcome.content == "Looking.\n\nDone\nhere."
    assert outcome.values == [("f", {"s": 1})]
    without = run(text, "gpt-oss", reasoning=REASONING["gpt-oss"], tools=())
    assert without.calls == ()
    assert '{"s": 1}' in without.content


def test_gpt_oss_without_any_channel_is_an_answer():
    outcome = run("Just text.", "gpt-oss", reasoning=REASONING["gpt-oss"])
    assert (outcome.content, outcome.reasoning) == ("Just text.", "")
    outcome = run("thought<|end|>", "gpt-oss", reasoning=REASONING["gpt-oss"], in_reasoning=True)
    assert (outcome.content, outcome.reasoning) == ("", "thought")


def test_pythonic_lists():
    text = '[f(n=1, s="x)]\\"", o={"k": [True, None]}), g()]'
    assert calls(text, "pythonic") == [
        ("f", {"n": 1, "s": 'x)]"', "o": {"k": [True, None]}}),
        ("g", {}),
    ]
    assert calls(f"<|python_start|>{text}<|python_end|>", "pythonic")[1] == ("g", {})
    assert calls("[f(3, n=2)]", "pythonic") == [("f", {"day": 3, "n": 2})]
    assert calls("[f(s='''a\"'b''', code='')]", "pythonic") == [("f", {"s": "a\"'b", "code": ""})]


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[link](http://example.org)",
        "[note(s) on it]",
        "[f(open('x'))]",
        "[f(**{'a': 1})]",
        "[f(s=f'{1}')]",
        "[f(s=1e999)]",
        "[f(s=b'x')]",
        "[f(n=1)",
        "[f(n=1), 2]",
        "[f(n=(1]))]",
        "[f(1, 2, 3, 4, 5, 6, 7)]",
    ],
)
def test_pythonic_text_that_is_no_call(text):
    outcome = run(text, "pythonic")
    assert outcome.content == text
    assert outcome.calls == ()


# ----------------------------------------------------------------------------- bare JSON


# LB-40, LB-42, LB-48
def test_an_object_or_a_list_as_the_whole_answer():
    one = ' {"name": "f", "arguments": {"s": 1}}\n'
    assert calls(one, "json") == [("f", {"s": 1})]
    listed = '[{"name": "f", "parameters": {"s": 1}}, {"x": 1}, {"name": "g", "arguments": {}}]'
    outcome = run(listed, "json")
    assert outcome.values == [("f", {"s": 1}), ("g", {})]
    assert outcome.content == '{"x": 1}'  # what is no call is not lost
    swapped = run('[{"x": 1}, {"name": "g", "arguments": {}}]', "json")
    assert swapped.values == [("g", {})]


# LB-41, LB-43, LB-44, LB-46
@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"name": "Bob"}',
        '{"name": "Bob", "age": 3}',
        '{"answer": {"name": "f", "arguments": {}}}',
        '{"name": "f", "arguments": {}',
        "[1, 2]",
        "[]",
        "{}",
        '[{"x": 1}]',
        '  {"a": 1}\n',
        'Text first {"name": "f", "arguments": {}}',
    ],
)
def test_anything_else_is_unchanged(text):
    outcome = run(text, "json")
    assert outcome.content == text
    assert outcome.calls == ()
    assert outcome.finish == "stop"


# LB-41
def test_an_offered_name_needs_no_arguments():
    assert calls('{"name": "f"}', "json") == [("f", {})]


# LB-43, LB-46
def test_what_is_held_and_what_passes_at_once():
    options = {"syntax": SYNTAXES["json"], "tools": TOOLS}
    _, events, _ = events_of(["Te", "xt ", '{"name"'], **options)
    assert [e.text for e in events] == ["Te", "xt ", '{"name"']
    _, events, _ = events_of([" ", '{"na', 'me": 5', "} x"], **options)
    assert [e.text for e in events] == [' {"name": 5', "} x"]
    router = Router(**options)
    assert router.push(token('{"name": "f", ')) == ()
    events, reason = router.finish("stop")
    assert (events[0].text, reason) == ('{"name": "f", ', "stop")


def test_stop_strings_reach_an_answer_in_json():
    outcome = run('{"a": 1} and more', "json", stop=("}",))
    assert (outcome.content, outcome.finish) == ('{"a": 1', "stop")


# ----------------------------------------------------------------------------- finding the row


# LAI-50
def test_without_a_syntax_text_passes_unchanged():
    outcome = all_chunkings(ROWS["hermes"], syntax=None, tools=TOOLS)
    assert outcome.content == ROWS["hermes"]


# LAI-51
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen3", "xml"),
        ("hermes", "hermes"),
        ("qwen", "hermes"),
        ("qwen2", "hermes"),
        ("llama-3", "llama3"),
        ("Llama-3.2", "llama3"),
        ("mistral", "mistral"),
        ("mixtral", "mistral"),
        ("llama4", "pythonic"),
        ("unknown", "hermes"),
        ("", "hermes"),
    ],
)
def test_by_family(family, name):
    assert detect_syntax(None, family).name == name


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"json", "pythonic", "llama3"}))
def test_by_template(name):
    template = "{% for t in tools %}{{ t }}{% endfor %}" + ROWS[name]
    assert detect_syntax(template, "qwen3").name == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ tools }}<|python_tag|>", "llama3"),
        ("{{ tools }}<|python_start|>", "pythonic"),
        ("{{ tools }} [func_name1(params_name1=params_value1)]", "pythonic"),
        ("{% for t in tools %}{{ t }}{% endfor %}", "json"),
        ("{{ messages }}", "mistral"),
    ],
)
def test_by_template_and_family(template, name):
    assert detect_syntax(template, "mistral").name == name


@pytest.mark.parametrize("name", sorted(REASONING))
def test_reasoning_tags_by_template(name):
    tags = REASONING[name]
    assert detect_reasoning(f"{{{{ content.split('{tags.close}') }}}} {tags.open}") == tags


def test_no_reasoning_tags():
    assert detect_reasoning("<|user|>{{ messages }}<|end|>") is None  # Phi's end of turn
    assert detect_reasoning(None) is None
    assert detect_reasoning("{{ messages }} I think so") is None


# ----------------------------------------------------------------------------- ids and values


# TG-47
def test_ids():
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", id) for id in ids)


def test_values_of_arguments():
    assert call_arguments(ToolCall("1", "f", '{"a": "x\ny"}')) == {"a": "x\ny"}
    for bad in ("", "{", "NaN", "[" * 100_000):
        with pytest.raises(ValueError):  # noqa: PT011 - any of json's own
            loads(bad)


@pytest.mark.parametrize("name", [s.name for s in SYNTAXES.values() if s.form])
def test_calls_are_written_as_they_are_read(name):
    syntax = SYNTAXES[{"pythonic": "json", "gemma": "hermes"}.get(name, name)]
    text = write_call(syntax, ToolCall("1", "f", '{"s": "a"}'))
    assert calls(text, syntax.name) == [("f", {"s": "a"})]
    form = [
        c.name
        for c in parse(SYNTAXES[name].form, SYNTAXES[name], (ToolSpec("tool_name"),))
        if isinstance(c, ToolCall)
    ]
    assert form in (["tool-name"], ["tool_name"])


# LAI-59
def test_parse_in_one_shot_equals_the_stream():
    text = f"A\n{ROWS['hermes']}\nB"
    parts = parse(text, SYNTAXES["hermes"], TOOLS)
    assert parts[0] == Delta("answer", "A")
    assert isinstance(parts[1], ToolCall)
    assert parts[2] == Delta("answer", "\nB")
    assert parse("plain", None) == (Delta("answer", "plain"),)


CALL = '{"name": "f", "arguments": {"s": "a"}}'


@pytest.mark.parametrize(
    "text",
    [f"```json\n{CALL}\n```", f"```\n{CALL}\n```\n", f"<tools>\n{CALL}\n</tools>", CALL,
     f"```tool_call\n{CALL}\n```", f"\n```json\n[{CALL}]\n```"],
)  # fmt: skip
def test_an_answer_that_is_nothing_but_a_call_is_that_call(text):
    assert calls(text) == [("f", {"s": "a"})]


@pytest.mark.parametrize(
    "text",
    [f"```json\n{CALL}\n```\nThis is how a call looks.", f"Write\n```json\n{CALL}\n```",
     '```json\n{"name": "unknown", "arguments": {}}\n```', '```json\n{"city": "Rome"}\n```',
     "```python\nprint(1)\n```", "<tools>none</tools>", "<b>bold</b>"],
)  # fmt: skip
def test_an_answer_with_more_than_a_call_stays_an_answer(text):
    outcome = run(text, tools=TOOLS)
    assert not outcome.calls
    assert outcome.content == text
