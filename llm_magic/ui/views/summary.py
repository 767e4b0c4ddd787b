"""A reply in one line of plain text: model, counts, speeds, why it ended."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from llm_magic.chat.reply import Records, Reply
from llm_magic.events import Timings, Token, ToolRecord, Usage
from llm_magic.utf8 import whole

FEW = 16  # new prompt tokens below which their speed is not shown
MAX_CALL = 2_000  # characters of a call on one line
CUT = "cut off at the token limit"  # what `length` means to a person


def numbers(reply: Reply, note: str = "") -> str:
    """The line below an answer: model, tokens, speeds, seed, why it ended.

    >>> numbers(Reply("Hi", model="smollm2", usage=Usage(12, 0, 2), finish_reason="stop"))
    'smollm2 · 12 prompt tokens · 2 tokens · stop'
    """
    return " · ".join(parts(reply, note))


def parts(reply: Reply, note: str = "", prepared: str = "") -> list[str]:
    """The same as a list.

    Args:
        note: Stands where the reason of the end would.
        prepared: How long downloading, loading and compiling took, in words (see
            `progress.Stages`); "" takes the time that the reply itself knows.
    """
    usage, timings = reply.usage, reply.timings
    prompt = f"{usage.prompt:,} prompt tokens"
    if held := cached(usage):
        prompt += f" ({held:,} cached + {usage.prompt - held:,} new)"
    loaded = f"loaded in {timings.load:.1f} s" if timings.load else ""
    found = (
        model_name(reply.model),
        _server(reply),
        prepared or loaded,
        prompt if usage.prompt else "",
        counted(usage.completion, "token"),
        speed("prefill", prefill_tps(reply)),
        speed("decode", timings.decode_tps),
        _seed(reply),
        "called no tool" if _passed(reply) else "",
        note or ended(reply.finish_reason or ""),
    )
    return [part for part in found if part]


def prefill_tps(reply: Reply) -> float:
    """Prompt tokens read a second; 0 where too few were new for a speed.

    Behind a cached prompt the one new token costs a whole step, which says nothing about reading.
    """
    usage = reply.usage
    few = usage.prompt > 0 and usage.prompt - cached(usage) < FEW
    return 0.0 if few else reply.timings.prefill_tps


def _server(reply: Reply) -> str:
    """Which server answered, where the model's name does not say it."""
    where = urlsplit(reply.answered_by).netloc
    return f"by {where}" if where and where not in reply.model else ""


def _seed(reply: Reply) -> str:
    """What repeats the answer: the seed, unless the settings leave nothing to chance."""
    sampling = reply.sampling
    if sampling.seed is None or sampling.temperature == 0 or not reply.tokens:
        return ""
    return f"seed {sampling.seed}"


def cut_hint(reply: Reply) -> str:
    """Why constrained output has no Python value; "" where it has one or was not constrained."""
    bound = reply.choices is not None or any(t.masked is not None for t in reply.tokens)
    if reply.finish_reason != "length" or reply.parsed is not None or not bound:
        return ""
    if reply.tools and not reply.text.lstrip().startswith(("{", "[", '"')):
        return ""  # it was held back from calls, not held to a form
    return "reply.parsed is None: the output was cut off. Allow more tokens with -n (max_tokens)."


def cached(usage: Usage) -> int:
    """How many tokens of the prompt came from the cache. A branch finds those there, too, that it
    was given: they are no part of its prompt."""
    return min(usage.cached, usage.prompt)


def counted(n: int, thing: str) -> str:
    """A number of things in words.

    >>> counted(1, "token"), counted(1200, "token")
    ('1 token', '1,200 tokens')
    """
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def setting(value: object) -> str:
    """A setting's value as people type it.

    >>> setting(0.0), setting(0.7), setting(40)
    ('0', '0.7', '40')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def meter(share: float, width: int = 20) -> str:
    """A bar of block characters; a share of 1 is `width` blocks.

    >>> meter(0.5, 4), meter(0.03, 4), meter(0.0)
    ('██', '▏', '')
    """
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0 and not eighths:
        eighths = 1  # a small share is not none
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def speed(what: str, tps: float) -> str:
    """ "decode 143 tok/s", or nothing where nothing was measured."""
    if tps <= 0:
        return ""
    return f"{what} {tps:,.0f} tok/s" if tps >= 10 else f"{what} {tps:.1f} tok/s"


def _passed(reply: Reply) -> bool:
    """Tools were offered, and it answered without: people look for a fault of theirs."""
    used = reply.trace or reply.calls
    return bool(reply.tools) and not used and reply.finish_reason == "stop"


def ended(reason: str) -> str:
    """Why an answer ended, in words.

    >>> ended("length"), ended("stop")
    ('cut off at the token limit', 'stop')
    """
    return {"length": CUT, "tool_calls": "tool calls"}.get(reason, reason)


def call(name: str, arguments: object, limit: int = MAX_CALL) -> str:
    """A tool call as Python would write it, on one line: `weather(city="Paris")`.

    Models write the arguments, so what a terminal or a reader could take for something else
    (control and invisible characters) is shown as an escape.
    """
    if isinstance(arguments, Mapping):
        inner = ", ".join(f"{key}={_json(value)}" for key, value in arguments.items())
    else:
        inner = arguments if isinstance(arguments, str) else _json(arguments)
    return one_line(f"{name}({inner})", limit)


def one_line(text: str, limit: int) -> str:
    """`text` without control and invisible characters, cut with a mark."""
    cut = text[: limit + 1]
    line = "".join(c if c.isprintable() else _escape(c) for c in cut)
    return line if len(line) <= limit else f"{line[:limit]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def model_name(model: str) -> str:
    """A model's name; of a path or an address the file's or the host's: without the folders of this
    machine, names of users, and keys in an address."""
    model = whole(model)  # a file's name need not be text
    if "://" in model:
        parts = urlsplit(model)
        file = parts.path.rsplit("/", 1)[-1]
        return file.removesuffix(".gguf") if file.endswith(".gguf") else parts.netloc.split("@")[-1]
    path = model.replace("\\", "/").rstrip("/")
    if path.startswith(("/", "~", ".")) or path != model or path[1:3] == ":/":
        return path.rsplit("/", 1)[-1].removesuffix(".gguf")
    return model


def steady(reply: Reply) -> Reply:
    """The reply without times, and with logprobs of one decimal: equal on every machine."""
    return replace(
        reply,
        tokens=tuple(map(_steady_token, reply.tokens)),
        timings=Timings(),
        answered_by="",  # ports differ
        sampling=replace(reply.sampling, seed=None),  # drawn anew by each run
        trace=Records(steady_trace(reply.trace)),
        branches=tuple((at, steady(branch)) for at, branch in reply.branches),
    )


def steady_trace(trace: Sequence[ToolRecord]) -> tuple[ToolRecord, ...]:
    """Tool records without times."""
    return tuple(replace(record, seconds=0.0, waited=0.0) for record in trace)


def _steady_token(token: Token) -> Token:
    return replace(
        token,
        logprob=_one_decimal(token.logprob),
        at=0.0,
        masked=_one_decimal(token.masked),
        top=tuple(replace(a, logprob=_one_decimal(a.logprob)) for a in token.top),
    )


def _one_decimal(x: float | None) -> float | None:
    return None if x is None else round(x, 1) + 0.0
