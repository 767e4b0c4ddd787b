"""The provider over an encoder: it embeds texts, scores pairs, and generates nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..chat.stream import Stream
from ..errors import (
    ContextOverflowError,
    NotLoadedError,
    RequestError,
)
from ..events import Piece, Progress, Sampling, Token
from ..provider import Capability, Pooling, RenderedPrompt, Request, unsupported
from .vectors import cut, unit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.encoder.load import LoadedEncoder


@dataclass(frozen=True, slots=True)
class EncoderStatus:
    """What a loaded encoder is. ctx: the longest text in tokens; dim: of a vector."""

    model: str
    path: str
    device: str
    compute: str
    ctx: int
    dim: int
    pooling: str
    memory_bytes: int


class EncoderProvider:
    """One encoder in this process."""

    purpose = ": it is an embedding model, which turns texts into vectors (embed, similar, rerank)"

    def __init__(self, name: str, path: Path, on_progress: Callable[[Progress], None]) -> None:
        """Load it, on this thread."""
        from ..engine.encoder.load import load_encoder

        self.model, self.path = name, path
        self._loaded: LoadedEncoder | None = load_encoder(
            path, lambda stage, done, total: on_progress(Progress(stage, done, total))
        )

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What an encoder can do. One with a rank head scores pairs, others compare vectors."""
        return frozenset({"tokenize", "embed", "rerank"})

    @property
    def defaults(self) -> Sampling:
        return Sampling()

    @property
    def closed(self) -> bool:
        return self._loaded is None

    def _model(self) -> "LoadedEncoder":
        if self._loaded is None:
            raise NotLoadedError("the model was unloaded; load it again with llm_magic.load()")
        return self._loaded

    # ------------------------------------------------------------------ vectors and scores

    def embed(
        self, texts: Sequence[str], pooling: Pooling | None = None, truncate: bool = False
    ) -> "list[npt.NDArray[np.float32]]":
        import numpy as np

        from ..engine.encoder.load import on_all_cores, pooled

        how = pooling or self._model().config.pooling
        if pooling is None and how in ("none", "rank"):
            how = "cls" if how == "rank" else "mean"
        model = self._model()
        cuts = [
            cut(model.tokenizer.whole(text), model.forward.n_ctx, i, truncate)
            for i, text in enumerate(texts)
        ]
        return on_all_cores(lambda ids: pooled(model.forward.encode(np.array(ids)), how), cuts)

    def rerank(self, query: str, documents: Sequence[str]) -> list[float]:
        """The score of the rank head; of a model without one the cosine of the vectors."""
        import numpy as np

        from ..engine.encoder.load import on_all_cores

        model = self._model()
        if model.forward.rank is None:
            query_vector, *rest = map(unit, self.embed([query, *documents]))
            return [float(query_vector @ vector) for vector in rest]
        second = len(model.tokenizer.whole(query))
        pairs = [model.tokenizer.whole(query, document) for document in documents]
        most = max(map(len, pairs), default=0)
        if most > model.forward.n_ctx:
            raise ContextOverflowError(most, model.forward.n_ctx, _SHORTER)
        return on_all_cores(lambda ids: model.forward.score(np.array(ids), second), pairs)

    # ------------------------------------------------------------------ text and ids

    def tokenize(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        tokenizer = self._model().tokenizer
        return [tokenizer.piece(i) for i in tokenizer.encode(text, special, start=start)]

    def detokenize(self, ids: Sequence[int]) -> str:
        tokenizer = self._model().tokenizer
        for i in ids:
            if not 0 <= i < tokenizer.n_vocab:
                n = tokenizer.n_vocab - 1
                raise RequestError(f"token id {i} is not in the vocabulary (0 to {n})")
        return tokenizer.decode(list(ids))

    def status(self) -> EncoderStatus:
        model = self._model()
        return EncoderStatus(
            model=self.model,
            path=str(self.path),
            device="CPU",
            compute="encoder in float32",
            ctx=model.forward.n_ctx,
            dim=model.config.dim,
            pooling=model.config.pooling,
            memory_bytes=model.forward.memory_bytes,
        )

    def close(self) -> None:
        self._loaded = None

    # ------------------------------------------------------------------ what encoders cannot do

    def stream(self, request: Request) -> Stream:
        raise unsupported(self, "complete")

    def render(self, request: Request) -> RenderedPrompt:
        raise unsupported(self, "chat")

    def score(self, ids: Sequence[int], top: int = 0) -> list[Token]:
        raise unsupported(self, "score")

    def score_choices(self, request: Request, choices: Sequence[str]) -> list[float]:
        raise unsupported(self, "choices")

    def logprobs(self, ids: Sequence[int]) -> "npt.NDArray[np.float32]":
        raise unsupported(self, "score")


_SHORTER = "shorten the query or the document"
