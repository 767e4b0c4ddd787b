"""Where two models part: numbers, and the text shaded by the KL divergence at each token."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_magic.columns import aligned
from llm_magic.divergence import Divergence, Place

from . import html, logprobs, tokens
from .mime import Fragment

SHOWN = 3_000  # tokens of the text that are shown
TIPS = 600  # tokens up to which each has its numbers in a tooltip
WORST = 10  # places that are listed
STEPS = (0.01, 0.05, 0.2, 0.5, 1.0)  # nats, from which on a token has the next shade


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    value: str
    what: str


def divergence(found: Divergence) -> Fragment:
    """The numbers, the text, and the places where the two part most."""
    lines = [[html.text(x) for x in (line.name, line.value, line.what)] for line in _lines(found)]
    worst = [[html.text(x) for x in row] for row in _worst(found)]
    page = (
        f"<strong>{html.text(_title(found))}</strong>"
        + html.table(("", "", ""), lines, numbers=(1,))
        + html.note(html.text(_scope(found)))
        + _text(found)
    )
    if worst:
        table = html.table(HEAD, worst, numbers=(0, 3, 5, 6))
        page += html.fold("Where they part most", table)
    return Fragment(page, plain(found))


HEAD = ("token", "text before", "the text's own", "KL", "most likely", "p by base", "p by other")


def plain(found: Divergence) -> str:
    """The same as text, without the whole text."""
    numbers = aligned([[line.name, line.value, line.what] for line in _lines(found)], (1,))
    worst = _worst(found)
    table = ["", *aligned([HEAD, *worst], (0, 3, 5, 6), rule=True)] if worst else []
    return "\n".join([_title(found), *numbers, _scope(found), *table])


def _title(found: Divergence) -> str:
    return f"{found.model} against {found.base}"


def _scope(found: Divergence) -> str:
    kind = "windows" if found.windows > 1 else "window"
    half = (
        "the second half of each" if found.window >= 4 and _halved(found) else "all but the first"
    )
    return (
        f"{len(found.kl):,} tokens scored: {found.windows:,} {kind} of {found.window:,} tokens, "
        f"{half}"
    )


def _halved(found: Divergence) -> bool:
    return len(found.kl) < len(found.places) - found.windows


def _lines(found: Divergence) -> list[_Line]:
    errors = found.errors
    base, other = found.perplexities
    return [
        _Line("mean KL", f"{found.mean:.6f} ± {errors['mean']:.6f}", "nats; 0: the same"),
        _Line("median KL", f"{found.median:.6f}", ""),
        _Line("99.9 % KL", f"{found.percentile(99.9):.6f}", "1 token of 1,000 parts farther"),
        _Line("maximum KL", f"{found.maximum:.6f}", ""),
        _Line(
            "same top token",
            f"{100 * found.same_top:.3f} ± {100 * errors['same_top']:.3f} %",
            "of tokens where both hold the same for the most likely",
        ),
        _Line("perplexity of base", f"{base:.4f}", found.base),
        _Line("perplexity", f"{other:.4f}", found.model),
        _Line("ratio", f"{found.ratio:.6f} ± {errors['ratio']:.6f}", "above 1: worse than base"),
        _Line("ln ratio", f"{found.log_ratio:.6f} ± {errors['log_ratio']:.6f}", ""),
        _Line("mean Δp", f"{100 * found.mean_change:.3f} %", "of the text's own tokens"),
        _Line("RMS Δp", f"{100 * found.rms_change:.3f} %", ""),
    ]


def _worst(found: Divergence) -> list[list[str]]:
    ranked = sorted(
        (i for i, place in enumerate(found.places) if place.kl), key=lambda i: -_nats(found, i)
    )
    return [_row(found.places, i) for i in sorted(ranked[:WORST])]


def _nats(found: Divergence, i: int) -> float:
    return found.places[i].kl or 0.0


def _row(places: Sequence[Place], i: int) -> list[str]:
    place = places[i]
    before = b"".join(p.token for p in places[max(0, i - 8) : i]).decode("utf-8", "replace")
    most = " · ".join(dict.fromkeys(tokens.alone(top, 16) for top in place.tops))
    p, q = (logprobs.percent(logprobs.probability(x)) for x in place.logprobs)
    line = " ".join(before.split())[-24:]
    return [f"{i:,}", line, tokens.alone(place.token, 16), f"{place.kl:.3f}", most, p, q]


# ----------------------------------------------------------------------------- the text


def _step(place: Place) -> logprobs.Shade:
    if place.kl is None:
        return logprobs.UNKNOWN
    return logprobs.SCALE[sum(place.kl >= step for step in STEPS)]


def _text(found: Divergence) -> str:
    places = found.places[:SHOWN]
    tips = len(places) <= TIPS
    parts = "".join(_chip(place, tips) for place in places)
    more = len(found.places) - len(places)
    rest = html.note(f"{more:,} more tokens are not shown") if more > 0 else ""
    return f'<pre style="{html.FLOW}">{parts}</pre>{rest}{_legend()}'


def _chip(place: Place, tip: bool) -> str:
    text = html.escape(tokens.flowing(place.token))
    step = _step(place)
    title = ""
    if tip and place.kl is not None:
        first, second = (tokens.alone(top, 16) for top in place.tops)
        said = f"both: {first}" if not place.parts else f"base: {first}, other: {second}"
        title = f' title="{html.attribute(f"KL {place.kl:.4f}; {said}")}"'
    if not step.look:
        return f"<span{title}>{text}</span>" if title else text
    return f'<{step.element} class="{step.css}"{title} style="{step.look}">{text}</{step.element}>'


def _legend() -> str:
    names = ["below 0.01", *(f"from {step:g}" for step in STEPS)]
    steps = [
        f'<{s.element} class="{s.css}" style="{s.look}">{name}</{s.element}>' if s.look else name
        for s, name in zip(logprobs.SCALE, names, strict=True)
    ]
    u = logprobs.UNKNOWN
    unknown = f'<span class="{u.css}" style="{u.look}">not scored</span>'
    return html.note("KL in nats " + " ".join([*steps, unknown]), quiet=False)
