"""What the check of a notebook found, cell by cell."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["same", "close", "differs", "unchecked"]
STATUS: dict[Verdict, int] = {"same": 0, "close": 0, "differs": 1, "unchecked": 2}
TOLERANCE = 0.005  # nats between the log-probabilities of two variants of the kernels


@dataclass(frozen=True, slots=True)
class Check:
    """One reply of a notebook, or one output that should hold one.

    Attributes:
        cell: Number of the cell, from 0.
        source: The first line of the cell.
        verdict: "same": every token and every bit; "close": another variant evaluated it, with the
            same tokens and log-probabilities within TOLERANCE; "differs"; "unchecked".
        findings: What differs, each with its place; or why it cannot be checked.
        model: The model's name.
        made: The variant that made the reply.
        here: The variant that generated it again.
        tokens: How many tokens were compared.
        worst: The largest difference of two log-probabilities in nats.
        prompt: How many tokens the prompt has.
    """

    cell: int
    source: str
    verdict: Verdict
    findings: tuple[str, ...] = ()
    model: str = ""
    made: str = ""
    here: str = ""
    tokens: int = 0
    worst: float = 0.0
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The check of one notebook.

    >>> Report("a.ipynb", (Check(0, "%%llm", "same"), Check(1, "%%llm", "unchecked"))).status
    2
    >>> Report("a.ipynb", ()).status
    2

    Attributes:
        name: The notebook's file.
        checks: Every reply, in the order of the cells.
        others: Cells that show something else, which was not looked at.
    """

    name: str
    checks: tuple[Check, ...]
    others: int = 0

    @property
    def status(self) -> int:
        """Exit status: 0 all replies are right, 1 one differs, 2 one cannot be checked, or there is
        none."""
        found = {STATUS[check.verdict] for check in self.checks}
        if 1 in found:
            return 1
        return 2 if 2 in found or not found else 0

    def count(self, verdict: Verdict) -> int:
        """How many replies have this verdict."""
        return sum(check.verdict == verdict for check in self.checks)
