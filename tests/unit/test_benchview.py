"""A report in a notebook: table, plot in both colours, and the command that measures."""

import sys

import pytest

from llm_magic.bench.report import OURS, Report, Result
from llm_magic.errors import LLMError
from llm_magic.ui.magics import bench_command
from llm_magic.ui.views import plots

RESULTS = (
    Result("prefill 512", OURS, "tok/s", (1500.0, 1400.0)),
    Result("prefill 512", "peer <b>", "tok/s", (300.0,)),
    Result("decode at 0", OURS, "tok/s", (8.0,)),
    Result("load in a fresh process", OURS, "s", (0.5,)),
)


@pytest.fixture
def report():
    return Report(
        "smollm2", 10**8, 10**8, 0, 2, {"cpu": "a CPU"}, {"python": "3"}, {"KV cache": "f16"},
        RESULTS, 40e9,
    )  # fmt: skip


def test_the_view_has_a_table_and_text_and_what_peers_are_called_is_only_text(report):
    data = bench_command.BenchView(report)._repr_mimebundle_()
    assert ">prefill 512</td>" in data["text/html"]
    assert "peer &lt;b&gt;" in data["text/html"]
    assert "<b>" not in data["text/html"]
    assert data["text/plain"] == repr(report)
    assert "5.00x" in data["text/plain"]


@pytest.mark.parametrize("dark", [False, True, None])
def test_the_plot_draws_a_bar_per_number_into_the_axes_that_are_given(report, dark):
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert bench_command.plot(report, ax, dark) is ax
    widths = [[bar.get_width() for bar in bars] for bars in ax.containers]
    assert widths == [[1500.0, 8.0], [300.0]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["prefill 512", "decode at 0"]
    assert {text.get_text() for text in ax.texts} == {"1,500", "8.00", "300  (ours 5.0x)"}


def test_without_axes_there_is_a_figure_of_its_own_in_the_colours_of_the_page(report):
    colors = {}
    for dark in (False, True):
        ax = bench_command.BenchView(report).plot(dark=dark)
        colors[dark] = ax.get_figure().get_facecolor()
        assert plots.png(ax).startswith(b"\x89PNG")
    assert sum(colors[True][:3]) < 0.5 < sum(colors[False][:3])
    few = bench_command.plot(report, tasks=["decode at 0"]).get_figure().get_size_inches()[1]
    assert bench_command.plot(report).get_figure().get_size_inches()[1] > few
    assert "matplotlib.pyplot" not in sys.modules


def test_seconds_and_megabytes_have_plots_of_their_own(report):
    ax = bench_command.plot(report, unit="s")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["load in a fresh process"]
    assert ax.get_xlabel() == "seconds"


class Shell:
    def __init__(self):
        self.shown = []


class Notebook:
    magic_name = "llm"
    shell = Shell()

    def look(self):
        return None


class Screen:
    def __init__(self):
        self.lines, self.end = [], None

    def event(self, event):
        self.lines.append(event.stage)

    def close(self, note):
        self.end = note


@pytest.fixture
def screen(monkeypatch):
    made = Screen()
    monkeypatch.setattr(bench_command.screens, "screen", lambda *arguments: made)
    return made


def test_the_command_measures_says_what_and_returns_the_view(report, screen, monkeypatch):
    asked = []

    def measure(options, say):
        asked.append(options)
        say("decode at 0")
        return report

    monkeypatch.setattr("llm_magic.bench.command.measure", measure)
    view = bench_command.command(Notebook(), "gemma3-270m --quick --peer none --threads 2")
    assert view.report is report
    assert screen.lines == ["decode at 0"]
    assert screen.end == "measured 4 numbers"
    (options,) = asked
    assert (options.model, options.quick, options.peer, options.threads) == (
        "gemma3-270m", True, ["none"], 2,
    )  # fmt: skip


def test_a_failure_closes_the_screen_and_a_wrong_option_is_named(screen, monkeypatch):
    from IPython.core.error import UsageError

    def measure(options, say):
        raise LLMError("no such model")

    monkeypatch.setattr("llm_magic.bench.command.measure", measure)
    with pytest.raises(LLMError, match="no such model"):
        bench_command.command(Notebook(), "")
    assert screen.end == "nothing was measured"
    with pytest.raises(UsageError, match="--quick"):
        bench_command.command(Notebook(), "--quik")
