"""Everything that makes tinygrad usable inside a notebook process, in one place.

Comes in: a device name or None. Goes out: `Device`, after tinygrad has a compiler, a compile cache
that fits this CPU and that all threads may use, and the device is open.
It must not know models, threads of ours or IPython.

Importing this module imports nothing heavy: tinygrad comes with `prepare`, which may run before or
after the user's own `import tinygrad`, on any thread.
"""

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llm_magic.errors import CompilerError, DeviceError
from llm_magic.models.cache import cache_dir

INSTALL_COMPILER = "pip install 'llm-magic[cpu]'"  # quoted: zsh takes brackets for a pattern
SYSTEM = platform.system()
PATIENCE = 600.0  # seconds for what user code compiles meanwhile

# prepare() from several threads at once; by process, since a fork may copy one that is held.
_locks: dict[int, threading.Lock] = {}


@dataclass(frozen=True, slots=True)
class Device:
    """An open device of tinygrad. name: as tinygrad writes it, for example "CPU" or "CUDA:1"."""

    name: str
    target: str  # what code is generated for: "x86_64,native"; "" where tinygrad does not say
    compiler: str | None  # the C compiler, where one is used
    cache: Path  # tinygrad's compile cache

    @property
    def is_cpu(self) -> bool:
        return self.name == "CPU"


def prepare(device: str | None = None) -> Device:
    """Make tinygrad ready and open `device`. Cheap when repeated; any thread.

    None: what the user has told tinygrad (the variable DEV, before its import), else the CPU; on
    machines with a GPU, too, since kernels of ours exist for the CPU only.
    Raises DeviceError for a name that is not a usable device (listing those that are), and
    CompilerError (a DeviceError) where the CPU device needs a C compiler and none is found.
    """
    with _locks.setdefault(os.getpid(), threading.Lock()):
        from tinygrad import helpers

        cache = _use_cache(helpers)
        _forbid_process_pools(helpers)
        compiler, refusal = _use_compiler(helpers)
        name = _open(device or helpers.DEV.device or "CPU", refusal)
        return Device(name, _target(name), compiler if name == "CPU" else None, cache)


def opened(name: str) -> Any:
    """tinygrad's device of that name; any thread, also while user code runs on another.

    While tinygrad compiles something it refuses all devices to all threads: that passes.
    """
    from tinygrad import device as tiny

    patience = time.monotonic() + PATIENCE
    while True:
        try:
            return tiny.Device[name]
        except AssertionError as error:
            if "disallowed" not in str(error) or time.monotonic() > patience:
                raise
            time.sleep(0.005)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Settings under which our graphs are built, whatever the user's own tinygrad code has set.

    tinygrad's settings are global to the process: enter only while no user code runs (gate.py).
    """
    from tinygrad.helpers import Context

    settings = {"PARALLEL": 0, "BEAM": 0, "NOOPT": 0, "JIT": 1, "CAPTURING": 1, "FLOAT16": 0}
    with Context(**settings, DEFAULT_FLOAT="float32", DEFAULT_INT="int32"):
        yield


# ---- the CPU ----


@functools.cache
def cpu_features() -> frozenset[str]:
    """Extensions of this CPU, as Linux names them: "avx2", "avx512_vnni", "asimddp".

    Linux: /proc/cpuinfo; macOS: sysctl; elsewhere empty, which means: assume nothing. AMX is left
    out where the system does not let this process use its tile registers.
    """
    if SYSTEM == "Linux":
        info = _cpuinfo()
        flags = frozenset(info.get("flags", info.get("Features", "")).split())
        if "amx_tile" in flags and not _tiles_granted():
            flags -= {flag for flag in flags if flag.startswith("amx_")}
        return flags
    if SYSTEM == "Darwin":
        return _sysctl_features(_sysctl())
    return frozenset()


_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18  # Linux on x86-64


def _tiles_granted() -> bool:
    """Ask the system to save tile registers for this process and its threads: off by default."""
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)) == 0


def cpu_hash() -> str:
    """A name for this kind of CPU: what is compiled here may run where the name is the same."""
    # "native" may use instructions that no flag names: the model decides, too.
    kind = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    info = _cpuinfo() if SYSTEM == "Linux" else {"model": platform.processor()}
    identity = [SYSTEM, platform.machine(), *sorted(cpu_features())]
    identity += [f"{key}={info[key]}" for key in kind if key in info]
    return hashlib.sha256(" ".join(identity).encode()).hexdigest()[:12]


@functools.cache
def _cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    first = text.strip().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _sysctl() -> str:
    try:
        done = subprocess.run(["sysctl", "-a"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")


def _sysctl_features(text: str) -> frozenset[str]:
    """Flags from `sysctl -a`: lists on Intel, `hw.optional.arm.FEAT_X: 1` on Apple silicon."""
    renamed = {"feat_dotprod": "asimddp", "feat_i8mm": "i8mm", "feat_bf16": "bf16"}
    found = set()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in ("machdep.cpu.features", "machdep.cpu.leaf7_features"):
            found |= set(value.lower().split())
        elif key.startswith("hw.optional.") and value.strip() == "1":
            name = key.rpartition(".")[2].lower()
            found.add(renamed.get(name, name))
    return frozenset(found)


# ---- the compiler ----


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


def _use_compiler(helpers: Any) -> tuple[str | None, CompilerError | None]:
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


# ---- the compile cache ----


def _cache_file() -> Path:
    """tinygrad compiles for the native CPU under a key that does not name the CPU: the file must.

    A file that the user has chosen (CACHEDB) stays where it is, with the CPU in its name.
    """
    if chosen := os.environ.get("CACHEDB"):
        path = Path(chosen).absolute()
        return path.with_name(f"{path.stem}-{cpu_hash()}{path.suffix}")
    return cache_dir() / "tinygrad" / f"{cpu_hash()}.db"


_SEAL = 16  # bytes
# Held while sqlite runs, and while the process forks: a child that is copied in the middle of a
# call would inherit sqlite's own locks, held by a thread that it does not have.
_sqlite = threading.RLock()
_FORK_PATIENCE = 5.0  # seconds: another process may hold the database for longer than this


def _before_fork() -> None:
    _sqlite.acquire(timeout=_FORK_PATIENCE)


def _after_fork_in_parent() -> None:
    with contextlib.suppress(RuntimeError):  # it was not ours to release: the wait timed out
        _sqlite.release()


def _after_fork_in_child() -> None:
    global _sqlite
    _sqlite = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def _seal(key: tuple[Any, ...], value: bytes) -> bytes:
    return hashlib.blake2b(repr(key).encode() + value, digest_size=_SEAL).digest()


class _Cursor(sqlite3.Cursor):
    """What cannot be written is compiled again next time; what cannot be read is not there.

    sqlite does not see that a disk has lost or changed a page inside a value, and the values are
    programs: half of one fails at every start, and a changed one runs. So behind each value, where
    no reader of pickles looks, stands a digest of it and of its key.
    """

    _key: tuple[Any, ...] | None = None  # of the values that are being read

    def execute(self, sql: str, parameters: Any = ()) -> "_Cursor":
        self._key = None
        if sql.startswith("SELECT val "):
            self._key = tuple(parameters)
        elif sql.startswith("REPLACE ") and isinstance(parameters[-1], bytes):
            *key, value = parameters
            parameters = (*key, value + _seal(tuple(key), value))
        try:
            with _sqlite:
                super().execute(sql, parameters)
        except sqlite3.DatabaseError as error:  # full disk, read-only folder, damaged file
            if sql.startswith("SELECT"):
                raise sqlite3.OperationalError(str(error)) from error  # tinygrad: no such entry
        return self

    def fetchone(self) -> Any:
        with _sqlite:
            row = super().fetchone()
        if row is None or self._key is None:
            return row
        sealed = row[0] if isinstance(row[0], bytes) else b""
        whole = sealed[-_SEAL:] == _seal(self._key, sealed[:-_SEAL])
        return row if whole else None


class _Connection(sqlite3.Connection):
    def cursor(self, factory: Any = _Cursor) -> Any:
        return super().cursor(factory)

    def commit(self) -> None:
        with _sqlite:
            try:
                super().commit()
            except sqlite3.DatabaseError:
                with contextlib.suppress(sqlite3.DatabaseError):
                    self.rollback()

    def __del__(self) -> None:
        self.close()  # its thread has ended


class _NoTable(set[str]):
    """Stands for tinygrad's list of the tables that exist: none, so that each write makes its own.

    A write by the user's thread that is under way while the file changes would else name a table
    that the new file does not have.
    """

    def __contains__(self, table: object) -> bool:
        return False


class _Database:
    """The compile cache, open to all threads of this process. Replaces helpers.db_connection.

    tinygrad keeps one connection, which sqlite binds to the thread that made it: any other thread
    dies with ProgrammingError. One connection without that check would need a lock, since two
    threads may begin a transaction on it at once; so each thread has its own, and sqlite's
    write-ahead log sorts them out, as it does between processes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._threads = threading.local()

    def __call__(self) -> sqlite3.Connection:
        here = self._threads
        # A forked child must not use its parent's connection.
        if getattr(here, "pid", None) != os.getpid():
            with _sqlite:
                here.connection, here.pid = self._connect(), os.getpid()
        connection: sqlite3.Connection = here.connection
        return connection

    def _connect(self) -> sqlite3.Connection:
        try:
            if self.path.exists() and not os.access(self.path.parent, os.W_OK):
                # Filled for others, as a course does: sqlite would want to write beside it.
                return self._opened(f"{self.path.absolute().as_uri()}?immutable=1", uri=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self._opened(str(self.path))
        except (OSError, sqlite3.Error):
            # Read-only home, full disk, damaged file: compile again in this process.
            return self._opened(":memory:")

    @staticmethod
    def _opened(name: str, uri: bool = False) -> sqlite3.Connection:
        # check_same_thread: the connection of a dead thread is closed by another.
        connection = sqlite3.connect(
            name,
            timeout=60,
            isolation_level="IMMEDIATE",
            check_same_thread=False,
            factory=_Connection,
            uri=uri,
        )
        with contextlib.suppress(sqlite3.OperationalError):  # another process is setting it
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection


def _use_cache(helpers: Any) -> Path:
    """Point tinygrad at our cache file, also where the user's code has opened another already."""
    path = _cache_file()
    current = helpers.db_connection
    if not (isinstance(current, _Database) and current.path == path):
        # helpers._db_connection, if open, stays as it is: only its own thread may close it. So does
        # helpers.CACHEDB: a thread that is opening it reads the name twice, for folder and file.
        helpers._db_tables = _NoTable()
        helpers.db_connection = _Database(path)
    return path


def _forbid_process_pools(helpers: Any) -> None:
    # Nothing forks or spawns inside a notebook kernel, unless the user has asked for it by name.
    if "PARALLEL" not in os.environ:
        helpers.PARALLEL.value = 0


# ---- the device ----


def _open(name: str, refusal: CompilerError | None) -> str:
    from tinygrad import device as tiny

    kind = name.split(":")[0].upper()
    if kind not in tiny.ALL_DEVICES:
        raise DeviceError(f"no device {name!r}; usable here: {_usable()}")
    if kind == "CPU" and refusal:
        raise refusal
    try:
        return str(opened(name).device)
    except Exception as error:  # drivers fail in their own ways
        raise DeviceError(
            f"device {name!r} does not work here ({type(error).__name__}: {error});"
            f" usable: {_usable()}"
        ) from error


def _usable() -> str:
    from tinygrad import device as tiny

    return ", ".join(tiny.Device.get_available_devices()) or "none"


def _target(name: str) -> str:
    return str(getattr(opened(name).renderer.target, "arch", ""))


def free_unused(device: str) -> None:
    """Give memory that tinygrad keeps for later allocations back to the system."""
    allocator: Any = opened(device).allocator
    if hasattr(allocator, "free_cache"):
        allocator.free_cache()
