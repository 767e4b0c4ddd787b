"""One chat's thread: it owns the turns and everything that is told to the page.

Comes in: what a page asks for (from any thread, through `submit`), and the events of the stream
that answers it. Goes out: numbered messages to the page, at most 20 a second, and after each turn
the settled state. A message is {"seq": n, "ops": [...]}; a page that missed one wants a snapshot.

Threads: `submit` and `stop` may be called from any thread and return at once. All else happens on
the pump thread. Each request has a reader thread of its own, which loads the model, iterates the
stream (so tools run there) and puts what it gets into the pump's inbox: the pump never waits for a
model and always answers a reloaded page. It must not know ipywidgets, nor print: what a thread
prints would land in whichever cell runs now.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from ..chat.reply import Fold, Reply
from ..errors import RequestError
from ..events import Message, Token, ToolCall, ToolDone
from . import settings
from .branches import choice, join, prefix
from .phases import IDLE, NOTES, START, STOPPING, Phase, describe, phase_of
from .run import Ask, Open, Question, Run, Told, decide, read
from .turns import Turn, Turns, plain, token_rows

INTERVAL = 0.05  # seconds between messages: 20 a second
MAX_INTERVAL = 0.25
RENDER_SHARE = 10  # rendering may take one tenth of the time
MAX_TEXT = 1_000_000

Op = dict[str, Any]


class Port(Protocol):
    """What the pump asks of the chat that it works for."""

    @property
    def name(self) -> str:
        """The model's name, for people."""
        ...

    def open(self, messages: tuple[Message, ...], ask: Ask) -> Open:
        """How to answer these messages. Called on the pump thread, the result on the reader's."""
        ...

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> Open:
        """How to go on from a reply's prompt and these tokens of it."""
        ...

    def set(self, name: str, value: Any) -> None:
        """Take a setting; None is the default."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """What is set."""
        ...

    def window(self) -> int | None:
        """Context size in tokens, if known. Called on a reader thread."""
        ...

    def post(self, message: Mapping[str, Any]) -> None:
        """Send to the page. Called on the pump thread only."""
        ...

    def settled(self) -> None:
        """The history changed: write state. Called on the pump thread only."""
        ...


class Pump:
    """The thread behind one chat. `submit`, `stop` and `wait` are for any thread."""

    def __init__(self, port: Port, render: Callable[[str], str] = plain) -> None:
        self.turns = Turns(render)
        self.phase = IDLE
        self.messages: tuple[Message, ...] = ()  # replaced as a whole: any thread may read it
        self.last: Reply | None = None
        self._port = port
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._run: Run | None = None
        self._question: Question | None = None
        self._context: Op | None = None
        self._cleared: Turn | None = None
        self._ops: list[Op] = []
        self._phase: Phase | None = None  # not told yet
        self._seq = 0
        self._due = 0.0
        self._idle = threading.Event()
        self._idle.set()
        self._coming = 0  # requests in the inbox that begin an answer; guarded by the lock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ any thread

    def submit(self, message: Mapping[str, Any]) -> None:
        """Hand a page's message to the pump thread. Never blocks, never raises for its content."""
        with self._lock:
            if message.get("t") in _BEGINNERS:
                self._coming += 1
                self._idle.clear()
            self._inbox.put(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="llm-chat", daemon=True)
                self._thread.start()

    def load(self, data: Any) -> None:
        """Replace the conversation by a saved one. ValueError if it cannot be read or one runs."""
        fresh = Turns(self.turns.render)
        fresh.load(data)  # checked here, so that the caller hears of it
        if not self._idle.is_set():
            raise ValueError("an answer is being written: stop it first")
        self.messages = fresh.messages()
        self.submit({"t": "load", "turns": fresh})

    def stop(self) -> None:
        """End the running answer soon. What has come so far stays."""
        self.submit({"t": "stop"})

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no answer is in the making. False when the time was up first."""
        return self._idle.wait(timeout)

    # ------------------------------------------------------------------ the loop

    def _loop(self) -> None:
        while True:
            items = [self._inbox.get()]
            # Between messages the pump sleeps instead of waking for every token: it competes for
            # the interpreter lock with the engine and with the user's cell.
            if (rest := self._due - time.monotonic()) > 0:
                time.sleep(rest)
            items.extend(self._waiting())
            began = time.monotonic()
            for item in items:
                self._guarded(item)
            self._show_text()
            self._flush()
            now = time.monotonic()
            self._due = now + min(max(INTERVAL, RENDER_SHARE * (now - began)), MAX_INTERVAL)

    def _waiting(self) -> Iterator[Any]:
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return

    def _guarded(self, item: Any) -> None:
        # A fault in here must reach the page: on a thread nobody sees a traceback.
        try:
            match item:
                case Told():
                    self._hear(item)
                case Question():
                    self._ask(item)
                case _:
                    self._obey(item)
        except Exception as error:
            self._notice(describe(error))
        with self._lock:
            if isinstance(item, Mapping) and item.get("t") in _BEGINNERS:
                self._coming -= 1
            if self._run is None and not self._coming:
                self._idle.set()

    def _flush(self) -> None:
        ops, self._ops = self._ops, []
        if self._phase is not None:
            ops.append(self._phase.op())
            self._phase = None
        if ops:
            self._seq += 1
            self._port.post({"seq": self._seq, "ops": ops})

    # ------------------------------------------------------------------ what a page asks

    def _obey(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"t": "hello", "view": str(view)}:
                self._snapshot(view)
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
            case {"t": "branch", "id": int(id), "index": int(index)}:
                self._branch(id, index)
            case {"t": "tokens", "id": int(id)}:
                self._tokens(id)
            case {"t": "verdict", "call": str(call), "yes": bool(yes)}:
                self._verdict(call, yes, message.get("arguments"))
            case {"t": "set", "name": str(name)}:
                self._set(name, message.get("value"))
            case {"t": "undo"}:
                self._change(self._undo)
            case {"t": "clear"}:
                self._change(self._clear)
            case {"t": "restore"}:
                self._change(self._restore)
            case {"t": "save"}:
                self._op({"o": "file", "data": self.turns.to_dict()})
            case {"t": "load", "turns": Turns() as turns}:
                self._change(lambda: self.turns.take(turns))
            case {"t": "load", "data": data}:
                self._change(lambda: self.turns.load(data))
            case _:
                self._notice("The page sent a message that this version does not know.")

    def _snapshot(self, view: str) -> None:
        self._flush()  # what was pending is in the picture: its number must be used up first
        turns = [turn.picture() for turn in self.turns.path()]
        ops = [{"o": "path", "at": 0, "turns": turns}, self._settings_op(), self.phase.op()]
        ops += [self._context] if self._context else []
        ops += [self._question.op()] if self._question else []
        self._port.post({"seq": self._seq, "to": view, "model": self._port.name, "ops": ops})

    def _send(self, text: str, nonce: str, parent: Turn | None = None) -> None:
        if self._run is not None or not text.strip() or len(text) > MAX_TEXT:
            why = "One answer at a time: stop this one or wait for its end." if self._run else ""
            self._refuse(text, nonce, why)
            return
        user = self.turns.add(parent or self.turns.last(), "user", text)
        self._op({"o": "accepted", "nonce": nonce})
        self._answer(user)

    def _edit(self, id: int, text: str, nonce: str) -> None:
        turn = self.turns.find(id)
        if turn is None or turn.parent is None or turn.role != "user":
            self._refuse(text, nonce, "That message is not part of this conversation any more.")
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
        open_ = self._port.fork(turn.reply, given)
        self._start(turn.parent, open_, turn.reply, given)

    def _branch(self, id: int, index: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and self._run is None and self.turns.choose(turn, index):
            self._redraw(turn.parent)
            self._settle()

    def _tokens(self, id: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and turn.reply is not None:
            self._op({"o": "tokens", "id": id, "rows": token_rows(turn.reply.tokens)})

    def _verdict(self, call: str, yes: bool, arguments: Any) -> None:
        question = self._question
        if question is None or question.call.id != call:
            return
        verdict: Any = yes
        if yes and isinstance(arguments, str):
            try:
                verdict = json.loads(arguments)
            except ValueError as error:
                self._notice(f"These arguments are not JSON: {error}")
                return
            if verdict == question.arguments:
                verdict = True
        self._question = None
        self._op({"o": "asked", "call": call})
        question.answer.put(verdict)

    def _set(self, name: str, value: Any) -> None:
        error = ""
        try:
            self._port.set(name, settings.checked(name, value))
        except RequestError as problem:
            error = str(problem)
        self._op(self._settings_op() | {"name": name, "error": error})
        self._port.settled()

    def _settings_op(self) -> Op:
        return {"o": "settings", "model": self._port.name, "values": dict(self._port.settings())}

    def _change(self, change: Callable[[], None]) -> None:
        if self._run is None:
            change()
            self._redraw(self.turns.root)
            self._settle()

    def _undo(self) -> None:
        users = [turn for turn in self.turns.path() if turn.role == "user"]
        if users:
            # Undo gives the question back: nothing that a person typed is lost.
            self._op({"o": "draft", "text": users[-1].text})
            self.turns.remove(users[-1])

    def _clear(self) -> None:
        if self.turns.root.children:
            self._cleared = self.turns.replace(Turn(0, "root"))
            self._notice("The conversation was cleared.", "restore")

    def _restore(self) -> None:
        if self._cleared is not None:
            self.turns.replace(self._cleared)
            self._cleared = None

    def _stop(self) -> None:
        run = self._run
        if run is None:
            return
        run.stopping = True
        if run.stream is not None:
            run.stream.cancel("interrupted")
            self._set_phase(STOPPING)
        else:
            # The model is being loaded, which goes on by itself; only the request is dropped.
            self._end(run, None, None)

    # ------------------------------------------------------------------ a run

    def _answered(self, id: int) -> Turn | None:
        turn = self.turns.find(id)
        free = self._run is None and turn is not None and turn.role == "assistant"
        return turn if free else None

    def _answer(self, user: Turn) -> None:
        self._start(user, self._port.open(self.turns.messages(user), self._decide))

    def _start(
        self, user: Turn, open_: Open, base: Reply | None = None, given: tuple[Token, ...] = ()
    ) -> None:
        turn = self.turns.add(user, "assistant")
        turn.busy = True
        run = self._run = Run(turn, Fold(self._port.name), base, given)
        if given:
            run.parts["answer"].append(_text_of(given))
        self._redraw(user.parent)
        self._set_phase(START)
        work = (run, open_, self._port.window, self._inbox.put)
        threading.Thread(target=read, args=work, name="llm-chat-reader", daemon=True).start()

    def _decide(self, call: ToolCall, arguments: Any) -> Any:
        """On the reader thread: may this call be made?"""
        run = self._run
        return "the turn is over" if run is None else decide(run, call, arguments, self._inbox.put)

    def _ask(self, question: Question) -> None:
        if question.run is self._run:
            self._question = question
            self._op(question.op())
            self._set_phase(Phase("ask", f"May {question.call.name} be called?"))

    def _hear(self, told: Told) -> None:
        run = told.run
        if told.opened is not None:
            run.stream = told.opened
            if run.stopping:
                run.stream.cancel("interrupted")
        if run is not self._run:
            return
        if told.what is not None:
            run.hear(told.what)
            if isinstance(told.what, ToolDone):
                run.turn.trace = (*run.turn.trace, told.what.record)
                self._op({"o": "tools", "id": run.turn.id, "html": run.turn.ending()["tools"]})
            phase = phase_of(told.what, self._port.name)
            if phase is not None and phase != self.phase and not run.stopping:
                self._set_phase(phase)
        if told.ended:
            run.turn.messages = told.added
            self._end(run, told.reply, told.error, told.window)

    def _show_text(self) -> None:
        run = self._run
        if run is None:
            return
        for part, tail in (("reasoning", run.turn.reasoning), ("answer", run.turn.answer)):
            self._patch(run.turn, part, tail.update("".join(run.parts[part])))
        if self._ops and run.count:
            self._op({"o": "live", "n": run.count, "tps": round(run.speed, 1)})

    def _patch(self, turn: Turn, part: str, patches: Iterable[tuple[int, int, str]]) -> None:
        if edits := [list(patch) for patch in patches]:
            self._op({"o": "tail", "id": turn.id, "part": part, "edits": edits})

    def _end(
        self, run: Run, reply: Reply | None, error: BaseException | None, window: int | None = None
    ) -> None:
        turn, self._run = run.turn, None
        self._forget_question()
        reply = reply or run.fold.reply()
        if run.base is not None:
            reply = join(run.base, run.given, reply)
        turn.busy = False
        if error is not None and not run.stopping:
            turn.error = describe(error)
            self._notice(turn.error)
        empty = not (reply.text or reply.reasoning or reply.calls or turn.trace)
        if empty and (turn.error or run.stopping):
            self._withdraw(turn)
        else:
            self._finish(turn, reply, run.stopping)
            self._measure(reply, window)
        self._set_phase(IDLE)
        self._settle()

    def _finish(self, turn: Turn, reply: Reply, stopped: bool) -> None:
        turn.reply, turn.text = reply, reply.text
        turn.note = NOTES.get("interrupted" if stopped else reply.finish_reason or "", "")
        self._patch(turn, "reasoning", turn.reasoning.settle(reply.reasoning))
        self._patch(turn, "answer", turn.answer.settle(reply.text))
        self._op({"o": "done", "id": turn.id, **turn.ending()})

    def _measure(self, reply: Reply, window: int | None) -> None:
        if window and reply.usage.total:
            self._context = {"o": "context", "used": reply.usage.total, "size": window}
            self._op(self._context)

    def _withdraw(self, turn: Turn) -> None:
        """Nothing came: the question goes back to where it was typed, and no turn dangles."""
        user = turn.parent
        self.turns.remove(turn)
        if user is None:
            return
        if user.children:
            self._redraw(user)
            return
        self._op({"o": "draft", "text": user.text})
        above = user.parent
        self.turns.remove(user)
        self._redraw(above)

    # ------------------------------------------------------------------ to the page

    def _op(self, op: Op) -> None:
        self._ops.append(op)

    def _set_phase(self, phase: Phase) -> None:
        self.phase = self._phase = phase

    def _notice(self, text: str, action: str = "") -> None:
        self._op({"o": "notice", "text": text, "action": action})

    def _refuse(self, text: str, nonce: str, why: str) -> None:
        self._op({"o": "refused", "nonce": nonce, "text": text, "why": why})

    def _forget_question(self) -> None:
        if self._question is not None:
            self._op({"o": "asked", "call": self._question.call.id})
            self._question = None

    def _redraw(self, below: Turn | None) -> None:
        """Draw the shown path anew from the turns below this one."""
        path = self.turns.path()
        at = path.index(below) + 1 if below in path else 0
        self._op({"o": "path", "at": at, "turns": [turn.picture() for turn in path[at:]]})

    def _settle(self) -> None:
        self.messages = self.turns.messages()
        replies = [turn.reply for turn in self.turns.path() if turn.reply is not None]
        self.last = replies[-1] if replies else None
        self._flush()
        self._port.settled()


_BEGINNERS = ("send", "edit", "regenerate", "fork")


def _text_of(tokens: Iterable[Token]) -> str:
    return b"".join(token.bytes for token in tokens).decode("utf-8", "replace")
