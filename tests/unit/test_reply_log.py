"""`%llm log`: requests and replies in a file, searched, and loaded again with all their views."""

import os
import sqlite3
import stat
import threading
from collections.abc import Callable

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.html_audit import XSS, audit
from support.replies import reply_of
from support.shells import cell, command

from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message, ToolCall, ToolSpec
from llm_magic.providers.scripted import Scripted
from llm_magic.reply_log import ReplyLog


@pytest.fixture
def script(as_default: Callable[[Scripted], None]) -> Scripted:
    scripted = Scripted(lambda request: f"Answer to {request.messages[-1].text}", model="fake")
    as_default(scripted)
    return scripted


def test_cells_are_logged_only_while_the_log_is_on(shell: InteractiveShell, script, tmp_path):
    path = tmp_path / "log.sqlite"
    cell(shell, "", "before")
    assert "the log is off" in command(shell, "log")["text/plain"]
    assert "0 replies" in command(shell, f'log on "{path}"')["text/plain"]
    cell(shell, "--system Short. -t 0", "first question")
    command(shell, "ask second question")
    assert "2 replies so far" in command(shell, "log")["text/plain"]
    command(shell, "log off")
    cell(shell, "", "after")
    assert len(ReplyLog(path)) == 2
    if os.name == "posix":  # what people ask is theirs alone
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = command(shell, "log search FIRST")
    assert audit(found["text/html"]) == []
    assert "first question" in found["text/plain"]
    assert "second" not in found["text/plain"]
    assert "no reply with 'nothing'" in command(shell, "log search nothing")["text/plain"]
    reply = shell.run_line_magic("llm", "log load 1")
    assert reply.text == "Answer to first question"
    assert [m.role for m in reply.messages] == ["system", "user"]
    assert shell.user_ns["_llm"] is reply
    assert "Short." in reply.prompt
    assert reply._repr_mimebundle_()


def test_a_loaded_reply_is_the_one_that_was_logged(tmp_path):
    messages = (
        Message("user", "Weather?"),
        Message("assistant", "", calls=(ToolCall("c1", "weather", '{"at": "Oslo"}'),)),
        Message("tool", "4 °C", name="weather", call_id="c1"),
    )
    tools = (ToolSpec("weather", "The weather", {"type": "object", "properties": {}}),)
    reply = reply_of(messages=messages, tools=tools, prompt_ids=(1, 2))
    log = ReplyLog(tmp_path / "log.sqlite")
    number = log.add(reply, cell="chat", notebook="a.ipynb")
    again = log.load(number)
    assert again.to_dict() == Reply.from_dict(reply.to_dict()).to_dict()
    assert (again.messages, again.tools, again.prompt_ids) == (messages, tools, (1, 2))
    assert again.heatmap() is not None
    (row,) = log.search("weather?")
    assert (row.cell, row.notebook, row.asked) == ("chat", "a.ipynb", "Weather?")
    assert log.search("oslo")


@pytest.mark.parametrize("text", [*XSS[:6], "'; DROP TABLE replies; --", "%", "_", '"', "\0", ""])
def test_any_text_is_found_as_it_is_and_harms_nothing(text, tmp_path):
    log = ReplyLog(tmp_path / "log.sqlite")
    log.add(Reply(f"a {text} b", model="m", prompt="p"))
    log.add(Reply("other", model="m", prompt="p"))
    assert len(log.search(text)) == (1 if text else 2)
    assert len(log) == 2


def test_several_notebooks_write_to_one_file(tmp_path):
    path = tmp_path / "log.sqlite"
    logs = [ReplyLog(path) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda log=log: [log.add(Reply("x")) for _ in range(25)])
        for log in logs
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(row.id for row in logs[0].search("", most=200)) == list(range(1, 101))


def test_a_file_that_is_no_log_is_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (a)")
    with pytest.raises(RequestError, match="another program's database"):
        ReplyLog(path)
    text = tmp_path / "notes.txt"
    text.write_text("my notes, which are longer than a header of sqlite " * 5)
    with pytest.raises(RequestError, match="cannot be used"):
        ReplyLog(text)
    assert text.read_text().startswith("my notes")
    with pytest.raises(RequestError, match="cannot be used"):
        ReplyLog(tmp_path / "no" / "such" / "folder.sqlite")
    log = ReplyLog(tmp_path / "new.sqlite")
    with sqlite3.connect(log.path) as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(RequestError, match="has version 9; this release reads version 1"):
        ReplyLog(log.path)


def test_a_damaged_reply_is_named(tmp_path):
    log = ReplyLog(tmp_path / "log.sqlite")
    log.add(Reply("x"))
    with sqlite3.connect(log.path) as db:
        db.execute("UPDATE replies SET reply = '[1'")
    with pytest.raises(RequestError, match=r"reply 1 of .* is damaged"):
        log.load(1)
    with pytest.raises(RequestError, match="has no reply 7"):
        log.load(7)


def test_an_answer_stays_when_the_log_cannot_be_written(shell, script, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    command(shell, f"log on {folder / 'log.sqlite'}")
    (folder / "log.sqlite").unlink()
    folder.rmdir()
    with pytest.warns(UserWarning, match="the log is off now"):
        cell(shell, "", "hi")
    assert shell.user_ns["_llm"].text == "Answer to hi"
    cell(shell, "", "again")  # and it does not warn twice


@pytest.mark.parametrize("line", ["log on", "log search x", "log load 1", "log load x", "log odd"])
def test_what_cannot_be_done_is_said(line, shell, script):
    with pytest.raises(UsageError, match="log"):
        command(shell, line)
