"""Fuzzers: each file has `check(seed)`, and runs as `python -m tests.fuzz.NAME COUNT [FIRST]`.

Under pytest they run for about 20 seconds each; LLM_MAGIC_FUZZ sets the count of inputs.
"""

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parent.parent)
if _TESTS not in sys.path:  # `python -m tests.fuzz...` starts in the repository's root
    sys.path.insert(0, _TESTS)
