"""Bytes of tokens in, text out: UTF-8 decoding that may stop in the middle of a character.

What comes in: the bytes of tokens, in order, or text of others. What goes out: text that never ends
in half a character, and that UTF-8 can carry. Standard library only, so that all layers can share
it. It must not know what a token is: it sees bytes.
"""

import codecs
from typing import Any


def whole(text: str) -> str:
    """The text as UTF-8 can carry it: a lone surrogate becomes U+FFFD, two that are the halves of a
    character become that character.

    JSON can spell half a character, and a file name of the system can hold one; a message to a
    page cannot.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def whole_json(value: Any) -> Any:
    """A value of JSON with `whole` done to all of its texts, keys included."""
    match value:
        case str():
            return whole(value)
        case dict():
            return {whole_json(key): whole_json(item) for key, item in value.items()}
        case list():
            return [whole_json(item) for item in value]
    return value


class StreamDecoder:
    """Decodes a stream of byte pieces; the same bytes cut anywhere give the same text.

    Bytes that can never become a character come out as U+FFFD at once, one for each maximal
    ill-formed part, as `bytes.decode(errors="replace")` does. An incomplete character waits for its
    rest and becomes one U+FFFD at `flush`.

    strip_space: drop one leading space of the whole stream, at most once. Only for a decoder that
        starts where the text itself starts and whose tokenizer put that space there; a continuation
        keeps its spaces.
    """

    __slots__ = ("_decoder", "_strip")

    def __init__(self, strip_space: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = strip_space

    def push(self, piece: bytes) -> str:
        """The text that `piece` completes; "" while a character is incomplete."""
        return self._start(self._decoder.decode(piece))

    def flush(self) -> str:
        """The end of the stream: "" or one U+FFFD. The decoder is then as good as new.

        The dropped space is not dropped again: what follows continues the same text.
        """
        text = self._start(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text

    @property
    def pending(self) -> bytes:
        """The bytes that wait for the rest of their character."""
        return self._decoder.getstate()[0]

    def _start(self, text: str) -> str:
        if not self._strip or not text:
            return text
        self._strip = False
        return text.removeprefix(" ")
