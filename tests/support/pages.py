"""A page without a browser: the rules of protocol.js, in Python, for tests of the kernel's side."""

import json
import threading
from typing import Any


class PageBase:
    """What one page takes of a widget's messages. A subclass applies the operations."""

    def __init__(self, name: str = "page") -> None:
        self.name = name
        self.seq: int | None = None
        self.missed = 0
        self.messages: list[Any] = []
        self.threads: set[str] = set()

    def receive(self, message: Any, buffers: Any = None) -> None:
        """One message, which must be strict JSON."""
        message = json.loads(json.dumps(message, allow_nan=False))
        self.messages.append(message)
        self.threads.add(threading.current_thread().name)
        if "to" in message:
            if message["to"] != self.name:
                return
            self.seq = message["seq"] if message.get("snapshot") else self.seq
        elif self.seq is None or message["seq"] <= self.seq:
            return
        elif message["seq"] != self.seq + 1:
            self.missed += 1
            return
        else:
            self.seq = message["seq"]
        for op in message["ops"]:
            self.apply(op)

    def apply(self, op: dict[str, Any]) -> None:
        raise NotImplementedError
