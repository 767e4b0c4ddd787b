"""How sure the model was of each token, as static HTML that survives every viewer.

Comes in: a Reply. Goes out: an HTML fragment of at most 400 bytes a token. It must not know engines
or IPython.

A token is shaded by its probability, in steps of one hue whose lightness falls, so that the order
holds for every kind of colour vision. The same order is in the text: unlikely tokens are followed
by ▁ ▃ ▅ or ▇, and a folded table holds the numbers. Likely tokens are left alone, so that an answer
stays an answer. Up to TIPS tokens, each has its numbers in a tooltip too.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from llm_magic.chat.reply import Reply
from llm_magic.events import Token, Top

from . import html, tokens
from .summary import counted, meter

SHOWN = 2_000  # tokens before the rest folds
# Longer runs are shaded by stretches of one shade, without tooltips. A page takes 6 us for every
# element with its class, tooltip and style, twice, as JupyterLab also looks for headings in it, and
# all outputs of a cell are one task: three replies of 1,000 tokens took 45-60 ms.
TIPS = 400
# Bytes a token may weigh, tooltip and table row together, and what a short reply may weigh beyond
# that. With frame, legend and style it stays within 400 a token from about 100 tokens on.
WEIGHT, EXTRA = 365, 1_200
# Alternatives in a tooltip and in a table row; the first pair that keeps to WEIGHT is taken.
DETAIL = ((3, 5), (2, 3), (1, 1), (0, 0))


@dataclass(frozen=True, slots=True)
class Shade:
    """One step of the scale: from probability `floor` up. Each text has contrast >= 4.5:1."""

    floor: float
    name: str
    mark: str
    light: tuple[str, str] | None  # background, text
    dark: tuple[str, str] | None

    @property
    def css(self) -> str:
        return f"lm-p{self.name}"


SCALE = (
    Shade(0.9, "0", "", None, None),
    Shade(0.5, "1", "", ("#fff4d9", "#2b2100"), ("#33290f", "#f7ead0")),
    Shade(0.2, "2", "▁", ("#fee3a6", "#2b2100"), ("#55400f", "#fff3da")),
    Shade(0.05, "3", "▃", ("#fdc36b", "#2b1800"), ("#80570c", "#ffffff")),
    Shade(0.01, "4", "▅", ("#f0903a", "#220f00"), ("#c9811f", "#160b00")),
    Shade(-1.0, "5", "▇", ("#b84a08", "#ffffff"), ("#ffb95e", "#1f1000")),
)
DARK = {
    f".{s.css}": f"background:{s.dark[0]}!important;color:{s.dark[1]}!important"
    for s in SCALE
    if s.dark is not None
}


def probability(logprob: float | None) -> float | None:
    """exp(logprob); None stays None."""
    return None if logprob is None else math.exp(min(logprob, 0.0))


def shade(token: Token) -> Shade:
    """The step of a token; a token without a logprob is not shaded."""
    p = probability(token.logprob)
    if p is None:
        return SCALE[0]
    return next(s for s in SCALE if p >= s.floor)


def percent(p: float | None) -> str:
    """A probability in a few characters; 0% and 100% are kept for what is exactly that."""
    match p:
        case None:
            return "?"
        case 0.0:
            return "0%"
        case _ if p < 0.001:
            return "<.1%"
        case _ if p < 0.0995:
            return f"{p * 100:.1f}%"
        case _ if 0.995 <= p < 1.0:
            return ">99%"
        case _:
            return f"{p * 100:.0f}%"


def heat(reply: Reply, *, opened: bool = True) -> str:
    """The heat map of a reply, folding, with legend and table. Empty without tokens."""
    if not reply.tokens:
        return ""
    head = f"Token probabilities · {_summary(reply)}"
    return html.fold(head, _best(reply.tokens, ""), opened=opened)


def shaded(reply: Reply) -> str:
    """The heat map in the place of the text itself: nothing around it folds."""
    return _best(reply.tokens, _summary(reply)) if reply.tokens else ""


def _best(run: Sequence[Token], summary: str) -> str:
    """Flow, legend and table with as many alternatives as the bytes allow."""
    for tip, row in DETAIL:
        body = flow(run[:SHOWN], tip)
        if rest := run[SHOWN:]:
            body += html.fold(f"{len(rest):,} more tokens", flow(rest, tip))
        body += legend(summary, any(t.masked for t in run)) + html.fold(
            "Table of all tokens", _table(run, row)
        )
        if len(body.encode()) <= WEIGHT * len(run) + EXTRA:
            break
    return body


def certainty(reply: Reply) -> list[str]:
    """How many tokens, and how sure the model was of all of them together."""
    parts = [counted(len(reply.tokens), "token")]
    if reply.mean_logprob is not None and reply.perplexity is not None:
        parts.append(f"mean logprob {nats(reply.mean_logprob)}")
        parts.append(f"perplexity {reply.perplexity:,.2f}")
    return parts


def _summary(reply: Reply) -> str:
    return " · ".join(certainty(reply))


def legend(summary: str = "", constrained: bool = False) -> str:
    """What the shades mean, behind a summary. constrained: something was forbidden on the way."""
    names = ("90%", "50%", "20%", "5%", "1%", "less")
    steps = (_paint(s, name) + _mark(s) for s, name in zip(SCALE, names, strict=True))
    free = "without the constraint " if constrained else ""
    return html.note(summary, f"probability {free}from " + " ".join(steps), quiet=False)


def _paint(step: Shade, inner: str, title: str = "") -> str:
    tip = f' title="{title}"' if title else ""
    if step.light is None:
        return f"<span{tip}>{inner}</span>" if tip else inner
    look = f'style="background-color:{step.light[0]};color:{step.light[1]}"'
    return f'<span class="{step.css}"{tip} {look}>{inner}</span>'


def flow(run: Sequence[Token], tip: int = 2) -> str:
    """The tokens in their order, shaded and marked; `tip` alternatives in each tooltip."""
    if len(run) <= TIPS:
        parts = [_chip(token, tip) for token in run]
    else:
        parts = [_stretch(step, group) for step, group in groupby(run, shade)]
    return f'<pre style="{html.FLOW}">{"".join(parts)}</pre>'


def _chip(token: Token, tip: int) -> str:
    step = shade(token)
    inner, end = _inflow(token)
    return _paint(step, inner, html.attribute(_tip(token, tip))) + _mark(step) + end


def _stretch(step: Shade, group: Iterable[Token]) -> str:
    mark = _mark(step)
    return _paint(step, "".join(mark.join(_inflow(token)) for token in group))


def _inflow(token: Token) -> tuple[str, str]:
    """A token's text, and the line end that stands after its mark."""
    shown = tokens.flowing(token.bytes)[:60]
    body = shown.removesuffix("\n")
    inner = html.escape(body)
    return f"<s>{inner}</s>" if token.trimmed else inner, shown[len(body) :]


def _mark(step: Shade) -> str:
    return f"<sub>{step.mark}</sub>" if step.mark else ""


def _tip(token: Token, count: int) -> str:
    parts = [percent(probability(token.logprob))]
    if token.rank is not None:
        parts.append(f"rank {token.rank:,}")
    if token.forced:
        parts.append("given")
    if token.masked:
        parts.append(f"{percent(token.masked)} forbidden")
    others = [a for a in token.top if a.id != token.id or a.bytes != token.bytes][:count]
    return "\n".join([", ".join(parts), *(_one(a, 16) for a in others)])


def _one(top: Top, width: int) -> str:
    ban = "" if top.allowed else "✗ "
    return f"{ban}{tokens.alone(top.bytes, width)} {percent(probability(top.logprob))}"


def _table(run: Sequence[Token], count: int) -> str:
    rows = [
        (
            str(i),
            tokens.alone(t.bytes, 24),
            percent(probability(t.logprob)),
            nats(t.logprob),
            "" if t.rank is None else f"{t.rank:,}",
            _bound(entropy(t)),
            percent(t.masked) if t.masked else "",
            ", ".join(["given"] * t.forced + ["cut off"] * t.trimmed),
            " · ".join(_one(a, 16) for a in t.top[:count]),
        )
        for i, t in enumerate(run)
    ]
    head = ("#", "token", "p", "logprob", "rank", "bits", "forbidden", "note", "most likely")
    return html.columns(head, rows, numbers=(0, 2, 3, 4, 5, 6))


def _bound(bits: float | None) -> str:
    """A lower bound in bits: rounded up, it would be none."""
    return "" if bits is None else f"≥{math.floor(bits * 10) / 10}"


# ----------------------------------------------------------------------------- one position


def entropy(token: Token) -> float | None:
    """A lower bound of the entropy at a token's place, in bits; None without alternatives.

    The known candidates as they are, and all others as if they were one: splitting them up can only
    add to it.
    """
    known = {a.id if a.id is not None else a.bytes: a.logprob for a in token.top}
    if not known:
        return None
    known.setdefault(token.id if token.id is not None else token.bytes, token.logprob)
    shares = [p for p in map(probability, known.values()) if p]
    rest = 1.0 - math.fsum(shares)
    if rest > 1e-9:
        shares.append(rest)
    return max(0.0, -math.fsum(p * math.log2(p) for p in shares))


def alternatives(reply: Reply, i: int) -> tuple[str, str]:
    """What else stood at token i, as HTML and as text. IndexError names how many there are."""
    count = len(reply.tokens)
    if not -count <= i < count:
        raise IndexError(f"token {i}: the reply has {count} tokens")
    i %= count
    token = reply.tokens[i]
    before = b"".join(t.bytes for t in reply.tokens[:i]).decode("utf-8", "replace")[-60:]
    rows = _candidates(token)
    head = f"token {i} after {before!r}" if before else f"token {i}"
    bits = entropy(token)
    facts = [head, f"entropy at least {bits:.2f} bits" if bits is not None else ""]
    if token.masked:
        facts.append(f"{percent(token.masked)} of the probability was forbidden")
    cells = [
        (mark, f"<code>{html.escape(name)}</code>", html.text(p), lp, meter(share), rank)
        for mark, name, p, lp, share, rank in rows
    ]
    page = html.note(*(html.text(f) for f in facts if f)) + html.table(
        ("", "token", "p", "logprob", "", "rank"), cells, numbers=(2, 3)
    )
    lines = [f"{mark:1} {name:20} {p:>5} {lp:>7}" for mark, name, p, lp, _, _ in rows]
    return page, "\n".join([" · ".join(f for f in facts if f), *lines])


def _candidates(token: Token) -> list[tuple[str, str, str, str, float, str]]:
    """(mark, token, p, logprob, share, rank) by falling probability; → is what was taken."""
    rows = []
    for n, top in enumerate(token.top, 1):
        taken = top.id == token.id and top.bytes == token.bytes
        mark = "→" if taken else "" if top.allowed else "✗"
        rows.append((mark, top.bytes, top.logprob, str(n)))
    if not any(mark == "→" for mark, *_ in rows):
        rank = "" if token.rank is None else f"{token.rank:,}"
        rows.append(("→", token.bytes, token.logprob, rank))
    return [
        (mark, tokens.alone(data), percent(probability(lp)), nats(lp), probability(lp) or 0.0, rank)
        for mark, data, lp, rank in rows
    ]


def marked(run: Sequence[Token]) -> str:
    """The text of tokens with the mark of each: `the cat▃ sat`."""
    return "".join(t.bytes.decode("utf-8", "replace") + shade(t).mark for t in run)


def surprises(reply: Reply, count: int = 5) -> str:
    """The least likely tokens of a text and what the model expected there, as an HTML table."""
    scored = [(t.logprob, i) for i, t in enumerate(reply.tokens) if t.logprob is not None]
    worst = sorted(sorted(scored)[:count], key=lambda pair: pair[1])
    rows = []
    for logprob, i in worst:
        if logprob > math.log(0.5):
            continue
        token = reply.tokens[i]
        before = b"".join(t.bytes for t in reply.tokens[max(0, i - 8) : i]).decode(
            "utf-8", "replace"
        )
        word = html.escape(tokens.flowing(token.bytes))
        place = f"{html.escape(before[-32:])}<strong>{word}</strong>"
        rank = "" if token.rank is None else f"{token.rank:,}"
        rows.append((f"<code>{place}</code>", html.text(percent(probability(logprob))), rank,
                     _others(token, 3)))  # fmt: skip
    if not rows:
        return ""
    return html.table(("least expected", "p", "rank", "expected instead"), rows, numbers=(1, 2))


def nats(logprob: float | None) -> str:
    """A log-probability with two decimals and a true minus sign; empty where unknown."""
    return "" if logprob is None else f"{logprob:.2f}".replace("-", "−")


def _others(token: Token, count: int) -> str:
    line = " · ".join(_one(a, 16) for a in token.top[:count])
    return f"<code>{html.escape(line)}</code>" if line else ""
