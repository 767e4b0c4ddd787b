"""A griffe extension for the Python reference: examples of docstrings are shown as code.

An example that stands in the text of a docstring, outside of an `Example:` section, would be read
as Markdown: `>>>` as a quotation, `[...]` as a link.
"""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class ExamplesAsCode(Extension):
    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with every example at its left edge as a block of code."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
