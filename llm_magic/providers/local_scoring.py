"""The part of the local provider that scores given texts: choices, continuations, positions."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import LLMError, RequestError
from ..events import Token
from ..provider import ChoiceScores, Continuation, RenderedPrompt, Request
from . import scoring, side_by_side
from .choices import Scorer, scorer
from .side_by_side import W

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.load import Engine
    from .rendering import Renderer

JOBS_PER_SLOT = 4  # so many wait that no slot is ever idle


class LocalScoring:
    """Methods of `Local`: log-probabilities of texts that are given, not drawn."""

    _engine: "Engine"
    _renderer: "Renderer"

    def render(self, request: Request) -> RenderedPrompt:
        raise NotImplementedError  # of the provider

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        """The natural log of each whole choice's probability behind the prompt."""
        found = next(self.score_batch([(request, choices)]))
        if isinstance(found, LLMError):
            raise found
        return list(found.logprobs)

    def score_batch(
        self, asked: Iterable[tuple[Request, Sequence[str]]]
    ) -> Iterator[ChoiceScores | LLMError]:
        """The scores of each prompt's choices, in order; see `provider.BatchScoring`."""
        for done in self._side_by_side(functools.partial(self._scorer_of, *p) for p in asked):
            yield done if isinstance(done, LLMError) else done.scores()

    def score_continuations(
        self, asked: Iterable[tuple[Sequence[int], Sequence[int]]]
    ) -> Iterator[Continuation | LLMError]:
        """The log-probability of each token of a continuation; see `provider.BatchScoring`."""
        line = functools.partial(scoring.line, self._engine)
        for done in self._side_by_side(functools.partial(line, *pair) for pair in asked):
            yield done if isinstance(done, LLMError) else done.found()

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Each id with its logprob and rank given the ids before it; the first has none."""
        self._renderer.check_ids(ids)
        return scoring.score(self._engine, ids, top)

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, float32 [len(ids), vocab]."""
        self._renderer.check_ids(ids)
        return scoring.logprobs(self._engine, ids)

    def _scorer_of(self, request: Request, choices: Sequence[str]) -> Scorer:
        if request.edit or request.taps is not None:
            raise RequestError("edits and taps do not reach the scoring of choices")
        prompt = self.render(request)
        if not prompt.ids:
            raise RequestError("choices cannot be scored behind an empty prompt")
        if prompt.in_reasoning:
            raise RequestError(
                "the chat template opens the model's reasoning, so the next tokens are no answer "
                "yet: choices cannot be scored there; use complete=True, or a model that can "
                "answer at once"
            )
        return scorer(self._engine, prompt.ids, choices, reuse=request.reuse)

    def _side_by_side(self, asked: Iterable[Callable[[], W]]) -> Iterator[W | LLMError]:
        scheduler, slots = self._engine.scheduler, self._engine.loaded().forward.n_slots
        return side_by_side.run(asked, scheduler.submit, JOBS_PER_SLOT * slots)
