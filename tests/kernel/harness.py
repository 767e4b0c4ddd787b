"""A real Jupyter kernel under test: run code, collect every message with its time, interrupt.

Messages are sorted by the request that they belong to, since that decides which cell shows them.
"""

import ast
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.manager import KernelManager

TIMEOUT = 120.0


@dataclass
class Message:
    """One message of the iopub channel. at: seconds since the request was sent."""

    kind: str
    content: dict[str, Any]
    parent: str
    at: float
    size: int  # bytes of the data, as JSON text would have them

    @property
    def data(self) -> dict[str, Any]:
        return self.content.get("data", {})

    @property
    def display_id(self) -> str | None:
        return self.content.get("transient", {}).get("display_id")


@dataclass
class Run:
    """What one execution of a cell sent."""

    id: str
    reply: dict[str, Any]
    messages: list[Message]
    seconds: float
    others: list[Message] = field(default_factory=list)  # messages of other cells meanwhile

    @property
    def ok(self) -> bool:
        return self.reply["status"] == "ok"

    def of(self, *kinds: str) -> list[Message]:
        return [m for m in self.messages if m.kind in kinds]

    @property
    def frames(self) -> list[Message]:
        """Every state of the displays, first ones and updates, in order."""
        return self.of("display_data", "update_display_data")

    @property
    def final(self) -> dict[str, Any]:
        """The data of the last state."""
        return self.frames[-1].data

    def stream(self, name: str = "stdout") -> str:
        return "".join(m.content["text"] for m in self.of("stream") if m.content["name"] == name)

    @property
    def result(self) -> str | None:
        """text/plain of Out, or None."""
        found = self.of("execute_result")
        return found[0].data["text/plain"] if found else None

    def check(self) -> "Run":
        """Fail with the kernel's own traceback if the cell did."""
        if not self.ok:
            raise AssertionError("\n".join(self.reply.get("traceback", [])) or str(self.reply))
        return self


class Kernel:
    """A running kernel with llm_magic loaded or not."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)
        self._late: list[Message] = []

    def run(
        self,
        code: str,
        *,
        on: Callable[[Message], None] | None = None,
        timeout: float = TIMEOUT,
    ) -> Run:
        """Execute a cell to its end. on: called with each of its messages as it arrives."""
        start = time.monotonic()
        return self.wait(self.send(code), start, on=on, timeout=timeout)

    def send(self, code: str) -> str:
        return self.client.execute(code, store_history=True, allow_stdin=False)

    def wait(
        self,
        id: str,
        start: float | None = None,
        *,
        on: Callable[[Message], None] | None = None,
        timeout: float = TIMEOUT,
    ) -> Run:
        start = time.monotonic() if start is None else start
        mine, others = [], self._late
        self._late = []
        while True:
            message = self._next(start, timeout - (time.monotonic() - start))
            if message.parent != id:
                others.append(message)
                continue
            mine.append(message)
            if on is not None:
                on(message)
            if message.kind == "status" and message.content["execution_state"] == "idle":
                break
        reply = self._reply(id, timeout)
        seconds = time.monotonic() - start
        return Run(id, reply, mine, seconds, others)

    def _reply(self, id: str, timeout: float) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") == id:
                return message["content"]

    def _next(self, start: float, timeout: float) -> Message:
        try:
            raw = self.client.get_iopub_msg(timeout=max(timeout, 0.01))
        except queue.Empty:
            raise AssertionError(f"the kernel was silent for {timeout:.0f} s") from None
        content = raw["content"]
        size = sum(len(str(v).encode()) for v in content.get("data", {}).values())
        parent = raw["parent_header"].get("msg_id", "")
        return Message(raw["msg_type"], content, parent, time.monotonic() - start, size)

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def value(self, expression: str) -> Any:
        """A Python value of the kernel (anything that repr and literal_eval agree on)."""
        run = self.run(f"print(repr({expression}))").check()
        return ast.literal_eval(run.stream())


@contextmanager
def kernel(**environment: str) -> Iterator[Kernel]:
    """A fresh kernel of this interpreter; gone at the end."""
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(env=os.environ | environment)
    try:
        found = Kernel(manager)
        yield found
        found.client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
