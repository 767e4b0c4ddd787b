"""Bytes of tokens in, text out: UTF-8 decoding that may stop in the middle of a character.

What comes in: the bytes of tokens, in order. What goes out: text that never ends in half a
character. Standard library only, so that the chat layer and the engine can share it. It must not
know what a token is: it sees bytes.
"""

import codecs


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
