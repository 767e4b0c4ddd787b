"""Vectors of texts from a language model: the last layer behind the final norm, pooled."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ContextOverflowError, ModelWarning
from ..provider import Pooling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.load import Engine

TINY = 1e-12  # the least length that a vector is divided by
WAVE = 64  # texts whose vectors are in memory before they are pooled


def embed(
    engine: "Engine", texts: Sequence[str], pooling: Pooling | None, truncate: bool
) -> "list[npt.NDArray[np.float32]]":
    """The vector of each text, see `Provider.embed`. The texts share the steps of the engine."""
    from ..engine.encoder.config import POOLINGS
    from ..engine.encoder.load import pooled

    model = engine.loaded()
    family = model.metadata.get("general.architecture")
    said = POOLINGS.get(model.metadata.get(f"{family}.pooling_type", -1))
    how = pooling or (said if said in ("mean", "cls", "last") else "mean")
    n_ctx = model.forward.n_ctx
    ids = [cut(model.tokenizer.whole(t), n_ctx, i, truncate) for i, t in enumerate(texts)]
    vectors = []
    for start in range(0, len(ids), WAVE):
        hidden = _last_layer(engine, ids[start : start + WAVE])
        vectors += [pooled(h, how) for h in hidden]
    return vectors


def _last_layer(engine: "Engine", texts: Sequence[list[int]]) -> "list[npt.NDArray[np.float32]]":
    """The vectors of every token of texts, float32 [tokens, dim] each."""
    import numpy as np

    from ..engine.serving.job import Job
    from ..engine.serving.taps import JobTaps, Watch

    config = engine.loaded().config
    out = [np.empty((len(ids), config.dim), np.float32) for ids in texts]
    jobs = [
        Job(
            tuple(ids),
            collect=lambda position, logits: None,
            collect_from=len(ids),
            taps=JobTaps((Watch("normalized", config.n_layers - 1, 0, hidden),)),
        )
        for ids, hidden in zip(texts, out, strict=True)
    ]
    running = [engine.scheduler.submit(job) for job in jobs]
    try:
        for generation in running:
            generation.drain()
    except BaseException:
        for generation in running:
            generation.close()
        raise
    return out


def unit(vectors: "npt.NDArray[np.float32]") -> "npt.NDArray[np.float64]":
    """Vectors of length 1 along the last axis, in float64. A vector of zeros stays what it is."""
    import numpy as np

    wide = vectors.astype(np.float64)
    length = np.sqrt((wide * wide).sum(-1, keepdims=True))
    scaled: npt.NDArray[np.float64] = wide / np.maximum(length, TINY)
    return scaled


def cut(ids: list[int], n_ctx: int, i: int, truncate: bool) -> list[int]:
    """The ids of text number i, at most n_ctx of them.

    Raises:
        ContextOverflowError: There are more, and they are not to be cut.
    """
    if len(ids) <= n_ctx:
        return ids
    if not truncate:
        way = f"shorten text {i}, or cut it with truncate=True"
        raise ContextOverflowError(len(ids), n_ctx, way)
    warnings.warn(
        f"text {i} has {len(ids)} tokens and was cut to the {n_ctx} that the model reads",
        ModelWarning,
        stacklevel=4,
    )
    return [*ids[: n_ctx - 1], ids[-1]]  # what ends a text stays
