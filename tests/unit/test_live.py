"""A stream on the screen: pace, frames, the last state, interrupts and failures."""

import io
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.html_audit import shown

from llm_magic.chat.reply import Reply
from llm_magic.errors import EngineError, Interrupted
from llm_magic.events import (
    CallDelta,
    Delta,
    Event,
    Prefill,
    Progress,
    Queued,
    Token,
    ToolCall,
    ToolDone,
    ToolRecord,
    Top,
)
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui import reply_methods
from llm_magic.ui.magics import screens
from llm_magic.ui.magics.pace import Pace
from llm_magic.ui.magics.stream_state import StreamState
from llm_magic.ui.reply_methods import VENDOR, Look
from llm_magic.ui.views import progress
from llm_magic.ui.views.progress import work


class Wire:
    """Takes the place of the kernel's display publisher."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def __call__(self, data: dict[str, Any], metadata: dict[str, Any], **how: Any) -> None:
        self.sent.append((data, how))

    @property
    def sizes(self) -> list[int]:
        return [
            sum(
                len(v.encode() if isinstance(v, str) else json.dumps(v).encode())
                for v in d.values()
            )
            for d, _ in self.sent
        ]

    @property
    def final(self) -> dict[str, Any]:
        return self.sent[-1][0]


def play(answer: Any, **options: Any) -> tuple[Wire, list[Reply], Any]:
    """Run one scripted answer through a cell's screen: what was sent, what was kept, the error."""
    scripted = Scripted(lambda _: answer, delay=options.pop("delay", 0.0))
    wire, kept, error = Wire(), [], None
    limit = options.get("max_tokens", 256)
    screen = screens.CellScreen(wire, Look(), "scripted", tokens=limit)
    options.setdefault("max_tokens", limit)
    try:
        screens.follow(LLM(scripted).stream("Hi there", **options), screen, kept.append)
    except (EngineError, KeyboardInterrupt) as e:
        error = e
    return wire, kept, error


# ----------------------------------------------------------------------------- frames


# B104
def test_frames_are_few_and_their_bytes_are_bounded() -> None:
    answer = ["x" if i % 7 else " " for i in range(5000)]
    wire, kept, _ = play(answer, max_tokens=5000)
    assert kept[-1].text == "".join(answer)
    assert wire.final["text/plain"] == "".join(answer)
    assert sum(wire.sizes) < 2_000_000
    assert sum(wire.sizes) <= 6 * wire.sizes[-1]


@pytest.mark.parametrize("count", [1, 5, 40, 300, 1999])
@pytest.mark.parametrize("logprobs", [None, 5])
def test_all_frames_weigh_at_most_six_times_the_last(count: int, logprobs: int | None) -> None:
    words = [" word" for _ in range(count)]
    wire, _, _ = play(words, max_tokens=count, logprobs=logprobs, delay=0.3 / count)
    assert sum(wire.sizes) <= 6 * wire.sizes[-1], wire.sizes


def test_frames_come_at_most_fifteen_times_a_second() -> None:
    wire, _, _ = play([" a"] * 60, delay=0.01)
    assert 3 <= len(wire.sent) <= 0.6 * 15 * 2 + 2  # sleeping 10 ms takes up to 20


def test_a_slow_stream_shows_each_token_as_it_comes() -> None:
    wire, _, _ = play([" a", " b", " c"], delay=0.1)
    texts = [d["text/html"] for d, _ in wire.sent]
    assert any(">a b<" in t for t in texts[:-1])


def test_one_display_updated_in_place() -> None:
    wire, _, _ = play(["a"] * 5, delay=0.08)
    ids = {how["transient"]["display_id"] for _, how in wire.sent}
    assert len(ids) == 1
    assert [how["update"] for _, how in wire.sent] == [False] + [True] * (len(wire.sent) - 1)


def test_frames_in_between_have_the_preferred_type_and_nothing_heavy() -> None:
    wire, _, _ = play([" one", " two"] * 4, logprobs=3, delay=0.05)
    assert len(wire.sent) > 2
    for data, _ in wire.sent[:-1]:
        assert set(data) == {"text/plain", "text/html"}
        assert "probabilities" not in data["text/html"]
    assert set(wire.final) == {"text/plain", "text/html", "text/markdown", VENDOR}
    assert "Token probabilities" in wire.final["text/html"]
    assert Reply.from_dict(wire.final[VENDOR]).text == " one two" * 4


def test_pace_waits_in_proportion_to_what_a_frame_costs() -> None:
    now = [0.0]
    pace = Pace(rate=15, clock=lambda: now[0])
    assert pace.due()
    with pace.frame() as sent:
        now[0] += 0.1  # a frame that took 100 ms
        sent(1000)
    now[0] += 0.3
    assert not pace.due()
    now[0] += 0.11
    assert pace.due()
    assert pace.affords(4000, 1000)
    assert not pace.affords(4001, 1000)


# ----------------------------------------------------------------------------- progress


@pytest.mark.parametrize(
    ("event", "words", "share"),
    [
        (Queued(1), "waiting for 1 other request", None),
        (Queued(2), "waiting for 2 other requests", None),
        (Progress("download", 50_000_000, 100_000_000), "downloading: 50 MB of 100 MB", 0.5),
        (Progress("load", 50_000_000, 0), "loading: 50 MB", None),
        (Progress("weights", 5_000_000, 10_000_000), "preparing: 5 MB of 10 MB", 0.5),
        (Progress("warm-up", 1, 2), "warm-up: 1 of 2", 0.5),
        (Progress("load", 3, 30), "loading: 3 of 30", 0.1),
        (Progress("load", 0, 0), "loading", None),
        (Progress("compile", 3, 12), "compiling: 3 of 12", 0.25),
        (Progress("compile", 0, 1), "compiling", None),
        (Prefill(1024, 2048, 0), "reading the prompt: 1,024 of 2,048 tokens", 0.5),
        (Prefill(1024, 2048, 512), "reading the prompt: 1,024 of 2,048 tokens, 512 of them cached",
         0.5),
    ],
)  # fmt: skip
def test_work_without_text_is_said_in_words(event: Any, words: str, share: float | None) -> None:
    assert (work(event).line, work(event).share) == (words, share)


def test_progress_is_shown_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "PATIENCE", 0.0)
    wire = Wire()
    screen = screens.CellScreen(wire, Look(), "m", tokens=16)
    screen.event(Progress("load", 1_000_000, 2_000_000))
    assert "loading: 1 MB of 2 MB" in wire.final["text/html"]
    assert re.search('<progress max="100" value="50" aria-label="loading: 1 MB of 2 MB"',
                     wire.final["text/html"])  # fmt: skip
    bar = "[############------------] 50%"
    assert wire.final["text/plain"] == f"loading: 1 MB of 2 MB {bar}"
    assert bar in shown(wire.final["text/html"])  # for what knows no such element
    screen.final(Reply("done", finish_reason="stop"))
    assert "loading" not in wire.final["text/html"]
    assert "<progress" not in wire.final["text/html"]
    assert wire.final["text/plain"] == "done"


def test_work_without_a_known_end_has_a_bar_that_moves_by_itself() -> None:
    page = progress.bar(work(Queued(1)))
    assert '<progress max="100" aria-label="waiting for 1 other request"' in page
    assert "value" not in page
    assert progress.plain(work(Queued(1))) == "waiting for 1 other request"


def test_short_work_is_not_worth_a_line() -> None:
    wire = Wire()
    screens.CellScreen(wire, Look(), "m").event(Prefill(0, 10, 0))
    assert wire.sent == []


def test_long_work_is_alive_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    wire = Wire()
    screen = screens.CellScreen(wire, Look(), "m")
    for i in range(6000):  # ten minutes
        now[0] = i / 10
        screen.event(Progress("download", i, 6000))
    assert 6000 / 10 / screens.ALIVE * 0.9 <= len(wire.sent) <= 6000 / 10 / screens.ALIVE * 1.1 + 30


def test_each_kind_of_work_is_told_after_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(screens.time, "monotonic", lambda: now[0])
    wire = Wire()
    screen = screens.CellScreen(wire, Look(), "m")
    for i in range(600):
        now[0] = i / 10
        screen.event(Progress("download", i, 6000))
    for stage in ("load", "compile"):
        now[0] += 0.1
        screen.event(Progress(stage, 0, 0))
    told = [data["text/plain"] for data, _ in wire.sent]
    assert told[-1] == "compiling"
    assert told[-2] == "loading"


def test_a_load_that_fails_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "PATIENCE", 0.0)
    wire = Wire()
    screen = screens.CellScreen(wire, Look(), "m")
    screen.close("loading failed")
    assert wire.sent == []  # nothing was shown, so nothing is left
    screen.event(Progress("load", 1, 2))
    screen.close("loading failed")
    assert wire.final["text/plain"] == "loading failed"


def test_reasoning_and_calls_are_told_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    running = StreamState()
    running.add(Delta("reasoning", "I think <b>"))
    assert "I think &lt;b&gt;" in screens._thinking(running)
    running.add(CallDelta(0, "c1", "weather", '{"city": "<i>"'))
    assert "weather" in screens._calling(running)
    assert "&lt;i&gt;" in screens._calling(running)
    call = ToolCall("c1", "weather", "{}")
    running.add(ToolDone(ToolRecord(1, call, {}, "auto", "ok", 0.1, "sunny")))
    assert "1 tool call done" in screens._calling(running)
    assert not running.empty


# ----------------------------------------------------------------------------- interrupts, failures


class Pressed:
    """A stream whose reader is interrupted after some events, like the stop button would."""

    def __init__(self, inner: Any, after: int) -> None:
        self._inner, self._left = inner, after
        self.cancelled: list[str] = []

    @property
    def reply(self) -> Reply:
        found: Reply = self._inner.reply
        return found

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        self._left -= 1
        if self._left == -1:
            raise KeyboardInterrupt
        return self._inner.__next__()  # type: ignore[no-any-return]

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        self.cancelled.append(reason)
        self._inner.cancel(reason, keep)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> "Pressed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# B109
@pytest.mark.parametrize("after", [0, 1, 2, 5, 9])
def test_an_interrupt_keeps_the_partial(after: int) -> None:
    inner = LLM(Scripted(lambda _: [" a"] * 20)).stream("Hi", max_tokens=256)
    stream = Pressed(inner, after)
    wire, kept = Wire(), []
    with pytest.raises(Interrupted) as caught:
        screens.follow(stream, screens.CellScreen(wire, Look(), "m", tokens=256), kept.append)
    partial = caught.value.partial
    assert stream.cancelled == ["interrupted"]
    assert partial.finish_reason == "interrupted"
    assert kept == [partial]
    assert partial.text == " a" * len(partial.tokens)
    assert wire.final["text/plain"] == f"{partial.text}\n\n[interrupted]"
    assert "interrupted" in wire.final["text/html"]
    assert issubclass(Interrupted, KeyboardInterrupt)


# B109
def test_an_interrupt_inside_a_display_update() -> None:
    class Struck(screens.CellScreen):
        struck = False

        def event(self, event: Event) -> None:
            if isinstance(event, Delta) and not self.struck:
                self.struck = True
                raise KeyboardInterrupt
            super().event(event)

    wire, kept = Wire(), []
    stream = LLM(Scripted(lambda _: [" a"] * 20, delay=0.001)).stream("Hi", max_tokens=256)
    with pytest.raises(Interrupted) as caught:
        screens.follow(stream, Struck(wire, Look(), "m", tokens=256), kept.append)
    assert caught.value.partial.finish_reason == "interrupted"
    assert 1 <= len(caught.value.partial.tokens) < 20
    assert "[interrupted]" in wire.final["text/plain"]


def test_a_second_interrupt_ends_at_once() -> None:
    class Stubborn(Pressed):
        def __next__(self) -> Event:
            raise KeyboardInterrupt

    stream = Stubborn(LLM(Scripted(["x"])).stream("Hi"), 0)
    with pytest.raises(KeyboardInterrupt):
        screens.follow(stream, screens.QuietScreen(), [].append)


# LAI-11
def test_a_failure_keeps_what_came_before() -> None:
    wire, kept, error = play([" one", " two", ZeroDivisionError("boom")])
    assert isinstance(error, EngineError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.partial.text == " one two"
    assert kept == [error.partial]
    assert wire.final["text/plain"] == " one two\n\n[failed: EngineError]"


# ----------------------------------------------------------------------------- other screens


def test_docs_mode_sends_one_display_without_an_id() -> None:
    look = Look(docs=True)
    wire = Wire()
    screen = screens.StillScreen(wire, look)
    llm = LLM(Scripted(lambda _: "The same text.", delay=0.02))
    outputs = []
    for _ in range(2):
        screens.follow(llm.stream("Hi", logprobs=3), screen, [].append)
        outputs.append(wire.final)
    assert outputs[0] == outputs[1]
    assert len(wire.sent) == 2
    assert wire.sent[0][1] == {}
    assert set(wire.final) == {"text/plain", "text/html"}
    assert "tok/s" not in wire.final["text/html"]


def test_a_terminal_gets_the_text_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    out, parts = io.StringIO(), []
    monkeypatch.setattr(sys, "stdout", out)
    screen = screens.TextScreen(Look(), "scripted")

    class Watched(screens.TextScreen):
        def event(self, event: Event) -> None:
            super().event(event)
            parts.append(out.getvalue())

    screen = Watched(Look(), "scripted")
    screens.follow(LLM(Scripted(["One two three."])).stream("Hi"), screen, [].append)
    assert parts[-1].startswith("One two three.")
    assert any(p == "One two" for p in parts)
    last = out.getvalue().splitlines()[-1]
    assert last.startswith("[scripted · ")
    assert last.endswith("· stop]")
    assert "\x1b" not in out.getvalue()


def test_quiet_shows_nothing() -> None:
    screen = screens.QuietScreen()
    screen.event(Queued(1))
    screen.final(Reply("x"))
    screen.close("y")
    screen.say(reply_methods.Fragment("", ""))


def test_the_estimate_of_the_saved_json_is_a_lower_bound() -> None:
    running = StreamState()
    top = (Top(1, b"", -0.5), Top(2, b"ab", -1.0))
    tokens = tuple(
        Token(i, b"" if i % 2 else b"ab", -0.5, 1, top if i % 3 else ()) for i in range(1, 50)
    )
    running.add(Delta("answer", "x", tokens))
    saved = Reply("x", tokens=tokens).to_dict()["tokens"]
    assert running.json_bytes <= len(json.dumps(saved, ensure_ascii=False).encode())
