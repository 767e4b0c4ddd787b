"""Interrupts that are put off: no lock is taken twice, the second one is heard at once."""

import os
import signal
import threading
import time

import pytest

from llm_magic.chat.interrupts import deferred, immediate
from llm_magic.chat.tools.definition import tool
from llm_magic.chat.tools.execution import run_call
from llm_magic.events import ToolCall


def strike():
    os.kill(os.getpid(), signal.SIGINT)


def strike_and_wait():
    strike()
    time.sleep(1)


def until(condition):
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_first_interrupt_acts_and_raises_nothing_and_the_second_raises():
    acted = []
    with deferred(lambda: acted.append(1)) as interrupts:
        strike()
        until(lambda: acted)
        assert interrupts.struck
        with pytest.raises(KeyboardInterrupt):
            strike_and_wait()
    assert acted == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_afterwards_interrupts_raise_as_before():
    with deferred(lambda: None):
        pass
    with pytest.raises(KeyboardInterrupt):
        strike_and_wait()


def test_what_it_does_may_need_a_lock_that_the_main_thread_holds():
    lock, done = threading.Lock(), threading.Event()

    def act():
        with lock:
            done.set()

    with deferred(act):
        with lock:
            strike()
            assert not done.wait(0.05)
        assert done.wait(5)


def test_a_failing_act_is_not_heard(capfd):
    def act():
        raise ValueError("closed already")

    with deferred(act) as interrupts:
        strike()
        until(lambda: interrupts.struck)
        time.sleep(0.05)
    assert capfd.readouterr().err == ""


def test_the_users_own_code_is_interrupted_at_once():
    acted = []
    with deferred(lambda: acted.append(1)) as interrupts:
        with pytest.raises(KeyboardInterrupt), immediate():
            strike_and_wait()
        assert not interrupts.struck
        strike()
        until(lambda: acted)


def test_a_handler_of_somebody_else_stays():
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with deferred(lambda: None) as interrupts:
            strike()
            until(lambda: heard)
            with immediate():
                strike()
            until(lambda: len(heard) == 2)
        assert not interrupts.struck
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_change_no_handler():
    seen = []

    def body():
        with deferred(lambda: None), immediate():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_tool_on_the_main_thread_is_interrupted_while_interrupts_are_put_off():
    @tool
    def slow() -> str:
        """Sleeps."""
        strike()
        time.sleep(5)
        return "slept"

    began = time.monotonic()
    with deferred(lambda: None), pytest.raises(KeyboardInterrupt) as e:
        run_call(ToolCall("1", "slow", "{}"), [slow], 1)
    assert e.value.record.status == "interrupted"
    assert time.monotonic() - began < 2
