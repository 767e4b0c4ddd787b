"""Values that all layers exchange: tokens, messages, sampling settings, events.

All of them are frozen, slotted dataclasses that any thread may hold, from the standard library
alone. Their texts can be written as UTF-8: a lone surrogate, which JSON or the result of a tool may
hold, becomes U+FFFD here, so everything can be shown and saved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .sampling import Sampling as Sampling
from .utf8 import whole, whole_json

Role = str
FinishReason = Literal["stop", "length", "tool_calls", "interrupted", "cancelled"]
DeltaKind = Literal["answer", "reasoning"]


def mend(of: object, *names: str) -> None:
    """Replace lone surrogates in these fields of a frozen dataclass, in its `__post_init__`."""
    for name in names:
        old = getattr(of, name)
        if (new := whole_json(old)) is not old:
            object.__setattr__(of, name, new)


# ----------------------------------------------------------------------------- tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a tokenised text. `text` shows undecodable bytes as U+FFFD, `bytes` is exact."""

    id: int
    text: str
    bytes: bytes
    special: bool


@dataclass(frozen=True, slots=True)
class Top:
    """One alternative at a position. `logprob`: nats, of the raw logits; None = minus infinity.

    `allowed` is False for a candidate that a constraint forbade.
    """

    id: int | None
    bytes: bytes
    logprob: float | None
    allowed: bool = True


@dataclass(frozen=True, slots=True)
class Token:
    """One generated or scored token.

    Attributes:
        id: Its id in the vocabulary; None where the provider has none.
        bytes: Its exact bytes, which may be part of a character.
        logprob: Natural log of the softmax of the raw logits, before temperature, penalties,
            filters and masks. None where it is unknown (the first token of a scored text) or minus
            infinity.
        rank: 1 for the most likely token of the vocabulary; None where unknown.
        top: The most likely alternatives by falling logprob; empty unless asked for. The chosen
            token need not be among them.
        at: Seconds since the request was submitted.
        masked: Share of probability that a constraint removed at this position; None where there
            is no constraint.
        trimmed: A stop string cut off this token's text, or a part of it.
        forced: The token was given, not drawn (prefill, branch, echo).
    """

    id: int | None
    bytes: bytes
    logprob: float | None
    rank: int | None
    top: tuple[Top, ...] = ()
    at: float = 0.0
    masked: float | None = None
    trimmed: bool = False
    forced: bool = False


# ----------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for.

    arguments: the raw JSON text as the model wrote it. in_reasoning: it stood inside reasoning that
    the model never closed; the reasoning counts as ended before it.
    """

    id: str
    name: str
    arguments: str
    in_reasoning: bool = False

    def __post_init__(self) -> None:
        mend(self, "id", "name", "arguments")


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of structured content. Only type "text" can be rendered by text models."""

    type: str
    text: str = ""

    def __post_init__(self) -> None:
        mend(self, "text")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation. `call_id` links a role "tool" turn to the call it answers."""

    role: Role
    content: str | tuple[Part, ...] | None
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        mend(self, "role", "content", "reasoning", "call_id", "name")

    @property
    def text(self) -> str:
        """The content as one string; None is the empty string."""
        match self.content:
            case None:
                return ""
            case str(text):
                return text
            case parts:
                return "".join(part.text for part in parts)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it. `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """What happened to one call: the trace keeps one of these per call.

    Attributes:
        approval: "auto" (nobody was asked), "approved", "edited" or "refused".
        status: "ok", "error" (the tool raised), "invalid" (arguments failed validation), "unknown"
            (no such tool), "refused", "timeout", "interrupted" or "repeated" (answered from an
            earlier record of the turn; the tool did not run).
        result: The text that went back to the model.
        seconds: How long it ran.
        waited: Seconds that a person took to decide about it before.
    """

    round: int
    call: ToolCall
    arguments: Any
    approval: str
    status: str
    seconds: float
    result: str
    stdout: str = ""
    error: str | None = None
    waited: float = 0.0

    def __post_init__(self) -> None:
        mend(self, "arguments", "approval", "status", "result", "stdout", "error")


# ----------------------------------------------------------------------------- constraints


@dataclass(frozen=True, slots=True)
class Schema:
    """Constraint: output is JSON that is valid under this JSON schema.

    Attributes:
        schema: The JSON schema.
        cls: The Python type of `Reply.parsed`; None: what JSON gives (dict, list, ...).
    """

    schema: Mapping[str, Any] | bool
    cls: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Regex:
    """Constraint: the whole output matches this regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Choices:
    """Constraint: the output is one of these strings."""

    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint: the output is a sentence of this grammar (Lark syntax, or GBNF)."""

    text: str


Constraint = Schema | Regex | Choices | Grammar

# ----------------------------------------------------------------------------- accounting


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of tokens.

    Attributes:
        prompt: Tokens of the prompt, those from the cache included.
        cached: Tokens that were reused from the KV cache. Of a branch this includes tokens of the
            answer that it goes on from, so it may be more than `prompt`: what was evaluated is
            `prompt` and the given tokens, less `cached`.
        completion: Tokens of the answer that were kept.
        guessed: Tokens of the answer that were guessed from earlier text, which cost a row of a
            step instead of a step.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    guessed: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Timings:
    """Times in seconds, and speeds in tokens a second.

    Attributes:
        queued: Until the first work on the request.
        prefill: Evaluation of the new tokens of the prompt.
        decode: From there to the end.
        first_token: From the request to its first token.
        load: Loading the model; only in the first reply after it.
    """

    load: float = 0.0
    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    first_token: float = 0.0
    prefill_tps: float = 0.0
    decode_tps: float = 0.0


# ----------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `ahead` others come first."""

    ahead: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Work before prefill. stage: "wait" (for the running cell), "download" or "load" (bytes),
    "compile" (programs).

    total 0 = unknown.
    """

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache; `cached` of them were there before."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one kind and the tokens whose text it carries (their last byte lies in it)."""

    kind: DeltaKind
    text: str
    tokens: tuple[Token, ...] = ()

    def __post_init__(self) -> None:
        if not self.text.isascii():  # one of these is made for each token
            object.__setattr__(self, "text", whole(self.text))


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call while it is written. id and name are set in its first piece only."""

    index: int
    id: str | None
    name: str | None
    arguments: str
    tokens: tuple[Token, ...] = ()

    def __post_init__(self) -> None:
        mend(self, "id", "name", "arguments")


@dataclass(frozen=True, slots=True)
class CallDone:
    """Call number `index` is complete."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolDone:
    """A tool ran (or was refused). Only conversations emit it."""

    record: ToolRecord


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a stream, exactly once. A failure raises instead."""

    reason: FinishReason
    usage: Usage
    timings: Timings


Event = Queued | Progress | Prefill | Delta | CallDelta | CallDone | ToolDone | Finish


def as_messages(messages: Sequence["Message | Mapping[str, object]"]) -> tuple[Message, ...]:
    """Message objects from a mix of Message and OpenAI-style dicts.

    Raises:
        ValueError: An entry is not a message; the text names its index.

    >>> as_messages([{"role": "user", "content": "Hello"}])[0].text
    'Hello'
    """
    return tuple(_as_message(i, m) for i, m in enumerate(messages))


def _as_message(i: int, m: "Message | Mapping[str, Any]") -> Message:
    if isinstance(m, Message):
        return m
    if not isinstance(m, Mapping):
        raise ValueError(f"messages[{i}] is a {type(m).__name__}, not a Message or a dict")
    role = m.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"messages[{i}] has no role")
    return Message(
        role=role,
        content=_as_content(i, m.get("content")),
        reasoning=str(m.get("reasoning_content") or m.get("reasoning") or ""),
        calls=tuple(_as_call(i, j, c) for j, c in enumerate(m.get("tool_calls") or ())),
        call_id=m.get("tool_call_id"),
        name=m.get("name"),
    )


def _as_content(i: int, content: object) -> str | tuple[Part, ...] | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return tuple(_as_part(i, part) for part in content)
    raise ValueError(
        f"messages[{i}].content is a {type(content).__name__}, not text or a list of parts"
    )


def _as_part(i: int, part: object) -> Part:
    if isinstance(part, Part):
        return part
    if isinstance(part, str):
        return Part("text", part)
    if isinstance(part, Mapping) and isinstance(part.get("type"), str):
        return Part(part["type"], str(part.get("text", "")))
    raise ValueError(f"messages[{i}].content has a part that is not {{'type': ..., 'text': ...}}")


def _as_call(i: int, j: int, call: Any) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"messages[{i}].tool_calls[{j}] has no function name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        import json

        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return ToolCall(str(call.get("id") or f"call_{j}"), function["name"], arguments or "{}")
