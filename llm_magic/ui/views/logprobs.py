"""How sure the model was of each token, as static HTML that keeps its meaning in every viewer.

A token is shaded by its probability in steps of one hue whose lightness falls, so the order holds
for every kind of colour vision, and underlined: the less likely, the thicker the line. Nothing is
added to the text, so what is copied is the answer. Where a viewer removes styles, the elements
remain: `<ins>` (underlined by browsers) for tokens below 50 %, `<mark>` for those below 5 %; and a
folded table holds the numbers. Up to TIPS tokens, each has its numbers in a tooltip too. An HTML
fragment has at most 400 bytes a token.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from llm_magic.chat.reply import Reply
from llm_magic.columns import cell_width
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
LONG = 200  # tokens from which the legend stands before the map, too
# Alternatives in a tooltip and in a table row; the first pair that keeps to WEIGHT is taken.
DETAIL = ((3, 5), (2, 3), (1, 1), (0, 0))


@dataclass(frozen=True, slots=True)
class Shade:
    """One step of the scale: from probability `floor` up. Each text has contrast >= 4.5:1."""

    floor: float
    name: str
    mark: str  # its height stands for the step in plain text
    light: tuple[str, str] | None  # background, text
    dark: tuple[str, str] | None
    line: str = ""  # the underline: a CSS border without its colour, which is that of the text
    element: str = "span"

    @property
    def css(self) -> str:
        return f"lm-p{self.name}"

    @property
    def look(self) -> str:
        """The declarations of a style attribute, "" for the step that is left alone."""
        if self.light is None:
            return ""
        line = f";border-bottom:{self.line}" if self.line else ""
        return f"background-color:{self.light[0]};color:{self.light[1]}{line}"


SCALE = (
    Shade(0.9, "0", "", None, None),
    Shade(0.5, "1", "", ("#ffe4a8", "#2b2100"), ("#3d3010", "#f7ead0"), "1px dotted"),
    Shade(0.2, "2", "▁", ("#ffcf70", "#2b2100"), ("#64490e", "#fff3da"), "1px solid", "ins"),
    Shade(0.05, "3", "▃", ("#fbb04a", "#2b1800"), ("#8a5e0d", "#ffffff"), "2px solid", "ins"),
    Shade(0.01, "4", "▅", ("#e8862b", "#1c0c00"), ("#c9811f", "#160b00"), "3px solid", "mark"),
    Shade(-1.0, "5", "▇", ("#b5460a", "#ffffff"), ("#ffb95e", "#1f1000"), "4px solid", "mark"),
)
# A token without a probability beside others that have one: the first of a scored text, given ones.
UNKNOWN = Shade(-1.0, "u", "", ("#e4e7eb", "#3d444d"), ("#30363d", "#c9d1d9"))
DARK = {
    f".{s.css}": f"background:{s.dark[0]}!important;color:{s.dark[1]}!important"
    for s in (*SCALE, UNKNOWN)
    if s.dark is not None
} | {".lm-before": "color:#9da7b1!important"}
BEFORE = 300  # characters of the text before the first token


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
    """A probability in a few characters; 0% and 100% are kept for what is exactly that.

    >>> percent(0.5), percent(0.0123), percent(0.9999), percent(None)
    ('50%', '1.2%', '>99%', '?')
    """
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


def heat(reply: Reply, *, opened: bool = True, before: str = "") -> str:
    """The heat map of a reply, folding, with legend and table. Empty without tokens.

    before: the text that the first token continues.
    """
    if not reply.tokens:
        return ""
    head = f"Token probabilities · {_summary(reply)}"
    return html.fold(head, _best(reply.tokens, "", before), opened=opened)


def shaded(reply: Reply) -> str:
    """The heat map in the place of the text itself: nothing around it folds."""
    return _best(reply.tokens, _summary(reply), "") if reply.tokens else ""


def _best(run: Sequence[Token], summary: str, before: str) -> str:
    """Flow, legend and table with as many alternatives as the bytes allow."""
    key = legend(run, summary)
    for tip, row in DETAIL:
        body = flow(run[:SHOWN], tip, before)
        if rest := run[SHOWN:]:
            body += html.fold(f"{len(rest):,} more tokens", flow(rest, tip))
        # The end of a long map is a screen away: there the legend stands before it as well.
        body = (key if len(run) > LONG else "") + body + key
        body += html.fold("Table of all tokens", _table(run, row))
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


def legend(run: Sequence[Token], summary: str = "") -> str:
    """What the shades of these tokens mean, behind a summary."""
    names = ("90% or more", "from 50%", "20%", "5%", "1%", "less")
    steps = [_paint(s, name) for s, name in zip(SCALE, names, strict=True)]
    if any(t.logprob is None for t in run) and _scored(run):
        steps.append(_paint(UNKNOWN, "unknown"))
    free = "without the constraint " if any(t.masked for t in run) else ""
    return html.note(summary, f"probability {free}" + " ".join(steps), quiet=False)


def _paint(step: Shade, inner: str, title: str = "") -> str:
    tip = f' title="{title}"' if title else ""
    if not step.look:
        return f"<span{tip}>{inner}</span>" if tip else inner
    name = step.element
    return f'<{name} class="{step.css}"{tip} style="{step.look}">{inner}</{name}>'


def _scored(run: Iterable[Token]) -> bool:
    return any(t.logprob is not None for t in run)


def flow(run: Sequence[Token], tip: int = 2, before: str = "") -> str:
    """The tokens in their order, shaded and underlined; `tip` alternatives in each tooltip.

    before: the text that the first one continues, in grey.
    """
    scored = _scored(run)

    def step(token: Token) -> Shade:
        return UNKNOWN if scored and token.logprob is None else shade(token)

    if len(run) <= TIPS:
        parts = [_chip(step(token), token, tip) for token in run]
    else:
        parts = [_stretch(group[0], group[1]) for group in groupby(run, step)]
    return f'<pre style="{html.FLOW}">{_context(before)}{"".join(parts)}</pre>'


def _context(before: str) -> str:
    if not before:
        return ""
    cut = "…" * (len(before) > BEFORE) + before[-BEFORE:]
    return f'<span class="lm-before" style="color:#6e7781">{html.escape(cut)}</span>'


def _chip(step: Shade, token: Token, tip: int) -> str:
    inner, end = _inflow(token)
    return _paint(step, inner, html.attribute(_tip(token, tip))) + end


def _stretch(step: Shade, group: Iterable[Token]) -> str:
    return _paint(step, "".join("".join(_inflow(token)) for token in group))


def _inflow(token: Token) -> tuple[str, str]:
    """A token's text, and the line end that stands after its shade."""
    shown = tokens.flowing(token.bytes)[:60]
    body = shown.removesuffix("\n")
    inner = html.escape(body)
    return f"<s>{inner}</s>" if token.trimmed else inner, shown[len(body) :]


def _tip(token: Token, count: int) -> str:
    parts = [
        "probability unknown" if token.logprob is None else percent(probability(token.logprob))
    ]
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


def marked(run: Sequence[Token], width: int = 88) -> str:
    """The text of tokens in lines, below each a line of marks: the higher, the less likely.

    >>> cat = Token(1, b" cat", -3.5, 2)
    >>> print(marked((Token(0, b"The", -0.1, 1), cat)))
    The cat
       ▅▅▅▅
    """
    lines: list[tuple[str, str]] = [("", "")]
    for token in run:
        mark = shade(token).mark or " "
        for char in tokens.decode(token.bytes):
            text, marks = lines[-1]
            columns = cell_width(char)
            if char == "\n" or len(marks) + columns > width:
                lines.append(("", ""))
                text, marks = "", ""
            if char != "\n":
                char = char if char.isprintable() or cell_width(char) == 0 else "�"
                lines[-1] = text + char, marks + mark * columns
    return "\n".join(line for text, marks in lines for line in _two(text, marks.rstrip()))


def _two(text: str, marks: str) -> list[str]:
    return [text, marks] if marks else [text]


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
