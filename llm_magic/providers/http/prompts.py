"""What a request becomes at a server: a chat, or a text; and how its answer is read.

A chat goes to the server as messages. Where the answer must begin with given tokens, the prompt is
rendered by the server's template first, and its text is continued.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_magic.chat.constraints.kinds import parse as read_value
from llm_magic.chat.parsing.router import Router
from llm_magic.chat.parsing.syntax import (
    REASONING,
    SYNTAXES,
    ReasoningTags,
    Syntax,
    detect_reasoning,
    detect_syntax,
    opens_reasoning,
)
from llm_magic.chat.prompts import adapt
from llm_magic.chat.schema import draft_of
from llm_magic.chat.typed_values import loads_as
from llm_magic.errors import RemoteError, RequestError
from llm_magic.events import Choices, Constraint, Message, Regex, Schema
from llm_magic.provider import RenderedPrompt, Request

from .discover import Server

TURN = 200  # characters at the end of a prompt in which the assistant's turn begins


@dataclass(frozen=True, slots=True)
class Reading:
    """How text of an answer is read.

    Attributes:
        reasoning: The tags of reasoning inside the text.
        in_reasoning: Whether the prompt opened them.
        syntax: How calls are written inside the text; None: there are none.
    """

    reasoning: ReasoningTags | None = None
    in_reasoning: bool = False
    syntax: Syntax | None = None

    def router(self, request: Request, first: bool) -> Router:
        """The router of an answer; behind native calls (not `first`) there are no others."""
        syntax = self.syntax if first else None
        return Router(
            reasoning=self.reasoning if first else None,
            in_reasoning=self.in_reasoning and first,
            syntax=syntax,
            tools=request.tools,
            calls_without_tools=syntax is not None,
        )


def tells_tools(request: Request, server: Server) -> bool:
    """Whether tools must be told in the text: the server's template, as far as it is known, says
    nothing about them, so the model would never hear of them."""
    known = server.template is not None
    return bool(request.offered) and known and not re.search(r"\btools\b", server.template or "")


def with_tools_told(
    request: Request, messages: Sequence[Message], server: Server
) -> tuple[Message, ...]:
    """The messages with the tools described in them, and earlier calls as text."""
    syntax = _named(request.tool_syntax) or detect_syntax(server.template, server.short)
    told = adapt.describe_tools(request.offered, syntax)
    return adapt.with_instructions(adapt.tools_as_text(messages, syntax), told)


def of_chat(request: Request, server: Server) -> Reading:
    """A chat that the server parses: what it leaves in the text are tags, and calls as bare JSON.

    Calls are recovered only where tools were offered.
    """
    tags = detect_reasoning(server.template) or REASONING["think"]
    syntax = _named(request.tool_syntax)
    if syntax is None and tells_tools(request, server):
        syntax = detect_syntax(server.template, server.short)
    syntax = syntax or SYNTAXES["json"]
    return Reading(
        None if tags.channels else tags, syntax=syntax if request.offered else None
    )  # fmt: skip


def of_text(request: Request, prompt: RenderedPrompt, server: Server) -> Reading:
    """A prompt whose answer nobody has parsed: a text, or a chat that was rendered."""
    if not prompt.is_chat:
        return Reading()
    tags = detect_reasoning(server.template)
    if tags is None and prompt.reasoning:
        tags = REASONING["think"]
    calls = bool(request.offered) or prompt.calls
    syntax = _named(request.tool_syntax) or detect_syntax(server.template, server.short)
    inside = prompt.in_reasoning or opens_reasoning(prompt.text[-TURN:], tags)
    return Reading(tags, inside, syntax if calls else None)


def _named(name: str | None) -> Syntax | None:
    if name is None:
        return None
    if name not in SYNTAXES:
        raise RequestError(f"tool_syntax is {name!r}; there are {', '.join(SYNTAXES)}")
    return SYNTAXES[name]


# ----------------------------------------------------------------------------- constraints


def value_reader(constraint: Constraint | None) -> Callable[[str], Any] | None:
    """What makes the Python value of an answer, and finds out whether the server held it."""
    return None if constraint is None else functools.partial(checked_value, constraint)


def checked_value(constraint: Constraint, text: str) -> Any:
    """The value of a whole answer.

    Raises:
        RemoteError: The answer breaks the constraint: the server ignored it.

    >>> checked_value(Choices(("yes", "no")), "maybe")
    Traceback (most recent call last):
    llm_magic.errors.RemoteError: the server did not hold the answer to its choices: 'maybe' ...
    """
    wrong = ""
    match constraint:
        case Choices(options) if text not in options:
            wrong = f"choices: {text[:60]!r} is none of them"
        case Regex(pattern) if _differs(pattern, text):
            wrong = f"regular expression: {text[:60]!r} does not match"
        case Schema(schema):
            wrong = _breaks(schema, text)
    if wrong:
        raise RemoteError(f"the server did not hold the answer to its {wrong}")
    try:
        return read_value(constraint, text)
    except ValueError as e:
        raise RemoteError(f"the server's answer cannot be read: {e}") from e


def _differs(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text, re.S) is None
    except (re.error, RecursionError):  # a dialect of regular expressions that Python has not
        return False


def _breaks(schema: Mapping[str, Any] | bool, text: str) -> str:
    try:
        value = loads_as(Schema(True), text)
    except ValueError:
        return f"schema: {text[:60]!r} is no JSON value"
    error = next(iter(draft_of(schema)(schema).iter_errors(value)), None)
    return f"schema: {error.message[:200]}" if error is not None else ""


def session_of(request: Request, model: str) -> str:
    """What the requests of one conversation have in common: a digest of how it begins."""
    import hashlib

    first: Sequence[str] = [m.text for m in request.messages if m.role in ("system", "user")][:2]
    if not first:
        return ""
    return hashlib.blake2b("\n".join((model, *first)).encode(), digest_size=8).hexdigest()
