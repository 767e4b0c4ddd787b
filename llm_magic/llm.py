"""What people call: complete, chat, stream, score, over any provider.

Comes in: texts, ids or messages and plain keyword options. Goes out: Replies and Streams. It must
not know how a provider works, nor anything about notebooks.
"""

import contextlib
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, cast, overload

from .chat.constraints import kinds
from .chat.interrupts import immediate
from .chat.reply import Fold, Reply
from .chat.stream import drained, interruptible, reply_of
from .chat.tools.definition import as_tools
from .errors import Interrupted, RequestError
from .events import (
    CallDelta,
    Delta,
    Message,
    Piece,
    Sampling,
    ToolSpec,
    as_messages,
)
from .provider import Prompt, Provider, Request, Stream
from .sampling import FIELDS, read, scalar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .events import Token

PromptLike = str | Sequence[int] | Sequence[Message | Mapping[str, Any]]

COMPLETE = Sampling(temperature=0.0, max_tokens=256)
CHAT = Sampling(temperature=0.7, max_tokens=256)

_REQUEST = frozenset(
    {
        *("tools", "tool_choice", "logprobs", "echo", "suffix", "thinking", "template_kwargs"),
        *("reuse", "guess", "trim", "tool_syntax"),
    }
)


def build_request(prompt: Prompt, default: Sampling, options: Mapping[str, Any]) -> Request:
    """A Request from keyword options. RequestError names an unknown option and near spellings."""
    known = [*sorted(FIELDS.keys() | _REQUEST), *kinds.names()]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {known}"
            raise RequestError(f"unknown option {name!r}{hint}")
    sampling = read({k: v for k, v in options.items() if k in FIELDS})
    others = {k: v for k, v in options.items() if k in _REQUEST and v is not None}
    if "tools" in others:
        others["tools"] = tuple(tool.spec for tool in as_tools(others["tools"]))
    if "tool_choice" in others:
        others["tool_choice"] = _tool_choice(others["tool_choice"], others.get("tools", ()))
    logprobs = others.get("logprobs")
    if logprobs is not None:
        number = scalar(logprobs)
        if not isinstance(number, int) or number < 0:
            raise RequestError(f"logprobs is {logprobs!r}; it must be a whole number, 0 or more")
        others["logprobs"] = number
    constraint = kinds.constraint_of(options)
    return Request(prompt, sampling.over(default), constraint=constraint, **others)


def _tool_choice(choice: Any, tools: Sequence[ToolSpec]) -> str:
    """auto, none, required or a tool's name, also from OpenAI's {"function": {"name": ...}}."""
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        choice = function.get("name") if isinstance(function, Mapping) else None
    names = [tool.name for tool in tools]
    if not isinstance(choice, str) or choice not in ("auto", "none", "required", *names):
        ways = ", ".join(map(repr, ["auto", "none", "required", *names]))
        raise RequestError(f"tool_choice is {choice!r}; it must be one of {ways}")
    if not names and choice == "required":
        raise RequestError("tool_choice is 'required', but there are no tools")
    return choice


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


def _heard(stream: Stream, on_delta: Callable[[Delta | CallDelta], Any]) -> Reply:
    """Read a stream to its end for a caller that wants to be called."""
    fold = Fold()
    with stream:
        for event in interruptible(stream):
            fold.add(event)
            if not isinstance(event, Delta | CallDelta):
                continue
            try:
                with immediate():
                    answer = on_delta(event)
            except Exception as e:
                stream.cancel()
                for rest in stream:  # until the engine has stopped
                    fold.add(rest)
                with contextlib.suppress(AttributeError):  # a class with slots of its own
                    e.partial = reply_of(stream, fold)  # type: ignore[attr-defined]
                raise
            if answer is Control.STOP:
                stream.cancel("stop")
                for rest in stream:
                    fold.add(rest)
    return reply_of(stream, fold)


def _gathered(streams: Sequence[Stream]) -> list[Reply]:
    """Read several streams side by side, so that the engine can batch them."""
    folds = [Fold() for _ in streams]
    left = dict(enumerate(streams))
    try:
        while left:
            for i, stream in list(left.items()):
                event = next(stream, None)
                if event is None:
                    del left[i]
                else:
                    folds[i].add(event)
    except KeyboardInterrupt:
        replies = [reply_of(s, f) for s, f in zip(streams, folds, strict=True)]
        n = sum(len(reply.tokens) for reply in replies)
        raise Interrupted(
            f"interrupted after {n} tokens of {len(streams)} replies", replies
        ) from None
    finally:
        for stream in streams:
            stream.close()
    return [reply_of(s, f) for s, f in zip(streams, folds, strict=True)]


def _seeded(request: Request, i: int) -> Request:
    seed = request.sampling.seed
    if seed is None or i == 0:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + i))


class Control(Enum):
    """What a callback of `LLM.stream` answers. None means CONTINUE."""

    CONTINUE = "continue"
    STOP = "stop"


class LLM:
    """A language model. Thread-safe: any number of threads may use one at the same time."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __repr__(self) -> str:
        return f"LLM({self.model!r})"

    @property
    def model(self) -> str:
        return self.provider.model

    @overload
    def stream(
        self,
        prompt: PromptLike,
        *,
        system: str | None = None,
        on_delta: None = None,
        **options: Any,
    ) -> Stream: ...
    @overload
    def stream(
        self,
        prompt: PromptLike,
        *,
        system: str | None = None,
        on_delta: Callable[[Delta | CallDelta], Any],
        **options: Any,
    ) -> Reply: ...
    def stream(
        self,
        prompt: PromptLike,
        *,
        system: str | None = None,
        on_delta: Callable[[Delta | CallDelta], Any] | None = None,
        **options: Any,
    ) -> Stream | Reply:
        """Start generating; the Stream yields events. Options: see `complete`.

        A text or ids are continued as they are; messages go through the chat template.

        on_delta: instead of a Stream, call this with each piece and return the Reply. It returns
        Control.STOP to end there (everything so far counts); anything else goes on. If it raises,
        generation stops, and the exception comes with the partial reply as `.partial`.
        """
        given = as_prompt(prompt)
        is_chat = bool(given) and isinstance(given, tuple) and isinstance(given[0], Message)
        if system is not None:
            given = _with_system(given, system)
            is_chat = True
        stream = self.provider.stream(build_request(given, CHAT if is_chat else COMPLETE, options))
        return stream if on_delta is None else _heard(stream, on_delta)

    @overload
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        n: None = None,
        best_of: int | None = None,
        **options: Any,
    ) -> Reply: ...
    @overload
    def complete(
        self, prompt: str | Sequence[int], *, n: int, best_of: int | None = None, **options: Any
    ) -> list[Reply]: ...
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        n: int | None = None,
        best_of: int | None = None,
        **options: Any,
    ) -> Reply | list[Reply]:
        """Continue a text (or token ids). Greedy and at most 256 tokens unless told otherwise.

        n: a list of so many replies. best_of: generate so many, keep those with the greatest mean
        logprob. With a seed, reply i is drawn with seed + i.

        Options: every field of `Sampling` (see `sampling.FIELDS`), logprobs (n alternatives per
        token), echo, suffix, schema | regex | choices | grammar, reuse (of the KV cache), guess (at
        tokens that repeat, checked several in a step).
        """
        return self._answer(build_request(as_prompt(prompt), COMPLETE, options), n, best_of)

    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        system: str | None = None,
        n: None = None,
        best_of: int | None = None,
        **options: Any,
    ) -> Reply: ...
    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        system: str | None = None,
        n: int,
        best_of: int | None = None,
        **options: Any,
    ) -> list[Reply]: ...
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, Any]],
        *,
        system: str | None = None,
        n: int | None = None,
        best_of: int | None = None,
        **options: Any,
    ) -> Reply | list[Reply]:
        """Answer a conversation (a text is one user message). Temperature 0.7, at most 256 tokens.

        Options: those of `complete`, and tools, tool_choice, thinking, template_kwargs, trim (leave
        the oldest exchanges out where the messages do not fit the window).
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
        return self._answer(build_request(given, CHAT, options), n, best_of)

    def _answer(self, request: Request, n: int | None, best_of: int | None) -> Reply | list[Reply]:
        for name, value in (("n", n), ("best_of", best_of)):
            if value is not None and (isinstance(value, bool) or value < 1):
                raise RequestError(f"{name} is {value!r}; it must be 1 or more")
        wanted, drawn = n or 1, max(best_of or 1, n or 1)
        if drawn == 1:
            reply = drained(self.provider.stream(request))
            return reply if n is None else [reply]
        replies = _gathered([self.provider.stream(_seeded(request, i)) for i in range(drawn)])
        if drawn > wanted:  # the most likely ones, in the order in which they were drawn
            order = sorted(range(drawn), key=lambda i: -(replies[i].mean_logprob or -math.inf))
            replies = [replies[i] for i in sorted(order[:wanted])]
        return replies[0] if n is None else replies

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
