"""A reply: the fold of one stream's events, and its JSON form.

Comes in: events (or a dict from a saved notebook, which is not trusted). Goes out: a frozen Reply.
It must not know engines or how anything is drawn; the views that its methods offer live in the ui
layer and are looked up by name when they are first asked for.
"""

import importlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
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
    Top,
    Usage,
)
from .schema import to_json

VERSION = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, and everything that was measured on the way.

    text: the answer. reasoning: the model's thinking, "" if none. calls: tool calls of the last
    round. tokens: the kept tokens in order (answer, reasoning and calls). prompt: the text that the
    model was given, template included; None when unknown. prompt_ids: the same as token ids.
    kinds: for each token the stream it belongs to ("answer", "reasoning" or "call").
    parsed: the Python value of constrained output; None when it was cut (see finish_reason).
    trace: one record per tool call of all rounds.
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
    sampling: Sampling = field(default_factory=Sampling)
    parsed: Any = None
    trace: tuple[ToolRecord, ...] = ()
    branches: tuple[tuple[int, "Reply"], ...] = ()

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

        prompt: include the prompt's text. max_tokens: leave token records out of longer replies.
        """
        keep = max_tokens is None or len(self.tokens) <= max_tokens
        out: dict[str, Any] = {"version": VERSION, "model": self.model, "text": self.text}
        if self.reasoning:
            out["reasoning"] = self.reasoning
        if self.calls:
            out["calls"] = [asdict(call) for call in self.calls]
        out["finish_reason"] = self.finish_reason
        out["usage"] = asdict(self.usage)
        out["timings"] = {k: round(v, 4) for k, v in asdict(self.timings).items()}
        out["sampling"] = {k: v for k, v in asdict(self.sampling).items() if v is not None}
        if keep:
            out["tokens"] = [_token_out(t) for t in self.tokens]
            out["kinds"] = _runs(self.kinds)
        if prompt and self.prompt is not None:
            out["prompt"] = self.prompt
        if self.parsed is not None:
            out["parsed"] = to_json(self.parsed)
        if self.trace:
            out["trace"] = [asdict(record) for record in self.trace]
        if self.branches:
            out["branches"] = [[at, b.to_dict(False, max_tokens)] for at, b in self.branches]
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Reply":
        """The Reply of `to_dict`. The input is not trusted: ValueError says what is wrong."""
        return _reply_in(data, depth=0)

    # ------------------------------------------------------------------ views (ui layer)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return _views().mimebundle(self, include, exclude)

    def heatmap(self, **options: Any) -> Any:
        """Every token shaded by its probability (static HTML)."""
        return _views().heatmap(self, **options)

    def alternatives(self, i: int) -> Any:
        """What else the model might have said at token i."""
        return _views().alternatives(self, i)

    def plot(self, ax: Any = None) -> Any:
        """Prefill and decode tokens a second over the time of this reply (matplotlib)."""
        return _views().plot(self, ax=ax)

    def trace_view(self) -> Any:
        """The tool calls of this reply, folded (static HTML)."""
        return _views().trace(self)

    def prompt_view(self) -> Any:
        """The prompt as the model saw it (static HTML)."""
        return _views().prompt_view(self)

    def to_frame(self) -> Any:
        """One row per token as a pandas DataFrame (a list of dicts without pandas)."""
        return _views().to_frame(self)

    def branch(self, i: int, alternative: Any = None, **options: Any) -> "Reply":
        """This reply, with what follows another token at i kept in its `branches`.

        alternative: a token's id or text, or None for the most likely other one. The model must be
        loaded; the common prefix comes from its KV cache.
        """
        return cast("Reply", _views().branch(self, i, alternative, **options))

    def explore(self, **options: Any) -> Any:
        """The live view: hover, keyboard, branching. Options: how branches are drawn."""
        return _views().explore(self, **options)


def _views() -> ModuleType:
    # The only upward reference of this layer, by name and on use: a reply offers its views, and the
    # ui layer alone knows how to draw them. Without a notebook nothing of it is imported.
    return importlib.import_module("llm_magic.ui.views")


class Fold:
    """Events in, Reply out. `reply()` may be asked for at any time: it is the partial so far."""

    def __init__(
        self,
        model: str = "",
        prompt: str | None = None,
        prompt_ids: Sequence[int] = (),
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    ) -> None:
        self._base = Reply(
            "", model=model, prompt=prompt, prompt_ids=tuple(prompt_ids), sampling=sampling
        )
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
            trace=tuple(self._trace),
            parsed=self.parsed,
            finish_reason=finish.reason if finish else None,
            usage=finish.usage if finish else usage,
            timings=finish.timings if finish else Timings(),
        )


# ----------------------------------------------------------------------------- JSON, outwards


def _text_out(data: bytes) -> str:
    """Text as inside JSON quotes (no raw tab can remain); bytes that are no text as \\x and hex."""
    try:
        return json.dumps(data.decode(), ensure_ascii=False)[1:-1]
    except UnicodeDecodeError:
        return r"\x" + data.hex()


def _number_out(x: float | None, digits: int) -> str:
    return "" if x is None or not math.isfinite(x) else f"{x:.{digits}f}".rstrip("0").rstrip(".")


def _token_out(t: Token) -> str:
    """One token as a line of fields between tabs.

    id, text, logprob, rank, milliseconds, flags, then id, text, logprob of each alternative (with
    "!" behind it when it was forbidden). Flags: t trimmed, f forced, m and a number: the masked
    share. One string, since a notebook file puts every item of a list on a line of its own: as
    lists, the records would be four times as long.
    """
    flags = "t" * t.trimmed + "f" * t.forced
    flags += "" if t.masked is None else f"m{t.masked:.6f}"
    row = [_id_out(t.id), _text_out(t.bytes), _number_out(t.logprob, 4), _id_out(t.rank)]
    row += [str(round(t.at * 1000)), flags]
    for a in t.top:
        row += [_id_out(a.id), _text_out(a.bytes)]
        row.append(_number_out(a.logprob, 3) + "!" * (not a.allowed))
    return "\t".join(row)


def _id_out(i: int | None) -> str:
    return "" if i is None else str(i)


def _runs(kinds: Sequence[str]) -> list[list[Any]]:
    """Run lengths: [["answer", 12], ["call", 30]]."""
    out: list[list[Any]] = []
    for kind in kinds:
        if out and out[-1][0] == kind:
            out[-1][1] += 1
        else:
            out.append([kind, 1])
    return out


# ----------------------------------------------------------------------------- JSON, inwards

MAX_BRANCH_DEPTH = 8
MAX_TOKEN_TEXT = 100_000


def _fail(what: str) -> ValueError:
    return ValueError(f"not a saved reply: {what}")


def _is(value: Any, kind: type | tuple[type, ...], what: str) -> Any:
    # bool is an int to isinstance, but never a count or a logprob.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _fail(f"{what} is a {type(value).__name__}")
    return value


def _number_in(value: Any, what: str) -> float | None:
    if value is None:
        return None
    number = float(_is(value, (int, float), what))
    if not math.isfinite(number):
        raise _fail(f"{what} is not finite")
    return number


def _bytes_in(text: str) -> bytes:
    try:
        if text.startswith(r"\x"):
            return bytes.fromhex(text[2:])
        return str(json.loads(f'"{text}"')).encode("utf-8", "replace")
    except ValueError:
        raise _fail("the text of a token is neither text nor hex bytes") from None


def _field_in(text: str, kind: type[int] | type[float], what: str) -> Any:
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        raise _fail(f"{what} is not a number") from None
    return _number_in(value, what) if kind is float else value


def _top_in(id_: str, text: str, logprob: str) -> Top:
    allowed = not logprob.endswith("!")
    value = _field_in(logprob.removesuffix("!"), float, "a logprob")
    return Top(_field_in(id_, int, "a token id"), _bytes_in(text), value, allowed)


_FLAGS = re.compile(r"(t?)(f?)(?:m([0-9.]+))?")


def _token_in(text: Any) -> Token:
    if len(_is(text, str, "a token")) > MAX_TOKEN_TEXT:
        raise _fail("a token record is too long")
    row = text.split("\t")
    flags = _FLAGS.fullmatch(row[5]) if len(row) >= 6 else None
    if flags is None or len(row) % 3:
        raise _fail("a token record has wrong fields")
    return Token(
        id=_field_in(row[0], int, "a token id"),
        bytes=_bytes_in(row[1]),
        logprob=_field_in(row[2], float, "a logprob"),
        rank=_field_in(row[3], int, "a rank"),
        at=(_field_in(row[4], int, "a time") or 0) / 1000,
        top=tuple(_top_in(*row[i : i + 3]) for i in range(6, len(row), 3)),
        masked=_field_in(flags[3] or "", float, "a masked share"),
        trimmed=bool(flags[1]),
        forced=bool(flags[2]),
    )


def _kinds_in(runs: Any, n: int) -> tuple[str, ...]:
    out: list[str] = []
    for run in _is(runs, list, "kinds"):
        if not (
            isinstance(run, list) and len(run) == 2 and run[0] in ("answer", "reasoning", "call")
        ):
            raise _fail("kinds are not runs")
        if not 0 <= _is(run[1], int, "a run length") <= n - len(out):
            raise _fail("kinds are longer than the tokens")
        out.extend([run[0]] * run[1])
    return tuple(out)


def _record_in(cls: Any, data: Any, what: str) -> Any:
    """A flat dataclass of numbers; unknown keys of newer versions are ignored."""
    data = _is(data, Mapping, what)
    values = {f.name: data[f.name] for f in fields(cls) if f.name in data}
    for name, value in values.items():
        number = _number_in(value, f"{what}.{name}")
        if number is None or number < 0:
            raise _fail(f"{what}.{name} is not a positive number")
        values[name] = int(number) if cls is Usage else number
    return cls(**values)


def _call_in(data: Any) -> ToolCall:
    data = _is(data, Mapping, "a call")
    return ToolCall(*(_is(data.get(k), str, f"call.{k}") for k in ("id", "name", "arguments")))


def _trace_in(data: Any) -> ToolRecord:
    data = _is(data, Mapping, "a tool record")
    texts = {k: _is(data.get(k), str, f"trace.{k}") for k in ("approval", "status", "result")}
    error = data.get("error")
    return ToolRecord(
        round=_is(data.get("round"), int, "trace.round"),
        call=_call_in(data.get("call")),
        arguments=data.get("arguments"),
        seconds=_number_in(data.get("seconds"), "trace.seconds") or 0.0,
        stdout=_is(data.get("stdout", ""), str, "trace.stdout"),
        error=None if error is None else _is(error, str, "trace.error"),
        **texts,
    )


_WHOLE_NUMBERS = ("top_k", "repeat_last_n", "seed", "max_tokens", "min_tokens")


def _sampling_in(data: Any) -> Sampling:
    data = _is(data, Mapping, "sampling")
    values: dict[str, Any] = {}
    for f in fields(Sampling):
        value = data.get(f.name)
        if value is None:
            continue
        if f.name == "stop":
            values["stop"] = tuple(
                _is(s, str, "a stop string") for s in _is(value, (list, tuple), "stop")
            )
        elif f.name == "mirostat":
            tau, eta = _is(value, (list, tuple), "mirostat")
            values["mirostat"] = (_number_in(tau, "tau") or 0.0, _number_in(eta, "eta") or 0.0)
        elif f.name == "logit_bias":
            values["logit_bias"] = tuple(
                (_is(k, (int, str), "a biased token"), _number_in(v, "a bias") or 0.0)
                for k, v in _is(value, (list, tuple), "logit_bias")
            )
        else:
            values[f.name] = _is(value, int if f.name in _WHOLE_NUMBERS else (int, float), f.name)
    return Sampling(**values)


def _reply_in(data: Any, depth: int) -> Reply:
    data = _is(data, Mapping, "the data")
    if data.get("version") != VERSION:
        raise _fail(f"version {data.get('version')!r}, this release reads version {VERSION}")
    if depth > MAX_BRANCH_DEPTH:
        raise _fail("branches are nested too deeply")
    reason = data.get("finish_reason")
    if reason is not None and reason not in get_args(FinishReason):
        raise _fail("an unknown finish reason")
    tokens = tuple(_token_in(row) for row in _is(data.get("tokens", []), list, "tokens"))
    prompt = data.get("prompt")
    branches = []
    for entry in _is(data.get("branches", []), list, "branches"):
        at, branch = _is(entry, list, "a branch")
        branches.append((_is(at, int, "a branch position"), _reply_in(branch, depth + 1)))
    return Reply(
        text=_is(data.get("text"), str, "text"),
        reasoning=_is(data.get("reasoning", ""), str, "reasoning"),
        calls=tuple(_call_in(c) for c in _is(data.get("calls", []), list, "calls")),
        tokens=tokens,
        kinds=_kinds_in(data.get("kinds", []), len(tokens)),
        finish_reason=reason,
        usage=_record_in(Usage, data.get("usage", {}), "usage"),
        timings=_record_in(Timings, data.get("timings", {}), "timings"),
        model=_is(data.get("model", ""), str, "model"),
        prompt=None if prompt is None else _is(prompt, str, "prompt"),
        sampling=_sampling_in(data.get("sampling", {})),
        parsed=data.get("parsed"),
        trace=tuple(_trace_in(r) for r in _is(data.get("trace", []), list, "trace")),
        branches=tuple(branches),
    )
