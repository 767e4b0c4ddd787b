"""The C compiler that tinygrad calls: the clang of $CC, of PATH or of the package ziglang."""

import atexit
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llm_magic.errors import CompilerError
from llm_magic.models.cache import cache_dir

from .cpu import SYSTEM

INSTALL_COMPILER = "pip install 'llm-magic[cpu]'"  # quoted: zsh takes brackets for a pattern


def find_compiler() -> str:
    """Path of a clang: $CC, else clang on PATH, else ziglang's. Raises CompilerError.

    $CC counts only where it is a clang: for its programs tinygrad asks for an ELF target that other
    compilers do not know.
    """
    tried = []
    for label, command in (("$CC", os.environ.get("CC")), ("PATH", "clang")):
        if not command or not (path := shutil.which(command)):
            tried.append(f"{label}: {command or 'not set'}{' not found' if command else ''}")
        elif _is_clang(path):
            return path
        else:
            tried.append(f"{label}: {path} cannot compile as clang does")
    if zig := _zig_command():
        return str(_wrapper(zig))
    tried.append("package ziglang: not installed")
    raise CompilerError(
        f"the CPU device needs the clang compiler ({'; '.join(tried)}). Install one:"
        f" {INSTALL_COMPILER}"
    )


def _is_clang(path: str) -> bool:
    arch = {"amd64": "x86_64", "aarch64": "arm64"}.get(m := platform.machine().lower(), m)
    target = f"--target={arch}-none-unknown-elf"
    flags = ["-c", "-x", "c", "-O2", "-ffreestanding", "-nostdlib", target, "-", "-o", "-"]
    try:
        done = subprocess.run(
            [path, *flags], input=b"void f(void) {}", capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.startswith(b"\x7fELF")


def _zig_command() -> tuple[Path, Path] | None:
    """(the zig executable, clang's own headers) of the package ziglang, or None."""
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations)))
    zig = folder / ("zig.exe" if SYSTEM == "Windows" else "zig")
    return (zig, folder / "lib" / "include") if zig.exists() else None


def _wrapper_text(zig: Path, include: Path, windows: bool) -> str:
    # zig's clang does not know where its own headers (immintrin.h) are.
    if windows:
        return f'@"{zig}" clang -isystem "{include}" %*\r\n'
    quoted = [_shell_quoted(zig), "clang", "-isystem", _shell_quoted(include)]
    return f'#!/bin/sh\nexec {" ".join(quoted)} "$@"\n'


def _shell_quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\"'\"'") + "'"


def _wrapper(command: tuple[Path, Path]) -> Path:
    """A script that behaves as clang, because tinygrad's CC names one executable."""
    windows = SYSTEM == "Windows"
    text = _wrapper_text(*command, windows)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    refusals = []
    for folder in (_shared_folder, _process_folder):
        script = folder() / f"clang-{digest}{'.cmd' if windows else ''}"
        try:
            if not (script.exists() and script.read_bytes() == text.encode()):
                _write_atomically(script, text)
        except OSError as error:
            refusals.append(str(error))
            continue
        if os.access(script, os.X_OK) and _is_clang(str(script)):
            return script
        refusals.append(f"{script} does not run")
    raise CompilerError(f"ziglang's clang cannot be used: {'; '.join(refusals)}")


def _shared_folder() -> Path:
    return cache_dir() / "bin"


@functools.cache
def _process_folder() -> Path:
    """For where the cache folder is read-only or mounted noexec. Private to this process."""
    folder = tempfile.mkdtemp(prefix="llm_magic-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", newline="") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def use_compiler(helpers: Any) -> tuple[str | None, CompilerError | None]:
    """Tell tinygrad which compiler to call: (path, None), or (None, why there is none)."""
    try:
        compiler = _compiler_found()
    except CompilerError as error:
        return None, error
    if helpers.getenv("CC", "clang") == compiler:
        return compiler, None
    # tinygrad reads the environment through a cache. It is filled while CC is ours, so that the
    # user's own environment, and every program started from it, keeps its CC.
    before = os.environ.get("CC")
    helpers.getenv.cache_clear()
    os.environ["CC"] = compiler
    try:
        helpers.getenv("CC", "clang")
    finally:
        if before is None:
            del os.environ["CC"]
        else:
            os.environ["CC"] = before
    return compiler, None


_found: dict[str | None, str] = {}  # $CC -> compiler: looking costs a compiler call


def _compiler_found() -> str:
    wanted = os.environ.get("CC")
    if wanted not in _found or not Path(_found[wanted]).exists():
        _found[wanted] = find_compiler()
    return _found[wanted]
