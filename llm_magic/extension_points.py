"""Extension points: what an upper layer provides to a lower one that must not import it.

The lower layer reads a point, the package's top fills it with a loader. Nothing is imported until
the point is read for the first time. Standard library only.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ExtensionPoint(Generic[T]):
    """A value that another layer provides, loaded on first use.

    >>> greeting = ExtensionPoint[str]("a greeting")
    >>> greeting.register(lambda: "hello")
    >>> greeting.load()
    'hello'
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._loader: Callable[[], T] | None = None

    def register(self, loader: Callable[[], T]) -> None:
        """Set the loader; a later call replaces it."""
        self._loader = loader

    def load(self) -> T:
        """The value from the loader.

        Raises:
            RuntimeError: nothing was registered.
        """
        if self._loader is None:
            raise RuntimeError(f"nothing provides {self._what}: import llm_magic first")
        return self._loader()


# `chat.view_protocols.Views`: how a reply is shown. The package registers it.
VIEWS: ExtensionPoint[Any] = ExtensionPoint("the views of a reply")
# `ui.views.numbers`: how decisions, reports of evaluations and samples are shown.
NUMBER_VIEWS: ExtensionPoint[Any] = ExtensionPoint("the views of decisions")

# `ui.views.inside`: how what was found inside a model is shown.
INSIDE_VIEWS: ExtensionPoint[Any] = ExtensionPoint("the views of a model's inside")

# `ui.tables`: how a run over a table and what came of it are shown. The package registers it.
TABLES: ExtensionPoint[Any] = ExtensionPoint("the views of a table")

# `server.running.serve`: what `LLM.serve` starts. The package registers it.
SERVE: ExtensionPoint[Callable[..., Any]] = ExtensionPoint("a server of models")

# `ui.views.divergence`: how the comparison of two models is shown.
DIVERGENCE_VIEW: ExtensionPoint[Any] = ExtensionPoint("the view of a comparison of models")
