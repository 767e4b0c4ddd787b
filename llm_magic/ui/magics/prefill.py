"""Answers that begin with given words.

Comes in: a model and the words. Goes out: a model for one turn of a conversation, which the history
will remember as having said those words itself. Replies hold the new text only.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.chat.stream import Stream
from llm_magic.events import Event, Message
from llm_magic.llm import LLM


class Prefilled:
    """A conversation.Speaker whose first round goes on from the given words."""

    def __init__(self, llm: LLM, words: str) -> None:
        self._llm, self._words = llm, words

    @property
    def model(self) -> str:
        return self._llm.model

    def stream(self, prompt: Any, **options: Any) -> Stream:
        if prompt[-1].role != "user":  # a later round, which answers calls
            later: Stream = self._llm.stream(prompt, **options)
            return later
        begun = (*prompt, Message("assistant", self._words))
        return _Begun(self._llm.stream(begun, **options), self._words)


class _Begun:
    """The stream, with the words in front of its reply: that is what enters the history."""

    def __init__(self, inner: Stream, words: str) -> None:
        self._inner, self._words = inner, words

    @property
    def reply(self) -> Reply:
        reply = self._inner.reply
        return replace(reply, text=self._words + reply.text)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._inner)

    def cancel(self, reason: str = "cancelled", keep: int | None = None) -> None:
        self._inner.cancel(reason, keep)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> "_Begun":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
