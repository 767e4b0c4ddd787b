"""A GGUF file becomes an encoder: weights, tokenizer, pooling. And which files are encoders."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from threadpoolctl import threadpool_limits

from llm_magic.errors import LLMError, ModelError

from ..forward import F32
from ..gguf import GGUF, open_gguf
from ..kernels.team import processors
from ..quants import check_supported
from ..room import Need, check_fits
from ..tokenizer.tokenizer import Tokenizer, build_tokenizer
from .config import EncoderConfig, read_encoder
from .forward import EncoderForward, Say


def need(gguf: GGUF) -> Need:
    """What an encoder takes: its weights as float32. There is no KV cache."""
    return Need(weights=4 * sum(t.size for t in gguf.tensors.values()), position=0, fixed=0)


@dataclass(frozen=True, slots=True)
class LoadedEncoder:
    """An encoder that is ready."""

    forward: EncoderForward
    tokenizer: Tokenizer
    config: EncoderConfig


def load_encoder(path: Path, say: Say) -> LoadedEncoder:
    """Read an encoder's file.

    Raises:
        ModelError: The file cannot be read or evaluated, or does not fit into memory.
    """
    try:
        with open_gguf(path) as gguf:
            check_supported(gguf)
            config = read_encoder(gguf.metadata)
            check_fits(path.name, need(gguf), config.n_ctx)
            tokenizer = build_tokenizer(gguf.metadata)
            return LoadedEncoder(EncoderForward(gguf, config, say), tokenizer, config)
    except (LLMError, MemoryError):
        raise
    except Exception as e:
        raise ModelError(f"{path.name} cannot be loaded: {type(e).__name__}: {e}") from e


T = TypeVar("T")
R = TypeVar("R")


def on_all_cores(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`function` of every item, on as many threads as there are cores.

    Each product runs on one thread: numpy's own threads wait for each other actively, which on a
    busy machine takes ten times as long as the products.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        if len(items) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(processors(), len(items))) as pool:
            return list(pool.map(function, items))


def pooled(vectors: F32, pooling: str) -> F32:
    """The vector of a text from those of its tokens: float32 [dim], or all where it is "none"."""
    out: F32 = vectors
    match pooling:
        case "mean":
            # In float64, so that it does not matter in which order a machine adds.
            out = vectors.mean(0, dtype="float64").astype("float32")
        case "cls":
            out = vectors[0]
        case "last":
            out = vectors[-1]
    return out
