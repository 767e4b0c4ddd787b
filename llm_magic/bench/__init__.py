"""Speed of this engine and of its peers, measured side by side in one run.

`run` returns a `Report`: numbers, machine and versions, as a table or as JSON. In a notebook
`%llm bench` plots it.

    python -m llm_magic bench [MODEL] [--peer NAME]... [--threads N] [--json] [--quick]
"""

from .command import main
from .measure import available, run
from .report import OURS, Report, Result, table
from .subjects import PEERS

__all__ = ["OURS", "PEERS", "Report", "Result", "available", "main", "run", "table"]
