"""Shades of numbers: one hue for amounts, two for amounts with a sign; marks for plain text."""

from collections.abc import Sequence
from dataclasses import dataclass

from .. import html


@dataclass(frozen=True, slots=True)
class Step:
    """Background and text of one step, contrast >= 4.5:1; the element where styles are removed."""

    back: str
    text: str
    element: str = "span"
    mark: str = ""

    @property
    def look(self) -> str:
        return f"background-color:{self.back};color:{self.text}" if self.back else ""


AMOUNT = (
    Step("", "", mark=" "),
    Step("#d9e8f5", "#1b2733", mark="▁"),
    Step("#b0cfe8", "#14212e", mark="▂"),
    Step("#73aad4", "#0b1520", "ins", "▄"),
    Step("#2f6ea5", "#ffffff", "ins", "▆"),
    Step("#123f70", "#ffffff", "mark", "█"),
)
AGAINST = (
    Step("", "", mark=" "),
    Step("#fbe6cf", "#2b1a00", mark="▁"),
    Step("#f7c795", "#2b1a00", mark="▂"),
    Step("#ee9c4d", "#1f1200", "ins", "▄"),
    Step("#a85200", "#ffffff", "ins", "▆"),
    Step("#713300", "#ffffff", "mark", "█"),
)
FLOORS = (0.02, 0.1, 0.3, 0.6, 0.9)  # from where on each step but the first holds


def step(value: float, floors: Sequence[float] = FLOORS) -> Step:
    """The step of an amount from 0 to 1; below 0 that of a negative one."""
    scale = AMOUNT if value >= 0 else AGAINST
    return scale[sum(abs(value) >= floor for floor in floors)]


def chip(value: float, inner: str, title: str = "") -> str:
    """A piece of HTML, shaded. title: plain text."""
    at = step(value)
    tip = f' title="{html.attribute(title)}"' if title else ""
    if not at.look:
        return f"<span{tip}>{inner}</span>" if tip else inner
    return f'<{at.element}{tip} style="{at.look}">{inner}</{at.element}>'


def legend(words: str, signed: bool = False) -> str:
    """What the shades mean."""
    names = [f"from {floor:.0%}" for floor in FLOORS]
    steps = [chip(f, f"&nbsp;{n}&nbsp;") for f, n in zip(FLOORS, names, strict=True)]
    if signed:
        steps = [chip(0.7, "&nbsp;for&nbsp;"), chip(-0.7, "&nbsp;against&nbsp;")]
    return html.note(html.text(words) + " " + " ".join(steps), quiet=False)


def bar(value: float, width: int = 20) -> str:
    """A bar of text for a value from 0 to 1.

    >>> bar(0.5, 4)
    '██'
    """
    eighths = round(max(0.0, min(1.0, value)) * width * 8)
    rest = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + rest
