"""The thread behind one chat: it owns the turns, and handles the messages of the pages.

`submit`, `stop` and `wait` may be called from any thread and return at once. All else happens on
the controller's thread, which never waits for a model (runner.py), so it always answers a reloaded
page. Nothing here prints: the output would appear in whichever cell runs now.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llm_magic.branching import choice, prefix
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message
from llm_magic.ui.views import throughput
from llm_magic.ui.views.ledger import Ledger
from llm_magic.utf8 import question_text, whole_json

from ..shared import settings
from ..shared.phases import describe
from ..shared.protocol import Op
from ..shared.stream_reader import StreamUpdate
from ..shared.token_rows import rows
from ..shared.worker import Worker
from . import resume
from .outbox import ChatOutbox
from .request import ApprovalRequest, ChatHost
from .resume import SavedConversation
from .runner import ChatRunner
from .saved import VERSION
from .thread import ChatThread, ChatTurn, plain
from .transcript import Transcript

MAX_TEXT = 1_000_000
LEDGER_ROWS = 50  # of the notebook's ledger, the newest; the sum is one of them


@dataclass(frozen=True, slots=True)
class Search:
    """A search for an earlier conversation."""

    find: Callable[[], object]
    done: threading.Event


class ChatController:
    """The thread behind one chat. `submit`, `stop` and `wait` are for any thread."""

    def __init__(self, host: ChatHost, render: Callable[[str], str] = plain) -> None:
        self.turns = ChatThread(render)
        self.messages: tuple[Message, ...] = ()  # replaced as a whole: any thread may read it
        self.last: Reply | None = None
        # A conversation that is offered until the chat has one of its own.
        self.earlier: SavedConversation | None = None
        self._made: dict[str, Any] = {}  # settings that a person made
        self._host = host
        self._out = ChatOutbox(host.post)
        self._runner = ChatRunner(self.turns, host, self._out, self.put, self._settle)
        after = (self._runner.show_text, self._out.flush)
        self._worker = Worker(
            "llm-chat",
            self._handle,
            after,
            self._fault,
            _starts_work,
            lambda: self._runner.run is not None,
        )
        self._watched: Ledger | None = None
        # What was cleared, and the settings that go with it.
        self._cleared: tuple[ChatTurn, Mapping[str, object]] | None = None
        self._told: Transcript | None = None  # the transcript that the pages have

    # ------------------------------------------------------------------ any thread

    def submit(self, message: Mapping[str, Any]) -> None:
        """Take a message of a page. Returns at once and never raises."""
        self._worker.put(message)

    def put(self, item: object) -> None:
        """Put an item into the inbox of the controller's thread."""
        self._worker.put(item)

    def load(self, data: Any) -> None:
        """Replace the conversation by a saved one.

        Raises:
            ValueError: The data is not a saved conversation, or an answer is being written.
        """
        found = SavedConversation.read(
            data, self.turns.render
        )  # here, so that the caller hears of it
        if not self._worker.idle:
            raise ValueError("an answer is being written: stop it first")
        self.messages = found.turns.messages()
        self.submit({"t": "load", "earlier": found})

    def search(self, find: Callable[[], object]) -> threading.Event:
        """Offer to continue an earlier conversation, if `find` returns one.

        `find` runs on the controller's thread, where a large file holds up no cell.

        Returns:
            An event that is set after the search.
        """
        item = Search(find, threading.Event())
        self._worker.put(item)
        return item.done

    def to_dict(self) -> dict[str, Any]:
        """The whole conversation as plain JSON, tokens included."""
        return self.turns.to_dict() | {"model": self._host.name} | self.about

    @property
    def about(self) -> dict[str, Any]:
        """What is saved beside the turns."""
        return {"settings": dict(self._made)} if self._made else {}

    def stop(self) -> None:
        """Stop the answer that is being written. Its text so far stays."""
        self.submit({"t": "stop"})

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all messages are handled and no answer is being written.

        Returns:
            False when `timeout` seconds were not enough.
        """
        return self._worker.wait(timeout)

    def close(self) -> None:
        """Cancel the answer that is being written; then the thread ends."""
        if self._watched is not None:
            self._watched.forget(self._on_ledger)
        # No thread may be started: widgets are closed when the interpreter ends, too.
        if not self._worker.idle:
            self.stop()

    # ------------------------------------------------------------------ the loop

    def _fault(self, error: BaseException) -> None:
        self._out.notice(describe(error))

    def _handle(self, item: object) -> None:
        match item:
            case StreamUpdate():
                self._runner.update(item)
            case ApprovalRequest():
                self._runner.ask(item)
            case Search():
                self._search(item)
            case Mapping():
                self._on_page_message(whole_json(item))

    # ------------------------------------------------------------------ what a page asks

    def _on_page_message(self, message: Mapping[str, object]) -> None:
        match message:
            case {"t": "hello", "page": str(page)}:
                self._snapshot(page)
            case {"t": "transcript", "page": str(page)}:
                self._out.answer(page, self._transcript(None))
            case {"t": "keeps"}:
                self._host.kept_by_page()
            case {"t": "stop"}:
                self._runner.stop()
            case {"t": "send", "text": str(text)}:
                self._send(text, str(message.get("nonce", "")))
            case {"t": "edit", "id": int(id), "text": str(text)}:
                self._edit(id, text, str(message.get("nonce", "")))
            case {"t": "regenerate", "id": int(id)}:
                self._regenerate(id)
            case {"t": "fork", "id": int(id), "at": int(at), "alternative": int(n)}:
                self._fork(id, at, n)
            case {"t": "continue", "id": int(id)}:
                self._continue(id)
            case {"t": "branch", "id": int(id), "index": int(index)}:
                self._branch(id, index)
            case {"t": "tokens", "id": int(id)}:
                self._tokens(id)
            case {"t": "verdict", "call": str(call), "yes": bool(yes)}:
                self._runner.answer_question(call, yes, message.get("arguments"))
            case {"t": "set", "name": str(name)}:
                self._set(name, message.get("value"))
            case {"t": "ledger"}:
                self._tell_ledger()
            case {"t": "undo"}:
                self._change(self._undo)
            case {"t": "clear"}:
                self._change(self._clear)
            case {"t": "restore"}:
                self._change(self._restore)
            case {"t": "save"}:
                self._out.add("file", data=self.to_dict())
            case {"t": "load", "earlier": SavedConversation() as found}:
                self._go_on_from(found)
            case {"t": "load", "data": data}:
                self._go_on_from(SavedConversation.read(data, self.turns.render))
            case {"t": "remembered", "turns": list(turns)}:
                self._remembered({"version": VERSION, "turns": turns})
            case {"t": "resume"} if self.earlier is not None:
                self._go_on_from(self.earlier)
            case {"t": "start anew"} if self.earlier is not None:
                self._start_anew(self.earlier)
            case {"t": "resume" | "start anew"}:
                pass  # another view was faster
            case _:
                self._out.notice("This page is from another version of llm_magic. Reload the page.")

    def _snapshot(self, page: str) -> None:
        turns = [turn.picture() for turn in self.turns.path()]
        ops: list[Op] = [
            {"o": "path", "at": 0, "turns": turns},
            {"o": "settings", **self._set_values()},
            {"o": "kept", **self._host.kept.told()},
            {"o": "place", "key": self._host.key},
            self._offered(),
        ]
        ops += [{"o": "ask", **self._runner.question.shown()}] if self._runner.question else []
        self._out.snapshot(page, ops)

    def _send(self, text: str, nonce: str, parent: ChatTurn | None = None) -> None:
        if self._runner.run is not None or not text.strip() or len(text) > MAX_TEXT:
            why = (
                "An answer is being written. Stop it, or wait for its end."
                if self._runner.run
                else ""
            )
            self._refuse(text, nonce, why)
            return
        user = self.turns.add(parent or self.turns.last(), "user", question_text(text))
        self._out.add("accepted", nonce=nonce)
        self._answer(user)

    def _edit(self, id: int, text: str, nonce: str) -> None:
        turn = self.turns.find(id)
        if turn is None or turn.parent is None or turn.role != "user":
            self._refuse(text, nonce, "That message is no longer part of this conversation.")
            return
        self._send(text, nonce, turn.parent)

    def _regenerate(self, id: int) -> None:
        turn = self._answered(id)
        if turn is not None and turn.parent is not None:
            self._answer(turn.parent)

    def _fork(self, id: int, at: int, alternative: int) -> None:
        turn = self._answered(id)
        if turn is None or turn.reply is None or turn.parent is None:
            return
        given = prefix(turn.reply, at, choice(turn.reply, at, alternative + 1))
        self._runner.start(turn.parent, self._host.fork(turn.reply, given))

    def _continue(self, id: int) -> None:
        turn = self._answered(id)
        if turn is None or turn.reply is None or turn.parent is None or not turn.can_continue:
            return
        if turn.exact:
            self._runner.start(
                turn.parent, self._host.fork(turn.reply, turn.reply.tokens), extends=turn
            )
            return
        # Its tokens are unknown, as of an answer in a saved notebook: the model reads its text.
        messages = self.turns.messages(turn.parent)
        self._runner.start(turn.parent, self._host.extend(messages, turn.reply.text), extends=turn)

    def _branch(self, id: int, index: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and self._runner.run is None and self.turns.choose(turn, index):
            self._out.path(self.turns, turn.parent)
            self._settle()

    def _tokens(self, id: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and turn.reply is not None:
            self._out.add("tokens", id=id, rows=rows(turn.reply.tokens))

    def _set(self, name: str, value: object) -> None:
        error = ""
        try:
            self._make(name, settings.checked(name, value))
        except RequestError as problem:
            error = str(problem)
        self._out.add("settings", **self._set_values(), name=name, error=error)
        self._settled()

    def _make(self, name: str, value: object) -> None:
        self._host.set(name, value)
        if name != "model":  # it may be a path or hold a key, and no file chooses who is asked
            self._made[name] = value

    def _make_all(self, values: Mapping[str, object]) -> None:
        for name, value in values.items():
            self._make(name, value)
        self._out.add("settings", **self._set_values())

    def _on_ledger(self) -> None:
        """The notebook's ledger has grown. Called on any thread."""
        self.submit({"t": "ledger"})

    def _tell_ledger(self) -> None:
        ledger = self._host.ledger
        if ledger is not self._watched:
            if self._watched is not None:
                self._watched.forget(self._on_ledger)
            ledger.watch(self._on_ledger)
            self._watched = ledger
        table = throughput.rows(ledger)
        self._out.add("ledger", head=list(throughput.HEAD), rows=table[-LEDGER_ROWS:])

    def _set_values(self) -> dict[str, Any]:
        return {"model": self._host.name, "values": dict(self._host.settings())}

    def _change(self, change: Callable[[], None]) -> None:
        if self._runner.run is None:
            change()
            self._out.path(self.turns, self.turns.root)
            self._settle()

    def _undo(self) -> None:
        users = [turn for turn in self.turns.path() if turn.role == "user"]
        if users:
            # Undo gives the question back: nothing that a person typed is lost.
            self._out.add("draft", text=users[-1].text)
            self.turns.remove(users[-1])

    def _clear(self) -> None:
        if self.turns.root.children:
            self._cleared = self.turns.clear(), {}
            self._out.notice("The conversation was cleared.", "restore")

    def _restore(self) -> None:
        if self._cleared is None:
            return
        root, made = self._cleared
        since = self.turns.replace(root)
        self._cleared = (since, {}) if since.children else None
        if self._cleared is not None:  # a second view still offered to undo
            text = "Messages sent since then were set aside. Undo brings them back."
            self._out.notice(text, "restore")
        self._make_all(made)

    # ------------------------------------------------------------------ an earlier conversation

    def _go_on_from(self, found: SavedConversation) -> None:
        def change() -> None:
            self.turns.take(found.turns)
            self._make_all(found.saved.settings)

        self._change(change)

    def _search(self, item: Search) -> None:
        try:
            data = item.find()
            if data is not None and not self.turns.root.children:
                found = SavedConversation.read(data, self.turns.render)
                if found.turns.root.children:
                    self._offer(found)
                    self._settled()
        except ValueError:
            pass  # another program's data, or damaged: nobody asked for it
        finally:
            item.done.set()

    def _offer(self, found: SavedConversation) -> None:
        if not self.turns.root.children:
            self.earlier = found
            self._out.extend([self._offered()])

    def _remembered(self, data: Mapping[str, object]) -> None:
        """A page remembers what the cell's earlier chat showed. That is at least as new as the
        saved notebook but less complete, so it is offered only where it holds more turns."""
        found = SavedConversation.read(data, self.turns.render)
        known = self.earlier is not None and self.earlier.holds(found)
        if not known and not self.turns.root.children and found.turns.root.children:
            self._offer(found)
            self._settled()

    def _offered(self) -> Op:
        there = self.earlier is not None and not self.turns.root.children
        return {"o": "offer", **(self.earlier.op() if there and self.earlier else resume.NONE)}

    def _start_anew(self, found: SavedConversation) -> None:
        self.turns.take(found.turns)
        self._cleared = self.turns.clear(), found.saved.settings
        self.earlier = None
        self._out.extend([self._offered()])
        self._out.notice("The earlier conversation was set aside. Undo brings it back.", "restore")
        self._settle()

    # ------------------------------------------------------------------ answers

    def _answered(self, id: int) -> ChatTurn | None:
        turn = self.turns.find(id)
        free = self._runner.run is None and turn is not None and turn.role == "assistant"
        return turn if free else None

    def _answer(self, user: ChatTurn) -> None:
        self._runner.start(user, self._host.open(self.turns.messages(user), self._runner.decide))

    # ------------------------------------------------------------------ to the page

    def _refuse(self, text: str, nonce: str, why: str) -> None:
        self._out.add("refused", nonce=nonce, text=text, why=why)

    def _settle(self) -> None:
        if self.earlier is not None:
            self.earlier = None if self.turns.root.children else self.earlier
            self._out.extend([self._offered()])
        self.messages = self.turns.messages()
        replies = [turn.reply for turn in self.turns.path() if turn.reply is not None]
        self.last = replies[-1] if replies else None
        self._out.flush()
        self._settled()

    def _settled(self) -> None:
        self._host.settled()
        self._out.extend([self._transcript(self._told)])
        self._told = self._host.transcript

    def _transcript(self, old: Transcript | None) -> Op:
        """What changed of the transcript since the old one."""
        kept = self._host.kept
        return {
            "o": "transcript", **kept.told(), "metadata": kept.metadata,
            "around": list(kept.around), **self._host.transcript.since(old),
        }  # fmt: skip


def _starts_work(item: object) -> bool:
    """Whether a page's message may start an answer."""
    return isinstance(item, Mapping) and item.get("t") in _BEGINNERS


_BEGINNERS = ("send", "edit", "regenerate", "fork", "continue")
