"""How a run over a table is shown: live while it runs, one still line in the saved notebook."""

from typing import Any

import pandas as pd
import pytest

from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.tables.run import State
from llm_magic.ui import tables as bars
from llm_magic.ui.views import tables
from llm_magic.ui.widgets.shared import jupyter


class Publisher:
    """Keeps what a cell's output was told."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], bool]] = []

    def publish(self, data: Any, metadata: Any = None, transient: Any = None, **how: Any) -> None:
        self.sent.append((data, bool(how.get("update"))))


class Shell:
    def __init__(self) -> None:
        self.kernel = object()
        self.display_pub = Publisher()
        self.user_ns: dict[str, Any] = {}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    shell = Shell()
    for module in (bars, jupyter):
        monkeypatch.setattr(module, "get_ipython", lambda: shell)
    monkeypatch.setattr(bars, "PATIENCE", 0.0)
    monkeypatch.setattr(bars, "PAUSE", 0.0)
    monkeypatch.delenv("LLM_MAGIC_DOCS", raising=False)
    return shell


def run(**options: Any) -> pd.DataFrame:
    rows = [{"n": i} if i % 5 else {"m": i} for i in range(20)]
    llm = LLM(Scripted(lambda request: "yes"))
    return llm.map(rows, "Row {{ n }}", **options)  # type: ignore[no-any-return]


def test_a_bar_is_updated_in_place_and_ends_as_a_still_line(shell: Shell) -> None:
    run()
    sent = shell.display_pub.sent
    assert [update for _, update in sent] == [False] + [True] * (len(sent) - 1)
    assert any("<progress" in data["text/html"] for data, _ in sent[:-1])
    assert any(
        "a second" in data["text/plain"] and " left" in data["text/plain"] for data, _ in sent
    )
    last = sent[-1][0]
    assert "<progress" not in last["text/html"]
    assert last["text/plain"].startswith("20 answers · 4 errors · ")


def test_documentation_has_one_line_that_is_the_same_on_every_run(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_MAGIC_DOCS", "1")
    run()
    ((data, update),) = shell.display_pub.sent
    assert not update
    assert data["text/plain"] == "20 answers · 4 errors"


def test_nothing_is_shown_where_nobody_asked(shell: Shell) -> None:
    run(progress=False)
    assert not shell.display_pub.sent


def test_what_an_interrupted_run_has_stays_in_the_notebook(shell: Shell) -> None:
    bar = bars.bar("toy")
    assert bar.keep("frame") == "_llm_table"
    assert shell.user_ns["_llm_table"] == "frame"


def test_a_terminal_has_a_line_that_is_written_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bars, "get_ipython", lambda: None)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    bar = bars.TextBar("toy", None)
    bar.update(State(10, 3, 1, 0, 2.0))
    bar.close(State(10, 10, 1, 0, 6.0), "interrupted")
    said = capsys.readouterr().err
    assert "toy: 3 of 10 answers · 1 error · 1.5 a second · 4.7 s left" in said
    assert said.endswith("\n")
    assert "10 answers · 1 error · 1.7 a second · 6.0 s · interrupted" in said
    assert bar.keep(None) == ".partial of this error"


def test_slow_runs_tell_answers_a_minute_and_known_ones_do_not_count() -> None:
    assert "3.0 a minute" in tables.running(State(100, 4, 0, 3, 20.0)).plain
    assert "33 min 0 s left" not in tables.running(State(100, 4, 0, 3, 20.0)).plain
    assert "32 min 0 s left" in tables.running(State(100, 4, 0, 3, 20.0)).plain
    assert "3 known before" in tables.done(State(4, 4, 0, 3, 20.0)).plain
    assert State(10).rate is None
    assert State(10).left is None
