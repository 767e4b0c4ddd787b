"""Log-probabilities of a given prompt by a server that echoes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from llm_magic.errors import RemoteError
from llm_magic.events import Token

from .fleet import Endpoint
from .logprobs import tokens_of


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
