"""What a page has not been told yet, and the numbering of what it is told.

Comes in: operations, one by one. Goes out: messages {"seq": n, "ops": [...]} without gaps; of
several phases in one message the last is told. It must not know threads, turns or widgets.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .phases import IDLE, Phase

Op = dict[str, Any]
Post = Callable[[Mapping[str, Any]], None]


class Outbox:
    """Owned by one thread, which also posts."""

    def __init__(self, post: Post) -> None:
        self.phase = IDLE
        self._post = post
        self._ops: list[Op] = []
        self._new_phase = False
        self._seq = 0

    @property
    def empty(self) -> bool:
        return not self._ops

    def add(self, o: str, **values: Any) -> Op:
        """An operation of the kind `o`; see `apply` in chat.js for what each does."""
        return self.ops({"o": o, **values})

    def ops(self, op: Op) -> Op:
        """An operation as it is."""
        self._ops.append(op)
        return op

    def patch(self, id: int, part: str, patches: Iterable[tuple[int, int, str]]) -> None:
        """Changes to the text of a turn; part is "answer" or "reasoning"."""
        if edits := [list(patch) for patch in patches]:
            self.add("tail", id=id, part=part, edits=edits)

    def notice(self, text: str, action: str = "") -> None:
        """A line for the person; action names the button beside it."""
        self.add("notice", text=text, action=action)

    def set_phase(self, phase: Phase) -> None:
        if phase != self.phase:
            self.phase, self._new_phase = phase, True

    def flush(self) -> None:
        """Post what there is as one message."""
        ops, self._ops = self._ops, []
        if self._new_phase:
            ops.append(self.phase.op())
            self._new_phase = False
        if ops:
            self._seq += 1
            self._post({"seq": self._seq, "ops": ops})

    def snapshot(self, view: str, model: str, ops: list[Op]) -> None:
        """Tell one view everything. It goes on from the number of the last message."""
        self.flush()  # what was pending is in the picture: its number must be used up first
        ops = [*ops, self.phase.op()]
        self._post({"seq": self._seq, "to": view, "model": model, "ops": ops})
