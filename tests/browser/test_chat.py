"""The chat widget in a real front end with a real kernel."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from .harness import Jupyter, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SCRIPT = """
import llm_magic
from llm_magic.llm import LLM
from llm_magic.chat.scripted import Scripted
def answer(request):
    asked = request.prompt[-1].text
    n = 400 if "very long" in asked else 40 if "long" in asked else 0
    return " ".join(f"word{i}" for i in range(n)) or f"You said: {asked}"
llm = LLM(Scripted(answer, delay=0.05))
"""
SHOW = "chat = llm_magic.Chat(llm)\nchat"


@pytest.fixture
def notebook(lab: Jupyter, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook with a chat in cell 1 and free cells after it."""
    name = f"{request.node.name}.ipynb"
    lab.write(name, [SCRIPT + SHOW, "import time\ntime.sleep(30)", "print(chat.messages)"])
    opened = lab.open(browser, name)
    opened.run(0)
    yield opened
    opened.close()


def chat_of(notebook: Notebook, cell: int = 0) -> Locator:
    return notebook.cell(cell).locator(".llmc")


def say(chat: Locator, text: str) -> None:
    chat.get_by_role("textbox", name="Message").fill(text)
    chat.get_by_role("textbox", name="Message").press("Enter")


def test_send_and_see_tokens_arrive(notebook: Notebook) -> None:
    chat = chat_of(notebook)
    say(chat, "a long one")
    seen = set()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        texts = chat.locator(".llmc-answer").all_inner_texts()
        seen.update(texts)
        if texts and "word39" in texts[-1]:
            break
        notebook.page.wait_for_timeout(50)
    assert len(seen) > 3, "the answer came at once"
    expect(chat.locator(".llmc-foot")).to_contain_text("tokens")
    expect(chat.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert notebook.errors == []


def test_stop_while_a_cell_runs(notebook: Notebook) -> None:
    chat = chat_of(notebook)
    notebook.start(1)
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    say(chat, "a very long one")
    expect(chat.locator(".llmc-answer")).to_contain_text("word3", timeout=10_000)
    clicked = time.monotonic()
    chat.get_by_role("button", name="Stop").click()
    expect(chat.locator(".llmc-note")).to_have_text("stopped", timeout=2_000)
    assert time.monotonic() - clicked < 2
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    assert "word399" not in chat.locator(".llmc-answer").inner_text()
    # B103: nothing of it landed in the running cell.
    assert notebook.output(1).count() == 0


def test_reloaded_page_shows_the_same_and_goes_on(notebook: Notebook) -> None:
    chat = chat_of(notebook)
    say(chat, "first")
    expect(chat.locator(".llmc-answer")).to_contain_text("You said: first")
    say(chat, "a long one")
    expect(chat.locator(".llmc-answer").nth(1)).to_contain_text("word2")
    notebook.save()
    notebook.reload()
    chat = chat_of(notebook)
    expect(chat.locator(".llmc-answer").first).to_contain_text("You said: first")
    expect(chat.locator(".llmc-answer").nth(1)).to_contain_text("word39")
    say(chat, "third")
    expect(chat.locator(".llmc-answer").nth(2)).to_contain_text("You said: third")


def test_saved_notebook_has_the_transcript_without_a_kernel(
    notebook: Notebook, lab: Jupyter, browser: Browser
) -> None:
    say(chat_of(notebook), "remember <b>this</b>")
    expect(chat_of(notebook).locator(".llmc-foot")).to_contain_text("tokens")
    saved = notebook.save()
    outputs = saved.cells[0].outputs
    html = "".join(outputs[1].data["text/html"])
    assert "You said: remember &lt;b&gt;this&lt;/b&gt;" in html
    assert "<script" not in html
    assert "application/vnd.jupyter.widget-view+json" not in outputs[1].data
    assert len(outputs) == 2


def test_two_views_show_one_conversation(lab: Jupyter, browser: Browser) -> None:
    lab.write("views.ipynb", [SCRIPT + SHOW, "chat"])
    notebook = lab.open(browser, "views.ipynb")
    notebook.run(0)
    notebook.run(1)
    say(chat_of(notebook, 1), "hello")
    for cell in (0, 1):
        expect(chat_of(notebook, cell).locator(".llmc-answer")).to_contain_text("You said: hello")
    notebook.close()


def test_two_chats_at_once_do_not_mix(lab: Jupyter, browser: Browser) -> None:
    lab.write("two.ipynb", [SCRIPT + SHOW, "other = llm_magic.Chat(llm)\nother"])
    notebook = lab.open(browser, "two.ipynb")
    notebook.run(0)
    notebook.run(1)
    for cell, text in ((0, "apple"), (1, "pear")):
        say(chat_of(notebook, cell), text)
    expect(chat_of(notebook, 0).locator(".llmc-answer")).to_contain_text("You said: apple")
    expect(chat_of(notebook, 1).locator(".llmc-answer")).to_contain_text("You said: pear")
    notebook.close()


def test_typed_text_is_kept_when_it_fails(lab: Jupyter, browser: Browser) -> None:
    fail = "from llm_magic.errors import EngineError\n"
    fail += "chat = llm_magic.Chat(LLM(Scripted([EngineError('no luck <i>today</i>')])))\nchat"
    lab.write("fail.ipynb", [SCRIPT + fail])
    notebook = lab.open(browser, "fail.ipynb")
    notebook.run(0)
    chat = chat_of(notebook)
    say(chat, "my precious question")
    expect(chat.get_by_role("alert")).to_have_text("no luck <i>today</i>")
    expect(chat.get_by_role("textbox")).to_have_value("my precious question")
    expect(chat.locator(".llmc-turn")).to_have_count(0)
    notebook.close()


def test_letters_typed_in_the_chat_are_no_notebook_commands(notebook: Notebook) -> None:
    chat = chat_of(notebook)
    chat.get_by_role("textbox").click()
    notebook.page.keyboard.type("ddaabbxm")
    notebook.page.keyboard.press("Shift+Enter")
    notebook.page.keyboard.type("0,0")
    expect(chat.get_by_role("textbox")).to_have_value("ddaabbxm\n0,0")
    expect(notebook.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    assert re.fullmatch(r"\[ ?\]:?", notebook.cell(1).locator(".jp-InputPrompt").inner_text())
