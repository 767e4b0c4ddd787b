"""The part of `LLM` that serves the model to other programs of this machine.

What a server does is a layer above; it is reached through `extension_points.SERVE`.
"""

from collections.abc import Iterable
from typing import Literal, Protocol

from .errors import UnsupportedError
from .extension_points import SERVE


class LocalServer(Protocol):
    """A running server.

    Attributes:
        url: What a client takes as base URL; ends in /v1.
        page: The chat page, its token included.
        token: What a client takes as API key; "" where none is needed.
        running: Whether it still answers.
    """

    @property
    def url(self) -> str: ...

    @property
    def page(self) -> str: ...

    @property
    def token(self) -> str: ...

    @property
    def running(self) -> bool: ...

    def stop(self) -> None:
        """Stop answering; what is being written ends with an error. Idempotent."""


class Serving:
    """The part of `LLM` that serves."""

    def serve(
        self,
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        token: str | Literal[False] | None = None,
        origins: Iterable[str] = (),
        hosts: Iterable[str] = (),
        parallel: int | None = None,
        seconds: float = 600.0,
    ) -> LocalServer:
        """Serve this model as an OpenAI-compatible endpoint until `stop()` or the process ends.

        Args:
            port: The port; 0 for any that is free.
            host: The address to listen on. Other machines can reach the server only if this says
                so, for example with "0.0.0.0".
            token: What clients must send as API key. None: a random one; False: none is needed,
                which is refused where other machines can reach the server.
            origins: Origins of web pages, such as "http://localhost:8888", that may call it.
            hosts: Names, beside addresses and localhost, under which clients may call it.
            parallel: Answers written at once. None: one less than the model has slots, so that a
                cell of the notebook never waits for a client.
            seconds: The most that one request may take.

        Returns:
            The server; `.url` and `.token` are what a client needs, `.page` is a chat page.

        Raises:
            RequestError: An argument is not valid, or the port is in use.
            UnsupportedError: starlette and uvicorn (extra `serve`) are not installed.
        """
        try:
            start = SERVE.load()
        except ModuleNotFoundError as e:
            raise UnsupportedError(
                "serve", f"serving needs {e.name}: pip install 'llm-magic[serve]'"
            ) from None
        server: LocalServer = start(
            self, port=port, host=host, token=token, origins=origins, hosts=hosts,
            parallel=parallel, seconds=seconds,
        )  # fmt: skip
        return server
