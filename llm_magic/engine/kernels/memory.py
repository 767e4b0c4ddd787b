"""Memory of the kernels: private to this process, allocated by the system only when touched.

tinygrad's own CPU buffers are shared mappings: a forked child would write into its parent's cache,
and huge pages are off there. `Region` is a private mapping, passed to the program by address.
"""

import contextlib
import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE, HUGE = 4096, 2 << 20  # bytes


class Region:
    """Zeroed bytes at a fixed address. huge: ask for huge pages, where all of it will be used.

    MemoryError where the system refuses so much.
    """

    def __init__(self, nbytes: int, *, huge: bool = False) -> None:
        self.nbytes = max(PAGE, -(-nbytes // PAGE) * PAGE)
        spare = HUGE if huge and self.nbytes > HUGE else 0  # to begin where a huge page does
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self._map = mmap.mmap(-1, self.nbytes + spare, flags=flags)
        except (OSError, OverflowError) as e:
            raise MemoryError(f"the system refuses {self.nbytes / 1e9:,.1f} GB of memory") from e
        advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
        if advice is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._map.madvise(advice)
        whole = np.frombuffer(self._map, np.uint8)
        self._begin = -whole.ctypes.data % HUGE if spare else 0
        self.bytes: npt.NDArray[np.uint8] = whole[self._begin :][: self.nbytes]
        self.address: int = self.bytes.ctypes.data

    def view(self, dtype: npt.DTypeLike, count: int, offset: int = 0) -> npt.NDArray[Any]:
        """`count` items of `dtype` from byte `offset` on, sharing memory."""
        dtype = np.dtype(dtype)
        return self.bytes[offset : offset + count * dtype.itemsize].view(dtype)

    def discard(self, offset: int, length: int | None = None) -> None:
        """Give whole pages from byte `offset` on back (of `length` bytes; None: to the end).

        They read as zero again.
        """
        start = -(-offset // PAGE) * PAGE
        end = self.nbytes if length is None else (offset + length) // PAGE * PAGE
        if start < end and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED, self._begin + start, end - start)

    def close(self) -> None:
        """Free the memory, unless an array that was handed out still looks at it."""
        self.bytes = np.empty(0, np.uint8)
        with contextlib.suppress(BufferError):
            self._map.close()
