"""Cells of text as lines with aligned columns, in every script. Standard library only."""

import unicodedata
from collections.abc import Container, Sequence


def aligned(
    rows: Sequence[Sequence[str]], right: Container[int] = (), rule: bool = False
) -> list[str]:
    """One line per row.

    >>> print("\\n".join(aligned([("name", "n"), ("cat", "12")], right={1}, rule=True)))
    name   n
    ----  --
    cat   12

    Args:
        right: Numbers of the columns that are aligned to the right.
        rule: Put a line of dashes below the first row.
    """
    cells = [[_isolated(cell) for cell in row] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            _pad(cell, width, i in right)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if rule:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _pad(cell: str, width: int, right: bool) -> str:
    space = " " * (width - cell_width(cell))
    return space + cell if right else cell + space


def cell_width(cell: str) -> int:
    """Columns that a monospaced font gives to `cell`."""
    if cell.isascii():
        return len(cell)
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf")
        else 2 if unicodedata.east_asian_width(c) in "WF"
        else 1
        for c in cell
    )  # fmt: skip


def _isolated(cell: str) -> str:
    """Right-to-left script in a cell must not reorder the cells after it."""
    if cell.isascii() or not any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for c in cell):
        return cell
    return f"\u2068{cell}\u2069"
