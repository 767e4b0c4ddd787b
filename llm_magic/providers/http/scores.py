"""Log-probabilities of a given prompt by a server that echoes it."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from llm_magic.errors import RemoteError, RequestError, UnsupportedError
from llm_magic.events import Token

from .fleet import Endpoint
from .logprobs import tokens_of

PARALLEL = 8  # choices that are scored at once


def of_prompt(
    ask: Callable[..., Any],
    model_at: Callable[[Endpoint], str],
    ids: Sequence[int],
    top: int,
) -> list[Token]:
    """Each id with its logprob behind the ids before it; the first has none.

    Raises:
        RemoteError: The server did not echo the prompt, or not token by token.
    """
    if not ids:
        return []

    def body(endpoint: Endpoint) -> Mapping[str, object]:
        return {"model": model_at(endpoint), "prompt": list(ids), "echo": True, "logprobs": top,
                "max_tokens": 1, "temperature": 0}  # fmt: skip

    found = ask("POST", "completions", body)
    choices = found.get("choices") if isinstance(found, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    tokens = tokens_of(choice.get("logprobs") if isinstance(choice, Mapping) else None, top)
    if len(tokens) < len(ids):
        raise RemoteError(
            f"the server did not echo the prompt: {len(tokens)} tokens for {len(ids)} ids"
        )
    return [
        replace(token, id=i, forced=True) for i, token in zip(ids, tokens, strict=False)
    ]  # fmt: skip


def check_apart(choices: Sequence[str], ids: Sequence[tuple[int, ...]]) -> None:
    """No choice may be the beginning of another one: what tells them apart is an end, and a server
    gives no probability of an end.

    >>> check_apart(["yes", "no"], [(1,), (2,)])
    """
    for i, one in enumerate(ids):
        for j, other in enumerate(ids):
            if i != j and other[: len(one)] == one:
                raise UnsupportedError(
                    "choices",
                    f"{choices[i]!r} is the beginning of {choices[j]!r}, and a server gives no "
                    "probability of an end; use other words, or a model of this process",
                )


def of_choices(
    score: Callable[[Sequence[int]], Sequence[Token]],
    prompt: Sequence[int],
    choices: Sequence[tuple[int, ...]],
) -> list[float]:
    """The sum of the logprobs of each choice's tokens behind the prompt.

    Raises:
        RequestError: The prompt is empty.
    """
    if not prompt:
        raise RequestError("choices cannot be scored behind an empty prompt")

    def one(ids: tuple[int, ...]) -> float:
        tokens = score((*prompt, *ids))[len(prompt) :]
        return math.fsum(-math.inf if t.logprob is None else t.logprob for t in tokens)

    with ThreadPoolExecutor(min(PARALLEL, max(1, len(choices)))) as pool:
        return list(pool.map(one, choices))
