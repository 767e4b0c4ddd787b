"""The chat widget in a real front end with a real kernel."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from . import axe
from .chatpage import SCRIPT, ChatPage
from .harness import Jupyter, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SHOW = "chat = llm_magic.Chat(llm, logprobs=3)\nchat"
Open = Callable[..., Notebook]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Jupyter:
    """JupyterLab, where a test does not ask for both (`in_both`)."""
    found: Jupyter = request.getfixturevalue(getattr(request, "param", "lab"))
    return found


in_both = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)


@pytest.fixture
def show(server: Jupyter, browser: Browser, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a notebook of these cells and runs the first, which has the script before it."""
    opened: list[Notebook] = []

    def start(*cells: str, run: int = 1) -> Notebook:
        name = f"{request.node.name[:60]}.ipynb".replace("[", "-").replace("]", "")
        first = SCRIPT + (cells[0] if cells else SHOW)
        server.write(name, [first, *cells[1:]])
        opened.append(server.open(browser, name))
        for i in range(run):
            opened[-1].run(i)
        return opened[-1]

    yield start
    for notebook in opened:
        notebook.close()
    server.stop_kernels()


def another_day(notebook: Notebook, server: Jupyter, browser: Browser) -> Notebook:
    """Saved and closed, its kernel ended; then opened again, and the cell of the chat run."""
    notebook.save()
    notebook.close()
    server.stop_kernels()
    opened = server.open(browser, notebook.path.name)
    opened.run(0)
    return opened


# ------------------------------------------------------------------ sending, streaming, stopping


def test_send_and_see_tokens_arrive(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.send("a long one")
    seen = set()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        texts = chat.answers.all_inner_texts()
        seen.update(texts)
        if texts and "word39" in texts[-1]:
            break
        notebook.page.wait_for_timeout(50)
    assert len(seen) > 3, "the answer came at once"
    expect(chat.root.locator(".llmc-foot").last).to_contain_text("tokens")
    expect(chat.button("Send")).to_be_visible()
    # The head keeps the mean, as the line below the answer says it.
    mean = re.search(r"\d+ tok/s", chat.root.locator(".llmc-foot").last.inner_text())
    assert mean is not None
    expect(chat.root.locator(".llmc-spark")).to_have_text(mean[0])
    assert notebook.errors == []


def test_stop_while_a_cell_runs(show: Open) -> None:
    notebook = show(SHOW, "import time\ntime.sleep(30)")
    chat = ChatPage(notebook)
    notebook.start(1)
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    chat.send("a very long one")
    expect(chat.answers).to_contain_text("word3", timeout=10_000)
    clicked = time.monotonic()
    chat.button("Stop").click()
    expect(chat.root.locator(".llmc-note")).to_have_text("stopped", timeout=2_000)
    assert time.monotonic() - clicked < 2
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[*]:")
    assert "word399" not in chat.answers.inner_text()
    # B103: nothing of it landed in the running cell.
    assert notebook.output(1).count() == 0


@in_both
def test_stop_in_prefill_while_a_cell_runs_gives_the_question_back(show: Open) -> None:
    slow = "chat = llm_magic.Chat(LLM(Scripted(answer, prefill_delay=1.0)))\nchat"
    notebook = show(slow, "time.sleep(30)")
    chat = ChatPage(notebook)
    notebook.start(1)
    question = "word " * 1000
    chat.send(question)
    expect(chat.root.get_by_role("status")).to_contain_text("prompt tokens", timeout=10_000)
    chat.input.press("Escape")
    expect(chat.input).to_have_value(question, timeout=3_000)
    expect(chat.root.locator(".llmc-turn")).to_have_count(0)


def test_reloaded_page_shows_the_same_and_goes_on(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    assert chat.say("first") == "You said: first"
    chat.send("a long one")
    expect(chat.answers.nth(1)).to_contain_text("word2")
    notebook.save()
    notebook.reload()
    chat = ChatPage(notebook)
    expect(chat.answers.first).to_contain_text("You said: first")
    expect(chat.answers.nth(1)).to_contain_text("word39")
    assert chat.say("third") == "You said: third"


def test_a_reloaded_page_saves_the_transcript_of_what_is_said_after(show: Open) -> None:
    notebook = show()
    ChatPage(notebook).say("first")
    notebook.save()
    notebook.reload()
    chat = ChatPage(notebook)
    expect(chat.answers).to_have_text("You said: first")
    chat.say("second")
    # JupyterLab has forgotten which output is the transcript; the chat puts the new one there.
    expect(notebook.output(0).last).to_contain_text("2 turns")
    outputs = notebook.save().cells[0].outputs
    assert len(outputs) == 2
    assert "You said: second" in outputs[1].data["text/html"]
    turns = outputs[1].data["application/vnd.llm-magic.chat+json"]["turns"]
    assert [turn["content"] for turn in turns][2:] == ["second", "You said: second"]
    assert notebook.errors == []


def test_an_answer_that_ended_while_the_page_was_away_is_saved(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.send("a long one")
    expect(chat.answers).to_contain_text("word2")
    notebook.save()
    notebook.page.goto("about:blank")
    notebook.page.wait_for_timeout(4000)
    notebook.frames = 0
    notebook.page.go_back()
    notebook.ready()
    expect(notebook.output(0).last).to_contain_text("1 turn")
    notebook.until(
        lambda: "word39" in str(notebook.save().cells[0].outputs[1].data["text/html"]),
        "the transcript is an old one",
    )


def test_two_views_show_one_conversation(show: Open) -> None:
    notebook = show(SHOW, "chat", run=2)
    ChatPage(notebook, 1).say("hello")
    for cell in (0, 1):
        expect(ChatPage(notebook, cell).answers).to_contain_text("You said: hello")


def test_two_chats_at_once_do_not_mix(show: Open) -> None:
    notebook = show(SHOW, "other = llm_magic.Chat(llm)\nother", run=2)
    pages = [ChatPage(notebook, cell) for cell in (0, 1)]
    for page, text in zip(pages, ("long apple", "pear"), strict=True):
        page.send(text)
    expect(pages[1].answers).to_contain_text("You said: pear")
    expect(pages[0].answers).to_contain_text("word39")
    assert "pear" not in pages[0].root.inner_text()


def test_typed_text_is_kept_when_it_fails(show: Open) -> None:
    fail = "from llm_magic.errors import EngineError\n"
    fail += "chat = llm_magic.Chat(LLM(Scripted([EngineError('no luck <i>today</i>')])))\nchat"
    chat = ChatPage(show(fail))
    chat.send("my precious question")
    expect(chat.alert).to_have_text("no luck <i>today</i>")
    expect(chat.input).to_have_value("my precious question")
    expect(chat.root.locator(".llmc-turn")).to_have_count(0)


def test_suggestions_are_a_draft(show: Open) -> None:
    asks = ["What is a token?", "Tell me <b>more</b>"]
    notebook = show(f"chat = llm_magic.Chat(llm, suggestions={asks!r})\nchat")
    chat = ChatPage(notebook)
    expect(chat.button(asks[1])).to_be_visible()
    chat.button(asks[0]).press("Enter")
    expect(chat.input).to_have_value(asks[0])
    expect(chat.input).to_be_focused()
    expect(chat.root.locator(".llmc-turn")).to_have_count(0)
    notebook.page.keyboard.press("Enter")
    expect(chat.answers).to_have_text(f"You said: {asks[0]}")
    expect(chat.button(asks[1])).to_have_count(0)


# ------------------------------------------------------------------ keyboard


def test_letters_typed_in_the_chat_are_no_notebook_commands(show: Open) -> None:
    notebook = show(SHOW, "1", "2")
    chat = ChatPage(notebook)
    chat.input.click()
    notebook.page.keyboard.type("ddaabbxm")
    notebook.page.keyboard.press("Shift+Enter")
    notebook.page.keyboard.type("0,0")
    expect(chat.input).to_have_value("ddaabbxm\n0,0")
    expect(notebook.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    expect(notebook.cell(1).locator(".jp-InputArea-prompt")).to_have_text("[ ]:")
    before = notebook.path.stat().st_mtime_ns
    notebook.page.keyboard.press("Control+s")  # saving works from inside the chat as well
    notebook.until(lambda: notebook.path.stat().st_mtime_ns != before, "not saved")


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_keys_on_buttons_and_tokens_are_no_notebook_commands(
    app: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    server: Jupyter = request.getfixturevalue(app)
    server.write(f"keys-{app}.ipynb", [SCRIPT + SHOW, "1", "2"])
    notebook = server.open(browser, f"keys-{app}.ipynb")
    notebook.run(0)
    chat = ChatPage(notebook)
    press = notebook.page.keyboard.press
    chat.say("hello there")
    chat.act("Show the tokens")
    tokens = chat.root.locator(".lmt-token")
    expect(tokens.first).to_be_visible()
    tokens.first.focus()
    press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    for place in (tokens.nth(1), chat.button("Settings"), chat.root.get_by_role("log")):
        place.focus()
        for key in "ddaabbxm":  # delete, insert, cut, to Markdown
            press(key)
        press("ArrowDown")
        expect(notebook.page.locator(".jp-Notebook .jp-Cell")).to_have_count(3)
        expect(notebook.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    notebook.close()
    server.stop_kernels()


def test_all_of_it_by_keyboard(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    press = notebook.page.keyboard.press
    chat.input.focus()
    notebook.page.keyboard.type("hello")
    press("Enter")
    expect(chat.answers).to_contain_text("You said: hello")
    chat.idle()
    press("ArrowUp")  # in an empty input: edit what was said last
    editor = chat.root.get_by_role("textbox", name="Edit the message")
    expect(editor).to_be_focused()
    press("Escape")
    expect(editor).to_have_count(0)
    # Focus order: the conversation, its buttons, the input.
    chat.input.focus()
    press("Shift+Tab")
    names = []
    for _ in range(12):
        names.append(notebook.page.evaluate("document.activeElement.getAttribute('aria-label')"))
        press("Shift+Tab")
    assert names.index("Conversation") > names.index("Answer again") >= 0
    assert names.index("Settings") > names.index("Conversation")


# ------------------------------------------------------------------ what can be done with turns


def test_regenerate_and_go_back(show: Open) -> None:
    chat = ChatPage(
        show("""
count = iter(range(9))
chat = llm_magic.Chat(LLM(Scripted(lambda request: f"answer {next(count)}")))
chat""")
    )
    assert chat.say("hi") == "answer 0"
    chat.act("Answer again")
    expect(chat.answers).to_have_text("answer 1")
    expect(chat.root.locator(".llmc-count")).to_have_text("2/2")
    chat.act("Earlier version")
    expect(chat.answers).to_have_text("answer 0")


def test_edit_and_resend(show: Open) -> None:
    notebook = show(SHOW, "print([m.text for m in chat.messages])")
    chat = ChatPage(notebook)
    chat.say("one")
    chat.say("two")
    chat.act("Edit and send again", 0)
    editor = chat.root.get_by_role("textbox", name="Edit the message")
    editor.fill("uno")
    editor.press("Enter")
    expect(chat.answers).to_have_count(1)
    expect(chat.answers).to_contain_text("You said: uno")
    chat.idle()
    notebook.run(1)
    expect(notebook.output(1)).to_have_text("['uno', 'You said: uno']")
    chat.act("Earlier version", 0)
    expect(chat.answers).to_have_count(2)


def test_undo_clear_and_undo_of_clear(show: Open) -> None:
    chat = ChatPage(show())
    chat.say("one")
    chat.say("two")
    chat.button("Undo the last turn").click()
    expect(chat.answers).to_have_count(1)
    expect(chat.input).to_have_value("two")
    chat.button("Clear the conversation").click()
    expect(chat.answers).to_have_count(0)
    chat.alert.get_by_role("button", name="Undo").click()
    expect(chat.answers).to_have_text("You said: one")


def test_save_and_load(show: Open, tmp_path: Path) -> None:
    notebook = show(SHOW, "other = llm_magic.Chat(llm)\nother", run=2)
    chat, other = ChatPage(notebook, 0), ChatPage(notebook, 1)
    chat.say("remember me")
    with notebook.page.expect_download() as download:
        chat.button("Save the conversation").click()
    path = tmp_path / "chat.json"
    download.value.save_as(path)
    assert json.loads(path.read_text())["turns"][0]["content"] == "remember me"
    with notebook.page.expect_file_chooser() as chooser:
        other.button("Load a conversation").click()
    chooser.value.set_files(path)
    expect(other.answers).to_have_text("You said: remember me")
    broken = tmp_path / "broken.json"
    broken.write_text('{"version": 1, "turns": [{"role": "system"}]}')
    with notebook.page.expect_file_chooser() as chooser:
        other.button("Load a conversation").click()
    chooser.value.set_files(broken)
    expect(other.alert).to_contain_text("turn 0")
    expect(other.answers).to_have_text("You said: remember me")


def test_code_is_copied_and_reasoning_is_folded(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.say("code please")
    expect(chat.answers.locator("pre")).to_contain_text("def f(x):")
    expect(chat.answers.locator("li")).to_have_count(2)
    expect(chat.root.get_by_text("They want code.")).to_be_hidden()
    chat.root.get_by_text("Reasoning").click()
    expect(chat.root.get_by_text("They want code.")).to_be_visible()
    chat.button("Copy the code").click()
    copied = notebook.page.evaluate("navigator.clipboard.readText()")
    assert copied == "def f(x):\n    return x  # done\n"


def test_code_goes_into_a_new_cell(show: Open) -> None:
    notebook = show(SHOW, "1")
    chat = ChatPage(notebook)
    chat.say("code please")
    chat.button("Put into a new cell").click()
    expect(notebook.page.locator(".jp-Notebook .jp-CodeCell")).to_have_count(3)
    saved = notebook.save()
    assert [cell.source for cell in saved.cells][1:] == ["def f(x):\n    return x  # done", "1"]


def test_tokens_by_keyboard_and_another_one_continues(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.say("hello there")
    chat.act("Show the tokens")
    tokens = chat.root.locator(".lmt-token")
    expect(tokens.first).to_be_visible()
    tokens.first.focus()
    notebook.page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(chat.root.locator(".lmt-card")).to_contain_text("token 1")
    other = chat.root.locator(".lmt-choice:not([aria-disabled])").first
    word = other.locator("code").inner_text()
    notebook.page.keyboard.press("Enter")
    expect(other).to_be_focused()
    notebook.page.keyboard.press("Enter")
    expect(chat.answers.last).to_contain_text("and so on")
    expect(chat.answers.last).to_contain_text(word.replace("␣", ""))
    expect(chat.root.locator(".llmc-count")).to_have_text("2/2")


def test_the_tokens_are_broken_into_the_lines_of_the_text(show: Open) -> None:
    code = 'words = ["if x:", "\\n    ", "y", "\\n\\n", "z"]\n'
    code += "chat = llm_magic.Chat(LLM(Scripted(lambda request: words)), logprobs=2)\nchat"
    chat = ChatPage(show(code))
    chat.say("go")
    chat.act("Show the tokens")
    tokens = chat.root.locator(".lmt-token")
    expect(tokens).to_have_count(5)
    lines = chat.root.locator(".lmt-line")
    assert lines.evaluate_all("all => all.map((el) => el.innerText)") == ["if x:\n    y\n", "z"]
    marks = chat.root.locator(".lmt-sign").evaluate_all("all => all.map((el) => el.dataset.mark)")
    assert marks == ["⏎", "⏎", "⏎"]
    tokens.nth(1).click()
    expect(tokens.nth(1)).to_be_focused()
    expect(chat.root.locator(".lmt-card")).to_contain_text("⏎␣␣␣␣")


COPIED = """([el, first, last]) => {
    const tokens = el.querySelectorAll(".lmt-token");
    getSelection().setBaseAndExtent(tokens[first], 0, tokens[last], tokens[last].childNodes.length);
}"""


def test_copied_tokens_are_the_text_of_the_model(show: Open) -> None:
    # F265
    code = 'words = ["if x:", "\\n", "  ", "y\\t", "🧪", "\\n\\n", "z"]\n'
    code += "chat = llm_magic.Chat(LLM(Scripted(lambda request: words)), logprobs=2)\nchat"
    notebook = show(code)
    chat = ChatPage(notebook)
    chat.say("go")
    chat.act("Show the tokens")
    expect(chat.root.locator(".lmt-token")).to_have_count(7)
    for first, last, text in ((0, 6, "if x:\n  y\t🧪\n\nz"), (2, 4, "  y\t🧪")):
        chat.root.evaluate("(el, [run, ...at]) => eval(run)([el, ...at])", [COPIED, first, last])
        notebook.page.keyboard.press("Control+c")
        assert notebook.page.evaluate("navigator.clipboard.readText()") == text


# ------------------------------------------------------------------ settings


def test_log_probabilities_are_switched_on_and_off(show: Open) -> None:
    notebook = show("chat = llm_magic.Chat(llm)\nchat", "print(script.requests[-1].logprobs)")
    chat = ChatPage(notebook)
    chat.button("Settings").click()
    switch = chat.root.get_by_role("checkbox", name="Log-probabilities")
    number = chat.root.get_by_role("spinbutton", name="Alternatives per token")

    def asked() -> str:
        chat.say(f"question {chat.said.count()}")
        notebook.run(1)
        return notebook.output(1).inner_text().strip()

    expect(switch).not_to_be_checked()
    expect(number).to_have_attribute("placeholder", "default: off")
    assert asked() == "None"
    switch.focus()
    notebook.page.keyboard.press("Space")
    expect(number).to_have_value("5")
    assert asked() == "5"
    expect(chat.root.get_by_role("button", name="Show the tokens")).to_have_count(1)
    number.fill("2")
    number.press("Tab")
    assert asked() == "2"
    chat.button("Log-probabilities: back to the default").click()
    expect(switch).not_to_be_checked()
    number.fill("3")  # a number alone is enough
    number.press("Tab")
    expect(switch).to_be_checked()
    switch.uncheck()
    expect(number).to_have_value("")
    assert asked() == "None"


def test_settings_have_a_default_and_reach_the_request(show: Open) -> None:
    notebook = show(
        SHOW, "s = script.requests[-1]\nprint(s.sampling.temperature, s.prompt[0].text)"
    )
    chat = ChatPage(notebook)
    chat.button("Settings").click()
    temperature = chat.root.get_by_role("spinbutton", name="Temperature")
    expect(temperature).to_have_attribute("placeholder", "default: 0.7")
    temperature.fill("9")
    temperature.press("Tab")
    expect(chat.root.get_by_text("9 is not between 0 and 5")).to_be_visible()
    temperature.fill("0.25")
    temperature.press("Tab")
    chat.root.get_by_role("textbox", name="System prompt").fill("Be brief.")
    chat.root.get_by_role("textbox", name="System prompt").press("Tab")
    expect(chat.root.locator(".llmc-set")).to_have_count(3)  # and the alternatives
    chat.say("hi")
    notebook.run(1)
    expect(notebook.output(1)).to_have_text("0.25 Be brief.")
    chat.button("Temperature: back to the default").click()
    expect(temperature).to_have_value("")
    chat.say("once more")
    notebook.run(1)
    expect(notebook.output(1)).to_have_text("0.7 Be brief.")


@pytest.mark.parametrize(
    ("button", "panel"), [("Settings", "Settings"), ("Ledger of this notebook",) * 2]
)
def test_escape_closes_the_panel_that_the_focus_is_in(show: Open, button: str, panel: str) -> None:
    chat = ChatPage(show("chat = llm_magic.Chat(llm)\nchat"))
    opener, region = chat.button(button), chat.root.get_by_role("region", name=panel)
    for inside in (True, False):
        opener.click()
        expect(region).to_be_visible()
        (region.locator("input").first if inside and panel == "Settings" else region).focus()
        if not inside:
            opener.focus()
        chat.page.keyboard.press("Escape")
        expect(region).to_be_hidden()
        expect(opener).to_be_focused()
        expect(opener).to_have_attribute("aria-expanded", "false")
    # Elsewhere it leaves the panel alone.
    opener.click()
    chat.input.focus()
    chat.page.keyboard.press("Escape")
    expect(region).to_be_visible()


def test_the_ledger_of_the_notebook_grows_while_an_answer_is_written(show: Open) -> None:
    ask = "%load_ext llm_magic\nfrom llm_magic.hub import hub\nhub.add('fake', llm)"
    ask += "\nhub.default = 'fake'"
    notebook = show(f"{ask}\nchat = llm_magic.Chat(llm, logprobs=3)\nchat", "%%llm\nfrom a cell",
                    "%llm stats", run=2)  # fmt: skip
    chat = ChatPage(notebook)
    chat.button("Ledger of this notebook").click()
    table = chat.root.get_by_role("region", name="Ledger of this notebook")
    expect(table.get_by_role("columnheader")).to_have_count(9)
    expect(table.get_by_role("row")).to_have_count(2)
    expect(table.get_by_role("row").last).to_contain_text("[2]")
    chat.send("a long one")
    now = table.get_by_role("row").filter(has_text="now")
    expect(now).to_contain_text("writing")
    before = int(now.get_by_role("cell").nth(4).inner_text())
    expect(now.get_by_role("cell").nth(4)).not_to_have_text(str(before))
    chat.idle()
    expect(now).to_have_count(0)
    expect(table.get_by_role("row").nth(2)).to_contain_text("chat")
    expect(table.get_by_role("row").last).to_contain_text("sum")
    # What a cell asks for appears, too; and %llm stats counts the chat.
    notebook.run(1)
    expect(table.get_by_role("row")).to_have_count(5)
    notebook.run(2)
    expect(notebook.output(2).get_by_role("row")).to_have_count(5)
    expect(notebook.output(2)).to_contain_text("chat")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_fault_in_ledger_progress_and_tokens(
    lab: Jupyter, show: Open, dark: bool
) -> None:
    script = axe.found()
    lab.theme(dark)
    slow = "script.prefill_delay = 0.3\nchat = llm_magic.Chat(llm, logprobs=3)\n"
    slow += 'said = [{"role": "user", "content": "of another day"}]\n'
    slow += "assert chat._controller.search(lambda: said).wait(5)\nchat"
    chat = ChatPage(show(slow))
    expect(chat.button("Resume")).to_be_visible()
    chat.button("Ledger of this notebook").click()
    found = axe.faults(chat.root, script)
    chat.send("word " * 200)
    expect(chat.root.locator(".llmc-amount")).to_contain_text(" of ")
    found += axe.faults(chat.root, script)
    chat.idle()
    chat.act("Show the tokens")
    chat.root.locator(".lmt-token").nth(2).hover()
    found += axe.faults(chat.root, script)
    lab.theme(False)
    assert found == []


# ------------------------------------------------------------------ tools

TOOLS = """
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
chat = llm_magic.Chat(llm, tools=[add])
chat"""


@pytest.mark.parametrize(
    ("edit", "press", "said"),
    [(None, "Allow", "The tool said: 5"), ('{"a": 40, "b": 2}', "Allow", "The tool said: 42"),
     (None, "Refuse", "refused")],
    ids=["allow", "edit", "refuse"],
)  # fmt: skip
def test_a_call_waits_for_a_person(show: Open, edit: str | None, press: str, said: str) -> None:
    chat = ChatPage(show(TOOLS))
    chat.send("please call it")
    arguments = chat.root.get_by_role("textbox", name="Arguments for add, as JSON")
    expect(arguments).to_have_value('{\n "a": 2,\n "b": 3\n}')
    expect(chat.root.get_by_role("status")).to_have_text("May add be called?")
    if edit:
        arguments.fill(edit)
    chat.button(press).click()
    expect(chat.answers).to_contain_text(said)
    chat.idle()
    expect(chat.root.locator(".llmc-calls")).to_contain_text("1 tool call")
    expect(arguments).to_have_count(0)


def test_stop_while_a_call_waits(show: Open) -> None:
    chat = ChatPage(show(TOOLS))
    chat.send("please call it")
    expect(chat.button("Allow")).to_be_visible()
    chat.button("Stop").click()
    chat.idle(5)
    expect(chat.button("Allow")).to_have_count(0)
    assert chat.say("and now?") == "You said: and now?"


# ------------------------------------------------------------------ without its kernel


@in_both
def test_saved_notebook_has_the_transcript_without_a_kernel(
    show: Open, server: Jupyter, browser: Browser
) -> None:
    notebook = show()
    ChatPage(notebook).say("remember <b>this</b>")
    outputs = notebook.save().cells[0].outputs
    html = "".join(outputs[1].data["text/html"])
    assert "You said: remember &lt;b&gt;this&lt;/b&gt;" in html
    assert "<script" not in html
    assert "application/vnd.jupyter.widget-view+json" not in outputs[1].data
    assert len(outputs) == 2
    name = notebook.path.name
    notebook.close()
    server.stop_kernels()
    # Opened another day, before anything runs.
    again = server.open(browser, name)
    server.stop_kernels()
    expect(again.output(0).last.get_by_text("You said: remember <b>this</b>")).to_be_visible()
    # No line says that a widget is missing, and none is its repr (F260).
    expect(again.page.get_by_text("Error displaying widget")).to_be_hidden()
    expect(again.page.get_by_text("Loading widget")).to_be_hidden()
    shown = again.cell(0).locator(".jp-Cell-outputArea").inner_text()
    assert shown.startswith("Transcript of the chat with scripted: 1 turn")
    again.close()


@in_both
def test_a_conversation_of_another_day_is_resumed(
    show: Open, server: Jupyter, browser: Browser
) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.say("first")
    chat.say("code please")
    chat.act("Answer again")
    expect(chat.root.locator(".llmc-count")).to_have_text("2/2")
    chat.idle()
    chat.button("Settings").click()
    temperature = chat.root.get_by_role("spinbutton", name="Temperature")
    temperature.fill("0.25")
    temperature.press("Tab")
    expect(chat.root.locator(".llmc-set")).to_have_count(2)  # and the alternatives
    notebook = another_day(notebook, server, browser)
    chat = ChatPage(notebook)
    line = chat.root.get_by_text(
        "This notebook holds an earlier conversation of 2 turns (scripted, "
    )
    expect(line).to_be_visible()
    expect(chat.root.locator("[aria-live=polite]").filter(has_text="holds")).to_have_count(1)
    expect(notebook.output(0).last).to_contain_text("2 turns")
    # Saved again, by hand or by itself, it is still there.
    assert "They want code." in str(notebook.save().cells[0].outputs)
    chat.input.focus()
    notebook.page.keyboard.press("Shift+Tab")
    expect(chat.button("Start anew")).to_be_focused()
    notebook.page.keyboard.press("Shift+Tab")
    expect(chat.button("Resume")).to_be_focused()
    notebook.page.keyboard.press("Enter")
    expect(chat.answers).to_have_count(2)
    expect(chat.input).to_be_focused()
    expect(line).to_have_count(0)
    expect(chat.root.locator(".llmc-count")).to_have_text("2/2")
    expect(chat.root.locator(".llmc-foot").last).to_contain_text("tokens")
    chat.root.get_by_text("Reasoning").last.click()
    expect(chat.root.get_by_text("They want code.")).to_be_visible()
    chat.button("Settings").click()
    expect(chat.root.get_by_role("spinbutton", name="Temperature")).to_have_value("0.25")
    assert chat.say("third") == "You said: third"
    expect(notebook.output(0).last).to_contain_text("3 turns")
    notebook.close()


def test_an_earlier_conversation_is_offered_until_the_first_message(
    show: Open, server: Jupyter, browser: Browser
) -> None:
    notebook = show()
    ChatPage(notebook).say("first")
    notebook = another_day(notebook, server, browser)
    chat = ChatPage(notebook)
    expect(chat.button("Resume")).to_be_visible()
    notebook.save()
    notebook.reload()  # nothing was said: it is still offered, and in the notebook
    chat = ChatPage(notebook)
    expect(chat.button("Resume")).to_be_visible()
    chat.button("Start anew").click()
    expect(chat.button("Resume")).to_have_count(0)
    expect(notebook.output(0).last).to_contain_text("empty so far")
    chat.alert.get_by_role("button", name="Undo").click()
    expect(chat.answers).to_have_text("You said: first")
    notebook.save()
    notebook.restart_kernel()
    notebook.run(0)
    chat = ChatPage(notebook)
    expect(chat.button("Resume")).to_be_visible()
    assert chat.say("new") == "You said: new"
    expect(chat.button("Resume")).to_have_count(0)
    expect(chat.answers).to_have_count(1)
    assert "said: first" not in str(notebook.save().cells[0].outputs)
    notebook.close()


@pytest.mark.parametrize("saved", [True, False])
def test_two_chats_of_a_cell_go_on_each_from_its_own(show: Open, saved: bool) -> None:
    both = "one, other = llm_magic.Chat(llm), llm_magic.Chat(llm)\ndisplay(one, other)"
    notebook = show(both)

    def chats() -> list[ChatPage]:
        pages = [ChatPage(notebook), ChatPage(notebook)]
        for i, page in enumerate(pages):
            page.root = page.root.nth(i)
            page.input = page.root.get_by_role("textbox", name="Message")
            page.answers, page.said = (page.root.locator(f".llmc-{n}") for n in ("answer", "said"))
        return pages

    texts = ("apple", "pear")
    for page, text in zip(chats(), texts, strict=True):
        page.said = page.root.locator(".llmc-user .llmc-said")
        page.say(text)
    if saved:
        notebook.save()
    notebook.restart_kernel()
    notebook.run(0)
    for page, text in zip(chats(), texts, strict=True):
        page.button("Resume").click()
        expect(page.answers).to_have_text(f"You said: {text}")


def test_kernel_restart_says_so_and_the_chat_goes_on(show: Open) -> None:
    notebook = show()
    chat = ChatPage(notebook)
    chat.say("before")
    chat.input.fill("half a thought")
    notebook.restart_kernel()
    expect(chat.alert).to_contain_text("kernel of this chat is gone", timeout=20_000)
    notebook.run(0)
    chat = ChatPage(notebook)
    expect(chat.input).to_have_value("half a thought")
    chat.button("Resume").click()
    expect(chat.answers).to_have_text("You said: before")
    chat.input.fill("")
    assert chat.say("after") == "You said: after"


def test_a_kernel_restart_while_an_answer_is_written_loses_nothing(show: Open) -> None:
    # F267
    notebook = show()
    chat = ChatPage(notebook)
    chat.say("hello")
    chat.send("a very long one")
    expect(chat.answers.last).to_contain_text("word5")
    notebook.restart_kernel()
    expect(chat.alert).to_contain_text("kernel of this chat is gone", timeout=20_000)
    expect(chat.root.locator(".llmc-writing")).to_have_count(0)  # no caret blinks
    expect(chat.root.locator(".llmc-note").last).to_contain_text("the kernel stopped")
    notebook.run(0)
    chat = ChatPage(notebook)
    chat.button("Resume").click()
    expect(chat.said.last).to_have_text("a very long one")
    expect(chat.answers.last).to_contain_text("word5")
    chat.button("Continue").click()
    chat.idle()
    expect(chat.answers.last).to_contain_text("word5")
    expect(chat.answers.last).to_contain_text("and so on")
    expect(chat.button("Continue")).to_have_count(0)


def test_a_printed_page_shows_the_whole_conversation(show: Open) -> None:
    # F260
    notebook = show()
    chat = ChatPage(notebook)
    for i in range(3):
        chat.say(f"a long one {i}")
    notebook.page.emulate_media(media="print")
    log = chat.root.locator(".llmc-log")
    assert log.evaluate("el => el.scrollHeight <= el.clientHeight + 1")
    expect(chat.root.locator(".llmc-compose")).to_be_hidden()
