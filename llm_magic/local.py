"""A Provider over the engine in this process.

Comes in: a GGUF file and Requests. Goes out: Streams. Here text becomes ids (template, tokenizer)
and ids become text again (router). It must not know notebooks. The engine is imported when a model
is loaded, not before: importing this module is cheap.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .chat.reply import Fold
from .chat.router import Router
from .chat.stream import TokenStream
from .errors import ContextOverflowError, RequestError, UnsupportedError
from .events import Delta, Message, Piece, Progress, Sampling, Token, Top
from .provider import Request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .chat.template import Rendered, Template
    from .engine.forward import F32
    from .engine.gate import Gate
    from .engine.load import Engine
    from .engine.scheduler import Generation

DEFAULT_CTX = 4096
DEFAULT_SLOTS = 4
RESOLUTION = 0.1  # seconds between looks at a load's progress
TEXT_CACHE = 65536  # token texts kept as bytes


@dataclass(frozen=True, slots=True)
class Status:
    """What a loaded model is and how busy it is.

    path: of the GGUF file. ctx: tokens per slot. cached_tokens: in all slots. queued, running:
    requests. memory_bytes: weights and KV cache really allocated. compute: the path that evaluates
    the model.
    """

    model: str
    path: str
    device: str
    compute: str
    threads: int
    ctx: int
    slots: int
    cached_tokens: int
    queued: int
    running: int
    memory_bytes: int
    cache_hits: int
    cache_misses: int


class Local:
    """One model in this process. Loading starts at once on the engine's thread; see `wait`."""

    capabilities = frozenset(
        {"chat", "complete", "logprobs", "tokenize", "score", "tools", "constraint", "reuse"}
    )

    def __init__(
        self,
        name: str,
        path: Path,
        ctx: int | None = None,
        slots: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        gate: "Gate | None" = None,
    ) -> None:
        from .engine.load import Engine, Options

        options = Options(ctx or DEFAULT_CTX, slots or DEFAULT_SLOTS, threads, device)
        self.model = name
        self.path = path
        self._began = time.perf_counter()
        self.load_seconds = 0.0
        self._engine: Engine = Engine(path, options, gate)
        self._template: Template | None = None
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ life

    def wait(self, on_progress: Callable[[Progress], None]) -> None:
        """Return when the model is ready. Calls on_progress on this thread. Raises what loading
        raised."""
        engine = self._engine
        seen = None
        with engine.gate.lend():
            while True:
                done = _wait(engine.ready, RESOLUTION)
                latest = engine.progress
                if latest is not None and latest is not seen:
                    seen = latest
                    on_progress(latest)
                if done:
                    break
        engine.ready.result()
        if not self.load_seconds:
            self.load_seconds = time.perf_counter() - self._began

    @property
    def failed(self) -> bool:
        ready = self._engine.ready
        return ready.done() and ready.exception() is not None

    @property
    def closed(self) -> bool:
        return self._engine.closed

    def close(self) -> None:
        self._engine.close()

    def grow(self, ctx: int | None, slots: int | None, threads: int | None) -> None:
        """More context, slots or threads for the same weights; less changes nothing."""
        self._engine.grow(ctx, slots, threads)

    def status(self) -> Status:
        engine = self._engine
        slots = engine.scheduler.slots
        model = engine.loaded()
        return Status(
            model=self.model,
            path=str(self.path),
            device=model.device,
            compute=model.forward.description,
            threads=model.threads,
            ctx=model.forward.n_ctx,
            slots=model.forward.n_slots,
            cached_tokens=slots.cached_tokens if slots else 0,
            queued=engine.scheduler.queued,
            running=engine.scheduler.running,
            memory_bytes=model.forward.memory_bytes,
            cache_hits=slots.hits if slots else 0,
            cache_misses=slots.misses if slots else 0,
        )

    # ------------------------------------------------------------------ text and ids

    def tokenize(self, text: str, special: bool = True) -> list[Piece]:
        return self._engine.loaded().tokenizer.pieces(text, special)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._engine.loaded().tokenizer.decode(list(ids))

    @property
    def template(self) -> "Template":
        """The model's chat template: beside the file, else inside it, else the fallback."""
        with self._lock:
            if self._template is None:
                self._template = _template(self._engine)
            return self._template

    def render(self, request: Request) -> "Rendered":
        """The prompt of messages as text. TemplateError if the template refuses them."""
        messages = cast("tuple[Message, ...]", request.prompt)
        return self.template.render(
            messages,
            tools=request.tools if request.tool_choice != "none" else (),
            thinking=request.thinking,
            kwargs=request.template_kwargs,
        )

    def prompt_ids(self, request: Request) -> tuple[str, tuple[int, ...]]:
        """A request's prompt as text and as the ids that the model gets, with exactly one BOS."""
        tokenizer = self._engine.loaded().tokenizer
        prompt = request.prompt
        if isinstance(prompt, str):
            return prompt, tuple(tokenizer.with_bos(tokenizer.encode(prompt, special=True)))
        if prompt and isinstance(prompt[0], Message):
            rendered = self.render(request)
            ids = tokenizer.encode(rendered.text, special=True, mark=rendered.mark)
            return rendered.plain, tuple(tokenizer.with_bos(ids))
        ids = list(cast("tuple[int, ...]", prompt))
        return tokenizer.decode(ids, skip_special=False), tuple(ids)

    # ------------------------------------------------------------------ generation

    def stream(self, request: Request) -> TokenStream:
        model = self._engine.loaded()
        text, ids = self.prompt_ids(request)
        self._check_room(len(ids), model.forward.n_ctx)
        sampling = self._sampling(request.sampling)
        is_chat = bool(request.prompt) and isinstance(request.prompt[0], Message)
        fold = Fold(self.model, text, ids, sampling)
        router = self._router(request, text if is_chat else "")
        first: list[Delta] = []
        if request.echo:
            tokens = self._prompt_tokens(ids, request.logprobs)
            first.append(Delta("answer", text, tokens))
        generation = self._submit(request, ids, sampling)
        return TokenStream(generation, router, fold, first, request.suffix)

    def _submit(self, request: Request, ids: tuple[int, ...], sampling: Sampling) -> "Generation":
        from .engine.scheduler import Job

        job = Job(
            ids=ids,
            sampling=sampling,
            top=request.logprobs or 0,
            guide=self._guide(request),
            reuse=request.reuse,
        )
        return self._engine.scheduler.submit(job)

    def _guide(self, request: Request) -> Any:
        if request.constraint is None:
            return None
        raise UnsupportedError("constraint")

    def _router(self, request: Request, rendered: str) -> Router:
        return Router(stop=request.sampling.stop or ())

    def _check_room(self, n: int, n_ctx: int) -> None:
        if n >= n_ctx:
            model = self._engine.loaded()
            out = "shorten the prompt or start a new conversation"
            if n_ctx < model.config.n_ctx_train:
                most = model.config.n_ctx_train
                out = f"shorten the prompt, or load the model with ctx=N (up to {most})"
            raise ContextOverflowError(n, n_ctx, out)

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

    # ------------------------------------------------------------------ scoring

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Each id with its logprob and rank given the ids before it; the first has none."""
        import numpy as np

        from .engine.sampling import log_sum_exp, top_ids

        model = self._engine.loaded()
        text = functools.lru_cache(TEXT_CACHE)(model.tokenizer.token_bytes)
        n_vocab = model.config.n_tokens
        out = [Token(i, text(i), None, None, forced=True) for i in ids[:1]]

        def collect(start: int, logits: "F32") -> None:
            for i, row in enumerate(logits[:, :n_vocab], start + 1):
                if i >= len(ids):
                    return
                lse = log_sum_exp(row)
                best = top_ids(row, top)
                tops = tuple(Top(int(j), text(int(j)), float(row[j]) - lse) for j in best)
                value = row[ids[i]]
                rank = 1 + int(np.count_nonzero(row > value))
                out.append(Token(ids[i], text(ids[i]), float(value) - lse, rank, tops, forced=True))

        self._evaluate(ids, collect)
        return out

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
        import numpy as np

        from .engine.sampling import log_sum_exp

        n_vocab = self._engine.loaded().config.n_tokens
        out = np.empty((len(ids), n_vocab), np.float32)

        def collect(start: int, logits: "F32") -> None:
            for i, row in enumerate(logits[:, :n_vocab]):
                out[start + i] = row - np.float64(log_sum_exp(row))

        self._evaluate(ids, collect)
        return out

    def _evaluate(self, ids: Sequence[int], collect: "Callable[[int, F32], None]") -> None:
        """Run ids through the model from the start and hand over every position's logits."""
        from .engine.scheduler import Job

        model = self._engine.loaded()
        if len(ids) > model.forward.n_ctx:
            raise ContextOverflowError(len(ids), model.forward.n_ctx)
        if not ids:
            return
        generation = self._engine.scheduler.submit(Job(tuple(ids), collect=collect))
        try:
            for _ in generation:
                pass
        except KeyboardInterrupt:
            generation.close()
            raise

    def embed(self, texts: Sequence[str], pooling: str = "mean", normalize: bool = True) -> Any:
        raise UnsupportedError("embed")


def _wait(future: "Future[Any]", seconds: float) -> bool:
    try:
        future.exception(timeout=seconds)
    except TimeoutError:
        return False
    return True


def _template(engine: "Engine") -> "Template":
    from .chat.template import Template

    model = engine.loaded()
    return Template(model.template, model.special_texts, model.tokenizer.control_texts)
