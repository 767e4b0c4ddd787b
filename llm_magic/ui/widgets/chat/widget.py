"""The chat widget: a conversation with the notebook's model, beside its cells.

It shows a live view and, in a second display, a static transcript, which is what a saved notebook
shows without a kernel.

Messages of a page arrive on the main thread, or on a subshell's while a cell runs. They are handed
to the controller (controller.py), whose thread alone sends to the pages and writes traits:
ipywidgets' property lock is not made for two threads.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from llm_magic import branching, models
from llm_magic.arguments import PromptLike
from llm_magic.chat.conversation import Conversation
from llm_magic.chat.reply import Reply
from llm_magic.chat.stream import Stream
from llm_magic.events import Event, Message, Token
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.ui.views import html, mime, summary
from llm_magic.ui.views.ledger import Ledger
from llm_magic.utf8 import whole_json

from ..shared import jupyter, settings, token_rows
from ..shared.stream_reader import OnProgress, OpenStream
from . import resume as earlier
from . import transcript
from .controller import ChatController
from .request import Approver
from .thread import ChatThread

VERSION = 2
SUGGESTIONS = (
    "Explain in two sentences what a token is.",
    "Write a haiku about a notebook.",
    "What is the capital of Norway?",
)
_SCRIPTS = (
    *jupyter.SHARED_SCRIPTS,
    *("chat/transcript.js", "chat/parts.js", "chat/turn.js", "chat/panels.js", "chat/chat.js"),
)
SOON = 0.25  # seconds that a cell waits for what its notebook holds of this chat


class Chat(anywidget.AnyWidget):  # type: ignore[misc]
    """A chat with a model: `llm_magic.Chat()` as the last line of a cell shows it.

    llm: an LLM, a model's name, or None for the default model; it is loaded when the first message
        is sent. system: the system prompt. messages: a conversation to go on from (dicts or
        Message). tools: functions that the model may call (see `llm_magic.tool`). approve: True
        asks on the page before each call, False never asks, a function decides as for
        `Conversation`. suggestions: what an empty chat offers to ask. options: sampling settings
        and request options as `LLM.chat` takes them. name: by which the chat finds its conversation
        in the saved notebook again; without one it is that of the same cell.

    The same object may be shown in several places; they show one conversation. Where the saved
    notebook holds a conversation of this chat, the page offers to go on from it.
    """

    _esm = jupyter.script(_SCRIPTS)
    _css = token_rows.style() + Path(__file__).with_name("chat.css").read_text("utf-8")

    # {"v": 2, "model": name}: what a page shows until the kernel answers. Written by the
    # controller only; everything else goes by messages.
    state = traitlets.Dict().tag(sync=True)
    _order: ClassVar[jupyter.CellOrder] = jupyter.CellOrder()  # of the chats without a name
    # What the page needs to draw its form; never changes.
    form = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        llm: LLM | str | None = None,
        system: str | None = None,
        *,
        messages: Sequence[Message | Mapping[str, Any]] = (),
        tools: Sequence[object] = (),
        approve: bool | Approver = True,
        suggestions: Sequence[str] = SUGGESTIONS,
        name: str | None = None,
        **options: object,
    ) -> None:
        self._name = name
        self._host = _Host(self, llm, {"system": system, **options}, tools, approve)
        form = {
            "settings": settings.picture(), "suggestions": whole_json(list(suggestions)),
            "models": sorted({known.name for known in models.known()}),
            "scale": token_rows.scale(),
        }  # fmt: skip
        super().__init__(state={"v": VERSION, "model": self.model}, form=form)
        self._controller = ChatController(self._host, html.markdown)
        self._host.share(self._controller.turns)
        self._transcript = self._describe()
        self._kept = jupyter.UpdatableOutput(
            {}, f"{earlier.DISPLAY}{self.model_id}", tagged=not _docs_mode()
        )
        self._kept.beside_view = True
        self._page_keeps = False  # a page updates the transcript in the notebook
        self._cell: object = None  # parent header of the cell that shows this chat
        self._key: str | None = None if name is None else f"name {name}"
        self._looked = False  # for an earlier conversation
        self.on_msg(self._on_message)
        jupyter.take_subshell_messages(self.comm)
        if messages:
            self.load(messages)

    def __repr__(self) -> str:
        turns = sum(message.role == "user" for message in self.messages)
        return f"<Chat with {self.model}: {turns} turn{'s' * (turns != 1)}>"

    # ------------------------------------------------------------------ for people

    @property
    def model(self) -> str:
        """The name of the model that answers."""
        return self._host.name

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as shown, oldest first, without the system prompt."""
        controller = getattr(self, "_controller", None)
        return controller.messages if controller else ()

    @property
    def conversation(self) -> Conversation:
        """What was said so far as a Conversation of its own, to go on with in code."""
        return self._host.copy(self.messages)

    @property
    def last(self) -> Reply | None:
        """The last answer with all that was measured, or None."""
        return self._controller.last

    def say(self, text: str) -> None:
        """Send a message, as if it were typed. Returns at once; see `wait` and `last`."""
        self._controller.submit({"t": "send", "text": text})

    def stop(self) -> None:
        """Stop the answer that is being written. What has come stays."""
        self._controller.stop()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all that was asked for is done. False when `timeout` seconds were not
        enough."""
        with hub.gate.lend():
            done = self._controller.wait(timeout)
        if self._cell is not None:
            # What runs notebooks without a page (nbclient) hears of displays only what the cell
            # that runs now says of them, and would save an old transcript.
            self._kept.change(self._transcript.bundle())
            self._kept.show(update=True)
        return done

    def resume(self) -> None:
        """Go on from the conversation that the notebook holds, where the page offers that."""
        self._controller.submit({"t": "resume"})

    def undo(self) -> None:
        """Forget the last question and its answer."""
        self._controller.submit({"t": "undo"})

    def clear(self) -> None:
        """Forget everything."""
        self._controller.submit({"t": "clear"})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the conversation as JSON, replies with their tokens included."""
        path = Path(path)
        data = json.dumps(self._controller.to_dict(), ensure_ascii=False, indent=1)
        path.write_text(data, encoding="utf-8")
        return path

    def load(self, source: str | os.PathLike[str] | Sequence[Any] | Mapping[str, Any]) -> None:
        """Go on from a saved conversation in the place of this one.

        source: a file of `save`, a notebook (its last transcript), messages, or what a file holds.
        Raises ValueError that says what is wrong with it.
        """
        data: Any = source
        if isinstance(source, str | os.PathLike):
            data = transcript.read(Path(source))
        self._controller.load(data)

    def close(self) -> None:
        """End the chat: its views go, its thread ends. The transcript stays."""
        if hasattr(self, "_controller"):
            self._controller.close()
        layout = getattr(self, "layout", None)
        super().close()
        if layout is not None:  # a widget of its own, with a line to the kernel of its own
            layout.close()

    # ------------------------------------------------------------------ display

    def _ipython_display_(self) -> None:
        # A widget view and HTML in one bundle would hide the HTML for ever in JupyterLab, which
        # then reports "model not found": so the transcript is a display of its own.
        self._cell = jupyter.running_cell()
        if not _docs_mode():
            self._look_for_earlier()
            jupyter.show_view(self)
        self._kept.change(self._transcript.bundle())
        self._kept.show()

    def _on_message(self, widget: object, content: object, buffers: object) -> None:
        if isinstance(content, Mapping):
            self._controller.submit(content)

    def _look_for_earlier(self) -> None:
        """Once, when the chat is first shown: does the notebook hold a conversation of it?"""
        # Those that need no earlier one count, too: the notebook holds them all.
        nth = 0 if self._name is not None else Chat._order.of(self._cell, self.model_id)
        self._key = self._key or str(nth)
        if self._looked or self.messages:
            return
        self._looked = True
        # A small notebook is read before the chat is shown; a large one does not hold the cell up.
        find = earlier.finder(self._name, nth)
        self._controller.search(find).wait(SOON)

    def _describe(self) -> transcript.Transcript:
        """What the transcript shows. An earlier conversation stays there as long as it is offered:
        whenever the notebook is saved, it is not lost."""
        turns, model, about = self._controller.turns, self.model, self._controller.about
        offered = self._controller.earlier
        if offered is not None:
            turns, model = offered.turns, offered.saved.model or self.model
            about = {"settings": dict(offered.saved.settings)}
        named = {} if self._name is None else {"name": self._name}
        return transcript.transcript(turns, model, _docs_mode(), about | named)

    def _settle(self) -> None:
        """Write the settled state and the transcript. On the controller's thread only."""
        self._transcript = self._describe()
        self._kept.change(None if self._page_keeps else self._transcript.bundle())
        self.state = {"v": VERSION, "model": self.model}
        if self._cell is not None and not self._page_keeps:
            jupyter.publish_as(self._cell)
            self._kept.show(update=True)


class _Host:
    """What the controller sees of its chat: the model, the settings, the page."""

    def __init__(
        self,
        chat: Chat,
        llm: LLM | str | None,
        values: Mapping[str, Any],
        tools: Sequence[object],
        approve: bool | Approver,
    ) -> None:
        self._chat = chat
        self._given = llm
        self._values = settings.given(values)
        self._conversation = Conversation(self, tools=tools)
        self._approve = approve
        self._own = Ledger()

    @property
    def ledger(self) -> Ledger:
        # Asked for each time: the extension may be loaded later, or anew.
        magics = jupyter.extension()
        return self._own if magics is None else magics.ledger

    @property
    def key(self) -> str:
        return self._chat._key or ""

    @property
    def _chosen(self) -> LLM | str | None:
        return self._values.get("model") or self._given

    @property
    def name(self) -> str:
        # It is shown and saved: without folders and keys.
        chosen = self._chosen
        return summary.model_name(str(getattr(chosen, "model", chosen or hub.default)))

    def load(self, progress: OnProgress | None = None) -> LLM:
        chosen = self._chosen
        return chosen if isinstance(chosen, LLM) else hub.load(chosen, on_progress=progress)

    @property
    def model(self) -> str:
        return self.name

    def stream(self, prompt: PromptLike, **options: Any) -> Stream:
        stream: Stream = self.load().stream(prompt, **options)
        return stream

    def copy(self, messages: tuple[Message, ...]) -> Conversation:
        """A conversation with these messages that runs tools without asking on the page."""
        conversation = Conversation(self.load())
        conversation.rules = replace(self._conversation.rules, approve=None)
        conversation.options = settings.options(self._values)
        conversation.load(messages)
        conversation.system = self._values.get("system")
        return conversation

    def share(self, thread: ChatThread) -> None:
        """From now on the conversation has the turns that the page shows."""
        self._conversation.thread = thread

    def open(self, messages: tuple[Message, ...], ask: Approver) -> OpenStream:
        approve = self._approve if callable(self._approve) else ask if self._approve else None

        def start(progress: OnProgress) -> _Answer:
            conversation = self._conversation
            conversation.llm = self.load(progress)
            conversation.system = self._values.get("system")
            conversation.options = settings.options(self._values)
            conversation.rules = replace(conversation.rules, approve=approve)
            return _Answer(conversation, messages)

        return start

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> OpenStream:
        options = settings.options(self._values)
        return lambda progress: branching.stream(self.load(progress), reply, given, **options)

    def extend(self, messages: tuple[Message, ...], text: str) -> OpenStream:
        options = settings.options(self._values)
        system = self._values.get("system")
        head = (Message("system", system),) if system else ()
        asked = (*head, *messages)
        return lambda progress: self.load(progress).stream(asked, given=text, **options)

    def set(self, name: str, value: object) -> None:
        self._values[name] = value

    def settings(self) -> dict[str, Any]:
        return settings.shown({name: self._values.get(name) for name in settings.SETTINGS})

    def window(self) -> int | None:
        chosen = self._chosen
        llm = chosen if isinstance(chosen, LLM) else hub.get(chosen)
        size = getattr(llm.status(), "ctx", None) if llm is not None else None
        return size if isinstance(size, int) else None

    def post(self, message: Mapping[str, object]) -> None:
        self._chat.send(dict(message))

    def settled(self) -> None:
        self._chat._settle()

    @property
    def transcript(self) -> transcript.Transcript:
        return self._chat._transcript

    @property
    def kept(self) -> jupyter.UpdatableOutput:
        return self._chat._kept

    def kept_by_page(self) -> None:
        self._chat._page_keeps = True


class _Answer:
    """One turn of a conversation as the controller reads it.

    Attributes:
        added: What the turn adds to the history: several messages where tools were called.
    """

    def __init__(self, conversation: Conversation, messages: tuple[Message, ...]) -> None:
        self.added: tuple[Message, ...] = ()
        self._turn = conversation.answer(messages, self._settle)

    def _settle(self, added: tuple[Message, ...], reply: Reply) -> None:
        self.added = added

    def __iter__(self) -> Iterator[Event]:
        return iter(self._turn)

    def cancel(self, reason: str = "cancelled") -> None:
        self._turn.cancel(reason)

    @property
    def reply(self) -> Reply:
        return self._turn.reply


def _docs_mode() -> bool:
    """As the magics have it, where they are loaded; else as the environment says."""
    if (magics := jupyter.extension()) is not None:
        return bool(magics.docs_mode)
    return mime.docs_wanted()
