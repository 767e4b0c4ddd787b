"""Reranking by a model that was not trained for it: it is asked, and its yes is weighed."""

import math
from collections.abc import Sequence

from ..events import Message
from ..provider import Provider, Request

ANSWERS = ("Yes", "No")
QUESTION = """Query: {query}

Document: {document}

Does the document answer the query? Answer only with Yes or No."""


def judge(provider: Provider, query: str, documents: Sequence[str]) -> list[float]:
    """The probability of "Yes" against "No" for each document, in their order.

    The whole answers are scored behind the prompt (`Provider.score_choices`), so the numbers do not
    depend on what else runs.
    """
    scores = []
    for document in documents:
        text = QUESTION.format(query=query, document=document)
        yes, no = provider.score_choices(Request((Message("user", text),)), ANSWERS)
        scores.append(1.0 / (1.0 + math.exp(min(no - yes, 700.0))))
    return scores
