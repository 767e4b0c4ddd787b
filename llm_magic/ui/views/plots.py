"""Plots of a reply and of a notebook's generations, as matplotlib Axes.

matplotlib is imported on use, and pyplot never: there is no global figure and no back end is
chosen. A figure of our own is transparent and uses colours that read on white and on dark pages,
unless the caller or the user's matplotlib settings say otherwise.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from llm_magic.chat.reply import Reply

from . import logprobs, summary, tokens
from .throughput import Entry, place, speeds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUIET = "#8c959f"  # prefill, guides
STRONG = "#d97706"  # decode, the reply's own tokens
# Contrast of at least 4:1 on white, on #1f1f1f (VS Code) and on #111111 (JupyterLab).
INK = "#7d7d7d"
LABELS = 40  # tokens up to which each has its text below the axis

_INK_SETTINGS = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
_FACES = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")


@contextmanager
def canvas(ax: "Axes | None", dark: bool | None) -> "Iterator[Axes]":
    """The Axes to draw on: `ax`, or those of a new figure that a notebook shows.

    Args:
        ax: Axes of the caller; None makes a figure.
        dark: Colours for dark pages (True) or light ones (False). None: the user's matplotlib
            settings where they differ from matplotlib's own, else a transparent figure.
    """
    from matplotlib import rc_context, style

    settings: dict[str, object] = {} if ax is not None else {"font.size": 9.5}
    if dark is None and ax is None and _untouched():
        settings |= dict.fromkeys(_INK_SETTINGS, INK) | dict.fromkeys(_FACES, "none")
    base = {True: "dark_background", False: "default"}
    with style.context(base[dark] if dark is not None else {}), rc_context(settings):
        yield _new_axes() if ax is None else ax


def _untouched() -> bool:
    """Are the colours of text and faces those that matplotlib has by itself?"""
    from matplotlib import rcParams, rcParamsDefault

    return all(rcParams[name] == rcParamsDefault[name] for name in (*_INK_SETTINGS, *_FACES))


def _new_axes() -> "Axes":
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class ShownAxes(Axes):
        """Axes that a notebook shows as their figure, which pyplot would otherwise do."""

        def _repr_png_(self) -> bytes:
            return png(self)

    figure = Figure(figsize=(6.4, 2.6), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes: Axes = figure.add_subplot(axes_class=ShownAxes)
    return axes


def png(ax: "Axes") -> bytes:
    """The figure of some Axes as a PNG file, with the background that it was drawn for."""
    file = io.BytesIO()
    figure = ax.get_figure(root=True)
    assert figure is not None  # Axes that were removed from theirs cannot be shown
    figure.savefig(file, format="png", facecolor=figure.get_facecolor())
    return file.getvalue()


def _finish(ax: "Axes", x: str, y: str) -> None:
    """What all plots have in common."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


# ----------------------------------------------------------------------------- one reply


def plot(
    reply: Reply, what: str = "speed", ax: "Axes | None" = None, dark: bool | None = None
) -> "Axes":
    """Draw one of `PLOTS` over a reply. See `Reply.plot`."""
    draw = PLOTS.get(what)
    if draw is None:
        raise ValueError(f"plot({what!r}): choose one of {', '.join(map(repr, PLOTS))}")
    with canvas(ax, dark) as target:
        draw(target, reply)
    return target


def _speed(ax: "Axes", reply: Reply) -> None:
    """Tokens a second over time: prefill as a bar, decode as a line."""
    timings = reply.timings
    start, first = timings.queued, timings.first_token or timings.queued + timings.prefill
    if (rate := summary.prefill_tps(reply)) > 0:
        label = f"prefill {rate:,.0f} tok/s"
        ax.bar(start, rate, max(first - start, 1e-3), align="edge",
               color=QUIET, alpha=0.5, label=label)  # fmt: skip
    seconds, rates = speeds([t.at for t in reply.tokens if not t.forced])
    label = f"decode {timings.decode_tps:,.0f} tok/s"
    ax.plot(seconds, rates, color=STRONG, linewidth=1.6, label=label)
    _finish(ax, "seconds", "tokens a second")
    ax.set_ylim(bottom=0)
    ax.set_xlim(left=0)
    ax.legend(frameon=False, loc="best")


def _probability(ax: "Axes", reply: Reply) -> None:
    """The probability of each token; a gap where it is unknown."""
    shares = [logprobs.probability(t.logprob) for t in reply.tokens]
    _over_tokens(ax, reply, [math.nan if p is None else p for p in shares], "probability")
    ax.set_ylim(0, 1.05)


def _entropy(ax: "Axes", reply: Reply) -> None:
    """The entropy at each position, at least; a gap where no alternatives were recorded."""
    bits = [logprobs.entropy(t) for t in reply.tokens]
    _over_tokens(ax, reply, [math.nan if b is None else b for b in bits], "entropy ≥, bits")
    ax.set_ylim(bottom=0)


def _rank(ax: "Axes", reply: Reply) -> None:
    """The rank of each token in the vocabulary, 1 on top."""
    ranks = [math.nan if t.rank is None else max(1, t.rank) for t in reply.tokens]
    _over_tokens(ax, reply, ranks, "rank")
    ax.set_yscale("log")
    ax.set_ylim(max([10.0, *(r for r in ranks if r == r)]) * 1.3, 0.8)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _over_tokens(ax: "Axes", reply: Reply, values: Sequence[float], name: str) -> None:
    """Values over the positions of the tokens, each with its text where there is room."""
    places = range(len(values))
    size = 3.5 if len(values) <= 4 * LABELS else 1.5
    ax.plot(places, values, color=STRONG, linewidth=1.0, marker="o", markersize=size)
    _finish(ax, "token", name)
    if len(values) <= LABELS:
        ax.set_xticks(list(places), [_label(t.bytes) for t in reply.tokens], rotation=60,
                      ha="right", rotation_mode="anchor", parse_math=False)  # fmt: skip


def _label(data: bytes) -> str:
    """A token's text in the letters that matplotlib's own font has."""
    from matplotlib.font_manager import findfont, get_font

    known = get_font(findfont("DejaVu Sans")).get_charmap()
    text = tokens.alone(data, 14).replace("␣", "·")
    return "".join(c if ord(c) in known else "□" for c in text)


PLOTS: dict[str, Callable[["Axes", Reply], None]] = {
    "speed": _speed,
    "probability": _probability,
    "entropy": _entropy,
    "rank": _rank,
}

# ----------------------------------------------------------------------------- all generations


def plot_ledger(
    entries: Sequence[Entry], ax: "Axes | None" = None, dark: bool | None = None
) -> "Axes":
    """Prefill and decode speed of every generation of a notebook, in the order of the cells."""
    with canvas(ax, dark) as target:
        places = range(len(entries))
        # What was not measured (a scored text, an answer of one token) is no speed of 0.
        prefill = [e.prefill_tps or math.nan for e in entries]
        decode = [e.decode_tps or math.nan for e in entries]
        target.plot(places, prefill, "s", color=QUIET, label="prefill")
        target.plot(places, decode, "o", color=STRONG, label="decode")
        target.set_xticks(list(places), [place(e) for e in entries])
        _finish(target, "cell", "tokens a second")
        target.set_ylim(bottom=0)
        target.legend(frameon=False, loc="best")
    return target
