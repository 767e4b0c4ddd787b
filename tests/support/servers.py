"""What tests of the server share: a server over a script, and requests to it without a client."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx

from llm_magic.llm import LLM
from llm_magic.server.running import Server, serve

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@contextmanager
def client(server: Server, **headers: str) -> Iterator[httpx.Client]:
    """An HTTP client with the server's token, at the root of its paths."""
    bearer = {"authorization": f"Bearer {server.token}"}
    base = server.url.removesuffix("/v1")
    with httpx.Client(base_url=base, headers=bearer | headers, timeout=60, trust_env=False) as http:
        yield http


@contextmanager
def served(provider, **options) -> Iterator[tuple[Server, httpx.Client]]:
    with serve(LLM(provider), **options) as server, client(server) as http:
        yield server, http


def frames(text: str) -> list[dict | str]:
    """The events of a stream: JSON objects, and the end marker as a text."""
    lines = [part.removeprefix("data: ") for part in text.split("\n\n") if part.startswith("data")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def raw(server: Server, data: bytes, timeout: float = 30) -> bytes:
    """Everything that comes back for these bytes on a connection of its own."""
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout) as sock:
        sock.sendall(data)
        found = b""
        while piece := sock.recv(65536):
            found += piece
        return found
