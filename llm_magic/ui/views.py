"""Every way to look at a Reply: functions of the Reply alone, whatever made it.

Comes in: a Reply, fresh or read back from a saved notebook, and a `Look`. Goes out: MIME bundles
and HTML. It must not know streams, engines or magics; what depends on the notebook's settings comes
as a Look.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..chat.reply import Reply
from ..events import Timings, Token
from . import html, logprobs

VENDOR = "application/vnd.llm-magic.reply+json"
JSON_TOKENS = 2_000  # longer replies are saved without their tokens
JSON_WEIGHT = 150  # bytes a token may weigh in the saved JSON

Bundle = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """How replies are shown.

    format: "markdown", "text" or "code". heat: with the heat map (None: if alternatives were
    recorded). docs: outputs that are the same on every run. save_prompt: the prompt's text may stay
    in the notebook. json_tokens: the longest reply whose tokens are saved; None: every.
    """

    format: str = "markdown"
    heat: bool | None = None
    docs: bool = False
    save_prompt: bool = True
    json_tokens: int | None = JSON_TOKENS


class Fragment:
    """A view as an object that a notebook shows: HTML, and text where there is no HTML."""

    def __init__(self, body: str, plain: str) -> None:
        self.body = body
        self.plain = plain

    @property
    def html(self) -> str:
        return html.wrap(self.body, themed=True, extra=logprobs.DARK)

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return {"text/plain": self.plain, "text/html": self.html}


def mimebundle(reply: Reply, include: Any = None, exclude: Any = None) -> Bundle:
    """What a notebook shows for a Reply that ends a cell."""
    data = bundle(reply, current_look())
    if include:
        data = {k: v for k, v in data.items() if k in include}
    return {k: v for k, v in data.items() if k not in (exclude or ())}


def current_look() -> Look:
    """The notebook's settings where llm_magic is loaded, else the defaults."""
    from IPython import get_ipython

    shell = get_ipython()
    settings = shell and shell.magics_manager.registry.get("LLMMagics")
    look: Look = settings.look() if settings else Look()
    return look


def bundle(reply: Reply, look: Look, note: str = "") -> Bundle:
    """The last state of a cell: plain text, Markdown, HTML, and JSON to read the reply back from.

    note: what happened to it in words ("interrupted", "failed: ..."), shown beside the numbers.
    """
    if look.docs:
        reply = steady(reply)
    heat = look.heat if look.heat is not None else any(t.top for t in reply.tokens)
    if heat and look.format == "text" and set(reply.kinds) == {"answer"}:
        content, heat_map = logprobs.shaded(reply), ""  # the same text, now shaded
    else:
        content, heat_map = body(reply.text, look.format), logprobs.heat(reply) if heat else ""
    page = html.wrap(
        _reasoning(reply),
        content,
        heat_map,
        footer(reply, note),
        themed=heat or html.needs_style(content),
        extra=logprobs.DARK if heat else None,
    )
    suffix = f"\n\n[{note}]" if note else ""
    data: Bundle = {"text/plain": _plain(reply, look.format) + suffix, "text/html": page}
    if not look.docs:
        data["text/markdown"] = _markdown(reply, look.format) + (f"\n\n*{note}*" if note else "")
        data[VENDOR] = saved(reply, look)
    return data


def body(text: str, form: str) -> str:
    """An answer's text as HTML in one of the three formats."""
    match form:
        case "text":
            return html.verbatim(text)
        case "code":
            return html.code(*fenced(text))
        case _:
            return html.markdown(text)


def _plain(reply: Reply, form: str) -> str:
    return fenced(reply.text)[0] if form == "code" else reply.text


def _markdown(reply: Reply, form: str) -> str:
    if form == "markdown":
        return html.escape_dollars(reply.text)
    source, language = fenced(reply.text) if form == "code" else (reply.text, "text")
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}{language}\n{source}\n{fence}"


def fenced(text: str) -> tuple[str, str]:
    """The code of an answer and its language: what its fences hold, or all of it if it has none."""
    inside: list[str] = []
    language, fence = "", ""
    for line in text.splitlines():
        mark = line.strip()
        if fence:
            if mark.startswith(fence) and not mark.strip(fence[0]):
                fence = ""
                continue
            inside.append(line)
        elif mark.startswith(("```", "~~~")):
            fence = mark[: len(mark) - len(mark.lstrip(mark[0]))]
            language = language or mark[len(fence) :].split(" ")[0]
            if inside:
                inside.append("")
    return ("\n".join(inside), language) if inside else (text, "python")


def _reasoning(reply: Reply) -> str:
    if not reply.reasoning:
        return ""
    count = sum(kind == "reasoning" for kind in reply.kinds)
    head = f"Reasoning · {count:,} tokens" if count else "Reasoning"
    return html.fold(head, f'<div style="opacity:.85">{html.markdown(reply.reasoning)}</div>')


# ----------------------------------------------------------------------------- the line below


def footer(reply: Reply, note: str = "") -> str:
    """The numbers as a quiet line of HTML."""
    return html.note(*map(html.text, _numbers(reply, note)))


def numbers(reply: Reply, note: str = "") -> str:
    """Model, prompt tokens (cached + new), tokens, speeds, why it ended."""
    return " · ".join(_numbers(reply, note))


def _numbers(reply: Reply, note: str) -> list[str]:
    usage, timings = reply.usage, reply.timings
    prompt = f"{usage.prompt:,} prompt tokens"
    if usage.cached:
        prompt += f" ({usage.cached:,} cached + {usage.prompt - usage.cached:,} new)"
    parts = (
        model_name(reply.model),
        prompt if usage.prompt else "",
        f"{usage.completion:,} token{'' if usage.completion == 1 else 's'}",
        speed("prefill", timings.prefill_tps),
        speed("decode", timings.decode_tps),
        note or _reason(reply),
    )
    return [part for part in parts if part]


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
    """A model's name without the folders of this machine."""
    if model.startswith(("/", "~", ".")) or "\\" in model or model[1:3] == ":/":
        return model.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
    return model


# ----------------------------------------------------------------------------- saved forms


def steady(reply: Reply) -> Reply:
    """The reply without times, and with logprobs of one decimal: equal on every machine."""
    tokens = tuple(
        replace(
            t,
            logprob=_one_decimal(t.logprob),
            at=0.0,
            masked=_one_decimal(t.masked),
            top=tuple(replace(a, logprob=_one_decimal(a.logprob)) for a in t.top),
        )
        for t in reply.tokens
    )
    return replace(reply, tokens=tokens, timings=Timings())


def _one_decimal(x: float | None) -> float | None:
    return None if x is None else round(x, 1) + 0.0


def saved(reply: Reply, look: Look) -> dict[str, Any]:
    """The reply as JSON for the notebook file: no paths, and at most JSON_WEIGHT bytes a token."""
    reply = replace(reply, model=model_name(reply.model))
    if look.json_tokens is not None and len(reply.tokens) > look.json_tokens:
        return reply.to_dict(prompt=look.save_prompt, max_tokens=look.json_tokens)
    limit = JSON_WEIGHT * len(reply.tokens)
    for keep in (None, 5, 3, 1, 0):
        lean = reply if keep is None else replace(reply, tokens=_fewer(reply.tokens, keep))
        data = lean.to_dict(prompt=look.save_prompt)
        if len(json.dumps(data["tokens"], ensure_ascii=False).encode()) <= limit:
            break
    return data


def _fewer(run: tuple[Token, ...], keep: int) -> tuple[Token, ...]:
    return tuple(replace(t, top=t.top[:keep]) for t in run)


def from_output(data: Mapping[str, Any]) -> Reply:
    """The Reply of a saved output's data, or of its vendor JSON. ValueError if it is none."""
    found = data.get(VENDOR, data)
    return Reply.from_dict(found)


# ----------------------------------------------------------------------------- views by name


def heatmap(reply: Reply, **options: Any) -> Fragment:
    """Every token shaded by its probability."""
    plain = "".join(
        t.bytes.decode("utf-8", "replace") + logprobs.shade(t).mark for t in reply.tokens
    )
    return Fragment(logprobs.heat(reply, **options), plain)
