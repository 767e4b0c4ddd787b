"""Reranking by a model that was not trained for it: it is asked, and its yes is weighed."""

import math
from collections.abc import Sequence

from ..errors import LLMError
from ..events import Message
from ..provider import BatchScoring, Request

ANSWERS = ("Yes", "No")
QUESTION = """Query: {query}

Document: {document}

Does the document answer the query? Answer only with Yes or No."""


def judge(scoring: BatchScoring, query: str, documents: Sequence[str]) -> list[float]:
    """The probability of "Yes" against "No" for each document, in their order.

    The whole answers are scored behind the prompts, side by side: the numbers do not depend on what
    else runs.
    """
    texts = (QUESTION.format(query=query, document=document) for document in documents)
    asked = ((Request((Message("user", text),)), ANSWERS) for text in texts)
    scores = []
    for found in scoring.score_batch(asked):
        if isinstance(found, LLMError):
            raise found
        yes, no = found.logprobs
        scores.append(1.0 / (1.0 + math.exp(min(no - yes, 700.0))))
    return scores
