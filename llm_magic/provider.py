"""The one seam between conversations and whatever generates text.

A request goes down as a value, events come up as values, through one stream object. Local engine,
remote endpoint and the scripted fake all implement `Provider`; nothing above this line knows which.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from .events import Constraint, Event, Message, Piece, Sampling, Token, ToolSpec

if TYPE_CHECKING:
    import numpy as np

Prompt = str | tuple[int, ...] | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate.

    prompt: text to continue as it is, token ids, or messages that the chat template renders.
    logprobs: None = no alternatives are recorded; n >= 0 = each token carries its n most likely
        alternatives. The chosen token's own logprob and rank are recorded in both cases.
    reuse: take a cached prefix when there is one. The tokens are the same either way.
    guess: check guesses at the next tokens where that pays. The tokens are the same either way.
    trim: where messages do not fit the window, leave the oldest exchanges out instead of failing.
    tool_syntax: how calls are written (a name of chat/syntax.py); None = as the template says.
    """

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"  # auto | none | required | a tool's name
    constraint: Constraint | None = None
    logprobs: int | None = None
    echo: bool = False
    suffix: str = ""
    thinking: bool | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    reuse: bool = True
    guess: bool = True
    trim: bool = False
    tool_syntax: str | None = None

    @property
    def asked(self) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...]]:
        """The messages and the tools that they offer; both () where the prompt is text or ids."""
        if not (self.prompt and isinstance(self.prompt[0], Message)):
            return (), ()
        messages = cast("tuple[Message, ...]", self.prompt)
        return messages, self.tools if self.tool_choice != "none" else ()


@runtime_checkable
class Stream(Protocol):
    """Events of one request. Iterate on one thread; `cancel` and `close` are safe from any thread.

    The last event is `Finish`, exactly once; a failure raises from `__next__`, with `.partial`.
    """

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        """Stop soon; the stream still ends with Finish(reason). `keep`: how many tokens count."""

    def close(self) -> None:
        """Stop and forget: no further event comes. Idempotent."""

    def __enter__(self) -> "Stream": ...

    def __exit__(self, *exc: object) -> None: ...


@runtime_checkable
class Provider(Protocol):
    """A source of completions. A capability that is missing raises UnsupportedError naming it.

    capabilities: subset of {"chat", "complete", "logprobs", "tokenize", "score", "embed", "tools",
    "constraint", "reuse"}.
    """

    @property
    def model(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[str]: ...

    def stream(self, request: Request) -> Stream: ...

    def tokenize(self, text: str, special: bool = True) -> list[Piece]: ...

    def detokenize(self, ids: Sequence[int]) -> str: ...

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]: ...

    def logprobs(self, ids: Sequence[int]) -> "np.ndarray": ...  # float32 [len(ids), vocab]

    def embed(
        self, texts: Sequence[str], pooling: str = "mean", normalize: bool = True
    ) -> "np.ndarray": ...

    def status(self) -> Any: ...

    def close(self) -> None: ...
