"""What a chat is doing, in words: the phase of a request, and errors in one line."""

from dataclasses import dataclass

from llm_magic.errors import LLMError, named
from llm_magic.events import (
    CallDelta,
    CallDone,
    Delta,
    Event,
    Finish,
    Prefill,
    Progress,
    Queued,
    ToolDone,
)
from llm_magic.json_types import JsonObject
from llm_magic.ui.views.progress import work
from llm_magic.ui.views.summary import CUT
from llm_magic.utf8 import whole


@dataclass(frozen=True, slots=True)
class Phase:
    """What a chat is doing.

    Args:
        name: "idle", or the kind of work.
        text: The same in words. It stays while the amount grows, since screen readers read it out
            when it changes.
        done: How much is done; 0 if unknown.
        total: Of how much; 0 if unknown.
        amount: Both in words.
    """

    name: str = "idle"
    text: str = ""
    done: int = 0
    total: int = 0
    amount: str = ""

    def op(self) -> JsonObject:
        """The phase as values of an operation."""
        return {
            "name": self.name, "text": self.text, "done": self.done, "total": self.total,
            "amount": self.amount,
        }  # fmt: skip


IDLE = Phase()
START = Phase("start", "Starting")
STOPPING = Phase("stop", "Stopping")

# Why an answer ended early. "stop" is the normal end.
NOTES = {
    "interrupted": "stopped",
    "cancelled": "stopped",
    "length": CUT,
    "tool_calls": "the model called tools that this chat does not have",
}
LOST = "interrupted: the kernel stopped"  # a page says so of what it showed last
CUT_OFF = ("length", "interrupted", "cancelled")
CONTINUABLE = frozenset({NOTES["interrupted"], NOTES["length"], LOST})


def phase_of(event: Event, model: str) -> Phase | None:
    """The phase that an event begins or continues; None if it changes nothing.

    >>> phase_of(Prefill(128, 512, 0), "smollm2").text
    'Reading 512 prompt tokens'
    """
    match event:
        case Queued():
            return Phase("queued", work(event).what.capitalize())
        case Progress("wait"):
            return Phase("wait", f"Waiting for the running cell to finish before loading {model}")
        case Progress(stage, done, total):
            now = work(event)
            return Phase(stage, f"{now.what.capitalize()} {model}", done, total, now.amount)
        case Prefill(done, total, cached):
            hint = f" ({cached:,} from cache)" if cached else ""
            text = f"Reading {total:,} prompt tokens{hint}"
            return Phase("prefill", text, done, total, f"{done:,} of {total:,}")
        case Delta("reasoning"):
            return Phase("reason", "Thinking")
        case Delta() | CallDelta():
            return Phase("decode", "Writing")
        case CallDone(call=call):
            return Phase("tool", f"Calling {call.name}")
        case ToolDone() | Finish():
            return None


def describe(error: BaseException) -> str:
    """An error in one line. Errors of other libraries are named with their class.

    >>> describe(KeyError("x"))
    "KeyError: 'x'"
    """
    text = whole(str(error)).strip() if isinstance(error, LLMError) else ""
    return text or named(error)
