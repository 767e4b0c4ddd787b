"""What decisions, evaluations and samples look like: the MIME bundles of their objects."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_magic.chat.view_protocols import MimeTypes
from llm_magic.columns import aligned
from llm_magic.decisions.calibration import Calibration
from llm_magic.decisions.decision import Decision
from llm_magic.evaluation.metrics import Bin
from llm_magic.evaluation.perplexity import Perplexity
from llm_magic.evaluation.report import Evaluation
from llm_magic.evaluation.uncertainty import Uncertainty

from . import html, logprobs, plots, summary
from .mime import Bundle, Fragment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 50  # choices before the rest is summed up in a line
NAME = 60  # characters of a choice
LITTLE = 0.05  # a mass below which the model would rather have said something else
FEW = 5  # errors of rows that are shown
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
    return _facts_table(rows)


def _facts_table(rows: Sequence[tuple[str, str]]) -> Fragment:
    page = html.table(("", ""), [[html.text(cell) for cell in row] for row in rows])
    return Fragment(page, "\n".join(aligned(rows)))


# ----------------------------------------------------------------------------- evaluations


def evaluation(found: Evaluation, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
    """The measures of an evaluation, and its rows by confidence."""
    return evaluation_view(found)._repr_mimebundle_(include, exclude)


def evaluation_view(found: Evaluation) -> Fragment:
    measures = _measures(found)
    bins = [_bin_row(b) for b in found.bins() if b.n]
    head = ("confidence", "rows", "mean", "right", "")
    page = html.table(
        ("measure", "", "what it is"), [[html.text(c) for c in row] for row in measures],
        numbers=(1,),
    )  # fmt: skip
    page += html.table(head, [[html.text(c) for c in row] for row in bins], numbers=(1, 2, 3))
    notes = [_how(found), *_errors(found)]
    lines = [*aligned(measures, right=(1,)), "", *aligned([head, *bins], right=(1, 2, 3)), *notes]
    return Fragment(page + "".join(html.note(html.text(n)) for n in notes), "\n".join(lines))


def _measures(found: Evaluation) -> list[tuple[str, str, str]]:
    spread = "" if math.isnan(found.accuracy_error) else f" ± {found.accuracy_error:.3f}"
    rows = [("acc", f"{found.accuracy:.3f}{spread}", "share of right choices, standard error")]
    if found.accuracy_norm is not None:
        rows.append(("acc_norm", f"{found.accuracy_norm:.3f}", "the same by bytes of the choice"))
    return [
        *rows,
        ("ECE", f"{found.calibration_error:.3f}", "mean gap of confidence and accuracy; 0 is best"),
        ("Brier", f"{found.brier:.3f}", "squared error of the probabilities; 0 is best, 2 worst"),
        ("-log p", f"{found.log_loss:.3f}", "of the right choice, in nats; 0 is best"),
    ]


def _bin_row(b: Bin) -> tuple[str, str, str, str, str]:
    return (
        f"{b.low:.0%} to {b.high:.0%}",
        f"{b.n:,}",
        f"{b.confidence:.0%}",
        f"{b.accuracy:.0%}",
        summary.meter(b.accuracy),
    )


def _how(found: Evaluation) -> str:
    how = "choices shown in a chat" if found.chat else "choices as continuations"
    parts = [f"{len(found.answered):,} rows", how, f"{found.shots} examples before each"]
    if found.model:
        parts.append(summary.model_name(found.model))
    return " · ".join(parts)


def _errors(found: Evaluation) -> list[str]:
    errors = found.errors
    said = [f"row {item.row}: {summary.one_line(item.error or '', 200)}" for item in errors[:FEW]]
    if len(errors) > FEW:
        said.append(f"{len(errors) - FEW:,} more rows with an error")
    return said


def plot_reliability(
    found: Evaluation, ax: "Axes | None" = None, dark: bool | None = None
) -> "Axes":
    """Accuracy over confidence, each bin with its number of rows; the dashed line is perfect."""
    with plots.canvas(ax, dark) as target:
        bins = [b for b in found.bins() if b.n]
        width = 1 / max(1, len(found.bins()))
        bars = target.bar(
            [(b.low + b.high) / 2 for b in bins], [b.accuracy for b in bins], width * 0.9,
            color=plots.QUIET, alpha=0.6, label="accuracy",
        )  # fmt: skip
        target.bar_label(bars, [str(b.n) for b in bins], label_type="center", fontsize=8)
        target.plot(
            [b.confidence for b in bins], [b.accuracy for b in bins],
            color=plots.STRONG, marker="o", linewidth=1.6, label="mean of a bin",
        )  # fmt: skip
        target.plot([0, 1], [0, 1], linestyle="--", linewidth=1, color="#8c959f", label="perfect")
        target.set_xlim(0, 1)
        target.set_ylim(0, 1.08)
        target.set_xlabel("confidence")
        target.set_ylabel("accuracy")
        target.set_title(f"ECE {found.calibration_error:.3f}, {len(found.answered):,} rows")
        target.legend(frameon=False, loc="upper left")
        target.spines[["top", "right"]].set_visible(False)
    return target


def perplexity(found: Perplexity, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
    """A perplexity with the convention that it holds for."""
    return perplexity_view(found)._repr_mimebundle_(include, exclude)


def perplexity_view(found: Perplexity) -> Fragment:
    spread = "" if math.isnan(found.error) else f" ± {found.error:.4f}"
    windows = f"{found.convention}, window {found.window:,}, stride {found.stride:,}"
    return _facts_table(
        [
            ("perplexity", f"{found.value:.4f}{spread}"),
            ("bits a byte", f"{found.bits_per_byte:.4f}"),
            ("scored", f"{found.tokens:,} tokens, {found.bytes:,} bytes"),
            ("convention", windows),
            ("model", summary.model_name(found.model)),
        ]
    )


# ----------------------------------------------------------------------------- samples


def uncertainty(found: Uncertainty, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
    """The meanings of samples as bars, with the answers of each."""
    return uncertainty_view(found)._repr_mimebundle_(include, exclude)


def uncertainty_view(found: Uncertainty) -> Fragment:
    rows, folds, lines = [], [], []
    for meaning in found.meanings:
        bar, share = summary.meter(meaning.probability), logprobs.percent(meaning.probability)
        name = summary.one_line(meaning.text, NAME)
        rows.append((html.text(name), share, bar))
        lines.append((name, share, bar))
        members = [found.replies[i].text.strip() for i in meaning.members]
        body = "".join(html.verbatim(text) for text in members)
        count = f"{len(members)} answer{'s' * (len(members) != 1)}"
        folds.append(html.fold(f"{count}: {html.text(name)}", body))
    n, m = len(found.replies), len(found.meanings)
    note = f"entropy {found.entropy:.2f} nats over {m} meanings of {n} answers"
    page = html.table(("meaning", "share", ""), rows, numbers=(1,)) + "".join(folds)
    return Fragment(
        page + html.note(html.text(note)), "\n".join([*aligned(lines, right=(1,)), note])
    )
