"""Saved notebooks: those of version 0.1.0 still open, and an exported one shows its chats."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from support.chats import chat, say

from llm_magic.chat.reply import Reply
from llm_magic.ui.views import mime
from llm_magic.ui.widgets.chat import resume, transcript
from llm_magic.ui.widgets.chat.resume import SavedConversation
from llm_magic.ui.widgets.chat.thread import plain
from llm_magic.ui.widgets.chat.widget import Chat
from llm_magic.ui.widgets.explorer.widget import Explorer
from llm_magic.ui.widgets.shared import jupyter

OLD = Path(__file__).parents[1] / "data" / "notebooks-0.1.0"
NOTEBOOKS = sorted(OLD.glob("*.ipynb"))


def exported(notebook: Any) -> str:
    exporters = pytest.importorskip("nbconvert.exporters")
    return str(exporters.HTMLExporter().from_notebook_node(notebook)[0])


def test_a_chat_of_version_0_1_0_is_continued_with_all_versions() -> None:
    found = SavedConversation.read(transcript.read(OLD / "chat.ipynb"), plain)
    assert [role for role, _ in found.texts] == ["user", "assistant"] * 2
    assert found.texts[0][1] == "What is the capital of Norway?"
    assert found.saved.model == "smollm2"
    turn = found.turns.last()
    assert turn.parent is not None
    assert len(turn.parent.children) == 2
    assert turn.reply is not None
    assert turn.reply.usage.completion > 0


def test_the_chat_of_a_cell_of_version_0_1_0_is_found() -> None:
    data = json.loads((OLD / "chat.ipynb").read_text("utf-8"))
    id = data["cells"][0]["id"]
    found = resume.choose(data, id, None, None, 0)
    assert len(found["turns"]) == 4
    assert resume.choose(data, id, None, None, 1) is None


def test_a_reply_of_version_0_1_0_can_be_explored() -> None:
    data = json.loads((OLD / "chat.ipynb").read_text("utf-8"))
    (saved,) = [o["data"] for o in data["cells"][1]["outputs"] if mime.VENDOR in o["data"]]
    reply = mime.from_output(saved)
    assert len(reply.tokens) == 24
    assert all(len(token.top) == 3 for token in reply.tokens)
    explorer = Explorer(reply)
    assert len(explorer.state["views"][0][3]) == 24
    assert "text/html" in explorer._static()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_of_version_0_1_0_is_valid_and_can_be_exported(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert "model not found" not in exported(notebook)


def shown(monkeypatch: pytest.MonkeyPatch, widget: Any) -> Any:
    """The two outputs that a widget leaves in a notebook."""
    outputs: list[Any] = []

    def display(data: Any, metadata: Any = None, raw: bool = False) -> None:
        outputs.append(nbformat.v4.new_output("display_data", data=data, metadata=metadata or {}))

    def show(output: Any, update: bool = False) -> None:
        outputs.append(
            nbformat.v4.new_output("display_data", data=output.data, metadata=output.metadata)
        )

    monkeypatch.setattr(jupyter, "display", display)
    monkeypatch.setattr(jupyter.UpdatableOutput, "show", show)
    widget._ipython_display_()
    cell = nbformat.v4.new_code_cell("shown", outputs=outputs)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.validate(notebook)
    return notebook


def test_an_exported_chat_shows_its_conversation_and_no_repr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # F260
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "**Hello**"}]
    one = Chat("smollm2", messages=turns)
    assert one.wait(10)
    notebook = shown(monkeypatch, one)
    page = exported(notebook)
    assert "<strong>Hello</strong>" in page
    assert "<details open" in page
    for line in ("&lt;Chat", "<Chat with", "model not found"):
        assert line not in page
    markdown = pytest.importorskip("nbconvert.exporters").MarkdownExporter()
    text, _ = markdown.from_notebook_node(notebook)
    assert "Hello" in text
    assert "<Chat with" not in text


def test_an_exported_explorer_shows_the_tokens_and_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    # F260
    reply = Reply("Hi", model="smollm2")
    page = exported(shown(monkeypatch, Explorer(reply)))
    assert "Hi" in page
    assert "Explorer:" not in page


def test_where_the_widget_does_not_live_its_error_line_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # F260: as JupyterLab has it, a text without an element right before the transcript
    notebook = shown(monkeypatch, Chat("smollm2"))
    view, kept = (output.data for output in notebook.cells[0].outputs)
    assert "application/vnd.jupyter.widget-view+json" in view
    assert "text/plain" not in view
    name = kept["text/html"].split('class="')[1].split('"')[0]
    rule = f".jp-OutputArea-child:has(+.jp-OutputArea-child .{name})"
    assert f"{rule}>.jp-OutputArea-output:not(:has(*))" in kept["text/html"]


def test_the_static_transcript_follows_a_conversation() -> None:
    controller, host = chat(["a", "b"])
    say(controller, "one")
    say(controller, "two")
    found = SavedConversation.read(host.transcript.bundle()[transcript.VENDOR], plain)
    assert [text for _, text in found.texts] == ["one", "a", "two", "b"]
