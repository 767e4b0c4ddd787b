"""Messages and tools as the dictionaries that chat templates read.

What comes in: messages, tools, and what a template supports. What goes out: fresh dictionaries that
share nothing with the history. It must not know templates.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_magic.events import Message, ToolCall, ToolSpec

from ..parsing.markup.values import loads


@dataclass(frozen=True, slots=True)
class Support:
    """What a template renders, and in which form it wants it.

    system: a system message. tools: calls and results. tool_list: definitions of tools. repeats:
    two turns of one role in a row. parallel: two calls in one turn. short_ids: call ids of nine
    letters or digits. text_arguments: arguments as JSON text instead of an object. parts: contents
    as lists of parts.
    """

    system: bool
    tools: bool
    tool_list: bool
    repeats: bool
    parallel: bool = True
    short_ids: bool = False
    text_arguments: bool = False
    parts: bool = False


def message_entries(messages: Sequence[Message], support: Support) -> list[dict[str, Any]]:
    """Messages as the dictionaries that templates read. Nothing of the history is shared."""
    names = {call.id: call.name for message in messages for call in message.calls}
    entries = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.reasoning:
            entry["reasoning_content"] = message.reasoning
        if message.calls:
            entry["tool_calls"] = [_call_entry(call, support) for call in message.calls]
        if message.call_id is not None:
            entry["tool_call_id"] = _id(message.call_id, support)
        name = message.name or names.get(message.call_id or "")
        if name:
            entry["name"] = name
        if support.parts:
            entry["content"] = [{"type": "text", "text": entry["content"]}]
        entries.append(entry)
    return entries


def append_text(entry: dict[str, Any], text: str) -> None:
    if isinstance(entry["content"], str):
        entry["content"] += text
    else:
        entry["content"][-1]["text"] += text


def _call_entry(call: ToolCall, support: Support) -> dict[str, Any]:
    arguments: Any = call.arguments
    if not support.text_arguments:
        with contextlib.suppress(ValueError):  # templates that print what is no JSON still can
            arguments = loads(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _id(call.id, support), "type": "function", "function": function}


def _id(id: str, support: Support) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", id)[-9:].rjust(9, "0") if support.short_ids else id


def tool_entry(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _plain(tool.parameters),
    }
    return {"type": "function", "function": function}


def _plain(value: Any) -> Any:
    """Dictionaries and lists instead of other mappings and sequences, for tojson."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
