"""One prompt answered at several strengths of a control vector, in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..chat.reply import Reply
from ..extension_points import INSIDE_VIEWS
from .shown import Shown


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Strengths(Shown):
    """Answers at rising strengths: displays side by side; `.explore()` has a slider.

    Attributes:
        prompt: What was asked.
        scales: The strengths, rising; 0 is the model as it is.
        replies: The answer at each strength.
    """

    prompt: str
    scales: tuple[float, ...]
    replies: tuple[Reply, ...]

    def explore(self) -> Any:
        """The live view: a slider moves through the strengths."""
        return INSIDE_VIEWS.load().explore(self)


def strengths(
    llm: Any, prompt: Any, vector: Any, scales: Sequence[float], options: dict[str, Any]
) -> Strengths:
    """See `LLM.strengths`."""
    ordered = tuple(sorted({float(s) for s in scales}))
    streams = [llm.stream(prompt, edit=vector * scale, **options) for scale in ordered]
    running = list(streams)
    try:
        while running:  # side by side, so that the engine batches them
            running = [stream for stream in running if next(stream, None) is not None]
    finally:
        for stream in streams:
            stream.close()
    text = prompt if isinstance(prompt, str) else streams[0].reply.prompt or ""
    return Strengths(text, ordered, tuple(stream.reply for stream in streams))
