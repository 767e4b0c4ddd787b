"""Types of the parts of a JSON schema, and of the ways to one."""

from typing import Any

# A part of a schema: True, False or an object. What is in it is not known before it is looked at.
Subschema = Any
Keyword = Any  # the value of a keyword
Path = tuple[str | int, ...]  # keys from the whole schema down to a part
Resolver = Any  # of the package `referencing`, which keeps its type to itself
