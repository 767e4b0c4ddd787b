"""What a chat that is shown anew goes on from: the conversation that the saved notebook holds."""

import json
import math
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.chats import Page, chat, say, until

from llm_magic.chat.reply import Reply
from llm_magic.ui.widgets.chat import resume, transcript
from llm_magic.ui.widgets.chat.controller import ChatController
from llm_magic.ui.widgets.chat.resume import SavedConversation, choose, finder, notebook
from llm_magic.ui.widgets.chat.thread import ChatThread, plain


def talk(text: str, **more: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text}!"}]
    return {"version": 1, "turns": turns, **more}


def cell(id: str, source: str, *talks: Any, tags: bool = True) -> dict[str, Any]:
    """A cell with a transcript for each of these; None: of a chat in which nothing was said."""
    outputs = []
    for i, data in enumerate(talks):
        tag = {"llm_magic": {"display": f"llm-chat-{id}{i}", "revision": 1}} if tags else {}
        held = {"text/plain": ""} | ({} if data is None else {transcript.VENDOR: data})
        outputs.append({"output_type": "display_data", "data": held, "metadata": tag})
    return {"cell_type": "code", "id": id, "source": source, "outputs": outputs}


def book(*cells: Any) -> dict[str, Any]:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)}


# ------------------------------------------------------------------ where the notebook is


def test_the_notebook_is_the_one_that_the_front_end_names(tmp_path: Path) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text("{}")
    assert notebook({"JPY_SESSION_NAME": str(path)}, {}) == path
    assert notebook({}, {"__vsc_ipynb_file__": str(path)}) == path
    other = tmp_path / "other.ipynb"
    other.write_text("{}")
    assert notebook({"JPY_SESSION_NAME": str(path)}, {"__vsc_ipynb_file__": str(other)}) == other


@pytest.mark.parametrize(
    "given", ["", "console-1", "missing.ipynb", ".", "\0.ipynb", "folder.ipynb", "text.txt"]
)
def test_no_notebook_where_none_can_be_known(tmp_path: Path, given: str) -> None:
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "text.txt").write_text("{}")
    name = str(tmp_path / given) if given else ""
    assert notebook({"JPY_SESSION_NAME": name}, {"__vsc_ipynb_file__": 3}) is None
    assert notebook({}, {}) is None


def test_a_huge_notebook_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(book(cell("a", "chat", talk("hi")))))
    assert notebook({"JPY_SESSION_NAME": str(path)}, {}) == path
    monkeypatch.setattr(resume, "MAX_FILE", path.stat().st_size - 1)
    assert notebook({"JPY_SESSION_NAME": str(path)}, {}) is None


# ------------------------------------------------------------------ which conversation it is


def said(data: Any) -> str | None:
    return None if data is None else str(data["turns"][0]["content"])


OTHER = "vscode-notebook-cell:/n.ipynb#W0sZmlsZQ=="


@pytest.mark.parametrize(
    ("id", "source", "name", "nth", "found"),
    [
        ("a", "", None, 0, "one"),
        ("a", "", None, 1, None),  # nothing was said in it
        ("a", "", None, 2, "three"),
        ("a", "", None, 3, None),
        ("b", "", None, 0, None),  # the only one there has a name
        ("a", "", "plan", 0, "planned"),  # in whichever cell
        ("a", "", "other", 0, None),
        (OTHER, "%llm chat", None, 0, "magic"),  # the front end tells other ids than the file
        (OTHER, "same", None, 0, None),  # two cells have this source
        (OTHER, "", None, 0, None),
        ("new", "%llm chat", None, 0, None),  # a cell of the same source that was not saved yet
        (None, "%llm chat", None, 0, "magic"),
        (None, None, None, 0, None),
    ],
)
def test_the_conversation_is_that_of_the_same_cell_or_name(
    id: Any, source: Any, name: str | None, nth: int, found: str | None
) -> None:
    data = book(
        cell("a", "chats", talk("one"), None, talk("three")),
        cell("b", "named", talk("planned", name="plan")),
        cell("c", "%llm chat", talk("magic"), tags=False),
        cell("d", "same", talk("first of two")),
        cell("e", "same"),
    )
    assert said(choose(data, id, source, name, nth)) == found


def test_a_file_without_ids_is_searched_by_source() -> None:
    old = cell("a", "chat", talk("hello"))
    del old["id"]
    assert said(choose(book(old), "made-by-the-page", "chat", None, 0)) == "hello"


def test_a_chat_that_is_shown_twice_in_its_cell_is_one() -> None:
    shown = cell("a", "chat", talk("old"), talk("other"))
    again = {**shown["outputs"][0], "data": {transcript.VENDOR: talk("new")}}
    shown["outputs"].append(again)
    assert said(choose(book(shown), "a", "", None, 0)) == "new"
    assert said(choose(book(shown), "a", "", None, 1)) == "other"


def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> Path:
    """A kernel that runs cell "a" of a notebook with this text."""
    path = tmp_path / "n.ipynb"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    parent = {"metadata": {"cellId": "a"}, "content": {"code": "chat"}}
    shell = SimpleNamespace(user_ns={}, get_parent=lambda: parent)
    monkeypatch.setattr(resume, "get_ipython", lambda: shell)
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    return path


def test_it_is_found_from_inside_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(tmp_path, monkeypatch, json.dumps(book(cell("a", "chat", talk("hello")))))
    assert said(finder(None, 0)()) == "hello"
    monkeypatch.setattr(resume, "get_ipython", lambda: None)
    assert finder(None, 0)() is None


GOOD = cell("a", "chat", talk("hello"))
KEY = transcript.VENDOR


@pytest.mark.parametrize(
    "text",
    [
        "", "{", f'{{"{KEY}": ', "null", f'["{KEY}"]', f'"{KEY}"',
        f"\xff\xfe{KEY}".encode("latin-1"),
        "[" * 100_000 + KEY, '{"' + KEY + '": ' * 50_000,
        json.dumps({"cells": {KEY: 1}}),
        json.dumps({"cells": [KEY, None, 3, [], {"outputs": KEY}]}),
        json.dumps(book({"id": "a", "outputs": [None, 3, {"data": None}, {"data": {KEY: None}}]})),
        json.dumps(book({"id": "a", "source": 3, "outputs": [{"data": {KEY: {}}, "metadata": 3}]})),
        json.dumps(book(GOOD, GOOD)),  # which of the two?
    ],
)  # fmt: skip
def test_a_damaged_notebook_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | bytes
) -> None:
    kernel(tmp_path, monkeypatch, text)
    for found in (finder(None, 0)(), finder("name", 0)()):
        assert not found  # an object without turns is no conversation: reading it says so


def test_a_damaged_cell_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {"id": [], "outputs": [{"data": {KEY: 3}, "metadata": {"llm_magic": []}}]}
    kernel(tmp_path, monkeypatch, json.dumps(book(bad, GOOD, 3)))
    assert said(finder(None, 0)()) == "hello"


@pytest.mark.skipif("os.getuid() == 0", reason="root may read everything")
def test_a_notebook_that_may_not_be_read_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(tmp_path, monkeypatch, json.dumps(book(GOOD))).chmod(0)
    assert finder(None, 0)() is None


# ------------------------------------------------------------------ saved and loaded


def test_versions_reasoning_and_settings_come_back() -> None:
    count = iter(range(9))
    controller, _ = chat(lambda request: f"<think>why</think>answer {next(count)}")
    controller.submit({"t": "set", "name": "temperature", "value": "0.25"})
    say(controller, "one")
    say(controller, "two")
    first, answer, _, _ = controller.turns.path()
    controller.submit({"t": "regenerate", "id": controller.turns.path()[3].id})
    assert controller.wait(20)
    controller.submit({"t": "edit", "id": first.id, "text": "uno", "nonce": ""})
    assert controller.wait(20)
    controller.submit({"t": "branch", "id": controller.turns.path()[0].id, "index": 0})
    until(lambda: len(controller.messages) == 4)
    answer.note = "stopped"

    bundle = transcript.bundle(controller.turns, "m", about=controller.about)
    for data in (bundle[KEY], controller.to_dict()):
        data = json.loads(json.dumps(data))
        fresh, host = chat(["next"])
        fresh.load(data)
        until(lambda fresh=fresh: len(fresh.messages) == 4)
        assert fresh.messages == controller.messages
        assert fresh.messages[-1].reasoning == "why"
        assert shape(fresh.turns) == shape(controller.turns)
        assert host.values == {"temperature": 0.25}  # never the model: a file must not choose it
        path = fresh.turns.path()
        assert path[1].note == "stopped"
        assert path[1].foot() == controller.turns.path()[1].foot()
        say(fresh, "three")
        assert fresh.turns.path()[-1].text == "next"
        ids = [turn["id"] for turn in Page(host.posted).turns]
        assert len(set(ids)) == len(ids) == 6
        again, _ = chat(["x"])
        again.load(fresh.to_dict())
        assert shape(again.turns) == shape(fresh.turns) or again.wait(1)


def shape(turns: ChatThread) -> Any:
    def below(turn: Any) -> Any:
        return [turn.message.text, turn.active, [below(child) for child in turn.children]]

    return below(turns.root)


def test_a_long_conversation_is_saved_without_what_makes_it_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = ChatThread()
    user = turns.add(turns.root, "user", "question")
    for n in range(4):
        turns.answer(user, Reply(f"answer {n} " * 50, "thoughts " * 50))
    whole = len(json.dumps(turns.to_dict(tokens=False)))

    def held(room: int) -> Any:
        monkeypatch.setattr(transcript, "MAX_DATA", room)
        return transcript.bundle(turns, "m").get(KEY)

    assert len(held(whole)["turns"][1]["others"]) == 3
    assert "others" not in held(whole - 1)["turns"][1]
    assert "thoughts" in str(held(whole // 2))
    assert "thoughts" not in str(held(1000))
    assert "answer 3" in str(held(1000))
    assert held(100) is None


@pytest.mark.parametrize(
    "row",
    [
        {"reply": 3},
        {"reply": {"version": 9}},
        {"others": 3},
        {"others": [3]},
        {"others": [[]]},
        {"others": [], "place": 1},
        {"others": [[{"role": "user", "content": "x"}]], "place": -1},
        {"others": [[{"role": "user", "content": "x"}]], "place": True},
        {"others": [[{"role": "user", "content": "x", "others": [[]]}]]},
        {"others": [[{"role": "x", "content": "x"}]]},
    ],
)
def test_damaged_versions_change_nothing(row: Mapping[str, Any]) -> None:
    turns = ChatThread()
    turns.add(turns.root, "user", "kept")
    with pytest.raises(ValueError, match=r"."):
        turns.load({"version": 1, "turns": [{"role": "assistant", "content": "x", **row}]})
    assert turns.path()[0].text == "kept"


def test_versions_inside_of_versions_end_somewhere() -> None:
    row: dict[str, Any] = {"role": "user", "content": "x"}
    for depth in range(400):
        other = [{"role": "user", "content": "z"}, row]
        row = {"role": "user", "content": "x", "others": [other]}
        if depth in (50, 399):
            with pytest.raises(ValueError, match=r"too (many|deeply)"):
                ChatThread().load({"version": 1, "turns": [row]})
    many = {"role": "user", "content": "x"}
    with pytest.raises(ValueError, match="too many"):
        ChatThread().load({"version": 1, "turns": [many] * 20_001})
    deep = ChatThread()
    last = deep.root
    for n in range(300):  # each version inside of one that is not shown: deeper than is saved
        hidden, _ = (deep.add(last, "user", f"{text}{n}") for text in ("hidden", "shown"))
        last = hidden
    loaded = ChatThread()
    loaded.load(deep.to_dict())
    assert loaded.messages() == deep.messages()


def test_the_model_that_was_chosen_on_the_page_is_not_saved() -> None:
    controller, host = chat(["a"])
    controller.submit({"t": "set", "name": "model", "value": "http://s3cret@elsewhere"})
    controller.submit({"t": "set", "name": "top_k", "value": "4"})
    until(lambda: len(host.values) == 2)
    assert controller.about == {"settings": {"top_k": 4}}


def test_settings_of_another_release_are_left_out() -> None:
    controller, host = chat(["a"])
    settings = {"temperature": -1, "top_k": 5, "new": 1, "model": "x", "system": ["no"]}
    controller.load({**talk("hi"), "settings": settings})
    until(lambda: len(controller.messages) == 2 and bool(host.values))
    assert host.values == {"top_k": 5}
    controller.load({**talk("ho"), "settings": 3, "at": 4, "model": None})


# ------------------------------------------------------------------ the offer


def offers(host: Any) -> list[Any]:
    return [op for message in host.posted for op in message["ops"] if op["o"] == "offer"]


def offer(controller: ChatController, data: Any) -> None:
    """As where the notebook holds this data."""
    assert controller.search(lambda: data).wait(10)


def test_an_offer_is_taken_up() -> None:
    controller, host = chat(["next"])
    offer(controller, {**talk("hello"), "model": "m", "at": "2026-01-02T03:04:05+00:00"})
    assert controller.earlier is not None
    until(lambda: bool(offers(host)))
    assert offers(host)[-1] | {"o": ""} == {
        "o": "", "n": 1, "model": "m", "at": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    assert controller.messages == ()
    controller.submit({"t": "resume"})
    until(lambda: len(controller.messages) == 2)
    assert offers(host)[-1]["n"] == 0
    assert controller.earlier is None
    say(controller, "more")
    assert [m.text for m in controller.messages] == ["hello", "hello!", "more", "next"]
    controller.submit({"t": "resume"})  # of a second view, too late
    controller.submit({"t": "hello", "page": "v"})
    until(lambda: any("to" in message for message in host.posted))
    assert len(controller.messages) == 4
    assert Page(host.posted).notices == []


def test_a_message_begins_anew_and_ends_the_offer() -> None:
    controller, host = chat(["fresh"])
    offer(controller, talk("hello"))
    say(controller, "new")
    assert [m.text for m in controller.messages] == ["new", "fresh"]
    assert controller.earlier is None
    assert offers(host)[-1]["n"] == 0


def test_an_offer_outlives_a_message_that_failed_and_a_setting() -> None:
    from llm_magic.errors import EngineError

    controller, host = chat([EngineError("no luck"), "fresh"])
    offer(controller, talk("hello"))
    controller.submit({"t": "set", "name": "top_k", "value": 3})
    say(controller, "new")
    assert controller.earlier is not None
    assert offers(host)[-1]["n"] == 1
    controller.submit({"t": "resume"})
    until(lambda: len(controller.messages) == 2)


def test_start_anew_can_be_undone() -> None:
    controller, host = chat(["next"])
    offer(controller, talk("hello"))
    controller.submit({"t": "start anew"})
    until(lambda: controller.earlier is None)
    until(lambda: bool(Page(host.posted).notices))
    assert offers(host)[-1]["n"] == 0
    controller.submit({"t": "restore"})
    until(lambda: len(controller.messages) == 2)
    say(controller, "more")
    ids = [turn["id"] for turn in Page(host.posted).turns]
    assert len(set(ids)) == len(ids) == 4


def test_nothing_is_offered_to_a_chat_that_has_turns() -> None:
    controller, host = chat(["a"])
    say(controller, "one")
    offer(controller, talk("hello"))
    assert controller.earlier is None
    controller.submit({"t": "remembered", "turns": talk("hello")["turns"]})
    controller.submit({"t": "undo"})
    until(lambda: not controller.messages)
    assert [op["n"] for op in offers(host) if op["n"]] == []
    controller = chat(["a"])[0]
    for nothing in ({"version": 1, "turns": []}, None, 3, {"version": 9}):
        offer(controller, nothing)
        assert controller.earlier is None


def test_what_the_page_remembers_counts_where_it_is_newer() -> None:
    controller, host = chat(["a"])
    data = talk("hello")
    data["turns"][1]["reply"] = Reply("", "why").to_dict() | {"text": "hello!"}
    offer(controller, data)
    controller.submit(
        {"t": "remembered", "turns": data["turns"]}
    )  # the same: the notebook has more
    controller.submit({"t": "remembered", "turns": data["turns"][1:]})
    controller.submit({"t": "remembered", "turns": 3})
    controller.submit({"t": "remembered", "turns": [3]})
    until(lambda: len(Page(host.posted).notices) == 2)
    assert controller.earlier is not None
    assert controller.earlier.turns.path()[1].reply.reasoning == "why"
    settles = host.settles
    newer = [*data["turns"], {"role": "user", "content": "and"}]
    controller.submit({"t": "remembered", "turns": newer})
    until(lambda: host.settles > settles)
    assert [text for _, text in controller.earlier.texts] == ["hello", "hello!", "and"]
    assert offers(host)[-1]["n"] == 2


@pytest.mark.parametrize(
    "reply",
    [
        {"usage": {"prompt": 10**400}}, {"timings": {"decode": 10**400}},
        {"sampling": {"temperature": 10**400}},
        {"sampling": {"temperature": math.nan}},
    ],
)  # fmt: skip
def test_numbers_that_no_machine_has_are_a_wrong_file(reply: Any) -> None:
    turns = [{"role": "assistant", "content": "a", "reply": {"version": 1, "text": "a", **reply}}]
    with pytest.raises(ValueError, match="not a saved reply"):
        SavedConversation.read({"version": 1, "turns": turns}, plain)


def test_settings_come_back_with_what_was_put_aside() -> None:
    controller, host = chat(["next"])
    offer(controller, {**talk("hello"), "settings": {"top_k": 3}})
    for t in ("start anew", "restore"):
        controller.submit({"t": t})
    assert controller.wait(20)
    assert len(controller.messages) == 2
    assert host.values == {"top_k": 3}


def test_what_was_said_since_is_not_lost_when_a_second_view_undoes() -> None:
    controller, host = chat(["fresh"])
    offer(controller, talk("hello"))
    controller.submit({"t": "start anew"})
    say(controller, "new")
    for first in ("hello", "new", "hello"):
        controller.submit({"t": "restore"})
        assert controller.wait(20)
        assert controller.messages[0].text == first
    assert Page(host.posted).notices[-1].startswith("Messages sent since then")


def test_each_chat_of_a_cell_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_magic.ui.widgets.chat import widget as module

    asked: list[tuple[str | None, int]] = []

    def search(name: str | None, nth: int) -> Any:
        asked.append((name, nth))
        return lambda: None

    monkeypatch.setattr(resume, "finder", search)
    monkeypatch.setattr(module.jupyter, "display", lambda *_, **__: None)
    cells = iter(["one"] * 5 + ["two"] * 2)
    monkeypatch.setattr(module.jupyter, "running_cell", lambda: {"msg_id": next(cells)})
    given = module.Chat("m", messages=[{"role": "user", "content": "hi"}])
    first, named, second = (module.Chat("m", name=name) for name in (None, "plan", None))
    for shown in (given, first, named, first, second, second, module.Chat("m")):
        shown._ipython_display_()
    # The first one was given messages: it needs none, and the notebook holds it all the same.
    assert asked == [(None, 1), ("plan", 0), (None, 2), (None, 1)]
    keys = [one._host.key for one in (given, first, named, second)]
    assert keys == ["0", "1", "name plan", "2"]


def test_the_offered_conversation_stays_in_the_transcript() -> None:
    from llm_magic.ui.widgets.chat.widget import Chat

    data = {**talk("hello"), "model": "old", "settings": {"top_k": 3}}
    chat, named = Chat("m"), Chat("m", name="plan")
    assert KEY not in chat._describe().bundle()
    offer(chat._controller, data)
    offer(named._controller, data)
    kept = chat._transcript.bundle()[KEY]
    assert (kept["model"], kept["settings"]) == ("old", {"top_k": 3})
    assert SavedConversation.read(kept, plain).texts == [("user", "hello"), ("assistant", "hello!")]
    assert named._transcript.bundle()[KEY]["name"] == "plan"


def test_a_large_file_of_someone_else_does_not_hold_the_cell_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # F314
    from llm_magic.ui.widgets.chat import widget as module

    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "*ho*"}]
    kernel(tmp_path, monkeypatch, json.dumps(book(cell("a", "chat", talk("x")))))
    reading, may_end = threading.Event(), threading.Event()
    read = SavedConversation.read.__func__

    def slow(cls: Any, data: Any, render: Any) -> Any:
        reading.set()
        assert may_end.wait(20)
        return read(cls, {"version": 1, "turns": turns * 50}, render)

    monkeypatch.setattr(SavedConversation, "read", classmethod(slow))
    monkeypatch.setattr(module.jupyter, "display", lambda *_, **__: None)
    chat = module.Chat("m")
    chat._ipython_display_()  # returns while the file is being read
    assert reading.is_set()
    assert chat._controller.earlier is None
    may_end.set()
    until(lambda: chat._controller.earlier is not None)
    until(lambda: KEY in chat._transcript.bundle())
    assert len(chat._transcript.rows) == 100
