"""How near texts are to each other: the cosines of their vectors, as a table that is shaded."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_magic.columns import aligned

from . import html, summary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SHOWN = 40  # texts before the rest is summed up in a line
NAME = 60  # characters of a text


def fragment(texts: Sequence[str], cosines: "npt.NDArray[np.float32]") -> str:
    """The cosine of every text with every other one as an HTML table.

    Args:
        texts: The texts, [n].
        cosines: Their cosines, [n, n].
    """
    shown = texts[:SHOWN]
    head = ("", "text", *(str(i) for i in range(1, len(shown) + 1)))
    rows = [
        (
            str(i + 1),
            html.text(summary.one_line(text, NAME)),
            *(_cell(float(cosines[i, j]), i == j) for j in range(len(shown))),
        )
        for i, text in enumerate(shown)
    ]
    numbers = tuple(range(2, len(head)))
    return html.table(head, rows, numbers=numbers) + html.note(_rest(texts))


def _cell(value: float, same: bool) -> str:
    """A cosine; the nearer the texts, the deeper the blue behind it. The number is the meaning."""
    if same:
        return "1"
    shade = round(max(0.0, value) * 0.55, 2)
    style = f"background-color:rgba(0,114,178,{shade:g});padding:0 .3em;border-radius:3px"
    return f'<span style="{style}">{value:.2f}</span>'


def plain(texts: Sequence[str], cosines: "npt.NDArray[np.float32]") -> str:
    """The same as aligned lines of text."""
    shown = texts[:SHOWN]
    rows = [
        (
            str(i + 1),
            summary.one_line(text, NAME),
            *(f"{float(cosines[i, j]):.2f}" for j in range(len(shown))),
        )
        for i, text in enumerate(shown)
    ]
    head = ("", "", *(str(i) for i in range(1, len(shown) + 1)))
    lines = aligned([head, *rows], right=tuple(range(2, len(head))))
    return "\n".join([*lines, *filter(None, [_rest(texts)])])


def _rest(texts: Sequence[str]) -> str:
    more = len(texts) - SHOWN
    return f"{more:,} more texts; llm.similar(texts) gives the whole matrix" if more > 0 else ""
