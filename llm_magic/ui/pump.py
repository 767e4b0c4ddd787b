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

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..chat.reply import Fold, Reply
from ..errors import LLMError
from ..events import (
    CallDelta,
    CallDone,
    Delta,
    Event,
    Finish,
    Message,
    Prefill,
    Progress,
    Queued,
    ToolDone,
)
from .turns import Turn, Turns, plain

INTERVAL = 0.05  # seconds between messages: 20 a second
MAX_INTERVAL = 0.25
RENDER_SHARE = 10  # rendering may take one tenth of the time
MAX_TEXT = 1_000_000

Op = dict[str, Any]


class EventStream(Protocol):
    """What the pump needs of a stream: iterate on one thread, cancel from any."""

    def __iter__(self) -> Any: ...

    def cancel(self, reason: str = "cancelled") -> None: ...


class Port(Protocol):
    """What the pump asks of the chat that it works for."""

    @property
    def name(self) -> str:
        """The model's name, for people."""
        ...

    def open(self, messages: tuple[Message, ...], progress: Callable[[Progress], None]) -> Any:
        """Load the model if need be and submit a request: a stream with `.reply`. May take long."""
        ...

    def post(self, message: Mapping[str, Any]) -> None:
        """Send to the page. Called on the pump thread only."""
        ...

    def settled(self) -> None:
        """The history changed: write state. Called on the pump thread only."""
        ...


@dataclass(slots=True, eq=False)
class _Run:
    """One request in the making. Only `stream` is set by the reader thread."""

    turn: Turn
    fold: Fold
    stream: Any = None
    stopping: bool = False
    nonce: str = ""
    parts: dict[str, list[str]] = field(default_factory=lambda: {"answer": [], "reasoning": []})


@dataclass(frozen=True, slots=True)
class _Told:
    """Something from a reader thread about its run."""

    run: _Run
    what: Event | None = None
    opened: Any = None
    ended: bool = False
    reply: Reply | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class Phase:
    """What the chat is doing, in words for people. total 0: how long it takes is not known."""

    name: str = "idle"
    text: str = ""
    done: int = 0
    total: int = 0

    def op(self) -> Op:
        return {"o": "phase", "name": self.name, "text": self.text, "done": self.done,
                "total": self.total}  # fmt: skip


@dataclass(slots=True)
class _Outbox:
    """What the page has not been told yet; the last of a kind wins where only the last counts."""

    ops: list[Op] = field(default_factory=list)
    phase: Phase | None = None


class Pump:
    """The thread behind one chat. `submit`, `stop` and `wait` are for any thread."""

    def __init__(self, port: Port, render: Callable[[str], str] = plain) -> None:
        self.turns = Turns(render)
        self.phase = Phase()
        self.messages: tuple[Message, ...] = ()  # replaced as a whole: any thread may read it
        self.last: Reply | None = None
        self._port = port
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._run: _Run | None = None
        self._out = _Outbox()
        self._seq = 0
        self._due = 0.0
        self._idle = threading.Event()
        self._idle.set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ any thread

    def submit(self, message: Mapping[str, Any]) -> None:
        """Hand a page's message to the pump thread. Never blocks, never raises for its content."""
        if message.get("t") in ("send", "regenerate", "edit"):
            self._idle.clear()
        self._inbox.put(message)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="llm-chat", daemon=True)
                self._thread.start()

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
            while True:
                try:
                    items.append(self._inbox.get_nowait())
                except queue.Empty:
                    break
            began = time.monotonic()
            for item in items:
                self._guarded(item)
            self._show_text()
            self._flush()
            now = time.monotonic()
            self._due = now + min(max(INTERVAL, RENDER_SHARE * (now - began)), MAX_INTERVAL)

    def _guarded(self, item: Any) -> None:
        # A fault in here must reach the page: on a thread nobody sees a traceback.
        try:
            if isinstance(item, _Told):
                self._hear(item)
            else:
                self._obey(item)
        except Exception as error:
            self._notice(describe(error))
            self._idle_if_done()

    def _flush(self) -> None:
        ops = self._out.ops
        if self._out.phase is not None:
            ops = [*ops, self._out.phase.op()]
        self._out = _Outbox()
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
            case {"t": "regenerate", "id": int(id)}:
                self._regenerate(id)
            case {"t": "edit", "id": int(id), "text": str(text)}:
                self._edit(id, text, str(message.get("nonce", "")))
            case {"t": "branch", "id": int(id), "index": int(index)}:
                self._branch(id, index)
            case {"t": "undo"}:
                self._undo()
            case {"t": "clear"}:
                self._change(self.turns.clear)
            case {"t": "load", "data": dict(data)}:
                self._change(lambda: self.turns.load(data))
            case _:
                self._notice("The page sent a message that this version does not know.")
                self._idle_if_done()

    def _snapshot(self, view: str) -> None:
        self._flush()  # what was pending is in the picture: its number must be used up first
        turns = [turn.picture() for turn in self.turns.path()]
        ops = [{"o": "path", "at": 0, "turns": turns}, self.phase.op()]
        self._port.post({"seq": self._seq, "to": view, "model": self._port.name, "ops": ops})

    def _send(self, text: str, nonce: str, parent: Turn | None = None) -> None:
        if self._run is not None or not text.strip() or len(text) > MAX_TEXT:
            why = "One answer at a time: stop this one or wait for its end." if self._run else ""
            self._refuse(text, nonce, why)
            return
        user = self.turns.add(parent or self.turns.last(), "user", text)
        self._op({"o": "accepted", "nonce": nonce})
        self._start(user, nonce)

    def _regenerate(self, id: int) -> None:
        turn = self.turns.find(id)
        if self._run is not None or turn is None or turn.parent is None or turn.role != "assistant":
            self._idle_if_done()
            return
        self._start(turn.parent)

    def _edit(self, id: int, text: str, nonce: str) -> None:
        turn = self.turns.find(id)
        if turn is None or turn.parent is None or turn.role != "user":
            self._refuse(text, nonce, "That message is not part of this conversation any more.")
            return
        self._send(text, nonce, turn.parent)

    def _branch(self, id: int, index: int) -> None:
        turn = self.turns.find(id)
        if turn is not None and self._run is None and self.turns.choose(turn, index):
            self._redraw(turn.parent)
            self._settle()

    def _undo(self) -> None:
        path = self.turns.path()
        users = [turn for turn in path if turn.role == "user"]
        if self._run is None and users:
            # Undo gives the question back: nothing that a person typed is lost.
            self._op({"o": "draft", "text": users[-1].text})
            self._change(lambda: self.turns.remove(users[-1]))

    def _change(self, change: Callable[[], None]) -> None:
        if self._run is None:
            change()
            self._redraw(self.turns.root)
            self._settle()

    def _stop(self) -> None:
        run = self._run
        if run is None:
            return
        run.stopping = True
        if run.stream is not None:
            run.stream.cancel("interrupted")
            self._set_phase("stop", "Stopping")
        else:
            # The model is being loaded, which goes on by itself; only the request is dropped.
            self._end(run, None, None)

    # ------------------------------------------------------------------ a run

    def _start(self, user: Turn, nonce: str = "") -> None:
        turn = self.turns.add(user, "assistant")
        turn.busy = True
        run = _Run(turn, Fold(self._port.name), nonce=nonce)
        self._run = run
        self._idle.clear()
        self._redraw(user.parent)
        self._set_phase("start", "Starting")
        messages = self.turns.messages(user)
        threading.Thread(
            target=self._read, args=(run, messages), name="llm-chat-reader", daemon=True
        ).start()

    def _read(self, run: _Run, messages: tuple[Message, ...]) -> None:
        """The reader thread: everything that may take long, told to the pump piece by piece."""
        tell = self._inbox.put
        stream = None
        try:
            stream = self._port.open(messages, lambda event: tell(_Told(run, what=event)))
            tell(_Told(run, opened=stream))
            for event in stream:
                tell(_Told(run, what=event))
            tell(_Told(run, ended=True, reply=getattr(stream, "reply", None)))
        except BaseException as error:
            partial = getattr(error, "partial", None) or getattr(stream, "reply", None)
            tell(_Told(run, ended=True, reply=partial, error=error))

    def _hear(self, told: _Told) -> None:
        run = told.run
        if told.opened is not None:
            run.stream = told.opened
            if run.stopping:
                run.stream.cancel("interrupted")
        if run is not self._run:
            return
        if told.what is not None:
            run.fold.add(told.what)
            if isinstance(told.what, Delta):
                run.parts[told.what.kind].append(told.what.text)
            self._phase_of(run, told.what)
        if told.ended:
            self._end(run, told.reply, told.error)

    def _phase_of(self, run: _Run, event: Event) -> None:
        match event:
            case Queued(ahead):
                self._set_phase("queued", f"Waiting for {ahead} other request{'s' * (ahead != 1)}")
            case Progress("wait"):
                self._set_phase(
                    "wait", f"{self._port.name} is loaded when the running cell has ended"
                )
            case Progress(stage, done, total):
                self._set_phase(
                    stage, f"{_STAGES.get(stage, stage)} {self._port.name}", done, total
                )
            case Prefill(done, total, cached):
                hint = f", {cached} from cache" if cached else ""
                self._set_phase("prefill", f"Reading the prompt: {done} of {total} tokens{hint}",
                                done, total)  # fmt: skip
            case Delta() | CallDelta():
                self._set_phase("decode", "Writing")
            case CallDone(call=call):
                self._set_phase("tool", f"Calling {call.name}")
            case ToolDone() | Finish():
                pass

    def _show_text(self) -> None:
        run = self._run
        if run is None:
            return
        for part, tail in (("reasoning", run.turn.reasoning), ("answer", run.turn.answer)):
            self._patch(run.turn, part, tail.update("".join(run.parts[part])))

    def _patch(self, turn: Turn, part: str, patches: Iterable[tuple[int, int, str]]) -> None:
        if edits := [list(patch) for patch in patches]:
            self._op({"o": "tail", "id": turn.id, "part": part, "edits": edits})

    def _end(self, run: _Run, reply: Reply | None, error: BaseException | None) -> None:
        turn, self._run = run.turn, None
        reply = reply or run.fold.reply()
        turn.busy = False
        if error is not None and not run.stopping:
            turn.error = describe(error)
            self._notice(turn.error)
        empty = not (reply.text or reply.reasoning or reply.calls)
        if empty and (turn.error or run.stopping):
            self._withdraw(turn)
        else:
            self._finish(turn, reply, run.stopping)
        self._set_phase("idle", "")
        self._settle()

    def _finish(self, turn: Turn, reply: Reply, stopped: bool) -> None:
        turn.reply, turn.text = reply, reply.text
        turn.note = _NOTES.get("interrupted" if stopped else reply.finish_reason or "", "")
        self.last = reply
        self._patch(turn, "answer", turn.answer.settle(reply.text))
        self._patch(turn, "reasoning", turn.reasoning.settle(reply.reasoning))
        self._op({"o": "done", "id": turn.id, "foot": turn.foot(), "note": turn.note,
                  "error": turn.error})  # fmt: skip

    def _withdraw(self, turn: Turn) -> None:
        """Nothing came: the question goes back to where it was typed, and no turn dangles."""
        user = turn.parent
        self.turns.remove(turn)
        if user is None:
            return
        if not user.children:
            self._op({"o": "draft", "text": user.text})
            above = user.parent
            self.turns.remove(user)
            self._redraw(above)
        else:
            self._redraw(user)

    # ------------------------------------------------------------------ to the page

    def _op(self, op: Op) -> None:
        self._out.ops.append(op)

    def _set_phase(self, name: str, text: str, done: int = 0, total: int = 0) -> None:
        self.phase = self._out.phase = Phase(name, text, done, total)

    def _notice(self, text: str) -> None:
        self._op({"o": "notice", "text": text})

    def _refuse(self, text: str, nonce: str, why: str) -> None:
        self._op({"o": "refused", "nonce": nonce, "text": text, "why": why})
        self._idle_if_done()

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
        self._idle_if_done()

    def _idle_if_done(self) -> None:
        if self._run is None:
            self._idle.set()


_STAGES = {
    "download": "Downloading",
    "load": "Loading",
    "compile": "Compiling",
    "weights": "Preparing",
}
_NOTES = {
    "interrupted": "stopped",
    "cancelled": "stopped",
    "length": "cut off at the token limit",
    "tool_calls": "the model asked for tools that this chat does not have",
}


def describe(error: BaseException) -> str:
    """One line for people: our own errors speak for themselves, others need their class."""
    text = str(error).strip()
    if isinstance(error, LLMError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
