"""nbval notices what it should: the tutorial's cells pass as they are, a changed output fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).resolve().parents[2] / "notebooks" / "01-quickstart.ipynb"


def _first_answer(cells: list[dict]) -> int:
    return next(i for i, cell in enumerate(cells) if "".join(cell["source"]).startswith("%%llm"))


def _nbval(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", path.name]
    environment = os.environ | {"LLM_MAGIC_DOCS": "1"}
    return subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, text=True)


@pytest.fixture
def short(tmp_path):
    """The tutorial up to and including its first answer, in an empty folder."""
    notebook = json.loads(QUICKSTART.read_text(encoding="utf-8"))
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    notebook["cells"] = cells[: _first_answer(cells) + 1]

    def write() -> Path:
        path = tmp_path / "short.ipynb"
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    return notebook["cells"][-1], write


@pytest.mark.kernel
@pytest.mark.model
def test_true_outputs_pass_and_a_corrupted_one_fails(short):
    answer, write = short
    good = _nbval(write())
    assert good.returncode == 0, good.stdout
    (output,) = answer["outputs"]
    output["data"]["text/plain"] = ["".join(output["data"]["text/plain"]).replace("Paris", "Rome")]
    bad = _nbval(write())
    assert bad.returncode == 1, bad.stdout
    assert "Rome" in bad.stdout


@pytest.mark.model
def test_the_replies_of_the_committed_notebooks_are_what_the_model_says():
    books = sorted(QUICKSTART.parent.glob("*.ipynb"))
    kept = [path for path in books if '"llm_magic_record": {' in path.read_text(encoding="utf-8")]
    assert QUICKSTART in kept
    for path in kept:  # 2: those of a server, which cannot be checked
        command = [sys.executable, "-m", "llm_magic", "verify", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode in ((0,) if path == QUICKSTART else (0, 2)), done.stdout
