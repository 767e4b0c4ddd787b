"""Notebooks whose cells hold replies of a real model, made every way in which one can be made.

    python saved_cells.py MODEL NOTEBOOK    writes the notebook and checks it in the same process

Import as `from support.saved_cells import book`.
"""

import json
import sys
from pathlib import Path
from typing import Any

import llm_magic
from llm_magic.chat.reply import Reply
from llm_magic.events import Delta
from llm_magic.ui.views import mime, records
from llm_magic.verify.finder import Finder
from llm_magic.verify.report import Report
from llm_magic.verify.run import verify

AGAIN = "the cat and the hello world of us. " * 4


def output(reply: Reply, docs: bool = False, **look: Any) -> dict[str, Any]:
    """The output of a cell that shows a reply, as it lies in a file."""
    how = mime.suited(reply, mime.Look(docs=docs, **look))
    data = mime.bundle(reply, how)
    metadata = records.metadata(reply, how, data)
    made = {"output_type": "display_data", "data": data, "metadata": metadata}
    return json.loads(json.dumps(made))  # type: ignore[no-any-return]


def book(path: Path, *outputs: dict[str, Any]) -> Path:
    """A notebook with one cell for each output."""
    cells = [{"cell_type": "code", "source": "reply", "outputs": [o]} for o in outputs]
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}), "utf-8")
    return path


def replies(llm: llm_magic.LLM) -> dict[str, Reply]:
    """A reply made in each way, by name.

    The seeds are fixed: on another variant a draw may fall on the other side of a boundary.
    """
    ask: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8}
    made = {
        "greedy": llm.chat("Once upon", max_tokens=12, temperature=0),
        "sampled": llm.chat("Once upon", **ask, seed=2, logprobs=3),
        "cached": llm.chat("Once upon", **ask, seed=7),
        "uncached": llm.chat("Once upon", **ask, seed=7, reuse=False),
        "guessed": llm.complete(AGAIN, max_tokens=24),
        "not guessed": llm.complete(AGAIN, max_tokens=24, guess=False),
        "penalised": llm.chat("hello", **ask, seed=2, repeat_penalty=1.3, dry_multiplier=0.8),
        "biased": llm.chat("hello", **ask, seed=2, logit_bias={5: float("-inf")}, min_tokens=3),
        "bound": llm.chat("hello", regex="[a-z]{2,6}", max_tokens=12, seed=1),
        "chosen": llm.chat("hello", choices="the cat|a world|us", temperature=0),
        "scored": llm.score("Once upon the cat", top=2),
        "continued": llm.complete("Once upon", given="the cat", max_tokens=8, logprobs=2),
        "echoed": llm.complete("Once upon", echo=True, logprobs=2, max_tokens=6),
    }
    made |= {f"batched {i}": r for i, r in enumerate(llm.chat("Once upon", n=4, seed=3, **ask))}
    stop = made["greedy"].text[3:6]
    if stop.strip():
        made["stopped"] = llm.chat("Once upon", max_tokens=12, temperature=0, stop=stop)
    made["cancelled"] = _cancelled(llm)
    return made | {"branched": made["sampled"].branch(2, llm=llm, max_tokens=10, seed=2)}


def _cancelled(llm: llm_magic.LLM) -> Reply:
    stream = llm.stream("Once upon", max_tokens=40, temperature=0.8, seed=2)
    seen = 0
    with stream:
        for event in stream:
            seen += len(event.tokens) if isinstance(event, Delta) else 0
            if seen >= 3:
                stream.cancel("interrupted")
    return stream.reply


def check(path: Path, *models: str) -> Report:
    """The report of a notebook."""
    return verify(path, Finder(models), records.differences)


def main(model: str, path: str) -> int:
    llm = llm_magic.load(model)
    made = replies(llm)
    origin = made["guessed"].origin
    assert origin is not None
    assert made["guessed"].usage.guessed > 0 or not origin.exact  # the portable path does not guess
    assert made["cached"].usage.cached > 0
    assert made["cancelled"].finish_reason == "interrupted"
    assert made["guessed"].text == made["not guessed"].text
    outputs = [output(reply, docs) for reply in made.values() for docs in (False, True)]
    report = check(book(Path(path), *outputs), model)
    for name, check_ in zip((n for n in made for _ in range(2)), report.checks, strict=True):
        print(f"{name}: {check_.verdict} {check_.findings}")
    exact = {c.verdict for c in report.checks} == {"same"}
    print(f"{report.checks[0].made}: {'every bit' if exact else 'not every bit'}")
    return report.status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
