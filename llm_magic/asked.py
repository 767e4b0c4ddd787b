"""A request apart from its prompt and its sampling settings, as JSON and back.

What is usual is left out. With it, the prompt's ids and the settings, a reply can be generated
again. Nothing here needs a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import cast

from .chat import saved
from .chat.constraints import kinds
from .chat.json_values import to_json
from .errors import LLMError, UnsupportedError
from .events import Constraint, Message, Sampling, Schema, Token, ToolSpec
from .json_types import JsonObject
from .provider import RenderedPrompt, Request

_FLAGS = ("reasoning", "in_reasoning", "calls")  # of the rendered prompt


def asked_out(request: Request, prompt: RenderedPrompt) -> JsonObject:
    """What a request asks for besides its prompt.

    >>> asked_out(Request("Hi", logprobs=3), RenderedPrompt("Hi", (1, 2)))
    {'logprobs': 3}
    """
    found: JsonObject = {name: True for name in _FLAGS if getattr(prompt, name)}
    found |= {"chat": True} if prompt.messages else {}
    found |= {"given": len(request.given)} if request.given else {}
    found |= {"logprobs": request.logprobs} if request.logprobs is not None else {}
    found |= {"echo": True} if request.echo else {}
    found |= {"suffix": request.suffix} if request.suffix else {}
    found |= {"thinking": request.thinking} if request.thinking is not None else {}
    found |= {"tool_syntax": request.tool_syntax} if request.tool_syntax else {}
    found |= {"edited": True} if request.edit else {}
    if request.constraint is not None:
        found["constraint"] = constraint_out(request.constraint)
    if request.tools:
        found["tools"] = [to_json(asdict(tool)) for tool in request.tools]
        found["tool_choice"] = request.tool_choice
    return found


def constraint_out(constraint: Constraint) -> JsonObject:
    """A constraint by the option that gives it."""
    data = constraint.schema if isinstance(constraint, Schema) else asdict(constraint)
    value = data if isinstance(constraint, Schema) else next(iter(asdict(constraint).values()))
    return {kinds.KINDS[type(constraint)].name: to_json(value)}


def request_of(
    asked: Mapping[str, object],
    prompt: Sequence[int],
    text: str,
    sampling: Sampling,
    given: Sequence[Token],
) -> Request:
    """The request that `asked_out` has written. What is read comes from a file.

    Args:
        asked: What `asked_out` returned.
        prompt: The prompt's ids.
        text: The prompt's text.
        sampling: The settings, with a seed.
        given: The tokens that the answer begins with.

    Raises:
        ValueError: It is not what `asked_out` writes.
        UnsupportedError: The answer was made with edits.

    >>> request_of({"logprobs": 3}, (1, 2), "Hi", Sampling(seed=1), ()).logprobs
    3
    """
    if asked.get("edited"):
        raise UnsupportedError(
            "edit", "the answer was made with edits inside the model, which are not saved"
        )
    tools = tuple(map(_tool_in, saved.list_in(asked.get("tools", []), "tools")))
    flags = {name: bool(asked.get(name)) for name in _FLAGS}
    messages = (Message("user", ""),) if asked.get("chat") else ()  # they are rendered already
    thinking, logprobs = asked.get("thinking"), asked.get("logprobs")
    syntax = asked.get("tool_syntax")
    return Request(
        RenderedPrompt(text, tuple(prompt), messages, tools, **flags),
        given=tuple(given),
        sampling=sampling,
        tools=tools,
        tool_choice=saved.text_in(asked.get("tool_choice", "auto"), "tool_choice"),
        constraint=_constraint_in(asked.get("constraint")),
        logprobs=None if logprobs is None else saved.whole_in(logprobs, "logprobs"),
        echo=bool(asked.get("echo")),
        suffix=saved.text_in(asked.get("suffix", ""), "suffix"),
        thinking=None if thinking is None else saved.checked(thinking, bool, "thinking"),
        tool_syntax=None if syntax is None else saved.text_in(syntax, "tool_syntax"),
    )


def _tool_in(value: object) -> ToolSpec:
    data = saved.object_in(value, "a tool")
    return ToolSpec(
        saved.text_in(data.get("name"), "a tool's name"),
        saved.text_in(data.get("description", ""), "a tool's description"),
        saved.object_in(data.get("parameters", {}), "a tool's parameters"),
    )


def _constraint_in(value: object) -> Constraint | None:
    if value is None:
        return None
    try:
        return kinds.constraint_of(saved.object_in(value, "a constraint"))
    except LLMError as e:
        raise saved.fail(f"a constraint: {e}") from None


def sampling_out(sampling: Sampling) -> JsonObject:
    """Settings as JSON, every bit of them; a forbidden token's minus infinity as its text."""
    found = {k: v for k, v in asdict(sampling).items() if v is not None}
    if "logit_bias" in found:
        found["logit_bias"] = [
            [token, "-inf" if bias == float("-inf") else bias]
            for token, bias in found["logit_bias"]
        ]
    if "seed" in found:
        found["seed"] = str(found["seed"])  # a page would round a large one
    return cast("JsonObject", to_json(found))


def sampling_in(value: object) -> Sampling:
    """The settings of `sampling_out`.

    >>> sampling_in(sampling_out(Sampling(seed=1, logit_bias=((5, float("-inf")),)))).logit_bias
    ((5, -inf),)
    """
    data = dict(saved.object_in(value, "sampling"))
    if (pairs := data.get("logit_bias")) is not None:
        read = (saved.pair_in(p, "a bias") for p in saved.list_in(pairs, "logit_bias"))
        data["logit_bias"] = [[t, float("-inf") if bias == "-inf" else bias] for t, bias in read]
    if (seed := data.get("seed")) is not None:
        data["seed"] = saved.whole_field(saved.text_in(seed, "seed"), "seed")
    return saved.sampling_in(data)
