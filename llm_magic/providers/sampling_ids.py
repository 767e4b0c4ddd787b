"""Sampling settings that need the vocabulary: texts in them become token ids."""

import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..errors import RequestError
from ..events import Sampling
from ..sampling import FIELDS

if TYPE_CHECKING:
    from ..engine.load import Engine

SEED_BITS = 32  # of a seed that is drawn: short enough to type


class SamplingIds:
    """Reads sampling settings with the vocabulary of one loaded model."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        # Of the latest request that used DRY: conversations rarely change them.
        self._known_breakers: dict[tuple[str, ...], frozenset[int]] = {}
        self._lock = threading.Lock()

    def with_ids(self, sampling: Sampling) -> Sampling:
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

    def breakers(self, sampling: Sampling) -> frozenset[int]:
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


def with_seed(sampling: Sampling) -> Sampling:
    """A seed is drawn where none was asked for: the reply holds it, so the run can be repeated."""
    if sampling.seed is not None or sampling.greedy:
        return sampling
    return replace(sampling, seed=secrets.randbits(SEED_BITS))
