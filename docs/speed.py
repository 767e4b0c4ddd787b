"""Measures speed and writes the tables of docs/speed.md.

.venv/bin/python docs/speed.py                     write the tables from docs/speed/KIND/*.json
.venv/bin/python docs/speed.py --check             exit 1 if they differ from those files
.venv/bin/python docs/speed.py --measure [NAME...] [--peer P]... [--threads N] [--rounds N]
                                                   measure first (smollm2 gemma3-270m random-1b)

Afterwards run docs/execute.py on notebooks/02-speed.ipynb: it shows the same numbers. Measure on a
machine that does nothing else. Peers that are installed are measured in the same run.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from llm_magic.bench import PEERS, Report, available, run
from llm_magic.bench.random_model import random_1b
from llm_magic.bench.report import head, remarks, rows

HERE = Path(__file__).resolve().parent
PAGE, FOLDER = HERE / "speed.md", HERE / "speed"
TITLES = {
    "smollm2": "SmolLM2 135M, Q4_1",
    "gemma3-270m": "Gemma 3 270M, Q4_K_M",
    "random-1b": "a llama of 1.1 billion random weights, Q4_0",
}
BLOCK = re.compile(r"(<!-- numbers -->\n).*?(<!-- end of numbers -->)", re.DOTALL)


def measure(names: list[str], peers: list[str], threads: int | None, rounds: int) -> None:
    for name in names:
        model = str(random_1b(print)) if name == "random-1b" else name
        print(f"== {name}")
        large = name == "random-1b"  # a round of all tasks would take its peers minutes
        report = run(model, peers, threads, min(rounds, 3) if large else rounds, large, print)
        data = report.to_dict() | {"model": name}  # a path says something about the machine only
        place = FOLDER / report.kind_slug  # a run on another kind of machine overwrites nothing
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
        print(report)


def page(text: str) -> str:
    """The page with its tables as the files say."""
    found = [path for name in TITLES for path in sorted(FOLDER.glob(f"*/{name}.json"))]
    parts = [block(Report.from_dict(json.loads(path.read_text()))) for path in found]
    return BLOCK.sub(lambda m: m[1] + "\n" + "\n".join(parts) + "\n" + m[2], text)


def block(report: Report) -> str:
    """One model: its table, the ratios, where a token's time goes, where it was measured."""
    titles = head(report)
    lines = [
        f"### {TITLES[report.model]}, on {report.kind}",
        "",
        _row(titles),
        _row(["---", *["--:"] * (len(titles) - 1)]),
    ]
    lines += [_row(row) for row in rows(report)]
    lines += ["", *_budget(report), ""]
    lines += [f"- {name}: {what}" for name, what in remarks(report) if name != "model"]
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _budget(report: Report) -> list[str]:
    """What a token's time is made of, from the numbers of the table."""
    speed, python = report.best("decode at 0"), report.best("Python between two tokens")
    if not speed or not report.bandwidth or python is None:
        return []
    whole = 1e3 / speed
    reading = report.token_bytes / report.bandwidth * 1e3
    rest = max(0.0, whole - reading - python)
    text = (
        f"A token takes {whole:.2f} ms. Reading {report.token_bytes / 1e6:.0f} MB of weights takes"
        f" {reading:.2f} ms at the speed of the memory, Python {python:.2f} ms; {rest:.2f} ms are"
        " arithmetic, attention and threads waiting for each other."
    )
    if deep := report.best("decode at 2048"):
        text += f" Behind 2,048 tokens attention adds {1e3 / deep - whole:.2f} ms."
    return [text]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--measure", nargs="*", choices=list(TITLES), metavar="NAME")
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    if given.measure is not None:
        peers = given.peer or available(PEERS)
        measure(given.measure or list(TITLES), peers, given.threads, given.rounds)
    before = PAGE.read_text()
    after = page(before)
    if given.check and before != after:
        print(f"{PAGE.name} is not what {FOLDER.name}/*/*.json say: run {Path(__file__).name}")
        return 1
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
