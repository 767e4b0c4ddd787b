"""Text that can be carried and shown: UTF-8 decoding in pieces, surrogates, control characters.

Standard library only, so that all layers can share it.
"""

import codecs
import reprlib
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


def line_ends(text: str) -> str:
    """The text with every line end as a line feed. Windows and old files have others.

    >>> line_ends("a\\r\\nb\\rc")
    'a\\nb\\nc'
    """
    return text.replace("\r\n", "\n").replace("\r", "\n")


def question_text(text: str) -> str:
    """What a person asks, from a cell or a chat: without the line ends behind it.

    A chat model answers another question when an empty line follows the first one.

    >>> question_text("Who?\\r\\n\\r\\n")
    'Who?'
    """
    return line_ends(text).rstrip("\n")


def whole_json(value: object) -> Any:
    """A value of JSON with `whole` done to all of its texts, keys included."""
    match value:
        case str():
            return whole(value)
        case dict():
            return {whole_json(key): whole_json(item) for key, item in value.items()}
        case list():
            return [whole_json(item) for item in value]
    return value


_QUOTES = reprlib.Repr()
_QUOTES.maxstring = _QUOTES.maxother = _QUOTES.maxlong = 80


def quoted(value: object) -> str:
    """A value of a file for a message, as Python writes it. A long one is cut in its middle.

    >>> quoted("gpt5"), len(quoted("x" * 10_000_000))
    ("'gpt5'", 80)
    """
    return _QUOTES.repr(value)


# What a terminal obeys: C0 but for tab and line feed, DEL, C1. C0 and DEL have pictures in Unicode.
_CONTROLS = {
    code: chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"\\x{code:02x}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\t\n"
}


def for_terminal(text: str) -> str:
    r"""Text of a model, a tool or a file for a terminal: control characters are shown, not obeyed.

    >>> for_terminal("\x1b[2Jgone\x07")
    '␛[2Jgone␇'
    >>> for_terminal("one\r\ntwo\rthree")
    'one\ntwo␍three'
    """
    return text.replace("\r\n", "\n").translate(_CONTROLS)


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
