"""Lanes: connections to one server that another thread can sever at any time.

A lane is an HTTP client with one connection. The socket is known as soon as it is connected, so a
request can be severed while it waits for the head of the answer, in the middle of the answer, or
between two answers. Shutting the socket down wakes a blocked reader, and the server sees its client
leave and frees the slot.
"""

import contextlib
import os
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from .addresses import Address

CONNECT = 5.0  # seconds for a connection, TLS included
IDLE = 4.0  # seconds that an idle connection is kept: llama-server closes them after 5
KEPT = 8  # idle lanes that are kept for the next request


class Severed(Exception):
    """The request was given up while it ran."""


class Call:
    """One request on its way, as those see it who may give it up. All methods: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.severed = threading.Event()
        self.fresh = True  # whether its connection was opened for it, or kept from another one

    def sever(self) -> None:
        """Shut the connection down. The reader unwinds; nothing is raised here."""
        with self._lock:
            self.severed.set()
            if self._socket is not None:
                _shut(self._socket)

    def attach(self, stream: Any) -> None:
        """The connection that carries the request from now on.

        It is shut down if the request was given up before. Nothing is raised: the caller may be a
        library that would then forget the connection without closing it.
        """
        found = stream.get_extra_info("socket") if stream is not None else None
        with self._lock:
            self._socket = found if isinstance(found, socket.socket) else None
            if self.severed.is_set() and self._socket is not None:
                _shut(self._socket)

    def detach(self) -> None:
        """The connection may carry something else now."""
        with self._lock:
            self._socket = None


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        # Not SSLSocket.shutdown: that one takes the TLS state away from the blocked reader.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Lane:
    """A client with one connection, and the stream of that connection."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.stream: Any = None
        self.call: Call | None = None

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore: a connection, or TLS on top of it, is there."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self.stream = info.get("return_value")
            if self.call is not None:
                self.call.fresh = True
                self.call.attach(self.stream)


class Lanes:
    """Connections to one server.

    Args:
        address: The server.
        client: A client of the caller, for settings that we do not know; it is not closed here.
        verify: False for no check of certificates, or the path of a file with certificates of
            authorities. None: those of the system, SSL_CERT_FILE and SSL_CERT_DIR.
    """

    def __init__(
        self,
        address: Address,
        client: httpx.Client | None = None,
        verify: bool | str | None = None,
        connect: float = CONNECT,
    ) -> None:
        self._address = address
        self._theirs = client
        self._verify = verify
        self._connect = connect
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._idle: list[_Lane] = []
        self._used = 0
        self.closed = False

    @contextlib.contextmanager
    def open(
        self, call: Call, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> Iterator[httpx.Response]:
        """Send a request; the answer's body is not read yet.

        Raises:
            httpx.HTTPError: There was no answer, or half of one.
            Severed: The call was given up.
        """
        lane = self._take()
        whole = False
        try:
            if call.severed.is_set():
                raise Severed
            lane.call = call
            call.fresh = False
            call.attach(lane.stream)  # of an earlier request, if it is still open
            timeout = httpx.Timeout(None, connect=self._connect)
            extensions = {"trace": lane.trace}
            request = lane.client.build_request(
                method, url, headers=dict(headers), content=content, timeout=timeout,
                extensions=extensions,
            )  # fmt: skip
            response = lane.client.send(request, stream=True)
            try:
                call.attach(response.extensions.get("network_stream"))
                yield response
                whole = True
            finally:
                with contextlib.suppress(Exception):  # what closing says would hide what happened
                    response.close()
        finally:
            lane.call = None
            call.detach()
            self._give(lane, whole and not call.severed.is_set())

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their request ends."""
        with self._lock:
            self.closed = True
            idle, self._idle = self._idle, []
        for lane in idle:
            self._drop(lane)

    @property
    def kept(self) -> int:
        """How many idle connections are kept."""
        return len(self._idle)

    def _take(self) -> _Lane:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return _Lane(self._theirs or self._client())

    def _give(self, lane: _Lane, reusable: bool) -> None:
        with self._lock:
            keep = reusable and not self.closed and len(self._idle) < KEPT and not self._theirs
            if keep:
                self._idle.append(lane)
        if not keep:
            self._drop(lane)

    def _drop(self, lane: _Lane) -> None:
        if lane.client is not self._theirs:
            with contextlib.suppress(Exception):
                lane.client.close()

    def _client(self) -> httpx.Client:
        loopback = self._address.is_loopback
        return httpx.Client(
            verify=self._tls(), trust_env=not loopback, follow_redirects=False,
            limits=httpx.Limits(
                max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE
            ),
        )  # fmt: skip

    def _tls(self) -> ssl.SSLContext:
        """One context for all connections; reading the certificates takes tens of milliseconds."""
        with self._lock:
            if self._context is None:
                self._context = self._new_context()
            return self._context

    def _new_context(self) -> ssl.SSLContext:
        plain = self._address.base.startswith("http:")
        direct = self._address.is_loopback or not urllib.request.getproxies()
        if (plain and direct) or self._verify is False:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reads no certificates
            if self._verify is False:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            return context
        if isinstance(self._verify, str):
            path = os.path.expanduser(self._verify)
            where = {"capath": path} if os.path.isdir(path) else {"cafile": path}
            return ssl.create_default_context(**where)  # type: ignore[arg-type]
        return httpx.create_ssl_context()
