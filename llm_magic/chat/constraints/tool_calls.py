"""Grammars of tool calls: the form that a model uses for them, with arguments held to the schema.

A syntax whose arguments are no JSON and no tagged values (functiongemma, gemma4, dsml, minimax) has
no form here: calls are then written, and read, in the form of "hermes".
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_magic.events import Choices, Constraint, Regex, Schema, ToolSpec

from ..parsing.markup.values import coerce, dumps, property_schema, value_types
from ..parsing.syntax import SYNTAXES, Syntax
from ..schema import as_schema
from .narrow import narrowed
from .narrow.numbers import beyond
from .narrow.words import ANNOTATIONS, PATTERNS, RAW_FORMATS, size_fault

# As models write calls themselves: at most a little white space between JSON tokens.
CALL_SPACE = r"[ \n]{0,8}"


def call_grammar(
    tools: Sequence[ToolSpec],
    syntax: Syntax,
    controls: Mapping[str, int],
    template: str = "",
    answer: Constraint | None = None,
) -> tuple[str, Syntax]:
    """A Lark grammar for one call of one of the tools, and the syntax to read it with.

    controls: ids of control tokens by text. template: the chat template, for syntaxes with an old
    and a new form. answer: what may come instead of a call.
    """
    if syntax.name not in _FORMS:
        syntax = SYNTAXES["hermes"]
    rules = _Rules(controls, template)
    try:
        starts = [_FORMS[syntax.name](rules, tool) for tool in tools]
    except _NoForm:
        syntax, rules = SYNTAXES["hermes"], _Rules(controls, template)
        starts = [_FORMS["hermes"](rules, tool) for tool in tools]
    if answer is not None:
        starts.append(rules.answer(answer))
    lines = ["start: " + "\n     | ".join(starts), *rules.lines]
    return "\n".join(lines), syntax


def can_join(constraint: Constraint | None) -> bool:
    """Whether answers of this constraint and calls fit in one grammar."""
    return isinstance(constraint, Schema | Regex | Choices)


class _Rules:
    """The rules of one grammar besides `start`."""

    def __init__(self, controls: Mapping[str, int], template: str) -> None:
        self.controls = controls
        self.template = template
        self.lines: list[str] = []
        known = sorted(filter(None, controls), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, known))})") if known else None

    def add(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {body}")
        return name

    def add_terminal(self, expression: str) -> str:
        name = f"TEXT_{len(self.lines)}"
        self.lines.append(f"{name}: {expression}")
        return name

    def json(self, schema: object, space: str = CALL_SPACE, escapes: str | None = None) -> str:
        options: dict[str, Any] = {"whitespace_pattern": space, "whitespace_flexible": True}
        options["json_allow_general_unicode_escapes"] = escapes is None
        if escapes:
            options["json_allowed_escapes"] = escapes
        narrow = narrowed(schema, large=True)
        values = narrow.get("enum", ())
        if any(True for value in values for _ in beyond(value)):  # only text holds these exactly
            return self.add(" | ".join(json.dumps(json.dumps(v)) for v in values))
        return self.add("%json " + json.dumps({**narrow, "x-guidance": options}))

    def text(self, *parts: str) -> str:
        """Literal text; spellings of control tokens are those tokens."""
        text = "".join(parts)
        pieces = self._split.split(text) if self._split else [text]
        return " ".join(
            f"<[{self.controls[p]}]>" if p in self.controls else json.dumps(p, ensure_ascii=False)
            for p in pieces
            if p
        )

    def until(self, closer: str) -> str:
        """Any text up to a closing tag, which is read too."""
        pattern = re.escape(closer).replace("/", r"\/").replace("\n", r"\n")
        return self.add(rf"/(.|\n)*{pattern}/", "[lazy]")

    def answer(self, constraint: Constraint) -> str:
        match constraint:
            case Schema(schema):
                return self.json(as_schema(schema))
            case Regex(pattern):
                return self.add("/" + pattern.replace("/", r"\/") + "/")
            case Choices(options):
                return self.add(" | ".join(json.dumps(o, ensure_ascii=False) for o in options))
        raise TypeError(f"{type(constraint).__name__} and calls do not fit in one grammar")


Form = Callable[[_Rules, ToolSpec], str]


def _named_json(before: str, key: str, after: str) -> Form:
    """{"name": ..., KEY: {...}} between two texts."""

    def form(rules: _Rules, tool: ToolSpec) -> str:
        head = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        arguments = rules.json(tool.parameters)
        return f"{rules.text(before, head)} {arguments} {rules.text('}', after)}"

    return form


def _plain_json(before: str, after: str) -> Form:
    """The arguments alone; the name stands in the text before them."""

    def form(rules: _Rules, tool: ToolSpec) -> str:
        arguments = rules.json(tool.parameters)
        end = f" {rules.text(after)}" if after else ""
        return f"{rules.text(before.replace('NAME', tool.name))} {arguments}{end}"

    return form


def _mistral(rules: _Rules, tool: ToolSpec) -> str:
    if "[ARGS]" in rules.template:
        return _plain_json("[TOOL_CALLS]NAME[ARGS]", "")(rules, tool)
    return _named_json("[TOOL_CALLS][", "arguments", "]")(rules, tool)


def _deepseek(rules: _Rules, tool: ToolSpec) -> str:
    before, after = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    )
    if "```json" in rules.template:
        before, after = f"{before}function<｜tool▁sep｜>NAME\n```json\n", f"\n```{after}"
    else:
        before += "NAME<｜tool▁sep｜>"
    return _plain_json(before, after)(rules, tool)


def _tagged(before: str, key: Callable[[str], str], close_value: str, after: str) -> Form:
    """A tag per argument: texts as they are, everything else as JSON."""

    def form(rules: _Rules, tool: ToolSpec) -> str:
        schema = as_schema(tool.parameters)
        needed = schema.get("required", ())
        parts = [rules.text(before.replace("NAME", tool.name))]
        for name in schema.get("properties", {}):
            value = _tagged_value(rules, property_schema(schema, name), close_value)
            argument = f"{rules.text(key(name))} {value}"
            parts.append(argument if name in needed else f"({argument})?")
        return " ".join([*parts, rules.text(after)])

    return form


def _tagged_value(rules: _Rules, schema: Mapping[str, object], close: str) -> str:
    """A value between tags, written so that `values.coerce` reads it as a value of the schema:
    texts as they are, everything else as JSON."""
    types = value_types(schema)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return f"({_listed(rules, schema)}) {rules.text(close)}"
    if types == {"string"} and not schema.keys() - _PLAIN_TEXT:
        return rules.until(close)
    if "string" not in types:
        return f"{rules.json(schema)} {rules.text(close)}"
    others = sorted(types - {"string"})
    # One lexeme with the closing tag: alone, the text would take the beginning of the tag too.
    raw = _raw_text(schema, close, others)
    text = rules.add_terminal(f"({raw}) {json.dumps(close, ensure_ascii=False)}")
    if not others:
        return text
    shared = {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
    value = rules.json({**shared, "allOf": [schema, {"type": others}]})
    return f"({text} | {value} {rules.text(close)})"


_PLAIN_TEXT = ANNOTATIONS | {"type"}


def _listed(rules: _Rules, schema: Mapping[str, object]) -> str:
    """The listed values that are read as what they are."""
    narrow = narrowed(schema, large=True)
    texts = [
        text
        for value in narrow.get("enum", ())
        for text in [value if isinstance(value, str) else dumps(value)]
        if text.strip() and dumps(coerce(text, schema)) == dumps(value)
    ]
    if not texts:
        raise _NoForm
    return " | ".join(map(rules.text, texts))


def _raw_text(schema: Mapping[str, object], close: str, others: Sequence[str]) -> str:
    """Lark's terminal expression for texts of a schema that do not hold the closing tag.

    others: types besides texts. A text is then none that the reader takes for one of those, and has
    no "<": the compiler, which reads as far as it can, must find out at once which of both it is.
    """
    parts = list(_text_patterns(schema, 0))
    parts.append("~" + _slashed(f"(?s:.*)({re.escape(close.strip())})(?s:.*)"))
    parts.append(r"/([^\r\n]((?s:.*)[^\r\n])?)?/")  # the reader takes a line break off each end
    if others:
        parts += ["/[^<]*/", r"~/\s*(?i:null|none|true|false)\s*/"]
    if set(others) - {"null", "boolean"}:
        parts.append("/[A-Za-z](?s:.*)/")
    return " & ".join(parts)


def _text_patterns(schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Regular expressions in slashes, all of which a text must match."""
    if schema.keys() & {"oneOf", "not", "if", "$ref", "$dynamicRef"} or depth > 8:
        raise _NoForm
    if depth and schema.keys() & {"enum", "const"}:
        raise _NoForm
    if "pattern" in schema:
        yield _slashed(_searched(schema["pattern"]))
    form = schema.get("format", "")
    if form in RAW_FORMATS:
        yield _slashed(RAW_FORMATS[form])
    elif "pattern" in PATTERNS.get(form, {}):
        yield _slashed(_searched(PATTERNS[form]["pattern"]))
    elif form in PATTERNS:
        raise _NoForm
    low, high = schema.get("minLength", 0), schema.get("maxLength", "")
    if low or high != "":
        yield _slashed(f"(?s:.{{{low},{high}}})")
    texts = [part for part in schema.get("anyOf", ()) if "string" in value_types(part)]
    if len(texts) > 1:
        raise _NoForm
    for part in [*texts, *schema.get("allOf", ())]:
        if isinstance(part, Mapping):
            yield from _text_patterns(part, depth + 1)
    yield "/(?s:.*)/"


def _searched(pattern: str) -> str:
    """A pattern that is found anywhere in a text, as one for the whole text."""
    if re.fullmatch(r"\^[^|]*\$|\^\([^()]*\)\$", pattern) or pattern in _OURS:
        return f"({pattern[1:-1]})"
    if "|" in pattern and ("^" in pattern or "$" in pattern):
        raise _NoForm  # an anchor may belong to one of the alternatives
    start = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if pattern.endswith("$") else "(?s:.*)"
    return f"{start}({pattern.removeprefix('^').removesuffix('$')}){end}"


_OURS = frozenset(form["pattern"] for form in PATTERNS.values() if "pattern" in form)


def _slashed(pattern: str) -> str:
    if size_fault(pattern) or re.search(r"\\$|(?<!\\)(\\\\)*\\/", pattern):
        raise _NoForm
    return "/" + pattern.replace("/", r"\/").replace("\n", r"\n") + "/"


class _NoForm(Exception):
    """A schema has no form in a syntax: the call is then written in that of "hermes"."""


def _pythonic(before: str, after: str) -> Form:
    """NAME(key=value, ...). Python has JSON's literals (our reader takes true, false and null), but
    no escape for a slash."""

    def form(rules: _Rules, tool: ToolSpec) -> str:
        schema = as_schema(tool.parameters)
        properties = {
            name: f"{rules.text(name, '=')} "
            + rules.json(property_schema(schema, name), r"[ ]{0,2}", 'bfnrt"\\')
            for name in schema.get("properties", {})
        }
        needed = [properties[n] for n in properties if n in schema.get("required", ())]
        others = [properties[n] for n in properties if n not in schema.get("required", ())]
        comma = rules.text(", ")
        arguments = f" {comma} ".join(needed)
        if needed:
            arguments += "".join(f" ({comma} {other})?" for other in others)
        elif others:
            arguments = _some_of(others, comma)
        return f"{rules.text(before, tool.name, '(')} {arguments} {rules.text(')', after)}"

    return form


def _some_of(items: Sequence[str], comma: str) -> str:
    """Any of the items, in this order, with commas between those that are there; also none."""

    def from_(i: int) -> str:
        rest = [f"({comma} {item})?" for item in items[i + 1 :]]
        return " ".join([items[i], *rest])

    return "(" + " | ".join(from_(i) for i in range(len(items))) + ")?"


_FORMS: dict[str, Form] = {
    "hermes": _named_json("<tool_call>\n", "arguments", "\n</tool_call>"),
    "llama3": _named_json("", "parameters", ""),
    "json": _named_json("", "arguments", ""),
    "mistral": _mistral,
    "deepseek": _deepseek,
    "xml": _tagged(
        "<tool_call>\n<function=NAME>\n",
        lambda name: f"<parameter={name}>\n",
        "\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "glm": _tagged(
        "<tool_call>NAME\n",
        lambda name: f"<arg_key>{name}</arg_key>\n<arg_value>",
        "</arg_value>\n",
        "</tool_call>",
    ),
    "kimi": _plain_json(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "gpt-oss": _plain_json(
        "<|channel|>commentary to=functions.NAME<|constrain|>json<|message|>", ""
    ),
    "pythonic": _pythonic("[", "]"),
    "gemma": _pythonic("```tool_code\n", "\n```"),
}
