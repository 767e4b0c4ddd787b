"""A prompt shaded by what its parts did to the answer."""

from llm_magic.columns import aligned
from llm_magic.inside.causes import Causes

from .. import html
from ..tokens import alone
from . import shade


def _most(causes: Causes) -> float:
    return max((abs(part.effect) for part in causes.parts), default=0.0) or 1.0


def page(causes: Causes) -> str:
    """The prompt, shaded, and the parts by their effects."""
    most = _most(causes)
    text = "".join(
        html.escape(piece)
        if part is None
        else shade.chip(
            causes.parts[part].effect / most,
            html.escape(piece),
            f"{causes.parts[part].effect:+.3f} nats",
        )
        for piece, part in causes.pieces
    )
    rows = _rows(causes)
    return (
        f'<pre style="{html.FLOW}">\n{text}</pre>'
        + shade.legend("parts that made the answer likelier, and those that spoke", signed=True)
        + html.note(
            f"{html.text(alone(causes.answer.encode(), 60))} has a log-probability of "
            f"{causes.logprob:.2f} nats; each part was left out once"
        )
        + html.fold("Effects of the parts, in nats", html.columns(("effect", "", "part"), rows,
                                                                 numbers=(0,)), opened=True)
    )  # fmt: skip


def _rows(causes: Causes) -> list[tuple[str, str, str]]:
    most = _most(causes)
    return [
        (f"{part.effect:+.2f}", shade.bar(abs(part.effect) / most, 10), _short(part.text))
        for part in causes.top(12)
    ]


def _short(text: str) -> str:
    return alone(text.strip().encode(), 70).replace("␣", " ")


def plain(causes: Causes) -> str:
    """The effects as text."""
    title = f"{alone(causes.answer.encode(), 60)}: {causes.logprob:.2f} nats"
    return "\n".join([title, *aligned(_rows(causes), [0])])
