"""`%%llm` and `%llm`: options in, one call of the engine, one output.

Comes in: the line and the cell as typed. Goes out: a display and a Reply (`_llm`, and the name that
`--out` gives). It parses and delegates; it must not know how a model generates or how a reply is
drawn.
"""

# IPython and traitlets are not typed for mypy, and all of their decorators are needed here.
# mypy: disable-error-code="untyped-decorator"

import argparse
import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import traitlets
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import MagicArgumentParser

from llm_magic.chat.reply import Reply
from llm_magic.errors import ContextOverflowError, EngineError, Interrupted, LLMError
from llm_magic.events import Delta
from llm_magic.hub import hub
from llm_magic.interpolation import as_text, interpolate, tight_fields
from llm_magic.llm import LLM
from llm_magic.utf8 import line_ends, question_text

from .. import options
from ..views import mime, summary, throughput
from ..views.ledger import Ledger
from . import command_line, map_cell, request, scope, screens, status
from .cell_conversations import Talks
from .commands import COMMANDS, scored
from .tool_outputs import of_their_own

MAX_TOKENS = 256
HELP = ("-h", "--help")  # what people try first


def _with_options(function: Callable[..., object]) -> Callable[..., object]:
    """Give a cell magic the options of the table: its parser, and its help."""
    parser = MagicArgumentParser("%llm", description=inspect.cleandoc(function.__doc__ or ""))
    options.add_arguments(parser, "cell")
    function.parser = parser  # type: ignore[attr-defined]
    function.__doc__ = parser.format_help()
    return function


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
        self.ledger = Ledger()
        self.talks = Talks()
        self._replaced: dict[tuple[str, str], Callable[..., object] | None] = {}

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
            self.withdraw()
            self.offer()

    # ------------------------------------------------------------------ registration

    def offer(self) -> None:
        """Register the magics under `magic_name`; what was there is put aside, with a warning."""
        shell, name = self.shell, self.magic_name
        ours = {"line": self.line, "cell": self.cell}
        for kind, function in ours.items():
            earlier = shell.magics_manager.magics[kind].get(name)
            self._replaced[kind, name] = earlier
            shell.magics_manager.magics[kind][name] = function
        if self._replaced["cell", name] is not None:
            import warnings

            warnings.warn(
                f"%%{name} was there before and is hidden now; %unload_ext llm_magic brings it "
                "back. To keep both: %config LLMMagics.magic_name = 'another_name'",
                stacklevel=2,
            )

    def withdraw(self) -> None:
        """Put back what `offer` put aside."""
        for (kind, name), earlier in self._replaced.items():
            table = self.shell.magics_manager.magics[kind]
            if getattr(table.get(name), "__self__", None) is not self:
                continue  # somebody registered over us: it is theirs now
            if earlier is None:
                del table[name]
            else:
                table[name] = earlier
        self._replaced.clear()

    def look(self) -> mime.Look:
        """The settings that decide how any Reply is shown."""
        return mime.Look(
            format=self.format,
            docs=self.docs_mode,
            save_prompt=self.save_prompt,
            json_tokens=self.save_tokens,
        )

    # ------------------------------------------------------------------ the cell

    @no_var_expand
    @cell_magic("llm")
    @_with_options
    def cell(self, line: str, cell: str) -> None:
        """Ask the model in this kernel: the cell's text is the prompt, the answer streams below.

        {{ name }}, with a blank on both sides, becomes the value of a variable: dots and indices
        work, calls do not, and all other braces stay as they are. \\{{ name }} is literal.

        With --chat a cell is a turn of a conversation and replaces its turn when it runs again.
        Where nobody tells which cell runs (nbconvert, a terminal), every run is a turn of its own.

        Tools are functions of the notebook with type hints; what they were called with and what
        came back is shown in the cell. A constrained answer is valid by construction; -o reply
        binds it, and reply.parsed is its Python value.
        """
        given = self.parse(line)
        self.run(given, self._text(given, cell))

    def _text(self, given: argparse.Namespace, cell: str) -> str:
        """The cell's text without the line ends that are only there to end the cell.

        In a text to continue line ends count, except IPython's own and the one that a terminal
        needs.
        """
        if not (given.complete or given.score):
            return question_text(cell)
        text = line_ends(cell).removesuffix("\n")
        return text.removesuffix("\n") if screens.is_terminal(self.shell) else text

    # ------------------------------------------------------------------ the line

    @no_var_expand
    @line_magic("llm")
    def line(self, line: str) -> Any:
        command, _, rest = line.strip().partition(" ")
        if not command:
            usage = [(name, c.usage, c.what) for name, c in COMMANDS.items()]
            self.show(status.overview(self.magic_name, usage, hub.loaded(), self.name_of(None)))
            return None
        found = COMMANDS.get(command)
        if found is None:
            raise UsageError(self._no_command(command, line.strip()))
        if rest.strip() in HELP:
            self.show(found.help(f"%{self.magic_name} {command}"))
            return None
        with self._brief():
            return found.run(self, rest.strip())

    # What `%llm?` shows; a decorator would have read the docstring already.
    line.__doc__ = "Commands of llm_magic. `%llm` alone shows what is loaded.\n\n" + "\n".join(
        f"%llm {name} {command.usage}\n    {command.what}" for name, command in COMMANDS.items()
    )

    def _no_command(self, command: str, line: str) -> str:
        name = self.magic_name
        near = difflib.get_close_matches(command, COMMANDS, 2, 0.6)
        hint = f"did you mean %{name} {' or '.join(near)}?" if near else ""
        there = hint or f"there are {', '.join(COMMANDS)}."
        # More than one word reads like a question to the model.
        ask = f" To ask the model: %{name} ask {line}" if " " in line or not near else ""
        return f"%{name} {command}: no such command; {there}{ask}"

    # ------------------------------------------------------------------ one request

    def run(self, given: argparse.Namespace, text: str) -> None:
        """Answer, continue or score a text as the options say."""
        if given.out is not None and not command_line.is_name(given.out):
            raise UsageError(f"--out {given.out}: not a Python name")
        if not given.complete and not text.strip():
            raise UsageError(
                f"%%{self.magic_name}: the cell has no text to answer; write it below this line"
            )
        with self._brief():
            map_cell.check(given)
            if given.map is not None:
                map_cell.run(self, given, text)
                return
            ask = request.prepare(self, given, text)
            name = request.model_of(self, given)
            screen = screens.screen(
                self.shell, self._look_of(given, ask), name, quiet=given.quiet,
                tokens=ask.options["max_tokens"], rate=self.max_rate, keep=given.live,
            )  # fmt: skip
            llm = self.load(name, screen)
            reply = self._answer(ask, llm, screen)
            if given.out is not None:
                self.shell.user_ns[given.out] = reply
            if given.live and not given.quiet:
                self._live(reply, llm, screen)

    def _answer(self, ask: request.Ask, llm: LLM, screen: screens.Screen) -> Reply:
        if ask.given.score:
            return self._score(llm, ask.text, ask.options.get("logprobs", 5), screen)
        with request.opened(self, ask, llm) as stream:
            if ask.prefill:
                screen.event(Delta("answer", ask.prefill))
            with of_their_own(self.shell):
                return screens.follow(stream, screen, self.keep)

    def _live(self, reply: Reply, llm: LLM, screen: screens.Screen) -> None:
        """The live view in a display of its own, which hides the other one while it is there."""
        if not isinstance(screen, screens.CellScreen):
            return
        from ..widgets.explorer.widget import Explorer

        # The cell's own output is the static form: it shows the branches too, as they come.
        explorer = Explorer(reply, llm, kept=screen.kept, look=screen.look)
        self.shell.user_ns["_explorer"] = explorer
        explorer._ipython_display_()

    def _score(self, llm: LLM, text: str, top: int, screen: screens.Screen) -> Reply:
        try:
            reply = scored(llm, text, top)
        except KeyboardInterrupt:
            raise Interrupted("interrupted while the text was being scored") from None
        self.keep(reply)
        screen.final(reply)
        return reply

    @property
    def names(self) -> Mapping[str, object]:
        """The variables that the running magic sees."""
        return scope.visible(self.shell.user_ns)

    def fill(self, text: str, source: str = "the cell") -> str:
        """`text` with the values of `{{ name }}`. source: where it stands, for messages."""
        formatters = self.shell.display_formatter.formatters
        names = self.names
        tight = [path for path in tight_fields(text) if path.split(".")[0].split("[")[0] in names]
        if tight and not self.tight_braces:
            self._warn_of_tight(tight[0], source)
        return interpolate(
            text, names, lambda value: as_text(value, formatters), source=source,
            suggest=scope.own(names, self.shell.user_ns_hidden), tight=self.tight_braces,
        )  # fmt: skip

    def _warn_of_tight(self, path: str, source: str) -> None:
        self.show(
            status.note(
                f"Warning: {{{{{path}}}}} in {source} is sent as it is. To insert the variable, "
                f"write {{{{ {path} }}}} with spaces, or set %config {type(self).__name__}."
                "tight_braces = True. To send the braces without this warning, use --raw."
            )
        )

    def system_of(self, given: argparse.Namespace) -> str | None:
        """The system prompt: the option's, else the setting's, else none."""
        return cast("str | None", given.system if given.system is not None else self.system or None)

    def sampling(self, given: argparse.Namespace) -> dict[str, Any]:
        """Keyword options of LLM.stream. A budget of 0 or less means the default one (LAI-2)."""
        typed = vars(given) | {
            "max_tokens": given.max_tokens if (given.max_tokens or 0) > 0 else None
        }
        logprobs = given.logprobs if given.logprobs is not None else self.logprobs
        if logprobs is None and given.live:
            logprobs = 5  # a live view without alternatives would have nothing to choose from
        own = {
            "max_tokens": self.max_tokens, "temperature": self.temperature, "logprobs": logprobs
        }  # fmt: skip
        return {k: v for k, v in own.items() if v is not None} | options.values(typed)

    def _look_of(self, given: argparse.Namespace, ask: request.Ask) -> mime.Look:
        # Only words to read are Markdown: what is continued, scored or bound counts as it is.
        as_it_is = ask.plain or any(o in ask.options for o in ("regex", "choices", "grammar"))
        json = "schema" in ask.options
        form = given.format or ("code" if json else "text" if as_it_is else self.format)
        show = _sections(given.show) | ({"surprises"} if given.score else frozenset())
        return replace(
            self.look(), format=form, show=show, heat=True if given.score else None,
            language="json" if json else "python", before=ask.prefill,
        )  # fmt: skip

    def keep(self, reply: Reply, measured: Reply | None = None) -> None:
        """The last reply: `_llm`, and a line in the ledger (of `measured`, if that is another)."""
        self.shell.user_ns["_llm"] = reply
        self.shell.user_ns_hidden["_llm"] = reply
        spent = measured or reply
        # The input that runs now is the last one in the history, whatever the counter says already.
        cell = len(self.shell.history_manager.input_hist_parsed) - 1
        self.ledger.add(throughput.entry(summary.steady(spent) if self.docs_mode else spent, cell))

    def name_of(self, named: str | None) -> str:
        """The model that is meant when `named` was asked for."""
        return named or self.model or hub.default

    def load(self, name: str, screen: screens.Screen, **how: Any) -> LLM:
        """The model of that name, loaded with its progress on the screen where it is not yet."""
        found = hub.get(name) if not any(v is not None for v in how.values()) else None
        if found is not None:
            return found
        try:
            return hub.load(name, on_progress=screen.event, **how)
        except KeyboardInterrupt:
            screen.close("interrupted")
            raise Interrupted(f"interrupted while {name} was being loaded") from None
        except LLMError:
            screen.close("loading failed")
            raise

    # ------------------------------------------------------------------ options and errors

    def parser(self) -> MagicArgumentParser:
        """The parser of a cell's options."""
        return LLMMagics.cell.parser

    def parse(self, line: str) -> argparse.Namespace:
        return command_line.parse(self.parser(), line, f"%%{self.magic_name}")

    @contextmanager
    def _brief(self) -> Iterator[None]:
        """Our own errors say what to do in a sentence; frames of ours would only bury it."""
        try:
            yield
        except Interrupted:
            raise
        except KeyboardInterrupt:  # between a load and its stream, say: as little to look at
            raise Interrupted("interrupted") from None
        except LLMError as e:
            verbose = getattr(self.shell.InteractiveTB, "mode", "") == "Verbose"
            if not isinstance(e, EngineError) and not verbose:
                said = str(e)
                if isinstance(e, ContextOverflowError):  # it speaks to Python: say it as typed here
                    said = said.replace("ctx=N", f"%{self.magic_name} load --ctx N")
                    said = said.replace("trim=True", "--trim")
                text = f"\x1b[31m{type(e).__name__}\x1b[39m: {said}"
                e._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
            raise

    def show(self, fragment: mime.Fragment) -> None:
        """Display something that is not a reply."""
        self.shell.display_pub.publish(fragment._repr_mimebundle_(), {})


def _sections(words: str | None) -> frozenset[str]:
    """ "prompt,stats" as a set. UsageError for what there is not."""
    found = frozenset(filter(None, (word.strip() for word in (words or "").split(","))))
    if wrong := found - mime.SECTIONS:
        raise UsageError(f"--show {', '.join(sorted(wrong))}: there are prompt, tokens and stats")
    return found
