"""Messages between a widget in the kernel and its pages, numbered so that a page misses none.

A page sends `{"t": kind, ...}`. The kernel sends operations, `{"o": kind, ...}`, in messages:

- to all pages: `{"seq": n, "ops": [...]}`; n grows by one with each message;
- the answer to one page's request: `{"to": page, "ops": [...]}`;
- a snapshot, sent after a page's `hello`: `{"to": page, "snapshot": True, "seq": n, "last": bool,
  "ops": [...]}` in one or more parts. Afterwards the page takes messages from n + 1 on.

A page that has no snapshot yet, or sees a gap in the numbers, says `hello` again (protocol.js).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from llm_magic.json_types import Json, JsonObject

JSON: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Op: TypeAlias = JsonObject
Post: TypeAlias = Callable[[Mapping[str, Json]], None]


class Outbox:
    """Operations that wait to be sent to the pages. One thread owns it, and that thread posts.

    Args:
        post: Sends one message to all pages of the widget.

    >>> outbox = Outbox(print)
    >>> outbox.add("notice", text="Ready")
    >>> outbox.flush()
    {'seq': 1, 'ops': [{'o': 'notice', 'text': 'Ready'}]}
    >>> outbox.flush()  # nothing is waiting
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self._ops: list[Op] = []
        self._states: dict[str, Op] = {}  # what `state` said last, by kind
        self._changed: dict[str, Op] = {}  # of these, what the pages have not been sent
        self._seq = 0

    @property
    def empty(self) -> bool:
        """Whether no operation waits; states do not count."""
        return not self._ops

    def add(self, o: str, **values: Json) -> None:
        """Queue an operation of the kind `o`."""
        self._ops.append({"o": o, **values})

    def extend(self, ops: Iterable[Op]) -> None:
        """Queue operations as they are."""
        self._ops.extend(ops)

    def state(self, o: str, **values: Json) -> None:
        """Set a state of the widget, such as its phase.

        An unchanged state is not sent. Of several changes in one message the last one is sent, and
        a snapshot holds it.

        >>> outbox = Outbox(print)
        >>> outbox.state("phase", name="load")
        >>> outbox.state("phase", name="decode")
        >>> outbox.flush()
        {'seq': 1, 'ops': [{'o': 'phase', 'name': 'decode'}]}
        """
        op: Op = {"o": o, **values}
        if self._states.get(o) != op:
            self._states[o] = self._changed[o] = op

    def flush(self) -> None:
        """Send what waits as one message."""
        ops = [*self._ops, *self._changed.values()]
        self._ops, self._changed = [], {}
        if ops:
            self._seq += 1
            self._post({"seq": self._seq, "ops": ops})

    def answer(self, page: str, *ops: Op) -> None:
        """Send operations to one page that asked for them."""
        self._post({"to": page, "ops": list(ops)})

    def snapshot(self, page: str, *parts: Sequence[Op]) -> None:
        """Send one page everything, in as many messages as there are parts.

        >>> outbox = Outbox(print)
        >>> outbox.snapshot("p1", [{"o": "path"}])
        {'to': 'p1', 'snapshot': True, 'seq': 0, 'last': True, 'ops': [{'o': 'path'}]}
        """
        self.flush()  # what waited is part of the snapshot: its number must be used up first
        states = tuple(self._states.values())
        last = len(parts) - 1
        for i, part in enumerate(parts):
            ops = [*part, *(states if i == last else ())]
            self._post(
                {"to": page, "snapshot": True, "seq": self._seq, "last": i == last, "ops": ops}
            )
