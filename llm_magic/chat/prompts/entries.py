"""Messages and tools as the dictionaries that chat templates read.

The dictionaries are fresh: a template can change nothing of the history.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_magic.events import Message, ToolCall, ToolSpec
from llm_magic.json_types import Json

from ..parsing.markup.values import dumps, loads


@dataclass(frozen=True, slots=True)
class Support:
    """What a template renders, and in which form it wants it.

    system: a system message. tools: calls and results. tool_list: definitions of tools. repeats:
    two turns of one role in a row. parallel: two calls in one turn. short_ids: call ids of nine
    letters or digits. text_arguments: arguments as JSON text instead of an object. parts: contents
    as lists of parts. none_content: a turn that only calls has the content None instead of "".
    """

    system: bool
    tools: bool
    tool_list: bool
    repeats: bool
    parallel: bool = True
    short_ids: bool = False
    text_arguments: bool = False
    parts: bool = False
    none_content: bool = False


def message_entries(
    messages: Sequence[Message], support: Support, wrapped: bool = False
) -> list[dict[str, object]]:
    """Messages as the dictionaries that templates read.

    Args:
        messages: the conversation.
        support: the forms that the template wants.
        wrapped: arguments that are no JSON object become one, as {"arguments": ...}, for templates
            that look into them; otherwise they are the text that the model wrote.

    >>> support = Support(system=True, tools=True, tool_list=True, repeats=True)
    >>> message_entries([Message("user", "hi")], support)
    [{'role': 'user', 'content': 'hi'}]
    """
    names = {call.id: call.name for message in messages for call in message.calls}
    entries = []
    for message in messages:
        entry: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.reasoning:
            entry["reasoning_content"] = message.reasoning
        if message.calls:
            entry["tool_calls"] = [_call_entry(call, support, wrapped) for call in message.calls]
        if message.call_id is not None:
            entry["tool_call_id"] = _id(message.call_id, support)
        name = message.name or names.get(message.call_id or "")
        if name:
            entry["name"] = name
        if support.parts:
            entry["content"] = [{"type": "text", "text": entry["content"]}]
        elif support.none_content and message.calls and not message.text:
            entry["content"] = None
        entries.append(entry)
    return entries


def append_text(entry: dict[str, Any], text: str) -> None:
    if isinstance(entry["content"], str):
        entry["content"] += text
    else:
        entry["content"][-1]["text"] += text


def _call_entry(call: ToolCall, support: Support, wrapped: bool) -> dict[str, object]:
    arguments = _arguments(call.arguments, wrapped)
    if support.text_arguments and not isinstance(arguments, str):
        arguments = call.arguments if is_object(call.arguments) else dumps(arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _id(call.id, support), "type": "function", "function": function}


def _arguments(text: str, wrapped: bool) -> Json:
    """Arguments as an object; without any, as an empty one; otherwise see `message_entries`."""
    try:
        value = loads(text) if text.strip() else None
    except ValueError:
        value = text
    if value is None or value == "":
        return {}
    if isinstance(value, dict):
        return value
    return {"arguments": value} if wrapped else text


def is_object(text: str) -> bool:
    """Whether arguments are what they should be: a JSON object.

    >>> is_object('{"x": 1}'), is_object("[1]"), is_object("")
    (True, False, False)
    """
    try:
        return isinstance(loads(text), dict)
    except ValueError:
        return False


def _id(id: str, support: Support) -> str:
    return re.sub(r"[^0-9A-Za-z]", "", id)[-9:].rjust(9, "0") if support.short_ids else id


def tool_entry(tool: ToolSpec) -> dict[str, object]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _plain(tool.parameters),
    }
    return {"type": "function", "function": function}


def _plain(value: object) -> object:
    """Dictionaries and lists instead of other mappings and sequences, for tojson."""
    match value:
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return value
