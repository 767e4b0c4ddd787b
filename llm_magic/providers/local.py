"""The provider over the engine in this process.

Text becomes token ids here (chat template, tokenizer), and ids become text again (router). The
engine is imported when a model is loaded, so importing this module is cheap.
"""

import copy
import functools
import math
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..chat.constraints.kinds import parse as read_value
from ..chat.exchanges import exchanges, shortened
from ..chat.parsing.router import Router
from ..chat.reply import Fold
from ..chat.stream import Continued, Source, TokenStream
from ..errors import ContextOverflowError, EngineError, RequestError, UnsupportedError
from ..events import (
    Choices,
    Constraint,
    Delta,
    Finish,
    Message,
    Piece,
    Progress,
    Sampling,
    Token,
)
from ..provider import CAPABILITIES, Pooling, RenderedPrompt, Request
from ..sampling import FIELDS
from . import scoring
from .choices import MAX_CHOICES, ChoiceSource, Scorer
from .choices import check as check_choices
from .relevance import judge

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..chat.constraints.compiler import Constrainer
    from ..chat.parsing.syntax import Syntax
    from ..chat.prompts.template import Template
    from ..engine.gate import Gate
    from ..engine.load import Engine
    from ..engine.serving.generation import Generation
    from ..engine.serving.sampler import Guide

DEFAULT_CTX = 4096
DEFAULT_SLOTS = 4
RESOLUTION = 0.005  # seconds between looks at a load's progress
GREEDY = Sampling(temperature=0.0)
SEED_BITS = 32  # of a seed that is drawn: short enough to type


@dataclass(frozen=True, slots=True)
class Status:
    """What a loaded model is and how busy it is.

    path: of the GGUF file. ctx: tokens per slot. cached_tokens, cached_bytes: in all slots. queued,
    running: requests. memory_bytes: weights and KV cache really allocated. compute: the path that
    evaluates the model. cache_hits, cache_misses: prompt tokens that were found in the cache, and
    those that had to be evaluated.
    """

    model: str
    path: str
    device: str
    compute: str
    threads: int
    ctx: int
    slots: int
    cached_tokens: int
    cached_bytes: int
    queued: int
    running: int
    memory_bytes: int
    cache_hits: int
    cache_misses: int


class Local:
    """One model in this process. `wait` starts loading it, on the engine's thread."""

    capabilities = CAPABILITIES

    def __init__(
        self,
        name: str,
        path: Path,
        ctx: int | None = None,
        slots: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        gate: "Gate | None" = None,
        cache_mb: int | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    ) -> None:
        from ..engine.load import Engine, Options

        sizes = (ctx or DEFAULT_CTX, slots or DEFAULT_SLOTS)
        options = Options(*sizes, threads, device, _bytes(cache_mb))
        self.model = name
        self.path = path
        self._own_sampling = sampling  # of the table of named models
        self._began: float | None = time.perf_counter()
        self._load_seconds: float | None = None  # until a reply has told it
        self._engine: Engine = Engine(path, options, gate)
        self._template: Template | None = None
        self._constrainer: Constrainer | None = None
        self._controls: dict[int, str] | None = None
        # Of the latest request that used DRY: conversations rarely change them.
        self._known_breakers: dict[tuple[str, ...], frozenset[int]] = {}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ life

    def wait(self, on_progress: Callable[[Progress], None]) -> None:
        """Start loading if nobody has, and return when the model is ready.

        Args:
            on_progress: Called on this thread with each new stage of loading.

        Raises:
            LLMError: What loading raised.
        """
        engine = self._engine
        engine.start()
        seen = None
        with engine.gate.lend():
            settled = False
            while not settled:
                settled = engine.settled
                latest = engine.progress
                if latest is not None and latest is not seen:
                    seen = latest
                    on_progress(latest)
                if not settled:
                    time.sleep(RESOLUTION)
        engine.ready.result()
        with self._lock:
            if self._began is not None:
                self._load_seconds = time.perf_counter() - self._began
                self._began = None

    @property
    def engine(self) -> "Engine":
        """The engine, for callers that work with ids and slots (benchmarks, tests)."""
        return self._engine

    @property
    def failed(self) -> bool:
        ready = self._engine.ready
        return ready.done() and ready.exception() is not None

    @property
    def defaults(self) -> Sampling:
        """Settings of the table of named models, else of the file."""
        return self._own_sampling.over(self._engine.loaded().sampling)

    @property
    def closed(self) -> bool:
        return self._engine.closed

    def close(self, wait: bool = True) -> None:
        """Free the model. wait: until it is free; without, it stops loading at its next step."""
        self._engine.close(wait)

    def grow(
        self,
        ctx: int | None,
        slots: int | None,
        threads: int | None,
        cache_mb: int | None = None,
    ) -> None:
        """Grow context, slots, threads or the cache budget; a smaller value changes nothing."""
        self._engine.grow(ctx, slots, threads, _bytes(cache_mb))

    def status(self) -> Status:
        engine = self._engine
        slots = engine.scheduler.slots
        model = engine.loaded()
        cached = slots.cached_tokens if slots else 0
        return Status(
            model=self.model,
            path=str(self.path),
            device=model.device,
            compute=model.forward.description,
            threads=model.threads,
            ctx=model.forward.n_ctx,
            slots=model.forward.n_slots,
            cached_tokens=cached,
            cached_bytes=cached * model.forward.position_bytes,
            queued=engine.scheduler.queued,
            running=engine.scheduler.running,
            memory_bytes=model.forward.memory_bytes,
            cache_hits=slots.hits if slots else 0,
            cache_misses=slots.misses if slots else 0,
        )

    # ------------------------------------------------------------------ text and ids

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        tokenizer = self._engine.loaded().tokenizer
        return [tokenizer.piece(i) for i in tokenizer.encode(text, special, start=start)]

    def detokenize(self, ids: Sequence[int]) -> str:
        self._check_ids(ids)
        return self._engine.loaded().tokenizer.decode(list(ids))

    def _check_ids(self, ids: Sequence[int]) -> None:
        """RequestError for an id that the vocabulary does not have."""
        n = self._engine.loaded().config.n_tokens
        for i in ids:
            if not 0 <= i < n:
                raise RequestError(f"token id {i} is not in the vocabulary (0 to {n - 1})")

    @property
    def template(self) -> "Template":
        """The model's chat template: beside the file, else inside it, else the fallback."""
        with self._lock:
            if self._template is None:
                self._template = _template(self._engine)
            return self._template

    def _template_of(self, request: Request) -> "Template":
        """The template, with the syntax of calls that a request asks for."""
        template, name = self.template, request.tool_syntax
        if name is None:
            return template
        from ..chat.parsing.syntax import SYNTAXES

        if name not in SYNTAXES:
            known = ", ".join(SYNTAXES)
            raise RequestError(f"tool_syntax is {name!r}; there are {known}")
        template = copy.copy(template)
        template.syntax = SYNTAXES[name]
        return template

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt of a request as text and as the ids that the model gets, with one BOS.

        Raises:
            TemplateError: The chat template refuses the messages.
        """
        prompt = request.prompt
        if isinstance(prompt, RenderedPrompt):
            return self._with_ids(prompt)
        tokenizer = self._engine.loaded().tokenizer
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, special=True)
            if request.suffix and {"prefix", "suffix", "middle"} <= tokenizer.fim.keys():
                # Fill in the middle: the suffix goes before the place that the model continues.
                fim, after = tokenizer.fim, tokenizer.encode(request.suffix, special=False)
                ids = [fim["prefix"], *ids, fim["suffix"], *after, fim["middle"]]
            return RenderedPrompt(prompt, tuple(tokenizer.with_bos(ids)))
        if request.messages:
            return self._chat_prompt(request)
        ids = list(cast("tuple[int, ...]", prompt))
        self._check_ids(ids)
        return RenderedPrompt(tokenizer.decode(ids, skip_special=False), tuple(ids))

    def _with_ids(self, prompt: RenderedPrompt) -> RenderedPrompt:
        """A rendered prompt that was read back from a file has its text, but no ids."""
        if prompt.ids:
            self._check_ids(prompt.ids)
            return prompt
        tokenizer = self._engine.loaded().tokenizer
        ids = tokenizer.encode(prompt.text, special=True)
        return replace(prompt, ids=tuple(tokenizer.with_bos(ids)))

    def _chat_prompt(self, request: Request) -> RenderedPrompt:
        tokenizer = self._engine.loaded().tokenizer
        template = self._template_of(request)
        offered = request.offered

        def render(messages: tuple[Message, ...]) -> RenderedPrompt:
            r = template.render(
                messages,
                tools=offered,
                thinking=request.thinking,
                kwargs=request.template_kwargs,
            )
            ids = tokenizer.encode(r.text, special=True, mark=r.mark)
            return RenderedPrompt(
                text=r.plain,
                ids=tuple(tokenizer.with_bos(ids)),
                messages=messages,
                tools=offered,
                reasoning=template.reasoning is not None,
                in_reasoning=r.in_reasoning,
                calls=bool(offered),
            )

        messages = request.messages
        whole = render(messages)
        n_ctx = self._engine.loaded().forward.n_ctx
        # The answer must fit behind the prompt: reserve max_tokens for it, at most half the window.
        budget = min(request.sampling.max_tokens or 1, n_ctx // 2)
        room = n_ctx - budget - len(request.given)
        if not request.trim or len(whole.ids) <= room:
            return whole
        low, high = 1, len(exchanges(messages)[1]) - 1
        while low < high:  # how many of the oldest exchanges must go
            middle = (low + high) // 2
            if len(render(shortened(messages, middle)).ids) <= room:
                high = middle
            else:
                low = middle + 1
        return render(shortened(messages, low)) if high > 0 else whole

    # ------------------------------------------------------------------ generation

    def stream(self, request: Request) -> TokenStream:
        model = self._engine.loaded()
        prompt = self.render(request)
        given = self._given_ids(request)
        self._check_room(request, len(prompt.ids) + len(given), model.forward.n_ctx)
        guide, syntax, bound = self._guide(request, prompt)
        if guide is not None:
            for i in given:
                guide.accept(i)
        sampling = _with_seed(self._sampling(request.sampling))
        if bound:
            # It ends where the constraint says, not before and not after.
            sampling = replace(sampling, min_tokens=None, stop=None)
        fold = Fold(self.model, prompt.text, prompt.ids, sampling, prompt.messages, prompt.tools)
        stops = sampling.stop or ()
        if not bound and prompt.is_chat:
            stops = (*stops, *self.template.stops)
        router = self._router(request, prompt, stops, syntax)
        first: list[Delta] = []
        if request.echo:
            tokens = self._prompt_tokens(prompt.ids, request.logprobs)
            first.append(Delta("answer", prompt.text, tokens))
        source: Source | None = None
        if (options := self._scored(request, syntax, prompt)) is not None:
            source = self._choose(request, prompt.ids, options, sampling, fold)
        elif not given or given[-1] not in model.tokenizer.end_ids:
            source = self._submit(request, (*prompt.ids, *given), sampling, guide)
        if given or source is None:
            source = Continued(request.given, source, len(prompt.ids))
        parse = None
        if request.constraint is not None:
            parse = functools.partial(read_value, request.constraint)
        with self._lock:
            load, self._load_seconds = self._load_seconds or 0.0, None
        return TokenStream(source, router, fold, first, request.suffix, parse, load)

    def _scored(
        self, request: Request, syntax: "Syntax | None", prompt: RenderedPrompt
    ) -> tuple[str, ...] | None:
        """The choices of a request that are scored as wholes; None: the guide holds to them.

        What comes before an answer (reasoning, calls, given tokens) is not known beforehand.
        """
        constraint = request.constraint
        if not isinstance(constraint, Choices) or len(constraint.options) > MAX_CHOICES:
            return None
        thinks = prompt.reasoning and (request.thinking is not False or prompt.in_reasoning)
        if request.given or syntax is not None or thinks or not prompt.ids:
            return None
        return constraint.options

    def _choose(
        self,
        request: Request,
        prompt: tuple[int, ...],
        options: tuple[str, ...],
        sampling: Sampling,
        fold: Fold,
    ) -> ChoiceSource:
        scorer = self._scorer(prompt, options, request.logprobs or 0)

        def picked(logprobs: list[float]) -> None:
            pairs = zip(options, logprobs, strict=True)
            fold.choices = {text: math.exp(value) for text, value in pairs}

        return ChoiceSource(scorer, self._engine.scheduler.submit, sampling, request.reuse, picked)

    def _scorer(self, prompt: tuple[int, ...], options: Sequence[str], top: int) -> Scorer:
        model = self._engine.loaded()
        encode = model.tokenizer.encode
        ids = [tuple(encode(text, special=False, start=False)) for text in options]
        check_choices(options, ids)
        most = len(prompt) + max(map(len, ids))
        if most > model.forward.n_ctx:
            raise ContextOverflowError(most, model.forward.n_ctx)
        tokenizer = model.tokenizer
        return Scorer(
            prompt, ids, tokenizer.end_ids, tokenizer.token_bytes, model.config.n_tokens, top
        )

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        """The natural log of each whole choice's probability behind the prompt."""
        prompt = self.render(request)
        if not prompt.ids:
            raise RequestError("choices cannot be scored behind an empty prompt")
        scorer = self._scorer(prompt.ids, choices, 0)
        submit = self._engine.scheduler.submit
        source = ChoiceSource(scorer, submit, GREEDY, request.reuse, lambda logprobs: None)
        try:
            while not isinstance(item := next(source), Finish):
                pass
        except BaseException:
            source.close()
            raise
        if item.reason != "stop":
            raise EngineError("internal error: the scoring of choices was cancelled")
        return [scorer.logprob(ids) for ids in scorer.choices]

    def _given_ids(self, request: Request) -> tuple[int, ...]:
        """The ids of the tokens that the answer begins with."""
        ids = tuple(token.id for token in request.given if token.id is not None)
        if len(ids) < len(request.given):
            raise RequestError("the given tokens have no ids (they come from a remote model)")
        self._check_ids(ids)
        return ids

    def _submit(
        self, request: Request, ids: tuple[int, ...], sampling: Sampling, guide: "Guide | None"
    ) -> "Generation":
        from ..engine.serving.job import Job

        job = Job(
            ids=ids,
            sampling=sampling,
            top=request.logprobs or 0,
            breakers=self._breakers(sampling),
            guide=guide,
            reuse=request.reuse,
            guess=request.guess,
        )
        return self._engine.scheduler.submit(job)

    @property
    def constrainer(self) -> "Constrainer":
        """Compiles constraints for this vocabulary; made when the first one is used."""
        with self._lock:
            if self._constrainer is None:
                self._constrainer = _constrainer(self._engine)
            return self._constrainer

    def _guide(
        self, request: Request, prompt: RenderedPrompt
    ) -> "tuple[Guide | None, Syntax | None, bool]":
        """What holds a request to its constraint.

        Returns:
            The guide (None: the answer is unconstrained), the syntax of its tool calls, and
            whether the guide decides where the answer ends.
        """
        from ..chat.constraints.tool_calls import can_join

        choice, constraint = request.tool_choice, request.constraint
        tools = request.tools if choice != "none" and prompt.is_chat else ()
        syntax = self._template_of(request).syntax if tools else None
        must = bool(tools) and choice != "auto"
        tags = self.template.reasoning if prompt.is_chat else None
        if constraint is None and not must:
            if not request.tools or choice != "none" or not prompt.is_chat:
                return None, syntax, False
            return self.constrainer.no_calls(self._template_of(request).syntax, tags), None, False
        if syntax is not None and (must or can_join(constraint)):
            named = tuple(t for t in tools if choice in ("auto", "required", t.name))
            answer = None if must else constraint
            source = self.template.source or ""
            guide, syntax = self.constrainer.call_guide(named, syntax, source, answer)
        else:
            guide = self.constrainer.guide(cast(Constraint, constraint))
        if tags is None or (request.thinking is False and not prompt.in_reasoning):
            return guide, syntax, True
        return self.constrainer.late(guide, tags, prompt.in_reasoning), syntax, True

    def _router(
        self,
        request: Request,
        prompt: RenderedPrompt,
        stop: tuple[str, ...],
        syntax: "Syntax | None",
    ) -> Router:
        if prompt.calls and not request.tools:
            syntax = self._template_of(request).syntax  # a branch: its tools are not known
        return Router(
            stop=stop,
            reasoning=self.template.reasoning if prompt.reasoning else None,
            in_reasoning=prompt.in_reasoning,
            syntax=syntax,
            tools=request.tools,
            calls_without_tools=prompt.calls,
            min_tokens=len(request.given) + (request.sampling.min_tokens or 0),
            controls=self.controls,
        )

    @property
    def controls(self) -> dict[int, str]:
        """The names of control tokens by id: these have no text in an answer."""
        with self._lock:
            if self._controls is None:
                tokenizer = self._engine.loaded().tokenizer
                self._controls = {i: tokenizer.token_text(i) for i in tokenizer.control_ids}
            return self._controls

    def _check_room(self, request: Request, n: int, n_ctx: int) -> None:
        if n < n_ctx:
            return
        model = self._engine.loaded()
        ways = ["shorten the prompt"]
        if not request.trim and len(request.messages) > 1:
            ways.append("leave the oldest exchanges out with trim=True")
        if n_ctx < model.config.n_ctx_train:
            ways.append(f"load the model with ctx=N (up to {model.config.n_ctx_train})")
        else:
            ways.append("start a new conversation")
        raise ContextOverflowError(n, n_ctx, f"{', '.join(ways[:-1])}, or {ways[-1]}")

    def _breakers(self, sampling: Sampling) -> frozenset[int]:
        """Ids of the tokens that contain a sequence breaker of DRY."""
        if not sampling.dry_multiplier:
            return frozenset()
        texts = sampling.dry_breakers
        if texts is None:
            texts = cast("tuple[str, ...]", FIELDS["dry_breakers"].default)
        tokenizer = self._engine.loaded().tokenizer
        with self._lock:
            if texts not in self._known_breakers:
                marks = [text.encode() for text in texts]
                self._known_breakers = {texts: frozenset(
                    i for i in range(tokenizer.n_vocab)
                    if any(mark in tokenizer.token_bytes(i) for mark in marks)
                )}  # fmt: skip
            return self._known_breakers[texts]

    def _sampling(self, sampling: Sampling) -> Sampling:
        """Texts in logit_bias become ids: a text must be one token."""
        if not sampling.logit_bias:
            return sampling
        tokenizer = self._engine.loaded().tokenizer
        pairs: list[tuple[int | str, float]] = []
        for key, bias in sampling.logit_bias:
            if isinstance(key, int):
                pairs.append((key, bias))
                continue
            ids = tokenizer.encode(key, special=True)
            if len(ids) != 1:
                pieces = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
                raise RequestError(f"logit_bias: {key!r} is not one token but {pieces}")
            pairs.append((ids[0], bias))
        return replace(sampling, logit_bias=tuple(pairs))

    def _prompt_tokens(self, ids: Sequence[int], top: int | None) -> tuple[Token, ...]:
        """The prompt as token records; with logprobs when they are asked for."""
        if top is not None:
            scored = self.score(ids, top)
        else:
            text = self._engine.loaded().tokenizer.token_bytes
            scored = [Token(i, text(i), None, None) for i in ids]
        return tuple(replace(t, forced=True) for t in scored)

    # ------------------------------------------------------------------ texts as numbers

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, truncate: bool = False
    ) -> "list[npt.NDArray[np.float32]]":
        raise UnsupportedError("embed", "vectors of texts need an embedding model")

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """The probability of "yes" against "no" where the model is asked about each document."""
        return judge(self, query, documents)

    # ------------------------------------------------------------------ scoring

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Each id with its logprob and rank given the ids before it; the first has none."""
        self._check_ids(ids)
        return scoring.score(self._engine, ids, top)

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
        self._check_ids(ids)
        return scoring.logprobs(self._engine, ids)


def _with_seed(sampling: Sampling) -> Sampling:
    """A seed is drawn where none was asked for: the reply holds it, so the run can be repeated."""
    if sampling.seed is not None or sampling.greedy:
        return sampling
    return replace(sampling, seed=secrets.randbits(SEED_BITS))


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 1_000_000


def _template(engine: "Engine") -> "Template":
    from ..chat.prompts.template import Template

    model = engine.loaded()
    about = model.metadata
    family = str(about.get("general.architecture", ""))
    if family == "llama":  # the shape of many families; what the model calls itself tells more
        family = str(about.get("general.basename") or about.get("general.name") or family)
    return Template(
        model.template,
        model.special_texts,
        model.tokenizer.control_texts,
        family,
        str(about.get("tokenizer.ggml.pre", "")),
    )


def _constrainer(engine: "Engine") -> "Constrainer":
    from ..chat.constraints.compiler import Constrainer
    from ..chat.constraints.guides import Vocabulary

    tokenizer = engine.loaded().tokenizer
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
    # What is bound goes on behind a prompt: no space that only the start of a text gets.
    encode = functools.partial(tokenizer.encode, special=False, start=False)
    return Constrainer(Vocabulary(tokens, tokenizer.control_ids, tokenizer.end_ids, encode))
