"""KV slots: which token ids lie in which slot, and which slot a request gets.

This is book-keeping only; keys and values live in the forward pass. All calls come from the owner
thread.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from llm_magic.prefix import common_prefix


@dataclass(slots=True)
class Slot:
    """One KV sequence. `ids` are exactly the tokens whose keys and values were computed.

    key: names the edits under which they were computed, see job.Job.key.
    """

    index: int
    ids: list[int] = field(default_factory=list)
    busy: bool = False
    used: int = 0  # the clock of its last use, for least-recently-used eviction
    key: bytes = b""


class Slots:
    """The slots of one engine.

    copy(source, target, n) moves a prefix between slots in the forward pass; forget(slot) gives the
    memory of one back. budget: positions that slots which nobody uses may hold together; None: all.
    """

    def __init__(
        self,
        n: int,
        copy: Callable[[int, int, int], None],
        forget: Callable[[int], None] = lambda slot: None,
        budget: int | None = None,
    ) -> None:
        self._slots = [Slot(i) for i in range(n)]
        self._copy, self._forget = copy, forget
        self._budget = budget
        self._clock = 0
        self.hits = 0  # prompt tokens that were found in the cache
        self.misses = 0  # prompt tokens that had to be evaluated

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    @property
    def free(self) -> int:
        return sum(not s.busy for s in self._slots)

    @property
    def cached_tokens(self) -> int:
        return sum(len(s.ids) for s in self._slots)

    def acquire(
        self, ids: list[int], most: int | None = None, key: bytes = b""
    ) -> tuple[Slot, int] | None:
        """A free slot for a prompt, and how many leading tokens of it are cached there.

        most: how many may come from the cache; None: all but the last. At least one token of the
        prompt is always left to evaluate, since its logits are needed.
        key: only slots with this key are looked at for a match.
        None when every slot is busy. The slot with the longest match wins; if taking it would
        destroy more than it saves, its prefix is copied to the least recently used slot instead
        (a short cell must not wipe out a long conversation that shares its system prompt).
        """
        free = [s for s in self._slots if not s.busy]
        if not free:
            return None
        oldest = min(free, key=lambda s: (bool(s.ids), s.used))
        slot, n = oldest, 0
        limit = len(ids) - 1 if most is None else min(most, len(ids) - 1)
        if limit > 0:

            def shared(slot: Slot) -> int:
                return common_prefix(slot.ids, ids) if slot.key == key else 0

            source = max(self._slots, key=lambda s: (shared(s), not s.busy))
            n = min(shared(source), limit)
            cheap = not source.busy and len(source.ids) - n <= n  # loses less than it saves
            if n and (cheap or source is oldest):
                slot = source
            elif n:
                oldest.ids.clear()  # after a copy that failed it holds neither the old nor the new
                self._copy(source.index, oldest.index, n)
                oldest.ids = list(ids[:n])
        del slot.ids[n:]
        slot.key = key
        slot.busy = True
        self.touch(slot)
        self.hits += n
        self.misses += len(ids) - n
        return slot, n

    def longest(self, ids: list[int], most: int, key: bytes = b"") -> tuple[Slot | None, int]:
        """The free slot of this key with the longest beginning of these ids, and how much of it."""
        found = max(
            (s for s in self._slots if not s.busy and s.key == key),
            key=lambda s: common_prefix(s.ids, ids),
            default=None,
        )
        return found, min(common_prefix(found.ids, ids), most) if found is not None else 0

    def share(self, source: Slot, target: Slot, n: int) -> None:
        """Copy the first n positions of a slot to another one, which holds a beginning of them."""
        new = n - len(target.ids)
        target.ids.clear()  # after a copy that failed it holds neither the old nor the new
        self._copy(source.index, target.index, n)
        target.ids = source.ids[:n]
        self.hits += new
        self.misses -= new

    def touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.used = self._clock

    def advance(self, slot: Slot, ids: Sequence[int]) -> None:
        """These tokens were evaluated at the end of the slot."""
        slot.ids.extend(ids)

    def truncate(self, slot: Slot, n: int) -> None:
        """Forget everything from position n on."""
        del slot.ids[n:]

    def release(self, slot: Slot) -> None:
        slot.busy = False
        self.touch(slot)
        self._keep()

    def allow(self, budget: int | None) -> None:
        """A larger budget; a smaller one changes nothing."""
        if self._budget is not None:
            self._budget = None if budget is None else max(budget, self._budget)

    def _keep(self) -> None:
        """Forget slots that nobody uses, least recently used first, until the rest is in budget."""
        if self._budget is None:
            return
        idle = sorted((s for s in self._slots if not s.busy and s.ids), key=lambda s: s.used)
        spare = sum(len(s.ids) for s in idle) - self._budget
        for slot in idle:
            if spare <= 0:
                return
            spare -= len(slot.ids)
            slot.ids.clear()
            self._forget(slot.index)

    def grow(self, n: int) -> None:
        self._slots.extend(Slot(i) for i in range(len(self._slots), n))
