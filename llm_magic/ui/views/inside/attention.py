"""Attention as shaded tokens: all heads from one token, or one head from every token."""

import numpy as np

from llm_magic.columns import aligned
from llm_magic.inside.attention import Attention

from .. import html
from ..logprobs import percent
from ..tokens import alone, flowing
from . import shade

GRID = 40  # positions of the grid of one head: the last ones
TOKENS = 120  # tokens of a line: the last ones
WEIGHT = 20  # heads with tooltips


def _line(attention: Attention, weights: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> str:
    start = max(0, len(weights) - TOKENS)
    most = float(weights[start:].max()) or 1.0
    return "".join(
        shade.chip(float(w) / most, html.escape(flowing(token)), percent(float(w)))
        for token, w in zip(attention.tokens[start:], weights[start:], strict=True)
    )


def page(attention: Attention) -> str:
    """The view as HTML."""
    if attention.token is None:
        return _grid(attention) + _note(attention)
    token = attention.token
    heads = range(len(attention.pattern)) if attention.head is None else [attention.head]
    rows = [
        f'<tr><th style="text-align:left;vertical-align:top">head {h}</th><td style="text-align:'
        f'left"><pre style="{html.FLOW}">{_line(attention, attention.weights(h, token))}</pre>'
        for h in heads
    ]
    out = f'<table style="font-size:12px">{"".join(rows)}</table>'
    return out + _note(attention) + html.fold("Most looked at", _table(attention, list(heads)))


def _note(attention: Attention) -> str:
    who = "every token"
    if attention.token is not None:
        who = f"token {attention.token}, {html.text(alone(attention.tokens[attention.token]))},"
    return html.note(f"block {attention.layer}: what {who} looks at") + shade.legend(
        "share of the largest weight:" if attention.token is not None else "weight:"
    )


def _table(attention: Attention, heads: list[int]) -> str:
    return html.columns(("head", "1.", "2.", "3."), _top(attention, heads), numbers=(0,))


def _top(attention: Attention, heads: list[int]) -> list[tuple[str, ...]]:
    rows = []
    assert attention.token is not None
    for h in heads:
        weights = attention.weights(h, attention.token)
        best = np.argsort(-weights, kind="stable")[:3]
        cells = [f"{alone(attention.tokens[i], 14)} {percent(float(weights[i]))}" for i in best]
        rows.append((str(h), *cells, *[""] * (3 - len(cells))))
    return rows


def _grid(attention: Attention) -> str:
    """One head: a row for each token that looks, a column for each that is looked at."""
    assert attention.head is not None
    pattern = attention.pattern[attention.head]
    first = max(0, len(attention.tokens) - GRID)
    head = "".join(f"<th>{html.text(alone(t, 5))}</th>" for t in attention.tokens[first:])
    rows = []
    for row, position in list(enumerate(attention.positions))[-GRID:]:
        cells = []
        for weight in pattern[row, first : position + 1]:
            step = shade.step(float(weight))
            look = f' style="{step.look}"' if step.look else ""
            cells.append(f"<td{look}>{round(100 * float(weight)) or ''}")
        name = html.text(alone(attention.tokens[position], 10))
        rows.append(f'<tr><th style="text-align:right">{name}</th>{"".join(cells)}</tr>')
    return (
        '<div style="overflow-x:auto"><table style="font-size:11px;line-height:1.3">'
        f"<tr><th></th>{head}</tr>{''.join(rows)}</table></div>"
        + html.note(f"head {attention.head}; percent, of the last {GRID} tokens at most")
    )


def plain(attention: Attention) -> str:
    """The view as text."""
    if attention.token is not None:
        heads = list(range(len(attention.pattern)))
        shown = heads if attention.head is None else [attention.head]
        title = f"block {attention.layer}, token {attention.token} "
        title += alone(attention.tokens[attention.token])
        table = aligned([("head", "1.", "2.", "3."), *_top(attention, shown)], [0])
        return "\n".join([title, *table])
    assert attention.head is not None
    rows = []
    for row, position in enumerate(attention.positions):
        weights = attention.pattern[attention.head, row]
        best = int(weights.argmax())
        rows.append(
            (
                alone(attention.tokens[position], 16),
                "→",
                alone(attention.tokens[best], 16),
                percent(float(weights[best])),
            )
        )
    return "\n".join([f"block {attention.layer}, head {attention.head}", *aligned(rows, [3])])
