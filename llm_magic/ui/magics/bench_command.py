"""`%llm bench`: a benchmark's report as a table and a plot. matplotlib is imported on use."""

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import MagicArgumentParser

from llm_magic.bench.report import OURS, Report, head, remarks, rows, table
from llm_magic.events import Progress

from ..views import html, mime, plots
from . import command_line, screens
from .session import Notebook

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#d97706", "#8c959f", "#0969da", "#8250df", "#1a7f37")  # ours first
HEIGHT = 0.19  # inches of a bar
KINDS = {
    "tok/s": "tokens a second",
    "s": "seconds",
    "ms": "milliseconds",
    "MB": "megabytes",
    "labels/s": "labels a second",
}


class BenchView(mime.Fragment):
    """A report as a notebook shows it. `report` has the numbers; `plot()` draws them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        cells = [[html.text(cell) for cell in row] for row in rows(report)]
        titles = [html.text(title) for title in head(report)]
        body = html.table(titles, cells, numbers=range(1, len(titles)))
        said = [f"{html.text(name)}: {html.text(what)}" for name, what in remarks(report)]
        super().__init__(body + "".join(html.note(line) for line in said), table(report))

    def plot(
        self,
        ax: "Axes | None" = None,
        dark: bool | None = None,
        tasks: Sequence[str] | None = None,
    ) -> "Axes":
        """See `plot`."""
        return plot(self.report, ax, dark, tasks=tasks)


def command(nb: Notebook, rest: str) -> BenchView:
    """`%llm bench`: measure, with a line that says what is being measured, and show the report."""
    from llm_magic.bench.command import add_options, measure

    parser = MagicArgumentParser(f"{nb.magic_name} bench")
    add_options(parser)
    args = command_line.parse(parser, rest, f"%{parser.prog}")
    screen = screens.screen(nb.shell, nb.look(), args.model or "benchmark")
    try:
        report = measure(args, _teller(screen))
    except BaseException:
        screen.close("nothing was measured")
        raise
    screen.close(f"measured {len(report.results)} numbers")
    return BenchView(report)


def options_help() -> str:
    """Each option of `%llm bench`, and what it means."""
    from llm_magic.bench.command import add_options

    parser = argparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
    add_options(parser)
    return parser.format_help().strip()


def _teller(screen: screens.Screen) -> Callable[[str], None]:
    def say(text: str) -> None:
        screen.event(Progress(text, 0, 0))

    return say


# ----------------------------------------------------------------------------- the plot


def plot(
    report: Report,
    ax: "Axes | None" = None,
    dark: bool | None = None,
    unit: str = "tok/s",
    tasks: Sequence[str] | None = None,
) -> "Axes":
    """Every task as a bar per subject, with its number, and for peers how many times ours is.

    ax: draw there; None: on a new figure, which a notebook shows as an image. dark: colours for
    dark pages; None: as matplotlib's settings say. unit: "tok/s", "s" or "MB". tasks: which of
    them, in which order; None: all of that unit. Returns the Axes.
    """
    if tasks is None:
        tasks = list(dict.fromkeys(r.task for r in report.results if r.unit == unit))
    with plots.canvas(ax, dark) as target:
        if ax is None:
            bars = len(tasks) * (len(report.subjects) + 1)
            _figure(target).set_size_inches(6.8, max(1.6, 0.9 + HEIGHT * bars))
        _draw(target, report, tasks, unit)
    return target


def _figure(ax: "Axes") -> Any:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def _draw(ax: "Axes", report: Report, tasks: Sequence[str], unit: str) -> None:
    subjects = report.subjects
    for i, subject in enumerate(subjects):
        found = [(y, r) for y, task in enumerate(tasks) if (r := report.get(task, subject))]
        places = [y + (i - (len(subjects) - 1) / 2) * 0.8 / len(subjects) for y, _ in found]
        color = COLORS[0] if subject == OURS else COLORS[1 + (i - 1) % (len(COLORS) - 1)]
        bars = ax.barh(
            places, [r.best for _, r in found], 0.72 / len(subjects), color=color, label=subject
        )
        labels = [_label(report, r.task, subject, r.best) for _, r in found]
        ax.bar_label(bars, labels, padding=3, fontsize=8)
    ax.set_yticks(range(len(tasks)), tasks)
    ax.invert_yaxis()
    ax.margins(x=0.16)
    ax.set_xlabel(KINDS.get(unit, unit))
    ax.grid(axis="x", alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if len(subjects) > 1:
        ax.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(subjects))


def _label(report: Report, task: str, subject: str, value: float) -> str:
    digits = 0 if value >= 10 else 2
    text = f"{value:,.{digits}f}"
    ratio = report.ratio(task, subject) if subject != OURS else None
    return f"{text}  (ours {ratio:.1f}x)" if ratio else text
