"""Texts as vectors, and documents by how well they answer a query: the methods of `LLM` for both.

The vectors come from the provider; reading arguments, normalising and sorting is done here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, get_args

from .arguments import count, shown
from .errors import RequestError
from .provider import Pooling, Provider, require
from .providers.vectors import unit
from .utf8 import whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document of `LLM.rerank`.

    Attributes:
        index: Its place among the documents that were given, from 0.
        score: How well it answers the query; greater is better. From models that were trained for
            reranking the score is the model's own; from others it is the probability of "yes".
    """

    index: int
    score: float


class Embeddings:
    """The part of `LLM` that embeds and reranks."""

    provider: Provider

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        truncate: bool = False,
    ) -> "npt.NDArray[np.float32] | list[npt.NDArray[np.float32]]":
        """Texts as vectors. A text has the same bits whatever other texts come with it.

        Args:
            texts: The texts; one text counts as a list of one.
            pooling: How the vectors of a text's tokens (the last layer's, behind the final norm)
                become one: "mean", "last", "cls" (the first), or "none" (they stay). None: as the
                model's file says, else the mean.
            normalize: Whether each vector is divided by its length. A zero vector stays zero.
            truncate: Whether a text that is longer than the context is cut, with a ModelWarning.

        Returns:
            Float32 [n, dim]; with pooling "none" a list of n arrays, float32 [tokens, dim].

        Raises:
            RequestError: A text is empty or is not a text, or an option is not valid.
            ContextOverflowError: A text does not fit the context, and truncate is False.
            UnsupportedError: The provider cannot embed.
        """
        import numpy as np

        require(self.provider, "embed")
        if pooling is not None and pooling not in get_args(Pooling):
            names = ", ".join(get_args(Pooling))
            raise RequestError(f"pooling is {shown(pooling)}; it must be one of {names}")
        read = [texts] if isinstance(texts, str) else _texts("texts", texts)
        for i, text in enumerate(read):
            if not text.strip():
                raise RequestError(f"text {i} is empty; an embedding needs a text")
        vectors = self.provider.embed([whole(t) for t in read], pooling, truncate)
        if normalize:
            vectors = [unit(vector).astype(np.float32) for vector in vectors]
        if pooling == "none":
            return vectors
        return np.stack(vectors) if vectors else np.empty((0, 0), np.float32)

    def similar(self, texts: Sequence[str], **options: object) -> "npt.NDArray[np.float32]":
        """The cosine of every text with every other one, float32 [n, n].

        Args:
            texts: The texts.
            **options: Those of `embed` but `normalize`.
        """
        import numpy as np

        read = _texts("texts", texts)
        vectors = self.embed(read, **options)  # type: ignore[arg-type]
        if isinstance(vectors, list):
            raise RequestError('pooling "none" leaves no vector of a whole text to compare')
        wide = vectors.astype(np.float64)
        return np.clip(wide @ wide.T, -1.0, 1.0).astype(np.float32)

    def rerank(
        self, query: str, documents: Sequence[str], top_n: int | None = None
    ) -> list[Ranked]:
        """Documents by how well they answer a query, the best first.

        A model that was trained for it scores the pair. Another one is asked whether the document
        answers the query, and the probability of "yes" against "no" is the score.

        Args:
            query: The query.
            documents: The documents; of none there is nothing to rank.
            top_n: Return so many at most.

        Raises:
            RequestError: The query is empty, or a document is not a text.
            ContextOverflowError: A document does not fit the context beside the query.
        """
        require(self.provider, "rerank")
        if not isinstance(query, str) or not query.strip():
            raise RequestError(f"query is {shown(query)}; it must be a text that is not empty")
        read = _texts("documents", documents)
        most = len(read) if top_n is None else count("top_n", top_n, 1)
        if not read:
            return []
        scores = self.provider.rerank(whole(query), [whole(text) for text in read])
        order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [Ranked(i, scores[i]) for i in order[:most]]


def _texts(name: str, value: object) -> list[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"{name} is {shown(value)}; it must be a list of texts")
    read = list(value)
    for i, text in enumerate(read):
        if not isinstance(text, str):
            raise RequestError(f"{name}[{i}] is {shown(text)}; it must be a text")
    return cast("list[str]", read)
