"""The chat widget as a person meets it: by names and roles, not by the way it is built."""

from playwright.sync_api import Locator, expect

from .harness import Notebook

# A provider that answers by what it is asked; cells of the tests begin with this.
SCRIPT = '''
import json, time
import llm_magic
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.chat.parsing.syntax import SYNTAXES

CODE = """Here is **code**:

```python
def f(x):
    return x  # done
```

- one
- two
"""

def answer(request):
    if request.given:
        return " and so on"
    asked = request.prompt[-1]
    text = asked.text
    if getattr(asked, "role", "") == "tool":
        return f"The tool said: {text}"
    if "call" in text:
        call = {"name": "add", "arguments": {"a": 2, "b": 3}}
        return f"<tool_call>{json.dumps(call)}</tool_call>"
    if "code" in text:
        return "<think>They want code.</think>" + CODE
    n = 400 if "very long" in text else 40 if "long" in text else 0
    return " ".join(f"word{i}" for i in range(n)) or f"You said: {text}"

script = Scripted(answer, delay=0.05, syntax=SYNTAXES["hermes"])
llm = LLM(script)
'''


class ChatPage:
    """One view of a chat, in the output of a cell."""

    def __init__(self, notebook: Notebook, cell: int = 0) -> None:
        self.notebook = notebook
        self.page = notebook.page
        self.root = notebook.cell(cell).locator(".llmc")
        self.input = self.root.get_by_role("textbox", name="Message")
        self.answers = self.root.locator(".llmc-answer")
        self.said = self.root.locator(".llmc-user .llmc-said")
        self.alert = self.root.get_by_role("alert")

    def button(self, name: str) -> Locator:
        return self.root.get_by_role("button", name=name, exact=True)

    def send(self, text: str) -> None:
        """Type and send, without waiting for the answer."""
        self.input.fill(text)
        self.input.press("Enter")

    def say(self, text: str) -> str:
        """Send and wait for the end of the answer; its text."""
        self.send(text)
        expect(self.said.last).to_have_text(text)
        self.idle()
        return self.answers.last.inner_text().strip()

    def idle(self, seconds: float = 60) -> None:
        expect(self.button("Send")).to_be_visible(timeout=seconds * 1000)
        expect(self.root.locator("[aria-busy=true]")).to_have_count(0)

    def act(self, name: str, turn: int = -1) -> None:
        """Press one of the buttons that belong to a turn."""
        turns = self.root.locator(".llmc-turn")
        place = turns.nth(turn if turn >= 0 else turns.count() + turn)
        place.hover()
        place.get_by_role("button", name=name, exact=True).click()
