"""Executes notebooks in docs mode and saves their outputs, which nbval compares in every test run.

Without arguments it executes all of notebooks/, else the files that are named.

    .venv/bin/python docs/execute.py [NOTEBOOK...]
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,  # time stamps would change with every run
        coalesce_streams=True,  # so would the number of messages that a text came in
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    # The state of widgets needs a kernel, and the version of Python is that of one machine.
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def main(names: list[str]) -> int:
    os.environ["LLM_MAGIC_DOCS"] = "1"
    for path in [Path(name) for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        execute(path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
