"""What the commands of `%llm` need of the notebook that they run in, and what a command is.

Comes in: nothing; the magics are a `Notebook`. Goes out: types, and the parsers of command lines.
It must not know any command.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from IPython.core.magic_arguments import MagicArgumentParser

from llm_magic.chat.reply import Reply
from llm_magic.llm import LLM

from ..views import html, mime
from ..views.ledger import Ledger
from . import command_line, screens
from .cell_conversations import Talks


class Notebook(Protocol):
    """The magics as commands see them: settings, the shell, conversations, the way to a model."""

    shell: Any
    magic_name: str
    model: str
    temperature: float | None
    docs_mode: bool
    ledger: Ledger
    talks: Talks

    def parse(self, line: str) -> argparse.Namespace: ...

    def parser(self) -> MagicArgumentParser: ...

    def run(self, given: argparse.Namespace, text: str) -> None: ...

    def sampling(self, given: argparse.Namespace) -> dict[str, Any]: ...

    def system_of(self, given: argparse.Namespace) -> str | None: ...

    def name_of(self, named: str | None) -> str: ...

    def load(self, name: str, screen: screens.Screen, **how: Any) -> LLM: ...

    @property
    def names(self) -> Mapping[str, object]: ...

    def fill(self, text: str, source: str = ...) -> str: ...

    def look(self) -> mime.Look: ...

    def keep(self, reply: Reply, measured: Reply | None = None) -> None: ...

    def line(self, line: str) -> Any: ...

    def show(self, fragment: mime.Fragment) -> None: ...


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what runs, what stands behind its name, what it is for."""

    run: Callable[[Notebook, str], Any]
    usage: str
    what: str
    more: Callable[[], str] = str  # what else its --help says: text of several lines

    def help(self, name: str) -> mime.Fragment:
        """What `--help` shows. name: as typed, "%llm stats"."""
        head = f"{name} {self.usage}".rstrip()
        page = f"<code>{html.escape(head)}</code>: {html.text(self.what)}"
        plain = f"{head}: {self.what}"
        if more := self.more():
            page, plain = f"{page}{html.code(more)}", f"{plain}\n{more}"
        return mime.Fragment(page, plain)


def command_parser(nb: Notebook, command: str) -> MagicArgumentParser:
    """An empty parser for the line of a command."""
    return MagicArgumentParser(f"{nb.magic_name} {command}")


def parse(nb: Notebook, parser: MagicArgumentParser, line: str) -> argparse.Namespace:
    """The words of a command's line. UsageError says what was probably meant."""
    return command_line.parse(parser, line, f"%{parser.prog}")
