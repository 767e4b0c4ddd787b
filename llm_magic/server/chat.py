"""Chats as OpenAI's objects: chunks of a stream, and whole completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..chat.reply import Reply
from ..events import CallDelta, Delta, Event, Prefill, Token
from ..json_types import JsonObject
from .asks import Ask
from .shape import chat_logprobs, progress, timings


@dataclass(frozen=True, slots=True)
class Chat:
    """The objects that one chat is answered with. id, created and model are the same in all."""

    id: str
    created: int
    model: str
    ask: Ask

    def _chunk(
        self,
        index: int,
        delta: JsonObject,
        finish: str | None = None,
        tokens: Sequence[Token] = (),
        more: JsonObject | None = None,
    ) -> JsonObject:
        choice: JsonObject = {"index": index, "delta": delta, "finish_reason": finish}
        if self.ask.logprobs is not None and tokens:
            choice["logprobs"] = chat_logprobs(tokens)
        head: JsonObject = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }
        return head | more if more else head

    def first(self, index: int) -> list[JsonObject]:
        return [self._chunk(index, {"role": "assistant", "content": ""})]

    def event(self, index: int, event: Event) -> list[JsonObject]:
        match event:
            case Delta(kind, text, tokens):
                name = "content" if kind == "answer" else "reasoning_content"
                return [self._chunk(index, {name: text}, tokens=tokens)]
            case CallDelta():
                return [self._chunk(index, {"tool_calls": [_piece(event)]}, tokens=event.tokens)]
            case Prefill() if self.ask.progress:
                return [self._chunk(index, {}, more={"prompt_progress": progress(event)})]
            case _:
                return []

    def last(self, index: int, reply: Reply) -> list[JsonObject]:
        return [self._chunk(index, {}, reply.finish_reason, more={"timings": timings(reply)})]

    def total(self, usage: JsonObject) -> JsonObject:
        return {**self._chunk(0, {}), "choices": [], "usage": usage}

    def whole(self, replies: Sequence[Reply], usage: JsonObject) -> JsonObject:
        return {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(i, reply) for i, reply in enumerate(replies)],
            "usage": usage,
            "timings": timings(replies[0]),
        }

    def _choice(self, index: int, reply: Reply) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        logprobs = chat_logprobs(reply.tokens) if self.ask.logprobs is not None else None
        return {
            "index": index,
            "message": message,
            "finish_reason": reply.finish_reason,
            "logprobs": logprobs,
        }


def _piece(event: CallDelta) -> JsonObject:
    """A piece of a call: its first one has the id and the name, later ones only arguments."""
    function: JsonObject = {"arguments": event.arguments}
    piece: JsonObject = {"index": event.index}
    if event.id is not None:
        piece |= {"id": event.id, "type": "function"}
    if event.name is not None:
        function = {"name": event.name, **function}
    return {**piece, "function": function}
