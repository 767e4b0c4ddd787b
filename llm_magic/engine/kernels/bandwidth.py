"""The read bandwidth of this machine's memory: the upper limit of decoding speed.

NumPy's reductions do not reach it (measured: 33-35 GB/s where this loop reads 41, with one thread
or two), so a share of theirs would be too high by a fifth. The loop is compiled like the kernels.
It reads one address range per thread and then several (memory controllers differ in which is
faster); the fastest pass counts.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from .. import device
from ..cpu import cpu_features
from .memory import Region
from .targets import choose

SIZE = 1 << 30  # bytes: far more than any cache holds
TRIES = 5
STREAMS = (1, 4)
ONES = 0x0101010101010101
LINE = 64 * 4  # bytes of one turn of the loop

SOURCE = """
typedef unsigned long long word;
typedef word line __attribute__((vector_size(64), aligned(64)));
void read_all(const char *data, word bytes, word streams, word *out) {
    line a = {0}, b = {0}, c = {0}, d = {0};
    word part = bytes / streams / 256 * 256;
    for (word i = 0; i < part; i += 256)
        for (word s = 0; s < streams; s++) {
            const line *p = (const line *)(data + s * part + i);
            a |= p[0], b |= p[1], c |= p[2], d |= p[3];
        }
    a |= b, c |= d, a |= c;
    word all = 0;
    for (int i = 0; i < 8; i++) all |= a[i];
    *out = all; /* so that nothing of the loop may be left out */
}
"""


def read_bandwidth(threads: int, size: int = SIZE, tries: int = TRIES) -> float:
    """Bytes a second that `threads` threads read together: the best of `tries` passes over `size`.

    Raises DeviceError where there is no compiler or no variant for this CPU.
    """
    program = _compiled()
    region = Region(size, huge=True)
    region.bytes[:] = 1  # pages that were never written are all the same page of zeros
    best = float("inf")
    for streams in STREAMS:
        for _ in range(tries):
            best = min(best, _pass(program, region.address, region.nbytes, threads, streams))
    region.close()
    return region.nbytes / best


def _pass(program: Callable[..., None], address: int, size: int, threads: int, streams: int
) -> float:  # fmt: skip
    """Seconds for all threads to read their parts."""
    part = size // threads // LINE * LINE
    outs = (ctypes.c_uint64 * threads)()
    go = threading.Barrier(threads)
    began, ended = [0.0] * threads, [0.0] * threads  # their own clocks: who waits here wakes late

    def read(i: int) -> None:
        out = ctypes.byref(outs, 8 * i)
        go.wait()
        began[i] = time.perf_counter()
        program(address + i * part, part, streams, out)
        ended[i] = time.perf_counter()

    workers = [threading.Thread(target=read, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds = max(ended) - min(began)
    assert all(out == ONES for out in outs), "a thread has not read its part"
    return seconds * size / (part * threads)


def _compiled() -> Callable[..., None]:
    """The loop, for the best variant of this CPU. It keeps its code in memory."""
    device.prepare("CPU")
    target = choose(cpu_features())
    from tinygrad.device import Device, TinyELF
    from tinygrad.runtime.ops_cpu import CPUProgram
    from tinygrad.runtime.support.compiler_cpu import ClangCompiler

    cpu: Any = Device["CPU"]
    code = ClangCompiler(list(target.arch)).compile_cached(SOURCE)
    loaded = CPUProgram(cpu, TinyELF(code, "llm_magic_read", cpu.renderer.target, ()))
    pointer, word = ctypes.c_void_p, ctypes.c_uint64
    call = ctypes.CFUNCTYPE(None, pointer, word, word, pointer)(loaded.addr)

    def program(*arguments: Any) -> None:
        call(*arguments)
        assert loaded is not None

    return program
