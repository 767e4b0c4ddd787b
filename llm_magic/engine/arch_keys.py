"""The keys of one architecture in a file's metadata, checked as they are read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

Metadata = Mapping[str, object]
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Keys:
    """Reads `<architecture>.<key>`, or refuses with the key's name."""

    architecture: str
    metadata: Metadata

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; a list with one entry per layer must repeat one value."""
        value = self.metadata.get(self.name(key), default)
        if isinstance(value, list | tuple | np.ndarray) and len(value):
            if len(distinct := {str(v) for v in value}) > 1:
                listed = ", ".join(v[:80] for v in sorted(distinct)[:8])
                raise UnsupportedModelError(
                    f"{self.name(key)} differs between layers ({listed}): not supported"
                )
            value = value[0]
        if isinstance(value, np.integer):
            value = int(value)
        if value is None:
            raise GGUFError(f"metadata lacks {self.name(key)}")
        # Above int32 no buffer of ours could index it.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise GGUFError(f"{self.name(key)} must be a positive integer, not {quoted(value)}")
        return value

    def names_one_of(self, key: str, other: str) -> int:
        """A positive integer under the first of two keys that the file has."""
        return self.count(key if self.name(key) in self.metadata else other)

    def real(self, key: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self.metadata.get(self.name(key), default)
        if value is None:
            raise GGUFError(f"metadata lacks {self.name(key)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
            raise GGUFError(f"{self.name(key)} must be a positive number, not {quoted(value)}")
        return float(value)  # type: ignore[arg-type]

    def optional(self, key: str) -> float | None:
        """A positive number, or None where the key is missing or 0 (both mean: not used)."""
        value = self.metadata.get(self.name(key))
        unused = value is None or (isinstance(value, int | float) and value == 0)
        return None if unused else self.real(key)
