"""The memory and context of a model file, read from its header; nothing is loaded."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from . import arch
from .encoder.config import ENCODERS, read_encoder
from .encoder.load import need as encoder_need
from .gguf import open_gguf
from .kernels import need as kernels_need
from .kernels import supports
from .portable.forward import need as portable_need

CONTEXT = 4096  # tokens of the conversation that is counted, if the model allows as many


@dataclass(frozen=True, slots=True)
class Needs:
    """memory: bytes with one conversation of 4,096 tokens. context: tokens it was made for."""

    memory: int
    context: int


def of_file(path: Path) -> Needs:
    """The needs of a file, remembered until it changes.

    Raises:
        ModelError: The file is damaged, or its architecture is not supported.
    """
    stat = path.stat()
    return _of_file(os.fspath(path), stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(64)
def _of_file(path: str, size: int, changed: int) -> Needs:
    with open_gguf(path) as gguf:
        if gguf.metadata.get("general.architecture") in ENCODERS:
            n_ctx = read_encoder(gguf.metadata).n_ctx
            return Needs(encoder_need(gguf).total(n_ctx), n_ctx)
        config = arch.read_config(gguf.metadata, {n: t.shape for n, t in gguf.tensors.items()})
        n_ctx = min(CONTEXT, config.n_ctx_train)
        if supports(gguf, config) is None:
            need = kernels_need(gguf, config, n_ctx, n_slots=1)
        else:
            need = portable_need(config)
    return Needs(need.total(n_ctx), config.n_ctx_train)
