"""What people call: complete, chat, stream, score, over any provider.

Comes in: texts, ids or messages and plain keyword options. Goes out: Replies and Streams. It must
not know how a provider works, nor anything about notebooks.
"""

import difflib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, cast

from .chat.reply import Fold, Reply
from .chat.schema import as_schema
from .errors import Interrupted, RequestError
from .events import (
    Choices,
    Constraint,
    Event,
    Finish,
    Grammar,
    Message,
    Piece,
    Regex,
    Sampling,
    Schema,
    ToolSpec,
    as_messages,
)
from .provider import Prompt, Provider, Request, Stream

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .events import Token

PromptLike = str | Sequence[int] | Sequence[Message | Mapping[str, Any]]

COMPLETE = Sampling(temperature=0.0, max_tokens=256)
CHAT = Sampling(temperature=0.7, max_tokens=256)

_SAMPLING = frozenset(f.name for f in fields(Sampling))
_CONSTRAINTS = ("schema", "regex", "choices", "grammar")
_REQUEST = frozenset(
    {
        *("tools", "tool_choice", "logprobs", "echo", "suffix", "thinking", "template_kwargs"),
        *("reuse", "trim"),
    }
)


def build_request(prompt: Prompt, default: Sampling, options: Mapping[str, Any]) -> Request:
    """A Request from keyword options. RequestError names an unknown option and near spellings."""
    known = [*sorted(_SAMPLING | _REQUEST), *_CONSTRAINTS]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {known}"
            raise RequestError(f"unknown option {name!r}{hint}")
    sampling = Sampling(**{k: _sampling_value(k, v) for k, v in options.items() if k in _SAMPLING})
    others = {k: v for k, v in options.items() if k in _REQUEST and v is not None}
    if "tools" in others:
        others["tools"] = tuple(as_tool_spec(t) for t in others["tools"])
    logprobs = others.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or logprobs < 0):
        raise RequestError(f"logprobs is {logprobs!r}; it must be 0 or more, or None")
    return Request(prompt, sampling.over(default), constraint=_constraint(options), **others)


def _sampling_value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "stop":
        texts = (value,) if isinstance(value, str) else tuple(value)
        if not all(isinstance(t, str) for t in texts):
            raise RequestError(f"stop is {value!r}; it must be a text or a list of texts")
        return tuple(t for t in texts if t)
    if name == "logit_bias":
        pairs = value.items() if isinstance(value, Mapping) else value
        # JSON knows only string keys: "123" is an id, any other string is the text of a token.
        return tuple((int(k) if str(k).isdigit() else k, float(v)) for k, v in pairs)
    if name == "mirostat":
        return (float(value[0]), float(value[1]))
    kind = (
        int
        if name in ("top_k", "repeat_last_n", "seed", "max_tokens", "min_tokens")
        else (int, float)
    )
    if isinstance(value, bool) or not isinstance(value, kind):
        raise RequestError(f"{name} is {value!r}; it must be a number")
    return value


def _constraint(options: Mapping[str, Any]) -> Constraint | None:
    given = [name for name in _CONSTRAINTS if options.get(name) is not None]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} cannot be used together; choose one")
    if not given:
        return None
    value = options[given[0]]
    match given[0]:
        case "schema":
            plain = isinstance(value, Mapping | bool)
            return Schema(as_schema(value), None if plain else value)
        case "regex":
            return Regex(value)
        case "choices":
            return Choices(tuple(value))
        case _:
            return Grammar(value)


def as_tool_spec(tool: Any) -> ToolSpec:
    """A ToolSpec from itself or an OpenAI-style dict. RequestError says what is missing."""
    if isinstance(tool, ToolSpec):
        return tool
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"a tool needs a name: {tool!r}")
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    return ToolSpec(
        function["name"], str(function.get("description", "")), function.get("parameters") or empty
    )


def as_prompt(prompt: PromptLike) -> Prompt:
    """Text, ids or messages, told apart by what they hold. RequestError if it is none of them."""
    if isinstance(prompt, str):
        return prompt
    items = list(prompt)
    if all(isinstance(i, int) and not isinstance(i, bool) for i in items):
        return tuple(cast("list[int]", items))
    try:
        return as_messages(cast("list[Message | Mapping[str, Any]]", items))
    except ValueError as e:
        raise RequestError(str(e)) from None


def interruptible(stream: Stream) -> Iterator[Event]:
    """The stream's events on the main thread, with Ctrl-C (or the stop button) handled.

    The first interrupt cancels the stream; its last events still come, and after them `Interrupted`
    is raised with the partial reply. A second interrupt raises at once.
    """
    interrupted = False
    events = iter(stream)
    while True:
        try:
            event = next(events)
        except StopIteration:
            break
        except KeyboardInterrupt as e:
            if interrupted:
                stream.close()
                raise _interrupted(stream) from None
            if isinstance(e, Interrupted):
                raise
            interrupted = True
            stream.cancel("interrupted")
            continue
        yield event
    if interrupted:
        raise _interrupted(stream)


def _interrupted(stream: Stream) -> Interrupted:
    reply: Reply | None = getattr(stream, "reply", None)
    n = len(reply.tokens) if reply else 0
    return Interrupted(f"interrupted after {n} token{'' if n == 1 else 's'}", reply)


class LLM:
    """A language model. Thread-safe: any number of threads may use one at the same time."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return f"LLM({self.model!r})"

    @property
    def model(self) -> str:
        return self.provider.model

    def stream(self, prompt: PromptLike, *, system: str | None = None, **options: Any) -> Stream:
        """Start generating; the Stream yields events. Options: see `complete`.

        A text or ids are continued as they are; messages go through the chat template.
        """
        given = as_prompt(prompt)
        is_chat = bool(given) and isinstance(given, tuple) and isinstance(given[0], Message)
        if system is not None:
            given = _with_system(given, system)
            is_chat = True
        return self.provider.stream(build_request(given, CHAT if is_chat else COMPLETE, options))

    def complete(self, prompt: str | Sequence[int], **options: Any) -> Reply:
        """Continue a text (or token ids). Greedy and at most 256 tokens unless told otherwise.

        Options: max_tokens, min_tokens, temperature (0 is greedy), top_k, top_p, min_p, typical,
        mirostat, seed, stop, repeat_penalty, repeat_last_n, frequency_penalty, presence_penalty,
        logit_bias, logprobs (n alternatives per token), echo, suffix, schema | regex | choices |
        grammar, reuse (of the KV cache).
        """
        return self._finish(
            self.provider.stream(build_request(as_prompt(prompt), COMPLETE, options))
        )

    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        system: str | None = None,
        **options: Any,
    ) -> Reply:
        """Answer a conversation (a text is one user message). Temperature 0.7, at most 256 tokens.

        Options: those of `complete`, and tools, tool_choice, thinking, template_kwargs.
        """
        given: Prompt
        if isinstance(messages, str):
            given = (Message("user", messages),)
        else:
            given = as_prompt(messages)
            if not given or not isinstance(given[0], Message):
                raise RequestError("chat needs messages: a list of {'role': ..., 'content': ...}")
        if system is not None:
            given = _with_system(given, system)
        return self._finish(self.provider.stream(build_request(given, CHAT, options)))

    def _finish(self, stream: Stream) -> Reply:
        fold_of = getattr(stream, "reply", None)
        fold = Fold(self.model) if fold_of is None else None
        with stream:
            events: Iterator[Event] = stream
            if threading.current_thread() is threading.main_thread():
                events = interruptible(stream)
            for event in events:
                if fold is not None:
                    fold.add(event)
                if isinstance(event, Finish):
                    pass  # the loop ends by itself; breaking would hide an interrupt
        return fold.reply() if fold is not None else cast(Reply, stream.reply)  # type: ignore[attr-defined]

    def tokenize(self, text: str, special: bool = True) -> list[Piece]:
        """The tokens of a text. special: control-token strings become control tokens."""
        return self.provider.tokenize(text, special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens are left out."""
        return self.provider.detokenize(ids)

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
        return cast("npt.NDArray[np.float32]", self.provider.logprobs(ids))

    def score(self, text: str | Sequence[int], top: int = 5, special: bool = True) -> Reply:
        """A text's own tokens with logprob and rank; `.perplexity` of the Reply sums them up.

        The first token has no logprob unless the model starts with BOS: nothing precedes it.
        """
        ids = [p.id for p in self.tokenize(text, special)] if isinstance(text, str) else list(text)
        tokens: tuple[Token, ...] = tuple(self.provider.score(ids, top))
        shown = text if isinstance(text, str) else self.detokenize(ids)
        return replace(
            Reply(shown), tokens=tokens, kinds=("answer",) * len(tokens), model=self.model
        )

    def status(self) -> Any:
        """What is loaded and how busy it is."""
        return self.provider.status()

    def unload(self) -> None:
        """Free weights and caches. Streams that are running fail with NotLoadedError."""
        self.provider.close()


def _with_system(prompt: Prompt, system: str) -> Prompt:
    if isinstance(prompt, str):
        prompt = (Message("user", prompt),)
    if prompt and not isinstance(prompt[0], Message):
        raise RequestError("a system prompt needs messages or a text, not token ids")
    messages = cast("tuple[Message, ...]", prompt)
    if messages and messages[0].role == "system":
        raise RequestError("the messages already begin with a system message")
    return (Message("system", system), *messages)
