"""./dev, with a stand-in for the environment's Python that writes down how it is called."""

import os
import shutil
import subprocess
from pathlib import Path

import conftest
import pytest

ROOT = Path(__file__).resolve().parents[2]

FAKE_PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >>"$LOG"
case "$*" in *"${FAIL_ON:-nothing fails}"*) exit 1 ;; esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder with ./dev and a .venv whose Python is a script that logs its arguments."""
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return tmp_path


def dev(checkout: Path, *words: str, **env: str) -> tuple[int, list[str], str]:
    log = checkout / "log"
    log.write_text("")
    ran = subprocess.run(
        ["sh", str(checkout / "dev"), *words],
        capture_output=True,
        text=True,
        cwd="/",
        env=os.environ | {"LOG": str(log)} | env,
    )
    calls = [line for line in log.read_text().splitlines() if not line.startswith("-c ")]
    return ran.returncode, calls, ran.stdout + ran.stderr


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith("-m pip install")]


def test_second_run_installs_nothing(checkout):
    _, first, _ = dev(checkout, "test", "tests/unit")
    code, second, _ = dev(checkout, "test", "tests/unit")
    assert len(installs(first)) == 3  # the package, then the extras that may fail
    assert (code, second) == (0, ["-m pytest tests/unit"])


@pytest.mark.parametrize(("user", "root"), [("0", " --allow-root"), ("1000", "")])
def test_lab_opens_the_first_notebook_also_as_root(checkout, user, root):
    own = checkout / "bin"
    own.mkdir()
    (own / "id").write_text(f"#!/bin/sh\necho {user}\n")
    (own / "id").chmod(0o755)
    path = f"{own}{os.pathsep}{os.environ['PATH']}"
    for given, opened in ((), "notebooks/01-quickstart.ipynb"), (("a b.ipynb",), "a b.ipynb"):
        calls = dev(checkout, "lab", *given, PATH=path)[1]
        assert calls[-1] == f"-m jupyterlab{root} {opened}"


def test_set_up_for_tests_serves_the_demo_too(checkout):
    dev(checkout, "setup")
    assert dev(checkout, "demo")[1] == ["-m llm_magic demo"]


def test_set_up_for_the_demo_is_not_enough_for_tests(checkout):
    dev(checkout, "demo")
    assert installs(dev(checkout, "test", "x")[1])


def test_changed_dependencies_or_a_moved_checkout_install_again(checkout, tmp_path_factory):
    dev(checkout, "setup")
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert installs(dev(checkout, "setup")[1])
    moved = tmp_path_factory.mktemp("elsewhere") / "repo"
    shutil.move(checkout, moved)
    assert installs(dev(moved, "setup")[1])


def test_a_failed_install_is_tried_again(checkout):
    code, _, said = dev(checkout, "setup", FAIL_ON="cpu,lab")
    assert code != 0
    assert "installation failed" in said
    assert installs(dev(checkout, "setup")[1])


def test_tests_go_on_without_peers(checkout):
    code, calls, said = dev(checkout, "test", "x", FAIL_ON="[peers]")
    assert code == 0
    assert "peers" in said
    assert calls[-1] == "-m pytest x"


def test_whole_run_goes_from_fast_to_slow(checkout):
    code, calls, said = dev(checkout, "test")
    stages = [c.split()[-1] for c in calls if c.startswith("-m pytest")]
    assert [Path(s).name for s in stages] == [
        *("unit", "engine", "fuzz", "kernel", "browser", "notebooks")
    ]
    assert calls.index("tests/js/run.py test") < calls.index("-m pytest tests/engine")
    assert code == 0
    assert "all stages passed" in said


@pytest.mark.parametrize("stage", ["unit", "kernel", "notebooks"])
def test_a_failed_stage_fails_the_run_and_the_others_still_run(checkout, stage):
    code, calls, said = dev(checkout, "test", FAIL_ON=f"tests/{stage}")
    assert code != 0
    assert f"failed: {stage}" in said
    assert len([c for c in calls if c.startswith("-m pytest")]) == 6


@pytest.mark.parametrize(("fault", "name"), [("-m mypy", "types"), ("run.py", "javascript")])
def test_lint_runs_every_check_and_fails_if_one_does(checkout, fault, name):
    code, calls, said = dev(checkout, "lint", FAIL_ON=fault)
    assert code != 0
    assert f"lint failed: {name}" in said
    assert [c for c in calls if "pip" not in c] == [
        "-m ruff check .",
        "-m ruff format --check .",
        "-m mypy",
        "tests/js/run.py types",
    ]


def test_the_documentation_has_a_set_up_of_its_own(checkout):
    dev(checkout, "setup")
    _, calls, _ = dev(checkout, "docs")
    assert [c for c in installs(calls) if "docs" in c]
    assert calls[-1] == "-m mkdocs build --strict"
    assert dev(checkout, "docs", "serve")[1] == ["-m mkdocs serve"]


def test_an_installation_tells_how_far_it_is(checkout):  # F271
    """pip works until the clock of ./dev has ticked 20 times; no real second passes."""
    tools = checkout / "bin"
    tools.mkdir()
    real, ticks = shutil.which("sleep"), checkout / "ticks"
    ticks.write_text("")
    (tools / "sleep").write_text(f"#!/bin/sh\necho >>{ticks}\nexec {real} 0.001\n")
    (tools / "sleep").chmod(0o755)
    (checkout / ".venv" / "bin" / "python").write_text(
        FAKE_PYTHON
        + 'case "$*" in *"pip install"*) echo "Downloading numpy.whl (16 MB)"\n'
        + f"  until [ $(wc -l <{ticks}) -ge 21 ]; do {real} 0.01; done ;;\nesac\n"
    )
    said = dev(checkout, "setup", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}")[2]
    assert "19 s: Downloading numpy.whl (16 MB)" in said


def test_unknown_job_shows_usage(checkout):
    code, calls, said = dev(checkout, "frobnicate")
    assert code == 2
    assert calls == []
    assert "./dev demo" in said


def test_no_python_is_said_plainly(checkout):
    shutil.rmtree(checkout / ".venv")
    tools = checkout / "bin"
    tools.mkdir()
    for tool in ("sh", "dirname", "cksum", "cat"):
        (tools / tool).symlink_to(shutil.which(tool))
    code, _, said = dev(checkout, "setup", PATH=str(tools))
    assert code != 0
    assert "Python >= 3.11" in said


def test_what_is_required_and_missing_fails_else_skips(monkeypatch):
    monkeypatch.setattr(conftest, "REQUIRED", frozenset({"browser"}))
    with pytest.raises(pytest.fail.Exception, match="apt-get install"):
        conftest.missing("browser", "apt-get install chromium")
    with pytest.raises(pytest.skip.Exception, match="pip install"):
        conftest.missing("peers", "pip install '.[peers]'")


def test_ci_requires_everything_and_fails_when_a_part_does(checkout):
    (checkout / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    (checkout / "dev").write_text(
        '#!/bin/sh\necho "$1 $LLM_MAGIC_REQUIRE" >>"$LOG"\n[ "$1" != "$FAIL" ]\n'
    )
    for tool in ("apt-get", "chromium", "qemu-aarch64-static"):  # nothing is installed by this test
        (checkout / ".venv" / "bin" / tool).write_text("#!/bin/sh\n")
        (checkout / ".venv" / "bin" / tool).chmod(0o755)
    path = f"{checkout / '.venv' / 'bin'}:{os.environ['PATH']}"
    for fail, code in (("", 0), ("lint", 1), ("test", 1), ("docs", 1)):
        log = checkout / "log"
        log.write_text("")
        env = os.environ | {"LOG": str(log), "FAIL": fail, "PATH": path}
        assert subprocess.run(["bash", checkout / ".ci" / "run"], env=env).returncode == code
        said = log.read_text().splitlines()
        assert [line.split()[0] for line in said] == ["lint", "test", "docs"]
        assert set(said[1].split()[1].split(",")) >= {
            "browser",
            "peers",
            "reference",
            "node",
            "qemu",
        }
