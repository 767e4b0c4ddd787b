"""`%llm verify`: generate every reply of a saved notebook again, and show what differs."""

from pathlib import Path

from IPython.core.error import UsageError

from llm_magic.events import Progress
from llm_magic.verify.finder import Finder
from llm_magic.verify.report import Report
from llm_magic.verify.run import verify

from ..views import mime, records, verified
from . import command_line, screens
from .session import Notebook, command_parser

USAGE = "NOTEBOOK.ipynb [-m MODEL]..."


class VerifiedView(mime.Fragment):
    """A report as a notebook shows it. `report` has the checks, `status` the exit status."""

    def __init__(self, report: Report) -> None:
        shown = verified.fragment(report)
        super().__init__(shown.body, shown.plain)
        self.report = report
        self.status = report.status


def command(nb: Notebook, rest: str) -> VerifiedView:
    """Check a notebook's replies."""
    parser = command_parser(nb, "verify")
    parser.add_argument("notebook", nargs="?")
    parser.add_argument("-m", "--model", action="append", default=[])
    given = command_line.parse(parser, rest, f"%{parser.prog}")
    if given.notebook is None:
        raise UsageError(f"verify: which notebook? %{nb.magic_name} verify {USAGE}")
    screen = screens.screen(nb.shell, nb.look(), "verify")
    finder = Finder(given.model, screen.event)
    try:
        report = verify(
            Path(given.notebook).expanduser(), finder, records.differences,
            lambda done, total: screen.event(Progress("generating again", done, total)),
        )  # fmt: skip
    except BaseException:
        screen.close("nothing was checked")
        raise
    screen.close("")
    return VerifiedView(report)
