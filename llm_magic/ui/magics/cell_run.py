"""Runs one `%%llm` cell: its options and text become a request, the request a shown reply."""

import argparse
from dataclasses import replace

from IPython.core.error import UsageError

from llm_magic.branching import measured
from llm_magic.chat.reply import Reply
from llm_magic.errors import Interrupted
from llm_magic.events import Usage
from llm_magic.llm import LLM
from llm_magic.utf8 import line_ends, question_text
from llm_magic.verify.notebook import digest

from . import cell_options, command_line, map_cell, request, screens
from .brief_errors import brief_errors
from .session import Notebook
from .tool_outputs import separate_outputs


def run_cell(nb: Notebook, line: str, cell: str) -> None:
    """Run a cell as typed: the rest of its first line, and its text."""
    args = cell_options.parse(nb, line)
    nb.cell = digest(nb.magic_name, line, cell)
    try:
        run(nb, args, _text(nb, args, cell))
    finally:
        nb.cell = ""


def _text(nb: Notebook, args: argparse.Namespace, cell: str) -> str:
    """The cell's text without the line ends that only end the cell.

    In a text to continue line ends count, except IPython's own and the one that a terminal needs.
    """
    if not (args.complete or args.score):
        return question_text(cell)
    text = line_ends(cell).removesuffix("\n")
    return text.removesuffix("\n") if screens.is_terminal(nb.shell) else text


def run(nb: Notebook, args: argparse.Namespace, text: str) -> None:
    """Answer, continue or score a text as the options say."""
    if args.out is not None and not command_line.is_name(args.out):
        raise UsageError(f"--out {args.out}: not a Python name")
    if not args.complete and not text.strip():
        raise UsageError(
            f"%%{nb.magic_name}: the cell has no text to answer; write it below this line"
        )
    with brief_errors(nb):
        map_cell.check(args)
        if args.map is not None:
            map_cell.run(nb, args, text)
            return
        asked = request.prepare(nb, args, text)
        name = request.model_of(nb, args)
        screen = screens.screen(
            nb.shell, cell_options.look_of(nb, args, asked.options), name, quiet=args.quiet,
            tokens=asked.options["max_tokens"], rate=nb.settings.max_rate, keep=args.live,
        )  # fmt: skip
        llm = nb.load(name, screen)
        reply = _answer(nb, asked, llm, screen)
        if args.out is not None:
            nb.shell.user_ns[args.out] = reply
        if args.inspect and not args.quiet:
            from .. import look_inside  # and with it numpy

            look_inside.show(reply)
        if args.live and not args.quiet:
            _show_live(nb, reply, llm, screen)


def _answer(nb: Notebook, asked: request.CellRequest, llm: LLM, screen: screens.Screen) -> Reply:
    if asked.args.score:
        return _score(nb, llm, asked.text, asked.options.get("logprobs", 5), screen)
    given = "given" in asked.options

    def keep(reply: Reply) -> None:
        nb.keep(reply, measured(reply) if given else None)

    with request.open_stream(nb, asked, llm) as stream, separate_outputs(nb.shell):
        return screens.follow(stream, screen, keep)


def _show_live(nb: Notebook, reply: Reply, llm: LLM, screen: screens.Screen) -> None:
    """The live view in a display of its own, which hides the other one while it is there."""
    if not isinstance(screen, screens.CellScreen):
        return
    from ..widgets.explorer.widget import Explorer

    # The cell's own output is the static form: it shows the branches too, as they come.
    explorer = Explorer(reply, llm, kept=screen.kept, look=screen.look)
    nb.shell.user_ns["_explorer"] = explorer
    explorer._ipython_display_()


def _score(nb: Notebook, llm: LLM, text: str, top: int, screen: screens.Screen) -> Reply:
    try:
        reply = scored(llm, text, top)
    except KeyboardInterrupt:
        raise Interrupted("interrupted while the text was being scored") from None
    nb.keep(reply)
    screen.final(reply)
    return reply


def scored(llm: LLM, text: str, top: int = 5) -> Reply:
    """A text's own tokens as a Reply whose counts are those of the text."""
    reply = llm.score(text, top)
    return replace(reply, usage=Usage(0, 0, len(reply.tokens)))
