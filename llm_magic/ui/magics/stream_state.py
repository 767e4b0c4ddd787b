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


class Running:
    """The text so far and what it costs to show it. Cheap per event: nothing is rendered here."""

    def __init__(self) -> None:
        self.answer: list[str] = []
        self.reasoning = ""
        self.call = ""
        self.tools = 0
        self.tokens = 0
        self.text_bytes = 0
        self.json_bytes = 0  # a lower bound of what the saved tokens will weigh
        self.since = 0.0
        self.work: Work | None = None  # what is being done while there is no text

    @property
    def empty(self) -> bool:
        return not (self.answer or self.reasoning or self.call or self.tools)

    def add(self, event: Event) -> None:
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
        seconds = time.monotonic() - self.since
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0.2 else 0.0
