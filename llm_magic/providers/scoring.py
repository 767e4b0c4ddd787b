"""Log-probabilities of given token ids: a text's own tokens, or every position's distribution."""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import ContextOverflowError
from ..events import Token, Top

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.forward import F32
    from ..engine.load import Engine

TEXT_CACHE = 65536  # token texts kept as bytes


def score(engine: "Engine", ids: Sequence[int], top: int = 0) -> list[Token]:
    """Each id with its logprob and rank given the ids before it; the first has none."""
    import numpy as np

    from ..engine.serving.sampler import log_sum_exp, top_ids

    model = engine.loaded()
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

    _evaluate(engine, ids, collect)
    return out


def logprobs(engine: "Engine", ids: Sequence[int]) -> "npt.NDArray[np.float32]":
    """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
    import numpy as np

    from ..engine.serving.sampler import log_sum_exp

    n_vocab = engine.loaded().config.n_tokens
    out = np.empty((len(ids), n_vocab), np.float32)

    def collect(start: int, logits: "F32") -> None:
        for i, row in enumerate(logits[:, :n_vocab]):
            out[start + i] = row - np.float64(log_sum_exp(row))

    _evaluate(engine, ids, collect)
    return out


def _evaluate(engine: "Engine", ids: Sequence[int], collect: "Callable[[int, F32], None]") -> None:
    """Run ids through the model from the start and hand over every position's logits."""
    from ..engine.serving.job import Job

    model = engine.loaded()
    if len(ids) > model.forward.n_ctx:
        raise ContextOverflowError(len(ids), model.forward.n_ctx)
    if not ids:
        return
    generation = engine.scheduler.submit(Job(tuple(ids), collect=collect))
    try:
        for _ in generation:
            pass
    except KeyboardInterrupt:
        generation.close()
        raise
