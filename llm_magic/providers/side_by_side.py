"""Work of many prompts, evaluated side by side in the engine's steps, in bounded memory.

All jobs of a prompt are submitted at once. Those that share its beginning wait until the first one
has evaluated it, and get a copy of its cache (engine.serving.planner, runner). Prompts are read
while fewer than `most` jobs are under way, so there may be any number of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ..errors import EngineError, LLMError
from ..events import Finish

if TYPE_CHECKING:
    from ..engine.serving.generation import Generation
    from ..engine.serving.job import Job

Submit = Callable[["Job"], "Generation"]


class Work(Protocol):
    """What jobs are made for; their `collect` notes what they find in it."""

    def jobs(self) -> "Iterable[Job]": ...


W = TypeVar("W", bound=Work)


@dataclass(slots=True)
class _Pending(Generic[W]):
    """The work of one prompt under way, or the error that came instead."""

    work: W | LLMError
    jobs: "list[Generation]"

    def result(self) -> W | LLMError:
        """Wait for the jobs."""
        try:
            for job in self.jobs:
                _drain(job)
        except LLMError as e:
            self.close()
            return e
        return self.work

    def close(self) -> None:
        for job in self.jobs:
            job.close()


def run(asked: Iterable[Callable[[], W]], submit: Submit, most: int) -> Iterator[W | LLMError]:
    """The work of each prompt when it is done, in order.

    Args:
        asked: What makes each work; an LLMError of it takes its place.
        submit: Evaluates a job.
        most: Jobs under way, above which no further prompt is read.
    """
    waiting = iter(asked)
    pending: deque[_Pending[W]] = deque()
    more = True
    try:
        while more or pending:
            if more and sum(len(p.jobs) for p in pending) < most and len(pending) < most:
                if (make := next(waiting, None)) is None:
                    more = False
                else:
                    pending.append(_begin(make, submit))
                continue
            yield pending[0].result()
            pending.popleft()
    finally:
        for left in pending:
            left.close()


def _begin(make: Callable[[], W], submit: Submit) -> _Pending[W]:
    begun: list[Generation] = []
    try:
        work = make()
        for job in work.jobs():
            begun.append(submit(job))
    except LLMError as e:
        for job_under_way in begun:
            job_under_way.close()
        return _Pending(e, [])
    return _Pending(work, begun)


def _drain(job: "Generation") -> None:
    for item in job:
        if isinstance(item, Finish) and item.reason != "stop":
            raise EngineError("internal error: the scoring was cancelled")
