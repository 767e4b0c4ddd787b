"""The magics `%%llm` and `%llm`: their settings and their registration.

cell_run.py runs cells, commands.py runs commands.
"""

# IPython and traitlets are not typed for mypy, and all of their decorators are needed here.
# mypy: disable-error-code="untyped-decorator"

import warnings
from collections.abc import Callable
from typing import Any

import traitlets
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from ..views import mime
from ..views.ledger import Ledger
from . import cell_options, screens
from .cell_run import run_cell
from .commands import COMMANDS, run_command
from .session import Notebook

MAX_TOKENS = 256


@magics_class
class LLMMagics(Magics):  # type: ignore[misc]
    """Settings of %%llm and %llm. Options of a cell win over these."""

    model = traitlets.Unicode("", help="Model of cells that name none; empty: smollm2.").tag(
        config=True
    )
    system = traitlets.Unicode("", help="System prompt of cells that give none.").tag(config=True)
    temperature = traitlets.Float(
        None, allow_none=True, help="0 takes the likeliest token; None: the model's own, else 0.7."
    ).tag(config=True)
    max_tokens = traitlets.Int(MAX_TOKENS, min=1, help="Most tokens of an answer.").tag(config=True)
    logprobs = traitlets.Int(
        None, min=0, allow_none=True, help="Alternatives recorded per token; None: no heat map."
    ).tag(config=True)
    format = traitlets.Enum(
        ("markdown", "text", "code"), "markdown", help="How answers are shown."
    ).tag(config=True)
    docs_mode = traitlets.Bool(
        help="One plain output per cell, equal on every run (also: LLM_MAGIC_DOCS=1)."
    ).tag(config=True)
    magic_name = traitlets.Unicode("llm", help="Name of the magics: %%NAME and %NAME.").tag(
        config=True
    )
    max_rate = traitlets.Float(
        screens.RATE,
        min=0.2,
        max=screens.RATE,
        help="Most display updates a second while streaming.",
    ).tag(config=True)
    save_prompt = traitlets.Bool(True, help="Keep the prompt's text in the saved notebook.").tag(
        config=True
    )
    save_tokens = traitlets.Int(
        mime.JSON_TOKENS, min=0, allow_none=True,
        help="Longest answer whose tokens are saved with the notebook; None: every.",
    ).tag(config=True)  # fmt: skip

    tight_braces = traitlets.Bool(
        help="Replace {{name}} without spaces too, where a variable of that name exists."
    ).tag(config=True)

    def __init__(self, shell: object, **options: object) -> None:
        super().__init__(shell, **options)
        self.notebook = Notebook(shell, self)
        self._replaced: dict[tuple[str, str], Callable[..., object] | None] = {}

    @property
    def ledger(self) -> Ledger:
        """The ledger of the notebook."""
        return self.notebook.ledger

    def look(self) -> mime.Look:
        """How replies are shown in this notebook."""
        return self.notebook.look()

    @traitlets.default("docs_mode")
    def _default_docs_mode(self) -> bool:
        return mime.docs_wanted()

    @traitlets.validate("magic_name")
    def _valid_name(self, proposal: Any) -> str:
        name = str(proposal["value"])
        if not name.isidentifier():
            raise traitlets.TraitError(f"magic_name is {name!r}; it must be a name like llm")
        return name

    @traitlets.observe("magic_name")
    def _renamed(self, change: object) -> None:
        if self._replaced:
            self.unregister()
            self.register()

    def register(self) -> None:
        """Register the magics under `magic_name`, with a warning where they hide others."""
        shell, name = self.shell, self.magic_name
        ours = {"line": self.line, "cell": self.cell}
        for kind, function in ours.items():
            earlier = shell.magics_manager.magics[kind].get(name)
            self._replaced[kind, name] = earlier
            shell.magics_manager.magics[kind][name] = function
        if self._replaced["cell", name] is not None:
            warnings.warn(
                f"%%{name} existed already and is hidden now; %unload_ext llm_magic restores it. "
                "To keep both: %config LLMMagics.magic_name = 'another_name'",
                stacklevel=2,
            )

    def unregister(self) -> None:
        """Remove the magics; those that `register` has hidden are back."""
        for (kind, name), earlier in self._replaced.items():
            table = self.shell.magics_manager.magics[kind]
            if getattr(table.get(name), "__self__", None) is not self:
                continue  # somebody registered over us: it is theirs now
            if earlier is None:
                del table[name]
            else:
                table[name] = earlier
        self._replaced.clear()

    @no_var_expand
    @cell_magic("llm")
    def cell(self, line: str, cell: str) -> None:
        run_cell(self.notebook, line, cell)

    @no_var_expand
    @line_magic("llm")
    def line(self, line: str) -> object:
        return run_command(self.notebook, line)

    # What `%%llm?` and `%llm?` show.
    cell.__doc__ = cell_options.PARSER.format_help()
    line.__doc__ = "Commands of llm_magic. `%llm` alone shows what is loaded.\n\n" + "\n".join(
        f"%llm {name} {command.usage}\n    {command.what}" for name, command in COMMANDS.items()
    )
