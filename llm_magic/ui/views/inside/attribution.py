"""Bars of what each part of a model adds: lengths by block, and logits by part."""

from llm_magic.columns import aligned
from llm_magic.inside.attribution import Attribution, Norms, Part

from .. import html
from ..tokens import alone
from . import shade

SHOWN = 16  # parts with a bar


def norms_page(norms: Norms) -> str:
    """Lengths by block."""
    return html.columns(("block", "stream", "attention adds", "mlp adds", "behind it", ""),
                        _norm_rows(norms), numbers=(0, 1, 2, 3, 4)) + html.note(
        "length of vectors, root mean square over the positions"
    )  # fmt: skip


def norms_plain(norms: Norms) -> str:
    """The same as text."""
    head = ("block", "stream", "attention adds", "mlp adds", "behind it", "")
    return "\n".join(aligned([head, *_norm_rows(norms)], [0, 1, 2, 3, 4]))


def _norm_rows(norms: Norms) -> list[tuple[str, ...]]:
    most = float(norms.resid_post.max()) or 1.0
    columns = (norms.resid_pre, norms.attn_out, norms.mlp_out, norms.resid_post)
    return [
        (str(i), *(f"{float(c[i]):,.2f}" for c in columns), shade.bar(float(columns[3][i]) / most))
        for i in range(len(norms.resid_pre))
    ]


def _title(attribution: Attribution) -> str:
    token = alone(attribution.token.encode())
    other = "the mean of all logits"
    if attribution.against is not None:
        other = alone(attribution.against.encode())
    return f"{token} against {other}: {attribution.total:+.3f}"


def _rows(attribution: Attribution, parts: tuple[Part, ...]) -> list[tuple[str, str, str]]:
    most = max((abs(part.value) for part in attribution.parts), default=0.0) or 1.0
    return [(p.name, f"{p.value:+.3f}", shade.bar(abs(p.value) / most)) for p in parts]


def page(attribution: Attribution) -> str:
    """The parts that count most, shaded by sign, and all of them folded."""
    most = max((abs(part.value) for part in attribution.parts), default=0.0) or 1.0
    top = [
        (
            html.text(part.name),
            shade.chip(part.value / most, f"&nbsp;{part.value:+.3f}&nbsp;"),
            html.text(shade.bar(abs(part.value) / most)),
        )
        for part in attribution.top(SHOWN)
    ]
    every = html.columns(("part", "logit", ""), _rows(attribution, attribution.parts), numbers=(1,))
    return (
        html.note(f"<strong>{html.text(_title(attribution))}</strong>", quiet=False)
        + html.table(("part", "logit", ""), top, numbers=(1,))
        + shade.legend("parts that speak", signed=True)
        + html.fold(f"All {len(attribution.parts)} parts; they sum to the total", every)
    )


def plain(attribution: Attribution) -> str:
    """The parts that count most, as text."""
    rows = _rows(attribution, attribution.top(SHOWN))
    return "\n".join([_title(attribution), *aligned(rows, [1])])
