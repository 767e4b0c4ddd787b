"""`%llm decide`: a question between given texts, answered with the probability of each.

The decision is shown as bars and bound to `_llm_decision`, and to the name of `--out`.
"""

import argparse
import re
from typing import Any

from IPython.core.error import UsageError

from llm_magic.decisions.calibration import Calibration

from ..views import numbers
from . import command_line, lookup, screens
from .session import Command, Notebook, command_parser, parse

KEPT = "_llm_decision"
_SCALE = re.compile(r"(-?\d+)(?:\.\.|,|-| to )(-?\d+)")


def decide(nb: Notebook, rest: str) -> None:
    """Decide between texts."""
    parser = command_parser(nb, "decide")
    parser.add_argument("-m", "--model")
    parser.add_argument("--choices")
    parser.add_argument("--yes-no", action="store_true")
    parser.add_argument("--scale")
    parser.add_argument("--order")
    parser.add_argument("--length")
    parser.add_argument("--system")
    parser.add_argument("--calibration")
    parser.add_argument("--unlisted", action="store_true")
    parser.add_argument("--complete", action="store_true")
    parser.add_argument("-o", "--out")
    head, text = command_line.split(parser, rest)
    args = parse(nb, parser, head)
    text = nb.fill(command_line.unquoted(text), "the line")
    if not text.strip():
        raise UsageError(
            f"decide: there is no text to decide about: %{nb.magic_name} decide --yes-no TEXT"
        )
    options = _options(nb, args)
    screen = screens.screen(nb.shell, nb.look(), nb.name_of(args.model))
    llm = nb.load(nb.name_of(args.model), screen)
    found = llm.decide(text, **options)
    nb.shell.user_ns[KEPT] = found
    if args.out:
        nb.shell.user_ns[args.out] = found
    screen.say(numbers.decision_view(found))


def _options(nb: Notebook, args: argparse.Namespace) -> dict[str, Any]:
    """The keyword options of `LLM.decide` that the line gives."""
    out: dict[str, Any] = {
        "yes_no": args.yes_no,
        "listed": not args.unlisted,
        "complete": args.complete,
    }
    out |= {
        name: value
        for name in ("order", "length", "system")
        if (value := getattr(args, name)) is not None
    }
    out |= lookup.constraint(nb.names, argparse.Namespace(choices=args.choices))
    if args.scale is not None:
        ends = _SCALE.fullmatch(args.scale.strip())
        if ends is None:
            raise UsageError(f"--scale {args.scale}: write the first and the last number: 1-5")
        out["scale"] = (int(ends[1]), int(ends[2]))
    if args.calibration is not None:
        found = lookup.value(nb.names, args.calibration, "--calibration")
        if not isinstance(found, Calibration):
            what = type(found).__name__
            raise UsageError(f"--calibration {args.calibration}: it is a {what}; llm.calibrate(...)"
                             " makes one")  # fmt: skip
        out["calibration"] = found
    return out


COMMANDS = {
    "decide": Command(
        decide,
        '--choices "A|B"|NAME | --yes-no | --scale 1-5 [--order given] [--length bytes] '
        "[--system S] [--calibration NAME] [--unlisted] [--complete] [-m MODEL] [-o NAME] TEXT",
        "decide between texts, with the probability of each",
    ),
}
