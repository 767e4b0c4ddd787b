"""What people call: complete, chat, stream, score, over any provider.

An `LLM` reads its arguments, asks its provider for a stream and returns Replies. How a provider
works, and how a notebook shows a reply, is not its business.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, overload

from .arguments import PromptLike, as_chat, as_ids, as_prompt, build_request, count, shown
from .chat.constraints import kinds
from .chat.interrupts import immediate
from .chat.origin import Identified, Origin
from .chat.reply import Reply
from .chat.stream import Stream, drained, interruptible
from .decisions.methods import Decisions
from .embedding import Embeddings
from .errors import Interrupted, RequestError
from .evaluation.mixin import Evaluations
from .events import CallDelta, Delta, Message, Piece, Sampling
from .inside.methods import LookInside
from .json_types import JsonObject
from .provider import Prompt, Provider, RenderedPrompt, Request, begins_with, require
from .sampling import FIELDS
from .served import Serving
from .tables.mixin import TableMethods
from .utf8 import whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

COMPLETE = Sampling(temperature=0.0, max_tokens=256)
CHAT = Sampling(temperature=0.7, max_tokens=256)


def _read_with(stream: Stream, on_delta: Callable[[Delta | CallDelta], object]) -> Reply:
    """Read a stream to its end and call `on_delta` with each piece."""
    with stream:
        for event in interruptible(stream):
            if not isinstance(event, Delta | CallDelta):
                continue
            try:
                with immediate():
                    answer = on_delta(event)
            except Exception as e:
                stream.cancel()
                for _ in stream:  # until the engine has stopped
                    pass
                with contextlib.suppress(AttributeError):  # a class with slots of its own
                    e.partial = stream.reply  # type: ignore[attr-defined]
                raise
            if answer is Control.STOP:
                stream.cancel("stop")
                for _ in stream:
                    pass
    return stream.reply


def _read_together(streams: Sequence[Stream]) -> list[Reply]:
    """Read several streams side by side, so that the engine can batch them."""
    running = list(streams)
    try:
        while running:
            running = [stream for stream in running if next(stream, None) is not None]
    except KeyboardInterrupt:
        replies = [stream.reply for stream in streams]
        n = sum(len(reply.tokens) for reply in replies)
        raise Interrupted(
            f"interrupted after {n} tokens of {len(streams)} replies", replies
        ) from None
    finally:
        for stream in streams:
            stream.close()
    return [stream.reply for stream in streams]


def _seeded(request: Request, i: int) -> Request:
    seed = request.sampling.seed
    if seed is None or i == 0:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + i))


def _is_chat(prompt: Prompt) -> bool:
    return isinstance(prompt, tuple) and bool(prompt) and isinstance(prompt[0], Message)


class Control(Enum):
    """What a callback of `LLM.stream` answers. None means CONTINUE."""

    CONTINUE = "continue"
    STOP = "stop"


class LLM(Embeddings, Decisions, TableMethods, Evaluations, LookInside, Serving):
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
        **options: object,
    ) -> Stream: ...
    @overload
    def stream(
        self,
        prompt: PromptLike,
        *,
        system: str | None = None,
        on_delta: Callable[[Delta | CallDelta], object],
        **options: object,
    ) -> Reply: ...
    def stream(
        self,
        prompt: PromptLike,
        *,
        system: str | None = None,
        on_delta: Callable[[Delta | CallDelta], object] | None = None,
        **options: object,
    ) -> Stream | Reply:
        """Start generating. The stream yields events and has the reply as `.reply`.

        >>> from llm_magic.providers.scripted import Scripted
        >>> LLM(Scripted(["Hello!"])).stream("Hi", on_delta=lambda event: None).text
        'Hello!'

        Args:
            prompt: A text or token ids, which are continued, or messages, which the chat template
                renders.
            system: A system prompt before the messages; a text becomes a message.
            on_delta: Called with each piece instead of returning a stream. `Control.STOP` as its
                result ends the answer there; an exception stops it and carries the reply so far as
                `.partial`.
            options: As `complete` and `chat` take them.

        Returns:
            The stream, or with `on_delta` the reply.

        Raises:
            RequestError: An option or the prompt is wrong; nothing was computed.
        """
        read = as_prompt(prompt)
        if system is not None:
            if not isinstance(read, str) and not _is_chat(read):
                raise RequestError("system needs messages or a text, not token ids")
            read = as_chat(read, system)
        stream = self._open(self._request(read, options))
        return stream if on_delta is None else _read_with(stream, on_delta)

    def _request(self, prompt: Prompt, options: Mapping[str, object]) -> Request:
        """The request of a prompt; what the options leave unset is the model's or ours."""
        return self._with_defaults(prompt, COMPLETE if not _is_chat(prompt) else None, options)

    def _with_defaults(
        self, prompt: Prompt, default: Sampling | None, options: Mapping[str, object]
    ) -> Request:
        """default None: the model's own for chats.

        The penalties of the model keep long answers from repeating themselves. They also keep an
        answer from repeating the prompt, so they do not hold where the most likely token or a
        constraint is asked for.
        """
        if isinstance(words := options.get("given"), str):
            options = {**options, "given": begins_with(words)}
        if default is not None:
            return build_request(prompt, default, options)
        request = build_request(prompt, self.provider.defaults.over(CHAT), options)
        if not request.sampling.greedy and request.constraint is None:
            return request
        penalties = (field.name for field in FIELDS.values() if field.group == "penalty")
        unset = {name: None for name in penalties if options.get(name) is None}
        return replace(request, sampling=replace(request.sampling, **unset))

    def _open(self, request: Request) -> Stream:
        require(self.provider, *request.needs)
        return self.provider.stream(request)

    @overload
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        n: None = None,
        best_of: int | None = None,
        **options: object,
    ) -> Reply: ...
    @overload
    def complete(
        self, prompt: str | Sequence[int], *, n: int, best_of: int | None = None, **options: object
    ) -> list[Reply]: ...
    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        n: int | None = None,
        best_of: int | None = None,
        **options: object,
    ) -> Reply | list[Reply]:
        """Continue a text or token ids: the most likely tokens, at most 256, unless told otherwise.

        >>> from llm_magic.providers.scripted import Scripted
        >>> reply = LLM(Scripted([" in a land"])).complete("Once upon a time", max_tokens=2)
        >>> reply.text, reply.finish_reason
        (' in a', 'length')

        Args:
            prompt: The text, or its token ids.
            n: Return a list of so many replies. With a seed, reply i is drawn with seed + i.
            best_of: Generate so many, and return those with the greatest mean log-probability.
            options: Every field of `Sampling`; logprobs (so many alternatives per token); schema,
                regex, choices or grammar; given (what the answer begins with); echo; suffix; reuse
                (of the KV cache); guess (tokens of repeated text, checked several in a step).

        Returns:
            The reply, or a list of n.

        Raises:
            RequestError: An option or the prompt is wrong; nothing was computed.
            EngineError: The generation failed; `.partial` is the reply so far.
        """
        return self._answer(self._with_defaults(as_prompt(prompt), COMPLETE, options), n, best_of)

    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, object]],
        *,
        system: str | None = None,
        n: None = None,
        best_of: int | None = None,
        **options: object,
    ) -> Reply: ...
    @overload
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, object]],
        *,
        system: str | None = None,
        n: int,
        best_of: int | None = None,
        **options: object,
    ) -> list[Reply]: ...
    def chat(
        self,
        messages: str | Sequence[Message | Mapping[str, object]],
        *,
        system: str | None = None,
        n: int | None = None,
        best_of: int | None = None,
        **options: object,
    ) -> Reply | list[Reply]:
        """Answer a conversation. What is not set is the model's own, else temperature 0.7 and at
        most 256 tokens.

        >>> from llm_magic.providers.scripted import Scripted
        >>> LLM(Scripted(["Paris."])).chat("The capital of France?", temperature=0).text
        'Paris.'

        Args:
            messages: The messages; a text is one message of the user.
            system: A system prompt before them.
            n: Return a list of so many replies. With a seed, reply i is drawn with seed + i.
            best_of: Generate so many, and return those with the greatest mean log-probability.
            options: Those of `complete`, and tools, tool_choice, thinking, template_kwargs, and
                trim (leave the oldest exchanges out where the messages do not fit the window).

        Returns:
            The reply, or a list of n. Tool calls are in `.calls`; a `Conversation` runs them.

        Raises:
            RequestError: An option or a message is wrong; nothing was computed.
            EngineError: The generation failed; `.partial` is the reply so far.
        """
        return self._answer(self._request(as_chat(messages, system), options), n, best_of)

    def _answer(self, request: Request, n: int | None, best_of: int | None) -> Reply | list[Reply]:
        wanted = 1 if n is None else count("n", n, 1)
        drawn = wanted if best_of is None else max(wanted, count("best_of", best_of, 1))
        if drawn == 1:
            reply = drained(self._open(request))
            return reply if n is None else [reply]
        if drawn > wanted and request.logprobs is None and not request.echo:
            request = replace(request, logprobs=0)  # what decides which ones are returned
        replies = _read_together([self._open(_seeded(request, i)) for i in range(drawn)])
        if drawn > wanted:  # the most likely ones, in the order in which they were drawn
            order = sorted(range(drawn), key=lambda i: -(replies[i].mean_logprob or -math.inf))
            replies = [replies[i] for i in sorted(order[:wanted])]
        return replies[0] if n is None else replies

    def render(
        self,
        messages: PromptLike,
        *,
        system: str | None = None,
        **options: object,
    ) -> RenderedPrompt:
        """The prompt as the model gets it: text and ids, chat template included."""
        read = as_prompt(messages) if system is None else as_chat(messages, system)
        return self.provider.render(self._request(read, options))

    def tokenize(self, text: str, special: bool = True) -> list[Piece]:
        """The tokens of a text. special: control-token strings become control tokens."""
        if not isinstance(text, str):
            raise RequestError(f"text is {shown(text)}; it must be a text")
        require(self.provider, "tokenize")
        return self.provider.tokenize(whole(text), special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids; control tokens are left out."""
        require(self.provider, "tokenize")
        return self.provider.detokenize(as_ids(ids))

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
        require(self.provider, "score")
        return self.provider.logprobs(as_ids(ids))

    def score(self, text: str | Sequence[int], top: int = 5, special: bool = True) -> Reply:
        """A text's own tokens with logprob and rank; `.perplexity` of the Reply sums them up.

        The first token has no logprob unless the model starts with BOS: nothing precedes it.
        """
        require(self.provider, "score")
        number = count("top", top)
        if isinstance(text, str):
            ids = tuple(p.id for p in self.tokenize(text, special))
        else:
            ids = as_ids(text, "text")
        tokens = tuple(self.provider.score(ids, number))
        shown_text = text if isinstance(text, str) else self.detokenize(ids)
        return replace(
            Reply(shown_text), tokens=tokens, kinds=("answer",) * len(tokens), model=self.model,
            origin=self._origin({"score": number}),
        )  # fmt: skip

    def _origin(self, asked: JsonObject) -> Origin | None:
        if not isinstance(self.provider, Identified):
            return None
        return replace(self.provider.origin(), asked=asked)

    def score_choices(
        self,
        prompt: PromptLike,
        choices: object,
        *,
        system: str | None = None,
        **options: object,
    ) -> dict[str, float]:
        """The natural log of the probability of each whole choice behind a prompt.

        A choice's probability is the product of its tokens' probabilities; where one choice is the
        beginning of another, that of an end behind it counts too. `math.exp` of these, divided by
        their sum, are the probabilities in `Reply.choices`. They do not depend on what else runs.

        Args:
            prompt: A text, token ids or messages.
            choices: "yes|no", a list of texts, or an Enum class of texts.
            system: The system prompt; only with a text or messages.
            **options: Options of the request that change the prompt, such as `tools`.

        Raises:
            RequestError: An argument is not valid.
            UnsupportedError: The provider cannot score choices.
        """
        require(self.provider, "choices")
        texts = kinds.choices(choices).options
        read = as_prompt(prompt) if system is None else as_chat(prompt, system)
        request = self._request(read, options)
        return dict(zip(texts, self.provider.score_choices(request, texts), strict=True))

    def status(self) -> object:
        """What is loaded and how busy it is."""
        return self.provider.status()

    def unload(self) -> None:
        """Free weights and caches. Streams that are running fail with NotLoadedError."""
        self.provider.close()
