"""The changes of a growing Markdown text, as HTML patches for a page.

A patch `[block, keep, add]` means: the HTML of block number `block` is the first `keep` UTF-16
units of what it was, followed by `add`. Finished blocks are rendered once and never sent again, so
the bytes per token do not grow with the text.
"""

import re
from collections.abc import Callable

from llm_magic.prefix import common_prefix

Patch = tuple[int, int, str]

_FENCE = re.compile(r" {0,12}(?:[-*+>] +|\d+[.)] +)*(`{3,}|~{3,})(.*)")
_LIST = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")


class MarkdownDiff:
    """The HTML blocks that a page has of one text. Not thread-safe: one thread owns it."""

    def __init__(self, render: Callable[[str], str]) -> None:
        self._render = render
        self._start = 0  # where the open block begins in the text
        self._text = ""
        self.blocks: list[str] = []  # HTML, the open block last
        self._open = False  # blocks[-1] belongs to the open block

    def update(self, text: str) -> list[Patch]:
        """Patches that bring the page from the last text to this one. The text may only grow."""
        if text == self._text:
            return []
        self._text = text
        patches = []
        for end in _block_ends(text, self._start):
            patches += self._show(text[self._start : end])
            self._start, self._open = end, False
        if text[self._start :].strip():
            patches += self._show(text[self._start :])
            self._open = True
        return patches

    def settle(self, text: str) -> list[Patch]:
        """The last patches: afterwards the page shows exactly what the whole text renders to."""
        patches = self.update(text)
        whole = self._render(text) if text.strip() else ""
        if "".join(self.blocks) == whole:
            return patches
        # A construct reached over block borders (a link reference, a loose list): send it whole.
        patches = [(0, 0, whole)] + [(i, 0, "") for i in range(1, len(self.blocks))]
        self.blocks = [whole] + [""] * (len(self.blocks) - 1)
        return patches

    def _show(self, source: str) -> list[Patch]:
        html = self._render(source)
        if not self._open:
            self.blocks.append(html)
            self._open = True
            return [(len(self.blocks) - 1, 0, html)]
        old, self.blocks[-1] = self.blocks[-1], html
        if old == html:
            return []
        keep = common_prefix(old, html)
        return [(len(self.blocks) - 1, utf16_length(html[:keep]), html[keep:])]


def utf16_length(text: str) -> int:
    """Length as JavaScript counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _block_ends(text: str, start: int) -> list[int]:
    """Offsets in `text` after `start` at which a Markdown block is certainly complete.

    A blank line ends a block unless a fence is open or the next line may belong to the same list.
    """
    ends: list[int] = []
    fence = ""
    blank = False
    in_list = False
    at = start
    while at < len(text):
        line = text[at : text.find("\n", at) + 1]
        if not line:
            # An unfinished line may still turn into a list item or a fence: only letters are safe.
            if blank and not fence and text[at].isalpha():
                ends.append(at)
            break
        if not line.strip():
            blank = True
        else:
            if blank and not fence and at > start and not _continues(line, in_list):
                ends.append(at)
                in_list = False
            blank = False
            in_list = in_list or bool(_LIST.match(line))
            fence = _fence_after(line, fence)
        at += len(line)
    return ends


def _continues(line: str, in_list: bool) -> bool:
    """Whether a line after a blank line may belong to the block above it."""
    return line[0] in " \t" or (in_list and bool(_LIST.match(line)))


def _fence_after(line: str, fence: str) -> str:
    """The fence that is open after this line; "" when none is."""
    found = _FENCE.match(line)
    if not found:
        return fence
    marks, rest = found[1], found[2]
    if not fence:
        return "" if marks[0] == "`" and "`" in rest else marks
    closes = marks[0] == fence[0] and len(marks) >= len(fence) and not rest.strip()
    return "" if closes else fence
