"""Displays of tools beside the answer of the cell that calls them.

A tool may call `clear_output()` and display in a loop. Both act on the cell's whole output, so the
answer would vanish. While a stream is followed, a tool's displays are put into places of their own,
and a clear empties those places only.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EMPTY = {"text/plain": "", "text/html": ""}


class ToolOutputs:
    """Stands between tools and a shell's display publisher while a stream is followed."""

    def __init__(self, publisher: Any) -> None:
        self._publish = publisher.publish
        self._thread = threading.get_ident()
        self._shown: list[str] = []  # places with something in them
        self._free: list[str] = []  # places that the next displays take again

    def publish(self, data: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> None:
        """Publish. A display of a tool (one without an identity of its own) gets a place."""
        ours = kwargs.get("update") or (kwargs.get("transient") or {}).get("display_id")
        if ours or threading.get_ident() != self._thread:
            self._publish(data, metadata, *args, **kwargs)
            return
        again = bool(self._free)
        place = self._free.pop(0) if again else uuid.uuid4().hex
        self._shown.append(place)
        self._publish(data, metadata, transient={"display_id": place}, update=again)

    def clear_output(self, wait: bool = False) -> None:
        """Empty the tool's places: now, or when its next display comes."""
        if threading.get_ident() != self._thread:
            return
        self._free = [*self._free, *self._shown]
        self._shown = []
        if not wait:
            for place in self._free:
                self._publish(dict(EMPTY), {}, transient={"display_id": place}, update=True)


@contextmanager
def of_their_own(shell: Any) -> Iterator[None]:
    """Around the following of a stream whose tools may display and clear."""
    publisher = getattr(shell, "display_pub", None)
    if publisher is None or "publish" in vars(publisher):  # a stream inside a stream's tool
        yield
        return
    outputs = ToolOutputs(publisher)
    try:
        publisher.publish, publisher.clear_output = outputs.publish, outputs.clear_output
        yield
    finally:
        for name in ("publish", "clear_output"):
            publisher.__dict__.pop(name, None)
