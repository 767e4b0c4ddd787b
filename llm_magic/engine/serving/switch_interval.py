"""Lower sys.setswitchinterval() while any engine is decoding.

A thread that computes in pure Python keeps the interpreter for 5 ms after another one asks for it,
and each token needs the interpreter at least once: beside a busy cell most of a token's time would
be waiting. The setting belongs to the process, so all engines are counted together; a value that
other code sets meanwhile stays.
"""

import os
import sys
import threading

SECONDS = 0.0002
_lock = threading.Lock()
_pid = os.getpid()
_working = 0  # engines that are at work
_before = 0.0  # the interval to go back to


def begin() -> None:
    """Note that an engine has work."""
    global _working, _before
    _after_fork()
    with _lock:
        _working += 1
        if _working == 1:
            _before = sys.getswitchinterval()
            if _before > SECONDS:
                sys.setswitchinterval(SECONDS)


def end() -> None:
    """Note that an engine has no more work. Once for each `begin`."""
    global _working
    _after_fork()
    with _lock:
        _working -= 1
        if _working == 0:
            _go_back()


def _after_fork() -> None:
    """A forked child has none of its parent's engines, and perhaps a lock that nobody opens."""
    global _lock, _pid, _working
    if _pid != os.getpid():
        _lock, _pid = threading.Lock(), os.getpid()
        if _working:
            _working = 0
            _go_back()


def _go_back() -> None:
    # Asked in microseconds, since that is how the interpreter keeps it.
    if round(sys.getswitchinterval() * 1e6) == round(SECONDS * 1e6):
        sys.setswitchinterval(_before)
