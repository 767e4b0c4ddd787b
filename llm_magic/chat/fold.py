"""Events of one stream become a `Reply`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
    Sampling,
    Timings,
    Token,
    ToolCall,
    ToolDone,
    ToolRecord,
    ToolSpec,
    Usage,
)
from ..taps import Capture
from .origin import Origin
from .reply import Records, Reply

if TYPE_CHECKING:
    pass


class Fold:
    """Events in, Reply out. `reply()` may be asked for at any time: it is the partial so far."""

    def __init__(
        self,
        model: str = "",
        prompt: str | None = None,
        prompt_ids: Sequence[int] = (),
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        messages: tuple[Message, ...] = (),
        tools: tuple[ToolSpec, ...] = (),
        origin: Origin | None = None,
    ) -> None:
        self._base = Reply(
            "", model=model, prompt=prompt, prompt_ids=tuple(prompt_ids), sampling=sampling,
            messages=messages, tools=tools, origin=origin,
        )  # fmt: skip
        self._text: dict[str, list[str]] = {"answer": [], "reasoning": []}
        self._tokens: list[Token] = []
        self._kinds: list[str] = []
        self._calls: list[ToolCall] = []
        self._trace: list[ToolRecord] = []
        self._prefill = Prefill(0, 0, 0)
        self._finish: Finish | None = None
        # Set by the caller that knows the constraint.
        self.parsed: Any = None
        self.choices: Mapping[str, float] | None = None
        # Makes what was recorded inside the model, from the tokens of the answer.
        self.record: Callable[[Sequence[Token]], Capture] | None = None
        self.answered_by = ""  # by the caller that knows the server

    def asked(self, prompt: str, prompt_ids: Sequence[int]) -> None:
        """The prompt, where it becomes known only after the stream was opened."""
        self._base = replace(self._base, prompt=prompt, prompt_ids=tuple(prompt_ids))

    def add(self, event: Event) -> None:
        match event:
            case Delta(kind, text, tokens):
                self._text[kind].append(text)
                self._take(tokens, kind)
            case CallDelta(tokens=tokens):
                self._take(tokens, "call")
            case CallDone(call=call):
                self._calls.append(call)
            case ToolDone(record):
                self._trace.append(record)
                self._calls.clear()  # answered: only calls of the last round stay open
            case Prefill():
                self._prefill = event
            case Finish():
                self._finish = event
            case Queued() | Progress():
                pass

    def _take(self, tokens: tuple[Token, ...], kind: str) -> None:
        self._tokens.extend(tokens)
        self._kinds.extend([kind] * len(tokens))

    @property
    def text(self) -> str:
        return "".join(self._text["answer"])

    def reply(self) -> Reply:
        finish = self._finish
        usage = Usage(self._prefill.total, self._prefill.cached, len(self._tokens))
        return replace(
            self._base,
            text=self.text,
            reasoning="".join(self._text["reasoning"]),
            calls=tuple(self._calls),
            tokens=tuple(self._tokens),
            kinds=tuple(self._kinds),
            trace=Records(self._trace),
            parsed=self.parsed,
            choices=self.choices,
            capture=self.record(self._tokens) if self.record and finish else None,
            finish_reason=finish.reason if finish else None,
            usage=finish.usage if finish else usage,
            timings=finish.timings if finish else Timings(),
            answered_by=self.answered_by,
        )
