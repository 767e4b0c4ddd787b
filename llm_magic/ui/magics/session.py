"""The notebook as cells and commands see it: variables, models, conversations, ledger, outputs.

`Notebook` holds what a notebook keeps between cells. `Command` is a row of `COMMANDS`.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from IPython.core.magic_arguments import MagicArgumentParser

from llm_magic.chat.reply import Reply
from llm_magic.errors import Interrupted, LLMError
from llm_magic.hub import hub
from llm_magic.interpolation import as_text, interpolate, tight_fields
from llm_magic.llm import LLM

from ..views import html, mime, summary, throughput
from ..views.ledger import Ledger
from . import command_line, scope, screens, status
from .cell_conversations import CellConversations


class Settings(Protocol):
    """What `%config LLMMagics` sets; see `LLMMagics`."""

    model: str
    system: str
    temperature: float | None
    max_tokens: int
    logprobs: int | None
    format: str
    docs_mode: bool
    magic_name: str
    max_rate: float
    save_prompt: bool
    save_tokens: int | None
    tight_braces: bool


class Notebook:
    """The notebook's side of the extension. Used on the thread of the cells.

    Args:
        shell: The IPython shell.
        settings: What `%config LLMMagics` sets.
    """

    def __init__(self, shell: Any, settings: Settings) -> None:
        self.shell = shell
        self.settings = settings
        self.ledger = Ledger()
        self.conversations = CellConversations()
        self.cell = ""  # a hash of the cell magic that runs

    @property
    def magic_name(self) -> str:
        """The name of the magics, "llm"."""
        return self.settings.magic_name

    @property
    def docs_mode(self) -> bool:
        """Whether outputs are the same on every run."""
        return self.settings.docs_mode

    # ------------------------------------------------------------------ variables

    @property
    def names(self) -> Mapping[str, object]:
        """The variables that the running magic sees."""
        return scope.visible(self.shell.user_ns)

    def fill(self, text: str, source: str = "the cell") -> str:
        """`text` with the values of `{{ name }}`.

        Args:
            text: The text.
            source: Where the text is written, for messages.
        """
        formatters = self.shell.display_formatter.formatters
        names, settings = self.names, self.settings
        tight = [path for path in tight_fields(text) if path.split(".")[0].split("[")[0] in names]
        if tight and not settings.tight_braces:
            self._warn_of_tight(tight[0], source)
        return interpolate(
            text, names, lambda value: as_text(value, formatters), source=source,
            suggest=scope.own(names, self.shell.user_ns_hidden), tight=settings.tight_braces,
        )  # fmt: skip

    def _warn_of_tight(self, path: str, source: str) -> None:
        self.show(
            status.note(
                f"Warning: {{{{{path}}}}} in {source} is sent as it is. To insert the variable, "
                f"write {{{{ {path} }}}} with spaces, or set %config LLMMagics.tight_braces = True."
                " To send the braces without this warning, use --raw."
            )
        )

    # ------------------------------------------------------------------ models

    @property
    def model(self) -> str:
        """The model of cells that name none; "" for the default one."""
        return self.settings.model

    @model.setter
    def model(self, name: str) -> None:
        self.settings.model = name

    def name_of(self, named: str | None) -> str:
        """The name of the model to use where `named` was asked for."""
        return named or self.model or hub.default

    def load(self, name: str, screen: screens.Screen, **how: Any) -> LLM:
        """The model of that name; loading it shows its progress on the screen."""
        loaded = hub.get(name) if not any(v is not None for v in how.values()) else None
        if loaded is not None:
            return loaded
        try:
            return hub.load(name, on_progress=screen.event, **how)
        except KeyboardInterrupt:
            screen.close("interrupted")
            raise Interrupted(f"interrupted while {name} was being loaded") from None
        except LLMError:
            screen.close("loading failed")
            raise

    # ------------------------------------------------------------------ outputs

    def look(self) -> mime.Look:
        """The settings that decide how any Reply is shown."""
        settings = self.settings
        return mime.Look(
            format=settings.format,
            docs=settings.docs_mode,
            save_prompt=settings.save_prompt,
            json_tokens=settings.save_tokens,
            cell=self.cell,
        )

    def keep(self, reply: Reply, measured: Reply | None = None) -> None:
        """Make a reply the last one (`_llm`), and add it to the ledger.

        Args:
            reply: The reply.
            measured: The reply with the counts for the ledger, where they differ.
        """
        self.shell.user_ns["_llm"] = reply
        self.shell.user_ns_hidden["_llm"] = reply
        spent = measured or reply
        # The input that runs now is the last one in the history, whatever the counter says already.
        cell = len(self.shell.history_manager.input_hist_parsed) - 1
        line = throughput.entry(summary.steady(spent) if self.docs_mode else spent, cell)
        self.ledger.add(line, reply)

    def show(self, fragment: mime.Fragment) -> None:
        """Display something that is not a reply."""
        self.shell.display_pub.publish(fragment._repr_mimebundle_(), fragment.metadata)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `%llm`.

    Attributes:
        run: Called with the notebook and the rest of the line; what it returns is the result.
        usage: What follows the command's name.
        what: What it does.
        more: Further text of its --help.
    """

    run: Callable[[Notebook, str], Any]
    usage: str
    what: str
    more: Callable[[], str] = str

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
    """The arguments of a command's line.

    Raises:
        UsageError: The line is wrong; the message says what was probably meant.
    """
    return command_line.parse(parser, line, f"%{parser.prog}")
