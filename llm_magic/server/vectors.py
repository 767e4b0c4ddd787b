"""Texts as vectors and documents by relevance: /v1/embeddings and /v1/rerank."""

import base64
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ..json_types import JsonObject
from ..llm import LLM
from ..provider import Pooling
from .body import Body
from .problems import bad

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_TEXTS = 2048  # of one request, as OpenAI has it

_EMBED = ("input", "model", "encoding_format", "dimensions", "user", "pooling", "normalize")
_RERANK = ("query", "documents", "top_n", "return_documents", "model")


def embeddings(body: Body, llm: LLM, name: str) -> JsonObject:
    """The vectors of texts. Blocks while the model evaluates them.

    `pooling`, `normalize` (true unless given) and `truncate` go to `LLM.embed`.
    """
    body.only((*_EMBED, "truncate"))
    texts = _texts(body.get("input"), llm)
    form = body.one_of("encoding_format", "float", "base64")
    pooling = cast("Pooling | None", body.text("pooling") or None)
    if pooling == "none":
        raise bad('pooling "none" gives no vector of a whole text', "pooling")
    found = llm.embed(
        texts, pooling=pooling, normalize=body.flag("normalize", True),
        truncate=body.flag("truncate"),
    )  # fmt: skip
    if "dimensions" in body.fields and len(found):
        dim = len(found[0])
        if body.whole("dimensions", dim) != dim:
            raise bad(f"this model's vectors have {dim} dimensions", "dimensions")
    prompt = sum(len(llm.tokenize(text)) for text in texts)
    return {
        "object": "list",
        "model": name,
        "data": [
            {"object": "embedding", "index": i, "embedding": _vector(vector, form)}
            for i, vector in enumerate(found)
        ],
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    }


def _vector(vector: "npt.NDArray[np.float32]", form: str) -> str | list[float]:
    """Numbers, or little-endian float32 in base64."""
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(x) for x in vector]


def _texts(value: object, llm: LLM) -> list[str]:
    """A text, texts, token ids, or lists of token ids; ids become the text that they stand for."""
    if value is None:
        raise bad("input is missing", "input")
    several = isinstance(value, list) and (not value or isinstance(value[0], str | list))
    items = cast("list[object]", value) if several else [value]
    if len(items) > MOST_TEXTS:
        raise bad(f"{len(items)} texts at once; the most is {MOST_TEXTS}", "input")
    return [item if isinstance(item, str) else _of_ids(item, llm) for item in items]


def _of_ids(value: object, llm: LLM) -> str:
    if not isinstance(value, list) or not value or not all(type(i) is int for i in value):
        raise bad("input must be a text, a list of texts, token ids, or lists of them", "input")
    return llm.detokenize(value)


def rerank(body: Body, llm: LLM, name: str) -> JsonObject:
    """Documents by how well they answer a query, the best first. Blocks while the model reads."""
    body.only(_RERANK)
    query = body.text("query")
    documents = [_document(i, value) for i, value in enumerate(body.listed("documents"))]
    if len(documents) > MOST_TEXTS:
        raise bad(f"{len(documents)} documents at once; the most is {MOST_TEXTS}", "documents")
    most = body.whole("top_n", len(documents)) if "top_n" in body.fields else None
    ranked = llm.rerank(query, documents, top_n=most)
    told = body.flag("return_documents")
    results: list[JsonObject] = []
    for one in ranked:
        result: JsonObject = {"index": one.index, "relevance_score": float(one.score)}
        if told:
            result["document"] = {"text": documents[one.index]}
        results.append(result)
    total = sum(_count(llm, text) for text in (query, *documents))
    return {
        "id": f"rerank-{secrets.token_hex(12)}",
        "object": "list",
        "model": name,
        "results": results,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


def _document(i: int, value: object) -> str:
    text = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        raise bad(f"documents[{i}] must be a text, or an object with a text", "documents")
    return text


def _count(llm: LLM, text: str) -> int:
    pieces: Sequence[object] = llm.tokenize(text)
    return len(pieces)
