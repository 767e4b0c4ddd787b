"""Measures `llm.map` beside the bare engine: the same prompts, as jobs of the scheduler.

    .venv/bin/python docs/map_speed.py [--model NAME] [--slots N] [--rows N] [--rounds N]

Both draw the same number of tokens from the same prompts, in turns. The engine's jobs are read as
ids, without text, cache or table, as many side by side as there are slots. A machine that does
something else slows both: the ratio is what counts. It is to be 0.9 or more.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import pandas as pd

import llm_magic
from llm_magic.engine.serving.job import Job
from llm_magic.events import Sampling, Token
from llm_magic.providers.local import Local

TEMPLATE = (
    "You are a careful reader of reviews. Say what the review below is about, and whether its "
    "writer would come again.\n\nReview: {{ review }}"
)
AHEAD = 2  # jobs that wait for a slot, as in llm.map


def engine(llm: llm_magic.LLM, rows: list[str], tokens: int, slots: int) -> int:
    """Draw from all prompts as bare jobs; returns how many tokens came."""
    local = llm.provider
    assert isinstance(local, Local)
    texts = (TEMPLATE.replace("{{ review }}", row) for row in rows)
    prompts = (llm.render([{"role": "user", "content": text}]).ids for text in texts)
    sampling = Sampling(temperature=0.0, max_tokens=tokens, min_tokens=tokens)
    running = []
    drawn = 0
    while True:
        while len(running) < slots + AHEAD and (ids := next(prompts, None)) is not None:
            running.append(local.engine.scheduler.submit(Job(ids, sampling)))
        if not running:
            return drawn
        for generation in running[:slots]:
            item = next(generation, None)
            if item is None:
                running.remove(generation)
            drawn += isinstance(item, Token)


def table(llm: llm_magic.LLM, rows: list[str], tokens: int, slots: int) -> int:
    """The same by `llm.map`."""
    frame = pd.DataFrame({"review": rows})
    made = llm.map(frame, TEMPLATE, max_tokens=tokens, min_tokens=tokens, progress=False)
    return int(made["answer_tokens"].sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    llm = llm_magic.load(given.model, slots=given.slots)
    ways: dict[str, Callable[..., int]] = {"engine": engine, "llm.map": table}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(given.rounds + 1):  # the first one warms up
        for name, way in ways.items():
            rows = [f"Visit {number}, {name}, table {i}: it was fine." for i in range(given.rows)]
            started = time.perf_counter()
            drawn = way(llm, rows, given.tokens, given.slots)
            rate = drawn / (time.perf_counter() - started)
            if number:
                rates[name].append(rate)
                print(f"round {number}  {name:8} {drawn:,} tokens  {rate:,.0f} tok/s", flush=True)
    pairs = zip(rates["llm.map"], rates["engine"], strict=True)
    ratio = statistics.median(ours / bare for ours, bare in pairs)
    print(f"llm.map has {ratio:.2f} of the engine's rate (median of {given.rounds} rounds)")
    return 0 if ratio >= 0.9 else 1


if __name__ == "__main__":
    sys.exit(main())
