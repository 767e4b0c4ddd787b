"""What chats and texts have in common: logprobs, numbers of tokens, times."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..chat.reply import Reply
from ..events import Event, Prefill, Timings, Token, Usage
from ..json_types import JsonObject

UNLIKELY = -9999.0  # what OpenAI sends for minus infinity, which JSON does not have


class Shape(Protocol):
    """The objects that one request is answered with."""

    def first(self, index: int) -> list[JsonObject]:
        """The chunks that open a choice."""

    def event(self, index: int, event: Event) -> list[JsonObject]:
        """The chunks of an event of a choice."""

    def last(self, index: int, reply: Reply) -> list[JsonObject]:
        """The chunks that close a choice."""

    def total(self, usage: JsonObject) -> JsonObject:
        """The chunk with the numbers of tokens."""

    def whole(self, replies: Sequence[Reply], usage: JsonObject) -> JsonObject:
        """The answer that is not streamed."""


def token_text(data: bytes) -> str:
    """A token as text; bytes that are no text in themselves as OpenAI writes them.

    >>> token_text(b" cat"), token_text(b"\\xf0\\x9f")
    (' cat', 'bytes:\\\\xf0\\\\x9f')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokens: Iterable[Token]) -> JsonObject:
    """The field `logprobs` of a chat: every token with its alternatives, most likely first."""
    return {"content": [_entry(token) for token in tokens], "refusal": None}


def _entry(token: Token) -> JsonObject:
    return {
        **_named(token.id, token.bytes, token.logprob),
        "top_logprobs": [_named(top.id, top.bytes, top.logprob) for top in token.top],
    }


def _named(id: int | None, data: bytes, logprob: float | None) -> JsonObject:
    return {
        "id": id,
        "token": token_text(data),
        "bytes": list(data),
        "logprob": UNLIKELY if logprob is None else logprob,
    }


def usage(prompts: Sequence[Usage], answers: Sequence[Reply]) -> JsonObject:
    """The numbers of tokens of a request: its prompts once, and all answers that were made.

    >>> usage([Usage(prompt=5, cached=4)], [Reply("", usage=Usage(5, 4, 2))])["total_tokens"]
    7
    """
    prompt = sum(one.prompt for one in prompts)
    completion = sum(reply.usage.completion for reply in answers)
    reasoning = sum(reply.kinds.count("reasoning") for reply in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(min(u.cached, u.prompt) for u in prompts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def timings(reply: Reply) -> JsonObject:
    """Speeds, as llama.cpp's server names them. Times in milliseconds."""
    t: Timings = reply.timings
    new = max(0, reply.usage.prompt - reply.usage.cached)
    return {
        "cache_n": reply.usage.cached,
        "prompt_n": new,
        "prompt_ms": round(t.prefill * 1000, 3),
        "prompt_per_second": round(t.prefill_tps, 2),
        "predicted_n": reply.usage.completion,
        "predicted_ms": round(t.decode * 1000, 3),
        "predicted_per_second": round(t.decode_tps, 2),
    }


def progress(event: Prefill) -> JsonObject:
    """How much of a prompt is evaluated, as llama.cpp's server names it."""
    return {"total": event.total, "cache": event.cached, "processed": event.done}
