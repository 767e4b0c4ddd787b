"""A forward pass without a model: logits follow from the exact content of a slot.

Whatever the scheduler gets wrong about slots, positions or prefixes changes the tokens.
"""

import time
import zlib
from collections.abc import Callable

import numpy as np

from llm_magic.engine.forward import StepResult
from llm_magic.engine.serving.job import Job, Model
from llm_magic.engine.serving.scheduler import Scheduler
from llm_magic.events import Sampling

N_VOCAB = 50
END = 1


class FakeForward:
    """Implements engine.forward.Forward. `rows` counts evaluated rows, `steps` the calls.

    A point of a row is its token and position. A changed row enters the slot as another token.
    """

    description = "fake"
    batch_invariant = False
    memory_bytes = 1

    def __init__(self, n_ctx=64, n_slots=4, max_rows=8, delay=0.0, n_vocab=N_VOCAB, shape=None):
        self.n_vocab, self.n_ctx, self.n_slots, self.max_rows = n_vocab, n_ctx, n_slots, max_rows
        self.max_wanted = max_rows
        self.kv = [[None] * n_ctx for _ in range(n_slots)]
        self.rows = self.steps = self.copied = 0
        self.delay = delay
        self.shape: Callable | None = shape  # (prefix, logits) -> logits
        self.fail_at: int | None = None
        self.closed = False
        self.batches: list[list[tuple[int, int]]] = []

    def step(self, tokens, slots, positions, want, top=0, taps=None):
        assert 1 <= len(tokens) <= self.max_rows
        assert not self.closed
        self.steps += 1
        self.rows += len(tokens)
        if self.delay:
            time.sleep(self.delay * len(tokens))
        assert len(want) <= self.max_wanted
        out = np.empty((len(want), self.n_vocab), np.float32)
        wanted = {int(w): i for i, w in enumerate(want)}
        seen: list[int] = []
        for i, (t, s, p) in enumerate(
            zip(tokens.tolist(), slots.tolist(), positions.tolist(), strict=True)
        ):
            assert s not in seen[:-1], "rows of one slot must be adjacent"
            if not seen or seen[-1] != s:
                seen.append(s)
            if t == self.fail_at:
                raise RuntimeError("damaged step")
            assert None not in self.kv[s][:p], "positions before the first are in the cache"
            self.kv[s][p] = t + self._tapped(taps, i, t, p)
            if i in wanted:
                out[wanted[i]] = self.logits(self.kv[s][: p + 1])
        self.batches.append([(s, slots.tolist().count(s)) for s in seen])
        return StepResult(out)

    def _tapped(self, taps, row, token, position):
        for read in taps.reads if taps else ():
            if 0 <= row - read.first < len(read.out):
                read.out[row - read.first] = token, position
        changes = taps.changes if taps else ()
        rows = [c for c in changes if 0 <= row - c.first < c.rows]
        return sum(1000 * float(c.values[0, 0]) for c in rows)

    def logits(self, prefix):
        seed = zlib.crc32(repr(prefix).encode())
        row = np.random.default_rng(seed).normal(0, 2, self.n_vocab).astype(np.float32)
        row[END] = -20.0
        return row if self.shape is None else self.shape(prefix, row)

    def copy(self, source, target, n):
        self.copied += n
        self.kv[target][:n] = self.kv[source][:n]

    position_bytes = 10

    def forget(self, slot):
        self.kv[slot] = [None] * self.n_ctx

    def resize(self, n_ctx, n_slots):
        self.kv = [row + [None] * (n_ctx - len(row)) for row in self.kv]
        self.kv += [[None] * n_ctx for _ in range(n_slots - len(self.kv))]
        self.n_ctx, self.n_slots = n_ctx, n_slots

    def close(self):
        self.closed = True


def fake_scheduler(forward=None, **options):
    forward = forward or FakeForward(**options)
    model = Model(forward, forward.n_vocab, frozenset({END}), lambda i: b"<%d>" % i)
    scheduler = Scheduler(lambda: model)
    scheduler.start()
    scheduler.ready.result(timeout=10)
    return scheduler, forward


def job(ids, n=5, **options):
    """A greedy one of n tokens."""
    return Job(tuple(ids), Sampling(temperature=0.0, max_tokens=n), **options)


def greedy(forward, prompt, n):
    """What a cold engine says: the oracle."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(forward.logits(ids).argmax()))
    return ids[len(prompt) :]
