"""What an inspection holds."""

from llm_magic.columns import aligned
from llm_magic.inside.inspection import Inspection
from llm_magic.taps import full_name

from .. import html
from ..summary import counted, model_name
from ..tokens import alone

SHOWN = 40  # rows of the table


def _facts(inspection: Inspection) -> list[str]:
    return [
        model_name(inspection.model) or "inspection",
        counted(len(inspection), "array"),
        counted(len(inspection.positions), "position"),
        f"{inspection.nbytes / 1e6:,.1f} MB",
    ]


def _rows(inspection: Inspection) -> list[tuple[str, str]]:
    rows = [
        (full_name(site), " × ".join(map(str, inspection[site].shape)))
        for site in list(inspection)[:SHOWN]
    ]
    if len(inspection) > SHOWN:
        rows.append((f"… {len(inspection) - SHOWN} more", ""))
    return rows


def page(inspection: Inspection) -> str:
    """Names and shapes, and the text."""
    text = "|".join(alone(token) for token in inspection.tokens[:200])
    more = " …" if len(inspection.tokens) > 200 else ""
    table = html.columns(("activation", "shape"), _rows(inspection))
    facts = html.note(*map(html.text, _facts(inspection)))
    return facts + html.verbatim(text + more) + html.fold("Arrays", table, opened=True)


def plain(inspection: Inspection) -> str:
    """The same as text."""
    return "\n".join([" · ".join(_facts(inspection)), *aligned(_rows(inspection), [])])
