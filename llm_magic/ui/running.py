"""A stream so far, and what to say about it while it runs.

Comes in: events. Goes out: the text, what it will weigh, and words for work that has no text yet.
Cheap per event: nothing is rendered here. It must not know where it is shown.
"""

import time

from ..events import (
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
        self.line = ""  # what is being done while there is no text
        self.share: float | None = None  # of that, from 0 to 1

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
                self.line, self.share = describe(event)
            case Finish():
                pass

    def _take(self, text: str, tokens: tuple[Token, ...]) -> None:
        if not self.tokens and tokens:
            self.since = time.monotonic()
        self.tokens += len(tokens)
        self.text_bytes += len(text.encode("utf-8", "replace"))
        # A token is at least `"1\t\t-0.1\t1\t1\t", `, an alternative `\t1\t\t-0.1`.
        self.json_bytes += sum(
            20 + len(t.bytes) + sum(11 + len(a.bytes) for a in t.top) for t in tokens
        )

    def tps(self) -> float:
        seconds = time.monotonic() - self.since
        return (self.tokens - 1) / seconds if self.tokens > 1 and seconds > 0.2 else 0.0


def describe(event: Queued | Progress | Prefill) -> tuple[str, float | None]:
    """What is being done, in words, and how much of it is done (None: unknown)."""
    match event:
        case Queued(ahead):
            return (f"waiting for {ahead} other request{'s' * (ahead != 1)}", None)
        case Prefill(done, total, cached):
            known = f", {cached:,} of them cached" if cached else ""
            return (f"reading the prompt: {done:,} of {total:,} tokens{known}", _share(done, total))
        case Progress(stage, done, total):
            words = {"download": "downloading", "load": "loading", "compile": "compiling",
                     "weights": "reading the weights",
                     "wait": "waiting for the running cell"}.get(stage, stage)  # fmt: skip
            return (f"{words}{_amount(done, total)}", _share(done, total))


def _share(done: int, total: int) -> float | None:
    return min(1.0, done / total) if total else None


def _amount(done: int, total: int) -> str:
    """ ": 3 of 12", in megabytes where it can only be bytes; nothing where nothing is known."""
    if total <= 0 and done < 1e6:
        return ""
    if max(done, total) >= 1e6:
        mega = f": {done / 1e6:,.0f} MB"
        return f"{mega} of {total / 1e6:,.0f} MB" if total else mega
    return f": {done:,} of {total:,}"
