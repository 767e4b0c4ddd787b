"""Grammars of tool calls: the form that a model uses for them, with arguments held to the schema.

Comes in: a syntax, tools, texts of control tokens. Goes out: Lark text for llguidance. It must not
know tokens beyond the ids of control tokens.

A syntax whose arguments are no JSON and no tagged values (functiongemma, gemma4, dsml, minimax) has
no form here: calls are then written, and read, in the form of "hermes".
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llm_magic.events import Choices, Constraint, Regex, Schema, ToolSpec

from ..parsing.syntax import SYNTAXES, Syntax
from ..schema import as_schema
from .narrow import narrowed
from .narrow.numbers import beyond

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
    starts = [_FORMS[syntax.name](rules, tool) for tool in tools]
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

    def json(self, schema: Any, space: str = CALL_SPACE, escapes: str | None = None) -> str:
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
            value = _tagged_value(rules, _property(schema, name), close_value)
            argument = f"{rules.text(key(name))} {value}"
            parts.append(argument if name in needed else f"({argument})?")
        return " ".join([*parts, rules.text(after)])

    return form


def _tagged_value(rules: _Rules, schema: Mapping[str, Any], close: str) -> str:
    texts = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if texts and all(isinstance(t, str) for t in texts):
        return f"({' | '.join(rules.text(t) for t in texts)}) {rules.text(close)}"
    if schema.get("type") == "string" and not {"pattern", "format"} & schema.keys():
        return rules.until(close)
    if schema.get("type") == "string" and "pattern" in schema:
        body = schema["pattern"].removeprefix("^").removesuffix("$").replace("/", r"\/")
        return f"{rules.add(f'/{body}/')} {rules.text(close)}"
    return f"{rules.json(schema)} {rules.text(close)}"


def _property(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The schema of one property, standing alone."""
    part = schema["properties"][name]
    shared = {k: schema[k] for k in ("$schema", "$defs", "definitions") if k in schema}
    return {**shared, **part} if isinstance(part, Mapping) else shared


def _pythonic(before: str, after: str) -> Form:
    """NAME(key=value, ...). Python has JSON's literals (our reader takes true, false and null), but
    no escape for a slash."""

    def form(rules: _Rules, tool: ToolSpec) -> str:
        schema = as_schema(tool.parameters)
        properties = {
            name: f"{rules.text(name, '=')} "
            + rules.json(_property(schema, name), r"[ ]{0,2}", 'bfnrt"\\')
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
