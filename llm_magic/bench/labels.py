"""The log-probability of given labels behind one prompt, by us and by llama.cpp's server.

The prompt has been read and is in the cache of both. Each label is two tokens long, and the labels
share eight first tokens. llama.cpp's server has no log-probabilities of given tokens, so every
token that is asked for is one request: the label's beginning goes into the prompt, whose cache is
kept, and a bias forces the token, whose reported probability is that before the bias. Beginnings
that labels share are asked for once.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..errors import LLMError, RequestError
from ..provider import ChoiceScores

Ids = Sequence[int]
FIRST = 8  # different first tokens
FORCED = 1e4  # a bias that no logit outweighs


def labels_of(prompt: Ids, n: int) -> list[tuple[int, int]]:
    """n labels of two tokens, made of a prompt's own tokens; no two are equal.

    >>> labels_of([5, 6, 7, 8], 3)
    [(5, 5), (6, 5), (7, 5)]
    """
    known = list(dict.fromkeys(prompt))
    first = known[:FIRST]
    pairs = [(a, b) for b in known for a in first]
    if len(pairs) < n:
        raise RequestError(f"a prompt of {len(prompt)} tokens gives no {n} labels")
    return pairs[:n]


def ours(local: Any, prompt: Ids, n: int) -> float:
    """Labels a second of this engine."""
    from ..providers.choices import Scorer
    from ..providers.side_by_side import run

    model = local.engine.loaded()
    labels = labels_of(prompt, n)

    def scorer(wanted: list[tuple[int, int]]) -> Scorer:
        text = model.tokenizer.token_bytes
        return Scorer(tuple(prompt), wanted, frozenset(), text, model.config.n_tokens, False)

    def all_of(wanted: list[tuple[int, int]]) -> ChoiceScores:
        done = next(run([lambda: scorer(wanted)], local.engine.scheduler.submit, len(wanted)))
        if isinstance(done, LLMError):
            raise done
        return done.scores()

    all_of(labels[:1])
    start = time.perf_counter()
    found = all_of(labels)
    seconds = time.perf_counter() - start
    if not all(map(math.isfinite, found.logprobs)):
        raise RequestError("a label has no log-probability")
    return n / seconds


def of_server(
    complete: Callable[[dict[str, object]], Mapping[str, Any]], prompt: Ids, n: int, clients: int
) -> float:
    """Labels a second of a server of llama.cpp that so many clients ask at once."""
    wanted = labels_of(prompt, n)
    steps = list(dict.fromkeys([(a,) for a, _ in wanted])) + [(a, b) for a, b in wanted]

    def ask(ids: tuple[int, ...]) -> float:
        answer = complete(
            {
                "prompt": [*prompt, *ids[:-1]],
                "n_predict": 1,
                "n_probs": 1,
                "cache_prompt": True,
                "temperature": 0,
                "ignore_eos": True,
                "logit_bias": [[ids[-1], FORCED]],
            }
        )
        token, logprob = told(answer)
        if token != ids[-1]:
            raise RequestError(f"told the token {token} instead of {ids[-1]}")
        return logprob

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, steps[:1] * clients))  # each slot reads the prompt
        start = time.perf_counter()
        found = list(pool.map(ask, steps))
    seconds = time.perf_counter() - start
    if not all(map(math.isfinite, found)):
        raise RequestError("a label has no log-probability")
    return n / seconds


def told(answer: Mapping[str, Any]) -> tuple[int, float]:
    """The first token of an answer and its log-probability."""
    try:
        token = answer["choices"][0]["logprobs"]["content"][0]
        return int(token["id"]), float(token["logprob"])
    except (KeyError, IndexError, TypeError):
        raise RequestError(str(answer)[:200]) from None
