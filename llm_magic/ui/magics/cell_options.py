"""The options of a `%%llm` cell: their parser, and the request and display that they ask for."""

import argparse
from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from .. import options
from ..views import mime
from . import command_line
from .session import Notebook

DESCRIPTION = """\
Ask the model in this kernel: the cell's text is the prompt, the answer streams below.

{{ name }}, with a space on both sides, becomes the value of a variable: dots and indices work,
calls do not, and all other braces stay as they are. \\{{ name }} is literal.

With --chat a cell is a turn of a conversation and replaces its turn when it runs again. Where the
front end does not say which cell runs (nbconvert, a terminal), every run is a turn of its own.

Tools are functions of the notebook with type hints; the cell shows their arguments and results. A
constrained answer is valid by construction; -o reply binds it, and reply.parsed is its Python
value."""


def _parser() -> MagicArgumentParser:
    parser = MagicArgumentParser("%llm", description=DESCRIPTION)
    options.add_arguments(parser, "cell")
    return parser


PARSER = _parser()


def parse(nb: Notebook, line: str) -> argparse.Namespace:
    """The options of a cell's line.

    Raises:
        UsageError: The line is wrong; the message says what was probably meant.
    """
    return command_line.parse(PARSER, line, f"%%{nb.magic_name}")


def system_of(nb: Notebook, args: argparse.Namespace) -> str | None:
    """The system prompt: the option's, else the setting's, else none."""
    system: str | None = args.system if args.system is not None else nb.settings.system or None
    return system


def request_options(nb: Notebook, args: argparse.Namespace) -> dict[str, Any]:
    """Keyword options of `LLM.stream`. A max_tokens of 0 or less means the default (LAI-2)."""
    settings = nb.settings
    typed = vars(args) | {"max_tokens": args.max_tokens if (args.max_tokens or 0) > 0 else None}
    logprobs = args.logprobs if args.logprobs is not None else settings.logprobs
    if logprobs is None and args.live:
        logprobs = 5  # a live view without alternatives would have nothing to choose from
    own = {
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "logprobs": logprobs,
    }
    return {k: v for k, v in own.items() if v is not None} | options.values(typed)


def look_of(nb: Notebook, args: argparse.Namespace, options: dict[str, object]) -> mime.Look:
    """How the reply is shown. options: those of the request."""
    # Only prose is Markdown: what is continued, scored or constrained is shown as it is.
    plain = args.complete or args.score
    as_it_is = plain or any(name in options for name in ("regex", "choices", "grammar"))
    json = "schema" in options
    form = args.format or ("code" if json else "text" if as_it_is else nb.settings.format)
    show = _sections(args.show) | ({"surprises"} if args.score else frozenset())
    return replace(
        nb.look(), format=form, show=show, heat=True if args.score else None,
        language="json" if json else "python",
    )  # fmt: skip


def _sections(words: str | None) -> frozenset[str]:
    """The set of sections in "prompt,stats". UsageError for an unknown one."""
    found = frozenset(filter(None, (word.strip() for word in (words or "").split(","))))
    if wrong := found - mime.SECTIONS:
        raise UsageError(
            f"--show {', '.join(sorted(wrong))}: unknown section; choose from prompt, tokens, stats"
        )
    return found
