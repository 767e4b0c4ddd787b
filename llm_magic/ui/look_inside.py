"""What looking into a model needs of the notebook: its views, and `--inspect` and `--steer`.

The package registers this module at `extension_points.INSIDE_VIEWS`.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.display import display

from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.inside.steering import ControlVector
from llm_magic.taps import Taps

from .views.inside import frame as frame
from .views.inside import view as view

if TYPE_CHECKING:
    from .widgets.inside.widget import InsideView


def options(names: Mapping[str, object], args: argparse.Namespace) -> dict[str, Any]:
    """Keyword options of `LLM.stream`.

    Raises:
        UsageError: The file or the strength is none.
    """
    found: dict[str, Any] = {}
    if args.inspect:
        found["taps"] = Taps([name.strip() for name in args.inspect.split(",") if name.strip()])
    if args.steer:
        found["edit"] = steering(names, args.steer)
    return found


def steering(names: Mapping[str, object], word: str) -> ControlVector:
    """The control vector of "FILE[:SCALE]" or "NAME[:SCALE]".

    Raises:
        UsageError: There is no such vector, or the strength is no number.
    """
    name, colon, strength = word.rpartition(":")
    scale = 1.0
    if colon and name:
        try:
            scale = float(strength)
        except ValueError:
            if not Path(word).exists():
                raise UsageError(f"--steer {word}: {strength!r} is not a number") from None
            name = word
    else:
        name = word
    if isinstance(held := names.get(name), ControlVector):
        return held * scale
    if held is not None and not Path(name).exists():
        raise UsageError(f"--steer {name}: that is a {type(held).__name__}, no control vector")
    if not Path(name).expanduser().exists():
        raise UsageError(
            f"--steer {name}: there is no such file, and no variable of that name; "
            "llm.steering(...).save(path) writes one"
        )
    try:
        return ControlVector.load(Path(name).expanduser()) * scale
    except RequestError as e:
        raise UsageError(f"--steer {name}: {e}") from None


def show(reply: Reply) -> None:
    """Display what was recorded: the lens where the stream behind every block was, else a list."""
    found = reply.inspection
    blocks = range(found.inside.anatomy.n_layers)
    display(found.lens() if all(("resid_post", i) in found for i in blocks) else found)


def explore(shown: object) -> "InsideView":
    """The live view of an object of the room `inside`."""
    from .widgets.inside.widget import InsideView

    return InsideView(shown)
