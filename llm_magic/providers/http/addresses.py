"""Addresses of servers and their keys: what a user types, without anything secret in what is shown.

`http://host:8000/v1#model` names a server and one of its models. A key is never part of it: it is
the name of an environment variable, or a function that returns it.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from llm_magic.errors import RequestError

KeySource = str | Callable[[], str] | None


@dataclass(frozen=True, slots=True)
class Address:
    """One server.

    Attributes:
        base: Where the OpenAI routes are, without a slash at the end: "http://host:8000/v1".
        root: Where the server's own routes are: "http://host:8000".
        model: The model that was named behind "#"; "" where none was.
        query: What stood behind "?", for every request.
        login: Name and password of the address as a header's value; "" where there were none.
    """

    base: str
    root: str
    model: str = ""
    query: str = ""
    login: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The address for people and files: no name, password or query."""
        return f"{self.base}#{self.model}" if self.model else self.base

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, so that no proxy lies between."""
        host = urlsplit(self.base).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def parse(text: str) -> Address:
    """The parts of an address.

    Args:
        text: As typed. Without a path, "/v1" is meant.

    Raises:
        RequestError: It is no address of a server. The message does not hold a password.

    >>> parse("http://host:8000#qwen").base
    'http://host:8000/v1'
    >>> parse("https://me:secret@host/api/v1/").shown
    'https://host/api/v1'
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        raise RequestError(_wrong(text)) from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise RequestError(_wrong(text))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    origin = f"{parts.scheme.lower()}://{host}{f':{port}' if port is not None else ''}"
    path = parts.path.rstrip("/") or "/v1"
    for route in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(route)
    login = ""
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(pair.encode()).decode()
    root = origin + re.sub(r"/v\d+$", "", path)
    return Address(origin + path, root, unquote(parts.fragment), parts.query, login)


def _wrong(text: str) -> str:
    shown = re.sub(r"//[^/@]*@", "//", text.split("?")[0])[:80]
    return f"{shown!r} is not the address of a server; write http://HOST:PORT/v1#MODEL"


class Key:
    """Where a key comes from. It is read for each request, and its text is never shown.

    >>> Key(None).text()
    ''
    >>> Key(lambda: "abc")
    Key(a function)
    """

    def __init__(self, source: KeySource) -> None:
        if isinstance(source, str) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", source):
            raise RequestError(_no_name())
        if source is not None and not isinstance(source, str) and not callable(source):
            raise RequestError(_no_name())
        self._source = source
        if isinstance(source, str) and source not in os.environ:
            raise RequestError(f"api_key: {_unset()}")

    def __repr__(self) -> str:
        if self._source is None:
            return "Key(none)"
        return f"Key({self._source})" if isinstance(self._source, str) else "Key(a function)"

    def __reduce__(self) -> str:
        raise TypeError("a key cannot be saved")

    def text(self) -> str:
        """The key now; "" where there is none.

        Raises:
            RequestError: The variable is not set any more, or the function gave no usable text.
        """
        if self._source is None:
            return ""
        if isinstance(self._source, str):
            found: object = os.environ.get(self._source)
            if found is None:
                raise RequestError(f"api_key: {_unset()}")
        else:
            found = self._source()
        if (
            not isinstance(found, str)
            or not found
            or not found.isascii()
            or not found.isprintable()
        ):
            raise RequestError("api_key gave no usable key; it must be a text of printable ASCII")
        return found.strip()

    def redact(self, text: str) -> str:
        """A text of a server without the key, in case it repeats it."""
        try:
            key = self.text()
        except Exception:  # it is gone, or its function failed: nothing to look for
            return text
        return text.replace(key, "***") if len(key) > 3 else text


def _no_name() -> str:
    # What was passed may be the key itself: the message must not hold it.
    return (
        "api_key must be the name of an environment variable that holds the key, or a function "
        "that returns it; a key itself would be saved with the notebook"
    )


def _unset() -> str:
    return (
        "there is no environment variable of the given name; set it before the kernel starts, or "
        "pass a function that returns the key"
    )
