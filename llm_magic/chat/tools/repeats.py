"""Repeated tool calls within one turn.

A small model often makes the same call again although it has the result. A call that has given the
same result twice, or that was refused, is answered from the record: it neither runs nor asks for
approval again, and the model reads that it has the result already. When the model repeats the call
even then, the turn offers no more tools, so that the model answers in words.
"""

import json
from dataclasses import replace

from llm_magic.events import ToolCall, ToolRecord

from ..parsing.syntax import call_arguments

REPEATED = "repeated"  # status of a record that was answered from an earlier one
RUNS = 2  # equal results after which a call counts as known
FINAL = frozenset(("refused", "invalid", "unknown"))  # known at once: a person or a rule decided


class Repeats:
    """The calls of one turn and their results.

    exhausted: the model repeated a call after it was told that the result is known.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[ToolRecord]] = {}
        self._told: set[tuple[str, str]] = set()
        self.exhausted = False

    def add(self, record: ToolRecord) -> None:
        """Note a call that was run or refused."""
        self._records.setdefault(_key(record.call), []).append(record)

    def answer(self, call: ToolCall, round: int) -> ToolRecord | None:
        """The record for a call whose result is known, or None where it has to run.

        Args:
            call: The call that the model makes.
            round: The round of the turn, for the record.
        """
        key = _key(call)
        records = self._records.get(key, [])
        if not _known(records):
            return None
        self.exhausted = key in self._told
        self._told.add(key)
        last = records[-1]
        note = "You already made this call. It was not run again. Its result was:"
        return replace(
            last, round=round, call=call, status=REPEATED, approval="auto", seconds=0.0,
            waited=0.0, stdout="", result=f"{note}\n{last.result}",
        )  # fmt: skip


def _known(records: list[ToolRecord]) -> bool:
    if not records:
        return False
    if records[-1].status in FINAL:
        return True
    results = [(r.status, r.result) for r in records[-RUNS:]]
    return len(results) == RUNS and len(set(results)) == 1 and records[-1].status == "ok"


def _key(call: ToolCall) -> tuple[str, str]:
    """Name and arguments; the order of keys and white space do not count."""
    try:
        arguments = json.dumps(call_arguments(call), sort_keys=True)
    except ValueError:
        arguments = call.arguments
    return call.name, arguments
