"""A server of bytes: plays answers piece by piece, and records what clients send and when they go.

An answer is a list of steps: bytes are sent, a number is a pause in seconds, HANG waits until the
client goes, DROP closes the connection in the middle.
"""

import json
import select
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

HANG, DROP = "hang", "drop"
Step = bytes | float | str
Answer = bytes | list[Step]
MODELS = {"object": "list", "data": [{"id": "m"}]}


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


def head(status: int = 200, kind: str = "text/event-stream", **more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def event(value: object, eol: str = "\n") -> bytes:
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {data}{eol}{eol}".encode()


def chunk(text: str | None = None, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of a chat as OpenAI sends it."""
    if text is not None:
        delta["content"] = text
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def stream(*events: object, end: bool = True, reason: str | None = "stop") -> list[Step]:
    """The steps of a whole streamed answer. reason: of a last chunk; None: there is none."""
    last = [chunk(reason=reason)] if reason else []
    pieces = [e if isinstance(e, bytes | float) else event(e) for e in (*events, *last)]
    return [head(), *pieces, *([event("[DONE]")] if end else [])]


def answer(value: object, status: int = 200, **headers: str) -> bytes:
    """A JSON answer."""
    body = json.dumps(value, ensure_ascii=False).encode()
    return head(status, "application/json", content_length=str(len(body)), **headers) + body


class Wire:
    """The server. Answers to POST are played in order, and the last one again and again."""

    def __init__(
        self,
        *answers: "Answer | Callable[[Asked], Answer]",
        models: object = MODELS,
        routes: "Mapping[str, Answer | Callable[[Asked], Answer]] | None" = None,
    ) -> None:
        self.answers = list(answers)
        self.routes = {"/v1/models": answer(models)} | dict(routes or {})
        self.asked: list[Asked] = []
        self.changed = threading.Condition()
        self.open = self.gone = 0  # connections now; clients that left in the middle of an answer
        self._listen = socket.create_server(("127.0.0.1", 0))
        self.port = self._listen.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def posts(self) -> list[Asked]:
        """The requests for something to be generated."""
        return [a for a in self.asked if a.method == "POST"]

    def until(self, test: Callable[[], bool], seconds: float = 20) -> bool:
        """Wait until something is true of the server."""
        with self.changed:
            return self.changed.wait_for(test, seconds)

    def close(self) -> None:
        self._stop.set()
        # A blocked accept() is not woken by close() alone.
        with socket.socket() as knock:
            knock.settimeout(1)
            knock.connect_ex(("127.0.0.1", self.port))
        self._listen.close()
        self._accepting.join(5)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listen.accept()
            except OSError:
                return
            if self._stop.is_set():
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self.changed:
            self.open += 1
            self.changed.notify_all()
        try:
            with connection:
                asked = self._read(connection)
                if asked is not None:
                    self._play(connection, self._answer(asked))
        except OSError:
            with self.changed:
                self.gone += 1
        finally:
            with self.changed:
                self.open -= 1
                self.changed.notify_all()

    def _answer(self, asked: Asked) -> Iterable[Step]:
        with self.changed:
            self.asked.append(asked)
            path = asked.path.split("?")[0]
            if path in self.routes:
                found = self.routes[path]
            elif asked.method == "GET" or not self.answers:
                found = answer({"error": {"message": "File Not Found"}}, 404)
            else:
                found = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
            self.changed.notify_all()
        played = found(asked) if callable(found) else found
        return [played] if isinstance(played, bytes) else played

    def _play(self, connection: socket.socket, steps: Iterable[Step]) -> None:
        for step in steps:
            if step == DROP:
                return
            if step == HANG or isinstance(step, int | float):
                self._pause(connection, None if step == HANG else float(step))
            elif isinstance(step, bytes):
                connection.sendall(step)

    def _pause(self, connection: socket.socket, seconds: float | None) -> None:
        """Wait; an OSError when the client goes."""
        left = 60.0 if seconds is None else seconds
        ready, _, _ = select.select([connection], [], [], left)
        if ready and not connection.recv(1):
            raise ConnectionResetError("the client has gone")

    def _read(self, connection: socket.socket) -> Asked | None:
        file = connection.makefile("rb")
        first = file.readline().decode().split()
        if len(first) < 2:
            return None
        headers: dict[str, str] = {}
        while line := file.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        size = int(headers.get("content-length") or 0)
        body = file.read(size)
        if len(body) < size:
            return None
        return Asked(first[0], first[1], headers, json.loads(body) if body else None)


@contextmanager
def served(*answers: Any, dialect: str = "openai", **options: Any):
    """A server and a provider that is connected to it: (wire, LLM)."""
    from llm_magic.llm import LLM
    from llm_magic.providers.http.connect import connect

    own = {name: options.pop(name) for name in ("models", "routes") if name in options}
    with Wire(*answers, **own) as wire:
        remote = connect([wire.url], dialect=dialect, **options)
        try:
            yield wire, LLM(remote)
        finally:
            remote.close()
