"""Exchanges of a history, and histories in OpenAI's form.

An exchange is a user message and all that answers it: assistant messages, tool calls and their
results. A history is shortened between exchanges only; a cut inside one would leave a call without
its result, or an answer without its question.
"""

from collections.abc import Sequence
from typing import Any

from ..events import Message


def exchanges(messages: Sequence[Message]) -> tuple[tuple[Message, ...], list[list[Message]]]:
    """The system messages at the head, and the exchanges behind them, oldest first."""
    n = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    groups: list[list[Message]] = []
    for message in messages[n:]:
        if message.role == "user" and not (groups and groups[-1][-1].role == "user"):
            groups.append([message])
        elif groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return tuple(messages[:n]), groups


def shortened(messages: Sequence[Message], n: int) -> tuple[Message, ...]:
    """The messages without their oldest `n` exchanges; the last exchange always stays.

    >>> history = [Message("user", "1"), Message("assistant", "a"), Message("user", "2")]
    >>> [m.text for m in shortened(history, 1)]
    ['2']
    """
    system, groups = exchanges(messages)
    n = min(n, len(groups) - 1)
    return (*system, *(m for group in groups[n:] for m in group))


def shorter(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Ever shorter histories, from the whole one to the one that must stay.

    First the tool calls of earlier exchanges go, each with its results, the oldest first; then
    whole exchanges, the oldest first. The system messages and the last exchange stay.

    >>> history = [Message("user", "1"), Message("assistant", "a"), Message("user", "2")]
    >>> [len(messages) for messages in shorter(history)]
    [3, 1]
    """
    system, groups = exchanges(messages)
    found = [tuple(messages)]
    for i, group in enumerate(groups[:-1]):
        while (rest := _without_call(group)) is not None:
            group = groups[i] = rest
            found.append((*system, *(m for each in groups for m in each)))
    for n in range(1, len(groups)):
        found.append((*system, *(m for each in groups[n:] for m in each)))
    return found


def _without_call(group: list[Message]) -> list[Message] | None:
    """An exchange without its first message that calls tools and the results; None without one."""
    for i, message in enumerate(group):
        if message.calls:
            end = next((j for j in range(i + 1, len(group)) if group[j].role != "tool"), len(group))
            return group[:i] + group[end:]
    return None


def to_openai(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as plain JSON in OpenAI's form; `events.as_messages` reads it back.

    Reasoning is `reasoning_content`, which other programs ignore.

    >>> to_openai([Message("user", "Hello")])
    [{'role': 'user', 'content': 'Hello'}]
    """
    return [_entry(message) for message in messages]


def _entry(message: Message) -> dict[str, object]:
    content: object = message.content
    if isinstance(content, tuple):
        content = [{"type": part.type, "text": part.text} for part in content]
    out: dict[str, Any] = {"role": message.role, "content": content}
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.call_id is not None:
        out["tool_call_id"] = message.call_id
    if message.name is not None:
        out["name"] = message.name
    return out
