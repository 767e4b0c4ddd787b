"""Starting and stopping a server: a socket, an event loop on a thread of its own, an application.

The loop never works for the model and never waits for it; threads read the model's streams
(reading.py). The kernel's own loop and its signal handlers are left alone.
"""

import asyncio
import atexit
import contextlib
import ipaddress
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..arguments import count, shown
from ..errors import RequestError
from ..llm import LLM
from .answers import Kitchen
from .floor import Floor, post
from .guard import Access
from .routes import application
from .stats import Served, Stats

HEAD_SECONDS = 20.0  # for the head of a request to arrive
MOST_CONNECTIONS = 512
MOST_PORT = 65535
MOST_WAITING = 256  # answers that wait for a place
START_SECONDS = 30.0
STOP_SECONDS = 5.0
DEFAULT_PLACES = 3  # of a provider that has no slots


class Server:
    """A running server of one model. `serve` makes them.

    Attributes:
        model: The name under which clients ask for the model.
        token: What clients must send as API key; "" where none is needed.
        host, port: Where it listens.
    """

    def __init__(self, llm: LLM, sock: socket.socket, access: Access, places: int, seconds: float):
        self.model = llm.model
        self.token = access.token
        self.host, self.port = sock.getsockname()[:2]
        self._socket = sock
        self._pid = os.getpid()
        self._stats = Stats()
        self._stopping = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._floor = Floor(places, MOST_WAITING)
        kitchen = Kitchen(llm, llm.model, self._floor, self._stats, seconds)
        config = uvicorn.Config(
            application(kitchen, access), http=Protocol, ws="none", lifespan="off", loop="asyncio",
            log_config=None, log_level="critical", access_log=False, proxy_headers=False,
            server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=1,
            limit_concurrency=MOST_CONNECTIONS,
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="llm_magic server", daemon=True)

    def __repr__(self) -> str:
        state = self.url if self.running else "stopped"
        return f"Server({self.model!r}, {state})"

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What a client takes as base URL; ends in /v1."""
        return f"{self._root}/v1"

    @property
    def page(self) -> str:
        """The chat page. The token stands behind #, which a browser keeps to itself."""
        return f"{self._root}/#{self.token}" if self.token else f"{self._root}/"

    @property
    def _root(self) -> str:
        address = ipaddress.ip_address(self.host.partition("%")[0])
        if address.is_unspecified:  # all addresses: this machine reaches it under its own
            address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        name = f"[{address}]" if address.version == 6 else str(address)
        return f"http://{name}:{self.port}"

    @property
    def running(self) -> bool:
        return self._thread.is_alive() and not self._uvicorn.should_exit

    @property
    def recent(self) -> list[Served]:
        """The latest answers with what they cost, oldest first."""
        return list(self._stats.recent)

    def start(self) -> None:
        """Start answering; returns when it does."""
        self._thread.start()
        end = time.monotonic() + START_SECONDS
        while not self._uvicorn.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                self.stop()
                raise RequestError(f"the server on port {self.port} did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop answering; what is being written ends with an error. Idempotent."""
        _running.discard(self)
        if self._pid != os.getpid():
            return  # of the process that this one was forked from
        with self._stopping:
            if self._loop is not None:  # clients are told, and then their connections end
                post(self._loop, self._floor.halt)
            self._uvicorn.should_exit = True
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join(STOP_SECONDS)
            self._socket.close()

    def forget(self) -> None:
        """In a forked child: the parent's port is the parent's."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            runner.run(self._uvicorn.serve(sockets=[self._socket]))


class Protocol(H11Protocol):
    """HTTP on a connection, whose requests must begin to arrive, and then arrive, in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:  # the head of a request is complete
            self._in_time()
        elif self._late is None:  # some of it is here
            self._late = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


# Every server of this process: they stop with the extension, and with the interpreter.
_running: set[Server] = set()


def serve(
    llm: LLM,
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    token: str | Literal[False] | None = None,
    origins: Iterable[str] = (),
    hosts: Iterable[str] = (),
    parallel: int | None = None,
    seconds: float = 600.0,
) -> Server:
    """Serve a model; see `LLM.serve`."""
    if not isinstance(host, str) or not host:
        raise RequestError(f"host is {shown(host)}; it must be an address, such as '127.0.0.1'")
    sock = _listen(host, count("port", port))
    try:
        local = ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
        access = Access(
            token=_token(token, local),
            local=local,
            hosts=frozenset(name.lower() for name in _names("hosts", hosts)) | {host.lower()},
            origins=frozenset(map(_origin, _names("origins", origins))),
        )
        places = _places(llm) if parallel is None else count("parallel", parallel, 1)
        server = Server(llm, sock, access, places, _seconds(seconds))
    except BaseException:
        sock.close()
        raise
    server.start()
    _running.add(server)
    return server


def running() -> list[Server]:
    """The servers of this process."""
    return [server for server in list(_running) if server.running]


def stop_all() -> None:
    """Stop every server of this process."""
    for server in list(_running):
        server.stop()


def _forget_all() -> None:
    for server in list(_running):
        server.forget()
    _running.clear()


atexit.register(stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _listen(host: str, port: int) -> socket.socket:
    if port > MOST_PORT:
        raise RequestError(f"port is {port}; it must be 0 to {MOST_PORT}")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as e:
        raise RequestError(f"cannot listen on {host!r}, port {port}: {e}") from None
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as e:
        sock.close()
        raise RequestError(
            f"port {port} of {host} cannot be used ({e.strerror}); choose another one, or 0 for "
            "any that is free"
        ) from None
    return sock


def _origin(text: str) -> str:
    """An origin as browsers send it: lower case, without the port that its scheme implies."""
    parts = urlsplit(text.rstrip("/").lower())
    if not parts.scheme or not parts.netloc or parts.path or parts.query or parts.fragment:
        raise RequestError(
            f"the origin {shown(text)} is not one of a web page; write scheme, host and port, such "
            "as http://localhost:8888"
        )
    implied = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return f"{parts.scheme}://{parts.netloc.removesuffix(implied) if implied else parts.netloc}"


def _token(token: object, local: bool) -> str:
    if token is None:
        return secrets.token_urlsafe(24)
    if token is False:
        if not local:
            raise RequestError("a server that other machines can reach needs a token")
        return ""
    # What a header can carry; a token of blanks would let nobody in.
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise RequestError("token must be a text of letters, digits and signs, or False for none")
    if not token:
        raise RequestError("token is empty; give a text, None for a random one, or False for none")
    return token


def _names(what: str, names: Iterable[str]) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    for name in listed:
        if not isinstance(name, str) or not name:
            raise RequestError(f"{what} holds {shown(name)}; each must be a text")
    return [name.rstrip("/") for name in listed]


def _places(llm: LLM) -> int:
    slots = getattr(llm.provider.status(), "slots", None)
    return max(1, slots - 1) if isinstance(slots, int) else DEFAULT_PLACES


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise RequestError(f"seconds is {shown(value)}; it must be a number greater than 0")
    return float(value)
