"""Connects to servers: addresses and a key become a provider."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from llm_magic.errors import LLMError, RemoteConnectionError, RemoteError, RequestError
from llm_magic.events import Progress

from . import addresses, discover, failures
from .dialects import DIALECTS
from .discover import Server
from .fleet import Endpoint, Fleet
from .lanes import Lanes
from .limits import Timeouts
from .remote import Remote
from .sender import Sender

AGAIN = 1.0  # seconds between looks at a server that is still loading


def connect(
    urls: Sequence[str],
    api_key: addresses.KeySource = None,
    *,
    name: str | None = None,
    dialect: str | None = None,
    timeouts: "Timeouts | Mapping[str, float | None] | None" = None,
    verify: bool | str | None = None,
    client: httpx.Client | None = None,
    log: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Remote:
    """The model at one address, or on several servers.

    Args:
        urls: The addresses, `http://HOST:PORT/v1#MODEL`; the model may be left out where a server
            has one.
        api_key: The name of an environment variable that holds the key, or a function that returns
            it; None where the servers need none.
        name: The model's name here; None: MODEL@HOST:PORT.
        dialect: The kind of server, a name of `DIALECTS`; None: it is asked.
        timeouts: Limits of time: a `Timeouts`, or a mapping of its fields that differ.
        verify: False to check no certificates, or the path of a file of authorities.
        client: A client of the caller with settings of its own; it is not closed.
        log: The file of the server's own log; its end becomes part of an error.
        on_progress: Called while a server is still loading its model.

    Raises:
        RequestError: An argument is not valid.
        RemoteError: No server can be reached, or one refuses the key.
    """
    if not urls:
        raise RequestError("there is no address; write http://HOST:PORT/v1#MODEL")
    if dialect is not None and dialect not in DIALECTS:
        raise RequestError(f"dialect is {dialect!r}; it must be one of {', '.join(DIALECTS)}")
    limits = _limits(timeouts)
    key = addresses.Key(api_key)
    parsed = [addresses.parse(url) for url in urls]
    endpoints = [Endpoint(a, Lanes(a, client, verify, limits.connect)) for a in parsed]
    sender = Sender(Fleet(endpoints), key, limits, Path(log).expanduser() if log else None)
    try:
        servers = _look(sender, dialect, on_progress or _silent)
    except BaseException:
        sender.fleet.close()
        raise
    server = next(iter(servers.values()))
    if others := {s.short for s in servers.values()} - {server.short}:
        sender.fleet.close()
        both = ", ".join([server.short, *sorted(others)])
        raise RequestError(f"the servers have different models: {both}")
    host = urlsplit(next(iter(servers)).address.base).netloc
    return Remote(name or f"{server.short}@{host}", sender, servers)


def _look(
    sender: Sender, dialect: str | None, say: Callable[[Progress], None]
) -> dict[Endpoint, Server]:
    """What each server is. Those that cannot be reached are left for later, if another can."""
    found: dict[Endpoint, Server] = {}
    lost: LLMError | None = None
    for endpoint in sender.fleet.endpoints:
        try:
            found[endpoint] = _ready(sender, endpoint, dialect, say)
        except RemoteError as e:
            if not isinstance(e, RemoteConnectionError):
                raise
            lost = lost or e
    if not found and lost is not None:
        raise lost
    return found


def _ready(
    sender: Sender, endpoint: Endpoint, dialect: str | None, say: Callable[[Progress], None]
) -> Server:
    """What a server is, once it has loaded its model."""
    started = time.monotonic()
    while True:
        try:
            return discover.look(sender, endpoint, dialect)
        except RemoteError as e:
            patience = sender.timeouts.load
            over = patience is not None and time.monotonic() - started > patience
            if not failures.is_loading(e) or over:
                raise
        say(Progress("load", 0, 0))
        time.sleep(AGAIN)


def _limits(given: "Timeouts | Mapping[str, float | None] | None") -> Timeouts:
    if given is None or isinstance(given, Timeouts):
        return given or Timeouts()
    names = [field.name for field in fields(Timeouts)]
    for name, seconds in given.items():
        if name not in names:
            raise RequestError(f"timeouts has {name!r}; there are {', '.join(names)}")
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise RequestError(f"timeouts: {name} is {seconds!r}; it must be seconds above 0")
    if given.get("connect", 1) is None:
        raise RequestError("timeouts: connect must be seconds above 0")
    return Timeouts(**given)  # type: ignore[arg-type]


def _silent(progress: Progress) -> None:
    """Ignore the progress."""
