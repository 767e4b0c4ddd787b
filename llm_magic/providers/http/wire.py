"""Requests as the bodies that a server reads: messages, sampling, tools, constraints.

What a server cannot do is refused before anything is sent. What is not asked for is not sent, so
the server's own settings hold.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from llm_magic.chat.exchanges import to_openai
from llm_magic.chat.prompts.entries import tool_entry
from llm_magic.errors import RequestError, UnsupportedError
from llm_magic.events import Choices, Constraint, Grammar, Message, Regex, Sampling, Schema
from llm_magic.provider import Request
from llm_magic.sampling import FIELDS

from .dialects import Dialect, Form

Body = dict[str, Any]
MAX_TOP = 20  # alternatives of a token that OpenAI's chats give


def chat_body(request: Request, messages: Sequence[Message], model: str, dialect: Dialect) -> Body:
    """The body of a chat completion.

    Args:
        request: What is asked for.
        messages: Its messages, reshaped if the server's template needs it.
        model: The model as the server names it.
        dialect: The kind of server.

    Raises:
        UnsupportedError: The server cannot do it; nothing was sent.
    """
    streams = dialect.tools_logprobs or not request.offered or request.logprobs is None
    body: Body = {"model": model, "messages": message_entries(messages, dialect)}
    body |= _common(request, dialect, streams)
    if request.logprobs is not None:
        body["logprobs"] = True
        body["top_logprobs"] = _top(request.logprobs, dialect)
        if dialect.name == "vllm":
            body["return_token_ids"] = True
    body |= _tools(request, dialect) | _template(request, dialect)
    return body


def text_body(request: Request, prompt: str | Sequence[int], model: str, dialect: Dialect) -> Body:
    """The body of a completion of a text or of token ids.

    Raises:
        UnsupportedError: The server cannot do it; nothing was sent.
    """
    if not isinstance(prompt, str) and not dialect.ids:
        raise _cannot("ids", "takes no token ids as a prompt", dialect)
    body: Body = {"model": model, "prompt": prompt if isinstance(prompt, str) else list(prompt)}
    body |= _common(request, dialect, True)
    if request.logprobs is not None:
        body["logprobs"] = _top(request.logprobs, dialect)
        if dialect.name in ("vllm", "llm_magic"):
            body["return_token_ids"] = True
    return body


def message_entries(messages: Sequence[Message], dialect: Dialect) -> list[Body]:
    """Messages in OpenAI's form; contents that are texts or parts go as they are."""
    entries = to_openai(messages)
    if not dialect.history:
        for entry in entries:
            entry.pop("reasoning_content", None)
    return entries


def tool_entries(request: Request) -> list[Body]:
    return [tool_entry(tool) for tool in request.offered]


def _common(request: Request, dialect: Dialect, streams: bool) -> Body:
    body: Body = {"stream": streams}
    if streams:
        body["stream_options"] = {"include_usage": True}
        if dialect.progress:
            body |= {"return_progress": True}
    if dialect.name == "llama.cpp":
        body["cache_prompt"] = request.reuse
    body |= sampling_fields(request.sampling, dialect)
    if request.constraint is not None:
        body |= constraint_fields(request.constraint, dialect)
    return body


def _top(asked: int, dialect: Dialect) -> int:
    """How many alternatives the server is asked for: at least one where it gives none without."""
    return asked if dialect.zero_top else max(1, asked)


def sampling_fields(sampling: Sampling, dialect: Dialect) -> Body:
    """The settings that are set, by their names on the wire.

    >>> from .dialects import DIALECTS
    >>> sampling_fields(Sampling(temperature=0, dry_last_n=8), DIALECTS["llama.cpp"])
    {'temperature': 0, 'dry_penalty_last_n': 8}
    >>> sampling_fields(Sampling(min_p=0.1), DIALECTS["openai"])
    Traceback (most recent call last):
    llm_magic.errors.UnsupportedError: a server of the kind 'openai' has no setting min_p
    """
    body: Body = {}
    for name in FIELDS:
        value = getattr(sampling, name)
        if value is None or value == ():
            continue
        key = dialect.wire(name)
        if key is None:
            raise _cannot(name, f"has no setting {name}", dialect)
        match name:
            case "stop" | "dry_breakers":
                value = list(value)
            case "logit_bias":
                value = {str(token): _bias(b) for token, b in value}
            case "mirostat" if dialect.name == "llm_magic":
                value = list(value)
            case "mirostat":
                body |= {"mirostat_tau": value[0], "mirostat_eta": value[1]}
                value = 2
            case "temperature":
                value = 1 if value < 0 else value
        body[key] = value
    return body


def _bias(value: float) -> float:
    return -100.0 if value == -math.inf else value


# ----------------------------------------------------------------------------- tools


def _tools(request: Request, dialect: Dialect) -> Body:
    offered = request.offered
    if not offered:
        return {}
    choice = request.tool_choice
    body: Body = {"tools": tool_entries(request)}
    if choice in ("auto", "required"):
        body["tool_choice"] = choice
    elif dialect.named_choice:
        body["tool_choice"] = {"type": "function", "function": {"name": choice}}
    else:  # the one tool that may be called is the only one
        entries = [entry for entry in body["tools"] if entry["function"]["name"] == choice]
        body |= {"tools": entries, "tool_choice": "required"}
    if dialect.name in ("llama.cpp", "llm_magic"):
        body["parallel_tool_calls"] = True  # OpenAI's default, but not llama-server's
    return body


def _template(request: Request, dialect: Dialect) -> Body:
    kwargs = dict(request.template_kwargs)
    if request.thinking is not None and dialect.kwargs:
        kwargs = {"enable_thinking": request.thinking, **kwargs}
        if dialect.name != "llm_magic":  # templates of DeepSeek read another name
            kwargs = {"thinking": request.thinking, **kwargs}
    if kwargs and not dialect.kwargs:
        raise _cannot("template_kwargs", "takes no variables of the chat template", dialect)
    return {"chat_template_kwargs": kwargs} if kwargs else {}


# ----------------------------------------------------------------------------- constraints


def constraint_fields(constraint: Constraint, dialect: Dialect) -> Body:
    """What holds an answer to a constraint.

    >>> from llm_magic.events import Choices
    >>> from .dialects import DIALECTS
    >>> constraint_fields(Choices(("a", "b")), DIALECTS["llama.cpp"])
    {'grammar': 'root ::= "a" | "b"'}
    """
    form = _form(constraint)
    if form not in dialect.bound:
        able = ", ".join(sorted(dialect.bound)) or "nothing"
        raise _cannot("constraint", f"cannot hold an answer to {form} (it can: {able})", dialect)
    if isinstance(constraint, Schema):
        schema = constraint.schema if not isinstance(constraint.schema, bool) else {}
        named = {"name": "answer", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    match dialect.binds:
        case "gbnf":
            return {"grammar": _gbnf(constraint, dialect)}
        case "vllm":
            return {"structured_outputs": _vllm(constraint)}
        case "sglang":
            return _sglang(constraint)
    return {form: _value(constraint)}


def _form(constraint: Constraint) -> Form:
    names: Mapping[type, Form] = {
        Schema: "schema", Regex: "regex", Choices: "choices", Grammar: "grammar"
    }  # fmt: skip
    return names[type(constraint)]


def _value(constraint: Constraint) -> object:
    match constraint:
        case Choices(options):
            return list(options)
        case Regex(pattern):
            return pattern
        case Grammar(text):
            return text
    raise RequestError(f"internal error: {constraint!r} has no value of its own")


def _gbnf(constraint: Constraint, dialect: Dialect) -> str:
    if isinstance(constraint, Choices):
        quoted = [json.dumps(text, ensure_ascii=False) for text in constraint.options]
        return f"root ::= {' | '.join(quoted)}"
    text = cast(Grammar, constraint).text
    if "::=" not in text:
        raise _cannot("constraint", "reads grammars in GBNF (root ::= ...), not in Lark", dialect)
    return text


def _vllm(constraint: Constraint) -> Body:
    key = {"choices": "choice"}.get(form := _form(constraint), form)
    return {key: _value(constraint)}


def _sglang(constraint: Constraint) -> Body:
    match constraint:
        case Choices(options):
            return {"regex": "|".join(f"({re.escape(text)})" for text in options)}
        case Regex(pattern):
            return {"regex": pattern}
    return {"ebnf": _value(constraint)}


def _cannot(capability: str, what: str, dialect: Dialect) -> UnsupportedError:
    return UnsupportedError(capability, f"a server of the kind {dialect.name!r} {what}")
