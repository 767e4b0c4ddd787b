"""A JSON schema in the keywords that the grammar compiler knows.

Comes in: a valid JSON schema. Goes out: a schema whose values are all valid under the first. It
must not know tokens.
"""

from typing import Any


def narrowed(schema: Any) -> dict[str, Any]:
    """The schema as an object (a bool schema becomes one), without the compiler's own options."""
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return {k: v for k, v in schema.items() if k != "x-guidance"}
