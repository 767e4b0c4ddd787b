"""The thread behind a chat and a live view: when it lives, what idle means, how often it looks."""

import os
import threading
import time
from typing import Any

import pytest

from llm_magic.ui.widgets.shared.worker import INTERVAL, Worker


class Owner:
    """Takes items; "begin" makes it busy until "end"."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.times: list[float] = []
        self.faults: list[BaseException] = []
        self.busy = False
        self.loop = Worker(
            "owner", self.take, (self.after,), self.faults.append,
            lambda item: item == "begin", lambda: self.busy,
        )  # fmt: skip

    def take(self, item: Any) -> None:
        self.taken.append(item)
        if item in ("fail", "exit"):
            raise ValueError(item) if item == "fail" else SystemExit(item)
        if item in ("begin", "end"):
            self.busy = item == "begin"

    def after(self) -> None:
        self.times.append(time.monotonic())


def living() -> bool:
    return any(thread.name == "owner" for thread in threading.enumerate())


def ended(seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while living() and time.monotonic() < end:
        time.sleep(0.002)
    return not living()


def test_its_thread_lives_while_there_is_something_to_do() -> None:
    owner = Owner()
    assert owner.loop.idle
    assert not living()
    owner.loop.put("hello")
    assert owner.loop.idle  # a question begins nothing
    assert ended()
    owner.loop.put("begin")
    assert not owner.loop.idle
    assert not owner.loop.wait(3 * INTERVAL)
    assert living()
    owner.loop.put("end")
    assert owner.loop.wait(5)
    assert ended()
    assert owner.taken == ["hello", "begin", "end"]


def test_what_waits_to_begin_is_not_idle() -> None:
    owner = Owner()
    for _ in range(20):
        owner.loop.put("begin")
        owner.loop.put("end")
        assert owner.loop.wait(5)
        assert owner.taken[-1] == "end"
    assert ended()


def test_a_new_thread_does_not_look_sooner_than_the_old_one_would() -> None:
    owner = Owner()
    for i in range(4):
        owner.loop.put(i)
        assert ended()
    gaps = [b - a for a, b in zip(owner.times, owner.times[1:], strict=False)]
    assert all(gap >= 0.9 * INTERVAL for gap in gaps)


def test_a_fault_is_told_and_what_follows_is_handled() -> None:
    owner = Owner()
    for item in ("fail", "exit", "begin", "end", "hello"):
        owner.loop.put(item)
    assert ended()
    assert owner.taken == ["fail", "exit", "begin", "end", "hello"]
    assert [str(fault) for fault in owner.faults] == ["fail", "exit"]
    assert owner.loop.idle


def test_waiting_is_for_all_that_was_handed_over() -> None:
    owner = Owner()
    for i in range(20):
        owner.loop.put(i)  # begins nothing
        assert owner.loop.wait(5)
        assert owner.taken[-1] == i


def test_nothing_is_lost_where_the_thread_ends_while_others_hand_over() -> None:
    owner = Owner()

    def hand_over(k: int) -> None:
        for i in range(500):
            owner.loop.put((k, i))
            if i % 100 == 99:  # the thread may end
                assert owner.loop.wait(10)

    threads = [threading.Thread(target=hand_over, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert owner.loop.wait(10)
    assert sorted(owner.taken) == [(k, i) for k in range(8) for i in range(500)]
    assert ended()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    owner = Owner()
    owner.loop.put("hello")
    # The worst moment: the parent's thread holds the locks, which nobody releases in the child.
    with owner.loop._lock, owner.loop._idle._cond, owner.loop._rest._cond:
        child = os.fork()
    if child == 0:
        owner.loop.put("more")
        os._exit(0 if owner.loop.wait(5) and owner.taken[-1] == "more" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
