"""Who may call: the host and origin of a request, its token, the size of its body.

A page of another site can make a browser send requests to this machine, also under a host name of
its own that it points here. So the host must be one of ours, and an origin must be the server's own
or one that was allowed. What programs may do is decided by the token.
"""

import asyncio
import hmac
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import ApiError, bad

LOOPBACK = frozenset({"localhost"})
METHODS = "GET, POST, OPTIONS"


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one server.

    Attributes:
        token: What clients must send as `Authorization: Bearer ...`; "" for nothing.
        local: Whether only this machine can reach the server.
        hosts: Names, beside IP addresses and localhost, under which clients may call it.
        origins: Origins of pages, beside the server's own, that may call it.
        max_body: Bytes of a body.
        body_seconds: How long a body may take to arrive.
    """

    token: str
    local: bool = True
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    max_body: int = 16_000_000
    body_seconds: float = 30.0


def is_open(method: str, path: str) -> bool:
    """Whether nobody has to show a token: the page, which holds no secret, and the health."""
    if method not in ("GET", "HEAD"):
        return False
    return not (path.startswith("/v1") or path in ("/metrics", "/tokenizer_info", "/props"))


class Guard:
    """An ASGI application that lets a request through to another one, or answers it itself."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        origin = headers.get("origin")
        shared: dict[str, str] = {}
        try:
            own = self._host(headers)
            if origin is not None and origin.lower() in self._access.origins:
                shared = _cors(origin)
            else:
                _same_site(headers, own)
            if scope["method"] == "OPTIONS":
                await _reply(send, 204, b"", shared)
                return
            self._check_token(scope, headers)
            if scope["method"] == "POST":
                receive = await self._body(headers, receive)
        except ApiError as e:
            await _refuse(send, e, shared)
            return
        await self._app(scope, receive, _with_headers(send, shared))

    def _host(self, headers: Mapping[str, str]) -> str:
        """The Host header, if it is one of ours."""
        given = headers.get("host", "")
        name = host_name(given)
        if not self._is_ours(name):
            raise ApiError(
                403,
                f"the host {given!r:.100} is not one of this server; call it by its address, or "
                "start it with hosts=[...]",
                code="host_not_allowed",
            )
        return given

    def _is_ours(self, name: str) -> bool:
        if name in LOOPBACK or name in self._access.hosts:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._access.local

    def _check_token(self, scope: Scope, headers: Mapping[str, str]) -> None:
        wanted = self._access.token
        if not wanted or is_open(scope["method"], scope["path"]):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), wanted.encode())
        if scheme.lower() != "bearer" or not right:
            raise ApiError(
                401,
                "the token is missing or wrong; give the server's token as API key "
                "(Authorization: Bearer ...)",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> Receive:
        """Read the whole body, and give it to the application as one message."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiError(
                415, "the body must be JSON: send the header Content-Type: application/json"
            )
        try:
            async with asyncio.timeout(self._access.body_seconds):
                body = await self._read(headers, receive)
        except TimeoutError:
            raise ApiError(408, "the body did not arrive in time") from None
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return first.pop() if first else await receive()

        return again

    async def _read(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        limit = self._access.max_body
        length = headers.get("content-length", "0")
        too_large = ApiError(413, f"the body is larger than {limit:,} bytes", code="body_too_large")
        if not length.isdigit():
            raise bad("the header Content-Length is not a number")
        if int(length) > limit:
            raise too_large
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise bad("the client went away")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise too_large
            if not message.get("more_body", False):
                return b"".join(parts)


def host_name(host: str) -> str:
    """The name of a Host header, without port, brackets and final dot.

    >>> [host_name(h) for h in ("LocalHost:80", "[::1]:80", "::1", "example.org.")]
    ['localhost', '::1', '::1', 'example.org']
    """
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.removesuffix(".")


def _headers(scope: Scope) -> dict[str, str]:
    """Names and values as text. Of two Host or Authorization headers none is believed."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1").lower()
        found[key] = "" if key in found else value.decode("latin-1")
    return found


def _same_site(headers: Mapping[str, str], own: str) -> None:
    """Refuse what a browser sends for a page of another site."""
    origin = headers.get("origin")
    foreign = origin is not None and origin.lower() != f"http://{own.lower()}"
    if foreign or (origin is None and headers.get("sec-fetch-site") == "cross-site"
                   and headers.get("sec-fetch-mode") != "navigate"):  # fmt: skip
        raise ApiError(
            403,
            f"pages of {origin or 'other sites'} may not call this server; to allow one, start it "
            f"with origins=[{origin or 'its origin'!r}]",
            code="origin_not_allowed",
        )


def _cors(origin: str) -> dict[str, str]:
    return {
        "access-control-allow-origin": origin,
        "access-control-allow-methods": METHODS,
        "access-control-allow-headers": "authorization, content-type",
        "access-control-max-age": "600",
        "vary": "Origin",
    }


def _with_headers(send: Send, more: Mapping[str, str]) -> Send:
    pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in more.items()]
    pairs.append((b"x-content-type-options", b"nosniff"))

    async def out(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *pairs]}
        await send(message)

    return out


async def _refuse(send: Send, error: ApiError, more: Mapping[str, str]) -> None:
    # The rest of the body is not read, so nothing else can come on this connection.
    headers = {**error.headers, **more, "content-type": "application/json", "connection": "close"}
    await _reply(send, error.status, json.dumps(error.body()).encode(), headers)


async def _reply(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    pairs.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body, "more_body": False})
