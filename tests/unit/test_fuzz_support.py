"""The budget of fuzzers, and that a case is the same whenever it is tried."""

import pytest
from support import fuzz
from support.fuzz import rounds


def test_a_count_gives_so_many_cases_and_tells_it(monkeypatch, capsys):
    monkeypatch.setenv("LLM_MAGIC_FUZZ", "7")
    assert [number for number, _ in rounds("x")] == list(range(7))
    assert "x: 7 cases" in capsys.readouterr().out


def test_without_a_count_the_time_decides(monkeypatch):
    monkeypatch.delenv("LLM_MAGIC_FUZZ", raising=False)
    end = fuzz.SECONDS
    times = iter([0.0, end - 1.0, end - 0.5, end + 0.5, end + 1.0])
    monkeypatch.setattr(fuzz.time, "monotonic", lambda: next(times))
    assert [number for number, _ in rounds("x")] == [0, 1]


@pytest.mark.parametrize("case", [0, 3])
def test_one_case_is_the_same_again(monkeypatch, case):
    monkeypatch.setenv("LLM_MAGIC_FUZZ", "5")
    drawn = [source.random() for _, source in rounds("x")]
    monkeypatch.setenv("LLM_MAGIC_FUZZ_CASE", str(case))
    assert [(n, source.random()) for n, source in rounds("x")] == [(case, drawn[case])]
    assert [source.random() for _, source in rounds("y")] != [drawn[case]]
