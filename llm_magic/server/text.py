"""Continued texts as OpenAI's legacy objects: chunks of a stream, and whole completions."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..chat.reply import Reply
from ..events import CallDelta, Delta, Event, Finish, Prefill, Token
from ..json_types import JsonObject
from .asks import Ask
from .shape import UNLIKELY, chat_logprobs, progress, timings, token_text


class Offsets:
    """Where each token begins in the text, in characters, counted over all decoded bytes."""

    def __init__(self, start: int) -> None:
        self._at = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, token: Token) -> int:
        at = self._at
        self._at += len(self._decoder.decode(token.bytes))
        return at


@dataclass(frozen=True, slots=True)
class Text:
    """The objects that one request for completions is answered with."""

    id: str
    created: int
    model: str
    ask: Ask
    _offsets: dict[int, Offsets] = field(default_factory=dict)
    _sent: dict[int, int] = field(default_factory=dict)  # tokens of each choice so far

    def _head(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _choice(
        self, index: int, text: str, finish: str | None, tokens: Sequence[Token], start: int
    ) -> JsonObject:
        logprobs = None
        if self.ask.logprobs is not None:
            offsets = self._offsets.setdefault(index, Offsets(start))
            logprobs = _logprobs(tokens, offsets, first=not self._sent.get(index))
            if self.ask.ids:  # as llama.cpp's server names them
                logprobs["content"] = chat_logprobs(tokens)["content"]
            self._sent[index] = self._sent.get(index, 0) + len(tokens)
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}

    def _start(self, index: int) -> int:
        """Where an answer begins: behind a prompt of text, or with the prompt that is echoed."""
        request = self.ask.requests[index // self.ask.n]
        return 0 if request.echo or not isinstance(request.prompt, str) else len(request.prompt)

    def first(self, index: int) -> list[JsonObject]:
        return []

    def event(self, index: int, event: Event) -> list[JsonObject]:
        match event:
            case Delta(text=text, tokens=tokens) | CallDelta(arguments=text, tokens=tokens):
                choice = self._choice(index, text, None, tokens, self._start(index))
                return [self._head([choice])]
            case Prefill() if self.ask.progress:
                choice = self._choice(index, "", None, (), self._start(index))
                return [{**self._head([choice]), "prompt_progress": progress(event)}]
            case Finish() | _:
                return []

    def last(self, index: int, reply: Reply) -> list[JsonObject]:
        # Of a token that ends an echoed prompt's answer at once only the logprob is sent.
        tokens = reply.tokens[self._sent.get(index, len(reply.tokens)) :]
        choice = self._choice(index, "", reply.finish_reason, tokens, self._start(index))
        return [{**self._head([choice]), "timings": timings(reply)}]

    def total(self, usage: JsonObject) -> JsonObject:
        return {**self._head([]), "usage": usage}

    def whole(self, replies: Sequence[Reply], usage: JsonObject) -> JsonObject:
        choices = [
            self._choice(i, reply.text, reply.finish_reason, reply.tokens, self._start(i))
            for i, reply in enumerate(replies)
        ]
        return {**self._head(choices), "usage": usage, "timings": timings(replies[0])}


def _logprobs(tokens: Sequence[Token], offsets: Offsets, first: bool) -> JsonObject:
    """Four lists with an entry for each token; the first of a text has nothing before it."""
    unknown = [first and i == 0 and t.logprob is None for i, t in enumerate(tokens)]
    return {
        "tokens": [token_text(t.bytes) for t in tokens],
        "token_logprobs": [
            None if u else _number(t.logprob) for t, u in zip(tokens, unknown, strict=True)
        ],
        "top_logprobs": [None if u else _tops(t) for t, u in zip(tokens, unknown, strict=True)],
        "text_offset": [offsets.of(t) for t in tokens],
    }


def _tops(token: Token) -> JsonObject:
    """Alternatives by their text; the token itself is always among them."""
    found: JsonObject = {token_text(token.bytes): _number(token.logprob)}
    for top in token.top:
        text, value = token_text(top.bytes), _number(top.logprob)
        known = found.get(text)
        found[text] = max(value, known) if isinstance(known, float) else value
    return found


def _number(logprob: float | None) -> float:
    return UNLIKELY if logprob is None else logprob
