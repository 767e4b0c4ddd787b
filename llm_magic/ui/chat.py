"""The chat widget: a conversation with the notebook's model, beside its cells.

Comes in: a model (or its name, or nothing: the default one), settings, and what a person does on
the page. Goes out: a live view, and a folded static transcript in a second display, which is what a
saved notebook shows. It must not know how a model generates.

Threads: the front end's messages arrive on the main thread, or on a subshell's while a cell runs.
They are handed to the pump (ui/pump.py), which alone talks to the page and writes the traits:
ipywidgets' property lock is not made for two threads.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import display

from ..chat.reply import Reply
from ..events import Message, Progress
from ..hub import hub
from ..llm import LLM
from . import html, transcript
from .pump import Pump

VERSION = 1


class Chat(anywidget.AnyWidget):  # type: ignore[misc]
    """A chat with a model: `llm_magic.Chat()` as the last line of a cell shows it.

    llm: an LLM, a model's name, or None for the default model; it is loaded when the first message
        is sent. system: the system prompt. options: sampling settings and request options as
        `LLM.stream` takes them; temperature 0.7 and 256 tokens where nothing is said.

    The same object may be shown in several places; they show one conversation.
    """

    _esm = Path(__file__).with_name("chat.js").read_text(encoding="utf-8")
    _css = Path(__file__).with_name("chat.css").read_text(encoding="utf-8")

    # Settled state: {"v": 1, "model": name, "turns": [[role, text, note]]}. Written by the pump
    # only; it is what a page has left when the kernel is gone. Streaming goes by messages.
    state = traitlets.Dict().tag(sync=True)

    def __init__(
        self, llm: LLM | str | None = None, system: str | None = None, **options: Any
    ) -> None:
        self._llm = llm
        self._options = options
        self.system = system
        super().__init__(state={"v": VERSION, "model": self.model, "turns": []})
        self._pump = Pump(_Port(self), html.markdown)
        self._display_id = f"llm-chat-{self.model_id}"
        self._transcript = transcript.bundle((), self.model)
        self._cell: Any = None  # parent header of the cell that shows this chat
        self.on_msg(self._on_message)
        _take_subshell_messages(self.comm)

    def __repr__(self) -> str:
        turns = sum(message.role == "user" for message in self.messages)
        return f"<Chat with {self.model}: {turns} turn{'s' * (turns != 1)}>"

    # ------------------------------------------------------------------ for people

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        match self._llm:
            case None:
                return str(hub.default)
            case str(name):
                return name
            case llm:
                return str(llm.model)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as shown, oldest first, without the system prompt."""
        pump = getattr(self, "_pump", None)
        return pump.messages if pump else ()

    @property
    def last(self) -> Reply | None:
        """The last answer with all that was measured, or None."""
        return self._pump.last

    def say(self, text: str) -> None:
        """Send a message, as if it were typed. Returns at once; see `wait` and `last`."""
        self._pump.submit({"t": "send", "text": text})

    def stop(self) -> None:
        """Stop the answer that is being written. What has come stays."""
        self._pump.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the answer. False when `timeout` seconds were not enough."""
        with hub.gate.lend():
            return self._pump.wait(timeout)

    def undo(self) -> None:
        """Forget the last question and its answer."""
        self._pump.submit({"t": "undo"})

    def clear(self) -> None:
        """Forget everything."""
        self._pump.submit({"t": "clear"})

    # ------------------------------------------------------------------ display

    def _ipython_display_(self) -> None:
        # A widget view and HTML in one bundle would hide the HTML for ever in JupyterLab, which
        # then reports "model not found": so the transcript is a display of its own.
        view, metadata = self._repr_mimebundle_()
        view["text/plain"] = repr(self)
        self._cell = _running_cell()
        display(view, metadata=metadata, raw=True)
        display(self._transcript, raw=True, display_id=self._display_id)

    def _on_message(self, widget: Any, content: Any, buffers: Any) -> None:
        if isinstance(content, Mapping):
            self._pump.submit(content)

    def _settle(self) -> None:
        """Write the settled state and the transcript. On the pump thread only."""
        turns = self._pump.turns
        self._transcript = transcript.bundle(turns.path(), self.model)
        self.state = {"v": VERSION, "model": self.model, "turns": turns.saved()}
        if self._cell is not None:
            _publish_update(self._transcript, self._display_id, self._cell)


class _Port:
    """What the pump sees of its chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @property
    def name(self) -> str:
        return self._chat.model

    def open(self, messages: tuple[Message, ...], progress: Callable[[Progress], None]) -> Any:
        chat = self._chat
        llm = chat._llm
        if not isinstance(llm, LLM):
            llm = hub.load(llm, on_progress=progress)
        head = (Message("system", chat.system),) if chat.system else ()
        return llm.stream((*head, *messages), **chat._options)

    def post(self, message: Mapping[str, Any]) -> None:
        self._chat.send(dict(message))

    def settled(self) -> None:
        self._chat._settle()


def _take_subshell_messages(comm: Any) -> None:
    """Let clicks arrive while a cell runs.

    ipykernel 7.4 sends a comm's messages to the shell that last sent on it, which for a widget is
    the main one: clicks would wait for the running cell. Ours go where the front end says.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def _running_cell() -> Any:
    """The parent header of the running cell, or None outside a kernel."""
    shell = get_ipython()
    return getattr(getattr(shell, "display_pub", None), "parent_header", None)


def _publish_update(data: dict[str, Any], display_id: str, cell: Any) -> None:
    """Update a display from another thread, as coming from the cell that owns it.

    Without that parent the message would count as output of whichever cell runs now.
    """
    shell = get_ipython()
    if shell is None:
        return
    publisher = shell.display_pub
    if hasattr(publisher, "set_thread_parent"):
        publisher.set_thread_parent({"header": cell})
    publisher.publish(data, transient={"display_id": display_id}, update=True)
