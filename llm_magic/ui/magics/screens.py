"""Shows a stream while it runs: one display per cell, updated in place, complete at the end.

Everything runs on the thread of the cell, so its output appears in its cell. Traffic is bounded: at
most 15 frames a second, and all frames together are at most six times as large as the last one; the
interval grows with the text. Intermediate frames have the same preferred MIME type as the last one,
so the output does not jump, but neither heat map nor JSON.
"""

import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from llm_magic.chat.reply import Reply
from llm_magic.chat.stream import interruptible
from llm_magic.errors import Interrupted, LLMError
from llm_magic.events import CallDelta, CallDone, Delta, Event, Prefill, Progress, Queued, ToolDone
from llm_magic.provider import Stream
from llm_magic.utf8 import for_terminal

from ..views import html, mime, progress, records, summary, tooltrace
from ..widgets.shared.jupyter import UpdatableOutput
from .pace import RATE as RATE
from .pace import Pace
from .stream_state import StreamState

PATIENCE = 0.25  # seconds before work without text is shown
ALIVE = 0.5  # seconds after which it is shown even beyond the budget

Publish = Callable[..., None]


class Screen(Protocol):
    """Shows a reply and the work before it."""

    def event(self, event: Event) -> None: ...

    def final(self, reply: Reply, note: str = "") -> None:
        """Show the complete reply. note: why it ended, if not by itself."""

    def close(self, note: str) -> None:
        """End without a reply: the note takes the place of the progress, if any was shown."""

    def say(self, fragment: mime.Fragment) -> None:
        """Show a fragment in the place of the progress."""


def follow(stream: Stream, screen: Screen, keep: Callable[[Reply], None]) -> Reply:
    """Show a stream to its end and return its Reply. `keep` gets it before it is shown.

    An interrupt cancels and raises Interrupted once the generation has stopped; a failure raises
    too. Both carry the partial reply, which is kept and on the screen by then.
    """
    with stream:
        try:
            _drain(stream, screen)
        except Interrupted as e:
            partial = e.partial or stream.reply
            e.partial = replace(partial, finish_reason=partial.finish_reason or "interrupted")
            keep(e.partial)
            # A second interrupt while the partial is drawn must not hide what happened.
            with suppress(KeyboardInterrupt):
                screen.final(e.partial, "interrupted")
            raise
        except LLMError as e:
            e.partial = e.partial or stream.reply
            keep(e.partial)
            screen.final(e.partial, f"failed: {type(e).__name__}")
            raise
    done = stream.reply
    keep(done)
    screen.final(done, done.finish_reason or "" if _cut_short(done) else "")
    return done


def _cut_short(reply: Reply) -> bool:
    return reply.finish_reason in ("interrupted", "cancelled")


def _drain(stream: Stream, screen: Screen) -> None:
    """All events to the screen. An interrupt may strike anywhere, also inside a display update."""
    interrupted = False
    while True:
        try:
            for event in interruptible(stream):
                if not interrupted:
                    screen.event(event)
        except Interrupted:
            raise
        except KeyboardInterrupt:
            if interrupted:
                stream.close()
            else:
                interrupted = True
                stream.cancel("interrupted")
                continue
        break
    if interrupted:
        n = len(stream.reply.tokens)
        raise Interrupted(f"interrupted after {summary.counted(n, 'token')}", stream.reply)


# ----------------------------------------------------------------------------- screens


class CellScreen:
    """One display in the cell's output, updated in place."""

    def __init__(
        self, publish: Publish, look: mime.Look, model: str, *, tokens: int | None = None,
        rate: float = RATE, keep: bool = False,
    ) -> None:  # fmt: skip
        """publish: shell.display_pub.publish. tokens: the most that may be generated, if known.

        keep: the display is updated after the cell has ended; see `kept`.
        """
        self._publish = publish
        self.kept = UpdatableOutput({}, uuid.uuid4().hex, tagged=keep)
        self.look = look
        self._model = summary.model_name(model)
        self._saved = look.json_tokens is None or (tokens or sys.maxsize) <= look.json_tokens
        self._pace = Pace(rate)
        self._start = time.monotonic()
        self._state = StreamState()
        self._stages = progress.Stages()
        self._overhead = 0  # bytes of a frame that are not text
        self._work = ""  # the kind of work in the last frame

    def event(self, event: Event) -> None:
        state = self._state
        state.add(event)
        self._stages.event(event)
        if not self._pace.due():
            return
        if state.empty:
            if time.monotonic() - self._start < PATIENCE or state.work is None:
                return
            # Each kind of work is shown, however short it is beside the others.
            new = state.work.what != self._work
            if not new and not self._affords(500) and self._pace.idle < ALIVE:
                return
            self._work = state.work.what
        elif not self._affords(self._overhead + state.text_bytes):
            return
        with self._pace.frame() as sent:
            page = self._frame()
            size = len(page.encode())
            self._overhead = max(300, size - state.text_bytes)
            self._send({"text/plain": self._words(), "text/html": page})
            sent(size)

    def _affords(self, size: int) -> bool:
        state = self._state
        # The last bundle holds the text as plain text, Markdown and HTML, and maybe the tokens.
        final = 1_000 + 3 * state.text_bytes + (state.json_bytes if self._saved else 0)
        return self._pace.affords(size, final)

    def _words(self) -> str:
        """A frame as text: the progress of the work, or "…" while an answer is written."""
        work = self._state.work
        return progress.plain(work) if self._state.empty and work is not None else "…"

    def _frame(self) -> str:
        state = self._state
        if state.empty and state.work is not None:
            return html.wrap(progress.bar(state.work), self._note(""))
        text = "".join(state.answer)
        body = mime.body(text, self.look.format, self.look.language) if text else ""
        speed = summary.speed("decode", state.tps())
        count = summary.counted(state.tokens, "token")
        return html.wrap(
            _thinking(state), body, _calling(state), self._note(count, speed),
            themed=html.needs_style(body),
        )  # fmt: skip

    def _note(self, *parts: str) -> str:
        return html.note(html.text(self._model), *parts)

    def final(self, reply: Reply, note: str = "") -> None:
        prepared = self._stages.line
        data = mime.bundle(reply, self.look, note, prepared)
        self._send(data, records.metadata(reply, self.look, data, note, prepared))

    def close(self, note: str) -> None:
        if self.kept.data:
            self._send({"text/plain": note, "text/html": html.wrap(html.note(html.text(note)))})

    def _send(self, data: dict[str, object], record: dict[str, object] | None = None) -> None:
        kept, update = self.kept, bool(self.kept.data)
        kept.change(data, record)
        self._publish(kept.data, kept.metadata, transient={"display_id": kept.id}, update=update)

    def say(self, fragment: mime.Fragment) -> None:
        self._send(fragment._repr_mimebundle_(), fragment.metadata)


def _thinking(state: StreamState) -> str:
    if not state.reasoning:
        return ""
    tail = " ".join(state.reasoning[-90:].split())
    if state.answer:
        return html.note("Reasoning")
    return html.note(f"Reasoning … {html.text(tail)}")


def _calling(state: StreamState) -> str:
    done = f"{state.tools} tool call{'s' * (state.tools != 1)} done" if state.tools else ""
    call = f"calling <code>{html.escape(state.call[-200:])}</code>" if state.call else ""
    return html.note(done, call) if done or call else ""


class StillScreen:
    """One display at the end, nothing before: outputs are the same on every run."""

    def __init__(self, publish: Publish, look: mime.Look) -> None:
        self._publish = publish
        self._look = look

    def event(self, event: Event) -> None:
        """Not shown: intermediate frames differ on every run."""

    def final(self, reply: Reply, note: str = "") -> None:
        data = mime.bundle(reply, self._look, note)
        self._publish(data, records.metadata(reply, self._look, data, note))

    def close(self, note: str) -> None:
        """Nothing was shown."""

    def say(self, fragment: mime.Fragment) -> None:
        self._publish(fragment._repr_mimebundle_(), fragment.metadata)


class QuietScreen:
    """Nothing at all (`--quiet`)."""

    def event(self, event: Event) -> None:
        """Not shown."""

    def final(self, reply: Reply, note: str = "") -> None:
        """Not shown: the reply is in `_llm`."""

    def close(self, note: str) -> None:
        """Nothing was shown."""

    def say(self, fragment: mime.Fragment) -> None:
        """Not shown."""


class TextScreen:
    """A terminal: the text as it comes, then one line of numbers."""

    def __init__(self, look: mime.Look, model: str) -> None:
        self._look = look
        self._model = summary.model_name(model)
        self._column = 0  # characters of a progress line to wipe
        self._pace = Pace()
        self._start = time.monotonic()
        self._last = "\n"
        self._thinking = False

    def event(self, event: Event) -> None:
        match event:
            case Delta("answer", text):
                self._write(for_terminal(text))
            case Queued() | Progress() | Prefill() as work:
                self._status(progress.plain(progress.work(work)))
            case Delta("reasoning"):
                self._status("reasoning …")
            case CallDelta():
                self._status("calling a tool …")
            case CallDone():
                self._status("")  # the approval of a tool call may be asked on this line
            case ToolDone(record):
                self._write(f"{self._newline()}{tooltrace.plain((record,))}\n")
            case _:
                pass

    def _write(self, text: str) -> None:
        self._status("")
        sys.stdout.write(text)
        sys.stdout.flush()
        self._last = text[-1:] or self._last

    def _newline(self) -> str:
        return "" if self._last == "\n" else "\n"

    def _status(self, line: str) -> None:
        """A line that the next output replaces; only in an interactive terminal."""
        late = time.monotonic() - self._start >= PATIENCE
        if line and not (sys.stderr.isatty() and late and self._pace.due()):
            return
        if self._column or line:
            with self._pace.frame():
                sys.stderr.write("\r" + line.ljust(self._column) + ("" if line else "\r"))
                sys.stderr.flush()
        self._column = len(line)

    def final(self, reply: Reply, note: str = "") -> None:
        self._status("")
        missing = mime.unanswered(reply)
        self._write(self._newline() + (f"{missing}\n" if missing else ""))
        shown = summary.steady(reply) if self._look.docs else reply
        sys.stdout.write(f"[{summary.numbers(shown, note)}]\n")
        sys.stdout.flush()

    def close(self, note: str) -> None:
        self._status("")

    def say(self, fragment: mime.Fragment) -> None:
        self._status("")
        sys.stdout.write(f"{fragment.plain}\n")


def screen(
    shell: Any, look: mime.Look, model: str, *, quiet: bool = False,
    tokens: int | None = None, rate: float = RATE, keep: bool = False,
) -> Screen:  # fmt: skip
    """The screen that suits a shell."""
    if quiet:
        return QuietScreen()
    if is_terminal(shell):
        return TextScreen(look, model)
    if look.docs or not _updates_arrive(shell):
        return StillScreen(shell.display_pub.publish, look)
    publish = shell.display_pub.publish
    return CellScreen(publish, look, model, tokens=tokens, rate=rate, keep=keep)


def _updates_arrive(shell: Any) -> bool:
    """Whether an output can be updated where it goes now.

    `%%capture` keeps every frame as an output of its own, and an Output widget (also those behind
    `interact` and callbacks) shows the first frame and no later one.
    """
    if type(shell.display_pub).__name__ == "CapturingDisplayPublisher":
        return False
    # Only a notebook that uses widgets has imported it.
    module = sys.modules.get("ipywidgets.widgets.widget_output")
    parent = getattr(shell, "parent_header", None) or {}
    running = parent.get("header", parent).get("msg_id")
    if module is None or not running:
        return True
    widgets = list(getattr(sys.modules["ipywidgets.widgets.widget"], "_instances", {}).values())
    return not any(isinstance(w, module.Output) and w.msg_id == running for w in widgets)


def is_terminal(shell: object) -> bool:
    """Whether the shell is a terminal, without rich output."""
    # Only a process that runs one has imported it; importing it here would be slow in a kernel.
    module = sys.modules.get("IPython.terminal.interactiveshell")
    return module is not None and isinstance(shell, module.TerminalInteractiveShell)
