"""The thread that reads a stream: whatever the stream does, its end is told, once."""

import queue
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llm_magic.chat.reply import Reply
from llm_magic.ui.widgets.shared.stream_reader import StreamJob, StreamUpdate, start_reading


def read(open_: Callable[[Any], Any], window: Any = lambda: 7) -> list[StreamUpdate[StreamJob]]:
    told: queue.SimpleQueue[StreamUpdate[StreamJob]] = queue.SimpleQueue()
    start_reading("reader", StreamJob(), open_, told.put, window)
    out = [told.get(timeout=5)]
    while not out[-1].ended:
        out.append(told.get(timeout=5))
    return out


class Broken:
    """Ends with this error. Without one it is read to its end, but cannot tell what it added."""

    def __init__(self, error: BaseException | None, reply: Any = None) -> None:
        self.error, self._reply = error, reply

    def __iter__(self) -> Iterator[str]:
        yield "event"
        if self.error is not None:
            raise self.error

    @property
    def reply(self) -> Any:
        return self._reply()

    @property
    def added(self) -> Any:
        raise OSError("gone")


def no_reply() -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MemoryError()]
)
def test_an_error_of_any_kind_is_told(error: BaseException) -> None:
    def fail(progress: Any) -> Any:
        raise error

    assert [told.error for told in read(fail)] == [error]
    opened, event, end = read(lambda progress: Broken(error, lambda: Reply("half")))
    assert isinstance(opened.opened, Broken)
    assert (event.what, end.error, end.reply, end.window) == ("event", error, Reply("half"), 7)


@pytest.mark.parametrize("error", [ValueError("x"), None])
def test_a_stream_whose_reply_fails_ends_all_the_same(error: Any) -> None:
    end = read(lambda progress: Broken(error, no_reply))[-1]
    assert end.reply is None
    assert end.error is not None


def test_the_partial_reply_of_an_error_goes_before_that_of_the_stream() -> None:
    error = ValueError("x")
    error.partial = Reply("more")  # type: ignore[attr-defined]
    assert read(lambda progress: Broken(error, no_reply))[-1].reply == Reply("more")


@pytest.mark.parametrize("stream", [None, 3, SimpleNamespace()])
def test_what_is_no_stream_is_an_error(stream: Any) -> None:
    assert isinstance(read(lambda progress: stream)[-1].error, TypeError)


def test_a_context_that_cannot_be_asked_for_is_an_error() -> None:
    assert isinstance(read(lambda progress: iter(()), no_reply)[-1].error, ZeroDivisionError)
