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
from IPython.display import display

# Scripts that both widgets use. In this order: what one declares, the later ones use.
SHARED_SCRIPTS = (
    *("shared/protocol.js", "shared/dom.js", "shared/memory.js", "shared/kept.js"),
    *("shared/keys.js", "shared/tokens.js", "shared/token_card.js", "shared/token_text.js"),
    "shared/inspector.js",
)


def script(names: Sequence[str]) -> str:
    """Scripts of ui/widgets, named by folder and file, as one ES module in this order.

    There is no build step: the imports of each other are removed, since what one file declares is
    in scope of the later ones.
    """
    widgets = Path(__file__).parents[1]
    source = "".join((widgets / name).read_text("utf-8") for name in names)
    source = re.sub(r"^import [^;]* from \"\.{1,2}/.*\";\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", source, flags=re.MULTILINE)


def take_subshell_messages(comm: Any) -> None:
    """Let clicks arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last sent on it, which for a widget is
    the main one: clicks would wait for the running cell. Ours go where the front end says.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def extension() -> Any:
    """The notebook's LLMMagics where the extension is loaded, else None."""
    manager = getattr(get_ipython(), "magics_manager", None)
    return manager.registry.get("LLMMagics") if manager is not None else None


def running_cell() -> Any:
    """The parent header of the running cell, or None outside a kernel."""
    shell = get_ipython()
    return getattr(getattr(shell, "display_pub", None), "parent_header", None)


class Order:
    """Which of the widgets of one kind in a cell each is, from 0, in the order of their showing.

    A cell that runs again shows others in the same order: so a page, or a saved notebook, knows
    which of the earlier ones each of them is. Used on the thread of the cells alone.
    """

    def __init__(self) -> None:
        self._cell = ""  # that showed the last one
        self._ids: list[str] = []

    def of(self, cell: Any, id: str) -> int:
        """cell: parent header of the running cell. A widget that is shown twice counts once."""
        run = str((cell or {}).get("msg_id"))
        if run != self._cell:
            self._cell, self._ids = run, []
        if id not in self._ids:
            self._ids.append(id)
        return self._ids.index(id)


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


def _hides_dead_view(name: str) -> str:
    """A style sheet that hides the widget beside an output where the widget does not live.

    JupyterLab shows "Error displaying widget: model not found" there: text without an element.
    """
    child = ".jp-OutputArea-child"
    beside = f"{child}:has(+{child} .{name})", f"{child}:has(.{name})+{child}"
    return ",".join(f"{one}>.jp-OutputArea-output:not(:has(*))" for one in beside) + (
        "{display:none}"
    )


def show_view(widget: Any) -> None:
    """Show a widget in the running cell.

    Beside the view stands an empty output for viewers that have no widgets: they show what comes
    next to it, the static form. A text would be all that an exported notebook shows of the widget.
    """
    view, metadata = widget._repr_mimebundle_()
    view.pop("text/plain", None)
    display(view | {"text/html": ""}, metadata=metadata, raw=True)


class Kept:
    """A display that is renewed when its cell has ended long ago, by whoever shows it.

    The front end finds it by its id, which a page that was loaded anew has forgotten. So the output
    carries a tag, in its metadata: a widget's script finds it in the notebook, sees that it is
    older than what the kernel tells, and asks for it (kept.js). tagged: False for outputs that are
    the same on every run.
    """

    def __init__(self, data: dict[str, Any], id: str, tagged: bool = True) -> None:
        self.id = id
        self.data = data
        self.revision = 0
        self.tagged = tagged
        self.beside_view = False  # a widget is shown right before or behind it

    @property
    def metadata(self) -> dict[str, Any]:
        """The tag of the output as it is now."""
        return {"llm_magic": self.told()} if self.tagged else {}

    def told(self) -> dict[str, Any]:
        """What a page needs to see whether its output is the newest."""
        return {"display": self.id, "revision": self.revision}

    def picture(self) -> dict[str, Any]:
        """The output itself, for a page that has lost sight of it."""
        return {**self.told(), "data": self.data, "metadata": self.metadata}

    def change(self, data: dict[str, Any] | None) -> None:
        """New data, not shown yet. None: a page puts it together itself."""
        if data is not None:
            self.data = self._marked(data)
        self.revision += 1

    def _marked(self, data: dict[str, Any]) -> dict[str, Any]:
        before, after = self.around
        return data | {"text/html": before + data["text/html"] + after} if before else data

    @property
    def around(self) -> tuple[str, str]:
        """What stands before and after the HTML of the output."""
        if not self.tagged:
            return "", ""
        # By its class a widget finds the output that says the same, and hides it.
        name = f"llm-kept-{self.id}"
        hides = f"<style>{_hides_dead_view(name)}</style>" if self.beside_view else ""
        return f'{hides}<div class="{name}">', "</div>"

    def show(self, update: bool = False) -> None:
        """Show it in the running cell, or renew it where it is shown."""
        shell = get_ipython()
        if shell is not None:
            shell.display_pub.publish(
                self.data, self.metadata, transient={"display_id": self.id}, update=update
            )
