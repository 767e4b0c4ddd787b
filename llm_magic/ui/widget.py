"""What a widget of ours needs of the kernel: its script as one module, clicks while a cell runs,
displays that are updated from a thread.

Comes in: names of files, comms, data to show. Goes out: the same where the front end finds it. It
must not know replies.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython import get_ipython


def script(names: Sequence[str]) -> str:
    """Files beside this one as one ES module, in this order, without a build step.

    Imports of each other fall away: what one file declares, the later ones use.
    """
    here = Path(__file__).parent
    source = "".join((here / name).read_text("utf-8") for name in names)
    source = re.sub(r"^import [^;]* from \"\./.*\";\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", source, flags=re.MULTILINE)


def take_subshell_messages(comm: Any) -> None:
    """Let clicks arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last sent on it, which for a widget is
    the main one: clicks would wait for the running cell. Ours go where the front end says.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def running_cell() -> Any:
    """The parent header of the running cell, or None outside a kernel."""
    shell = get_ipython()
    return getattr(getattr(shell, "display_pub", None), "parent_header", None)


def rebind(old: object, new: object) -> None:
    """Names of the notebook that hold the very object `old` hold `new` from now on."""
    shell = get_ipython()
    for names in (shell.user_ns, shell.user_ns_hidden) if shell is not None else ():
        # A cell may run meanwhile and make names of its own.
        for name in [n for n in list(names) if names.get(n) is old]:
            names[name] = new


def speak_as(cell: Any) -> None:
    """What this thread displays from now on comes from `cell`, not from whichever cell runs."""
    publisher: Any = getattr(get_ipython(), "display_pub", None)
    if cell is not None and hasattr(publisher, "set_thread_parent"):
        publisher.set_thread_parent({"header": cell})


def update_display(data: dict[str, Any], display_id: str) -> None:
    """Replace what a display shows."""
    shell = get_ipython()
    if shell is not None:
        shell.display_pub.publish(data, transient={"display_id": display_id}, update=True)
