"""Chunks of a server's stream, and whole answers, as items.

The fields are those of OpenAI and their variants: null or missing contents, choices that are empty,
reasoning as `reasoning_content` or `reasoning`, counts on every chunk, llama-server's progress and
times. What is missing is left out; nothing is made up.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llm_magic.events import FinishReason, Prefill, Timings, Token

from .items import CallPiece, Counts, Ended, Item, Source, Text, Times
from .logprobs import aligned, split, tokens_of

_REASONS: Mapping[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}


class Reader:
    """Reads the chunks of one stream.

    Args:
        where: The address for people.
        top: How many alternatives per token were asked for; None where no logprobs were.
    """

    def __init__(self, where: str, top: int | None) -> None:
        self._where = where
        self._top = top
        self._named: str | None = None
        self._held: tuple[Token, ...] = ()  # tokens whose text has not come yet

    def read(self, chunk: Mapping[str, Any], at: float = 0.0) -> Iterator[Item]:
        """The items of a chunk, or of a whole answer.

        Args:
            chunk: The JSON object.
            at: Seconds since the request.
        """
        model = chunk.get("model")
        if isinstance(model, str) and model != self._named:
            self._named = model
            yield Source(self._where, model)
        if (progress := _mapping(chunk.get("prompt_progress"))) is not None:
            yield _prefill(progress)
        choices = chunk.get("choices")
        choice = _mapping(choices[0]) if isinstance(choices, list) and choices else None
        if choice is not None:
            yield from self._choice(choice, at)
        if (usage := _mapping(chunk.get("usage"))) is not None:
            yield counts(usage)
        if (times := _mapping(chunk.get("timings"))) is not None and times.get("predicted_n"):
            yield Times(_timings(times))

    def _choice(self, choice: Mapping[str, Any], at: float) -> Iterator[Item]:
        said = _mapping(choice.get("delta")) or _mapping(choice.get("message")) or {}
        reasoning = _text(said.get("reasoning_content")) or _text(said.get("reasoning"))
        content = _text(said.get("content")) + _text(said.get("refusal"))
        content = content or _text(choice.get("text"))
        calls = list(_calls(said))
        tokens = tokens_of(choice.get("logprobs"), self._top, at, choice.get("token_ids"))
        tokens, self._held = (*self._held, *tokens), ()
        if not reasoning and not content and not calls:
            self._held = tokens  # half a character, markup of a call, or the end token
        elif not reasoning and not content:
            yield from (CallPiece(*call, tokens if i == 0 else ()) for i, call in enumerate(calls))
        else:
            while tokens and not tokens[-1].bytes:
                tokens = tokens[:-1]  # the end token, which is no part of the answer
            tokens = aligned((reasoning + content).encode("utf-8", "replace"), tokens, at)
            first, rest = split(tokens, len(reasoning.encode("utf-8", "replace")))
            if reasoning:
                yield Text("reasoning", reasoning, first)
            if content:
                yield Text("answer", content, rest)
            yield from (CallPiece(*call) for call in calls)
        if (reason := choice.get("finish_reason")) is not None:
            if markup := tuple(token for token in self._held if token.bytes):
                self._held = ()
                yield Text("answer", "", markup)  # of a call, which the server took out
            yield Ended(finish_reason(reason))


def finish_reason(reason: object) -> FinishReason:
    """A server's reason as one of ours; whatever is not known ended the answer.

    >>> finish_reason("length"), finish_reason("eos"), finish_reason("function_call")
    ('length', 'stop', 'tool_calls')
    """
    return _REASONS.get(reason, "stop") if isinstance(reason, str) else "stop"


def counts(usage: Mapping[str, Any]) -> Counts:
    """The counts of a usage object; 0 for what is missing or no number.

    >>> counts({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": "x"}})
    Counts(prompt=5, cached=0, completion=0)
    """
    details = _mapping(usage.get("prompt_tokens_details")) or {}
    cached = details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    return Counts(
        _count(usage.get("prompt_tokens")), _count(cached), _count(usage.get("completion_tokens"))
    )


def _calls(said: Mapping[str, Any]) -> Iterator[tuple[int, str | None, str | None, str]]:
    """Index, id, name and arguments of the calls that are objects."""
    listed = said.get("tool_calls")
    entries: Sequence[object] = listed if isinstance(listed, list) else ()
    if (old := _mapping(said.get("function_call"))) is not None:
        entries = [{"index": 0, "function": old}]
    for position, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        function = _mapping(entry.get("function")) or {}
        index = entry.get("index")
        yield (
            index if isinstance(index, int) and not isinstance(index, bool) else position,
            _text(entry.get("id")) or None,
            _text(function.get("name")) or None,
            _arguments(function.get("arguments")),
        )


def _arguments(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _prefill(progress: Mapping[str, Any]) -> Prefill:
    total, cached = _count(progress.get("total")), _count(progress.get("cache"))
    return Prefill(min(_count(progress.get("processed")), total), total, min(cached, total))


def _timings(times: Mapping[str, Any]) -> Timings:
    return Timings(
        prefill=_number(times.get("prompt_ms")) / 1e3,
        decode=_number(times.get("predicted_ms")) / 1e3,
        prefill_tps=_number(times.get("prompt_per_second")),
        decode_tps=_number(times.get("predicted_per_second")),
    )


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _text(value: object) -> str:
    """A text; of a list of parts the texts of its parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, Mapping))
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    known = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if known and isinstance(value, int) else 0


def _number(value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    found = float(value) if known and isinstance(value, int | float) else 0.0
    return found if 0.0 <= found < float("inf") else 0.0
