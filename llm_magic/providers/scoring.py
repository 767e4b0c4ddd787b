"""Log-probabilities of given token ids: a text's own tokens, or every position's distribution."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import ContextOverflowError, RequestError
from ..events import Token, Top
from ..provider import Continuation

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.forward import F32
    from ..engine.load import Engine
    from ..engine.serving.job import Job

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


@dataclass(slots=True)
class Line:
    """A context and the tokens behind it whose log-probabilities are wanted, see `line`."""

    context: tuple[int, ...]
    ids: tuple[int, ...]
    n_vocab: int
    logprobs: list[float] = field(default_factory=list)
    greedy: bool = True

    def jobs(self) -> "Iterator[Job]":
        from ..engine.serving.job import Job

        yield Job(
            (*self.context, *self.ids[:-1]),
            collect=self._collect,
            collect_from=len(self.context) - 1,
        )

    def _collect(self, start: int, logits: "F32") -> None:
        from ..engine.serving.sampler import log_sum_exp

        for i, row in enumerate(logits[:, : self.n_vocab], start + 1 - len(self.context)):
            value = row[self.ids[i]]
            self.logprobs.append(float(value) - log_sum_exp(row))
            self.greedy = self.greedy and int(row.argmax()) == self.ids[i]

    def found(self) -> Continuation:
        """What was found, when the job has ended."""
        return Continuation(tuple(self.logprobs), self.greedy)


def line(engine: "Engine", context: Sequence[int], ids: Sequence[int]) -> Line:
    """What scores a continuation behind its context.

    Evaluations, perplexities and harnesses all get their log-likelihoods from it.

    Raises:
        RequestError: The context or the continuation is empty, or an id is no token.
        ContextOverflowError: Both together do not fit the window.
    """
    model = engine.loaded()
    if not context or not ids:
        what = "continuation" if context else "context"
        raise RequestError(f"the {what} is empty; it needs a token at least")
    highest = model.config.n_tokens - 1
    if bad := [i for i in (*context, *ids) if not 0 <= i <= highest]:
        raise RequestError(f"token id {bad[0]} is not in the vocabulary (0 to {highest})")
    n = len(context) + len(ids) - 1  # the last token is only looked at
    if n > model.forward.n_ctx:
        raise ContextOverflowError(n, model.forward.n_ctx)
    return Line(tuple(context), tuple(ids), model.config.n_tokens)


def _evaluate(engine: "Engine", ids: Sequence[int], collect: "Callable[[int, F32], None]") -> None:
    """Run ids through the model from the start and hand over every position's logits."""
    from ..engine.serving.job import Job

    model = engine.loaded()
    if len(ids) > model.forward.n_ctx:
        raise ContextOverflowError(len(ids), model.forward.n_ctx)
    if not ids:
        return
    engine.scheduler.submit(Job(tuple(ids), collect=collect)).drain()
