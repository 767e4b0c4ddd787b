"""A process that forks while another thread loads a model leaves the child able to load one."""

import os
import threading

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
