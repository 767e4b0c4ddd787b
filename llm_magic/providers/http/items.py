"""What a server's stream consists of, in the order in which it came."""

from dataclasses import dataclass, field

from llm_magic.events import DeltaKind, FinishReason, Prefill, Timings, Token


@dataclass(frozen=True, slots=True)
class Text:
    """New text of the answer or of the reasoning, with what is known of its tokens."""

    kind: DeltaKind
    text: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a native tool call as the server sent it; what it left out is None.

    index: the server's number of the call, else its position in the list.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str
    tokens: tuple[Token, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the server ended the answer."""

    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's counts of tokens; 0 where one is missing."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Times:
    """What the server measured."""

    timings: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class Source:
    """Who answers: the address of the replica, and the model as it names it."""

    where: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompt as the server renders it, where it tells."""

    text: str
    ids: tuple[int, ...] = ()


Item = Text | CallPiece | Ended | Counts | Times | Source | Asked | Prefill
