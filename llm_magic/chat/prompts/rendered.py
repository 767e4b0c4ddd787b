"""A rendered prompt: its text, where messages lie in it, and marks that break control tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_magic.errors import TemplateError
from llm_magic.events import Message

# Unicode noncharacters first; private use after them, for texts that hold all of those.
_MARKS = (*range(0xFDD0, 0xFDF0), *range(0x100000, 0x101000))


@dataclass(frozen=True, slots=True)
class Segment:
    """Where a message's text lies in `Rendered.plain`."""

    role: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `tail`: its end from where the assistant's turn begins, without marks.

    in_reasoning: the prompt has opened the reasoning part that the answer continues.
    """

    text: str
    mark: str
    segments: tuple[Segment, ...] = ()
    tail: str = ""
    in_reasoning: bool = False

    @property
    def plain(self) -> str:
        return self.text.replace(self.mark, "") if self.mark else self.text


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in value.items():
                yield from _texts(key)
                yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def free_marks(value: object) -> tuple[str, str]:
    """Two characters that no text contains, neither as they are nor as a \\u escape."""
    texts = "\0".join(_texts(value))
    lower = texts.lower() if "\\u" in texts or "\\U" in texts else ""
    free = (chr(c) for c in _MARKS if chr(c) not in texts and f"\\u{c:04x}" not in lower)
    try:
        return next(free), next(free)
    except StopIteration:
        raise TemplateError("the messages hold every character that could be a mark") from None


def segments_of(messages: Sequence[Message], plain: str) -> tuple[Segment, ...]:
    """The messages' texts in the prompt, in order; one that the template changed is left out."""
    out, at = [], 0
    for message in messages:
        text = message.text if message.text in plain[at:] else message.text.strip()
        start = plain.find(text, at) if text else -1
        if start >= 0:
            at = start + len(text)
            out.append(Segment(message.role, start, at))
    return tuple(out)
