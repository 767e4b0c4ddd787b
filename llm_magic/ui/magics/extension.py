"""`%load_ext llm_magic` and `%unload_ext llm_magic`.

Loading registers the magics, a completer, an input transformer, and two hooks that hold the
engine's gate while a cell runs and note which cell it is. `%reload_ext` keeps loaded models, the
ledger and the conversations of cells. Importing this module must stay cheap.
"""

import re
from typing import Any
from weakref import WeakKeyDictionary

from IPython.core.completer import context_matcher

from llm_magic.hub import hub

from ..views.ledger import Ledger
from .cell import LLMMagics
from .cell_conversations import CellConversations
from .cell_options import PARSER
from .commands import COMMANDS
from .completion import complete
from .scope import own
from .serve_command import stop_all

HELP_WIDTH = 60  # characters of a help text in the list of completions
_NAME = "LLMMagics"  # where %config looks
# More than one word, as in `%llm ask Why?` or `%llm What is this?`; `%llm load?` asks for help.
_QUESTION = r"\S+[ \t]+\S.*\?+"


# What a notebook has generated did happen, whatever is reloaded; its chats add to the same list.
_ledgers: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()
_conversations: WeakKeyDictionary[Any, CellConversations] = WeakKeyDictionary()


class Extension:
    """What was put into one shell, so that all of it can be taken out again."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.magics = LLMMagics(shell)
        matcher = context_matcher(identifier="llm_magic")
        self._matcher = matcher(lambda context: self._complete(context))
        notebook = self.magics.notebook
        notebook.ledger = _ledgers.setdefault(shell, notebook.ledger)
        notebook.conversations = _conversations.setdefault(shell, notebook.conversations)

    def install(self) -> None:
        shell = self._shell
        self.magics.extension = self
        shell.magics_manager.registry[_NAME] = self.magics
        self.magics.register()
        shell.events.register("pre_run_cell", self._enter)
        shell.events.register("post_run_cell", self._leave)
        shell.Completer.custom_matchers.append(self._matcher)
        shell.input_transformers_cleanup.append(self._keep_questions)

    def remove(self) -> None:
        shell = self._shell
        self.magics.unregister()
        shell.magics_manager.registry.pop(_NAME, None)
        if self.magics in shell.configurables:
            shell.configurables.remove(self.magics)
        shell.events.unregister("pre_run_cell", self._enter)
        shell.events.unregister("post_run_cell", self._leave)
        shell.Completer.custom_matchers.remove(self._matcher)
        shell.input_transformers_cleanup.remove(self._keep_questions)
        stop_all()
        hub.gate.leave()  # the cell that unloads us has entered, and nobody else will leave

    def _enter(self, info: object = None) -> None:
        hub.gate.enter()
        self.magics.notebook.conversations.enter(getattr(info, "cell_id", None))

    def _leave(self, *_: object) -> None:
        self.magics.notebook.conversations.leave()
        hub.gate.leave()

    def _keep_questions(self, lines: list[str]) -> list[str]:
        """`%llm ask What is this?` is a question to the model; IPython would look up `this`."""
        if lines and lines[0].startswith("%%"):
            return self._one_line(lines)
        ours = re.compile(rf"(\s*)%{self.magics.magic_name}[ \t]+({_QUESTION})\s*")
        return [
            f"{m[1]}get_ipython().run_line_magic({self.magics.magic_name!r}, {m[2]!r})\n"
            if (m := ours.fullmatch(line)) is not None
            else line
            for line in lines
        ]

    def _one_line(self, lines: list[str]) -> list[str]:
        """`%%llm What is 2+2?` with nothing below it asks; IPython would refuse the empty cell."""
        name = re.escape(self.magics.magic_name)
        found = re.fullmatch(rf"%%{name}[ \t]+(\S.*?)\s*", lines[0])
        if found is None or any(line.strip() for line in lines[1:]):
            return lines  # a cell with text, or another cell magic
        return [
            f"get_ipython().run_line_magic({self.magics.magic_name!r}, {'ask ' + found[1]!r})\n"
        ]

    def _complete(self, context: Any) -> dict[str, object]:
        """Words for a line of ours, each with its help; on these lines nobody else offers any."""
        from IPython.core.completer import SimpleCompletion

        line, magics = context.text_until_cursor.lstrip(), self.magics
        if not re.match(rf"%%?{re.escape(magics.magic_name)}\s", line):
            return {"completions": [], "suppress": False}
        options = PARSER._option_string_actions
        helps = {flag: action.help or "" for flag, action in options.items()}
        helps |= {name: command.what for name, command in COMMANDS.items()}
        named = list(magics.notebook.conversations.named)
        found = complete(
            line, context.token, options, {name: c.usage for name, c in COMMANDS.items()},
            own(magics.shell.user_ns, magics.shell.user_ns_hidden), named,
        )  # fmt: skip
        # A front end shows the type beside the word.
        words = [
            SimpleCompletion(word, type=helps.get(word, "")[:HELP_WIDTH])
            for word in found
            if word.startswith(context.token)
        ]
        return {"completions": words, "suppress": True, "ordered": True}


def load_ipython_extension(shell: object) -> None:
    """Register the magics. Loading twice is the same as reloading."""
    unload_ipython_extension(shell)
    Extension(shell).install()


def unload_ipython_extension(shell: Any) -> None:
    """Take everything out again; what our magics had hidden is back. Models stay loaded."""
    magics = shell.magics_manager.registry.get(_NAME)
    if magics is not None:
        magics.extension.remove()
