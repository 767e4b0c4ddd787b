"""Arguments of the public methods, read and checked: prompts, options, constraints.

Whatever a caller passes becomes a `Request`, or a RequestError that names the argument and says
what it must be. Nothing here needs a model.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict, cast

from .chat.constraints import kinds
from .chat.tools.definition import as_tools
from .errors import LLMError, RequestError, named
from .events import Choices, Message, Sampling, Token, ToolSpec, as_messages
from .provider import Prompt, RenderedPrompt, Request
from .sampling import FIELDS, read, scalar
from .taps import Key, Taps, as_edits
from .utf8 import whole

PromptLike = str | Sequence[int] | Sequence[Message | Mapping[str, Any]] | RenderedPrompt

FLAGS = ("echo", "reuse", "guess", "trim")


class RequestOptions(TypedDict, total=False):
    """Options of a request besides the sampling settings, see `provider.Request`."""

    given: Sequence[Token]
    tools: object  # whatever as_tools takes: functions, dicts, a JSON text
    tool_choice: str | Mapping[str, object] | None
    logprobs: int | None
    echo: bool | None
    suffix: str | None
    thinking: bool | None
    template_kwargs: Mapping[str, object] | None
    reuse: bool | None
    guess: bool | None
    trim: bool | None
    tool_syntax: str | None
    edit: object  # whatever taps.as_edits takes
    taps: Taps | Key | Sequence[Key] | None


def option_names() -> tuple[str, ...]:
    """Every keyword option of a request."""
    return (*FIELDS, *RequestOptions.__annotations__, *kinds.names())


def build_request(prompt: Prompt, default: Sampling, options: Mapping[str, object]) -> Request:
    """A Request from keyword options.

    Args:
        prompt: What to answer or continue.
        default: Sampling settings for what the options leave unset.
        options: Fields of `Sampling` and of `RequestOptions`, and the kinds of constraint; None is
            unset.

    Raises:
        RequestError: An option is unknown or its value is not valid.

    >>> build_request("Hello", Sampling(max_tokens=256), {"temperature": 0}).sampling.max_tokens
    256
    >>> build_request("Hello", Sampling(), {"temprature": 0})
    Traceback (most recent call last):
    llm_magic.errors.RequestError: unknown option 'temprature'; did you mean temperature?
    """
    known = option_names()
    for name in options:
        if name not in known:
            raise _unknown(name)
    present = {name: value for name, value in options.items() if value is not None}
    sampling = read({name: value for name, value in present.items() if name in FIELDS})
    own: dict[str, Any] = {name: _flag(name, present[name]) for name in FLAGS if name in present}
    for name in ("suffix", "tool_syntax"):
        if name in present:
            own[name] = _text(name, present[name])
    if "thinking" in present:
        own["thinking"] = _flag("thinking", present["thinking"])
    if "given" in present:
        own["given"] = _given(present["given"])
    if "template_kwargs" in present:
        own["template_kwargs"] = _mapping("template_kwargs", present["template_kwargs"])
    if "logprobs" in present:
        own["logprobs"] = count("logprobs", present["logprobs"])
    if "tools" in present:
        own["tools"] = _tools(present["tools"])
    if "tool_choice" in present:
        own["tool_choice"] = _tool_choice(present["tool_choice"], own.get("tools", ()))
    if "edit" in present:
        own["edit"] = as_edits(present["edit"])
    if "taps" in present:
        given = present["taps"]
        own["taps"] = given if isinstance(given, Taps) else Taps(cast("Key", given))
    constraint = kinds.constraint_of(present)
    if isinstance(constraint, Choices) and "temperature" not in present:
        # The most likely choice; a temperature that is asked for draws from the probabilities.
        sampling = replace(sampling, temperature=0.0)
    return Request(prompt, sampling=sampling.over(default), constraint=constraint, **own)


def _unknown(name: object) -> RequestError:
    known = option_names()
    near = difflib.get_close_matches(str(name), known, 3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the options are {', '.join(known)}"
    return RequestError(f"unknown option {name!r}; {hint}")


def _flag(name: str, value: object) -> bool:
    if getattr(value, "ndim", None) == 0 and callable(item := getattr(value, "item", None)):
        value = item()  # numpy's
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {shown(value)}; it must be True or False")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is {shown(value)}; it must be a text")
    return whole(value)


def _mapping(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise RequestError(f"{name} is {shown(value)}; it must be a dict")
    return value


def count(name: str, value: object, least: int = 0) -> int:
    """A whole number of at least `least`. numpy integers count.

    >>> count("n", 0, 1)
    Traceback (most recent call last):
    llm_magic.errors.RequestError: n is 0; it must be a whole number, 1 or more
    """
    number = scalar(value)
    if not isinstance(number, int) or number < least:
        raise RequestError(f"{name} is {shown(value)}; it must be a whole number, {least} or more")
    return number


def shown(value: object) -> str:
    """A value inside an error message: short, whatever its class does."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def _given(value: object) -> tuple[Token, ...]:
    tokens = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(token, Token) for token in tokens):
        raise RequestError(f"given is {shown(value)}; it must be a text or the tokens of a reply")
    return cast("tuple[Token, ...]", tokens)


# ----------------------------------------------------------------------------- tools


def _tools(value: Any) -> tuple[ToolSpec, ...]:
    try:
        return tuple(tool.spec for tool in as_tools(value))
    except LLMError:
        raise
    except Exception as e:  # of the objects that were passed
        raise RequestError(
            f"tools is {shown(value)}; it must be a list of functions or of JSON descriptions "
            f"({named(e)})"
        ) from e


def _tool_choice(choice: object, tools: Sequence[ToolSpec]) -> str:
    """auto, none, required or a tool's name, also from OpenAI's {"function": {"name": ...}}."""
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else None
    names = [tool.name for tool in tools]
    if not isinstance(choice, str) or choice not in ("auto", "none", "required", *names):
        ways = ", ".join(map(repr, ["auto", "none", "required", *names]))
        raise RequestError(f"tool_choice is {shown(choice)}; it must be one of {ways}")
    if not names and choice == "required":
        raise RequestError("tool_choice is 'required', but there are no tools")
    return choice


# ----------------------------------------------------------------------------- prompts


def as_prompt(prompt: object) -> Prompt:
    """Text, ids or messages, told apart by what they hold.

    Args:
        prompt: A text, token ids (a list or a numpy array), or messages.

    Raises:
        RequestError: It is none of them.

    >>> as_prompt([1, 2, 3])
    (1, 2, 3)
    >>> as_prompt(None)
    Traceback (most recent call last):
    llm_magic.errors.RequestError: prompt is None; it must be a text, token ids or messages
    """
    if isinstance(prompt, str):
        return whole(prompt)
    if isinstance(prompt, RenderedPrompt):
        return prompt
    if isinstance(prompt, bytes | Mapping | Message) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    try:
        items = list(prompt)
    except Exception as e:  # of a foreign class
        raise _no_prompt(prompt) from e
    numbers = [scalar(item) for item in items]
    if all(isinstance(number, int) for number in numbers):
        return tuple(cast("list[int]", numbers))
    if any(number is not None for number in numbers):
        raise _no_prompt(prompt)
    try:
        return as_messages(items)
    except LLMError:
        raise
    except Exception as e:
        raise RequestError(f"prompt: {e}") from None


def _no_prompt(prompt: object) -> RequestError:
    return RequestError(f"prompt is {shown(prompt)}; it must be a text, token ids or messages")


def as_ids(ids: object, name: str = "ids") -> tuple[int, ...]:
    """Token ids from a list or a numpy array. RequestError naming the argument if they are not."""
    try:
        found = as_prompt(ids)
    except RequestError:
        found = None
    if not isinstance(found, tuple) or any(isinstance(item, Message) for item in found):
        raise RequestError(f"{name} is {shown(ids)}; it must be a list of token ids")
    return cast("tuple[int, ...]", found)


def as_chat(messages: object, system: str | None) -> tuple[Message, ...]:
    """Messages of a chat; a text is one user message. `system` goes before them.

    >>> [m.role for m in as_chat("Hello", "Be brief.")]
    ['system', 'user']
    """
    if isinstance(messages, str):
        messages = (Message("user", messages),)
    found = as_prompt(messages)
    if not (isinstance(found, tuple) and found and isinstance(found[0], Message)):
        raise RequestError(
            f"messages is {shown(messages)}; it must be a text or a list of "
            "{'role': ..., 'content': ...}"
        )
    chat = found
    if system is None:
        return chat
    if chat[0].role == "system":
        raise RequestError("the messages already begin with a system message; leave system out")
    return (Message("system", _text("system", system)), *chat)
