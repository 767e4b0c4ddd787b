"""What of a cell is the prompt, and what an interrupt leaves where no stream runs."""

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from llm_magic.errors import Interrupted
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import screens


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("end", ["\n", "\n\n", "\n\n\n", "\r\n\r\n"])
def test_line_ends_that_end_a_cell_are_no_part_of_a_question(
    shell: InteractiveShell, script: Scripted, monkeypatch: Any, end: str, terminal: bool
) -> None:
    monkeypatch.setattr(screens, "is_terminal", lambda shell: terminal)
    # F203: a notebook written on Windows asks the same
    shell.run_cell_magic("llm", "-q", "  one\r\n\ntwo " + end)
    (message,) = script.requests[-1].prompt
    assert message.text == "  one\n\ntwo "


@pytest.mark.parametrize(("terminal", "kept"), [(False, "A:\n"), (True, "A:")])
def test_a_text_to_continue_keeps_its_own_line_ends(
    shell: InteractiveShell, script: Scripted, monkeypatch: Any, terminal: bool, kept: str
) -> None:
    monkeypatch.setattr(screens, "is_terminal", lambda shell: terminal)
    shell.run_cell_magic("llm", "-q --complete", "A:\n\n")
    assert script.requests[-1].prompt == kept


def test_an_interrupt_outside_a_stream_is_one_line_too(
    shell: InteractiveShell, script: Scripted, monkeypatch: Any
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", interrupted)
    with pytest.raises(Interrupted) as caught:
        shell.run_cell_magic("llm", "-q", "hello\n")
    assert caught.value._render_traceback_() == ["Interrupted: interrupted"]
