"""Fixtures of tests without weights: a shell with the extension, a model that is a script."""

from collections.abc import Callable, Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import extension


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell()
    extension.load_ipython_extension(shell)
    yield shell
    extension.unload_ipython_extension(shell)


@pytest.fixture
def as_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Scripted], None]]:
    """Makes a scripted model the default one while the test runs."""

    def add(scripted: Scripted) -> None:
        hub.add("fake", LLM(scripted))
        monkeypatch.setattr(hub, "default", "fake")

    yield add
    hub.unload("fake")


@pytest.fixture
def script(as_default: Callable[[Scripted], None]) -> Scripted:
    """A model that answers anything; the default one."""
    scripted = Scripted(lambda request: "An **answer**.")
    as_default(scripted)
    return scripted
