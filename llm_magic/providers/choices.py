"""Whole choices, scored behind one prompt: the source of an answer that is one of them.

The probability of a choice is the product of its tokens' probabilities behind the prompt. Where one
choice is the beginning of another, every choice also counts the probability that the answer ends
behind it. Each prompt is evaluated once; the tails of all choices follow in shared steps.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ..errors import ContextOverflowError, RequestError
from ..events import Finish, Prefill, Queued, Sampling, Timings, Token, Top, Usage
from ..provider import ChoiceScores
from .side_by_side import Submit

if TYPE_CHECKING:
    from ..engine.forward import F32
    from ..engine.load import Engine
    from ..engine.serving.generation import Generation
    from ..engine.serving.job import Job

Ids = tuple[int, ...]

MAX_CHOICES = 1000  # more are only held to by the constraint, not scored


def log_softmax(values: Sequence[float]) -> list[float]:
    """Log-probabilities that sum to 1 from log-probabilities that need not.

    >>> [round(math.exp(v), 3) for v in log_softmax([-1.0, -1.0, -math.inf])]
    [0.5, 0.5, 0.0]
    """
    best = max(values)
    if not math.isfinite(best):
        return [-math.log(len(values))] * len(values)
    total = best + math.log(math.fsum(math.exp(value - best) for value in values))
    return [value - total for value in values]


def pick(logprobs: Sequence[float], sampling: Sampling) -> int:
    """The index of the choice to answer with.

    Temperature 0 takes the most likely one (of equal ones the first); otherwise one is drawn by the
    seed from the probabilities at that temperature.

    >>> pick([-2.0, -0.1, -3.0], Sampling(temperature=0.0))
    1
    """
    if sampling.greedy:
        return max(range(len(logprobs)), key=lambda i: logprobs[i])
    import numpy as np

    temperature = sampling.temperature or 1.0
    heat = max(temperature, 1e-3) if temperature > 0 else 1.0
    scaled = log_softmax([value / heat for value in logprobs])
    point = float(np.random.Generator(np.random.PCG64(sampling.seed)).random())
    for i, value in enumerate(scaled):
        point -= math.exp(value)
        if point < 0:
            return i
    return max(range(len(logprobs)), key=lambda i: logprobs[i])


def nested(choices: Sequence[str]) -> bool:
    """Whether a choice is the beginning of another one, so that the end of each must count.

    >>> nested(["good", "bad", "good enough"]), nested(["good", "bad"])
    (True, False)
    """
    ranked = sorted(choices)  # what begins with a text stands right behind it
    return any(b.startswith(a) for a, b in pairwise(ranked))


@dataclass(frozen=True, slots=True)
class Row:
    """What is kept of the logits at one position."""

    logprobs: Mapping[int, float]  # of the tokens that a choice has there
    ranks: Mapping[int, int]
    end: float  # log of the probability that the answer ends there
    top: tuple[Top, ...] = ()


@dataclass(slots=True)
class Scorer:
    """Scores choices behind a prompt.

    Attributes:
        prompt: The prompt's ids.
        choices: The ids of each choice.
        end_ids: Tokens that end an answer.
        token_bytes: The bytes of a token.
        n_vocab: Ids from here on are no tokens.
        ended: Whether the end of each choice counts, see `nested`.
        top: Alternatives to keep at each position.
        reuse: Whether `jobs` use a cached prefix.
    """

    prompt: Ids
    choices: Sequence[Ids]
    end_ids: frozenset[int]
    token_bytes: Callable[[int], bytes]
    n_vocab: int
    ended: bool
    top: int = 0
    reuse: bool = True
    rows: dict[Ids, Row] = field(default_factory=dict)  # by the tokens of a choice before it

    @property
    def tails(self) -> list[Ids]:
        """Which tokens to evaluate behind the prompt, so that every needed row is seen once."""
        cut = None if self.ended else -1
        wanted = {ids[:n] for ids in self.choices for n in range(1, len(ids[:cut]) + 1)}
        longer = {ids[:-1] for ids in wanted}
        return sorted(ids for ids in wanted if ids not in longer)

    def collect(self, tail: Ids, first: int, logits: "F32") -> None:
        """Keep what is needed of the rows from position `first` on."""
        import numpy as np

        from ..engine.serving.sampler import log_sum_exp, top_ids

        for i, row in enumerate(logits[:, : self.n_vocab], first + 1 - len(self.prompt)):
            before = tail[:i]
            if before in self.rows:
                continue
            lse = log_sum_exp(row)
            n = len(before)
            ids = {c[n] for c in self.choices if len(c) > n and c[:n] == before}
            ends = [float(row[e]) - lse for e in self.end_ids if e < self.n_vocab]
            self.rows[before] = Row(
                {j: float(row[j]) - lse for j in ids},
                {j: 1 + int(np.count_nonzero(row > row[j])) for j in ids},
                math.log(math.fsum(map(math.exp, ends)) or 5e-324) if ends else 0.0,
                tuple(
                    Top(int(j), self.token_bytes(int(j)), float(row[j]) - lse, int(j) in ids)
                    for j in top_ids(row, self.top)
                ),
            )

    def jobs(self) -> "Iterator[Job]":
        """All at once; the first one collects the row behind the prompt too."""
        from ..engine.serving.job import Job

        def job(tail: Ids, start: int) -> Job:
            return Job(
                (*self.prompt, *tail),
                collect=lambda first, logits: self.collect(tail, first, logits),
                collect_from=start,
                reuse=self.reuse,
            )

        n = len(self.prompt)
        first, *rest = self.tails or [()]
        yield job(first, n - 1)
        for tail in rest:
            yield job(tail, n)

    def scores(self) -> ChoiceScores:
        """What was found, when all jobs have ended."""
        found = tuple(self.logprob(ids) for ids in self.choices)
        return ChoiceScores(found, tuple(map(len, self.choices)), self.ended)

    def logprob(self, choice: Ids) -> float:
        """Natural log of the probability of a whole choice."""
        steps = [self.rows[choice[:n]].logprobs[token] for n, token in enumerate(choice)]
        return math.fsum(steps) + (self.rows[choice].end if self.ended else 0.0)

    def tokens(self, choice: Ids, at: float) -> list[Token]:
        """A choice as the tokens of an answer."""
        return [
            Token(
                token, self.token_bytes(token), self.rows[choice[:n]].logprobs[token],
                self.rows[choice[:n]].ranks[token], self.rows[choice[:n]].top, at,
            )
            for n, token in enumerate(choice)
        ]  # fmt: skip


class ChoiceSource:
    """A source (see chat.stream) whose tokens are those of the choice that was picked.

    Args:
        scorer: What to score.
        submit: Evaluates a job.
        sampling: How to pick, see `pick`.
        reuse: Whether a cached prefix is used.
        picked: Told the log-probability of each choice, which sum to 1, before the first token.
    """

    def __init__(
        self,
        scorer: Scorer,
        submit: Submit,
        sampling: Sampling,
        reuse: bool,
        picked: Callable[[list[float]], None],
    ) -> None:
        self._scorer, self._submit, self._sampling = scorer, submit, sampling
        self._reuse, self._picked = reuse, picked
        self._items: deque[Token | Finish] = deque()
        self._first = self._job(())  # the prompt alone: all tails find it in the cache
        self._running: list[Generation] = [self._first]
        self._phase = 0
        self._finish = Finish("stop", Usage(), Timings())

    def _job(self, tail: Ids) -> "Generation":
        from ..engine.serving.job import Job

        prompt = self._scorer.prompt
        # The row behind the prompt was seen by the first job; each tail collects its own rows.
        start = len(prompt) - 1 if not tail else len(prompt)
        return self._submit(
            Job(
                (*prompt, *tail),
                collect=lambda first, logits: self._scorer.collect(tail, first, logits),
                collect_from=start,
                reuse=self._reuse,
            )
        )

    def __next__(self) -> Queued | Prefill | Token | Finish:
        while not self._items:
            if not self._running:
                self._advance()
                continue
            item = next(self._running[0])
            if isinstance(item, Finish):
                ended = self._running.pop(0)
                if item.reason != "stop":  # cancelled
                    return item
                if ended is self._first:
                    self._finish = item
            elif self._phase == 0 and isinstance(item, Queued | Prefill):
                return item
        return self._items.popleft()

    def _advance(self) -> None:
        if self._phase == 0:
            self._phase = 1
            self._running = [self._job(tail) for tail in self._scorer.tails]
            return
        if self._phase == 2:
            raise StopIteration
        self._phase = 2
        choices = self._scorer.choices
        logprobs = log_softmax([self._scorer.logprob(ids) for ids in choices])
        self._picked(logprobs)
        ids = choices[pick(logprobs, self._sampling)]
        timings = self._finish.timings
        self._items.extend(self._scorer.tokens(ids, timings.queued + timings.prefill))
        usage = self._finish.usage
        self._items.append(
            Finish("stop", Usage(usage.prompt, usage.cached, len(ids)), self._finish.timings)
        )

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        for generation in self._running:
            generation.cancel(reason, 0)

    def close(self) -> None:
        self._phase = 2
        for generation in self._running:
            generation.close()
        self._running = []


def scorer(
    engine: "Engine", prompt: Ids, choices: Sequence[str], top: int = 0, reuse: bool = True
) -> Scorer:
    """What scores texts behind a prompt of a loaded model.

    Raises:
        RequestError: A choice has no tokens.
        ContextOverflowError: The prompt with the longest choice does not fit the window.
    """
    model = engine.loaded()
    tokenizer = model.tokenizer
    ids = [tuple(tokenizer.encode(text, special=False, start=False)) for text in choices]
    for text, tokens in zip(choices, ids, strict=True):
        if not tokens:
            raise RequestError(f"the choice {text!r} has no tokens")
    most = len(prompt) + max(map(len, ids))
    if most > model.forward.n_ctx:
        raise ContextOverflowError(most, model.forward.n_ctx)
    return Scorer(
        prompt, ids, tokenizer.end_ids, tokenizer.token_bytes, model.config.n_tokens,
        nested(choices), top, reuse,
    )  # fmt: skip
