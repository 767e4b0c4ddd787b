"""Markup of reasoning and tool calls: one table row per syntax, and detection from a chat template.

`SYNTAXES` and `REASONING` hold the rows. parsing/router.py applies them to a stream.

To add a tool syntax, add a row to `SYNTAXES`. If no present reader fits, add one to parsing/markup.
Add a mark to `_MARKS` if chat templates show the syntax. tests/unit/test_syntax.py has a transcript
of each row and cuts it in every way.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from llm_magic.events import ToolCall, ToolSpec

from .markup import gemma_calls, python_calls, tags
from .markup.tape import Reader, Tools
from .markup.values import dumps, loads


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The pair of strings between which a model writes its reasoning.

    channels: the whole answer is cut into channels (gpt-oss); `open` heads the reasoning channel.
    """

    open: str
    close: str
    channels: bool = False


REASONING: dict[str, ReasoningTags] = {
    "think": ReasoningTags("<think>", "</think>"),
    "thinking": ReasoningTags("<thinking>", "</thinking>"),
    "thought": ReasoningTags("<thought>", "</thought>"),
    "reasoning": ReasoningTags("<reasoning>", "</reasoning>"),
    "seed": ReasoningTags("<seed:think>", "</seed:think>"),
    "mistral": ReasoningTags("[THINK]", "[/THINK]"),
    "kimi": ReasoningTags("◁think▷", "◁/think▷"),
    "cohere": ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    "gemma": ReasoningTags("<|channel>thought", "<channel|>"),
    "gpt-oss": ReasoningTags("<|channel|>analysis<|message|>", "<|end|>", channels=True),
}


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a model writes tool calls.

    open: strings that announce calls, anywhere in the answer. bare: characters that announce a call
    as the first one of the answer. read: reads what follows. channels: gpt-oss, see ReasoningTags.
    form: what a model is told to write when its own template says nothing about tools.
    """

    name: str
    open: tuple[str, ...]
    read: Reader
    bare: str = ""
    channels: bool = False
    form: str = ""


_JSON = '{"name": "tool-name", "arguments": {"parameter": "value"}}'
_TAGS = ("<tool_call>", "<function=")
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
_DSML = "<｜DSML｜function_calls>"
_MINIMAX = "<minimax:tool_call>"
_FUNCTION_GEMMA = ("<start_function_call>", "<end_function_call>", "<escape>")
_GEMMA4 = ("<|tool_call>", "<tool_call|>", '<|"|>')

SYNTAXES: dict[str, Syntax] = {
    row.name: row
    for row in (
        Syntax(
            "hermes",
            ("<tool_call>",),
            tags.tagged,
            bare="{`<",
            form=f"<tool_call>\n{_JSON}\n</tool_call>",
        ),
        Syntax(
            "xml",
            _TAGS,
            tags.tagged,
            form="<tool_call>\n<function=tool-name>\n<parameter=parameter>\nvalue\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        Syntax(
            "llama3",
            ("<|python_tag|>", "<function="),
            tags.llama3,
            bare="{[",
            form=_JSON.replace("arguments", "parameters"),
        ),
        Syntax("mistral", ("[TOOL_CALLS]",), tags.mistral, form=f"[TOOL_CALLS][{_JSON}]"),
        Syntax(
            "gemma",
            ("```tool_code",),
            python_calls.tool_code,
            form='```tool_code\ntool_name(parameter="value")\n```',
        ),
        Syntax(
            "functiongemma",
            _FUNCTION_GEMMA[:1],
            gemma_calls.gemma_call(_FUNCTION_GEMMA[2], _FUNCTION_GEMMA[1]),
        ),
        Syntax("gemma4", _GEMMA4[:1], gemma_calls.gemma_call(_GEMMA4[2], _GEMMA4[1])),
        Syntax("glm", ("<tool_call>",), tags.glm),
        Syntax("kimi", _KIMI, tags.kimi),
        Syntax(
            "deepseek",
            _DEEPSEEK,
            tags.deepseek,
            form="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool-name<｜tool▁sep｜>"
            '{"parameter": "value"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        ),
        Syntax("dsml", (_DSML,), tags.invoke("｜DSML｜", "</｜DSML｜function_calls>")),
        Syntax("minimax", (_MINIMAX,), tags.invoke("", "</minimax:tool_call>")),
        Syntax(
            "granite",
            ("<|tool_call|>", "<tool_call>", "functools["),
            tags.json_until("<|/tool_call|>", "</tool_call>"),
            bare="[{",
        ),
        Syntax("gpt-oss", (), tags.bare_json, channels=True),
        Syntax(
            "pythonic",
            ("<|python_start|>",),
            python_calls.tagged("<|python_end|>"),
            bare="[",
            form='[tool_name(parameter="value")]',
        ),
        Syntax("lfm2", ("<|tool_call_start|>",), python_calls.tagged("<|tool_call_end|>")),
        Syntax("json", (), tags.bare_json, bare="{[", form=_JSON),
    )
}

# What to look for in a template, the most telling mark first.
_MARKS: tuple[tuple[str, str], ...] = (
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<｜tool▁call", "deepseek"),
    ("｜DSML｜", "dsml"),
    (_MINIMAX, "minimax"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<|tool_call|>", "granite"),
    ("<|channel|>", "gpt-oss"),
    ("<arg_key>", "glm"),
    ("<function=", "xml"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "hermes"),
    ("<|tool_list_start|>", "lfm2"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|python_start|>", "pythonic"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3"),
    ("tool_code", "gemma"),
)

# By architecture or family, for templates that say nothing about tools. The first match counts.
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("qwen3", "xml"),
    ("qwen", "hermes"),
    ("hermes", "hermes"),
    ("llama4", "pythonic"),
    ("llama-4", "pythonic"),
    ("llama-3", "llama3"),
    ("llama3", "llama3"),
    ("mistral", "mistral"),
    ("mixtral", "mistral"),
)


def detect_syntax(template: str | None, family: str = "") -> Syntax:
    """The syntax that a chat template asks its model for, or that a model family uses.

    A template that lists tools without a known mark means calls as bare JSON. Without any hint the
    syntax is "hermes", and the prompt tells the model to use that form.

    >>> detect_syntax("{% for tool in tools %}... [TOOL_CALLS]").name
    'mistral'
    >>> detect_syntax(None, family="qwen2").name
    'hermes'
    """
    template = template or ""
    for mark, name in _MARKS:
        if mark in template:
            return SYNTAXES[name]
    if re.search(r"\btools\b", template):
        return SYNTAXES["json"]
    for mark, name in _FAMILIES:
        if family.lower().startswith(mark):
            return SYNTAXES[name]
    return SYNTAXES["hermes"]


def detect_reasoning(template: str | None) -> ReasoningTags | None:
    """The reasoning tags that a chat template names, or None.

    >>> detect_reasoning("... <think> ...").close
    '</think>'
    """
    if template is None:
        return None
    if "<|channel|>" in template:
        return REASONING["gpt-oss"]
    for pair in REASONING.values():
        if not pair.channels and (pair.open in template or pair.close in template):
            return pair
    return None


def opens_reasoning(tail: str, tags: ReasoningTags | None) -> bool:
    """Whether generation starts inside the reasoning part.

    tail: the prompt from the start of the assistant's turn on, not what came before: earlier turns
    and the user's text may hold tags of their own.
    """
    return tags is not None and tail.rfind(tags.open) > tail.rfind(tags.close)


def schemas(tools: Sequence[ToolSpec]) -> Tools:
    """Parameter schemas by tool name, as the readers want them."""
    return {tool.name: tool.parameters for tool in tools}


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def call_arguments(call: ToolCall) -> object:
    """The value of a call's raw arguments. ValueError when they are not JSON."""
    return loads(call.arguments)


def write_call(syntax: Syntax, call: ToolCall) -> str:
    """A call as a model of this syntax would have written it, for templates without tools."""
    head = f'{{"name": {dumps(call.name)}, '
    arguments = call.arguments.strip() or "{}"
    match syntax.name:
        case "llama3":
            return f'{head}"parameters": {arguments}}}'
        case "mistral":
            return f'[TOOL_CALLS][{head}"arguments": {arguments}}}]'
        case "json" | "pythonic":
            return f'{head}"arguments": {arguments}}}'
        case "deepseek":
            begin, end = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
            return f"{begin}{call.name}<｜tool▁sep｜>{arguments}{end}<｜tool▁calls▁end｜>"
    return f'<tool_call>\n{head}"arguments": {arguments}}}\n</tool_call>'
