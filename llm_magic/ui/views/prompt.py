"""What a model was asked: the messages, the tools that it was offered, and the rendered prompt."""

import json

from llm_magic.chat.reply import Reply
from llm_magic.events import Message, ToolSpec

from . import html, summary, tokens

UNKNOWN = "the prompt was not saved"


def fragment(reply: Reply) -> str:
    """Messages by role, then, folded, the tools and what the template made of it all. A reply that
    was read from a file has the latter only."""
    usage = reply.usage
    rendered = html.note(UNKNOWN)
    if reply.prompt is not None:
        rendered = tokens.prompt(reply.prompt, usage.prompt, summary.cached(usage))
    if not reply.messages:
        return rendered
    said = "".join(tokens.block(m.role, _said(m), m.name or "") for m in reply.messages)
    return said + _tools(reply.tools) + html.fold("As the template renders it", rendered)


def plain(reply: Reply) -> str:
    """The prompt as text: rendered where that is known."""
    messages = "\n".join(f"{m.role}: {m.text}" for m in reply.messages)
    return reply.prompt or messages or UNKNOWN


def continued(reply: Reply) -> str:
    """The text that a completion continues, without control tokens; "" for a chat's answer.

    >>> continued(Reply("4", prompt="2+2="))
    '2+2='
    """
    if reply.messages or not reply.prompt:
        return ""
    turns = tokens.turns(reply.prompt)
    return tokens.without_markers(reply.prompt) if not any(role for role, _ in turns) else ""


def _said(message: Message) -> str:
    """A message's parts in their order; what is no text is named."""
    lines = []
    if message.reasoning:
        lines.append(f"{tokens.chip('reasoning')} {html.escape(message.reasoning)}")
    if isinstance(message.content, tuple):
        lines += [
            html.escape(part.text) if part.type == "text"
            else " ".join(filter(None, (tokens.chip(part.type), html.escape(part.text))))
            for part in message.content
        ]  # fmt: skip
    elif message.content:
        lines.append(html.escape(message.content))
    for call in message.calls:
        lines.append(
            f"{tokens.chip('call')} {html.escape(summary.call(call.name, call.arguments))}"
        )
    return "\n".join(lines)


def _tools(offered: tuple[ToolSpec, ...]) -> str:
    if not offered:
        return ""
    rows = [
        (
            f"<code>{html.escape(tool.name)}</code>",
            html.text(tool.description),
            f"<code>{html.escape(json.dumps(tool.parameters, ensure_ascii=False))}</code>",
        )
        for tool in offered
    ]
    names = ", ".join(html.text(tool.name) for tool in offered)
    head = f"{len(offered)} tool{'s' * (len(offered) != 1)} offered: {names}"
    return html.fold(head, html.table(("tool", "what it does", "parameters"), rows))
