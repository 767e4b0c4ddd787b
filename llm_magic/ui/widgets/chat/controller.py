"""The thread behind one chat: it owns the turns and everything that the pages are sent.

`submit`, `stop` and `wait` may be called from any thread and return at once. All else happens on
the controller's thread. Each request has a reader thread of its own, which loads the model and
iterates the stream (so tools run there) and puts what it gets into the controller's inbox: the
controller never waits for a model and always answers a reloaded page. Nothing here prints: what a
thread prints would land in whichever cell runs now.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from llm_magic.branching import choice, measured, prefix
from llm_magic.chat.fold import Fold
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message, ToolCall, ToolDone
from llm_magic.ui.views import throughput
from llm_magic.ui.views.ledger import Ledger
from llm_magic.utf8 import question_text, whole_json

from ..shared import settings
from ..shared.phases import IDLE, NOTES, START, STOPPING, Phase, describe, phase_of
from ..shared.protocol import Op
from ..shared.stream_reader import OpenStream, StreamUpdate, start_reading
from ..shared.token_rows import rows
from ..shared.worker import Worker
from . import resume
from .outbox import ChatOutbox
from .request import ApprovalRequest, ChatHost, ChatRequest, await_verdict
from .resume import SavedConversation
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
        self.earlier: SavedConversation | None = (
            None  # a conversation that is offered, until there is one
        )
        self._made: dict[str, Any] = {}  # settings that a person made
        self._host = host
        self._out = ChatOutbox(host.post)
        after = (self._show_text, self._out.flush)
        self._worker = Worker(
            "llm-chat",
            self._handle,
            after,
            self._fault,
            _starts_work,
            lambda: self._run is not None,
        )
        self._run: ChatRequest | None = None
        self._question: ApprovalRequest | None = None
        self._watched: Ledger | None = None
        # What was cleared, and the settings that go with it.
        self._cleared: tuple[ChatTurn, Mapping[str, object]] | None = None
        self._told: Transcript | None = None  # the transcript that the pages have

    # ------------------------------------------------------------------ any thread

    def submit(self, message: Mapping[str, Any]) -> None:
        """Take a message of a page. Returns at once and never raises."""
        self._worker.put(message)

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
                self._on_update(item)
            case ApprovalRequest():
                self._ask(item)
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
                self._stop()
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
                self._verdict(call, yes, message.get("arguments"))
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
        ops += [{"o": "ask", **self._question.shown()}] if self._question else []
        self._out.snapshot(page, ops)

    def _send(self, text: str, nonce: str, parent: ChatTurn | None = None) -> None:
        if self._run is not None or not text.strip() or len(text) > MAX_TEXT:
            why = "An answer is being written. Stop it, or wait for its end." if self._run else ""
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
        self._start(turn.parent, self._host.fork(turn.reply, given))

    def _continue(self, id: int) -> None:
        turn = self._answered(id)
        if turn is None or turn.reply is None or turn.parent is None or not turn.can_continue:
            return
        if turn.exact:
            self._start(turn.parent, self._host.fork(turn.reply, turn.reply.tokens), extends=turn)
            return
        # Its tokens are unknown, as of an answer in a saved notebook: the model reads its text.
        begun = (*self.turns.messages(turn.parent), Message("assistant", turn.reply.text))
        self._start(turn.parent, self._host.extend(begun), extends=turn, begun=turn.reply.text)

    def _branch(self, id: int, index: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and self._run is None and self.turns.choose(turn, index):
            self._redraw(turn.parent)
            self._settle()

    def _tokens(self, id: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and turn.reply is not None:
            self._out.add("tokens", id=id, rows=rows(turn.reply.tokens))

    def _verdict(self, call: str, yes: bool, arguments: object) -> None:
        question = self._question
        if question is None or question.call.id != call:
            return
        verdict: object = yes
        if yes and isinstance(arguments, str):
            try:
                verdict = json.loads(arguments)
            except ValueError as error:
                self._out.notice(f"These arguments are not JSON: {error}")
                return
            if verdict == question.arguments:
                verdict = True
        self._question = None
        self._out.add("asked", call=call)
        question.answer.put(verdict)

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
        if self._run is None:
            change()
            self._redraw(self.turns.root)
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

    def _stop(self) -> None:
        run = self._run
        if run is None:
            return
        run.stopping = True
        if run.stream is not None:
            run.stream.cancel("interrupted")
            self._out.phase(STOPPING)
        else:
            # The model is being loaded, which goes on by itself; only the request is dropped.
            self._end(run, None, None)

    # ------------------------------------------------------------------ a run

    def _answered(self, id: int) -> ChatTurn | None:
        turn = self.turns.find(id)
        free = self._run is None and turn is not None and turn.role == "assistant"
        return turn if free else None

    def _answer(self, user: ChatTurn) -> None:
        self._start(user, self._host.open(self.turns.messages(user), self._decide))

    def _start(
        self,
        user: ChatTurn,
        open_: OpenStream,
        extends: ChatTurn | None = None,
        begun: str = "",
    ) -> None:
        turn = self.turns.add(user, "assistant", begun)
        turn.busy = True
        turn.answer.update(begun)
        run = self._run = ChatRequest(turn, Fold(self._host.name), extends, begun)
        self._redraw(user.parent)
        self._out.phase(START)
        start_reading("llm-chat-reader", run, open_, self._worker.put, self._host.window)

    def _decide(self, call: ToolCall, arguments: object) -> Any:
        """Whether this call may be made. Called on the reader's thread."""
        run = self._run
        return (
            "the turn is over"
            if run is None
            else await_verdict(run, call, arguments, self._worker.put)
        )

    def _ask(self, question: ApprovalRequest) -> None:
        if question.run is self._run:
            self._question = question
            self._out.add("ask", **question.shown())
            self._out.phase(Phase("ask", f"May {question.call.name} be called?"))

    def _on_update(self, told: StreamUpdate[ChatRequest]) -> None:
        run = told.run
        if told.opened is not None:
            run.stream = told.opened
            if run.stopping:
                run.stream.cancel("interrupted")
        if run is not self._run:
            return
        if told.what is not None:
            run.add(told.what)
            if isinstance(told.what, ToolDone):
                run.turn.trace = (*run.turn.trace, told.what.record)
                self._out.add("tools", id=run.turn.id, html=run.turn.ending()["tools"])
            phase = phase_of(told.what, self._host.name)
            if phase is not None and not run.stopping:
                self._out.phase(phase)
        if told.ended:
            run.turn.messages = told.added
            self._end(run, told.reply, told.error, told.window)

    def _show_text(self) -> None:
        run = self._run
        if run is None:
            return
        turn, reasoning, answer = run.turn, run.text("reasoning"), run.text("answer")
        self._out.patch(turn.id, "reasoning", turn.reasoning.update(reasoning))
        self._out.patch(turn.id, "answer", turn.answer.update(answer), answer[len(turn.text) :])
        turn.text = answer
        if run.count and not self._out.empty:
            self._out.add("live", n=run.count, tps=round(run.speed, 1))

    def _end(
        self,
        run: ChatRequest,
        reply: Reply | None,
        error: BaseException | None,
        window: int | None = None,
    ) -> None:
        turn, self._run = run.turn, None
        self._forget_question()
        reply = reply or run.fold.reply()
        empty = not (reply.text or reply.reasoning or reply.calls or turn.trace)
        if run.begun:
            # The text that was continued is part of the answer, but its tokens are not known.
            reply = replace(reply, text=run.begun + reply.text, tokens=(), kinds=(), prompt_ids=())
            reply = replace(reply, prompt=None)
        turn.busy = False
        if error is not None and not run.stopping:
            turn.error = describe(error)
            self._out.notice(turn.error)
        if empty and (turn.error or run.stopping):
            self._withdraw(turn)
        else:
            self.turns.at = datetime.now(UTC).isoformat(timespec="seconds")
            self._finish(turn, reply, run.stopping, run.extends)
            self._measure(reply, window)
            self._host.ledger.add(throughput.entry(measured(reply), "chat"))
        self._out.phase(IDLE)
        self._settle()

    def _finish(
        self, turn: ChatTurn, reply: Reply, stopped: bool, extended: ChatTurn | None
    ) -> None:
        turn.reply = reply
        turn.note = NOTES.get("interrupted" if stopped else reply.finish_reason or "", "")
        self._out.patch(turn.id, "reasoning", turn.reasoning.settle(reply.reasoning))
        self._out.patch(turn.id, "answer", turn.answer.settle(reply.text))
        # The page has the text already, but for a stop string that was taken off its end.
        text = {} if turn.text == reply.text else {"text": reply.text}
        turn.text = reply.text
        self._out.add("done", id=turn.id, **text, **turn.ending())
        if extended is not None:
            self.turns.remove(extended)
            self._redraw(turn.parent)

    def _measure(self, reply: Reply, window: int | None) -> None:
        if window and reply.usage.total:
            self._out.state("context", used=reply.usage.total, size=window)

    def _withdraw(self, turn: ChatTurn) -> None:
        """No text came: put the question back into the input and remove its turn."""
        user = turn.parent
        self.turns.remove(turn)
        if user is None:
            return
        if user.children:
            self._redraw(user)
            return
        self._out.add("draft", text=user.text)
        above = user.parent
        self.turns.remove(user)
        self._redraw(above)

    # ------------------------------------------------------------------ to the page

    def _refuse(self, text: str, nonce: str, why: str) -> None:
        self._out.add("refused", nonce=nonce, text=text, why=why)

    def _forget_question(self) -> None:
        if self._question is not None:
            self._out.add("asked", call=self._question.call.id)
            self._question = None

    def _redraw(self, below: ChatTurn | None) -> None:
        """Send the pages the shown path from the turns below this one on."""
        path = self.turns.path()
        at = path.index(below) + 1 if below in path else 0
        self._out.add("path", at=at, turns=[turn.picture() for turn in path[at:]])

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
