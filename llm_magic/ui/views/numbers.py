"""What decisions, evaluations and samples look like: the MIME bundles of their objects."""

from llm_magic.chat.view_protocols import MimeTypes
from llm_magic.columns import aligned
from llm_magic.decisions.calibration import Calibration
from llm_magic.decisions.decision import Decision

from . import html, logprobs, summary
from .mime import Bundle, Fragment

SHOWN = 50  # choices before the rest is summed up in a line
NAME = 60  # characters of a choice
LITTLE = 0.05  # a mass below which the model would rather have said something else
MOVED = 0.2  # a spread above which the order of the choices decides much


def decision(found: Decision, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
    """The choices of a decision as bars, in the order given, with what follows from them."""
    return decision_view(found)._repr_mimebundle_(include, exclude)


def decision_view(found: Decision) -> Fragment:
    rows = _choice_rows(found)
    page = html.table(
        ("", "choice", "p", ""),
        [
            (mark, f"<code>{html.escape(name)}</code>", html.text(percent), bar)
            for mark, name, percent, bar in rows
        ],
        numbers=(2,),
    )
    notes = [_facts(found), *_warnings(found)]
    if len(found.probabilities) > SHOWN:
        notes.insert(0, f"{len(found.probabilities) - SHOWN:,} more choices")
    lines = aligned(rows, right=(2,))
    body = page + "".join(html.note(html.text(note)) for note in notes)
    return Fragment(body, "\n".join([*lines, *notes]))


def _choice_rows(found: Decision) -> list[tuple[str, str, str, str]]:
    """(mark, choice, percent, bar); a long list begins with the most likely ones."""
    named = list(found.probabilities.items())
    if len(named) > SHOWN:
        named = sorted(named, key=lambda item: -item[1])[:SHOWN]
    return [
        (
            "→" if name == found.choice else "",
            summary.one_line(name, NAME),
            logprobs.percent(p),
            summary.meter(p),
        )
        for name, p in named
    ]


def _facts(found: Decision) -> str:
    facts = [f"margin {found.margin:.2f}", f"entropy {found.entropy:.2f} nats"]
    if found.expected is not None:
        facts.insert(0, f"mean {found.expected:.2f}")
    n = len(found.readings)
    facts.append(f"mean over {n} orders of the choices" if n > 1 else "one order of the choices")
    if found.length:
        facts.append(f"per {found.length.removesuffix('s')}")
    if found.calibrated:
        facts.append("calibrated")
    return " · ".join(facts)


def _warnings(found: Decision) -> list[str]:
    """What makes a decision worth less than its numbers say."""
    said = []
    if found.spread > MOVED:
        said.append(f"the order of the choices moves a probability by {found.spread:.0%}")
    if found.mass < LITTLE and not found.length:
        said.append(
            f"all choices together have {logprobs.percent(found.mass)} of the model's probability: "
            "it would rather say something else"
        )
    return said


def calibration(found: Calibration, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
    """A calibration: what it changes, and by how much it fits its examples better."""
    return calibration_view(found)._repr_mimebundle_(include, exclude)


def calibration_view(found: Calibration) -> Fragment:
    rows = [("examples", f"{found.n:,}"), ("method", found.method)]
    if found.method == "temperature":
        sure = "too sure" if found.temperature > 1 else "not sure enough"
        rows.append(("temperature", f"{found.temperature:.3f} (the model is {sure})"))
    rows += [(f"bias of {name}", f"{value:+.3f}") for name, value in found.bias.items()]
    rows.append(("mean -log p of the labels", f"{found.before:.3f} → {found.after:.3f} nats"))
    page = html.table(("", ""), [[html.text(cell) for cell in row] for row in rows])
    return Fragment(page, "\n".join(aligned(rows)))
