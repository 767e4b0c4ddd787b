"""`%llm serve`: the model of this notebook for other programs of this machine.

Comes in: the command's line. Goes out: a view of the running server, which can be stopped by it.
"""

import sys

from llm_magic.served import LocalServer

from ..views import html
from ..views.mime import Fragment
from . import screens, status
from .session import Notebook, command_parser, parse

USAGE = "[NAME] [--port N] [--host ADDRESS] [--origin URL]... [--no-token] [--stop]"


class ServeView(Fragment):
    """A running server as a notebook shows it.

    Attributes:
        url: What a client takes as base URL; ends in /v1.
        page: The chat page.
        token: What a client takes as API key.
        model: The name under which clients ask for the model.
    """

    def __init__(self, server: LocalServer, model: str, magic: str, docs: bool) -> None:
        self._server = server
        self.url, self.page, self.token = server.url, server.page, server.token
        self.model = model
        steady = ("http://127.0.0.1:PORT/v1", "http://127.0.0.1:PORT/#TOKEN", "TOKEN")
        url, page, token = steady if docs else (self.url, self.page, self.token)
        rows = [
            ("model", f"<code>{html.escape(model)}</code>"),
            ("base URL", f"<code>{html.escape(url)}</code>"),
            ("API key", f"<code>{html.escape(token)}</code>" if token else "none is needed"),
            ("chat page", f'<a href="{html.attribute(page)}">{html.escape(page)}</a>'),
        ]
        until = f"Until %{magic} serve --stop, %unload_ext llm_magic, or the end of the kernel."
        plain = f"{model} at {url} · API key {token or 'none'} · chat page {page}\n{until}"
        body = html.table(("server", ""), rows) + html.note(html.text(until))
        super().__init__(body, plain)

    @property
    def running(self) -> bool:
        return self._server.running

    def stop(self) -> None:
        """Stop answering."""
        self._server.stop()


def serve(nb: Notebook, rest: str) -> ServeView | None:
    """Serve a model to other programs, or stop doing so."""
    parser = command_parser(nb, "serve")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--origin", action="append", default=[])
    parser.add_argument("--no-token", action="store_true")
    parser.add_argument("--stop", action="store_true")
    given = parse(nb, parser, rest)
    if given.stop:
        count = stop_all()
        said = f"stopped {count} server{'' if count == 1 else 's'}" if count else "nothing ran"
        nb.show(status.note(said))
        return None
    name = nb.name_of(given.name)
    screen = screens.screen(nb.shell, nb.look(), name)
    llm = nb.load(name, screen)
    screen.close("")
    server = llm.serve(
        port=given.port, host=given.host, origins=given.origin,
        token=False if given.no_token else None,
    )  # fmt: skip
    return ServeView(server, llm.model, nb.magic_name, nb.docs_mode)


def stop_all() -> int:
    """Stop the servers of this process; returns how many there were. Loads nothing."""
    found = sys.modules.get("llm_magic.server.running")
    servers = found.running() if found is not None else []
    for server in servers:
        server.stop()
    return len(servers)
