"""One request while it runs: a thread sends it and reads the answer, a queue holds what came.

The thread makes several requests run side by side and lets a cancel take effect at once, whatever
the thread waits for. It holds no reference to the stream that reads the queue, so a stream that is
dropped half way ends its request.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .items import Item
from .lanes import Call, Severed


@dataclass(frozen=True, slots=True)
class Failure:
    """The request failed."""

    error: Exception


class Exchange:
    """Runs `send` on a thread.

    Args:
        send: Yields the items of the answer. It must end soon after its call was severed.
    """

    def __init__(self, send: Callable[[Call], Iterator[Item]]) -> None:
        self.call = Call()
        self._queue: queue.SimpleQueue[Item | Failure | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=_run, args=(send, self.call, self._queue), name="llm_magic request", daemon=True
        )
        self._thread.start()

    def next(self) -> Item | Failure | None:
        """The next item; None at the end. Waits for it."""
        return self._queue.get()

    def stop(self) -> None:
        """Give the request up: `next` returns None at the latest after what came before."""
        self._queue.put(None)
        self.call.sever()

    def join(self, seconds: float) -> bool:
        """Wait until the connection is closed; whether it is."""
        self._thread.join(seconds)
        return not self._thread.is_alive()


def _run(
    send: Callable[[Call], Iterator[Item]],
    call: Call,
    out: "queue.SimpleQueue[Item | Failure | None]",
) -> None:
    try:
        for item in send(call):
            out.put(item)
    except Severed:
        pass
    except Exception as e:
        out.put(Failure(e))  # also where a limit of time has severed it
    finally:
        out.put(None)
