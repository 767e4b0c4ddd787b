"""The provider over the engine in this process.

Text becomes token ids here (chat template, tokenizer), and ids become text again (router). The
engine is imported when a model is loaded, so importing this module is cheap.
"""

import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..asked import asked_out
from ..chat.constraints.kinds import parse as read_value
from ..chat.fold import Fold
from ..chat.origin import ModelFile, Origin
from ..chat.stream import Continued, Source, TokenStream
from ..errors import RequestError
from ..events import (
    Choices,
    Constraint,
    Delta,
    Piece,
    Progress,
    Sampling,
    Token,
)
from ..provider import CAPABILITIES, Pooling, RenderedPrompt, Request
from ..taps import Capture
from . import vectors
from .choices import MAX_CHOICES, ChoiceSource, scorer
from .guidance import Guidance
from .interior import Interior, Plan
from .local_scoring import LocalScoring
from .relevance import judge
from .rendering import Renderer
from .sampling_ids import SamplingIds, with_seed

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


class Local(LocalScoring):
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
        self._file = ModelFile.of(path)
        self._own_sampling = sampling  # of the table of named models
        self._began: float | None = time.perf_counter()
        self._load_seconds: float | None = None  # until a reply has told it
        self._engine: Engine = Engine(path, options, gate)
        self._renderer = Renderer(self._engine)
        self._guidance = Guidance(self._engine, self._renderer)
        self._sampling_ids = SamplingIds(self._engine)
        self._interior = Interior(self._engine, path)
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
                self._file.hash_ahead()

    @property
    def engine(self) -> "Engine":
        """The engine, for callers that work with ids and slots (benchmarks, tests)."""
        return self._engine

    @property
    def inside(self) -> Interior:
        """The inside of the model: see `taps.Inside`."""
        return self._interior

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

    def origin(self) -> Origin:
        """The file and the code that answer; see `chat.origin.Identified`."""
        model = self._engine.loaded()
        target = getattr(model.forward, "target", None)
        variant = f"portable {model.device}" if target is None else str(target.name)
        return Origin(self._file, variant, model.forward.batch_invariant)

    # ------------------------------------------------------------------ text and ids

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        tokenizer = self._engine.loaded().tokenizer
        return [tokenizer.piece(i) for i in tokenizer.encode(text, special, start=start)]

    def detokenize(self, ids: Sequence[int]) -> str:
        self._renderer.check_ids(ids)
        return self._engine.loaded().tokenizer.decode(list(ids))

    def special_tokens(self) -> Mapping[str, str]:
        """ "bos", "eos", "unk", "pad", "sep" -> the token's text, where the model has one."""
        return self._engine.loaded().special_texts

    def template_source(self) -> str | None:
        """The chat template as it was written; None without one."""
        return self._engine.loaded().template

    @property
    def template(self) -> "Template":
        """The model's chat template: beside the file, else inside it, else the fallback."""
        return self._renderer.template

    @property
    def constrainer(self) -> "Constrainer":
        """Compiles constraints for this vocabulary; made when the first one is used."""
        return self._guidance.constrainer

    @property
    def controls(self) -> dict[int, str]:
        """The names of control tokens by id: these have no text in an answer."""
        return self._guidance.controls

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt of a request as text and as the ids that the model gets, with one BOS.

        Raises:
            TemplateError: The chat template refuses the messages.
        """
        return self._renderer.render(request)

    # ------------------------------------------------------------------ generation

    def stream(self, request: Request) -> TokenStream:
        model = self._engine.loaded()
        prompt, given = self._renderer.begin(request)
        request = replace(request, given=given)
        ids = (*prompt.ids, *(cast(int, token.id) for token in given))
        plan = self._plan(request, len(prompt.ids), len(given))
        self._renderer.check_room(request, len(ids), model.forward.n_ctx)
        guide, syntax, bound, lead = self._guidance.guide(request, prompt, given)
        sampling = with_seed(self._sampling_ids.with_ids(request.sampling))
        if bound:
            # It ends where the constraint says, not before and not after.
            sampling = replace(sampling, min_tokens=None, stop=None)
        fold = Fold(
            self.model, prompt.text, prompt.ids, sampling, prompt.messages, prompt.tools,
            replace(self.origin(), asked=asked_out(request, prompt)),
        )  # fmt: skip
        if plan is not None and request.taps is not None:
            echoed = len(prompt.ids) if request.echo else 0
            fold.record = functools.partial(_record, plan, prompt.ids, echoed)
        stops = sampling.stop or ()
        if not bound and prompt.is_chat:
            stops = (*stops, *self.template.stops)
        router = self._guidance.router(request, prompt, stops, syntax)
        first: list[Delta] = []
        if request.echo:
            tokens = self._prompt_tokens(prompt.ids, request.logprobs)
            first.append(Delta("answer", prompt.text, tokens))
        source: Source | None = None
        if (options := self._scored(request, syntax, prompt)) is not None:
            source = self._choose(request, prompt.ids, options, sampling, fold)
        elif not given or given[-1].id not in model.tokenizer.end_ids:
            source = self._submit(request, ids, sampling, guide, plan)
        if given or source is None:
            source = Continued(given, source, len(prompt.ids))
        parse = None
        if request.constraint is not None:
            parse = functools.partial(_read_behind, lead, request.constraint)
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
        if request.edit or request.taps is not None:  # the answer itself is looked at
            return None
        return constraint.options

    def _plan(self, request: Request, n_prompt: int, n_given: int) -> Plan | None:
        """What the request records and changes; None: nothing."""
        if not request.edit and request.taps is None:
            return None
        if request.echo and request.logprobs is not None and request.edit:
            raise RequestError("echo with logprobs scores the prompt without its edits")
        n_ctx, most = self._engine.loaded().forward.n_ctx, request.sampling.max_tokens
        total = n_ctx if most is None else min(n_ctx, n_prompt + n_given + most)
        return self._interior.plan(n_prompt, max(total, n_prompt), request.taps, request.edit)

    def _choose(
        self,
        request: Request,
        prompt: tuple[int, ...],
        options: tuple[str, ...],
        sampling: Sampling,
        fold: Fold,
    ) -> ChoiceSource:
        found = scorer(self._engine, prompt, options, request.logprobs or 0, request.reuse)

        def picked(logprobs: list[float]) -> None:
            pairs = zip(options, logprobs, strict=True)
            fold.choices = {text: math.exp(value) for text, value in pairs}

        return ChoiceSource(found, self._engine.scheduler.submit, sampling, request.reuse, picked)

    def _submit(
        self,
        request: Request,
        ids: tuple[int, ...],
        sampling: Sampling,
        guide: "Guide | None",
        plan: Plan | None,
    ) -> "Generation":
        from ..engine.serving.job import Job

        job = Job(
            ids=ids,
            sampling=sampling,
            top=request.logprobs or 0,
            breakers=self._sampling_ids.breakers(sampling),
            guide=guide,
            reuse=request.reuse,
            # What is recorded of a guess that turns out wrong would stay.
            guess=request.guess and request.taps is None,
            taps=None if plan is None else plan.taps,
        )
        return self._engine.scheduler.submit(job)

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
        """The last layer's vectors behind the final norm, pooled."""
        return vectors.embed(self._engine, texts, pooling, truncate)

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """The probability of "yes" against "no" where the model is asked about each document."""
        return judge(self, query, documents)


def _read_behind(lead: str, constraint: Constraint, text: str) -> object:
    """The value of an answer. lead: what the constraint does not hold for."""
    return read_value(constraint, text.removeprefix(lead))


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * 1_000_000


def _record(plan: Plan, prompt: tuple[int, ...], echoed: int, tokens: Sequence[Token]) -> Capture:
    """What was recorded of a prompt and the tokens behind it; the first `echoed` repeat it."""
    said = (token.id for token in tokens[echoed:])
    return plan.capture((*prompt, *(i for i in said if i is not None)))
