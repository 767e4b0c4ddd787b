"""The views of a reply as types: what the ui layer provides and `Reply` offers as methods.

The protocols are generic in the reply's type, so this module does not import `Reply` and `Reply`
can import it.
"""

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

from ..events import ToolRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Bundle = dict[str, Any]  # MIME type -> data, as Jupyter displays it
MimeTypes = Container[str] | None


class View(Protocol):
    """A static view: a notebook shows its HTML, a terminal its text."""

    plain: str

    @property
    def html(self) -> str: ...

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle: ...


class TraceView(View, Protocol):
    """The tool calls of a reply."""

    def to_json(self) -> str:
        """The records as a JSON array, one object per call."""
        ...


class LiveView(Protocol[R_co]):
    """The interactive view. `reply` has all branches that were made in it."""

    @property
    def reply(self) -> R_co: ...


class TokenRow(TypedDict):
    """One token in `Reply.to_frame()`."""

    token: str
    id: int | None
    kind: str
    logprob: float | None
    p: float | None
    rank: int | None
    entropy: float | None
    at: float
    top: list[tuple[str, float | None]]


class Views(Protocol[R]):
    """All views of a reply. `llm_magic.ui.reply_methods` is the implementation."""

    def mimebundle(
        self, reply: R, include: MimeTypes = None, exclude: MimeTypes = None
    ) -> tuple[Bundle, Bundle]: ...
    def heatmap(self, reply: R, *, opened: bool = True) -> View: ...
    def alternatives(self, reply: R, i: int) -> View: ...
    def choice_bars(self, reply: R) -> View: ...
    def plot(
        self, reply: R, what: str = "speed", ax: "Axes | None" = None, dark: bool | None = None
    ) -> "Axes": ...
    def prompt_view(self, reply: R) -> View: ...
    def trace(self, records: Sequence[ToolRecord]) -> TraceView: ...
    def to_frame(self, reply: R) -> "DataFrame | list[TokenRow]": ...
    def branch(
        self, reply: R, i: int, alternative: str | int | None = None, **options: Any
    ) -> R: ...
    def inspection(self, reply: R) -> Any: ...
    def causes(self, reply: R, of: Any, parts: str, **options: Any) -> Any: ...
    def explore(self, reply: R, **options: Any) -> LiveView[R]: ...
