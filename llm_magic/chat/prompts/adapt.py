"""Conversations reshaped for chat templates that cannot render them as they are.

Some templates have no system role, no tool role, or refuse two turns of one role in a row. The
functions here rewrite messages without these; template.py finds out by a probe which are needed.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from llm_magic.events import Message, ToolSpec

from ..parsing.syntax import SYNTAXES, Syntax, write_call


def tools_as_text(messages: Sequence[Message], syntax: Syntax) -> tuple[Message, ...]:
    """Calls as notes of the assistant in the form of `syntax`, results as labelled user turns."""
    names = {call.id: call.name for message in messages for call in message.calls}
    out = []
    for message in messages:
        if message.calls:
            notes = [write_call(syntax, call) for call in message.calls]
            text = "\n".join(filter(None, [message.text, *notes]))
            message = replace(message, content=text, calls=())
        elif message.role == "tool":
            name = message.name or names.get(message.call_id or "", "tool")
            message = Message("user", f"Result of {name}:\n{message.text}")
        out.append(message)
    return tuple(out)


def one_call_each(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Turns with several calls as several turns, each followed by its own result."""
    results = {m.call_id: m for m in messages if m.role == "tool" and m.call_id}
    out: list[Message] = []
    placed: set[str] = set()
    for message in messages:
        if len(message.calls) < 2:
            if message.role != "tool" or message.call_id not in placed:
                out.append(message)
            continue
        for i, call in enumerate(message.calls):
            out.append(replace(message, content=message.content if i == 0 else None, calls=(call,)))
            if call.id in results:
                out.append(results[call.id])
                placed.add(call.id)
    return tuple(out)


def describe_tools(tools: Sequence[ToolSpec], syntax: Syntax) -> str:
    """What a model is told whose template says nothing about tools."""
    lines = [
        json.dumps(
            {"name": t.name, "description": t.description, "parameters": t.parameters},
            ensure_ascii=False,
        )
        for t in tools
    ]
    form = syntax.form or SYNTAXES["hermes"].form
    return (
        "You can call these tools, described by name, description and JSON schema of their"
        " parameters:\n" + "\n".join(lines) + f"\n\nTo call one, answer with nothing but:\n{form}"
        "\nYou get its result in the next message. Call a tool only when it helps."
    )


def with_instructions(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The text added to the leading system message, which is made when there is none."""
    if messages and messages[0].role == "system":
        first = replace(messages[0], content=f"{messages[0].text}\n\n{text}".strip())
        return (first, *messages[1:])
    return (Message("system", text), *messages)


def system_folded(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The leading system message put before the first user turn's text."""
    if not messages or messages[0].role != "system":
        return tuple(messages)
    system, rest = messages[0].text, messages[1:]
    if rest and rest[0].role == "user":
        text = "\n\n".join(filter(None, (system, rest[0].text)))
        return (replace(rest[0], content=text), *rest[1:])
    return (Message("user", system), *rest) if system else tuple(rest)


def alternating(messages: Sequence[Message]) -> tuple[Message, ...]:
    """User and assistant in turns: later system messages are the user's, empty messages are left
    out (the last one aside), neighbours of one role become one, joined by a line break."""
    out: list[Message] = []
    last = len(messages) - 1
    for i, message in enumerate(messages):
        if message.role == "system" and i > 0:
            message = replace(message, role="user")
        if not message.text.strip() and not message.calls and i != last:
            continue
        before = out[-1] if out else None
        if before and before.role == message.role != "tool" and not before.calls:
            text = "\n".join(filter(None, (before.text, message.text)))
            out[-1] = replace(message, content=text)
        else:
            out.append(message)
    return tuple(out)
