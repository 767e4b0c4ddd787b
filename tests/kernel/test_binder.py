"""The steps of binder/, done as repo2docker does them: a fresh environment, pip in the root of the
repository, postBuild as the user, then everything through `start`."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT, missing

LIMIT = 2 << 30  # bytes; what a public Binder grants

USE = """
import json, resource, sys
from nbclient import NotebookClient
import nbformat
nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in (
    "%load_ext llm_magic",
    "%%llm -t 0 -n 16 -o reply\\nWhat is the capital of France?",
    "import psutil; print(reply.text, psutil.Process().memory_info().rss, sep='\\x1f')",
)])
NotebookClient(nb, timeout=300, kernel_name="python3").execute()
print(nb.cells[-1].outputs[0].text)
"""


def _run(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, f"{command}\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}"
    return ran.stdout


def _needs_index(tmp_path: Path) -> None:
    probe = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--retries", "1"]
    ran = subprocess.run([*probe, "-d", str(tmp_path), "hatchling"], capture_output=True)
    if ran.returncode:
        missing("network", "a package index that pip can reach")


def test_python_version_is_named_and_supported():
    kind, _, version = (ROOT / "binder" / "runtime.txt").read_text().strip().partition("-")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert kind == "python"
    assert tuple(map(int, version.split("."))) >= tuple(
        map(int, needed.removeprefix(">=").split("."))
    )


def test_requirements_install_this_checkout_with_its_compiler():
    lines = (ROOT / "binder" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == [".[cpu]"]


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.model
@pytest.mark.timeout(1800)
def test_steps_in_a_fresh_environment(tmp_path):
    _needs_index(tmp_path / "probe")
    repo, home, venv = tmp_path / "repo", tmp_path / "home", tmp_path / "venv"
    home.mkdir()
    files = _run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], ROOT, dict(os.environ)
    )
    for name in files.splitlines():
        if (ROOT / name).is_file():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_bytes((ROOT / name).read_bytes())
            (repo / name).chmod((ROOT / name).stat().st_mode)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "LLM_MAGIC", "PYTHON"))}
    env |= {"HOME": str(home), "PATH": f"{venv / 'bin'}:/usr/bin:/bin", "VIRTUAL_ENV": str(venv)}
    _run([sys.executable, "-m", "venv", str(venv)], repo, env)
    pip = [str(venv / "bin" / "pip"), "install", "-q"]
    _run([*pip, "-r", "binder/requirements.txt"], repo, env)
    _run([*pip, "nbclient", "psutil"], repo, env)  # what the image's own Jupyter would bring
    _run(["binder/postBuild"], repo, env)

    shipped = [p for p in (home / ".cache").rglob("*") if p.is_file() and "pip" not in p.parts]
    assert [p.suffix for p in shipped if p.stat().st_size > 1 << 20] == [".gguf"]
    compiled = {".so", ".o", ".db"}
    assert not [p for p in shipped if p.suffix in compiled]

    said = _run(["binder/start", "python", "-c", USE], repo, env).strip()
    text, _, resident = said.rpartition("\x1f")
    assert "Paris" in text
    assert int(resident) < LIMIT // 2  # the server and a browser tab's kernel share the limit
