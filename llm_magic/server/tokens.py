"""Texts as token ids and back, in the two dialects that clients speak: llama.cpp's and vLLM's."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from ..arguments import as_ids
from ..json_types import JsonObject
from ..llm import LLM
from ..provider import Request, require
from .asks import chat
from .body import Body
from .problems import ApiError, bad
from .shape import token_text

_WHAT = ("prompt", "content", "messages", "model")
_FLAGS = ("add_special_tokens", "add_special", "parse_special", "with_pieces", "return_token_strs")


@runtime_checkable
class HasVocabulary(Protocol):
    """A provider that knows the names of its tokens."""

    def special_tokens(self) -> Mapping[str, str]:
        """ "bos", "eos", "unk", "pad", "sep" -> the token's text, where the model has one."""

    def template_source(self) -> str | None:
        """The chat template; None without one."""


def tokenize(body: Body, llm: LLM) -> JsonObject:
    """The ids of a text, or of a chat as its template renders it.

    `prompt` and `add_special_tokens` (true unless given) are vLLM's names, `content` and
    `add_special` (false unless given) llama.cpp's. A start token is added where the model wants
    one.
    """
    if "messages" in body.fields:
        ids = llm.provider.render(chat(body, llm).requests[0]).ids
    else:
        body.only((*_WHAT, *_FLAGS))
        ids = _ids(body, llm)
    found: JsonObject = {"count": len(ids), "max_model_len": window(llm), "tokens": list(ids)}
    if body.flag("with_pieces") or body.flag("return_token_strs"):
        pieces = _pieces(body, llm, ids)
        if body.flag("with_pieces"):
            found["tokens"] = [{"id": i, "piece": p} for i, p in zip(ids, pieces, strict=True)]
        if body.flag("return_token_strs"):
            found["token_strs"] = pieces
    return found


def _ids(body: Body, llm: LLM) -> tuple[int, ...]:
    theirs = "prompt" in body.fields
    text = body.text("prompt" if theirs else "content")
    start = body.flag("add_special_tokens", True) if theirs else body.flag("add_special")
    special = body.flag("parse_special", True)
    if start and special:
        return llm.provider.render(Request(text)).ids
    ids = tuple(piece.id for piece in llm.tokenize(text, special))
    if start:
        first = llm.provider.render(Request("")).ids
        ids = (*first, *ids)
    return ids


def _pieces(body: Body, llm: LLM, ids: Sequence[int]) -> list[str]:
    """Each token as text; one that is part of a character as its bytes."""
    text = body.text("prompt" if "prompt" in body.fields else "content")
    known = {piece.id: piece.bytes for piece in llm.tokenize(text)} if text else {}
    return [token_text(known.get(i) or _rendered(llm, i)) for i in ids]


def _rendered(llm: LLM, i: int) -> bytes:
    return llm.provider.render(Request((i,))).text.encode()


def detokenize(body: Body, llm: LLM) -> JsonObject:
    """The text of ids, names of control tokens included; under the names of both dialects."""
    body.only(("tokens", "model"))
    ids = body.listed("tokens")
    if not all(type(i) is int for i in ids):
        raise bad("tokens must be a list of token ids", "tokens")
    require(llm.provider, "tokenize")
    text = llm.provider.render(Request(as_ids(ids))).text if ids else ""
    return {"prompt": text, "content": text}


def apply_template(body: Body, llm: LLM) -> JsonObject:
    """The prompt that a chat becomes."""
    return {"prompt": llm.provider.render(chat(body, llm).requests[0]).text}


def info(llm: LLM) -> JsonObject:
    """What a client must know to render and cut prompts itself, as tokenizer_config.json has it."""
    provider = llm.provider
    if not isinstance(provider, HasVocabulary):
        raise ApiError(501, f"the vocabulary of {llm.model!r} is not known", "not_supported_error")
    names = provider.special_tokens()
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name}_token": names.get(name) for name in ("bos", "eos", "unk", "pad")},
        "chat_template": provider.template_source(),
        "model_max_length": window(llm),
    }


def window(llm: LLM) -> int | None:
    """The context in tokens; None where the provider does not say."""
    found = getattr(llm.provider.status(), "ctx", None)
    return found if isinstance(found, int) else None
