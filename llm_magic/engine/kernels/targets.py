"""The variant of the C sources for this CPU, its source as one text, and its object code.

All variants share every file but the header of primitives, `isa_<header>.h`. The compiler gets the
instruction set by name (never "native"), so a cached object fits every CPU that has these features,
and no other.
"""

import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from llm_magic.errors import DeviceError

from . import job

SOURCES = Path(__file__).parent / "c"


@dataclass(frozen=True, slots=True)
class Target:
    """A variant. arch: as tinygrad's CPU compiler takes it: machine, CPU, features.

    needs: features (as Linux names them) without which its instructions are illegal.
    """

    name: str
    title: str
    header: str
    arch: tuple[str, ...]
    needs: frozenset[str]


_V3 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Best first. prefer-vector-width: by default clang halves 512-bit code, for old Skylakes.
TARGETS = (
    Target(
        "avx512amx",
        "AVX-512 VNNI and AMX",
        "avx512amx",
        ("x86_64", "x86-64-v4", "avx512vnni", "amx-tile", "amx-bf16", "prefer-vector-width=512"),
        _V4 | {"avx512_vnni", "amx_tile", "amx_bf16"},
    ),
    Target(
        "avx512vnni",
        "AVX-512 VNNI",
        "avx512vnni",
        ("x86_64", "x86-64-v4", "avx512vnni", "prefer-vector-width=512"),
        _V4 | {"avx512_vnni"},
    ),
    Target("avx2vnni", "AVX2 VNNI", "avx2", ("x86_64", "x86-64-v3", "avxvnni"), _V3 | {"avx_vnni"}),
    Target("avx2", "AVX2", "avx2", ("x86_64", "x86-64-v3"), _V3),
    Target("plain", "plain C", "plain", ("x86_64", "x86-64"), frozenset()),
    Target(
        "neon", "NEON dot product", "neon", ("arm64", "generic", "dotprod"), frozenset({"asimddp"})
    ),
    Target("plain", "plain C", "plain", ("arm64", "generic"), frozenset()),
)
MACHINES = {"amd64": "x86_64", "x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}


def usable(features: frozenset[str]) -> list[Target]:
    """The variants that this machine can run, best first."""
    machine = MACHINES.get(platform.machine().lower(), "")
    return [t for t in TARGETS if t.arch[0] == machine and t.needs <= features]


def choose(features: frozenset[str], forced: str | None = None) -> Target:
    """The best variant for these CPU features, or the forced one.

    Raises DeviceError for a name that does not exist or that this CPU cannot run.
    """
    can = usable(features)
    if forced is None and can:
        return can[0]
    for target in can:
        if target.name == forced:
            return target
    names = ", ".join(t.name for t in can) or "none"
    wanted = f"kernel variant {forced!r}" if forced else "a kernel variant"
    raise DeviceError(f"this CPU cannot run {wanted}; it can run: {names}")


def source(target: Target) -> str:
    """All C files of a variant as one translation unit (the compiler reads standard input)."""
    define = "#define LINUX 1\n" if sys.platform == "linux" else ""
    return f"{define}{job.declarations()}\n" + _expanded(SOURCES / "entry.c", target)


def _expanded(path: Path, target: Target) -> str:
    def included(match: re.Match[str]) -> str:
        name = match[1] if match[1] != "isa.h" else f"isa_{target.header}.h"
        return _expanded(SOURCES / name, target)

    text = path.read_text("utf-8")
    return re.sub(r'^#include "([^"]+)"$', included, text, flags=re.MULTILINE)


def compiled(target: Target) -> tuple[str, bytes]:
    """(source, object code). tinygrad caches the object by source, instruction set and version."""
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    text = source(target)
    return text, ClangCompiler(list(target.arch)).compile_cached(text)
