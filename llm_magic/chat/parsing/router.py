"""Tokens to deltas: UTF-8, stop strings, reasoning and tool calls.

A `Router` takes the `Token`s of one generation and gives `Delta`, `CallDelta` and `CallDone`
events, which carry every kept token exactly once and in order.

Text is held back only while it may still become a tag or a stop string. No text is lost: what is
not in an event is markup, a matched stop string, or blank lines beside markup (one line break stays
where answer text continues after a call). A call that cannot be read becomes answer text in its
place. A `CallDelta` is therefore a preview until its `CallDone`; a `CallDelta` with an id starts
the call of that index again.

Stop strings match in answer text only (and in reasoning, on request), not in the blank lines that
markup removes, nor in the text of calls that could not be read.
"""

import codecs
import logging
import re
from collections.abc import Mapping

from llm_magic.events import (
    CallDone,
    Delta,
    DeltaKind,
    FinishReason,
    Token,
    ToolCall,
    ToolSpec,
)

from .markup.json_calls import stream_json
from .markup.tape import (
    BLANK,
    Args,
    Begin,
    Done,
    NotACall,
    Pieces,
    Tape,
    Text,
    Wait,
    blank,
    blank_head,
    blank_tail,
    closing,
    literal,
    until,
)
from .output import Output, RouterEvent
from .patterns import Patterns, compiled_patterns
from .syntax import ReasoningTags, Syntax, new_call_id, schemas

_log = logging.getLogger(__name__)

MAX_HELD = 1_000  # white space that is held back since markup may follow; what is before it is text

_MESSAGE = "<|message|>"
_NEXT_MESSAGE = ("<|start|>", "<|channel|>")
_END_MESSAGE = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


class Router:
    """Splits one generation. Feed it every token with `push`, then call `finish` once.

    reasoning, in_reasoning: the tags, and whether the prompt already opened them. Reasoning starts
        at the very beginning (white space before it aside) or where the control token is generated;
        the same characters later in the text are text.
    syntax, tools: calls are looked for only if tools were passed (or calls_without_tools is set).
    controls: texts of control tokens by id. A control token shows no text; it may be a tag.
    min_tokens: a stop string that would leave fewer tokens is text.

    Where a stop string has matched (`stopped`), the caller ends the generation with keep=`kept`.
    """

    def __init__(
        self,
        stop: tuple[str, ...] = (),
        reasoning: ReasoningTags | None = None,
        in_reasoning: bool = False,
        syntax: Syntax | None = None,
        tools: tuple[ToolSpec, ...] = (),
        stop_in_reasoning: bool = False,
        controls: Mapping[int, str] | None = None,
        calls_without_tools: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self._reasoning = reasoning
        self._inside = in_reasoning and reasoning is not None
        self._syntax = syntax if tools or calls_without_tools else None
        self._tools = schemas(tools)
        self._controls = controls or {}
        self._min_tokens = min_tokens
        self._control_at: set[int] = set()  # where the text of a control token was put in
        self._stops = frozenset(filter(None, stop))
        self._set_patterns(tuple(self._stops), stop_in_reasoning)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._received = 0  # characters so far
        self._tape = Tape()
        self._out = Output(self._tape)
        self._in_call = False
        self._machine = self._run()
        next(self._machine)

    def _set_patterns(self, stops: tuple[str, ...], stop_in_reasoning: bool) -> None:
        tags, syntax = self._reasoning, self._syntax
        self._channels = (tags is not None and tags.channels) or (
            syntax is not None and syntax.channels
        )
        inner = stops if stop_in_reasoning else ()
        openers = syntax.open if syntax else ()
        self._reopen = None
        if self._channels:
            openers, close = (), (*_END_MESSAGE, *_NEXT_MESSAGE)
            self._answer_ends = compiled_patterns((*stops, *close))
            self._reasoning_ends = compiled_patterns((*inner, *close))
        else:
            if tags and tags.open in self._controls.values():
                self._reopen, openers = tags.open, (*openers, tags.open)
            self._answer_ends = compiled_patterns((*stops, *openers))
            self._reasoning_ends = compiled_patterns((*inner, tags.close) if tags else ())
        self._trims = bool(openers)
        # A call in reasoning that never closes: models forget the closing tag before it.
        self._late_calls = compiled_patterns(syntax.open) if syntax and not self._channels else None
        self._closers = {tags.close} if tags else set()
        self._tags = {*stops, *openers, *((tags.open, tags.close) if tags else ())}

    @property
    def stopped(self) -> bool:
        """Whether a stop string matched."""
        return self._out.stopped

    @property
    def kept(self) -> int:
        """How many of the pushed tokens count: those of a matched stop string do not."""
        return self._out.kept

    @property
    def calls(self) -> list[ToolCall]:
        """The complete calls so far."""
        return self._out.calls

    def push(self, token: Token) -> tuple[RouterEvent, ...]:
        """The events that this token settles; often one, sometimes none."""
        if self._out.stopped:
            return ()
        self._out.kept += 1
        start = self._received
        control = self._controls.get(token.id) if token.id is not None else None
        if control is None:
            text = self._decoder.decode(token.bytes)
        else:
            text = self._control_text(control)
        self._received = end = start + len(text)
        if self._decoder.getstate()[0]:
            end += 1  # its last byte belongs to a character that is still to come
        self._out.queue.append((start, end, token))
        return self._advance(text) if text else ()

    def finish(self, reason: FinishReason) -> tuple[tuple[RouterEvent, ...], FinishReason]:
        """What was held back, and the reason with stop strings and calls taken into account."""
        events: tuple[RouterEvent, ...] = ()
        if not self._out.stopped and not self._tape.ended:
            self._tape.ended = True
            events = self._advance(self._decoder.decode(b"", final=True))
            if (
                self._out.queue and not self._out.stopped
            ):  # tokens without visible text behind the last one
                events += (Delta("answer", "", tuple(t for _, _, t in self._out.queue)),)
                self._out.queue.clear()
        if self._out.stopped:
            reason = "stop"
        return events, "tool_calls" if self._out.calls and reason == "stop" else reason

    def _control_text(self, text: str) -> str:
        tail = self._decoder.decode(b"", final=True)  # a character never spans a control token
        if self._in_call or self._channels or text in self._tags:
            self._control_at.add(self._received + len(tail))
            return tail + text
        return tail

    def _advance(self, text: str) -> tuple[RouterEvent, ...]:
        self._tape.text += text
        next(self._machine, None)
        return self._out.take_events()

    # ------------------------------------------------------------------------- the machine

    def _run(self) -> Wait[None]:
        if self._channels:
            yield from self._messages()
            return
        if self._reasoning:
            yield from self._opening(self._reasoning)
        syntax = self._syntax
        if syntax and syntax.bare and not self._out.stopped:
            yield from blank(self._tape)
            if self._tape.text[self._tape.pos :][:1] in tuple(syntax.bare):
                yield from self._read_calls(syntax.read(self._tape, "", self._tools), bare=True)
            else:
                self._tape.pos = 0
        while not self._out.stopped:
            opener = yield from self._text("answer")
            if not opener:
                return
            if opener == self._reopen:
                self._tape.drop(self._tape.pos)
                yield from self._think()
            elif syntax:
                yield from self._read_calls(syntax.read(self._tape, opener, self._tools))

    def _opening(self, tags: ReasoningTags) -> Wait[None]:
        """The start of the output, where reasoning may start."""
        yield from blank(self._tape)
        tag = yield from literal(self._tape, tags.open, tags.close)
        if not tag:
            self._tape.pos = 0
        if tag:
            self._tape.drop(self._tape.pos)
        if (self._inside and tag != tags.close) or tag == tags.open:
            yield from self._think()
        elif tag:  # the prompt closed the reasoning, and the model closes it once more
            yield from self._behind_markup()

    def _think(self) -> Wait[None]:
        if "reasoning" in self._out.shown:
            self._out.gap["reasoning"] = "\n\n"
        yield from self._behind_markup()
        syntax, before = self._syntax, len(self._out.calls)
        while tag := (yield from self._text("reasoning")):
            if syntax is None or tag not in syntax.open or tag in self._closers:
                self._tape.drop(self._tape.pos)
                yield from self._behind_markup()
                return
            self._out.unreadable = "reasoning"
            yield from self._read_calls(syntax.read(self._tape, tag, self._tools))
            self._out.unreadable = "answer"
            if len(self._out.calls) > before:
                return

    def _text(self, kind: DeltaKind) -> Wait[str]:
        """Let text of this kind out up to the next tag, which is returned and read; `tape.text`
        then starts with the blank lines before it. "" at the end of the output, stopped or not."""
        tape = self._tape
        patterns = self._answer_ends if kind == "answer" else self._reasoning_ends
        trims = not self._channels and (self._trims or kind == "reasoning")
        late = self._late_calls if kind == "reasoning" else None
        clean = tape.base  # no tag starts before this position
        opened = -1  # where a call in the reasoning starts, for which the text from there waits
        while True:
            text = tape.text
            hold = len(text) if tape.ended else patterns.hold(text)
            match = self._find(patterns, text, clean - tape.base)
            clean = max(clean, tape.base + hold)
            if late is not None and opened < 0 and not match:
                found = late.find(text)
                opened = tape.base + found.start() if found else -1
                hold = min(hold, late.hold(text))
            if opened >= 0 and not match:
                found = late.find(text) if late is not None and tape.ended else None
                if found:
                    n = self._visible(text[: found.start()])
                    self._out.text(kind, n)
                    tape.pos = found.end() - n
                    return found.group()
                hold = min(hold, opened - tape.base)
            # A string that starts earlier may still be on its way: it would win.
            if match and match.start() <= hold:
                if match.group() in self._stops:
                    self._out.stop(kind, match.start())
                    return ""
                n = self._visible(text[: match.start()]) if trims else match.start()
                self._out.text(kind, n)
                tape.pos = match.end() - n
                return match.group()
            self._out.text(kind, self._visible(text[:hold]) if trims and not tape.ended else hold)
            if tape.ended:
                return ""
            yield

    def _find(self, patterns: Patterns, text: str, start: int) -> re.Match[str] | None:
        match = patterns.find(text, max(0, start))
        while match and not self._counts(match):
            match = patterns.find(text, match.start() + 1)
        return match

    def _counts(self, match: re.Match[str]) -> bool:
        """Whether what was found is a tag or a stop string here, or text like any other."""
        position = self._tape.base + match.start()
        if match.group() == self._reopen:
            return position in self._control_at
        if match.group() not in self._stops or not self._min_tokens:
            return True
        behind = sum(start >= position for start, _, _ in self._out.queue)
        return self._out.kept - behind >= self._min_tokens

    def _visible(self, text: str) -> int:
        """How much of a text is out for certain when markup may follow."""
        n = max(blank_tail(text), len(text) - MAX_HELD)
        return max(0, len(text) - MAX_HELD) if self._out.fresh and not text[:n].strip(BLANK) else n

    def _behind_markup(self) -> Wait[None]:
        """Drop the blank lines that follow markup, or all white space when nothing else comes."""
        tape = self._tape
        yield from blank(tape)
        end = tape.pos == len(tape.text)
        dropped = tape.drop(tape.pos if end else blank_head(tape.text))
        tape.pos = 0
        self._out.fresh = True
        if dropped and not end:
            self._out.gap["answer"] = "\n"

    def _read_calls(self, reader: Pieces[None], bare: bool = False) -> Wait[None]:
        """Follow a reader from behind an opening tag."""
        tape, before, begun = self._tape, len(self._out.calls), False
        self._in_call = True
        id = new_call_id()
        try:
            for piece in reader:
                match piece:
                    case None:
                        yield
                    case Begin(name, own):
                        begun, id = True, self._out.unused(own or id)
                        self._out.call_event(id, name, "")
                    case Args(text):
                        self._out.call_event(None, None, text)
                    case Text(text):
                        self._out.raw(text)
                    case Done(name, arguments, own):
                        if not begun:
                            id = self._out.unused(own or id)
                            self._out.call_event(id, name, arguments)
                        elif self._out.queue and self._out.queue[0][1] <= tape.base + tape.pos:
                            self._out.call_event(None, None, "")  # the tokens of its last brackets
                        late = self._out.unreadable == "reasoning"
                        self._out.call_done(ToolCall(id, name, arguments, late))
                        begun, id = False, new_call_id()
        except NotACall:
            if bare and not begun and len(self._out.calls) == before:
                tape.pos = 0  # an answer like any other
                return
            raw = tape.drop(tape.pos)
            _log.info("shown as text, since it is no tool call: %.200r", raw)
            self._out.raw(raw if len(self._out.calls) == before else raw[blank_head(raw) :])
            return
        finally:
            self._in_call = False
        self._drop_controls()
        tape.drop(tape.pos)
        yield from self._behind_markup()

    def _drop_controls(self) -> None:
        """Skip control tokens behind a call: they close it and belong to no text."""
        tape = self._tape
        while tape.base + tape.pos in self._control_at:
            rest = tape.text[tape.pos :]
            own = [c for c in self._controls.values() if c not in self._tags and rest.startswith(c)]
            if not own:
                return
            tape.pos += max(map(len, own))

    def _messages(self) -> Wait[None]:
        """gpt-oss: <|start|>role<|channel|>name to=recipient<|message|>text<|end|>, repeated."""
        tape = self._tape
        kind: DeltaKind = "reasoning" if self._inside else "answer"
        inside = self._inside
        while not self._out.stopped:
            if not inside:
                yield from blank(tape)
                head = yield from literal(tape, *_NEXT_MESSAGE)
                if head:
                    header, end = yield from until(tape, _MESSAGE)
                    recipient = _RECIPIENT.search(header)
                    if recipient and end and self._syntax:
                        yield from self._read_calls(_channel_call(tape, recipient[1]))
                        continue
                    channel = _CHANNEL.search(head + header)
                    kind = "reasoning" if channel and channel[1] == "analysis" else "answer"
                    if not end or recipient:
                        self._out.raw(tape.drop(tape.pos))
                    else:
                        tape.drop(tape.pos)
                else:
                    kind, tape.pos = "answer", 0
                self._out.gap[kind] = "\n\n"
            inside = False
            end = yield from self._text(kind)
            if not end:
                return
            tape.drop(tape.pos if end in _END_MESSAGE else 0)
            tape.pos = 0


def _channel_call(tape: Tape, name: str) -> Pieces[None]:
    yield from blank(tape)
    yield Begin(name)
    yield Done(name, (yield from stream_json(tape)))
    yield from closing(tape, *_END_MESSAGE)


# ----------------------------------------------------------------------------- one-shot


def parse(
    text: str,
    syntax: Syntax | None,
    tools: tuple[ToolSpec, ...] = (),
    reasoning: ReasoningTags | None = None,
    in_reasoning: bool = False,
) -> tuple[Delta | ToolCall, ...]:
    """The texts and calls of a whole output, in order, as a stream would give them.

    >>> from .syntax import SYNTAXES
    >>> parts = parse('<tool_call>{"name": "f", "arguments": {}}</tool_call>', SYNTAXES["hermes"])
    >>> parts[0].name, parts[0].arguments
    ('f', '{}')
    """
    router = Router((), reasoning, in_reasoning, syntax, tools, calls_without_tools=True)
    token = Token(None, text.encode("utf-8", "replace"), None, None)
    events = router.push(token) + router.finish("stop")[0]
    out: list[Delta | ToolCall] = []
    for event in events:
        match event:
            case Delta(kind, part) if part:
                out.append(Delta(kind, part))
            case CallDone(_, call):
                out.append(call)
    return tuple(out)
