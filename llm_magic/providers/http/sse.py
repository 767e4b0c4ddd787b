"""Server-sent events of an answer, as JSON objects.

httpx-sse reads the format. What is added here: the text is UTF-8 whatever the headers say, an event
counts without the blank line at the end of the stream, a line has a limit, and what is no JSON
object is left out.
"""

import codecs
import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

import httpx
from httpx_sse import EventSource

from llm_magic.errors import RemoteError

_log = logging.getLogger(__name__)

MAX_EVENT = 64_000_000  # bytes without an end of line
DONE = "[DONE]"


class _Body:
    """The body of an answer for `EventSource`, which asks for its headers and its text."""

    headers: Mapping[str, str] = {"content-type": "text/event-stream"}

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    def iter_text(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        held = 0
        for piece in self._response.iter_bytes():
            held = held + len(piece) if b"\n" not in piece and b"\r" not in piece else 0
            if held > MAX_EVENT:
                raise RemoteError(f"the server sent {held:,} bytes without an end of line")
            if text := decoder.decode(piece):
                yield text
        yield decoder.decode(b"", True) + "\n\n"


def events(response: httpx.Response) -> Iterator[Mapping[str, Any] | None]:
    """The JSON objects of the stream; None for its end mark. An event "error" has the key "error".

    Comments and empty events are no events.
    """
    for event in EventSource(cast(httpx.Response, _Body(response))).iter_sse():
        data = event.data.strip()
        if data == DONE:
            yield None
            continue
        found = _object(data)
        if event.event == "error":
            yield found if found and "error" in found else {"error": found or data or "error"}
        elif found is not None:
            yield found
        elif data:
            _log.debug("an event that is no JSON object is ignored: %.100r", data)


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
