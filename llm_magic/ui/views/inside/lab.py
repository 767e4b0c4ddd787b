"""The steps of the sampler over one distribution, as a table."""

from llm_magic.columns import aligned
from llm_magic.inside.lab import Lab, Stage

from .. import html
from ..logprobs import percent
from ..tokens import alone
from . import shade

SHOWN = 12  # tokens
NAMES = {
    "logits": "model",
    "penalties": "penalties and bias",
    "top_k": "top-k",
    "typical_p": "typical",
    "top_p": "top-p",
    "min_p": "min-p",
    "xtc": "XTC",
}


def _head(stage: Stage) -> str:
    return NAMES.get(stage.name, stage.name)


def _tokens(lab: Lab) -> list[int]:
    return [int(i) for i in lab.stages[0].ids[:SHOWN]]


def page(lab: Lab) -> str:
    """One row for each of the likeliest tokens, one column for each step."""
    rows = []
    for token in _tokens(lab):
        cells = [html.text(alone(lab.inside.token_bytes(token), 20))]
        for stage in lab.stages:
            p = stage.of(token)
            cells.append(shade.chip(p, f"&nbsp;{percent(p)}&nbsp;") if p else "–")
        rows.append(cells)
    rows.append(["tokens left", *(f"{len(stage):,}" for stage in lab.stages)])
    numbers = tuple(range(1, len(lab.stages) + 1))
    head = ("token", *(html.text(_head(stage)) for stage in lab.stages))
    return (
        html.table(head, rows, numbers=numbers)
        + html.note("each column is what a step leaves, in the order in which they apply")
        + shade.legend("probability:")
    )


def plain(lab: Lab) -> str:
    """The table as text."""
    rows = [["token", *(_head(stage) for stage in lab.stages)]]
    for token in _tokens(lab):
        values = [stage.of(token) for stage in lab.stages]
        cells = [percent(p) if p else "–" for p in values]
        rows.append([alone(lab.inside.token_bytes(token), 20), *cells])
    rows.append(["tokens left", *(f"{len(stage):,}" for stage in lab.stages)])
    return "\n".join(aligned(rows, range(1, len(lab.stages) + 1)))
