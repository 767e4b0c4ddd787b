"""The grid of a lens: blocks from the last to the first, tokens from left to right."""

import math

import numpy as np

from llm_magic.columns import aligned
from llm_magic.inside.lens import Lens

from .. import html
from ..logprobs import percent
from ..tokens import alone
from . import shade

WIDTH = 8  # characters of a cell's token
MOST = 200_000  # bytes of the page
CELLS = 1_950  # more are left to the live view and the arrays
PLAIN = 8  # columns of the text form


def _value(lens: Lens, row: int, column: int) -> float:
    """What shades a cell: its probability, or how little entropy it has."""
    if lens.colour == "entropy" and lens.entropy is not None:
        most = math.log(lens.inside.anatomy.n_vocab)
        return 1.0 - float(lens.entropy[row, column]) / most
    return math.exp(float(lens.logprobs[row, column, 0]))


def _columns(lens: Lens) -> range:
    """The columns that the page has room for: the last ones."""
    n = len(lens.positions)
    return range(max(0, n - max(1, CELLS // max(1, len(lens.layers)))), n)


def _name(lens: Lens, row: int, column: int, rank: int = 0, width: int = WIDTH) -> str:
    token = lens.inside.token_bytes(int(lens.ids[row, column, rank]))
    return alone(token, width)


def page(lens: Lens) -> str:
    """The grid, its legend, and the likeliest tokens of each cell as a folded table."""
    columns = _columns(lens)
    head = "".join(f"<th>{html.text(alone(lens.tokens[c], WIDTH))}</th>" for c in columns)
    rows = "".join(_row(lens, row, columns) for row in reversed(range(len(lens.layers))))
    grid = (
        '<div style="overflow-x:auto"><table style="font-size:11px;line-height:1.3">'
        f"<tr><th></th>{head}</tr>{rows}</table></div>"
    )
    names = {"probability": "probability", "entropy": "certainty (1 − entropy / its maximum)"}
    note = html.note(
        "each row is a block, the last one on top; each cell is the token that the model would say "
        "behind the token above it"
    )
    out = grid + shade.legend(f"{names[lens.colour]} of a cell:") + note
    if len(columns) < len(lens.positions):
        out += html.note(f"the last {len(columns)} of {len(lens.positions)} positions")
    return out + _details(lens, columns, MOST - len(out.encode()) - 4_000)


def _row(lens: Lens, row: int, columns: range) -> str:
    cells = []
    for column in columns:
        value = _value(lens, row, column)
        step = shade.step(value)
        look = f' style="{step.look}"' if step.look else ""
        cells.append(f"<td{look}>{html.text(_name(lens, row, column))}")
    return f"<tr><th>{lens.layers[row]}</th>{''.join(cells)}</tr>"


def _details(lens: Lens, columns: range, room: int) -> str:
    """Tables of the likeliest tokens, last position first, as many as the bytes allow."""
    parts: list[str] = []
    for column in reversed(columns):
        title = f"behind token {lens.positions[column]}: {html.text(alone(lens.tokens[column]))}"
        part = html.note(title) + _table(lens, column)
        room -= len(part.encode())
        if room < 0:
            break
        parts.append(part)
    if not parts:
        return ""
    return html.fold("Likeliest tokens of each cell", "".join(parts))


def _table(lens: Lens, column: int) -> str:
    rows = [
        (
            str(lens.layers[row]),
            *(
                f"{_name(lens, row, column, rank, 14)} {percent(math.exp(lp))}"
                for rank, lp in enumerate(lens.logprobs[row, column].tolist())
            ),
        )
        for row in reversed(range(len(lens.layers)))
    ]
    head = ("block", *(f"{rank + 1}." for rank in range(lens.ids.shape[2])))
    return html.columns(head, rows, numbers=(0,))


def plain(lens: Lens) -> str:
    """The last columns as text, with marks for the probability."""
    columns = range(max(0, len(lens.positions) - PLAIN), len(lens.positions))
    head = ["block", *(alone(lens.tokens[c], WIDTH) for c in columns)]
    rows = [
        [
            str(lens.layers[row]),
            *(_name(lens, row, c) + shade.step(_value(lens, row, c)).mark for c in columns),
        ]
        for row in reversed(range(len(lens.layers)))
    ]
    return "\n".join(aligned([head, *rows], [0]))


def values(lens: Lens) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """What shades each cell, [layers, positions], for the live view."""
    shape = (len(lens.layers), len(lens.positions))
    return np.array([[_value(lens, r, c) for c in range(shape[1])] for r in range(shape[0])])
