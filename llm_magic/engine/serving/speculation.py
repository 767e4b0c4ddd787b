"""Guesses at the next tokens, from what followed the same words before in the same text.

A step reads all weights once however few rows it has, so checking a guess costs much less than a
token of its own. A guess never changes what is generated: the model's own logits of each row
decide, and a row gets the same bits in any batch, so tokens and log-probabilities are those of a
run without guesses. (Prompt lookup, a form of speculative decoding, arXiv:2211.17192, whose
rejection sampling is not needed here: every token is drawn as ever, and a guess counts if equal.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

SPAN = 2  # ids that must agree for a guess
LONGEST = 12  # agreement is not measured beyond
# Agreeing ids -> a class whose guesses are counted together: 2, 3, 4-5, 6-8, 9 and more.
_CLASS = (0, 0, 0, 1, 2, 2, 3, 3, 3, 4, 4, 4, 4)
FORGET = 0.97  # weight of what was counted before, at each new guess: texts change
PRIOR = (1.0, 2.0)  # right guesses, guesses: before anything was counted


@dataclass(frozen=True, slots=True)
class Draft:
    """ids: the guess. likely: how often the next id of such guesses was right, 0 to 1."""

    ids: tuple[int, ...]
    likely: float


class Drafts:
    """The guesses of one request. `ids` is the caller's growing list; it only ever grows."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids
        self._known = 0  # ids whose pairs are in the index
        self._after: dict[int, int] = {}  # a pair of ids -> the place behind its last occurrence
        self._right = [PRIOR[0]] * 5
        self._made = [PRIOR[1]] * 5
        self._open: tuple[int, int, int] | None = None  # place, class, id of the guess under way

    def guess(self, most: int) -> Draft | None:
        """`most` >= 1 ids that may follow, or None if the last two are new here."""
        self._judge()
        ids, n = self._ids, len(self._ids)
        if n < SPAN:
            return None
        after = self._after
        for i in range(max(self._known, SPAN), n):
            after[ids[i - 2] << 32 | ids[i - 1]] = i
        pair = ids[n - 2] << 32 | ids[n - 1]
        at = after.get(pair)
        after[pair], self._known = n, n + 1
        if at is None or at == n:
            return None
        agree = SPAN
        while agree < LONGEST and at > agree and ids[at - agree - 1] == ids[n - agree - 1]:
            agree += 1
        out: list[int] = []
        for i in range(at, at + most):  # what repeats may be shorter than the guess
            out.append(ids[i] if i < n else out[i - n])
        kind = _CLASS[agree]
        self._open = (n, kind, out[0])
        return Draft(tuple(out), self._right[kind] / self._made[kind])

    def _judge(self) -> None:
        """Count whether the last guess was right. It is seen in the text, checked or not."""
        if self._open is None or len(self._ids) <= self._open[0]:
            return
        place, kind, guessed = self._open
        self._right[kind] = FORGET * self._right[kind] + (self._ids[place] == guessed)
        self._made[kind] = FORGET * self._made[kind] + 1
        self._open = None


class Costs:
    """Estimated cost of one extra row, as a fraction of a one-row step.

    Updated from measured step times; GUESS until steps of one row and of more were measured.
    """

    GUESS = 0.2

    def __init__(self) -> None:
        self._one: float | None = None  # seconds of a step of one row
        self.row = self.GUESS

    def learn(self, rows: int, seconds: float) -> None:
        """A step of so many rows, each with its token, took so long."""
        if rows == 1:
            before = seconds if self._one is None else self._one
            # A step that waited for the system says little: it counts as one of twice the time.
            self._one = before + 0.1 * (min(seconds, 2 * before) - before)
        elif self._one:
            ratio = (seconds / self._one - 1) / (rows - 1)
            self.row += 0.1 * (min(max(ratio, 0.02), 1.0) - self.row)


def share(drafts: Sequence[Draft | None], room: int, row: float) -> list[int]:
    """How many ids of each request's draft to check in one step of len(drafts) requests.

    An id is added while it raises the expected tokens per unit of time; the id at index i of a
    draft counts as likely ** (i + 1) tokens.

    Args:
        drafts: The draft of each request; None: it has none.
        room: The largest number of ids to check in all.
        row: Cost of a row (`Costs.row`).

    >>> share([Draft((7, 8, 9), likely=0.9), None], room=8, row=0.1)
    [3, 0]
    >>> share([Draft((7, 8, 9), likely=0.05)], room=8, row=0.2)
    [0]
    """
    taken = [0] * len(drafts)
    tokens, cost = float(len(drafts)), 1.0 + row * (len(drafts) - 1)
    for _ in range(room):
        gain, best = 0.0, -1
        for i, draft in enumerate(drafts):
            if draft is not None and taken[i] < len(draft.ids):
                more = draft.likely ** (taken[i] + 1)
                if more > gain:
                    gain, best = more, i
        if best < 0 or (tokens + gain) / (cost + row) <= tokens / cost:
            break
        taken[best] += 1
        tokens, cost = tokens + gain, cost + row
    return taken
