"""The state of a running stream: its text so far, its size, and the work before its first token."""

import time

from llm_magic.events import (
    CallDelta,
    CallDone,
    Delta,
    Event,
    Finish,
    Prefill,
    Progress,
    Queued,
    Token,
    ToolDone,
)

from ..views.progress import Work, work

TAIL = 200  # characters of the reasoning that are kept: only its end is shown while it runs


class StreamState:
    """The text of a stream so far, and sizes for the limit of its updates. Renders nothing.

    Attributes:
        answer: The pieces of the answer.
        reasoning: The end of the reasoning.
        call: The tool call that is being written.
        tools: Tool calls that have run.
        tokens: Generated tokens.
        text_bytes: The size of all text in UTF-8.
        json_bytes: A lower bound of the size of the saved tokens.
        since: The time of the first token (time.monotonic).
        work: The work that goes on while there is no text.
    """

    def __init__(self) -> None:
        self.answer: list[str] = []
        self.reasoning = ""
        self.call = ""
        self.tools = 0
        self.tokens = 0
        self.text_bytes = 0
        self.json_bytes = 0
        self.since = 0.0
        self.work: Work | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing but work has come."""
        return not (self.answer or self.reasoning or self.call or self.tools)

    def add(self, event: Event) -> None:
        """Take the next event."""
        match event:
            case Delta(kind, text, tokens):
                if kind == "answer":
                    self.answer.append(text)
                else:
                    self.reasoning = (self.reasoning + text)[-TAIL:]
                self._take(text, tokens)
            case CallDelta(name=name, arguments=arguments, tokens=tokens):
                self.call = (f"{name} " if name else self.call) + arguments
                self._take(arguments, tokens)
            case CallDone():
                pass
            case ToolDone():
                self.tools += 1
                self.call = ""
            case Queued() | Progress() | Prefill():
                self.work = work(event)
            case Finish():
                pass

    def _take(self, text: str, tokens: tuple[Token, ...]) -> None:
        if not self.tokens and tokens:
            self.since = time.monotonic()
        self.tokens += len(tokens)
        self.text_bytes += len(text.encode("utf-8", "replace"))
        # A token is at least `"1||-1|1|1|", `, an alternative `|1||-1`.
        self.json_bytes += sum(
            14 + len(t.bytes) + sum(6 + len(a.bytes) for a in t.top) for t in tokens
        )

    def tps(self) -> float:
        """Tokens a second since the first one; 0 while it is too early to tell."""
        seconds = time.monotonic() - self.since
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0.2 else 0.0
