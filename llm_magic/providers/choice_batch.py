"""The choices of many prompts, scored side by side in the engine's steps.

All jobs of a prompt are submitted at once: its first job evaluates the prompt and one tail, and the
scheduler copies the prompt's cache to the slots of the other tails (see planner.Planner). Prompts
are read while fewer than `most` jobs are under way, so any number of them takes bounded memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EngineError, LLMError
from ..events import Finish
from ..provider import ChoiceScores
from .choices import Ids, Scorer, Submit

if TYPE_CHECKING:
    from ..engine.serving.generation import Generation
    from ..engine.serving.job import Job

# Makes the scorer of one prompt; and whether a cached prefix is used.
Asked = tuple[Callable[[], Scorer], bool]


@dataclass(slots=True)
class _Pending:
    """One prompt under way. failure: what came instead of a scorer."""

    scorer: Scorer | None
    jobs: "list[Generation]"
    failure: LLMError | None = None

    def result(self) -> ChoiceScores | LLMError:
        """Wait for the jobs and sum up."""
        if self.scorer is None:
            return self.failure or EngineError("internal error: choices without a scorer")
        try:
            for job in self.jobs:
                _drain(job)
        except LLMError as e:
            self.close()
            return e
        choices = self.scorer.choices
        return ChoiceScores(
            tuple(self.scorer.logprob(ids) for ids in choices),
            tuple(map(len, choices)),
            self.scorer.ended,
        )

    def close(self) -> None:
        for job in self.jobs:
            job.close()


def scores(asked: Iterable[Asked], submit: Submit, most: int) -> Iterator[ChoiceScores | LLMError]:
    """The scores of each prompt's choices, in order.

    Args:
        asked: What makes each scorer; an LLMError of it takes the place of the scores.
        submit: Evaluates a job.
        most: Jobs under way, above which no further prompt is read.
    """
    waiting = iter(asked)
    pending: deque[_Pending] = deque()
    more = True
    try:
        while more or pending:
            if more and sum(len(p.jobs) for p in pending) < most and len(pending) < most:
                if (item := next(waiting, None)) is None:
                    more = False
                else:
                    pending.append(_begin(item, submit))
                continue
            yield pending[0].result()
            pending.popleft()
    finally:
        for left in pending:
            left.close()


def _begin(asked: Asked, submit: Submit) -> _Pending:
    make, reuse = asked
    begun = _Pending(None, [])
    try:
        scorer = make()
        for job in _jobs(scorer, reuse):
            begun.jobs.append(submit(job))
    except LLMError as e:
        begun.close()
        return _Pending(None, [], e)
    begun.scorer = scorer
    return begun


def _jobs(scorer: Scorer, reuse: bool) -> "Iterator[Job]":
    """The first job collects the row behind the prompt too."""
    from ..engine.serving.job import Job

    def job(tail: Ids, start: int) -> Job:
        return Job(
            (*scorer.prompt, *tail),
            collect=lambda first, logits: scorer.collect(tail, first, logits),
            collect_from=start,
            reuse=reuse,
        )

    n = len(scorer.prompt)
    first, *rest = scorer.tails or [()]
    yield job(first, n - 1)
    for tail in rest:
        yield job(tail, n)


def _drain(job: "Generation") -> None:
    for item in job:
        if isinstance(item, Finish) and item.reason != "stop":
            raise EngineError("internal error: the scoring of choices was cancelled")
