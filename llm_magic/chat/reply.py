"""A reply: the fold of one stream's events, and its JSON form.

Comes in: events (or a dict from a saved notebook, which is not trusted). Goes out: a frozen Reply.
It must not know engines or how anything is drawn; the views that its methods offer live in the ui
layer and are looked up by name when they are first asked for.
"""

import importlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import ModuleType
from typing import Any, cast, get_args

from ..events import (
    CallDelta,
    CallDone,
    Delta,
    Event,
    Finish,
    FinishReason,
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
    mend,
)
from ..prefix import common_prefix
from . import saved
from .schema import to_json

VERSION = 1
MAX_BRANCH_DEPTH = 32
MAX_TOKENS = 1_000_000  # of one saved reply and all of its branches
MAX_SHARED = 16_000_000  # characters that its branches share, each counted as often as it is shared


class Records(tuple[ToolRecord, ...]):
    """What tools did, in order. Called, it is a view of that: `reply.trace()`."""

    __slots__ = ()

    def __call__(self) -> Any:
        """The tool calls, folded (static HTML); `.to_json()` exports them."""
        return _views().trace(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, and everything that was measured on the way.

    text: the answer. reasoning: the model's thinking, "" if none. calls: tool calls of the last
    round. tokens: the kept tokens in order (answer, reasoning and calls). prompt: the text that the
    model was given, template included; None when unknown. prompt_ids: the same as token ids.
    messages, tools: what was asked before the template, and what was offered; () when unknown.
    kinds: for each token the stream it belongs to ("answer", "reasoning" or "call").
    parsed: the Python value of constrained output; None when it was cut (see finish_reason).
    trace: one record per tool call of all rounds; `reply.trace()` shows them.
    branches: continuations from other tokens, oldest first, each (position, Reply).
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
    trace: Records = field(default_factory=Records)
    branches: tuple[tuple[int, "Reply"], ...] = ()

    def __post_init__(self) -> None:
        # Whatever sequence was given can be called like any other reply's.
        object.__setattr__(self, "trace", Records(self.trace))
        mend(self, "text", "reasoning", "model", "prompt", "parsed")

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> Message:
        """This reply as an assistant turn. Reasoning stays out of the content."""
        return Message("assistant", self.text or None, self.reasoning, self.calls)

    @property
    def mean_logprob(self) -> float | None:
        """Mean natural-log probability of the tokens that have one (nats); None without any."""
        known = [t.logprob for t in self.tokens if t.logprob is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def perplexity(self) -> float | None:
        """exp of minus the mean logprob. None without any known logprob."""
        mean = self.mean_logprob
        return None if mean is None else math.exp(min(-mean, 700.0))

    def to_dict(self, prompt: bool = True, max_tokens: int | None = None) -> dict[str, Any]:
        """A JSON-safe dict (no NaN, no infinity). See `from_dict`.

        A branch holds what it does not share with the reply that it left. prompt: include the
        prompt's text. max_tokens: the most token records in all, branches included; a reply or a
        branch that does not fit into what is left is written without its own.
        """
        return _reply_out(self, prompt, [sys.maxsize if max_tokens is None else max_tokens])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Reply":
        """The Reply of `to_dict`. The input is not trusted: ValueError says what is wrong."""
        return _reply_in(data, None, [MAX_TOKENS, MAX_SHARED])

    # ------------------------------------------------------------------ views (ui layer)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return _views().mimebundle(self, include, exclude)

    def heatmap(self, **options: Any) -> Any:
        """Every token shaded by its probability (static HTML)."""
        return _views().heatmap(self, **options)

    def alternatives(self, i: int) -> Any:
        """What else the model might have said at token i."""
        return _views().alternatives(self, i)

    def plot(self, ax: Any = None, dark: bool | None = None) -> Any:
        """Prefill and decode tokens a second over the time of this reply (matplotlib). dark:
        colours for dark pages; None: as matplotlib's settings say."""
        return _views().plot(self, ax, dark)

    def prompt_view(self) -> Any:
        """What was asked, message by message, and the prompt as the model saw it (static HTML)."""
        return _views().prompt_view(self)

    def to_frame(self) -> Any:
        """One row per token as a pandas DataFrame (a list of dicts without pandas)."""
        return _views().to_frame(self)

    def branch(self, i: int, alternative: Any = None, **options: Any) -> "Reply":
        """This reply, with what follows another token at i kept in its `branches`.

        alternative: n >= 1 for the n-th most likely token recorded there, the text of one, or None
        for the most likely other one; one that the reply took, or that its constraint forbids, is
        a RequestError. The model must be loaded; the common prefix comes from its KV cache.
        """
        return cast("Reply", _views().branch(self, i, alternative, **options))

    def explore(self, **options: Any) -> Any:
        """The live view: hover, keyboard, branching. Options: how branches are drawn."""
        return _views().explore(self, **options)


def _views() -> ModuleType:
    # The only upward reference of this layer, by name and on use: a reply offers its views, and the
    # ui layer alone knows how to draw them. Without a notebook nothing of it is imported.
    return importlib.import_module("llm_magic.ui.reply_methods")


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
    ) -> None:
        self._base = Reply(
            "", model=model, prompt=prompt, prompt_ids=tuple(prompt_ids), sampling=sampling,
            messages=messages, tools=tools,
        )  # fmt: skip
        self._text: dict[str, list[str]] = {"answer": [], "reasoning": []}
        self._tokens: list[Token] = []
        self._kinds: list[str] = []
        self._calls: list[ToolCall] = []
        self._trace: list[ToolRecord] = []
        self._prefill = Prefill(0, 0, 0)
        self._finish: Finish | None = None
        self.parsed: Any = None  # set by whoever knows the constraint

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
            finish_reason=finish.reason if finish else None,
            usage=finish.usage if finish else usage,
            timings=finish.timings if finish else Timings(),
        )


# ----------------------------------------------------------------------------- JSON


def _reply_out(
    reply: Reply,
    prompt: bool,
    room: list[int],
    left: tuple[Reply, int] | None = None,
    depth: int = 0,
) -> dict[str, Any]:
    """room: how many token records may still be written; one number, counted down. left: of a
    branch, the reply that it left and where, if that one's tokens are written."""
    out: dict[str, Any] = {"version": VERSION}
    base, at = left if left is not None and _shares(reply, *left) else (None, 0)
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
    if reply.trace:
        out["trace"] = [asdict(record) for record in reply.trace]
    if reply.branches and depth < MAX_BRANCH_DEPTH:
        out["branches"] = [
            [place, _reply_out(b, False, room, (reply, place) if written else None, depth + 1)]
            for place, b in reply.branches
        ]
    return out


def _said_out(reply: Reply, base: Reply | None, at: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
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
    if reply.calls:
        out["calls"] = [asdict(call) for call in reply.calls]
    return out


def _measured_out(reply: Reply, base: Reply | None) -> dict[str, Any]:
    """Of a branch only what differs from the reply `base` that it left, and is not zero."""
    times = {k: round(v, 4) for k, v in asdict(reply.timings).items()}
    out: dict[str, Any] = {"finish_reason": reply.finish_reason, "usage": asdict(reply.usage)}
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


def _reply_in(data: Any, parent: Reply | None, room: list[int], depth: int = 0) -> Reply:
    """parent: the reply that a branch left. room: how many tokens may still come, shared ones
    included, and how many shared characters, so that a small file cannot become a huge one."""
    data = saved.checked(data, Mapping, "the data")
    if data.get("version") != VERSION:
        raise saved.fail(f"version {data.get('version')!r}, this release reads version {VERSION}")
    if depth > MAX_BRANCH_DEPTH:
        raise saved.fail("branches are nested too deeply")
    reason = data.get("finish_reason")
    if reason is not None and reason not in get_args(FinishReason):
        raise saved.fail("an unknown finish reason")
    before = _shared_in(data.get("shared"), parent, room)
    own = tuple(
        saved.token_in(row) for row in saved.checked(data.get("tokens", []), list, "tokens")
    )
    # Without tokens of its own a branch was too long to be saved: half of it would be no reply.
    tokens = (*before.tokens, *own) if "tokens" in data else ()
    room[0] -= len(tokens)
    if room[0] < 0:
        raise saved.fail("too many tokens")
    kinds = saved.kinds_in(data.get("kinds", []), len(own))
    prompt = data.get("prompt", parent.prompt if parent else None)  # branches have the same
    found = Reply(
        text=before.text + saved.checked(data.get("text"), str, "text"),
        reasoning=before.reasoning + saved.checked(data.get("reasoning", ""), str, "reasoning"),
        calls=tuple(saved.call_in(c) for c in saved.checked(data.get("calls", []), list, "calls")),
        tokens=tokens,
        kinds=(*before.kinds, *kinds) if tokens else (),
        finish_reason=reason,
        usage=saved.record_in(Usage, data.get("usage", {}), "usage"),
        timings=saved.record_in(Timings, data.get("timings", {}), "timings"),
        model=saved.checked(data.get("model", before.model), str, "model"),
        prompt=None if prompt is None else saved.checked(prompt, str, "prompt"),
        sampling=saved.sampling_in(data["sampling"]) if "sampling" in data else before.sampling,
        parsed=data.get("parsed"),
        trace=Records(map(saved.trace_in, saved.checked(data.get("trace", []), list, "trace"))),
    )
    branches = []
    for entry in saved.checked(data.get("branches", []), list, "branches"):
        at, branch = saved.checked(entry, list, "a branch")
        place = saved.checked(at, int, "a branch position")
        branches.append((place, _reply_in(branch, found, room, depth + 1)))
    return replace(found, branches=tuple(branches))


def _shared_in(cuts: Any, parent: Reply | None, room: list[int]) -> Reply:
    """What a branch has of the reply that it left: [tokens, characters of text, of reasoning]."""
    if cuts is None:
        return Reply("")
    if parent is None:
        raise saved.fail("only a branch can share")
    numbers = [
        saved.checked(n, int, "a shared length") for n in saved.checked(cuts, list, "shared")
    ]
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
