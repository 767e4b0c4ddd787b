"""`%%llm` and `%llm`: options in, one call of the engine, one output.

Comes in: the line and the cell as typed. Goes out: a display and a Reply (`_llm`, and the name that
`--out` gives). It parses and delegates; it must not know how a model generates or how a reply is
drawn.
"""

# IPython and traitlets are not typed for mypy, and all of their decorators are needed here.
# mypy: disable-error-code="untyped-decorator"

import argparse
import difflib
import keyword
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import traitlets
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import (
    MagicArgumentParser,
    argument,
    argument_group,
    magic_arguments,
)

from ..chat.reply import Reply
from ..errors import EngineError, Interrupted, LLMError
from ..events import Message
from ..hub import hub
from ..llm import LLM
from . import live, status, views
from .interpolate import as_text, interpolate

MAX_TOKENS = 256
COMMANDS = {
    "ask": "TEXT: answer one line (with the options of %%llm before the text)",
    "load": "[NAME] [--ctx N] [--slots N] [--threads N] [--device D]: load and use a model",
    "unload": "[NAME]: free one model, or all",
    "models": "which models there are",
    "status": "what is loaded",
    "chat": "[-m MODEL] [-s SYSTEM] [options]: a chat beside the cells, on the same engine",
}


def _docs() -> bool:
    return os.environ.get("LLM_MAGIC_DOCS", "").lower() not in ("", "0", "false", "no")


def _escapes(text: str) -> str:
    """A stop string as typed: \\n and \\t mean a line end and a tab."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


@magics_class
class LLMMagics(Magics):  # type: ignore[misc]
    """Settings of %%llm and %llm. Options of a cell win over these."""

    model = traitlets.Unicode("", help="Model of cells that name none; empty: smollm2.").tag(
        config=True
    )
    system = traitlets.Unicode("", help="System prompt of cells that give none.").tag(config=True)
    temperature = traitlets.Float(0.7, help="Temperature; 0 is greedy.").tag(config=True)
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
        live.RATE, min=0.2, max=live.RATE, help="Most display updates a second while streaming."
    ).tag(config=True)
    save_prompt = traitlets.Bool(True, help="Keep the prompt's text in the saved notebook.").tag(
        config=True
    )
    save_tokens = traitlets.Int(
        views.JSON_TOKENS, min=0, allow_none=True,
        help="Longest answer whose tokens are saved with the notebook; None: every.",
    ).tag(config=True)  # fmt: skip

    def __init__(self, shell: Any, **options: Any) -> None:
        super().__init__(shell, **options)
        self._replaced: dict[tuple[str, str], Callable[..., Any] | None] = {}

    @traitlets.default("docs_mode")
    def _default_docs_mode(self) -> bool:
        return _docs()

    @traitlets.validate("magic_name")
    def _valid_name(self, proposal: Any) -> str:
        name = str(proposal["value"])
        if not name.isidentifier():
            raise traitlets.TraitError(f"magic_name is {name!r}; it must be a name like llm")
        return name

    @traitlets.observe("magic_name")
    def _renamed(self, change: Any) -> None:
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

    def look(self) -> views.Look:
        """The settings that decide how any Reply is shown."""
        return views.Look(
            format=self.format,
            docs=self.docs_mode,
            save_prompt=self.save_prompt,
            json_tokens=self.save_tokens,
        )

    # ------------------------------------------------------------------ the cell

    @no_var_expand
    @cell_magic("llm")
    @magic_arguments("%llm")
    @argument_group("Model and prompt")
    @argument("-m", "--model", help="a model's name or path (see %%llm models)")
    @argument("-s", "--system", help="system prompt")
    @argument("--complete", action="store_true", help="continue the text as it is: no chat")
    @argument("--raw", action="store_true", help="leave {{ name }} alone")
    @argument_group("Sampling")
    @argument("-n", "--max-tokens", type=int, help="most tokens of the answer (256)")
    @argument("-t", "--temperature", type=float, help="0 is greedy; 0.7 unless given")
    @argument("--top-k", type=int, help="only the K most likely tokens")
    @argument("--top-p", type=float, help="only the most likely tokens that reach P together")
    @argument("--min-p", type=float, help="only tokens at least P times as likely as the likeliest")
    @argument("--seed", type=int, help="same seed, same answer")
    @argument(
        "--stop", action="append", type=_escapes, help="end before this text; may be repeated"
    )
    @argument_group("Output")
    @argument(
        "--logprobs", nargs="?", type=int, const=5,
        help="record the N most likely tokens per step (5), shade the answer by probability",
    )  # fmt: skip
    @argument("-f", "--format", choices=("markdown", "text", "code"), help="how to show the answer")
    @argument("-o", "--out", help="bind the Reply to this name (it is also in _llm)")
    @argument("-q", "--quiet", action="store_true", help="show nothing")
    def cell(self, line: str, cell: str) -> None:
        """Ask the model in this kernel: the cell's text is the prompt, the answer streams below.

        {{ name }}, with a blank on both sides, becomes the value of a variable: dots and indices
        work, calls do not, and all other braces stay as they are. \\{{ name }} is literal.
        """
        options = self._parse(line)
        # IPython ends every cell with a line break of its own.
        self._run(options, cell.removesuffix("\n"))

    # ------------------------------------------------------------------ the line

    @no_var_expand
    @line_magic("llm")
    def line(self, line: str) -> Any:
        """Commands of llm_magic. `%llm` alone shows what is loaded.

        ask TEXT        answer one line (options of %%llm may stand before the text)
        load [NAME]     load a model and use it from now on: [--ctx N] [--slots N] [--threads N]
                        [--device D]
        unload [NAME]   free one model, or all
        models          which models there are
        status          what is loaded
        chat            a chat beside the cells, on the same engine: [-m MODEL] [-s SYSTEM]
        """
        command, _, rest = line.strip().partition(" ")
        if not command:
            self._show(status.overview(self.magic_name, COMMANDS, hub.loaded(), self._model(None)))
            return None
        action = getattr(self, f"_line_{command}", None) if command in COMMANDS else None
        if action is None:
            raise UsageError(self._no_command(command, line.strip()))
        return action(rest.strip())

    def _no_command(self, command: str, line: str) -> str:
        name = self.magic_name
        near = difflib.get_close_matches(command, COMMANDS, 2, 0.6)
        hint = f"did you mean %{name} {' or '.join(near)}?" if near else ""
        there = hint or f"there are {', '.join(COMMANDS)}."
        # More than one word reads like a question to the model.
        ask = f" To ask the model: %{name} ask {line}" if " " in line or not near else ""
        return f"%{name} {command}: no such command; {there}{ask}"

    def _line_ask(self, rest: str) -> None:
        given, text = self._split(rest)
        if not text.strip():
            raise UsageError(f"%{self.magic_name} ask: there is no text to answer")
        self._run(self._parse(given), text)

    def _line_load(self, rest: str) -> None:
        options = _parser(self.magic_name, "load", "name?", "ctx:int", "slots:int", "threads:int",
                          "device:str").parse_args(_words(rest))  # fmt: skip
        name = self._model(options.name)
        screen = live.screen(self.shell, self.look(), name)
        start = time.monotonic()
        llm = self._load(name, screen, ctx=options.ctx, slots=options.slots,
                         threads=options.threads, device=options.device)  # fmt: skip
        self.model = name
        screen.say(status.loaded(llm, time.monotonic() - start, steady=self.docs_mode))

    def _line_unload(self, rest: str) -> None:
        options = _parser(self.magic_name, "unload", "name?").parse_args(_words(rest))
        gone = hub.unload(options.name)
        self._show(status.note(f"unloaded {', '.join(gone)}" if gone else "nothing was loaded"))

    def _line_models(self, rest: str) -> None:
        _parser(self.magic_name, "models").parse_args(_words(rest))
        self._show(status.models(hub.loaded()))

    def _line_status(self, rest: str) -> None:
        _parser(self.magic_name, "status").parse_args(_words(rest))
        self._show(status.table(hub.loaded(), self._model(None)))

    def _line_chat(self, rest: str) -> Any:
        from .chat import Chat

        options = self._parse(rest)
        system = options.system if options.system is not None else self.system
        return Chat(self._model(options.model), system=system or None, **self._sampling(options))

    # ------------------------------------------------------------------ one request

    def _run(self, options: argparse.Namespace, text: str) -> None:
        if options.out is not None and not _is_name(options.out):
            raise UsageError(f"--out {options.out}: not a Python name")
        if not options.complete and not text.strip():
            raise UsageError(f"%%{self.magic_name}: the cell has no text to answer")
        with self._brief():
            prompt, system = self._prompt(options, text)
            name = self._model(options.model)
            sampling = self._sampling(options)
            look = self._look_of(options)
            screen = live.screen(self.shell, look, name, quiet=options.quiet,
                                 tokens=sampling["max_tokens"], rate=self.max_rate)  # fmt: skip
            llm = self._load(name, screen)
            stream = llm.stream(prompt, system=system, **sampling)
            reply = live.follow(stream, screen, self._keep)
            if options.out is not None:
                self.shell.user_ns[options.out] = reply

    def _prompt(
        self, options: argparse.Namespace, text: str
    ) -> tuple[str | tuple[Message, ...], str | None]:
        system = options.system if options.system is not None else self.system or None
        if not options.raw:
            text = self._fill(text)
            system = None if system is None else self._fill(system)
        if not options.complete:
            return (Message("user", text),), system
        if options.system is not None:
            raise UsageError("--complete continues a text: there is no place for --system")
        return text, None

    def _fill(self, text: str) -> str:
        formatters = self.shell.display_formatter.formatters
        return interpolate(text, self.shell.user_ns, lambda value: as_text(value, formatters))

    def _sampling(self, options: argparse.Namespace) -> dict[str, Any]:
        """Keyword options of LLM.stream. A budget of 0 or less means the default one (LAI-2)."""
        limit = options.max_tokens
        logprobs = options.logprobs if options.logprobs is not None else self.logprobs
        given = {
            "max_tokens": limit if limit is not None and limit > 0 else self.max_tokens,
            "temperature": self.temperature if options.temperature is None else options.temperature,
            "logprobs": logprobs,
            **{key: getattr(options, key) for key in ("top_k", "top_p", "min_p", "seed", "stop")},
        }
        return {key: value for key, value in given.items() if value is not None}

    def _look_of(self, options: argparse.Namespace) -> views.Look:
        from dataclasses import replace

        # A continued text is no Markdown document: its blanks and line ends are part of it.
        form = options.format or ("text" if options.complete else self.format)
        return replace(self.look(), format=form)

    def _keep(self, reply: Reply) -> None:
        self.shell.user_ns["_llm"] = reply
        self.shell.user_ns_hidden["_llm"] = reply

    def _model(self, named: str | None) -> str:
        return named or self.model or hub.default

    def _load(self, name: str, screen: live.Screen, **how: Any) -> LLM:
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

    def _parse(self, line: str) -> argparse.Namespace:
        parser = LLMMagics.cell.parser
        try:
            return cast(argparse.Namespace, parser.parse_args(_words(line)))
        except UsageError as e:
            raise UsageError(_with_hint(str(e), line, parser, self.magic_name)) from None

    def _split(self, line: str) -> tuple[str, str]:
        """Options at the start of a line, and the text after them, untouched."""
        options = LLMMagics.cell.parser._option_string_actions
        at = 0
        while (word := _OPTION.match(line, at)) is not None:
            if word[1] == "--":
                return line[:at], line[word.end() :].lstrip()
            at = word.end()
            action = options.get(word[1].partition("=")[0])
            if action is None or action.nargs == 0 or "=" in word[1]:
                continue
            value = _VALUE.match(line, at)
            if value is not None and (action.nargs != "?" or value[1].isdigit()):
                at = value.end()
        return line[:at], line[at:].lstrip()

    @contextmanager
    def _brief(self) -> Iterator[None]:
        """Our own errors say what to do in a sentence; frames of ours would only bury it."""
        try:
            yield
        except LLMError as e:
            verbose = getattr(self.shell.InteractiveTB, "mode", "") == "Verbose"
            if not isinstance(e, EngineError) and not verbose:
                text = f"\x1b[31m{type(e).__name__}\x1b[39m: {e}"
                e._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
            raise

    def _show(self, fragment: views.Fragment) -> None:
        self.shell.display_pub.publish(fragment._repr_mimebundle_(), {})


_OPTION = re.compile(r"\s*(-\S*)(?:\s|$)")
_VALUE = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|\S+)""")


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as e:
        raise UsageError(f"{str(e).lower()} in: {line.strip()}") from None


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _parser(magic: str, command: str, *spec: str) -> MagicArgumentParser:
    """A parser for one command. spec: "name?" (may be left out) or "option:type"."""
    parser = MagicArgumentParser(f"{magic} {command}")
    for item in spec:
        if item.endswith("?"):
            parser.add_argument(item[:-1], nargs="?")
        else:
            option, _, kind = item.partition(":")
            parser.add_argument(f"--{option}", type=int if kind == "int" else str)
    return parser


def _with_hint(message: str, line: str, parser: MagicArgumentParser, magic: str) -> str:
    """argparse's message, and what was probably meant."""
    options = parser._option_string_actions
    for word in _words(line):
        name = word.partition("=")[0]
        if name.startswith("-") and name not in options and name in message:
            near = difflib.get_close_matches(name, options, 2, 0.6)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            return f"%%{magic}: there is no option {name}{hint} %%{magic}? lists them"
        if not name.startswith("-") and message.endswith(f"unrecognized arguments: {word}"):
            return f"%%{magic}: {word} stands alone; to choose a model: %%{magic} -m {word}"
    return f"%%{magic}: {message} (%%{magic}? lists the options)"


def complete(magics: LLMMagics, line: str, symbol: str) -> list[str]:
    """Completions for a line that begins with our magic: commands, options, names of models."""
    from .. import models

    words = line.split()
    before = words[:-1] if symbol and words and line.endswith(symbol) else words
    last = before[-1] if before else ""
    if last in ("-m", "--model", "load"):
        return [row.name for row in models.known()]
    if last in ("-f", "--format"):
        return ["markdown", "text", "code"]
    if len(before) <= 1 and not line.startswith("%%"):
        return list(COMMANDS)
    return list(LLMMagics.cell.parser._option_string_actions)
