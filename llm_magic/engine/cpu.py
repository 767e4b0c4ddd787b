"""This machine's CPU: its extensions, and a name for its kind."""

import ctypes
import functools
import hashlib
import platform
import subprocess
from pathlib import Path

SYSTEM = platform.system()


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
