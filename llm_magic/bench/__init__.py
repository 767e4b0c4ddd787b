"""Speed of this engine and of its peers, measured side by side in one run.

Comes in: a model's name and which peers to measure. Goes out: a Report (numbers, machine, versions)
as a table, as JSON, or as a plot (ui/benchview.py). It must not know notebooks.

    python -m llm_magic bench [MODEL] [--peer NAME]... [--threads N] [--json] [--quick]
"""

from .command import main
from .measure import available, run
from .report import OURS, Report, Result, table
from .subjects import PEERS

__all__ = ["OURS", "PEERS", "Report", "Result", "available", "main", "run", "table"]
