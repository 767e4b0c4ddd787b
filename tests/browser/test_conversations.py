"""Conversations and tools of cells in JupyterLab: who a cell is, and how a person approves."""

import pytest
from playwright.sync_api import Browser, expect

from .harness import Jupyter

pytestmark = pytest.mark.browser

SETUP = """
%load_ext llm_magic
import json
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted
from llm_magic.chat.parsing.syntax import SYNTAXES

def answer(request):
    last = request.prompt[-1]
    if last.role == "tool":
        return f"There is **{last.text}**."
    if not request.tools:
        return f"You said {last.text}."
    arguments = json.dumps({"city": "Paris", "days": 3})
    return '<think>I do not know, so I look it up.</think>' + (
        '<tool_call>{"name": "weather", "arguments": %s}</tool_call>' % arguments)

def weather(city: str, days: int = 1) -> str:
    "The weather in a city over the next days."
    print("asking the station")
    return f"{days} days of sun in {city}"

hub.add("fake", LLM(Scripted(answer, model="fake", syntax=SYNTAXES["hermes"])))
hub.default = "fake"
"""


@pytest.mark.parametrize("app", ["lab", "notebook7"])
def test_a_cell_that_runs_again_replaces_its_turn(
    app: str, browser: Browser, request: pytest.FixtureRequest
) -> None:
    server: Jupyter = request.getfixturevalue(app)
    turns = ("%%llm --chat a\nOne", "%%llm --chat a\nTwo", "%llm history a")
    server.write("turns.ipynb", [SETUP, *turns])
    notebook = server.open(browser, "turns.ipynb")
    for i in range(4):
        notebook.run(i)
    expect(notebook.output(3)).to_contain_text("2 exchanges")
    for i in (1, 1, 3):
        notebook.run(i)
    expect(notebook.output(3)).to_contain_text("2 exchanges")
    expect(notebook.output(3)).to_contain_text("You said Two.")
    notebook.close()


@pytest.mark.parametrize(
    ("typed", "said"),
    [("y", "3 days of sun in Paris"), ("too far", "The user refused this call: too far")],
)
def test_a_person_approves_a_call_in_its_cell(
    lab: Jupyter, browser: Browser, typed: str, said: str
) -> None:
    name = f"approve-{len(typed)}.ipynb"
    lab.write(name, [SETUP, "%%llm --tools weather --approve\nHow is the weather?"])
    notebook = lab.open(browser, name)
    notebook.run(0)
    notebook.start(1)
    field = notebook.cell(1).locator(".jp-Stdin-input")
    question = notebook.cell(1).locator(".jp-Stdin")
    expect(question).to_contain_text('weather(city="Paris", days=3)')
    field.fill(typed)
    field.press("Enter")
    notebook.finished(1)
    output = notebook.output(1).filter(has_text="There is")
    expect(output).to_contain_text(said)
    # The saved file shows all of it without a kernel.
    page = str(notebook.save().cells[1].outputs)
    for words in ("weather(city=", said, "I look it up"):
        assert words in page
    notebook.close()
