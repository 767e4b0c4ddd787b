"""How many cases a fuzzer tries, and how one of them is tried again.

The environment decides, so that the same file serves a quick look, the minute of a test run and
a long run:

    LLM_MAGIC_FUZZ=60s      as many cases as fit into a minute (what `./dev test` sets)
    LLM_MAGIC_FUZZ=10000    exactly so many
    LLM_MAGIC_FUZZ_CASE=17  only case 17, to look into a failure
"""

import os
import random
import time
from collections.abc import Iterator

DEFAULT = "2s"


def rounds(name: str) -> Iterator[tuple[int, random.Random]]:
    """The number of each case, and the source of its randomness, which depends on nothing else.

    Args:
        name: The fuzzer. It is part of the seed and of the line that tells the count.
    """
    if case := os.environ.get("LLM_MAGIC_FUZZ_CASE"):
        yield int(case), random.Random(f"{name}:{case}")
        return
    budget = os.environ.get("LLM_MAGIC_FUZZ", DEFAULT)
    seconds = float(budget.removesuffix("s")) if budget.endswith("s") else float("inf")
    most = float("inf") if budget.endswith("s") else int(budget)
    started = time.monotonic()
    number = 0
    while number < most and (number == 0 or time.monotonic() - started < seconds):
        yield number, random.Random(f"{name}:{number}")
        number += 1
    print(f"{name}: {number:,} cases in {time.monotonic() - started:.0f} s")
