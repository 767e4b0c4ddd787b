"""The live views of a model's inside: lens, attention, causes, strengths.

Everything that a view shows is in its state, so it works without a kernel too, and in a saved
notebook whose widgets are saved. Below it stands the static form, for where widgets are not shown.
"""

import base64
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets
from IPython.display import display

from llm_magic.errors import RequestError
from llm_magic.inside.causes import Causes
from llm_magic.inside.inspection import Inspection
from llm_magic.inside.lens import Lens
from llm_magic.inside.strengths import Strengths
from llm_magic.ui.views import inside, tokens
from llm_magic.ui.views.inside import lens as lens_view
from llm_magic.ui.views.inside.shade import AGAINST, AMOUNT, FLOORS

MOST = 2_000_000  # bytes of the patterns in a state
POSITIONS = 96  # of a live view: the last ones

State = dict[str, Any]


def lens_state(lens: Lens) -> State:
    """The grid with the likeliest tokens of each cell."""
    first = max(0, len(lens.positions) - POSITIONS)
    names = {int(i): tokens.alone(lens.inside.token_bytes(int(i)), 16) for i in np.unique(lens.ids)}
    ids, logprobs = lens.ids[:, first:], lens.logprobs[:, first:]
    return {
        "kind": "lens",
        "layers": list(lens.layers),
        "tokens": [tokens.alone(t, 12) for t in lens.tokens[first:]],
        "names": {str(i): name for i, name in names.items()},
        "ids": ids.tolist(),
        "p": [[[round(math.exp(x), 4) for x in cell] for cell in row] for row in logprobs.tolist()],
        "shade": lens_view.values(lens)[:, first:].round(3).tolist(),
    }


def attention_state(inspection: Inspection) -> State:
    """Every head's pattern of every block, as bytes, and the lens."""
    anatomy = inspection.inside.anatomy
    n = anatomy.n_layers
    fit = int(math.sqrt(MOST / (n * anatomy.n_heads)))
    last = inspection.positions[-min(POSITIONS, fit) :]
    held = inspection.need([("pattern", i) for i in range(n)], last)
    start = last[0]
    patterns = [np.rint(held["pattern", i][:, :, start:] * 255).astype(np.uint8) for i in range(n)]
    return {
        "kind": "attention",
        "tokens": [tokens.flowing(t) for t in held.tokens],
        "layers": n,
        "heads": anatomy.n_heads,
        "patterns": [base64.b64encode(p.tobytes()).decode() for p in patterns],
    }


def causes_state(causes: Causes) -> State:
    """The prompt in pieces, and the effect of each part."""
    return {
        "kind": "causes",
        "answer": causes.answer,
        "logprob": causes.logprob,
        "pieces": [[text, part] for text, part in causes.pieces],
        "effects": [round(part.effect, 4) for part in causes.parts],
    }


def strengths_state(strengths: Strengths) -> State:
    """The answers by strength."""
    return {
        "kind": "strengths",
        "prompt": strengths.prompt,
        "scales": list(strengths.scales),
        "answers": [reply.text for reply in strengths.replies],
    }


STATES: dict[type, Callable[[Any], State]] = {
    Lens: lens_state,
    Inspection: attention_state,
    Causes: causes_state,
    Strengths: strengths_state,
}


class InsideView(anywidget.AnyWidget):  # type: ignore[misc]
    """`inspection.explore()`, `lens.explore()`, `causes.explore()`, `strengths.explore()`.

    Args:
        shown: What is explored.
    """

    _esm = Path(__file__).with_name("inside.js").read_text("utf-8")
    _css = Path(__file__).with_name("inside.css").read_text("utf-8")

    # What the page draws; never changes.
    state = traitlets.Dict().tag(sync=True)
    # The steps of the shades: [floors, [[background, text], ...], the same for negative amounts].
    scale = traitlets.List().tag(sync=True)

    def __init__(self, shown: object) -> None:
        make = STATES.get(type(shown))
        if make is None:
            raise RequestError(f"a {type(shown).__name__} has no live view")
        self.shown = shown
        steps = [[[step.back, step.text] for step in scale] for scale in (AMOUNT, AGAINST)]
        super().__init__(state=make(shown), scale=[list(FLOORS), *steps])

    def __repr__(self) -> str:
        return f"<InsideView of a {type(self.shown).__name__}>"

    def _ipython_display_(self) -> None:
        """The live view, and below it, folded, the static form."""
        display(_Live(self))
        display(inside.view(self.shown))


class _Live:
    """The widget alone, as a display of its own."""

    def __init__(self, view: InsideView) -> None:
        self._view = view

    def _repr_mimebundle_(self, **options: object) -> Any:
        return anywidget.AnyWidget._repr_mimebundle_(self._view, **options)
