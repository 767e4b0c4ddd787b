"""One turn of a conversation: the model answers, its tool calls run, the model answers again.

A `Turn` is one Stream over all rounds. At its end it hands over the messages that the turn adds to
the conversation.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from ..errors import LLMError
from ..events import (
    CallDelta,
    CallDone,
    Delta,
    Event,
    Finish,
    FinishReason,
    Message,
    Timings,
    ToolCall,
    ToolDone,
    ToolRecord,
    Usage,
)
from .fold import Fold
from .reply import Reply
from .stream import Stream
from .tools.definition import Tool
from .tools.execution import Approve, Halt, run_call
from .tools.repeats import Repeats

# Starts the answer to messages, given (messages, is it the first round?, may tools be called?).
Open = Callable[[tuple[Message, ...], bool, bool], Stream]
# Takes the messages that a turn adds to the history (none: nothing was said), and its reply.
Settle = Callable[[tuple[Message, ...], Reply], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """How a turn treats calls.

    max_steps: rounds of calls in one turn. After them the model is asked once more without tools,
    so that every turn ends in words. approve, timeout: see tools.execution.run_call.
    """

    tools: tuple[Tool, ...] = ()
    max_steps: int = 8
    approve: Approve | None = None
    timeout: float | None = None


class Turn:
    """A Stream (see chat.stream.Stream) over all rounds of one turn.

    Iterate on one thread; `cancel` and `close` are safe from any. settle: called once, on the
    thread that ends the turn. An interrupt (KeyboardInterrupt) may leave `__next__` at any place:
    the next call goes on from there.
    """

    def __init__(
        self, messages: tuple[Message, ...], open: Open, rules: Rules, settle: Settle
    ) -> None:
        self._messages, self._open, self._rules = messages, open, rules
        self._settle: Settle | None = settle
        self._lock = threading.Lock()  # for what cancel and close share with the reading thread
        self._inner: Stream | None = None  # the round that is being answered
        self._latest: Stream | None = None
        self._calls: deque[ToolCall] = deque()  # of the latest round, not answered yet
        self._added: list[Message] = []
        self._round = 0
        self._earlier_calls = 0
        self._gap = False  # answer text has come in an earlier round
        self._out: deque[Event] = deque()
        self._fold = Fold()
        self._usage, self._timings = Usage(), Timings()
        self._halt = Halt()
        self._repeats = Repeats()
        self._stop: FinishReason | None = None
        self._done = self._closed = False
        self.reading = False  # somebody is inside __next__

    @property
    def reply(self) -> Reply:
        """The reply so far: text, tokens and trace of all rounds, the prompt of the last one."""
        mine = self._fold.reply()
        if self._latest is None:
            return mine
        last = self._latest.reply
        return replace(
            mine,
            model=last.model,
            prompt=last.prompt,
            prompt_ids=last.prompt_ids,
            messages=last.messages,
            tools=last.tools,
            sampling=last.sampling,
            parsed=last.parsed,
            origin=last.origin,
        )

    @property
    def ended(self) -> bool:
        """Nothing more will be generated or called."""
        return self._done or self._closed

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        self.reading = True
        try:
            while not self._out:
                if self._done or self._closed:
                    raise StopIteration
                self._advance()
        finally:
            self.reading = False
        return self._out.popleft()

    def _advance(self) -> None:
        if self._inner is not None:
            self._read(self._inner)
        elif self._stop is not None:
            self._end(self._stop)
        elif self._calls:
            self._run(self._calls[0])
        else:
            self._begin()

    def _begin(self) -> None:
        """Ask for the next round's answer."""
        may_call = bool(self._rules.tools) and self._round < self._rules.max_steps
        may_call = may_call and not self._repeats.exhausted
        try:
            inner = self._open((*self._messages, *self._added), self._round == 0, may_call)
        except Exception:
            self._over()
            raise
        self._round += 1
        with self._lock:
            self._inner = self._latest = inner
            stop = self._stop
        if stop is not None:
            inner.cancel(stop)

    def _read(self, inner: Stream) -> None:
        try:
            event = next(inner)
        except StopIteration:  # closed
            self._over()
            raise
        except LLMError as e:
            if self._take_inner() and isinstance(e.partial, Reply):
                self._added.append(e.partial.message)
                e.partial = replace(e.partial, trace=self._fold.reply().trace)
            self._over()
            raise
        match event:
            case Finish():
                if self._take_inner():
                    self._round_over(inner.reply, event)
            case Delta(kind="answer", text=text):
                if text and self._gap:
                    self._emit(Delta("answer", "\n\n"))
                    self._gap = False
                self._emit(event)
            case CallDelta(index=index) | CallDone(index=index):
                self._emit(replace(event, index=self._earlier_calls + index))
            case _:
                self._emit(event)

    def _take_inner(self) -> bool:
        """The round is over; False when `close` saw to it already."""
        with self._lock:
            inner, self._inner = self._inner, None
        return inner is not None

    def _round_over(self, reply: Reply, finish: Finish) -> None:
        self._timings = _add_timings(self._timings, self._usage, finish)
        self._usage = _add_usage(self._usage, finish.usage)
        self._added.append(reply.message)
        self._gap = bool(self._fold.text)
        if self._stop is None and finish.reason == "tool_calls" and self._rules.tools:
            self._calls.extend(reply.calls)
            self._earlier_calls += len(reply.calls)
        else:
            self._end(self._stop or finish.reason)

    def _run(self, call: ToolCall) -> None:
        rules = self._rules
        if (known := self._repeats.answer(call, self._round)) is not None:
            self._answered(known)
            return
        try:
            record = run_call(
                call, rules.tools, self._round,
                approve=rules.approve, timeout=rules.timeout, halt=self._halt,
            )  # fmt: skip
        except KeyboardInterrupt as e:
            self._answered(cast(ToolRecord, e.record))  # type: ignore[attr-defined]
            self._stop = self._stop or "interrupted"
            raise KeyboardInterrupt from None  # not the one of a reply that the tool asked for
        self._repeats.add(record)
        self._answered(record)

    def _answered(self, record: ToolRecord) -> None:
        self._calls.popleft()
        call = record.call
        self._added.append(Message("tool", record.result, call_id=call.id, name=call.name))
        self._emit(ToolDone(record))

    def _emit(self, event: Event) -> None:
        self._fold.add(event)
        self._out.append(event)

    # ------------------------------------------------------------------ the end

    def _end(self, reason: FinishReason) -> None:
        self._emit(Finish(reason, self._usage, self._timings))
        self._over(whole=reason in ("stop", "length", "tool_calls"))

    def _over(self, whole: bool = False) -> None:
        """Hand over what the turn adds, once."""
        with self._lock:
            settle, self._settle = self._settle, None
            self._done = True
        if settle is not None:
            settle(_kept(self._added, whole), self.reply)

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """See Stream.cancel. A tool that runs is interrupted or abandoned."""
        with self._lock:
            inner = self._inner
            if self._stop is None:
                self._stop = cast(FinishReason, reason)
        if inner is not None:
            inner.cancel(reason, keep)
        self._halt.set()

    def close(self) -> None:
        self._closed = True
        with self._lock:
            inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()
            self._added.append(inner.reply.message)
        self._halt.set()
        self._over()

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _kept(added: Sequence[Message], whole: bool) -> tuple[Message, ...]:
    """What of a turn stays in the history: it ends with the assistant's words, or is nothing.

    A question without an answer, or a call without its result, would break the roles' alternation
    for the next turn. Of a turn that was stopped between calls only the words said so far stay.
    """
    messages = list(added)
    while messages and not (messages[-1].role == "assistant" and not messages[-1].calls):
        messages.pop()
    if messages and (messages[-1].text.strip() or whole):
        return tuple(messages)
    words = [m.text for m in added if m.role == "assistant" and m.text.strip()]
    return (Message("assistant", "\n\n".join(words)),) if words else ()


def _add_usage(a: Usage, b: Usage) -> Usage:
    return Usage(
        a.prompt + b.prompt, a.cached + b.cached, a.completion + b.completion, a.guessed + b.guessed
    )


def _add_timings(before: Timings, usage: Usage, finish: Finish) -> Timings:
    """Sums of the rounds; the rates are those of all work, the first token is the first round's."""
    a, b, total = before, finish.timings, _add_usage(usage, finish.usage)
    prefill, decode = a.prefill + b.prefill, a.decode + b.decode
    drawn = a.decode_tps * a.decode + b.decode_tps * b.decode
    return Timings(
        load=a.load + b.load,
        queued=a.queued + b.queued,
        prefill=prefill,
        decode=decode,
        first_token=a.first_token or b.first_token,
        prefill_tps=(total.prompt - total.cached) / prefill if prefill else 0.0,
        decode_tps=drawn / decode if decode else 0.0,
    )
