"""The named models and what each needs, as rows of `%llm models`."""

from collections.abc import Container
from dataclasses import replace

from . import models
from .columns import aligned
from .errors import ModelError
from .models import Known


def rows() -> list[Known]:
    """`models.known()`, where files that are here say themselves what they need."""
    return [_measured(row) for row in models.known()]


def _measured(row: Known) -> Known:
    if row.path is None:
        return row
    from .engine import needs

    try:
        found = needs.of_file(row.path)
    except (ModelError, OSError):  # loading it says why
        return row
    return replace(row, memory=found.memory, context=found.context)


def listing() -> list[str]:
    """The models as lines of text."""
    head = ("model", "state", "size", "memory", "context", "what it is")
    table = [head, *(cells(row)[:6] for row in rows())]
    return aligned(table, right={2, 3, 4}, rule=True)


def cells(
    row: Known, names: Container[str] = (), paths: Container[str | None] = ()
) -> tuple[str, ...]:
    """Name, state, size, memory, context, description and licence of a row as text.

    Args:
        names: Of models that are loaded.
        paths: Of their files.

    >>> cells(Known("m", "a model", 98_000_000, True, "MIT", 215_000_000, 8192))
    ('m', 'here', '98 MB', '215 MB', '8,192', 'a model', 'MIT')
    """
    loaded = row.name in names or (row.path is not None and str(row.path) in paths)
    state = "loaded" if loaded else "here" if row.cached else "to fetch"
    context = f"{row.context:,}" if row.context else ""
    sizes = (_bytes(row.size), _bytes(row.memory), context)
    return (row.name, state, *sizes, row.description, row.licence)


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size else ""
