"""The chat behind its widget: turns, Markdown patches, the controller. No kernel, no page."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.chats import ChatHost, Page, chat, say, until

from llm_magic.errors import EngineError, ModelNotFoundError, RequestError
from llm_magic.events import Message, Progress
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.widgets.chat import transcript
from llm_magic.ui.widgets.chat.controller import ChatController
from llm_magic.ui.widgets.chat.markdown_diff import MarkdownDiff
from llm_magic.ui.widgets.chat.thread import ChatThread, plain
from llm_magic.ui.widgets.chat.transcript import Transcript
from llm_magic.ui.widgets.shared import settings
from llm_magic.ui.widgets.shared.token_rows import TAKEN

# ------------------------------------------------------------------ the changed tail


def blocks_of(text: str) -> str:
    """A renderer whose result depends on the block as a whole, as Markdown's does."""
    return f"<p>{len(text.strip()) % 10}:{text.strip()}</p>\n"


def grow(text: str, step: int) -> Iterator[str]:
    yield from (text[:i] for i in range(0, len(text), step))
    yield text


MARKDOWN = """First paragraph with **bold**.

Second, with an emoji 🧪 in it 🧪🧪.

- one
- two

- three, after a blank line

  and its second paragraph

```python
def f():

    return 1
```

Last."""


@pytest.mark.parametrize("step", [1, 3, 17])
def test_patches_rebuild_the_html(step: int) -> None:
    tail = MarkdownDiff(plain)
    page: list[str] = []
    for text in grow(MARKDOWN, step):
        for at, keep, add in tail.update(text):
            page.extend([""] * (at + 1 - len(page)))
            page[at] = page[at].encode("utf-16-le")[: 2 * keep].decode("utf-16-le") + add
    assert page == tail.blocks
    assert len(page) == 5  # two paragraphs, one list, one fence, the end


def test_a_block_that_reaches_over_its_border_is_sent_whole_at_the_end() -> None:
    tail = MarkdownDiff(blocks_of)
    tail.update("a\n\nb")
    patches = tail.settle("a\n\nb")
    assert patches[0] == (0, 0, blocks_of("a\n\nb"))
    assert "".join(tail.blocks) == blocks_of("a\n\nb")


def test_bytes_sent_do_not_grow_quadratically() -> None:
    text = "word " * 4000  # one paragraph without an end: the worst case
    tail, sent = MarkdownDiff(plain), 0
    for part in grow(text, 5):
        sent += sum(len(add) for _, _, add in tail.update(part))
    assert sent < 3 * len(text)


# ------------------------------------------------------------------ a turn


def test_an_answer_streams_and_settles() -> None:
    controller, host = chat(["Hello there, **you**."], delay=0.05)
    say(controller, "Hi")
    page = Page(host.posted)
    assert page.answer() == plain("Hello there, **you**.")
    assert page.turns[0]["text"] == "Hi"
    partial = [op for m in host.posted for op in m["ops"] if op["o"] == "tail"]
    assert len(partial) > 2  # it came piece by piece
    assert controller.messages == (
        Message("user", "Hi"),
        Message("assistant", "Hello there, **you**."),
    )
    assert controller.last is not None
    assert controller.last.finish_reason == "stop"
    assert page.phases[-1] == "idle"
    assert host.settles == 1


def test_the_pump_thread_alone_talks_to_the_page() -> None:
    controller, host = chat(["One two three"], delay=0.01)
    say(controller, "Hi")
    controller.submit({"t": "hello", "page": "v"})
    until(lambda: any(m.get("to") == "v" for m in host.posted))
    assert host.threads == {"llm-chat"}


# B104
def test_at_most_twenty_messages_a_second_and_bounded_bytes() -> None:
    controller, host = chat(["x" * 1 + " y" * 4999], delay=0.0002)
    host.values["max_tokens"] = 9999
    say(controller, "Go")
    numbered = [t for m, t in zip(host.posted, host.times, strict=True)]
    assert len(numbered) <= 20 * (numbered[-1] - numbered[0]) + 4
    sent = sum(len(json.dumps(m)) for m in host.posted)
    assert sent < 2_000_000
    assert Page(host.posted).answer() == plain("x" + " y" * 4999)


def test_messages_are_numbered_without_gaps() -> None:
    controller, host = chat(["a b c", "d e f"], delay=0.01)
    say(controller, "1")
    say(controller, "2")
    assert [m["seq"] for m in host.posted] == list(range(1, len(host.posted) + 1))


def test_a_snapshot_in_the_middle_of_an_answer_continues_seamlessly() -> None:
    controller, host = chat(["one two three four five six seven eight nine ten"], delay=0.03)
    controller.submit({"t": "send", "text": "count", "nonce": "n"})
    until(lambda: any(op["o"] == "tail" for m in host.posted for op in m["ops"]))
    controller.submit({"t": "hello", "page": "late"})
    assert controller.wait(10)
    at = next(i for i, m in enumerate(host.posted) if m.get("to") == "late")
    snapshot = host.posted[at]
    assert 0 < len("".join(snapshot["ops"][0]["turns"][1]["answer"])) < 60
    later = host.posted[at + 1 :]
    assert [m["seq"] for m in later] == [snapshot["seq"] + i + 1 for i in range(len(later))]
    assert Page([snapshot, *later]).answer() == plain(
        "one two three four five six seven eight nine ten"
    )


def test_stop_while_writing_keeps_what_came() -> None:
    controller, host = chat(["one two three four five six seven eight nine ten"] * 2, delay=0.2)
    controller.submit({"t": "send", "text": "count", "nonce": "n"})
    until(lambda: any(op["o"] == "tail" for m in host.posted for op in m["ops"]))
    before = time.monotonic()
    controller.stop()
    assert controller.wait(5)
    assert time.monotonic() - before < 1
    page = Page(host.posted)
    assert page.turns[-1]["note"] == "stopped"
    assert page.answer() != plain("")
    assert [m.role for m in controller.messages] == ["user", "assistant"]


# B109
def test_stop_in_prefill_gives_the_question_back_and_leaves_no_dangling_turn() -> None:
    controller, host = chat(["never seen"], prefill_delay=0.3)
    controller.submit({"t": "send", "text": "word " * 2000, "nonce": "n"})
    until(lambda: "prefill" in Page(host.posted).phases)
    before = time.monotonic()
    controller.stop()
    assert controller.wait(5)
    assert time.monotonic() - before < 1
    page = Page(host.posted)
    assert page.drafts == ["word " * 2000]
    assert page.turns == []
    assert controller.messages == ()


def test_stop_while_loading_ends_the_turn_and_the_load_goes_on() -> None:
    release, loaded = threading.Event(), threading.Event()

    def slow_load(progress: Callable[[Progress], None]) -> None:
        progress(Progress("load", 1, 2))
        assert release.wait(10)
        loaded.set()

    controller, host = chat(["late"])
    host.before = slow_load
    controller.submit({"t": "send", "text": "Hi", "nonce": "n"})
    until(lambda: "load" in Page(host.posted).phases)
    controller.stop()
    assert controller.wait(2)
    assert Page(host.posted).drafts == ["Hi"]
    release.set()
    assert loaded.wait(2)
    time.sleep(0.2)
    assert Page(host.posted).turns == []  # the late stream was cancelled and shows nothing


def test_an_error_before_the_answer_is_shown_and_the_input_kept() -> None:
    def fail(progress: Callable[[Progress], None]) -> None:
        raise ModelNotFoundError("no model called 'nope'")

    controller, host = chat(["x"])
    host.before = fail
    say(controller, "my long question")
    page = Page(host.posted)
    assert page.notices == ["no model called 'nope'"]
    assert page.drafts == ["my long question"]
    assert page.turns == []
    assert page.phases[-1] == "idle"


def test_an_error_whose_text_fails_is_an_error_as_any() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    controller, host = chat(lambda request: Mute())
    say(controller, "hello")
    page = Page(host.posted)
    assert page.phases[-1] == "idle"
    assert page.notices == ["generation failed: Mute"]
    assert page.drafts == ["hello"]


def test_an_error_half_way_keeps_the_partial_answer() -> None:
    controller, host = chat([["Half", " way", EngineError("it broke")], "fine"])
    say(controller, "go")
    page = Page(host.posted)
    assert page.answer() == plain("Half way")
    assert page.turns[-1]["error"] == "it broke"
    say(controller, "again")  # the chat stays usable
    assert Page(host.posted).answer() == plain("fine")


def test_a_second_message_while_writing_is_refused_with_its_text() -> None:
    controller, host = chat(["a b c d e f g h"], delay=0.05)
    controller.submit({"t": "send", "text": "one", "nonce": "n1"})
    controller.submit({"t": "send", "text": "two", "nonce": "n2"})
    assert controller.wait(10)
    refused = [op for m in host.posted for op in m["ops"] if op["o"] == "refused"]
    assert [op["nonce"] for op in refused] == ["n2"]
    assert refused[0]["text"] == "two"


@pytest.mark.parametrize(
    "message", [{}, {"t": "send"}, {"t": "send", "text": 3}, {"t": "branch", "id": "x"}, {"t": 1}]
)
def test_a_strange_message_from_the_page_is_answered_not_fatal(message: dict[str, Any]) -> None:
    controller, host = chat(["fine"])
    controller.submit(message)
    say(controller, "hi")
    page = Page(host.posted)
    assert page.notices
    assert page.answer() == plain("fine")


# ------------------------------------------------------------------ the tree


def test_regenerate_keeps_the_old_answer_as_a_branch() -> None:
    controller, host = chat(["first", "second"])
    say(controller, "q")
    controller.submit({"t": "regenerate", "id": Page(host.posted).turns[-1]["id"]})
    assert controller.wait(5)
    page = Page(host.posted)
    assert page.answer() == plain("second")
    assert page.turns[-1]["branch"] == [1, 2]
    controller.submit({"t": "branch", "id": page.turns[-1]["id"], "index": 0})
    until(lambda: Page(host.posted).answer() == plain("first"))
    until(lambda: controller.messages[-1].text == "first")


def test_edit_and_resend_starts_a_branch_of_the_conversation() -> None:
    controller, host = chat(["a1", "a2", "b1"])
    say(controller, "one")
    say(controller, "two")
    first = Page(host.posted).turns[0]["id"]
    controller.submit({"t": "edit", "id": first, "text": "uno", "nonce": "e"})
    assert controller.wait(5)
    assert [m.text for m in controller.messages] == ["uno", "b1"]
    page = Page(host.posted)
    controller.submit({"t": "branch", "id": page.turns[0]["id"], "index": 0})
    until(lambda: [m.text for m in controller.messages] == ["one", "a1", "two", "a2"])


def test_undo_gives_the_question_back() -> None:
    controller, host = chat(["a", "b"])
    say(controller, "one")
    say(controller, "two")
    controller.submit({"t": "undo"})
    until(lambda: len(controller.messages) == 2)
    assert Page(host.posted).drafts == ["two"]


def test_saved_and_loaded_conversation_is_the_same() -> None:
    controller, _ = chat(["a <b>", "c"])
    say(controller, "one")
    data = json.loads(json.dumps(controller.turns.to_dict()))
    other = ChatThread()
    other.load(data)
    assert other.messages() == controller.messages
    assert other.path()[1].reply == controller.last or other.path()[1].reply.text == "a <b>"


@pytest.mark.parametrize(
    "data", [None, {}, {"version": 9, "turns": []}, {"version": 1, "turns": [{"role": "root"}]},
             {"version": 1, "turns": [{"role": "user", "content": 3}]}]
)  # fmt: skip
def test_a_damaged_saved_conversation_changes_nothing(data: Any) -> None:
    turns = ChatThread()
    turns.add(turns.root, "user", "kept")
    with pytest.raises(ValueError, match=r"."):
        turns.load(data)
    assert turns.messages() == (Message("user", "kept"),)


def test_the_transcript_escapes_and_needs_no_script() -> None:
    controller, _ = chat(["<script>alert(1)</script> & more"])
    say(controller, "<img src=x onerror=alert(1)>")
    bundle = transcript.bundle(controller.turns, "<b>model</b>")
    assert "<script" not in bundle["text/html"]
    assert "<img" not in bundle["text/html"]
    assert "<b>model" not in bundle["text/html"]
    assert "alert(1)" in bundle["text/plain"]


def test_another_token_continues_as_a_branch() -> None:
    controller, host = chat(lambda r: " on it" if r.given else "A cat sat.")
    host.values["logprobs"] = 3
    say(controller, "go")
    turn = Page(host.posted).turns[-1]
    controller.submit({"t": "tokens", "id": turn["id"]})
    until(lambda: any(op["o"] == "tokens" for m in host.posted for op in m["ops"]))
    rows = next(op for m in host.posted for op in m["ops"] if op["o"] == "tokens")["rows"]
    assert [row[0] for row in rows] == ["A", " cat", " sat", "."]
    at, n = next(
        (i, n) for i, row in enumerate(rows) for n, top in enumerate(row[8]) if top[3] != TAKEN
    )
    controller.submit({"t": "fork", "id": turn["id"], "at": at, "alternative": n})
    assert controller.wait(5)
    assert controller.last is not None
    kept = "".join(row[0] for row in rows[:at])
    assert controller.last.text == kept + rows[at][8][n][0].replace("␣", " ") + " on it"
    assert Page(host.posted).turns[-1]["branch"] == [1, 2]
    controller.submit(
        {"t": "fork", "id": turn["id"], "at": 99, "alternative": 0}
    )  # the old id is gone
    controller.submit(
        {"t": "fork", "id": Page(host.posted).turns[-1]["id"], "at": 99, "alternative": 0}
    )
    until(lambda: any("99" in text for text in Page(host.posted).notices))


def test_a_cut_off_answer_goes_on_in_its_place() -> None:
    def answer(request: Any) -> str:
        return " four five" if request.given else "one two three four five"

    controller, host = chat(answer)
    host.values["max_tokens"] = 3
    say(controller, "count")
    turn = Page(host.posted).turns[-1]
    assert turn["more"]
    assert turn["note"]
    controller.submit({"t": "continue", "id": turn["id"]})
    assert controller.wait(5)
    page = Page(host.posted)
    assert controller.last is not None
    assert controller.last.text == "one two three four five"
    assert len(controller.last.tokens) == 5
    assert page.answer() == plain("one two three four five")
    assert "branch" not in page.turns[-1]
    assert not page.turns[-1]["more"]
    assert len(page.turns) == 2


THOUGHT = ["<think>", "\n", "Let", " me", " see", ".", "\n", "</think>", "\n\n", "Yes", "."]


def test_a_stopped_answer_is_continued_after_its_tokens() -> None:
    # F267
    controller, host = chat(
        lambda r: " and the rest" if r.given else "one two three four",
        delay=0.05,
    )
    controller.submit({"t": "send", "text": "go"})
    until(lambda: bool(Page(host.posted).turns) and "one" in Page(host.posted).answer())
    controller.stop()
    assert controller.wait(20)
    cut = Page(host.posted).turns[-1]
    assert cut["more"]
    controller.submit({"t": "continue", "id": cut["id"]})
    assert controller.wait(20)
    text = controller.messages[-1].text
    assert text.startswith("one")
    assert text.endswith(" and the rest")
    assert len(controller.messages) == 2
    assert Page(host.posted).turns[-1]["text"] == text


def test_a_cut_answer_of_a_saved_notebook_is_continued_after_its_text() -> None:
    # F267: its tokens were not saved
    asked: list[Any] = []

    def answer(request: Any) -> str:
        asked.append(request)
        return " jumps over the dog."

    controller, host = chat(answer)
    turns = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": "The fox", "note": "interrupted: the kernel stopped"},
    ]
    controller.load({"version": 1, "turns": turns})
    until(lambda: len(controller.messages) == 2)
    turn = controller.turns.last()
    assert turn.picture()["more"]
    controller.submit({"t": "continue", "id": turn.id})
    assert controller.wait(20)
    assert [m.text for m in asked[0].messages] == ["Go"]
    assert [token.bytes for token in asked[0].given] == [b"The fox"]
    assert [m.text for m in controller.messages] == ["Go", "The fox jumps over the dog."]
    page = Page(host.posted)
    assert page.turns[-1]["text"] == "The fox jumps over the dog."
    assert not page.turns[-1]["more"]
    assert page.answer() == controller.turns.last().answer.blocks[0]


@pytest.mark.parametrize("note", ["", "the connection broke"])
def test_an_answer_that_ended_is_not_continued(note: str) -> None:
    controller, _ = chat(["x"])
    turns = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "A", "note": note}]
    controller.load({"version": 1, "turns": turns})
    until(lambda: len(controller.messages) == 2)
    assert not controller.turns.last().can_continue


def test_a_turn_of_a_long_chat_sends_what_changed() -> None:
    # F313
    controller, host = chat(["word " * 100] * 3)
    turns = [{"role": role, "content": "text " * 50} for role in ("user", "assistant")]
    controller.load({"version": 1, "turns": turns * 300})
    until(lambda: len(controller.messages) == 600)
    say(controller, "first")
    before = len(host.posted)
    say(controller, "more")
    sent = host.posted[before:]
    assert sum(len(json.dumps(message)) for message in sent) < 20_000
    (told,) = [op for m in sent for op in m["ops"] if op["o"] == "transcript"]
    assert told["at"] == 602
    assert len(told["rows"]) == 2


def test_a_page_builds_the_transcript_that_the_kernel_has() -> None:
    controller, host = chat(["**a**", "b", "c"])
    kept: list[Any] = []
    say(controller, "one")
    say(controller, "two")
    controller.submit({"t": "undo"})
    say(controller, "three")
    for op in [op for m in host.posted for op in m["ops"] if op["o"] == "transcript"]:
        assert op["at"] <= len(kept)
        kept[op["at"] :] = op["rows"]
    frame = {mime: tuple(parts) for mime, parts in op["frame"].items()}
    built = Transcript(frame, tuple(kept), op["data"]).bundle()
    assert built == transcript.bundle(controller.turns, host.name)


def test_a_closed_chat_leaves_no_line_to_the_page() -> None:
    # F313
    from ipywidgets.widgets.widget import _instances

    from llm_magic.ui.widgets.chat.widget import Chat

    before = set(_instances)
    chats = [Chat("m") for _ in range(20)]
    assert len(set(_instances) - before) >= 20
    for one in chats:
        one.close()
    assert set(_instances) == before


def test_reasoning_that_was_cut_goes_on_to_the_answer() -> None:
    host = ChatHost(LLM(Scripted([THOUGHT, THOUGHT[5:]])))
    host.values["max_tokens"] = 5
    controller = ChatController(host)
    say(controller, "Is it?")
    turn = Page(host.posted).turns[-1]
    assert turn["more"]
    assert controller.last is not None
    assert (controller.last.text, controller.last.reasoning) == ("", "Let me see")
    controller.submit({"t": "continue", "id": turn["id"]})
    assert controller.wait(5)
    page = Page(host.posted)
    assert controller.last.reasoning == "Let me see."
    assert controller.last.text == "Yes."
    assert (
        controller.last.kinds == ("reasoning",) * 6 + ("answer",) * 5
    )  # tags ride on what follows
    assert page.answer() == plain("Yes.")
    assert "".join(page.turns[-1]["reasoning"]) == plain("Let me see.")
    controller.close()


def test_a_fork_in_the_reasoning_is_shown_as_reasoning() -> None:
    controller, host = chat([THOUGHT, [" now", ".", "</think>", "No", "."]])
    host.values["logprobs"] = 3
    say(controller, "Is it?")
    id = Page(host.posted).turns[-1]["id"]
    controller.submit({"t": "fork", "id": id, "at": 3, "alternative": 1})
    assert controller.wait(5)
    page = Page(host.posted)
    assert controller.last is not None
    assert controller.last.reasoning.endswith(" now.")
    assert page.answer() == plain("No.")
    assert page.turns[-1]["branch"] == [1, 2]
    controller.close()


def test_a_fork_that_cannot_be_taken_says_so() -> None:
    controller, host = chat([THOUGHT])
    host.values["logprobs"] = 3
    say(controller, "Is it?")
    id = Page(host.posted).turns[-1]["id"]
    controller.submit({"t": "fork", "id": id, "at": 3, "alternative": 99})
    until(lambda: any("no alternative 100" in text for text in Page(host.posted).notices))
    controller.close()


def test_clear_can_be_undone() -> None:
    controller, _ = chat(["a"])
    say(controller, "one")
    controller.submit({"t": "clear"})
    until(lambda: controller.messages == ())
    controller.submit({"t": "restore"})
    until(lambda: len(controller.messages) == 2)


def test_load_raises_where_it_is_called_and_changes_nothing() -> None:
    controller, _ = chat(["a"])
    say(controller, "one")
    with pytest.raises(ValueError, match="version"):
        controller.load({"version": 0})
    controller.load([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    until(lambda: [m.text for m in controller.messages] == ["x", "y"])


def test_wait_right_after_a_send_waits() -> None:
    controller, _ = chat(["a b c d"], delay=0.05)
    for _ in range(3):
        controller.submit({"t": "hello", "page": "v"})
    controller.submit({"t": "send", "text": "go"})
    assert controller.wait(10)
    assert controller.last is not None
    assert controller.last.text == "a b c d"


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [("temperature", "0.5", 0.5), ("temperature", "", None), ("temperature", None, None),
     ("max_tokens", "64", 64), ("max_tokens", 64.0, 64), ("seed", 3, 3), ("thinking", True, True),
     ("system", "Be brief.", "Be brief."), ("system", "  ", None), ("top_p", 1, 1.0)],
)  # fmt: skip
def test_a_setting_is_checked_and_has_a_default(name: str, value: Any, result: Any) -> None:
    assert settings.checked(name, value) == result


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "hot"), ("temperature", -1), ("temperature", float("nan")),
     ("max_tokens", "1.5"), ("max_tokens", 0), ("max_tokens", True), ("seed", "NaN"),
     ("thinking", "yes"), ("system", 3),
     ("nope", 1), ("temperature", [1]), ("top_k", "9" * 400)],
)  # fmt: skip
def test_a_wrong_setting_is_named(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=r"."):
        settings.checked(name, value)


def told(host: ChatHost) -> list[Any]:
    """The tables of the ledger that the page was told."""
    return [op["rows"] for m in list(host.posted) for op in m["ops"] if op["o"] == "ledger"]


def test_answers_of_a_chat_are_in_the_ledger() -> None:
    controller, host = chat(["Yes.", "No."])
    controller.submit({"t": "ledger"})
    for text in ("one", "two"):
        controller.submit({"t": "send", "text": text})
        assert controller.wait(5)
    assert [(entry.cell, entry.tokens, entry.reason) for entry in host.ledger] == [
        ("chat", 2, "stop"), ("chat", 2, "stop"),
    ]  # fmt: skip
    end = time.monotonic() + 5
    while not (rows := told(host)) or len(rows[-1]) < 3:  # two, and their sum
        assert time.monotonic() < end
        time.sleep(0.02)
    assert rows[-1][-1][0] == "sum"
    controller.close()


@pytest.mark.parametrize("model", ["/home/ann/models/big.gguf", "http://h/big.gguf?token=s3cret"])
def test_no_folder_and_no_key_is_saved(model: str) -> None:
    from llm_magic.ui.widgets.chat.widget import Chat

    chat = Chat(model)
    assert chat.model == "big"
    assert chat.state["model"] == "big"
    assert "big: empty" in str(chat._transcript.bundle())
    assert not re.search("home|s3cret", str((chat.state, chat._transcript.data)))


def test_transcript_reads_itself_from_a_notebook(tmp_path: Path) -> None:
    controller, _ = chat(["a"])
    say(controller, "one")
    data = transcript.bundle(controller.turns, "m")
    outputs = [{"output_type": "display_data", "data": data, "metadata": {}}]
    notebook = {"nbformat": 4, "cells": [{"cell_type": "code", "outputs": outputs}]}
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(notebook))
    turns = ChatThread()
    turns.load(transcript.read(path))
    assert turns.messages() == controller.messages
    path.write_text(json.dumps({"nbformat": 4, "cells": []}))
    with pytest.raises(ValueError, match="no saved chat"):
        transcript.read(path)


def test_the_transcript_keeps_its_meaning_when_style_is_stripped() -> None:
    controller, _ = chat(["```python\nx = 1\n```\nand **more**"])
    say(controller, "code?")
    html = transcript.bundle(controller.turns, "m")["text/html"]
    bare = re.sub(r'\s(?:style|class|id|tabindex|title)="[^"]*"', "", html)
    for word in ("You", "Model", "code?", "x = 1", "tokens"):
        assert word in re.sub(r"<[^>]*>", "", bare)
    assert "var(" not in html
    assert "<style" not in html


def test_the_transcript_renders_in_nbconvert_html() -> None:
    nbformat, exporters = (
        pytest.importorskip("nbformat"),
        pytest.importorskip("nbconvert.exporters"),
    )
    controller, _ = chat(["```python\nx = 1\n```\n<b>bold</b>"])
    say(controller, "code?")
    output = nbformat.v4.new_output("display_data", data=transcript.bundle(controller.turns, "m"))
    cell = nbformat.v4.new_code_cell("chat", outputs=[output])
    page, _ = exporters.HTMLExporter().from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))
    assert "Transcript of the chat with m: 1 turn" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<b>bold</b>" not in page


def test_the_page_is_one_module_without_imports() -> None:
    from llm_magic.ui.widgets.chat.widget import Chat

    source = Chat._esm
    assert not re.search(r"^(import|export (?!default))", source, re.MULTILINE)
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", source)


def test_a_closed_chat_leaves_no_thread() -> None:
    controller, _ = chat(["a b c d e f g h"], delay=0.1)
    controller.submit({"t": "send", "text": "go"})
    thread = controller._worker._thread
    assert thread is not None
    controller.close()
    thread.join(3)
    assert not thread.is_alive()


@pytest.mark.parametrize("use", ["", "chat.say('hello'); chat.wait(20)"])
def test_a_chat_does_not_hold_the_interpreter_back_when_it_ends(use: str) -> None:
    """Widgets are closed then, too: no thread may be started for it, it would never run."""
    code = f"""
import llm_magic
from llm_magic.providers.scripted import Scripted
from llm_magic.llm import LLM
chat = llm_magic.Chat(LLM(Scripted(lambda request: "Yes.")))
{use}
print(chat)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "turn" in ended.stdout


def test_a_text_that_cannot_be_rendered_is_shown_as_it_is() -> None:
    def fail(text: str) -> str:
        raise RecursionError("too deep")

    controller, host = chat(["deep", "still here"])
    controller.turns.render = ChatThread(fail).render
    say(controller, "one")
    assert Page(host.posted).answer() == plain("deep")
    say(controller, "two")
    assert Page(host.posted).answer() == plain("still here")


def test_a_message_has_the_line_ends_of_a_cell() -> None:
    # F203
    controller, _ = chat(["ok"])
    say(controller, "one\r\ntwo\rthree\r\n\n")
    assert controller.messages[0].text == "one\ntwo\nthree"
