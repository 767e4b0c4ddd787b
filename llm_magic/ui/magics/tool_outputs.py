"""Displays of tools beside the answer of the cell that calls them.

A tool may call `clear_output()` and display in a loop. Both act on the cell's whole output, so the
answer would vanish. While a stream is shown, each display of a tool gets a display id of its own,
and clear_output() empties these displays only.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EMPTY = {"text/plain": "", "text/html": ""}


class ToolOutputs:
    """Replaces a shell's display publisher while a stream is shown."""

    def __init__(self, publisher: Any) -> None:
        self._publish = publisher.publish
        self._thread = threading.get_ident()
        self._shown: list[str] = []  # ids of displays with content
        self._free: list[str] = []  # ids of cleared displays, to be used again

    def publish(self, data: Any, metadata: Any = None, *args: Any, **kwargs: Any) -> None:
        """Publish; a tool's display without an id gets one of ours."""
        ours = kwargs.get("update") or (kwargs.get("transient") or {}).get("display_id")
        if ours or threading.get_ident() != self._thread:
            self._publish(data, metadata, *args, **kwargs)
            return
        again = bool(self._free)
        id = self._free.pop(0) if again else uuid.uuid4().hex
        self._shown.append(id)
        self._publish(data, metadata, transient={"display_id": id}, update=again)

    def clear_output(self, wait: bool = False) -> None:
        """Empty the tools' displays: now, or when the next one comes."""
        if threading.get_ident() != self._thread:
            return
        self._free = [*self._free, *self._shown]
        self._shown = []
        if not wait:
            for id in self._free:
                self._publish(dict(EMPTY), {}, transient={"display_id": id}, update=True)


@contextmanager
def separate_outputs(shell: Any) -> Iterator[None]:
    """Keep displays of tools apart from the answer inside the block."""
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
