"""Cells and commands run in an in-process shell; what they display is returned."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell


@contextmanager
def displays(shell: InteractiveShell) -> Iterator[list[dict[str, Any]]]:
    """The data of everything that is displayed inside, updates included."""
    own, shell.display_pub = shell.display_pub, CapturingDisplayPublisher()
    data: list[dict[str, Any]] = []
    try:
        yield data
    finally:
        data += [output["data"] for output in shell.display_pub.outputs]
        shell.display_pub = own


def cell(shell: InteractiveShell, line: str, body: str) -> list[dict[str, Any]]:
    """Run `%%llm` and return what it displayed."""
    with displays(shell) as data:
        shell.run_cell_magic("llm", line, body + "\n")
    return data


def command(shell: InteractiveShell, line: str) -> dict[str, Any]:
    """Run `%llm` and return the last thing that it displayed."""
    with displays(shell) as data:
        shell.run_line_magic("llm", line)
    return data[-1]
