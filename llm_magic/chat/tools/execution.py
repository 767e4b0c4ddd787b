"""One call of a tool: validate, ask for approval, run, record.

`run_call` answers a `ToolCall` with a `ToolRecord` whose `result` is text for the model. A failure
is a result too: whatever a tool raises, SystemExit included, is told to the model; only
KeyboardInterrupt comes through.

Threads: a tool runs on the calling thread, so that objects that belong to the main thread (an open
database, a figure) work in it. It runs on a daemon thread of its own if it has a timeout, if it is
a coroutine, or if the caller is not the main thread. Such a call is abandoned when its time is over
or the turn is cancelled; the function may go on in the background, but its result is not used.
"""

import _thread
import asyncio
import contextlib
import inspect
import io
import itertools
import json
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from llm_magic.errors import named
from llm_magic.events import ToolCall, ToolRecord

from ..interrupts import immediate
from ..json_values import to_json
from ..parsing.syntax import call_arguments
from .definition import Tool

MAX_RESULT = 8_000  # characters of a result that a model gets to read
MAX_STDOUT = 20_000  # characters that are kept of what a tool prints
MAX_ITEMS = 1_000  # that are taken from an iterator
POLL = 0.05  # seconds between looks at a running tool; interrupts arrive in between

# True allows the call, arguments (a mapping) allow it with these instead. Everything else refuses
# it: False, None, or the reason as text.
Verdict = bool | str | Mapping[str, Any] | None
Approve = Callable[[ToolCall, Any], Verdict]


class Halted(Exception):
    """The turn was cancelled while a tool ran."""


class Halt:
    """A switch that ends a running tool. `set` may be called from any thread; it takes effect once.

    A tool on the main thread is ended by SIGINT, as Ctrl-C would. The signal is sent under the
    lock, so it cannot arrive after the tool has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._on_main = False
        self._struck = False  # Python has heard the signal

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._lock:
            if self._set:
                return
            self._set = True
            on_main = self._on_main
        if on_main:
            threading.Thread(target=self._insist, daemon=True).start()

    def _insist(self) -> None:
        """Repeat the signal until Python handles it: one that comes just before a sleep is lost."""
        while True:
            with self._lock:
                if not self._on_main or self._struck:
                    return
                if hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(cast(int, threading.main_thread().ident), signal.SIGINT)
                else:
                    _thread.interrupt_main()
            time.sleep(POLL)

    def _strike(self, number: int, frame: object) -> None:
        self._struck = True
        raise KeyboardInterrupt

    @contextlib.contextmanager
    def on_main(self) -> Iterator[None]:
        """Around a tool that runs on the main thread. Raises Halted where `set` ended it."""
        # A SIGINT handler of the user's stays in place; such a tool runs to its own end.
        ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with self._lock:
            if self._set:
                raise Halted
            self._on_main = ours
        try:
            if ours:
                signal.signal(signal.SIGINT, self._strike)
            try:
                yield
            finally:
                with self._lock:
                    self._on_main = False
        except KeyboardInterrupt:
            with self._lock:
                self._on_main = False
            if self._set:
                raise Halted from None
            raise
        finally:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(slots=True)
class _Outcome:
    """The state of a call while it is prepared and run."""

    arguments: Any = None
    approval: str = "auto"
    status: str = "ok"
    result: str = ""
    error: str | None = None
    stdout: str = ""
    waited: float = 0.0  # seconds for a verdict


def run_call(
    call: ToolCall,
    tools: Sequence[Tool],
    round: int,
    *,
    approve: Approve | None = None,
    timeout: float | None = None,
    halt: Halt | None = None,
) -> ToolRecord:
    """Answer a call. Never raises but for KeyboardInterrupt, which carries the record as `.record`.

    approve: asked before anything runs, with the call and its parsed arguments. timeout: seconds,
    for tools that have none of their own. halt: set it to end or abandon the tool.
    """
    out = _Outcome()
    began = time.perf_counter()
    printed = io.StringIO()

    def record() -> ToolRecord:
        seconds = time.perf_counter() - began - out.waited
        text = _clipped(printed.getvalue(), MAX_STDOUT)
        return ToolRecord(
            round, call, out.arguments, out.approval, out.status, seconds, out.result, text,
            out.error, out.waited,
        )  # fmt: skip

    try:
        with immediate():  # an interrupt ends what the user's code does
            if (tool := _prepared(call, tools, approve, out)) is not None:
                _run(tool, out, printed, tool.timeout or timeout, halt or Halt())
    except KeyboardInterrupt as e:
        out.status, out.result = "interrupted", "The call was interrupted."
        out.error = "KeyboardInterrupt"
        e.record = record()  # type: ignore[attr-defined]
        raise
    return record()


def _prepared(
    call: ToolCall, tools: Sequence[Tool], approve: Approve | None, out: _Outcome
) -> Tool | None:
    """The tool to run, or None when `out` already holds the result."""
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        names = ", ".join(t.name for t in tools) or "none"
        _refused(out, "unknown", f"There is no tool {call.name!r}. Tools: {names}.")
        return None
    try:
        empty = not call.arguments.strip()
        out.arguments = {} if empty else call_arguments(call)
    except ValueError as e:
        _refused(out, "invalid", f"The arguments are not JSON: {e}.")
        return None
    if problems := tool.problems(out.arguments):
        _refused(out, "invalid", _listed(problems))
        return None
    if approve is not None and not _approved(call, tool, approve, out):
        return None
    return tool


def _approved(call: ToolCall, tool: Tool, approve: Approve, out: _Outcome) -> bool:
    began = time.perf_counter()
    try:
        verdict = approve(call, out.arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # an approval that failed is a refusal
        verdict = f"approval failed with {named(e)}"
    finally:  # an interrupt ends the waiting, too
        out.waited = time.perf_counter() - began
    out.approval = "approved"
    match verdict:
        case True:
            return True
        case Mapping():
            out.approval, out.arguments = "edited", to_json(verdict)
            if problems := tool.problems(out.arguments):
                _refused(out, "invalid", _listed(problems))
                return False
            return True
    out.approval = "refused"
    reason = f": {verdict}" if isinstance(verdict, str) and verdict else ""
    if not isinstance(verdict, bool | str):  # a function without a return must not allow a call
        reason = f": approve() returned {verdict!r:.80}, and only True or arguments allow a call"
    _refused(out, "refused", f"The user refused this call{reason}.")
    return False


def _refused(out: _Outcome, status: str, why: str) -> None:
    out.status, out.result, out.error = status, f"Error: {why}", why


def _listed(problems: list[str]) -> str:
    return "The arguments are not valid. " + "; ".join(problems[:5])


# ----------------------------------------------------------------------------- running


def _run(
    tool: Tool, out: _Outcome, printed: io.StringIO, timeout: float | None, halt: Halt
) -> None:
    arguments = out.arguments

    def work() -> Any:
        with captured(printed):
            value = tool.run(arguments)
            if inspect.isawaitable(value) or isinstance(value, AsyncIterator):
                value = asyncio.run(_awaited(value))
            # Iterators are read here, where their prints, errors and time belong to the call.
            value = _collected(value) if isinstance(value, Iterator) else value
            return render(value, printed.getvalue())

    here = threading.current_thread() is threading.main_thread()
    alone = timeout is not None or not here or _is_async(tool.function)
    try:
        if alone:
            out.result = _abandonable(work, tool.name, timeout, halt)
        else:
            with halt.on_main():
                out.result = work()
    except TimeoutError as e:
        if e.args != (_TIMED_OUT,):
            _raised(out, e)
            return
        _refused(out, "timeout", f"{tool.name} did not finish within {timeout:g} s.")
    except Halted:
        out.status, out.error = "interrupted", "the turn was cancelled"
        out.result = "The call was interrupted."
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # SystemExit and CancelledError end the call, not the cell
        _raised(out, e)


def _raised(out: _Outcome, e: BaseException) -> None:
    _refused(out, "error", _clipped(named(e), MAX_RESULT // 4))


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


async def _awaited(value: object) -> Any:
    value = await value if inspect.isawaitable(value) else value
    if not isinstance(value, AsyncIterator):
        return value
    items = []
    async for item in value:
        items.append(item)
        if len(items) > MAX_ITEMS:
            break
    return _collected(iter(items))


def _collected(items: Iterator[object]) -> list[object]:
    """The items, at most MAX_ITEMS; then a last one says that there were more."""
    found = list(itertools.islice(items, MAX_ITEMS + 1))
    if len(found) > MAX_ITEMS:
        found[-1] = f"[... only the first {MAX_ITEMS:,} items were taken ...]"
    return found


_TIMED_OUT = "llm_magic: out of time"  # tells our own TimeoutError from one that a tool raises


def _abandonable(work: Callable[[], object], name: str, timeout: float | None, halt: Halt) -> Any:
    """Run on a daemon thread; stop waiting at the timeout or when `halt` is set."""
    done = threading.Event()
    box: list[tuple[bool, Any]] = []

    def body() -> None:
        try:
            box.append((True, work()))
        except BaseException as e:  # SystemExit of a tool must not end quietly
            box.append((False, e))
        done.set()

    threading.Thread(target=body, name=f"llm_magic tool {name}", daemon=True).start()
    end = None if timeout is None else time.monotonic() + timeout
    while not done.wait(POLL if end is None else max(0.0, min(POLL, end - time.monotonic()))):
        if halt.is_set():
            raise Halted
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(_TIMED_OUT)
    ok, value = box[0]
    if ok:
        return value
    if isinstance(value, KeyboardInterrupt):  # not one of a person: those reach the main thread
        raise RuntimeError(named(value))
    raise value


# ----------------------------------------------------------------------------- output


def render(value: object, printed: str = "") -> str:
    """A tool's result as text for a model.

    Args:
        value: what the tool returned. Taken in this order: its `_repr_llm_()`, its
            `_repr_markdown_()`, a text as it is, and everything that JSON can express as JSON.
        printed: stands in for a function that returned None.

    Returns:
        At most MAX_RESULT characters; a longer text loses its middle, and says so.

    >>> render({"sum": 3, "when": __import__("datetime").date(2026, 5, 1)})
    '{"sum": 3, "when": "2026-05-01"}'
    >>> render(None, "printed by the tool")
    'printed by the tool'
    """
    for method in ("_repr_llm_", "_repr_markdown_"):
        show = getattr(value, method, None)
        if callable(show) and not isinstance(value, type):
            with contextlib.suppress(Exception):  # a broken view must not hide the result
                if isinstance(text := show(), str):
                    return _clipped(text, MAX_RESULT)
    if value is None:
        return _clipped(printed.strip(), MAX_RESULT) or "(no result)"
    if isinstance(value, str):
        return _clipped(value, MAX_RESULT)
    return _clipped(_as_text(value), MAX_RESULT)


def _as_text(value: object) -> str:
    try:
        found = to_json(value)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # RecursionError and whatever a __str__ raises
        return f"({type(value).__name__} without a text: {type(e).__name__})"


def _clipped(text: str, limit: int) -> str:
    """The text, or its beginning and end around a note of how many characters are missing."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    left = len(text) - head - tail
    return f"{text[:head]}\n[... {left} characters left out ...]\n{text[-tail:]}"


class _Split:
    """Replaces sys.stdout or sys.stderr while tools run: the output of a tool's thread goes to its
    sink, all other output to the real stream."""

    def __init__(self, real: object) -> None:
        self.real = real
        self.sinks: dict[int, io.StringIO] = {}

    def _target(self) -> Any:
        return self.sinks.get(threading.get_ident(), self.real)

    def write(self, text: str) -> object:
        return self._target().write(text)

    def writelines(self, lines: object) -> None:
        self._target().writelines(lines)

    def flush(self) -> None:
        self._target().flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


_LOCK = threading.Lock()


@contextlib.contextmanager
def captured(sink: io.StringIO) -> Iterator[None]:
    """Collect what this thread prints to stdout and stderr. Other threads print as before."""
    me = threading.get_ident()
    with _LOCK:
        splits = [_install(name, me, sink) for name in ("stdout", "stderr")]
    try:
        yield
    finally:
        with _LOCK:
            for name, split, before in splits:
                if before is None:
                    split.sinks.pop(me, None)
                else:
                    split.sinks[me] = before
                if not split.sinks and getattr(sys, name) is split:
                    setattr(sys, name, split.real)


def _install(name: str, me: int, sink: io.StringIO) -> tuple[str, _Split, io.StringIO | None]:
    current = getattr(sys, name)
    split = current if type(current) is _Split else _Split(current)
    before = split.sinks.get(me)
    split.sinks[me] = sink
    setattr(sys, name, split)
    return name, split, before
