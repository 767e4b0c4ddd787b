"""What there is to say about a reply in a line: names, counts, speeds, why it ended.

Comes in: a Reply. Goes out: plain text. It must not know HTML.
"""

from dataclasses import replace

from ..chat.reply import Reply
from ..events import Timings, Token


def numbers(reply: Reply, note: str = "") -> str:
    """Model, prompt tokens (cached + new), tokens, speeds, why it ended."""
    return " · ".join(parts(reply, note))


def parts(reply: Reply, note: str = "") -> list[str]:
    """The same as a list. note: stands where the reason of the end would."""
    usage, timings = reply.usage, reply.timings
    prompt = f"{usage.prompt:,} prompt tokens"
    if usage.cached:
        prompt += f" ({usage.cached:,} cached + {usage.prompt - usage.cached:,} new)"
    found = (
        model_name(reply.model),
        prompt if usage.prompt else "",
        f"{usage.completion:,} token{'' if usage.completion == 1 else 's'}",
        speed("prefill", timings.prefill_tps),
        speed("decode", timings.decode_tps),
        note or _reason(reply),
    )
    return [part for part in found if part]


def speed(what: str, tps: float) -> str:
    """ "decode 143 tok/s", or nothing where nothing was measured."""
    if tps <= 0:
        return ""
    return f"{what} {tps:,.0f} tok/s" if tps >= 10 else f"{what} {tps:.1f} tok/s"


def _reason(reply: Reply) -> str:
    match reply.finish_reason:
        case "length":
            return "length (cut at the limit)"
        case "tool_calls":
            return "tool calls"
        case reason:
            return reason or ""


def model_name(model: str) -> str:
    """A model's name; of a path the file's, without the folders of this machine."""
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
        trace=tuple(replace(record, seconds=0.0) for record in reply.trace),
        branches=tuple((at, steady(branch)) for at, branch in reply.branches),
    )


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
