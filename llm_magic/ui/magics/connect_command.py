"""`%llm connect`: cells use a model on another machine, or in another process, from now on.

The line is saved with the notebook, so it never holds a key: `--api-key` names an environment
variable.
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
    args = parse(nb, parser, nb.fill(rest, "the line"))
    screen = screens.screen(nb.shell, nb.look(), args.name or "the server")
    screen.event(Progress("connect", 0, 0))
    started = time.monotonic()
    options: dict[str, Any] = {"dialect": args.dialect, "log": args.log}
    limits = {name: getattr(args, f"{name}_timeout") for name in _LIMITS}
    if any(value is not None for value in limits.values()):
        options["timeouts"] = {name: value for name, value in limits.items() if value is not None}
    try:
        llm = hub.connect(
            args.urls, api_key=args.api_key, name=args.name, on_progress=screen.event, **options
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
