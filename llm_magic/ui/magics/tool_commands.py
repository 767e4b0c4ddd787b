"""`%llm tools`: the functions of the notebook that can be tools, with the schema of each."""

import json
from collections.abc import Sequence
from typing import Any

from llm_magic.chat.tools.definition import Tool
from llm_magic.errors import LLMError

from ..views import html
from ..views.mime import Fragment
from . import lookup
from .session import Notebook, command_parser, parse


def tools(nb: Notebook, rest: str) -> None:
    """All that could be tools, or those named."""
    parser = command_parser(nb, "tools")
    parser.add_argument("names", nargs="*")
    names = ",".join(parse(nb, parser, rest).names)
    if names:
        found: list[tuple[str, Tool | LLMError]] = [
            (tool.name, tool) for tool in lookup.tools(nb.names, names)
        ]
    else:
        found = list(lookup.offered(nb.names))
    nb.show(listing(found, nb.magic_name))


def listing(found: Sequence[tuple[str, Tool | LLMError]], magic: str = "llm") -> Fragment:
    """Each tool with what it is for, how it is called, and its schema folded below."""
    if not found:
        line = (
            f"there are no functions here; write one with type hints, then %%{magic} --tools NAME"
        )
        return Fragment(html.note(html.text(line)), line)
    rows, schemas, lines = [], [], []
    for name, tool in found:
        if isinstance(tool, LLMError):
            rows.append((f"<code>{html.escape(name)}</code>", html.text(f"cannot be one: {tool}")))
            lines.append(f"{name}: cannot be a tool: {tool}")
            continue
        call, what = signature(tool), " ".join(tool.spec.description.split())
        rows.append((f"<code>{html.escape(call)}</code>", html.text(what)))
        lines.append(f"{call}: {what}" if what else call)
        schema = json.dumps(described(tool), ensure_ascii=False, indent=1)
        schemas.append(html.fold(f"<code>{html.escape(name)}</code>", html.code(schema, "json")))
    page = html.table(("tool", "what it does"), rows)
    if schemas:
        page += html.fold("What the model is told", "".join(schemas))
    return Fragment(page, "\n".join(lines))


def described(tool: Tool) -> dict[str, Any]:
    """A tool in OpenAI's form, as most templates print it."""
    spec = tool.spec
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters}


def signature(tool: Tool) -> str:
    """`weather(city: string, days: integer = 3)`, from the schema."""
    schema = tool.spec.parameters
    required = schema.get("required", ())
    parts = []
    for name, part in schema.get("properties", {}).items():
        text = f"{name}: {_kind(part)}"
        if name not in required:
            text += f" = {json.dumps(part.get('default'), ensure_ascii=False)}"
        parts.append(text)
    return f"{tool.name}({', '.join(parts)})"


def _kind(schema: object) -> str:
    """A parameter's type in a word or two."""
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(map(_kind, schema["anyOf"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " | ".join(kind)
    if kind == "array" and "items" in schema:
        return f"array of {_kind(schema['items'])}"
    return str(kind)
