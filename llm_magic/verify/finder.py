"""The model that a record names, found by the hash of its file.

A notebook is not trusted: nothing is fetched or opened because a record names it, but models that
the package knows by name, that are loaded, or that the caller gives.
"""

from collections.abc import Sequence

from .. import models
from ..chat.origin import Identified, Origin
from ..chat.record import Record
from ..errors import LLMError
from ..hub import OnProgress, hub
from ..llm import LLM
from .replay import needed


class Finder:
    """Finds models by the hash of their file.

    Args:
        given: Names or paths of models that may be loaded.
        on_progress: Called while one is downloaded or loaded.
    """

    def __init__(self, given: Sequence[str] = (), on_progress: OnProgress | None = None) -> None:
        self._given = tuple(given)
        self._say = on_progress

    def find(self, record: Record) -> tuple[LLM, Origin] | str:
        """The model of a record, with room for it; or why there is none."""
        for llm in hub.loaded():
            if (origin := _is(llm, record)) is not None:
                return self._roomy(llm, origin, record)
        for name in (*self._given, *self._known(record.model)):
            try:
                llm = hub.load(name, ctx=needed(record), on_progress=self._say)
            except LLMError as e:
                return f"{name} cannot be loaded: {e}"
            if (origin := _is(llm, record)) is not None:
                return self._roomy(llm, origin, record)
        return self._missing(record)

    def _known(self, name: str) -> list[str]:
        return [known.name for known in models.known() if known.name == name]

    def _missing(self, record: Record) -> str:
        digest = record.sha256[:12]
        if self._known(record.model):
            return (
                f"{record.model} is another file here than the one that made the reply "
                f"(SHA-256 {digest}…); give that one with --model FILE"
            )
        return f"{record.model} is not here (SHA-256 {digest}…); give its file with --model FILE"

    def _roomy(self, llm: LLM, origin: Origin, record: Record) -> tuple[LLM, Origin] | str:
        grow = getattr(llm.provider, "grow", None)
        try:
            if callable(grow):
                grow(needed(record), None, None)
        except LLMError as e:
            return f"{record.model} has no room for it: {e}"
        return llm, origin


def _is(llm: LLM, record: Record) -> Origin | None:
    if not isinstance(llm.provider, Identified):
        return None
    origin = llm.provider.origin()
    return origin if origin.file.sha256() == record.sha256 else None
