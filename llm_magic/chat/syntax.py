"""Markup that models write around reasoning and tool calls.

What comes in: a template's text (to find out which markup a model uses) or generated text. What
goes out: `ReasoningTags` and `Syntax` values. It must not know tokens, engines or streams.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The pair of strings between which a model writes its reasoning."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a model writes tool calls."""

    name: str
