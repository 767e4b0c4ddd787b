"""The command line of the benchmark: a table or JSON on stdout, progress on stderr."""

import argparse
import json
import sys
from collections.abc import Sequence

from ..errors import LLMError
from .measure import Say, available, run
from .report import Report, table
from .subjects import PEERS

USUAL = "xllamacpp"  # the peer that is measured where it is installed and none is named


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m llm_magic bench",
        description="Measure speed and memory, of peers beside us in the same run.",
    )
    add_options(out)
    out.add_argument("--json", action="store_true", help="JSON instead of a table")
    return out


def add_options(out: argparse.ArgumentParser) -> None:
    """What a command line and a notebook have in common."""
    out.add_argument("model", nargs="?", help="a name or a file (smollm2)")
    out.add_argument(
        "--peer",
        action="append",
        choices=(*PEERS, "none"),
        help=f"measure beside us; may be repeated ({USUAL}, where it is installed)",
    )
    out.add_argument("--threads", type=int, help="CPU threads (all cores)")
    out.add_argument(
        "--rounds", type=int, default=3, help="rounds that count, after one that warms up (3)"
    )
    out.add_argument("--quick", action="store_true", help="fewer sizes, one start")
    out.add_argument(
        "--random-1b",
        action="store_true",
        help="a llama of 1.1 billion random weights (Q4_0, 620 MB, written once to the cache)",
    )


def measure(options: argparse.Namespace, say: Say) -> Report:
    """The run that parsed options ask for. LLMError for values that make no sense."""
    for name in ("threads", "rounds"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise LLMError(f"--{name} {value}: must be 1 or more")
    model = options.model or "smollm2"
    if options.random_1b:
        from .random_model import random_1b

        model = str(random_1b(say))
    peers = [p for p in options.peer or available([USUAL]) if p != "none"]
    return run(model, peers, options.threads, options.rounds, options.quick, say)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        report = measure(options, _say)
    except LLMError as e:
        print(f"llm_magic: {e}", file=sys.stderr)
        return 1
    print(json.dumps(report.to_dict(), indent=1) if options.json else table(report))
    return 0
