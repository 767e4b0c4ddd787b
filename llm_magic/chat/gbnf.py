"""Grammars in GBNF (llama.cpp's form) as Lark grammars.

Comes in: the text of a grammar in either form. Goes out: Lark text as llguidance reads it. It must
not know tokens.
"""

from ..errors import SchemaError


def as_lark(text: str) -> str:
    """A Lark grammar from Lark or GBNF. SchemaError when it is empty or cannot be read."""
    from llguidance.gbnf_to_lark import any_to_lark

    if not isinstance(text, str) or not text.strip():
        raise SchemaError("the grammar is empty")
    try:
        return str(any_to_lark(text))
    except Exception as e:  # the GBNF reader raises whatever its parser meets
        raise SchemaError(f"the grammar cannot be read: {e}") from None
