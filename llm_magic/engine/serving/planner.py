"""The planner: which rows the next step takes.

A step evaluates rows of many requests at once: a running request adds its last token, a new one
adds a chunk of its prompt. Behind its last token a running request may add guesses at what follows
(speculation.py). The planner only decides; it touches neither slots nor the forward pass.
"""

from collections.abc import Callable, Sequence

from llm_magic.prefix import common_prefix

from ..forward import Forward
from .job import RequestState
from .speculation import Costs, Draft, Drafts, share

Batch = list[tuple[RequestState, int]]  # how many tokens of each request a step evaluates
# Takes over n tokens of a leader: (request, leader, n). False if that failed and the request ended.
Follow = Callable[[RequestState, RequestState, int], bool]

STEP_SECONDS = 0.05  # aim for one step: cancels act, and running streams speak, this often
ALONE = 4  # times that for a request that nobody runs beside: its weights are read less often
MIN_CHUNK = 8
MIN_SHARED = 16  # tokens of a common beginning that are worth waiting for and copying
FIRST_CHUNK = 64  # rows of the first step of a model whose speed nobody knows yet
MOST_GUESSED = 3  # tokens of one request that a step checks


class Planner:
    """Plans the steps of one forward pass; learns from each how many rows fit into the next."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._rows: dict[bool, int] = {}  # see _chunk; empty until something has been measured
        self._costs = Costs()

    def plan(self, active: Sequence[RequestState], follow: Follow, alone: bool) -> Batch:
        """Who evaluates how many tokens in the next step: running requests first, then prompts.

        Prompts share what is left evenly, so a short one is not kept behind a long one.

        Args:
            active: The requests that have a slot.
            follow: Called where a request can take over what another one has evaluated.
            alone: Whether there is no other request, not even a waiting one.
        """
        runs = self._without_followers([r for r in active if r.readable], follow)
        most = self._forward.max_rows
        ready = [r for r in runs if len(r.ids) - r.done == 1]
        if len(ready) > most:
            ready.sort(key=lambda r: r.last)  # those that waited longest
        batch = [(r, 1) for r in ready[:most]]
        prompts = [r for r in runs if len(r.ids) - r.done > 1]
        self._guess(batch, with_prompts=bool(prompts))
        if not prompts:
            return batch
        collects = any(r.job.collect is not None for r in prompts)
        aim = self._chunk(collects)
        if collects in self._rows and alone:
            aim *= ALONE
        room = min(most, max(aim, len(batch) + MIN_CHUNK)) - len(batch)
        more = self._forward.max_wanted - len(batch) - len(prompts)  # each may want one row
        for i, run in enumerate(sorted(prompts, key=lambda r: len(r.ids) - r.done)):
            share = max(1, room // (len(prompts) - i)) if room > 0 else 0
            n = min(share, len(run.ids) - run.done)
            if run.job.collect is not None and n > 0:
                skipped = run.uncollected(n)
                n = min(n, skipped + 1 + max(0, more))
                more -= max(0, n - skipped - 1)
            if n > 0:
                batch.append((run, n))
                room -= n
        return batch

    def _guess(self, batch: Batch, with_prompts: bool) -> None:
        """Give requests that decode guesses to check. With prompts in the step, rows are spoken
        for; a guess is only checked where a row has the same bits in every batch."""
        forward = self._forward
        drafts: list[Draft | None] = []
        for run, _ in batch:
            run.draft = ()
            most = min(MOST_GUESSED, run.out.room - 1, forward.n_ctx - len(run.ids))
            if (limit := run.job.sampling.max_tokens) is not None:
                most = min(most, limit - run.drawn - 1)
            may = run.job.guess and run.job.collect is None
            if with_prompts or not forward.batch_invariant or not may or most < 1:
                drafts.append(None)
                continue
            run.drafts = run.drafts or Drafts(run.ids)
            drafts.append(run.drafts.guess(most))
        room = min(forward.max_rows, forward.max_wanted) - len(batch)
        for (run, _), draft, n in zip(
            batch, drafts, share(drafts, room, self._costs.row), strict=True
        ):
            run.draft = draft.ids[:n] if draft is not None else ()

    def _without_followers(self, runs: list[RequestState], follow: Follow) -> list[RequestState]:
        """Those that evaluate something now.

        Several answers to one prompt, or to prompts with one beginning, come at once: the first one
        evaluates the beginning, the others wait for it and get a copy.
        """
        out: list[RequestState] = []
        for run in runs:
            leader, n = self._leader(run, out)
            if leader is None or (leader.done >= n and follow(run, leader, n)):
                out.append(run)
        return out

    def _leader(
        self, run: RequestState, earlier: list[RequestState]
    ) -> tuple[RequestState | None, int]:
        """(who evaluates or has evaluated what this run begins with, how many tokens of it)"""
        found, best = None, run.done + MIN_SHARED - 1
        most = min(len(run.ids) - 1, run.reusable)
        if most <= best:
            return None, 0
        for other in earlier:
            if other.job.key != run.job.key:
                continue
            known = max(other.done, other.n_prompt)  # what was drawn last may never be evaluated
            n = min(common_prefix(other.ids, run.ids), most, known)
            if n > best and other.done >= run.done:
                found, best = other, n
        return found, best

    def _chunk(self, collects: bool) -> int:
        """Rows of a step that take about STEP_SECONDS. All logits of a row cost more than a row."""
        return min(self._forward.max_rows, self._rows.get(collects, FIRST_CHUNK))

    def learn(self, n: int, seconds: float, collects: bool, decoded: bool) -> None:
        """Note how long a step of n rows took. decoded: each row was a token of an answer."""
        self._learn_rows(n, seconds, collects)
        if decoded:
            self._costs.learn(n, seconds)

    def _learn_rows(self, n: int, seconds: float, collects: bool) -> None:
        """How many rows fit, from a step that was full, or too long.

        A step costs its weights once and then so much a row: short ones say little about long ones.
        So the number moves half way, and at most doubles; it settles after a few steps.
        """
        rows, most = self._chunk(collects), self._forward.max_rows
        if 2 * n >= rows or seconds > STEP_SECONDS:
            fit = n * STEP_SECONDS / max(seconds, 1e-6)
            self._rows[collects] = max(MIN_CHUNK, int(min((rows + fit) / 2, 2 * rows, most)))
