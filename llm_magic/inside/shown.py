"""What a notebook can show of a model's inside."""

from collections.abc import Container
from typing import Any

from ..extension_points import INSIDE_VIEWS


class Shown:
    """An object with HTML for notebooks and a text for terminals."""

    __slots__ = ()

    @property
    def html(self) -> str:
        """The static HTML."""
        return str(INSIDE_VIEWS.load().view(self).html)

    @property
    def plain(self) -> str:
        """The text form."""
        return str(INSIDE_VIEWS.load().view(self).plain)

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(
        self, include: Container[str] | None = None, exclude: Container[str] | None = None
    ) -> dict[str, Any]:
        bundle: dict[str, Any] = INSIDE_VIEWS.load().view(self)._repr_mimebundle_(include, exclude)
        return bundle
