"""A reply: the result of one stream of events, and its JSON form.

`Reply.from_dict` reads a reply from a saved notebook, whose content is not trusted. The view
methods call the implementation that the ui layer registers at `extension_points.VIEWS`.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast, get_args

from ..events import (
    FinishReason,
    Message,
    Sampling,
    Timings,
    Token,
    ToolCall,
    ToolRecord,
    ToolSpec,
    Usage,
    mend,
)
from ..extension_points import VIEWS
from ..json_types import JsonObject
from ..prefix import common_prefix
from ..taps import Capture
from . import saved
from .json_values import to_json
from .origin import Origin
from .view_protocols import Bundle, LiveView, MimeTypes, TokenRow, TraceView, View, Views

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

VERSION = 1
MAX_BRANCH_DEPTH = 32
MAX_TOKENS = 1_000_000  # of one saved reply and all of its branches
MAX_SHARED = 16_000_000  # characters that its branches share, each counted as often as it is shared


class Records(tuple[ToolRecord, ...]):
    """What tools did, in order: a tuple of ToolRecord. Calling it shows it: `reply.trace()`."""

    __slots__ = ()

    def __call__(self) -> TraceView:
        """The tool calls by round as static HTML; `.to_json()` exports them."""
        return _views().trace(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a model, with every token and everything that was measured.

    >>> from llm_magic.llm import LLM
    >>> from llm_magic.providers.scripted import Scripted
    >>> reply = LLM(Scripted(["Paris is nice."])).complete("Where to go?")
    >>> reply.text, reply.finish_reason
    ('Paris is nice.', 'stop')
    >>> print(reply)
    Paris is nice.

    Attributes:
        text: The answer.
        reasoning: The model's thinking; "" if there is none.
        calls: Tool calls of the last round that nobody has answered.
        tokens: The kept tokens in order: of the answer, the reasoning and the calls.
        kinds: The stream of each token: "answer", "reasoning" or "call".
        finish_reason: Why the answer ended. None while it is written, and for a scored text.
        usage: Token counts.
        timings: Seconds and speeds.
        model: The model's name.
        prompt: The text that the model was given, template included; None when unknown.
        prompt_ids: The prompt as token ids; () when unknown.
        messages: What was asked, before the template; () when unknown.
        tools: The tools that were offered.
        sampling: The settings in effect, with the seed that was drawn where none was given.
        parsed: The Python value of constrained output; None when the output was cut off.
        choices: With `choices=[...]`, the probability of each whole choice; they sum to 1.
        trace: One record per tool call of all rounds; `reply.trace()` shows them.
        branches: Continuations from other tokens, oldest first, each as (position, Reply).
        answered_by: The server that answered and the model as it names it; "" for the model in
            this process.
        origin: The model's file, the code and the request, by which it can be generated again.
        capture: With `taps=...`, what was recorded inside the model; `.inspection` shows it. It is
            not saved.
    """

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    tokens: tuple[Token, ...] = ()
    kinds: tuple[str, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    model: str = ""
    prompt: str | None = None
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)
    messages: tuple[Message, ...] = field(default=(), repr=False, compare=False)
    tools: tuple[ToolSpec, ...] = field(default=(), repr=False, compare=False)
    sampling: Sampling = field(default_factory=Sampling)
    parsed: Any = None
    choices: Mapping[str, float] | None = None
    trace: Records = field(default_factory=Records)
    branches: tuple[tuple[int, "Reply"], ...] = ()
    answered_by: str = ""
    origin: Origin | None = field(default=None, repr=False, compare=False)
    capture: Capture | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Whatever sequence was given can be called like any other reply's.
        object.__setattr__(self, "trace", Records(self.trace))
        mend(self, "text", "reasoning", "model", "prompt", "parsed", "answered_by")

    def __str__(self) -> str:
        return self.text

    def _repr_llm_(self) -> str:
        """What a model reads where a reply is inserted into a prompt or returned by a tool."""
        return self.text

    @property
    def message(self) -> Message:
        """This reply as an assistant turn, without its reasoning.

        >>> Reply("Hi!", reasoning="Greet back.").message.text
        'Hi!'
        """
        return Message("assistant", self.text or None, self.reasoning, self.calls)

    @property
    def continuation(self) -> str:
        """The answer's text behind the tokens that it was given (`given`, --prefill, a branch).

        >>> from llm_magic.events import Token
        >>> given = Token(1, b"Rome", None, None, forced=True)
        >>> drawn = Token(2, b" is old.", -0.5, 1)
        >>> Reply("Rome is old.", tokens=(given, drawn), kinds=("answer",) * 2).continuation
        ' is old.'
        """
        pairs = zip(self.tokens, self.kinds, strict=False)
        given = b"".join(t.bytes for t, kind in pairs if t.forced and kind == "answer")
        return self.text.removeprefix(given.decode("utf-8", "replace"))

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the tokens that have one, in nats; None without any.

        >>> Reply("ab", tokens=(Token(0, b"a", -1.0, 1), Token(1, b"b", -3.0, 2))).mean_logprob
        -2.0
        """
        known = [t.logprob for t in self.tokens if t.logprob is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def perplexity(self) -> float | None:
        """exp(-mean_logprob); None without any known log-probability.

        >>> Reply("a", tokens=(Token(0, b"a", -math.log(2), 1),)).perplexity
        2.0
        """
        mean = self.mean_logprob
        return None if mean is None else math.exp(min(-mean, 700.0))

    def to_dict(self, prompt: bool = True, max_tokens: int | None = None) -> JsonObject:
        """The reply as JSON values (no NaN, no infinity); `from_dict` reads it back.

        A branch holds only what it does not share with the reply that it left.

        >>> data = Reply("Hi!", model="smollm2").to_dict()
        >>> data["version"], data["text"], data["model"]
        (1, 'Hi!', 'smollm2')

        Args:
            prompt: Include the prompt's text.
            max_tokens: Most token records in all, branches included; a reply or a branch that does
                not fit into what is left is written without its tokens.
        """
        return _reply_out(self, prompt, [sys.maxsize if max_tokens is None else max_tokens])

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> "Reply":
        """The reply of `to_dict`, or of JSON from a file; the input is not trusted.

        >>> Reply.from_dict(Reply("Hi!").to_dict()).text
        'Hi!'

        Raises:
            ValueError: The data is no saved reply; the message says what is wrong with it.
        """
        return _reply_in(data, None, [MAX_TOKENS, MAX_SHARED])

    # ------------------------------------------------------------------ views

    def _repr_mimebundle_(
        self, include: MimeTypes = None, exclude: MimeTypes = None
    ) -> tuple[Bundle, Bundle]:
        return _views().mimebundle(self, include, exclude)

    def heatmap(self, *, opened: bool = True) -> View:
        """Every token shaded by its probability, as static HTML with a legend and a table.

        >>> from llm_magic.events import Token
        >>> run = (Token(0, b"A", -0.01, 1), Token(1, b" cat", -2.0, 5))
        >>> "14%" in Reply("A cat", tokens=run).heatmap().html
        True

        Args:
            opened: Show it unfolded.
        """
        return _views().heatmap(self, opened=opened)

    def alternatives(self, i: int) -> View:
        """What else the model might have said at token `i`, most likely first.

        >>> from llm_magic.events import Token, Top
        >>> cat = Token(1, b" cat", -1.2, 2, (Top(7, b" dog", -0.5), Top(1, b" cat", -1.2)))
        >>> print(repr(Reply(" cat", tokens=(cat,)).alternatives(0)))
        token 0 · entropy at least 1.28 bits
          ␣dog                   61%   −0.50
        → ␣cat                   30%   −1.20

        Args:
            i: Position in `tokens`; a negative one counts from the end.

        Raises:
            IndexError: There is no such token.
        """
        return _views().alternatives(self, i)

    def choice_bars(self) -> View:
        """The probability of each whole choice as bars; needs `choices=[...]` in the request.

        >>> print(repr(Reply("yes", choices={"yes": 0.75, "no": 0.25}).choice_bars()))
        → yes   75%  ███████████████
          no    25%  █████
        """
        return _views().choice_bars(self)

    def plot(
        self, what: str = "speed", ax: "Axes | None" = None, dark: bool | None = None
    ) -> "Axes":
        """A plot over the reply, as matplotlib Axes.

        Args:
            what: "speed" (tokens a second over time), or over the tokens: "probability",
                "entropy" (needs recorded alternatives) or "rank".
            ax: Axes to draw on; None makes a figure that a notebook shows.
            dark: Colours for dark pages (True) or light ones (False). None: matplotlib's own
                settings where you changed them, else a transparent figure that suits both.

        Raises:
            ValueError: `what` is none of these.
        """
        return _views().plot(self, what, ax, dark)

    def prompt_view(self) -> View:
        """The request: its messages, its tools, and the prompt as the model saw it.

        >>> print(repr(Reply("4", prompt="2+2=").prompt_view()))
        2+2=
        """
        return _views().prompt_view(self)

    def to_frame(self) -> "DataFrame | list[TokenRow]":
        """One row per token: a pandas DataFrame, or a list of dicts where pandas is missing."""
        return _views().to_frame(self)

    def branch(self, i: int, alternative: str | int | None = None, **options: object) -> "Reply":
        """Continue from another token at position `i`; the result has it in `branches`.

        The model must be loaded. The tokens before `i` come from its KV cache.

        Args:
            i: Position in `tokens`; a negative one counts from the end.
            alternative: n >= 1 for the n-th most likely token recorded there, the text of one, or
                None for the most likely one that the reply did not take.
            options: As for `LLM.stream`, for example `temperature=0` or `max_tokens=50`.

        Raises:
            RequestError: There is no such token or alternative, the reply took that one itself, or
                its constraint forbids it.
            NotLoadedError: The model is not loaded.
        """
        return _views().branch(self, i, alternative, **options)

    @property
    def inspection(self) -> Any:
        """What was recorded inside the model, as an `inside.inspection.Inspection`.

        Raises:
            RequestError: Nothing was recorded: ask with `taps=...`.
        """
        return _views().inspection(self)

    def causes(self, of: Any = "answer", parts: str = "sentences", **options: Any) -> Any:
        """What in the prompt made the answer likely, by leaving each part out.

        Each part of the prompt is left out once, and the change of the log-probability of what was
        said is measured. The model must be loaded.

        Args:
            of: "answer", or (first, last + 1) of its tokens.
            parts: How the prompt is cut: "sentences", "messages" or "tokens".
            options: `llm`: the model; None: the loaded one of the reply's name.

        Returns:
            An `inside.causes.Causes`: the parts with their changes, in nats; displays as the shaded
            prompt.

        Raises:
            RequestError: The prompt is not known, or cannot be cut so.
            NotLoadedError: The model is not loaded.
        """
        return _views().causes(self, of, parts, **options)

    def explore(self, **options: object) -> LiveView["Reply"]:
        """The interactive view: hover, move with the keyboard, branch.

        Args:
            options: Sampling settings of the branches that are made in it.
        """
        return _views().explore(self, **options)


def _views() -> Views[Reply]:
    views: Views[Reply] = VIEWS.load()
    return views


# ----------------------------------------------------------------------------- JSON


def _reply_out(
    reply: Reply,
    prompt: bool,
    room: list[int],
    origin: tuple[Reply, int] | None = None,
    depth: int = 0,
) -> JsonObject:
    """The JSON of a reply.

    room: how many token records may still be written; one number, counted down. origin: for a
    branch the reply that it left and the position, if that reply's tokens are written.
    """
    out: JsonObject = {"version": VERSION}
    base, at = origin if origin is not None and _shares(reply, *origin) else (None, 0)
    out |= _said_out(reply, base, at) | _measured_out(reply, base)
    written = len(reply.tokens) - at <= room[0]
    if written:
        room[0] -= len(reply.tokens) - at
        out["tokens"] = [saved.token_out(t) for t in reply.tokens[at:]]
        out["kinds"] = saved.runs(reply.kinds[at:])
    if prompt and reply.prompt is not None:
        out["prompt"] = reply.prompt
    if reply.parsed is not None:
        out["parsed"] = to_json(reply.parsed)
    if reply.choices is not None:
        out["choices"] = {text: round(p, 6) for text, p in reply.choices.items()}
    if reply.trace:
        out["trace"] = [_record_out(record) for record in reply.trace]
    if reply.branches and depth < MAX_BRANCH_DEPTH:
        out["branches"] = [
            [at, _reply_out(branch, False, room, (reply, at) if written else None, depth + 1)]
            for at, branch in reply.branches
        ]
    return out


def _said_out(reply: Reply, base: Reply | None, at: int) -> JsonObject:
    out: JsonObject = {}
    text, reasoning = reply.text, reply.reasoning
    if base is not None:
        cuts = [common_prefix(text, base.text), common_prefix(reasoning, base.reasoning)]
        out["shared"] = [at, *cuts]
        text, reasoning = text[cuts[0] :], reasoning[cuts[1] :]
    if base is None or base.model != reply.model:
        out["model"] = reply.model
    out["text"] = text
    if reasoning:
        out["reasoning"] = reasoning
    if reply.answered_by:
        out["answered_by"] = reply.answered_by
    if reply.calls:
        out["calls"] = [saved.call_out(call) for call in reply.calls]
    return out


def _record_out(record: ToolRecord) -> JsonObject:
    out = {k: to_json(v) for k, v in asdict(record).items()}
    return out | {"call": saved.call_out(record.call)}


def _measured_out(reply: Reply, base: Reply | None) -> JsonObject:
    """Of a branch only what differs from the reply `base` that it left, and is not zero."""
    times = {k: round(v, 4) for k, v in asdict(reply.timings).items()}
    out: JsonObject = {"finish_reason": reply.finish_reason, "usage": asdict(reply.usage)}
    out["timings"] = {k: v for k, v in times.items() if v or base is None}
    if base is None or base.sampling != reply.sampling:
        out["sampling"] = {k: v for k, v in asdict(reply.sampling).items() if v is not None}
    return out


def _shares(branch: Reply, parent: Reply, at: int) -> bool:
    """Are the first `at` tokens those of the reply that the branch left, given to it?"""
    if not 0 < at <= min(len(branch.tokens), len(parent.tokens)):
        return False
    given = all(
        a.forced and replace(a, at=0.0) == replace(b, at=0.0, forced=True)
        for a, b in zip(branch.tokens[:at], parent.tokens[:at], strict=True)
    )
    return given and branch.kinds[:at] == parent.kinds[:at]


def _reply_in(value: object, parent: Reply | None, room: list[int], depth: int = 0) -> Reply:
    """The reply of JSON from a file.

    parent: the reply that a branch left. room: how many tokens may still come, shared ones
    included, and how many shared characters, so that a small file cannot become a huge reply.
    """
    data = saved.object_in(value, "the data")
    if data.get("version") != VERSION:
        raise saved.fail(f"version {data.get('version')!r}, this release reads version {VERSION}")
    if depth > MAX_BRANCH_DEPTH:
        raise saved.fail("branches are nested too deeply")
    before = _shared_in(data.get("shared"), parent, room)
    own = tuple(saved.token_in(row) for row in saved.list_in(data.get("tokens", []), "tokens"))
    # A branch without tokens of its own was too long to be saved: half of it would be no reply.
    tokens = (*before.tokens, *own) if "tokens" in data else ()
    room[0] -= len(tokens)
    if room[0] < 0:
        raise saved.fail("too many tokens")
    kinds = saved.kinds_in(data.get("kinds", []), len(own))
    prompt = data.get("prompt", parent.prompt if parent else None)  # branches have the same
    reply = Reply(
        text=before.text + saved.text_in(data.get("text"), "text"),
        reasoning=before.reasoning + saved.text_in(data.get("reasoning", ""), "reasoning"),
        calls=tuple(map(saved.call_in, saved.list_in(data.get("calls", []), "calls"))),
        tokens=tokens,
        kinds=(*before.kinds, *kinds) if tokens else (),
        finish_reason=_reason_in(data.get("finish_reason")),
        usage=saved.usage_in(data.get("usage", {})),
        timings=saved.timings_in(data.get("timings", {})),
        model=saved.text_in(data.get("model", before.model), "model"),
        prompt=None if prompt is None else saved.text_in(prompt, "prompt"),
        sampling=saved.sampling_in(data["sampling"]) if "sampling" in data else before.sampling,
        parsed=data.get("parsed"),
        choices=saved.choices_in(data.get("choices")),
        answered_by=saved.text_in(data.get("answered_by", ""), "answered_by"),
        trace=Records(map(saved.trace_in, saved.list_in(data.get("trace", []), "trace"))),
    )
    branches = []
    for entry in saved.list_in(data.get("branches", []), "branches"):
        at, branch = saved.pair_in(entry, "a branch")
        position = saved.whole_in(at, "a branch position")
        branches.append((position, _reply_in(branch, reply, room, depth + 1)))
    return replace(reply, branches=tuple(branches))


def _reason_in(value: object) -> FinishReason | None:
    for reason in get_args(FinishReason):
        if value == reason:
            return cast(FinishReason, reason)
    if value is not None:
        raise saved.fail("an unknown finish reason")
    return None


def _shared_in(value: object, parent: Reply | None, room: list[int]) -> Reply:
    """What a branch shares with its parent: [tokens, characters of text, of reasoning]."""
    if value is None:
        return Reply("")
    if parent is None:
        raise saved.fail("only a branch can share")
    numbers = [saved.whole_in(n, "a shared length") for n in saved.list_in(value, "shared")]
    wholes = (parent.tokens, parent.text, parent.reasoning)
    if len(numbers) != 3 or any(not 0 <= n <= len(w) for n, w in zip(numbers, wholes, strict=True)):
        raise saved.fail("a branch shares more than there is")
    n, text, reasoning = numbers
    room[1] -= text + reasoning
    if room[1] < 0:
        raise saved.fail("branches share too much text")
    return Reply(
        parent.text[:text], parent.reasoning[:reasoning], kinds=parent.kinds[:n],
        tokens=tuple(replace(t, forced=True, at=0.0) for t in parent.tokens[:n]),
        model=parent.model, sampling=parent.sampling,
    )  # fmt: skip
