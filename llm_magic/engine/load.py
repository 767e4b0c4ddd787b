"""Loads a GGUF file into a running engine: device, file, tokenizer, forward pass, owner thread."""

import contextlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import LLMError, ModelError, NotLoadedError, RequestError
from ..events import Progress
from ..models.cache import cache_dir
from ..sampling import FIELDS, Sampling, read
from . import arch, device, heap
from .blocks import Config
from .forward import Forward
from .gate import Gate
from .gguf import GGUF, open_gguf
from .quants import check_supported
from .serving.job import Model
from .serving.scheduler import Scheduler
from .tokenizer.tokenizer import Tokenizer, build_tokenizer

PORTABLE = "portable"


@dataclass(frozen=True, slots=True)
class Options:
    """How to load. device None: CPU. cache_bytes: see serving.job.Model.

    threads None: all cores the process may use. More than its processors are never taken.
    """

    n_ctx: int
    n_slots: int
    threads: int | None = None
    device: str | None = None
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready. template: the chat template's source, None without one.

    special_texts: "bos", "eos", "unk", "pad", "sep" -> token text, where the model has one.
    """

    forward: Forward
    tokenizer: Tokenizer
    config: Config
    device: str
    threads: int
    template: str | None
    special_texts: Mapping[str, str]
    sampling: Sampling
    metadata: Mapping[str, Any]


class Engine:
    """One model on one device with its owner thread. Methods may be called from any thread.

    progress: the latest step of loading; written by the owner thread.
    """

    def __init__(self, path: Path, options: Options, gate: Gate | None = None) -> None:
        self.path = path
        self.options = options
        self.gate = gate or Gate()
        self.progress: Progress | None = None
        self._loaded: Loaded | None = None
        self._given_up = False
        self.scheduler = Scheduler(self._load, self.gate)

    def start(self) -> None:
        """Start loading, once; see Scheduler.start."""
        self.scheduler.start()

    @property
    def ready(self) -> "Future[Model]":
        return self.scheduler.ready

    @property
    def closed(self) -> bool:
        return self.scheduler.closed

    @property
    def settled(self) -> bool:
        """Whether loading is over, for better or worse."""
        return self.scheduler.settled

    def loaded(self) -> Loaded:
        """The model, or NotLoadedError."""
        if self._loaded is None or self.scheduler.closed:
            raise NotLoadedError("the model was unloaded; load it again with llm_magic.load()")
        return self._loaded

    def close(self, wait: bool = True) -> None:
        """Free everything, also while it is being loaded. See Scheduler.close."""
        self._given_up = True
        self.scheduler.close(wait)
        self._loaded = None

    def grow(
        self,
        n_ctx: int | None,
        n_slots: int | None,
        threads: int | None,
        cache_bytes: int | None = None,
    ) -> None:
        """Ask for at least so much; see Scheduler.resize. None: what there is is enough."""
        forward = self.loaded().forward
        config = self.loaded().config
        ctx = min(n_ctx or 0, config.n_ctx_train)
        if ctx > config.n_ctx_most:
            raise ModelError(
                f"{self.path.name} is loaded for contexts of up to {config.n_ctx_most:,} tokens: "
                "longer ones turn its heads by other factors; unload it (%llm unload) before "
                f"loading it with ctx={ctx}"
            )
        if ctx > forward.n_ctx or (n_slots or 0) > forward.n_slots:
            self.scheduler.resize(ctx, n_slots or 0)
        set_threads, threads = getattr(forward, "set_threads", None), _at_most_all(threads)
        if threads is not None and threads > self.loaded().threads and set_threads is not None:
            self.scheduler.call(lambda: set_threads(threads))
            self._loaded = replace(self.loaded(), threads=threads)
        if cache_bytes is not None:
            self.scheduler.allow(cache_bytes)

    # ------------------------------------------------------------------ the owner thread

    def _say(self, stage: str, done: int, total: int) -> None:
        if self._given_up:  # nobody waits for it any more: stop at the next step
            raise NotLoadedError("loading was interrupted")
        self.progress = Progress(stage, done, total)

    def _load(self) -> Model:
        try:
            loaded = self._open()
        except (LLMError, MemoryError):
            raise
        except OSError as e:
            raise ModelError(
                f"{self.path.name} cannot be loaded: {e.strerror or e}. The disk may be full, or "
                "this process may not write files (see ulimit -f)"
            ) from e
        except Exception as e:
            raise ModelError(f"{self.path.name} cannot be loaded: {type(e).__name__}: {e}") from e
        heap.trim()
        self._loaded = loaded
        return Model(
            forward=loaded.forward,
            n_vocab=loaded.config.n_tokens,
            end_ids=loaded.tokenizer.end_ids,
            token_bytes=loaded.tokenizer.token_bytes,
            cache_bytes=self.options.cache_bytes,
        )

    def _open(self) -> Loaded:
        self._say("load", 0, 0)
        where = device.prepare(self.options.device)
        self._say("load", 0, 0)
        with open_gguf(self.path) as gguf:
            check_supported(gguf)
            config = arch.read_config(
                gguf.metadata, {name: t.shape for name, t in gguf.tensors.items()}
            )
            config = config.at_context(min(self.options.n_ctx, config.n_ctx_train))
            tokenizer = build_tokenizer(
                gguf.metadata, cache_dir=cache_dir() / "tokenizers", configs=_configs(self.path),
                check=lambda: self._say("load", 0, 0), beside=_tokenizer_beside(self.path),
            )  # fmt: skip
            self._say("load", 0, 0)
            forward = self._forward(gguf, config, where)
            return Loaded(
                forward=forward,
                tokenizer=tokenizer,
                config=config,
                device=where.name,
                threads=int(getattr(forward, "threads", 1)),
                template=_template_source(self.path, gguf.metadata),
                special_texts=_special_texts(tokenizer),
                sampling=sampling_of(gguf.metadata),
                metadata={k: v for k, v in gguf.metadata.items() if not _bulky(v)},
            )

    def _forward(self, gguf: GGUF, config: Config, where: device.Device) -> Forward:
        """The kernel path on the CPU where it can evaluate this model, else the portable path."""
        n_ctx = min(self.options.n_ctx, config.n_ctx_train)
        wanted = os.environ.get("LLM_MAGIC_KERNEL", "")
        if where.is_cpu and wanted != PORTABLE:
            from .kernels import KernelForward, supports

            if supports(gguf, config) is None:
                return KernelForward(
                    gguf, config, n_ctx, self.options.n_slots, _at_most_all(self.options.threads),
                    on_progress=self._say, target=wanted or None,
                )  # fmt: skip
        from .portable.forward import Portable

        # It builds and captures graphs, the kernels do not: only this waits for the running cell.
        if self.gate.closed:
            self._say("wait", 0, 0)
        with self.gate.build():
            self._say("load", 0, 0)
            return Portable(
                gguf, config, n_ctx, self.options.n_slots, where.name, self.gate, self._say
            )


def _at_most_all(threads: int | None) -> int | None:
    """Threads beyond the processors would only wait for each other, at every phase of a step."""
    from .kernels.team import processors

    return None if threads is None else min(threads, processors())


# Keys of a GGUF file's recommended settings -> fields of Sampling.
_SAMPLING_KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
}


def sampling_of(metadata: Mapping[str, Any]) -> Sampling:
    """The sampling settings that a file recommends (`general.sampling.*`).

    A value that is not valid is left out: a recommendation must not keep a model from loading.

    >>> sampling_of({"general.sampling.temp": 0.6, "general.sampling.top_p": 7.0}).temperature
    0.6
    """
    values: dict[str, object] = {}
    for key, name in _SAMPLING_KEYS.items():
        with contextlib.suppress(RequestError):
            if (value := metadata.get(f"general.sampling.{key}")) is not None:
                # Decimal digits of a float32: 0.2, not 0.20000000298.
                short = float(f"{value:.7g}") if isinstance(value, float) else value
                values[name] = FIELDS[name].read(short)
    return read(values)


def _bulky(value: Any) -> bool:
    return not isinstance(value, str | int | float | bool)


def _special_texts(tokenizer: Tokenizer) -> dict[str, str]:
    named = {
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "unk": tokenizer.unk,
        "pad": tokenizer.pad,
        "sep": tokenizer.sep,
    }
    return {name: tokenizer.token_text(i) for name, i in named.items() if i is not None}


def _configs(path: Path) -> list[Mapping[str, Any]]:
    """generation_config.json and config.json beside the file: their end ids win, in this order."""
    found = (_sidecar(path, name) for name in ("generation_config.json", "config.json"))
    return [config for config in found if config]


def _tokenizer_beside(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """tokenizer.json and tokenizer_config.json beside the file; empty where they are not."""
    return _sidecar(path, "tokenizer.json"), _sidecar(path, "tokenizer_config.json")


def _sidecar(path: Path, name: str) -> Mapping[str, Any]:
    """A JSON object beside the model; empty without one. ModelError if it cannot be read."""
    file = path.parent / name
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise ModelError(f"{name} beside the model cannot be read: {e}") from e
    if not isinstance(data, dict):
        raise ModelError(f"{name} beside the model is not a JSON object")
    return data


def _template_source(path: Path, metadata: Mapping[str, Any]) -> str | None:
    """The sidecar's template wins over the one inside the file (a fix comes as a sidecar)."""
    found = _sidecar(path, "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):  # named templates: [{"name": "default", "template": ...}]
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    if isinstance(found, str) and found:
        return found
    inside = metadata.get("tokenizer.chat_template")
    return inside if isinstance(inside, str) and inside else None
