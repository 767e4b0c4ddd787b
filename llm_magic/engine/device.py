"""Opens a device of tinygrad inside a notebook process.

`prepare` gives tinygrad a compiler (compiler.py) and a compile cache for this CPU that all threads
may use (compile_cache.py), then opens the device.

Importing this module imports nothing heavy: tinygrad comes with `prepare`, which may run before or
after the user's own `import tinygrad`, on any thread.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_magic.errors import CompilerError, DeviceError

from .compile_cache import use_cache
from .compiler import use_compiler

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

        cache = use_cache(helpers)
        _forbid_process_pools(helpers)
        compiler, refusal = use_compiler(helpers)
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
