"""Work before the first token (waiting, download, load, compile, prefill), in words and as a bar.

`work` turns an event into words and a share; `Stages` keeps how long each kind of work took.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from llm_magic.events import Prefill, Progress, Queued

from . import html

WIDTH = 24  # characters of a bar that is text
_WORDS = {
    "hub": "asking the Hugging Face hub",
    "download": "downloading",
    "verify": "checking the downloaded file",
    "load": "loading",
    "compile": "compiling",
    "weights": "preparing",
    "wait": "waiting for the running cell",
}


@dataclass(frozen=True, slots=True)
class Work:
    """what: the kind of work. amount: how much of it is done, "" if unknown. share: the same from 0
    to 1; None if unknown."""

    what: str
    amount: str = ""
    share: float | None = None

    @property
    def line(self) -> str:
        return f"{self.what}: {self.amount}" if self.amount else self.what


def work(event: Queued | Progress | Prefill) -> Work:
    """What an event says is being done."""
    match event:
        case Queued(ahead):
            return Work(f"waiting for {ahead} other request{'s' * (ahead != 1)}")
        case Prefill(done, total, cached):
            known = f", {cached:,} of them cached" if cached else ""
            amount = f"{done:,} of {total:,} tokens{known}"
            return Work("reading the prompt", amount, _share(done, total))
        case Progress("download", done, total) if 1 < total <= done + 1:
            # All bytes are there; what takes time now is their checksum.
            return Work(_WORDS["verify"])
        case Progress(stage, done, total):
            return Work(_WORDS.get(stage, stage), _amount(done, total), _share(done, total))


# The stages whose duration is told, in the order of the line.
_TOLD = {"download": "downloaded", "load": "loaded", "compile": "compiled"}


class Stages:
    """How long downloading, loading and compiling took: a line for people.

    >>> times = iter([0.0, 12.0, 13.5])
    >>> stages = Stages(lambda: next(times))
    >>> stages.event(Progress("download", 0, 100))
    >>> stages.event(Progress("load", 0, 100))
    >>> stages.event(Prefill(0, 10, 0))
    >>> stages.line
    'downloaded in 12.0 s, loaded in 1.5 s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._stage, self._since = "", 0.0

    def event(self, event: object) -> None:
        """Take any event of a stream; one of another kind ends the stage before it."""
        stage = event.stage if isinstance(event, Progress) else ""
        stage = {"hub": "download", "verify": "download", "weights": "load"}.get(stage, stage)
        if stage == self._stage:
            return
        now = self._clock()
        if self._stage in _TOLD:
            spent = self._seconds.get(self._stage, 0.0)
            self._seconds[self._stage] = spent + now - self._since
        self._stage, self._since = stage, now

    @property
    def line(self) -> str:
        """ "downloaded in 12.0 s, loaded in 1.5 s"; stages of less than 50 ms are left out."""
        spent = ((word, self._seconds.get(stage, 0.0)) for stage, word in _TOLD.items())
        return ", ".join(f"{word} in {s:.1f} s" for word, s in spent if s >= 0.05)


def _share(done: int, total: int) -> float | None:
    # A single step is not known to be half done.
    return max(0.0, min(1.0, done / total)) if total > 1 else None


def _amount(done: int, total: int) -> str:
    """ "3 of 12", in megabytes where it can only be bytes; nothing where nothing is known."""
    if total <= 1 and done < 1e6:
        return ""
    if max(done, total) >= 1e6:
        mega = f"{done / 1e6:,.0f} MB"
        return f"{mega} of {total / 1e6:,.0f} MB" if total > 0 else mega
    return f"{done:,} of {total:,}"


def bar(work: Work) -> str:
    """A line of words with a bar under it. The element tells its state without its looks; what has
    no known end moves by itself."""
    value = "" if work.share is None else f' value="{work.share * 100:.0f}"'
    inside = html.text(text_bar(work)) if work.share is not None else ""
    name = html.escape(work.line)
    return (
        f'<div style="font-size:13px;line-height:1.5">{html.text(work.line)}</div>'
        f'<progress max="100"{value} aria-label="{name}" style="display:block;width:100%;'
        f'max-width:320px;height:10px;accent-color:#0969da">{inside}</progress>'
    )


def text_bar(work: Work) -> str:
    """The bar alone as text, "" where the end is unknown: `[######--------] 42%`."""
    if work.share is None:
        return ""
    done = round(WIDTH * work.share)
    return f"[{'#' * done}{'-' * (WIDTH - done)}] {work.share:.0%}"


def plain(work: Work) -> str:
    """The words and the bar as one line of text."""
    return " ".join(filter(None, (work.line, text_bar(work))))
