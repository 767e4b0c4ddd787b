"""Speeds and counts: of one reply, and of every generation of a notebook (the ledger)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from llm_magic.chat.reply import Reply
from llm_magic.columns import aligned

from . import html, summary

WINDOW = 8  # tokens over which the speed at one moment is taken


def speeds(times: Sequence[float], window: int = WINDOW) -> tuple[list[float], list[float]]:
    """(seconds, tokens a second): the speed at each token over the `window` tokens before it."""
    seconds, rates = [], []
    for i in range(1, len(times)):
        first = max(0, i - window)
        span = times[i] - times[first]
        if span > 0:
            seconds.append(times[i])
            rates.append((i - first) / span)
    return seconds, rates


def latest(times: Sequence[float]) -> float:
    """Tokens a second over the last few tokens that came; 0 while unknown."""
    last = times[-2 * WINDOW :]
    seconds = last[-1] - last[0] if len(last) > 1 else 0.0
    return (len(last) - 1) / seconds if seconds > 0 else 0.0


def details(reply: Reply) -> list[tuple[str, str]]:
    """Everything that was counted and measured, as (name, value); unmeasured times are left out."""
    usage, timings = reply.usage, reply.timings
    found = [
        ("prompt tokens", f"{usage.prompt:,}"),
        ("of them cached", f"{summary.cached(usage):,}"),
        ("tokens", f"{usage.completion:,}"),
        ("of them guessed", f"{usage.guessed:,}" if usage.guessed else ""),
    ]
    if reply.mean_logprob is not None and reply.perplexity is not None:
        found.append(("mean logprob", f"{reply.mean_logprob:.3f}".replace("-", "−")))
        found.append(("perplexity", f"{reply.perplexity:,.3f}"))
    times = {"load": timings.load, "queued": timings.queued, "prefill": timings.prefill,
             "first token after": timings.first_token, "decode": timings.decode}  # fmt: skip
    found += [(name, f"{seconds:.3f} s") for name, seconds in times.items() if seconds > 0]
    rates = {"prefill tok/s": summary.prefill_tps(reply), "decode tok/s": timings.decode_tps}
    found += [(name, f"{rate:,.1f}") for name, rate in rates.items() if rate > 0]
    settings = asdict(reply.sampling)
    found += [
        (name.replace("_", " "), summary.setting(v))
        for name, v in settings.items()
        if v is not None
    ]
    found.append(("end", summary.ended(reply.finish_reason or "")))
    return [(name, value) for name, value in found if value]


# ----------------------------------------------------------------------------- the ledger


@dataclass(frozen=True, slots=True)
class Entry:
    """One generation of this notebook. cell: the number of the cell that asked (In [n]), or what
    asked beside the cells: "chat", "branch"."""

    cell: int | str
    model: str
    prompt: int
    cached: int
    tokens: int
    prefill_tps: float
    decode_tps: float
    seconds: float
    reason: str


def entry(reply: Reply, cell: int | str) -> Entry:
    """The ledger's line for a reply. Its seconds are those that the model took."""
    usage, timings = reply.usage, reply.timings
    scored = bool(reply.tokens) and all(t.forced for t in reply.tokens)
    return Entry(
        cell=cell,
        model=reply.model,
        prompt=usage.prompt,
        cached=usage.cached,
        tokens=usage.completion,
        prefill_tps=summary.prefill_tps(reply),
        decode_tps=timings.decode_tps,
        seconds=timings.load + timings.first_token + timings.decode,
        reason=reply.finish_reason or ("scored" if scored else "failed"),
    )


HEAD = ("cell", "model", "prompt", "cached", "tokens", "prefill tok/s", "decode tok/s", "seconds",
         "end")  # fmt: skip
NUMBERS = range(2, 8)  # the columns of numbers


def rows(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """The ledger as text cells, one row per generation and one for the sum."""
    table = [_row(e) for e in entries]
    if len(entries) > 1:
        total = Entry(
            0, "", sum(e.prompt for e in entries), sum(e.cached for e in entries),
            sum(e.tokens for e in entries), 0.0, 0.0, sum(e.seconds for e in entries), "",
        )  # fmt: skip
        table.append(("sum", *_row(total)[1:]))
    return table


def place(e: Entry) -> str:
    """Where it was asked for, in a word."""
    return f"[{e.cell}]" if isinstance(e.cell, int) else e.cell


def _row(e: Entry) -> tuple[str, ...]:
    speeds = (f"{s:,.0f}" if s >= 10 else f"{s:.1f}" if s > 0 else "" for s in
              (e.prefill_tps, e.decode_tps))  # fmt: skip
    numbers = (f"{e.prompt:,}", f"{e.cached:,}", f"{e.tokens:,}")
    return (
        place(e),
        e.model,
        *numbers,
        *speeds,
        f"{e.seconds:.2f}" if e.seconds else "",
        "cut off" if e.reason == "length" else e.reason,
    )


def ledger(entries: Sequence[Entry]) -> str:
    """The ledger as an HTML table."""
    if not entries:
        return html.note("no cell has asked a model yet")
    body = [[html.text(cell) for cell in row] for row in rows(entries)]
    return html.table(HEAD, body, numbers=NUMBERS)


def ledger_text(entries: Sequence[Entry]) -> str:
    """The ledger as aligned text."""
    if not entries:
        return "no cell has asked a model yet"
    return "\n".join(aligned([HEAD, *rows(entries)], NUMBERS))
