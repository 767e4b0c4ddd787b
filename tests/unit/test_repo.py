"""Ground rules of the repository: what is tracked, how large it is, what a wheel holds."""

import ast
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = {".npz", ".png", ".gguf", ".ico"}
SOURCES = {".py", ".js", ".css", ".c", ".h"}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Written as patterns that do not match their own source.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~$}*])/(?:home/(?!user|ann\b)\w+|root|Users/\w+|work)/",
    "a path beside the checkout": r"\.\./share[d]\b(?!/\w+\.js)",
    "a registry host": r"(?:pypi|pythonhosted|npmjs|debian)\.(?:org|com)\b|file:/{3}opt",
    "a note to oneself": r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b",
    "a merge left half way": r"^(?:<{7}|={7}|>{7})(?: |$)",
}


def _tracked() -> list[Path]:
    """What a clone gets, and new files that are not ignored: found before they are committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        pytest.skip("not a git checkout")
    return [p for name in ran.stdout.split("\0") if name and (p := ROOT / name).is_file()]


def _texts() -> dict[str, str]:
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in _tracked()
        if path.suffix not in BINARY
    }


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_tracked_file_holds(what):
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [f"{name}: {m[0]!r}" for name, text in _texts().items() for m in pattern.finditer(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of one machine", "see /" + "root/.cache/x"),
        ("a path of one machine", '"/' + 'home/kim/models"'),
        ("a path beside the checkout", "../" + "shared/reference"),
        ("a registry host", "https://" + "pypi" + ".org/simple"),
        ("a note to oneself", "# TO" + "DO: later"),
        ("a merge left half way", "x\n" + "<" * 7 + " HEAD\n"),
    ],
)
def test_forbidden_text_is_found(what, text):
    assert re.search(FORBIDDEN[what], text, re.MULTILINE)


def test_tracked_files_are_small():
    large = [f"{p.name}: {p.stat().st_size:,}" for p in _tracked() if p.stat().st_size > 2_000_000]
    assert not large


@pytest.mark.parametrize("name", ["dev", ".ci/run", "binder/postBuild", "binder/start"])
def test_scripts_are_executable_and_parse(name):
    path = ROOT / name
    assert path.stat().st_mode & 0o111
    shell = path.read_text().partition("\n")[0].removeprefix("#!").split()[-1].rpartition("/")[2]
    subprocess.run([shell, "-n", path], check=True)


# ----------------------------------------------------------------------------- size


def test_no_folder_has_more_than_thirty_modules_scripts_and_styles():
    counts = Counter(p.parent for p in (ROOT / "llm_magic").rglob("*") if p.suffix in SOURCES)
    large = {str(f.relative_to(ROOT)): n for f, n in counts.items() if n > 30}
    assert len(counts) > 15
    assert not large


def test_any_is_rare():
    """The word counts, imports included; so it may not stand in comments either."""
    texts = [p.read_text(encoding="utf-8") for p in (ROOT / "llm_magic").rglob("*.py")]
    lines = sum(text.count("\n") for text in texts)
    words = sum(len(re.findall(r"\bAny\b", text)) for text in texts)
    assert 0 < words <= 15 * lines / 1000, f"{words} in {lines} lines"


def test_no_test_imports_from_another():
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not module.split(".")[-1].startswith("test_"), f"{path.name}:{node.lineno}"


# ----------------------------------------------------------------------------- notebooks


def _code_cells(path: Path) -> list[dict]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def _is_checked(cell: dict) -> bool:
    """nbval compares this cell's outputs."""
    shown = [o for o in cell["outputs"] if o["output_type"] in ("display_data", "execute_result")]
    tags = cell["metadata"].get("tags", [])
    ignored = "NBVAL_IGNORE_OUTPUT" in "".join(cell["source"]) or "nbval-ignore-output" in tags
    return bool(shown) and not ignored


def test_there_are_notebooks():
    assert [p.name for p in NOTEBOOKS][:1] == ["01-quickstart.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_is_executed_in_docs_mode_and_small(path):
    text = path.read_text(encoding="utf-8")
    cells = _code_cells(path)
    assert len(text) < 400_000
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [o["ename"] for o in outputs if o["output_type"] == "error"]
    assert max(len(json.dumps(output)) for output in outputs) < 100_000
    # Docs mode: what is compared is stable, so nothing that only a live run has.
    assert "application/vnd.llm-magic.reply+json" not in text
    assert "application/vnd.jupyter.widget-state+json" not in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_has_checked_cells(path):
    assert sum(map(_is_checked, _code_cells(path))) >= 3


# ----------------------------------------------------------------------------- wheel


@pytest.mark.slow
def test_wheel_holds_sources_of_every_kind(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        name
        for path in _tracked()
        if (name := path.relative_to(ROOT).as_posix()).startswith("llm_magic/")
    }
    assert "llm_magic/py.typed" in wanted
    assert not wanted - held
    assert not [
        n for n in held if not re.match(r"llm_magic/|llm_magic-[\d.]+\.(dist-info|data)/", n)
    ]
    assert [n for n in held if n.endswith("/share/llm-magic/01-quickstart.ipynb")]
