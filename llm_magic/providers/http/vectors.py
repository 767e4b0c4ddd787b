"""Embeddings and reranking by a server.

Vectors come as base64 (little-endian float32), so they are exact. Texts go in batches that fit the
server's window by an estimate; where the server finds a batch too long, it goes again with counts
that are exact.
"""

import base64
import binascii
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from llm_magic.errors import (
    ContextOverflowError,
    ModelWarning,
    RemoteError,
    UnsupportedError,
)
from llm_magic.events import Message, Sampling, Token
from llm_magic.provider import Request

from .discover import Server
from .fleet import Endpoint, Retries
from .text import Texts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

BATCH = 64  # texts of one request
CHARS = 3  # characters of a token, at least, in the estimate
PATIENT = Retries(attempts=14)
PARALLEL = 8  # requests at once for one reranking
TOP = 20
QUESTION = """Query: {query}

Document: {document}

Does the document answer the query? Answer only with yes or no."""

Ask = Callable[..., Any]  # Sender.ask
Answer = Callable[[Request], tuple[Token, ...]]  # the tokens of a short answer


def estimate(text: str) -> int:
    """About how many tokens a text has: at least 1, and a third of its characters.

    >>> estimate(""), estimate("four"), estimate("abc" * 10)
    (1, 2, 10)
    """
    return max(1, math.ceil(len(text) / CHARS))


class Vectors:
    """The embedding and rerank routes of a server.

    Args:
        ask: Sends a request.
        server: What the server is.
        texts: Its tokenise routes.
        model_at: The model's name at a server.
        cap: Most tokens of one request; None: no limit.
    """

    def __init__(
        self,
        ask: Ask,
        server: Server,
        texts: Texts,
        model_at: Callable[[Endpoint], str],
        cap: int | None,
    ) -> None:
        self._ask, self._server, self._texts, self._model_at = ask, server, texts, model_at
        self.cap = cap

    # ------------------------------------------------------------------ vectors

    def embed(self, texts: Sequence[str], truncate: bool) -> "list[npt.NDArray[np.float32]]":
        """The vector of each text as the server gives it, not normalised."""
        out: list[npt.NDArray[np.float32]] = []
        for batch in self._batches(texts, truncate):
            try:
                out += self._vectors(batch)
            except ContextOverflowError:
                if self.cap is None or not self._texts.known:
                    raise
                # The estimate was too low: the same texts by exact counts.
                for part in self._batches(batch, truncate, exact=True):
                    out += self._vectors(part)
        return out

    def _batches(
        self, texts: Sequence[str], truncate: bool, exact: bool = False
    ) -> Iterator[list[str]]:
        """The texts in groups of at most `BATCH` and `cap` tokens; without a cap, as one group."""
        if self.cap is None:
            if texts:
                yield list(texts)
            return
        batch: list[str] = []
        room = self.cap
        for i, text in enumerate(texts):
            fitted, n = self._fitted(i, text, self.cap, truncate, exact)
            if batch and (n > room or len(batch) == BATCH):
                yield batch
                batch, room = [], self.cap
            batch.append(fitted)
            room -= n
        if batch:
            yield batch

    def _fitted(self, i: int, text: str, cap: int, truncate: bool, exact: bool) -> tuple[str, int]:
        """The text as it is sent, and its tokens: counted where the estimate says too many."""
        n = estimate(text)
        if not (exact or n > cap) or not self._texts.known:
            return text, min(n, cap)
        ids = self._texts.ids(text)
        if len(ids) <= cap:
            return text, max(1, len(ids))
        if not truncate:
            said = f"text {i} has {len(ids)} tokens, the server takes {cap}"
            raise ContextOverflowError(len(ids), cap, "shorten it, or pass truncate=True", said)
        warnings.warn(
            f"text {i} has {len(ids):,} tokens and was cut to {cap:,}", ModelWarning, stacklevel=6
        )
        plain = self._texts.ids(text, special=False, start=False)
        keep = max(1, cap - (len(ids) - len(plain)))
        return self._texts.text(plain[:keep]), cap

    def _vectors(self, batch: Sequence[str]) -> "list[npt.NDArray[np.float32]]":
        def body(endpoint: Endpoint) -> Mapping[str, object]:
            asked = {"input": list(batch), "encoding_format": "base64"}
            return {"model": self._model_at(endpoint), **asked, **self._server.dialect.raw}

        found = self._ask("POST", "embeddings", body, retries=PATIENT)
        rows = found.get("data") if isinstance(found, Mapping) else found
        if not isinstance(rows, list) or len(rows) != len(batch):
            n = len(rows) if isinstance(rows, list) else 0
            raise RemoteError(f"the server sent {n} vectors for {len(batch)} texts")
        return [vector(row.get("embedding")) for row in in_order(rows)]

    # ------------------------------------------------------------------ reranking

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """The score of each document by the server's own route.

        Raises:
            UnsupportedError: The server has none.
        """
        if not documents:
            return []

        def body(endpoint: Endpoint) -> Mapping[str, object]:
            return {"model": self._model_at(endpoint), "query": query, "documents": list(documents)}

        found = self._ask("POST", "rerank", body)
        rows = found.get("results") if isinstance(found, Mapping) else found
        if not isinstance(rows, list) or len(rows) != len(documents):
            n = len(rows) if isinstance(rows, list) else 0
            raise RemoteError(f"the server sent {n} scores for {len(documents)} documents")
        scores = [row.get("relevance_score", row.get("score")) for row in in_order(rows)]
        if not all(isinstance(s, int | float) and math.isfinite(s) for s in scores):
            raise RemoteError("the server's answer to /rerank has a score that is no number")
        return [float(score) for score in scores]

    def rerank_pairs(self, query: str, documents: Sequence[str]) -> list[float]:
        """Scores by a reranking model behind the embedding route: one pair, one value.

        Servers without a rerank route embed `query</s></s>document` with pooling "rank"; the first
        value is the score.
        """
        if not documents:
            return []
        vectors = self.embed([f"{query}</s></s>{document}" for document in documents], False)
        for i, found in enumerate(vectors):
            if not found.size:
                raise RemoteError(f"the server sent an empty vector for document {i}")
        return [float(found[0]) for found in vectors]


def judged(answer: Answer, query: str, documents: Sequence[str]) -> list[float]:
    """Scores by a chat model: the probability of "yes" against "no" as its first token.

    Args:
        answer: The tokens of an answer to a request.
        query: What the documents should answer.
        documents: The documents.

    Raises:
        RemoteError: No answer has a "yes" or a "no" among its most likely tokens.
    """
    if not documents:
        return []

    def ask(document: str) -> float | None:
        text = QUESTION.format(query=query, document=document)
        request = Request(
            (Message("user", text),), sampling=Sampling(temperature=0.0, max_tokens=1),
            logprobs=TOP, thinking=False,
        )  # fmt: skip
        return yes_share(answer(request))

    with ThreadPoolExecutor(min(PARALLEL, len(documents))) as pool:
        found = list(pool.map(ask, documents))
    if all(score is None for score in found):
        raise RemoteError(
            "the model did not answer with yes or no, so its scores say nothing; use a reranking "
            "model, or a larger chat model"
        )
    return [0.0 if score is None else score for score in found]


def yes_share(tokens: Sequence[Token]) -> float | None:
    """p(yes) against p(no) at the first token; None where neither is among its alternatives.

    Of several spellings (case, blanks) the most likely one counts. Without a "no" it is p(yes).
    """
    if not tokens:
        return None
    first = tokens[0]
    heard = [(a.bytes, a.logprob) for a in first.top] or [(first.bytes, first.logprob)]
    best: dict[str, float] = {}
    for own, value in heard:
        word = own.decode("utf-8", "replace").strip().lower()
        if word in ("yes", "no") and value is not None:
            best[word] = max(best.get(word, 0.0), math.exp(value))
    if not best:
        return None
    yes, no = best.get("yes", 0.0), best.get("no", 0.0)
    return yes / (yes + no) if "no" in best else yes


def vector(value: object) -> "npt.NDArray[np.float32]":
    """A vector of an answer: base64, numbers, or llama-server's list of one list.

    Raises:
        RemoteError: It is neither; the message says which servers send it.
    """
    import numpy as np

    try:
        if isinstance(value, str):
            raw = base64.b64decode(value, validate=True)
            if len(raw) % 4:
                raise ValueError("not whole numbers")
            return np.frombuffer(raw, "<f4").astype(np.float32)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            value = value[0]
        if isinstance(value, list):
            found = np.array(value, np.float32)
            if found.ndim == 1:
                return found
    except (binascii.Error, ValueError, TypeError):
        pass
    raise RemoteError(
        "the server's vectors cannot be read: they must be base64 of float32 or lists of numbers "
        "(llama-server b4700 or newer, vLLM 0.6 or newer)"
    )


def in_order(rows: Sequence[object]) -> list[Mapping[str, Any]]:
    """Rows by their `index`, each of which must be there once."""
    found = [row for row in rows if isinstance(row, Mapping)]
    order = [row.get("index", i) for i, row in enumerate(found)]
    if sorted(map(str, order)) != sorted(map(str, range(len(rows)))):
        raise RemoteError("the server's rows are not numbered as the texts were")
    return sorted(found, key=lambda row: int(row.get("index", found.index(row))))


def no_pooling(pooling: object) -> None:
    """A server's pooling is set when it is started."""
    if pooling is not None:
        raise UnsupportedError("embed", "a server pools as it was started to; leave pooling out")
