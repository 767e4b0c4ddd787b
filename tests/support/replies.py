"""Replies made by hand, for tests of views."""

from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.events import Timings, Token, Top, Usage


def reply_of(n: int = 6, top: int = 3, **fields: Any) -> Reply:
    """A reply with falling probabilities."""
    run = tuple(
        Token(
            i, f" w{i}".encode(), -0.05 * i * i, 1 + i,
            tuple(Top(100 + j, f" alt{j}".encode(), -0.1 - j) for j in range(top)), at=0.1 * i,
        )
        for i in range(n)
    )  # fmt: skip
    values: dict[str, Any] = {
        "tokens": run,
        "kinds": ("answer",) * n,
        "finish_reason": "stop",
        "usage": Usage(42, 8, n),
        "timings": Timings(prefill=0.1, decode=0.5, prefill_tps=812.4, decode_tps=98.7),
        "model": "smollm2",
    }
    return Reply("".join(f" w{i}" for i in range(n)), **(values | fields))
