"""The compile cache of tinygrad: a file for this kind of CPU, open to all threads."""

import contextlib
import hashlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

from llm_magic.models.cache import cache_dir

from .cpu import cpu_hash


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


_BUSY = 5.0  # seconds that a call waits for other processes, each of which writes for a moment
_FORK_PATIENCE = _BUSY + 1


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

    Each statement is a transaction of its own. One that stayed open between two calls would keep
    the file locked while another thread waits for it, with `_sqlite` held, which the first one
    needs to go on; and an interrupt could leave it open for good.
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
            timeout=_BUSY,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
            uri=uri,
        )
        with contextlib.suppress(sqlite3.OperationalError):  # another process is setting it
            connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection


def use_cache(helpers: Any) -> Path:
    """Point tinygrad at our cache file, also where the user's code has opened another already."""
    path = _cache_file()
    current = helpers.db_connection
    if not (isinstance(current, _Database) and current.path == path):
        # helpers._db_connection, if open, stays as it is: only its own thread may close it. So does
        # helpers.CACHEDB: a thread that is opening it reads the name twice, for folder and file.
        helpers._db_tables = _NoTable()
        helpers.db_connection = _Database(path)
    return path
