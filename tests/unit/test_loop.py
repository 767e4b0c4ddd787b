"""The thread behind a chat and a live view: when it lives, what idle means, how often it looks."""

import threading
import time
from typing import Any

from llm_magic.ui.loop import INTERVAL, Loop


class Owner:
    """Takes items; "begin" makes it busy until "end"."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.times: list[float] = []
        self.faults: list[Exception] = []
        self.busy = False
        self.loop = Loop(
            "owner", self.take, (self.after,), self.faults.append,
            lambda item: item == "begin", lambda: self.busy,
        )  # fmt: skip

    def take(self, item: Any) -> None:
        self.taken.append(item)
        if item == "fail":
            raise ValueError(item)
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
    for item in ("fail", "hello"):
        owner.loop.put(item)
    assert ended()
    assert owner.taken == ["fail", "hello"]
    assert [str(fault) for fault in owner.faults] == ["fail"]
