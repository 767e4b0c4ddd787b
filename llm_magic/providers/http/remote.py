"""A model on one or several servers, as a provider."""

import contextlib
import functools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llm_magic.chat.exchanges import shorter
from llm_magic.chat.fold import Fold
from llm_magic.errors import (
    ContextOverflowError,
    NotLoadedError,
    RemoteError,
    RequestError,
    UnsupportedError,
)
from llm_magic.events import Message, Piece, Sampling, Token
from llm_magic.provider import Capability, Pooling, RenderedPrompt, Request

from . import prompts, scores, vectors, wire
from .alternation import Alternation
from .discover import Server
from .exchange import Exchange
from .fleet import Endpoint, Retries
from .items import Asked, CallPiece, Item, Text
from .lanes import Call
from .limits import Timeouts
from .prompts import Reading
from .sender import Sender
from .stream import Plan, RemoteStream
from .text import Texts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROBE = 30.0  # seconds for the question what a template takes
SEED_BITS = 31  # of a seed that is drawn: every server takes it


@dataclass(frozen=True, slots=True)
class RemoteStatus:
    """What answers and how busy it is.

    Attributes:
        model: The name here.
        device: Where it runs.
        compute: The kind of server, and its version where it tells.
        ctx: Tokens of the window; None where it does not say.
        running: Requests of this provider under way.
        servers: Each server with its state.
    """

    model: str
    device: str
    compute: str
    ctx: int | None
    running: int
    servers: str


class Remote:
    """A model on servers that speak OpenAI's protocol. Made by `connect`.

    Args:
        name: The model's name here.
        sender: Sends the requests.
        servers: What each server is; the first one decides what can be done.
    """

    def __init__(self, name: str, sender: Sender, servers: Mapping[Endpoint, Server]) -> None:
        self.model = name
        self.defaults = Sampling()
        self.closed = False
        self.sender = sender
        self.server = next(iter(servers.values()))
        self._servers = dict(servers)
        self._timeouts = sender.timeouts
        self._alternation = Alternation(self._probe)
        self.texts = Texts(sender.ask, self.server, self.model_at)
        self.vectors = vectors.Vectors(
            sender.ask, self.server, self.texts, self.model_at, self.server.ctx
        )
        self._reranks = True  # until the server says that it has no route for it

    # ------------------------------------------------------------------ what it is

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this kind of server can do. Some refuse it only when they are asked."""
        return self.server.dialect.capabilities | {"embed", "rerank"}

    def model_at(self, endpoint: Endpoint) -> str:
        """The model as a server names it."""
        return self._servers.get(endpoint, self.server).model

    def status(self) -> RemoteStatus:
        fleet = self.sender.fleet
        lines = []
        for endpoint in fleet.endpoints:
            state = "" if fleet.healthy(endpoint) else ", not reachable"
            lines.append(f"{endpoint.address.base} ({endpoint.in_flight} running{state})")
        kind = f"{self.server.dialect.name} {self.server.version}".strip()
        return RemoteStatus(
            self.model, "server", kind, self.server.ctx, fleet.in_flight, ", ".join(lines)
        )

    def health(self) -> bool:
        """Whether a server answers within five seconds."""
        from .discover import healthy

        return any(healthy(self.sender, endpoint) for endpoint in self.sender.fleet.endpoints)

    def close(self) -> None:
        """Close the connections that are kept. Requests under way end by themselves."""
        self.closed = True
        self.sender.fleet.close()

    @contextlib.contextmanager
    def limited(self, **seconds: float | None) -> Iterator[None]:
        """Other limits of time for the requests that begin inside: fields of `Timeouts`.

        `with llm.provider.limited(total=30): llm.chat(...)`
        """
        before = self._timeouts
        self._timeouts = replace(before, **seconds)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._timeouts = before

    # ------------------------------------------------------------------ generation

    def stream(self, request: Request) -> RemoteStream:
        """Start generating. Time counts from here; errors of the server come from the stream."""
        if self.closed:
            raise NotLoadedError(f"{self.model} was unloaded; load it again")
        request = self._settled(request)
        dialect = self.server.dialect
        prompt = request.prompt
        chats = bool(request.messages) and not isinstance(prompt, RenderedPrompt)
        as_text = not chats or bool(request.given)
        echo = ""
        echoed: tuple[Token, ...] = ()
        rendered: RenderedPrompt | None = None
        if isinstance(prompt, str) and not (request.given or request.echo):
            rendered = RenderedPrompt(prompt)  # its ids are of no use: save the question
        elif as_text or request.echo:
            rendered = self.render(request)
        if as_text and rendered is not None:
            reading = prompts.of_text(request, rendered, self.server)
            wire.text_body(request, rendered.text, "", dialect)  # refused before anything is sent
        else:
            reading = prompts.of_chat(request, self.server)
            wire.chat_body(request, request.messages, "", dialect)
        if request.echo and rendered is not None:
            echo, echoed = rendered.text, self._echoed(rendered, request.logprobs)
        shown = rendered or RenderedPrompt("")
        fold = Fold(
            self.model, shown.text if rendered else None, shown.ids, request.sampling,
            request.messages, request.offered,
        )  # fmt: skip
        plan = Plan(
            functools.partial(_router, reading, request), request.given,
            request.thinking is not False, prompts.value_reader(request.constraint),
            request.suffix, bool(request.offered) and request.tool_choice != "auto", echo, echoed,
        )  # fmt: skip
        timeouts = self._timeouts
        if as_text and rendered is not None:
            send = functools.partial(self._send_text, request, rendered, timeouts)
        else:
            send = functools.partial(self._send_chat, request, timeouts)
        return RemoteStream(Exchange(send), plan, fold)

    def _settled(self, request: Request) -> Request:
        """The request with a seed of its own, and biases by id."""
        sampling = request.sampling
        if sampling.seed is None and not sampling.greedy:
            sampling = replace(sampling, seed=secrets.randbits(SEED_BITS))
        if sampling.logit_bias and any(isinstance(key, str) for key, _ in sampling.logit_bias):
            sampling = replace(sampling, logit_bias=tuple(
                (self._one_token(key) if isinstance(key, str) else key, value)
                for key, value in sampling.logit_bias
            ))  # fmt: skip
        given = tuple(part for token in request.given for part in self._cut(token))
        return replace(request, sampling=sampling, given=given)

    def _cut(self, token: Token) -> Sequence[Token]:
        """A given text as the server's tokens, where it has a route for that."""
        if token.id is not None or not self.texts.known:
            return (token,)
        text = token.bytes.decode("utf-8", "replace")
        pieces = self.texts.pieces(text, special=False, start=False)
        if b"".join(piece.bytes for piece in pieces) != token.bytes:
            return (token,)
        return [Token(p.id, p.bytes, None, None, forced=True) for p in pieces]

    def _one_token(self, text: str) -> int:
        pieces = self.tokenize(text, special=True, start=False)
        if len(pieces) != 1:
            shown = [piece.text for piece in pieces]
            raise RequestError(f"logit_bias: {text!r} is not one token but {shown}")
        return pieces[0].id

    def _send_text(
        self, request: Request, prompt: RenderedPrompt, timeouts: Timeouts, call: Call
    ) -> Iterator[Item]:
        dialect = self.server.dialect
        ids = [token.id for token in request.given]
        body_prompt: str | list[int] = prompt.text
        if dialect.ids and prompt.ids and None not in ids:
            body_prompt = [*prompt.ids, *(i for i in ids if i is not None)]
        elif request.given:
            words = b"".join(token.bytes for token in request.given)
            body_prompt = prompt.text + words.decode("utf-8", "replace")

        def body(endpoint: Endpoint) -> wire.Body:
            return wire.text_body(request, body_prompt, self.model_at(endpoint), dialect)

        session = prompts.session_of(request, self.model)
        yield from self.sender.stream(
            call, "completions", body, session=session, top=request.logprobs, timeouts=timeouts
        )

    def _send_chat(self, request: Request, timeouts: Timeouts, call: Call) -> Iterator[Item]:
        histories = shorter(request.messages) if request.trim else [request.messages]
        n = 0
        while True:
            begun = False
            try:
                for item in self._send_messages(request, histories[n], timeouts, call):
                    begun = begun or isinstance(item, Text | CallPiece)
                    yield item
                return
            except ContextOverflowError as e:
                n = _next_fitting(histories, n, e, request.sampling.max_tokens or 1)
                if begun or n == len(histories):
                    raise

    def _send_messages(
        self, request: Request, messages: Sequence[Message], timeouts: Timeouts, call: Call
    ) -> Iterator[Item]:
        if prompts.tells_tools(request, self.server):
            messages = prompts.with_tools_told(request, messages, self.server)
            request = replace(request, tools=())
        fitted = self._alternation.fit(messages)
        if request.logprobs is not None and self.texts.known:
            # A reply with alternatives may be branched, which goes on from the rendered prompt.
            with contextlib.suppress(RemoteError, UnsupportedError):
                yield Asked(*self.texts.chat(request, fitted))

        def body(endpoint: Endpoint) -> wire.Body:
            return wire.chat_body(request, fitted, self.model_at(endpoint), self.server.dialect)

        yield from self.sender.stream(
            call, "chat/completions", body, session=prompts.session_of(request, self.model),
            top=request.logprobs, timeouts=timeouts,
        )  # fmt: skip

    def _probe(self, messages: Sequence[Message]) -> None:
        """Send an exchange for one token; raises what the server says."""
        body: dict[str, Any] = {
            "messages": wire.message_entries(messages, self.server.dialect),
            "max_tokens": 1, "temperature": 0, "stream": False,
        }  # fmt: skip
        limits = Timeouts(load=PROBE, prompt=PROBE, total=PROBE)
        once = Retries(attempts=1)
        self.sender.ask(
            "POST", "chat/completions", lambda at: {"model": self.model_at(at), **body},
            retries=once, timeouts=limits,
        )  # fmt: skip

    # ------------------------------------------------------------------ text and ids

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt of a request as the server's template renders it.

        Raises:
            UnsupportedError: The server has no route for it.
        """
        prompt = request.prompt
        if isinstance(prompt, RenderedPrompt):
            if prompt.ids or not self.texts.known:
                return prompt
            return replace(prompt, ids=self.texts.ids(prompt.text))
        if isinstance(prompt, str):
            ids = self.texts.ids(prompt) if self.texts.known else ()
            return RenderedPrompt(prompt, ids)
        if request.messages:
            messages, asked = request.messages, request
            if prompts.tells_tools(request, self.server):
                messages = prompts.with_tools_told(request, messages, self.server)
                asked = replace(request, tools=())
            text, ids = self.texts.chat(asked, self._alternation.fit(messages))
            reading = prompts.of_text(request, RenderedPrompt(text, reasoning=True), self.server)
            return RenderedPrompt(
                text, ids, request.messages, request.offered, reading.reasoning is not None,
                reading.in_reasoning, bool(request.offered),
            )  # fmt: skip
        plain = tuple(i for i in prompt if isinstance(i, int))
        if not self.server.dialect.ids:
            kind = self.server.dialect.name
            raise UnsupportedError("complete", f"a server of the kind {kind!r} takes no token ids")
        return RenderedPrompt(self.texts.text(plain) if self.texts.known else "", plain)

    def count(self, request: Request) -> int:
        """Tokens of a request's prompt: of a chat with template and tools, as it is prefilled."""
        return len(self.render(request).ids)

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        return self.texts.pieces(text, special, start)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids; a server tells no control tokens apart, so their texts are in it."""
        return self.texts.text(ids)

    def _echoed(self, prompt: RenderedPrompt, top: int | None) -> tuple[Token, ...]:
        """The tokens of a prompt; their logprobs only where the server has them."""
        if not prompt.ids:
            return ()
        if top is not None and self.server.dialect.echo:
            return tuple(self.score(prompt.ids, top))
        pieces = self.texts.pieces(prompt.text)
        return tuple(Token(p.id, p.bytes, None, None, forced=True) for p in pieces)

    # ------------------------------------------------------------------ scores

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Each id with its logprob, where the server gives those of a prompt (`echo`)."""
        if not self.server.dialect.echo:
            kind = self.server.dialect.name
            raise UnsupportedError("score", f"a server of the kind {kind!r} scores no prompts")
        return scores.of_prompt(self.sender.ask, self.model_at, ids, top)

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        """The natural log of each whole choice's probability, from the scores of its tokens."""
        if "choices" not in self.capabilities:
            kind = self.server.dialect.name
            raise UnsupportedError("choices", f"a server of the kind {kind!r} scores no choices")
        prompt = self.render(request).ids
        own = [self._choice_ids(text) for text in choices]
        scores.check_apart(choices, own)
        return scores.of_choices(self.score, prompt, own)

    def _choice_ids(self, text: str) -> tuple[int, ...]:
        pieces = self.texts.pieces(text, special=False, start=False)
        if b"".join(piece.bytes for piece in pieces) != text.encode("utf-8", "replace"):
            raise UnsupportedError("choices", f"the server's tokenizer changes the text {text!r}")
        return tuple(piece.id for piece in pieces)

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        raise UnsupportedError("score", "a server does not give all log-probabilities")

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, truncate: bool = False
    ) -> "list[npt.NDArray[np.float32]]":
        """The vector of each text as the server pools it, not normalised."""
        vectors.no_pooling(pooling)
        return self.vectors.embed(texts, truncate)

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """Scores by the server's rerank route; without one, by the yes of a chat model."""
        if self._reranks:
            try:
                return self.vectors.rerank(query, documents)
            except UnsupportedError:
                self._reranks = False
        return vectors.judged(self._tokens_of, query, documents)

    def _tokens_of(self, request: Request) -> tuple[Token, ...]:
        with self.stream(request) as events:
            for _ in events:
                pass
        return events.reply.tokens


def _router(reading: Reading, request: Request, first: bool) -> Any:
    return reading.router(request, first)


def _next_fitting(
    histories: Sequence[Sequence[Message]], n: int, error: ContextOverflowError, budget: int
) -> int:
    """The next history that is likely to fit, by the server's own count of the one before."""
    if not (error.n_prompt and error.n_ctx):
        return n + 1
    room = error.n_ctx - min(budget, error.n_ctx // 2)
    sizes = [sum(len(m.text) + 20 for m in history) for history in histories]
    share = error.n_prompt / max(1, sizes[n])
    fitting = (i for i in range(n + 1, len(histories)) if sizes[i] * share <= room)
    return next(fitting, max(n + 1, len(histories) - 1))
