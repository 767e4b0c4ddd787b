"""Cells whose output is not a plain output: Output widgets, captures, tools that display and clear.

Run in a real kernel, and as a notebook by nbclient, which plays the front end's part for widgets.
"""

from collections.abc import Iterator

import nbclient
import nbformat
import pytest

from .harness import Kernel, kernel

pytestmark = pytest.mark.kernel

SET_UP = """
%load_ext llm_magic
import ipywidgets as widgets
from IPython.display import clear_output, display
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.chat.parsing.syntax import SYNTAXES

def answer(request):
    last = request.prompt[-1]
    if request.tools and last.role != "tool":
        return '<tool_call>{"name": "draw", "arguments": {}}</tool_call>'
    return "one two three four five six seven eight nine ten"

hub.add("script", LLM(Scripted(answer, delay=0.02, syntax=SYNTAXES["hermes"])))
hub.default = "script"

def draw() -> str:
    "Draw something."
    for i in range(3):
        clear_output(wait=True)
        display(f"picture {i}")
    return "drawn"
"""
WHOLE = "nine ten"


@pytest.fixture(scope="module")
def running() -> Iterator[Kernel]:
    with kernel() as found:
        found.run(SET_UP).check()
        yield found


def test_an_output_widget_gets_the_whole_answer_at_once(running: Kernel) -> None:
    """F220"""
    code = "with widgets.Output():\n    get_ipython().run_cell_magic('llm', '', 'Hi')"
    run = running.run(code).check()
    shown = [m for m in run.of("display_data") if "text/html" in m.data]
    assert not run.of("update_display_data")
    assert len(shown) == 1
    assert WHOLE in shown[0].data["text/html"]


def test_a_callback_and_interact_get_the_whole_answer(running: Kernel) -> None:
    """F220"""
    code = (
        "out = widgets.Output()\n"
        "@out.capture()\ndef clicked(_):\n    get_ipython().run_cell_magic('llm', '', 'Hi')\n"
        "button = widgets.Button()\nbutton.on_click(clicked)\nbutton.click()\n"
        "f = widgets.interactive(lambda n: get_ipython().run_cell_magic('llm', '', 'Hi'), n=3)\n"
        "f.update()"
    )
    run = running.run(code).check()
    assert not run.of("update_display_data")
    assert sum(WHOLE in m.data.get("text/html", "") for m in run.of("display_data")) == 3


def test_a_capture_holds_one_output(running: Kernel) -> None:
    """F222"""
    running.run("%%capture cap\nget_ipython().run_cell_magic('llm', '', 'Hi')").check()
    run = running.run("print(len(cap.outputs))\nfor o in cap.outputs: display(o)").check()
    assert run.stream().strip() == "1"
    assert WHOLE in run.final["text/html"]


def test_a_tool_s_displays_and_clears_are_its_own(running: Kernel) -> None:
    """F221"""
    run = running.run("%%llm --tools draw\nDraw!").check()
    assert not run.of("clear_output")
    state: dict[str, str] = {}
    for message in run.frames:
        state[str(message.display_id)] = str(message.data.get("text/html") or message.data)
    assert sum("picture" in text for text in state.values()) == 1
    assert any("picture 2" in text for text in state.values())
    assert any(WHOLE in text for text in state.values())
    after = running.run("display('later')\nclear_output()").check()
    assert after.of("clear_output")  # outside of an answer a clear is a clear


CELLS = (
    SET_UP,
    "out = widgets.Output()\nwith out:\n    get_ipython().run_cell_magic('llm', '', 'Hi')\nout",
    "%%capture cap\nget_ipython().run_cell_magic('llm', '', 'Hi')",
    "for o in cap.outputs: display(o)",
    "%%llm --tools draw\nDraw!",
    "%%llm\r\nHi\r\n\r\n",
    (
        "import asyncio\nasync def ask():\n    await asyncio.sleep(0)\n"
        "    get_ipython().run_cell_magic('llm', '', 'Hi')\nawait ask()"
    ),
)


def test_a_notebook_of_odd_places_holds_every_answer_once() -> None:
    """F220, F221, F222, F203: as nbclient (and so nbconvert) writes it."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [str(cell.outputs) for cell in notebook.cells]
    (model,) = (
        state["state"]["outputs"]
        for state in notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"][
            "state"
        ].values()
        if state["model_name"] == "OutputModel"
    )
    assert len(model) == 1
    assert WHOLE in str(model)
    for index in (3, 4, 5, 6):
        assert WHOLE in shown[index]
    assert len(notebook.cells[3].outputs) == 1
    assert "picture 2" in shown[4]
    assert "picture 1" not in shown[4]
