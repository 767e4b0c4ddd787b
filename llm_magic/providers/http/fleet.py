"""Several servers with the same model: which one gets a request, and what happens when one fails.

A server that could not be reached gets no requests for half a minute; then one request probes it,
and its success makes it routable again. A request goes to the server with the fewest requests under
way, and a conversation stays with its server, whose cache holds its beginning, as long as that is
not clearly busier than another.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from llm_magic.errors import RemoteError

from .addresses import Address
from .lanes import Lanes

RETURN = 30.0  # seconds until a server that failed is tried again
SLACK = 1  # how many requests more the server of a conversation may have than the idlest one


@dataclass(frozen=True, slots=True)
class Retries:
    """When a request that failed is sent again.

    Attributes:
        first, longest: Seconds of the first pause, which doubles, and of the longest one.
        attempts: How often it is sent at most.
    """

    first: float = 0.5
    longest: float = 8.0
    attempts: int = 6

    def pause(self, failures: int, asked: float | None = None) -> float | None:
        """Seconds to wait after so many failures; None: it is not sent again.

        >>> [Retries().pause(n) for n in range(1, 7)]
        [0.5, 1.0, 2.0, 4.0, 8.0, None]
        >>> Retries().pause(1, asked=3.0)
        3.0
        """
        if failures >= self.attempts:
            return None
        own = min(self.first * float(2 ** (failures - 1)), self.longest)
        return max(own, asked or 0.0)


class Endpoint:
    """One server: its connections, its load and its health."""

    def __init__(self, address: Address, lanes: Lanes) -> None:
        self.address = address
        self.lanes = lanes
        self.in_flight = 0
        self.served = 0
        self.down_since: float | None = None
        self.probing = False
        self.failure = ""

    def __repr__(self) -> str:
        return f"Endpoint({self.address.shown!r}, in_flight={self.in_flight})"


class Fleet:
    """The servers of one provider. All methods may be called from any thread.

    Args:
        endpoints: One or more.
        clock: Gives the time in seconds.
    """

    def __init__(
        self, endpoints: Sequence[Endpoint], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.endpoints = tuple(endpoints)
        self._clock = clock
        self._lock = threading.Lock()

    def reserve(self, session: str = "", avoid: Collection[Endpoint] = ()) -> Endpoint:
        """The server for a request, counted as busy from now on; `release` it.

        Args:
            session: What the requests of one conversation have in common.
            avoid: Servers that have failed this request.
        """
        with self._lock:
            chosen = self._choose(session, avoid)
            chosen.in_flight += 1
            if chosen.down_since is not None:
                chosen.probing = True
            return chosen

    def release(self, endpoint: Endpoint) -> None:
        """The request that `reserve` counted has ended."""
        with self._lock:
            endpoint.in_flight -= 1

    def succeeded(self, endpoint: Endpoint) -> None:
        """The server answered: it is healthy."""
        with self._lock:
            endpoint.served += 1
            endpoint.down_since, endpoint.probing, endpoint.failure = None, False, ""

    def failed(self, endpoint: Endpoint, error: BaseException) -> None:
        """A request has failed. Only a lost connection says something about the server's health;
        a server that answers with an error is there."""
        with self._lock:
            endpoint.probing = False
            if isinstance(error, RemoteError) and error.kind in ("connection", "capacity", "port"):
                endpoint.down_since = self._clock()
                endpoint.failure = str(error)
            elif isinstance(error, RemoteError) and error.status is not None:
                endpoint.down_since, endpoint.failure = None, ""

    def healthy(self, endpoint: Endpoint) -> bool:
        """Whether the server gets requests now."""
        with self._lock:
            return self._routable(endpoint)

    @property
    def in_flight(self) -> int:
        with self._lock:
            return sum(endpoint.in_flight for endpoint in self.endpoints)

    def close(self) -> None:
        for endpoint in self.endpoints:
            endpoint.lanes.close()

    def _routable(self, endpoint: Endpoint) -> bool:
        if endpoint.down_since is None:
            return True
        return not endpoint.probing and self._clock() - endpoint.down_since >= RETURN

    def _choose(self, session: str, avoid: Collection[Endpoint]) -> Endpoint:
        open_ = [e for e in self.endpoints if e not in avoid and self._routable(e)]
        # Where none is left, the one that failed the longest time ago is tried: it may be back.
        ways = open_ or sorted(self.endpoints, key=lambda e: (e in avoid, e.down_since or 0.0))[:1]
        least = min(endpoint.in_flight for endpoint in ways)
        if session:
            home = max(ways, key=lambda e: _weight(session, e.address.base))
            if home.in_flight <= least + SLACK:
                return home
        idle = [endpoint for endpoint in ways if endpoint.in_flight == least]
        return min(idle, key=lambda e: e.served)


def _weight(session: str, base: str) -> bytes:
    """Rendezvous hashing: when a server leaves, only its own conversations move."""
    return hashlib.blake2b(f"{session}\n{base}".encode(), digest_size=8).digest()
