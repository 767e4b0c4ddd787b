"""A process that forks while another thread loads a model leaves the child able to load one."""

import os
import threading
from pathlib import Path

import pytest

from llm_magic.engine import compile_cache


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_waits_until_sqlite_is_at_rest() -> None:  # F314
    inside, go, order = threading.Event(), threading.Event(), []

    def busy() -> None:
        with compile_cache._sqlite:
            inside.set()
            go.wait(10)
            order.append("released")

    thread = threading.Thread(target=busy)
    thread.start()
    inside.wait(10)
    threading.Timer(0.05, go.set).start()
    compile_cache._before_fork()
    order.append("forked")
    compile_cache._after_fork_in_parent()
    thread.join()
    assert order == ["released", "forked"]
    if (child := os.fork()) == 0:
        os._exit(0 if compile_cache._sqlite.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_thread_keeps_the_file_locked_between_two_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F314: a write that is between its calls, or was interrupted there, holds no other one up."""
    monkeypatch.setattr(compile_cache, "_BUSY", 0.05)
    database = compile_cache._Database(tmp_path / "cache.db")

    def put(value: int) -> None:
        cursor = database().cursor()
        cursor.execute("CREATE TABLE IF NOT EXISTS 't' (k text, val blob, PRIMARY KEY (k))")
        cursor.execute("REPLACE INTO 't' (k, val) VALUES (?, ?)", (f"k{value}", bytes([value])))

    put(1)  # and no commit
    thread = threading.Thread(target=put, args=(2,))
    thread.start()
    thread.join()
    for value in (1, 2):
        found = database().cursor().execute("SELECT val FROM 't' WHERE k=?", (f"k{value}",))
        assert found.fetchone()[0][:1] == bytes([value])
