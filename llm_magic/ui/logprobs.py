"""How sure the model was of each token, as static HTML that survives every viewer.

Comes in: a Reply. Goes out: an HTML fragment of at most 400 bytes a token. It must not know engines
or IPython.

A token is shaded by its probability, in steps of one hue whose lightness falls, so that the order
holds for every kind of colour vision. The same order is in the text: unlikely tokens are followed
by ▁ ▃ ▅ or ▇, and a folded table holds the numbers. Likely tokens are left alone, so that an answer
stays an answer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..chat.reply import Reply
from ..events import Token, Top
from . import html, tokens

SHOWN = 2_000  # tokens before the rest folds
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
        body = _flow(run[:SHOWN], tip)
        if rest := run[SHOWN:]:
            body += html.fold(f"{len(rest):,} more tokens", _flow(rest, tip))
        body += _legend(summary) + html.fold("Table of all tokens", _table(run, row))
        if len(body.encode()) <= WEIGHT * len(run) + EXTRA:
            break
    return body


def _summary(reply: Reply) -> str:
    parts = [f"{len(reply.tokens):,} tokens"]
    if reply.mean_logprob is not None and reply.perplexity is not None:
        parts.append(f"mean logprob {nats(reply.mean_logprob)}")
        parts.append(f"perplexity {reply.perplexity:,.2f}")
    return " · ".join(parts)


def _legend(summary: str) -> str:
    names = ("90%", "50%", "20%", "5%", "1%", "less")
    steps = (_paint(s, name) for s, name in zip(SCALE, names, strict=True))
    return html.note(summary, "probability from " + " ".join(steps))


def _paint(step: Shade, inner: str, title: str = "") -> str:
    tip = f' title="{title}"' if title else ""
    if step.light is None:
        return f"<span{tip}>{inner}</span>" if tip else inner
    look = f'style="background:{step.light[0]};color:{step.light[1]}"'
    mark = f"<sub>{step.mark}</sub>" if step.mark else ""
    return f'<span class="{step.css}"{tip} {look}>{inner}</span>{mark}'


def _flow(run: Sequence[Token], tip: int) -> str:
    return f'<pre style="{html.FLOW}">' + "".join(_in_flow(token, tip) for token in run) + "</pre>"


def _in_flow(token: Token, tip: int) -> str:
    inner = html.escape(tokens.flowing(token.bytes)[:60])
    if token.trimmed:
        inner = f"<s>{inner}</s>"
    return _paint(shade(token), inner, html.attribute(_tip(token, tip)))


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
    # Cells and rows are not closed: HTML lets them be, and a row is half of a token's bytes.
    rows = "".join(
        f"<tr><td>{i}<td><code>{html.escape(tokens.alone(t.bytes, 24))}</code>"
        f"<td>{html.text(percent(probability(t.logprob)))}<td>{nats(t.logprob)}"
        f"<td>{'' if t.rank is None else t.rank}<td>{_others(t, count)}"
        for i, t in enumerate(run)
    )
    return (
        '<table style="font-size:12px;margin:4px 0"><thead><tr><th>#<th>token<th>p<th>logprob'
        f"<th>rank<th>most likely</thead><tbody>{rows}</tbody></table>"
    )


def nats(logprob: float | None) -> str:
    """A log-probability with two decimals and a true minus sign; empty where unknown."""
    return "" if logprob is None else f"{logprob:.2f}".replace("-", "−")


def _others(token: Token, count: int) -> str:
    line = " · ".join(_one(a, 16) for a in token.top[:count])
    return f"<code>{html.escape(line)}</code>" if line else ""
