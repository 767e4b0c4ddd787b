"""What a widget needs of the kernel: its scripts as one module, messages while a cell runs, outputs
that can be updated after their cell has finished.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython import get_ipython
from IPython.display import display

# Scripts that both widgets use. In this order: what one declares, the later ones use.
SHARED_SCRIPTS = (
    *("shared/protocol.js", "shared/dom.js", "shared/memory.js", "shared/updatable_output.js"),
    *("shared/keys.js", "shared/tokens.js", "shared/token_card.js", "shared/token_text.js"),
    "shared/inspector.js",
)

Bundle = dict[str, Any]  # MIME type -> data, or the metadata of an output


def script(names: Sequence[str]) -> str:
    """Scripts of ui/widgets as one ES module, in this order.

    There is no build step. Imports among the scripts are removed: what one file declares is in the
    scope of the later ones.

    Args:
        names: Paths below ui/widgets, such as "shared/dom.js".

    >>> script(["shared/memory.js"]).count("import")
    0
    """
    widgets = Path(__file__).parents[1]
    source = "".join((widgets / name).read_text("utf-8") for name in names)
    source = re.sub(r"^import [^;]* from \"\.{1,2}/.*\";\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", source, flags=re.MULTILINE)


def take_subshell_messages(comm: object) -> None:
    """Let messages of a page arrive while a cell runs.

    ipykernel 7.4 hands a comm's messages to the shell that last sent on it. For a widget that is
    the main one, so a click would wait for the running cell. Here the front end decides.
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


class CellOrder:
    """Numbers the widgets of one kind in a cell from 0, in the order in which they are shown.

    A cell that runs again shows new widgets in the same order. The number tells a page or a saved
    notebook which earlier widget each of them replaces. Used on the main thread only.

    >>> order = CellOrder()
    >>> [order.of({"msg_id": "run 1"}, id) for id in ("a", "b", "a")]
    [0, 1, 0]
    >>> order.of({"msg_id": "run 2"}, "c")
    0
    """

    def __init__(self) -> None:
        self._cell = ""  # that showed the last one
        self._ids: list[str] = []

    def of(self, cell: Any, id: str) -> int:
        """The number of a widget. One that is shown twice counts once.

        Args:
            cell: The parent header of the running cell.
            id: Of the widget.
        """
        run = str((cell or {}).get("msg_id"))
        if run != self._cell:
            self._cell, self._ids = run, []
        if id not in self._ids:
            self._ids.append(id)
        return self._ids.index(id)


def rebind(old: object, new: object) -> None:
    """Let the notebook's names that refer to the object `old` refer to `new`."""
    shell = get_ipython()
    for names in (shell.user_ns, shell.user_ns_hidden) if shell is not None else ():
        # A cell may run meanwhile and make names of its own.
        for name in [n for n in list(names) if names.get(n) is old]:
            names[name] = new


def publish_as(cell: object) -> None:
    """Make this thread's displays belong to `cell` instead of the running cell."""
    publisher: object = getattr(get_ipython(), "display_pub", None)
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


class UpdatableOutput:
    """An output that can be updated after its cell has finished, even from a reloaded page.

    The front end finds it by its display id, which a reloaded page has forgotten. So the output
    carries a tag in its metadata: a widget's script finds it in the notebook, sees that it is older
    than the kernel's, and asks for the newest (updatable_output.js).

    Args:
        data: The MIME bundle.
        id: The display id.
        tagged: False for an output that must be the same on every run.
    """

    def __init__(self, data: Bundle, id: str, tagged: bool = True) -> None:
        self.id = id
        self.data = data
        self.revision = 0
        self.tagged = tagged
        self.record: Bundle = {}  # more metadata: how to make what it shows again
        self.beside_view = False  # a widget is shown right before or behind it

    @property
    def metadata(self) -> Bundle:
        """The tag of the output in its present state, and the record of what it shows."""
        return ({"llm_magic": self.told()} if self.tagged else {}) | self.record

    def told(self) -> Bundle:
        """What a page needs to find out whether its output is the newest."""
        return {"display": self.id, "revision": self.revision}

    def picture(self) -> Bundle:
        """The output itself, for a page that cannot receive updates of it."""
        return {**self.told(), "data": self.data, "metadata": self.metadata}

    def change(self, data: Bundle | None, record: Bundle | None = None) -> None:
        """New data, not shown yet. None: a page puts it together itself."""
        self.record = record or {}
        if data is not None:
            self.data = self._marked(data)
        self.revision += 1

    def _marked(self, data: Bundle) -> Bundle:
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
        """Show it in the running cell, or update it where it is shown."""
        shell = get_ipython()
        if shell is not None:
            shell.display_pub.publish(
                self.data, self.metadata, transient={"display_id": self.id}, update=update
            )
