"""The seam between conversations and whatever generates text.

A `Request` goes down as a value, events come up through one `Stream`. The local engine and the
scripted fake implement `Provider`; nothing above this module knows which of them answers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

from .chat.stream import Stream as Stream
from .errors import LLMError, UnsupportedError
from .events import Constraint, Message, Piece, Sampling, Token, ToolSpec
from .taps import Edit, Inside, Taps

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Capability = Literal[
    "complete",
    "chat",
    "given",
    "logprobs",
    "tokenize",
    "score",
    "choices",
    "tools",
    "constraint",
    "embed",
    "rerank",
    "inspect",
]
# How the vectors of a text's tokens become one: their mean, the last or the first ("cls") of them,
# or not at all.
Pooling = Literal["mean", "last", "cls", "none"]
CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as the model gets it.

    Attributes:
        text: The prompt as text, markers of the chat template included.
        ids: The prompt as token ids; () where the provider has none.
        messages: The messages that were rendered; () for a text or ids.
        tools: The tools that the prompt offers.
        reasoning: Whether the answer may have a reasoning part.
        in_reasoning: Whether the prompt ends inside the reasoning part.
        calls: Whether the answer may have tool calls.
    """

    text: str
    ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    reasoning: bool = False
    in_reasoning: bool = False
    calls: bool = False

    @property
    def is_chat(self) -> bool:
        """Whether the answer is a turn of a chat, or continues a text."""
        return bool(self.messages) or self.reasoning or self.calls


Prompt = str | tuple[int, ...] | tuple[Message, ...] | RenderedPrompt


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate.

    Attributes:
        prompt: A text to continue, token ids, messages that the chat template renders, or a prompt
            that was rendered before.
        given: Tokens that the answer begins with. They are part of the reply, marked as forced;
            generation goes on behind the last one. A token without an id is a text: the provider
            cuts it into tokens (see `begins_with`).
        sampling: How to draw tokens.
        tools: Tools that the model may call.
        tool_choice: "auto", "none", "required" or the name of a tool.
        constraint: What the answer must be.
        logprobs: How many alternatives each token carries. None: none, and n >= 0 records them.
            The chosen token's own logprob and rank are recorded in both cases.
        echo: Whether the answer begins with the prompt.
        suffix: Text that follows the answer.
        thinking: Whether the model should reason; None: as its template does by default.
        template_kwargs: Further variables of the chat template.
        reuse: Whether a cached prefix is used. The tokens are the same either way.
        guess: Whether guesses at the next tokens are checked. The tokens are the same either way.
        trim: Whether the oldest exchanges are left out where the messages do not fit the window.
        edit: What is changed inside the model. An edited request shares no cache with others.
        taps: What is recorded inside the model.
        tool_syntax: How calls are written, a name of `chat.parsing.syntax.SYNTAXES`; None: as the
            chat template says.
    """

    prompt: Prompt
    given: tuple[Token, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    constraint: Constraint | None = None
    logprobs: int | None = None
    echo: bool = False
    suffix: str = ""
    thinking: bool | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    reuse: bool = True
    guess: bool = True
    trim: bool = False
    tool_syntax: str | None = None
    edit: tuple[Edit, ...] = ()
    taps: Taps | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the prompt; () where it is a text or ids."""
        if isinstance(self.prompt, RenderedPrompt):
            return self.prompt.messages
        return tuple(m for m in self.prompt if isinstance(m, Message))

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that the prompt offers: none to a text, and none where calls are refused."""
        if isinstance(self.prompt, RenderedPrompt):
            return self.prompt.tools
        return self.tools if self.messages and self.tool_choice != "none" else ()

    @property
    def needs(self) -> tuple[Capability, ...]:
        """What a provider must be able to do for this request.

        >>> Request("Once upon a time", logprobs=3).needs
        ('complete', 'logprobs')
        """
        wanted: tuple[tuple[Capability, bool], ...] = (
            ("chat" if self.messages else "complete", True),
            ("given", bool(self.given)),
            ("logprobs", self.logprobs is not None),
            ("tools", bool(self.tools)),
            ("constraint", self.constraint is not None),
            ("inspect", bool(self.edit) or self.taps is not None),
        )
        return tuple(name for name, needed in wanted if needed)


def begins_with(text: str) -> tuple[Token, ...]:
    """A text that an answer begins with, as the one token of `Request.given`.

    >>> [(token.id, token.bytes) for token in begins_with("Sure, ")]
    [(None, b'Sure, ')]
    """
    words = text.encode("utf-8", "replace")
    return (Token(None, words, None, None, forced=True),) if words else ()


@runtime_checkable
class Provider(Protocol):
    """A source of completions.

    A provider says with `capabilities` what it can do. `require` is called before anything else
    is, so a method of a missing capability only has to raise UnsupportedError too.
    """

    @property
    def model(self) -> str:
        """The model's name, for people."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What this provider can do."""

    @property
    def defaults(self) -> Sampling:
        """Sampling settings that belong to the model, for chats; what it leaves unset is ours."""

    @property
    def closed(self) -> bool:
        """Whether the model was unloaded."""

    def stream(self, request: Request) -> Stream:
        """Start generating. A RequestError is raised before anything is computed."""

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt of a request as the model gets it."""

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        """The tokens of a text.

        Args:
            text: The text.
            special: Whether texts of control tokens become control tokens.
            start: Whether the text starts a text, or goes on behind another one.
        """

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, without control tokens."""

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        """Each id with its logprob and rank behind the ids before it."""

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        """The natural log of each whole choice's probability behind the prompt."""

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        """Log-probabilities of the next token at each position, [len(ids), vocabulary]."""

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, truncate: bool = False
    ) -> "list[npt.NDArray[np.float32]]":
        """The vector of each text, not normalised: float32 [dim], [tokens, dim] where pooling is
        "none".

        Args:
            texts: The texts; none of them is empty.
            pooling: How the vectors of tokens become one; None: as the model was trained.
            truncate: Whether a text that does not fit the context is cut, with a ModelWarning.

        Raises:
            ContextOverflowError: A text does not fit and is not to be cut.
        """

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers the query, in the order of the documents.

        Greater is better; the scale is the model's own.
        """

    def status(self) -> object:
        """What is loaded and how busy it is."""

    def close(self) -> None:
        """Free the model. Idempotent."""


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """Whole choices behind one prompt, in the order in which they were asked for.

    Attributes:
        logprobs: The natural log of the probability of each choice: the sum over its tokens.
        tokens: How many tokens each choice has.
        ended: Whether the probability that the answer ends there counts too, because one choice is
            the beginning of another.
    """

    logprobs: tuple[float, ...]
    tokens: tuple[int, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Continuation:
    """Given tokens behind a context.

    Attributes:
        logprobs: The natural log of each token's probability behind everything before it.
        greedy: Whether each token is the most likely one at its place.
    """

    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def logprob(self) -> float:
        """The natural log of the probability of all tokens together."""
        return math.fsum(self.logprobs)


@runtime_checkable
class BatchScoring(Protocol):
    """A provider that scores many given texts side by side. Optional."""

    def score_batch(
        self, asked: Iterable[tuple[Request, Sequence[str]]]
    ) -> Iterator[ChoiceScores | LLMError]:
        """The scores of each prompt's choices, in order; an error takes the place of its own only.

        `asked` is read as the engine has room, so it may be endless. The bits of one prompt's
        scores do not depend on the other prompts.
        """

    def score_continuations(
        self, asked: Iterable[tuple[Sequence[int], Sequence[int]]]
    ) -> Iterator[Continuation | LLMError]:
        """The log-probability of each token of a continuation behind its context, as token ids.

        This is the log-likelihood of evaluation harnesses. Order and errors are as in
        `score_batch`; a context is never empty.
        """


@runtime_checkable
class Inspectable(Protocol):
    """A provider whose model can be looked into. Optional; capability "inspect"."""

    @property
    def inside(self) -> Inside:
        """The inside of the model."""


def inside_of(provider: Provider) -> Inside:
    """The inside of a provider's model.

    Raises:
        UnsupportedError: It cannot be looked into, like a remote model.
    """
    require(provider, "inspect")
    if not isinstance(provider, Inspectable):
        raise UnsupportedError("inspect")
    return provider.inside


def require(provider: Provider, *capabilities: Capability) -> None:
    """Raise UnsupportedError naming the first capability that the provider lacks."""
    for capability in capabilities:
        if capability not in provider.capabilities:
            raise unsupported(provider, capability)


def unsupported(provider: Provider, capability: Capability) -> UnsupportedError:
    """The error of a capability that a provider lacks. A provider of few says what it is for in an
    attribute `purpose`, which goes behind the sentence."""
    purpose = getattr(provider, "purpose", "")
    return UnsupportedError(
        capability, f"the provider of {provider.model!r} does not support {capability!r}{purpose}"
    )
