"""How many cases a fuzzer tries, and how one of them is tried again.

Without a setting a fuzzer runs for SECONDS. The environment changes that:

    LLM_MAGIC_FUZZ=10000    exactly so many cases
    LLM_MAGIC_FUZZ_CASE=17  only case 17, to look into a failure
"""

import os
import random
import time
from collections.abc import Iterator

SECONDS = 20


def rounds(name: str) -> Iterator[tuple[int, random.Random]]:
    """The number of each case, and the source of its randomness, which depends on nothing else.

    Args:
        name: The fuzzer. It is part of the seed and of the line that tells the count.
    """
    if case := os.environ.get("LLM_MAGIC_FUZZ_CASE"):
        yield int(case), random.Random(f"{name}:{case}")
        return
    most = int(os.environ.get("LLM_MAGIC_FUZZ", "0"))
    started = time.monotonic()
    number = 0
    while number < most or (not most and time.monotonic() - started < SECONDS):
        yield number, random.Random(f"{name}:{number}")
        number += 1
    print(f"{name}: {number:,} cases in {time.monotonic() - started:.0f} s")
