"""`%llm connect`: a model on another machine, or in another process, for the cells from now on.

Comes in: the rest of the line. Goes out: a line that says what answers. A key never stands on the
line, which is saved with the notebook: `--api-key` names an environment variable.
"""

import time
from typing import Any

from llm_magic.events import Progress
from llm_magic.hub import hub

from . import screens, status
from .session import Command, Notebook, command_parser, parse

_LIMITS = ("load", "prompt", "gap", "total")


def connect(nb: Notebook, rest: str) -> None:
    """Connect to a server and use its model from now on."""
    parser = command_parser(nb, "connect")
    parser.add_argument("urls", nargs="+", metavar="URL")
    parser.add_argument("--name")
    parser.add_argument("--api-key", metavar="VARIABLE")
    parser.add_argument("--dialect")
    parser.add_argument("--log")
    for name in _LIMITS:
        parser.add_argument(f"--{name}-timeout", type=float, metavar="S")
    given = parse(nb, parser, rest)
    screen = screens.screen(nb.shell, nb.look(), given.name or "the server")
    screen.event(Progress("connect", 0, 0))
    started = time.monotonic()
    options: dict[str, Any] = {"dialect": given.dialect, "log": given.log}
    limits = {name: getattr(given, f"{name}_timeout") for name in _LIMITS}
    if any(value is not None for value in limits.values()):
        options["timeouts"] = {name: value for name, value in limits.items() if value is not None}
    try:
        llm = hub.connect(
            given.urls, api_key=given.api_key, name=given.name, on_progress=screen.event, **options
        )
    except BaseException:
        screen.close("not connected")
        raise
    nb.model = llm.model
    screen.say(status.connected(llm, time.monotonic() - started, steady=nb.docs_mode))


COMMANDS = {
    "connect": Command(
        connect,
        "URL [URL ...] [--name N] [--api-key VARIABLE] [--dialect D] [--total-timeout S]",
        "use a model on a server: llama-server, vLLM, Ollama, ...",
    ),
}
