"""`%llm compare-models`: how far a quantisation parts from another one on a text."""

from pathlib import Path

from IPython.core.error import UsageError

from llm_magic.divergence import WINDOW, Divergence, compare_models
from llm_magic.events import Progress

from . import command_line, screens
from .session import Notebook, command_parser

USAGE = "BASE MODEL [--window N] --text TEXT|FILE"


def command(nb: Notebook, rest: str) -> Divergence:
    """Compare two models."""
    parser = command_parser(nb, "compare-models")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--text", nargs="+")
    given = command_line.parse(parser, rest, f"%{parser.prog}")
    if len(given.models) != 2 or not given.text:
        raise UsageError(
            f"compare-models: two models and a text: %{nb.magic_name} compare-models {USAGE}"
        )
    text = _text(nb, " ".join(given.text))
    screen = screens.screen(nb.shell, nb.look(), given.models[1])
    base, model = (nb.load(name, screen, ctx=given.window) for name in given.models)
    try:
        found = compare_models(
            base, model, text, window=given.window,
            progress=lambda done, total: screen.event(Progress("comparing", done, total)),
        )  # fmt: skip
    except BaseException:
        screen.close("nothing was compared")
        raise
    screen.close("")
    return found


def _text(nb: Notebook, said: str) -> str:
    """What a file holds, or the text itself with its variables."""
    path = Path(said).expanduser()
    try:
        if len(said) < 1_000 and path.is_file():
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise UsageError(f"--text {said}: {e}") from None
    return nb.fill(said, "--text")
