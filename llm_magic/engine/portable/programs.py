"""Memory of a tinygrad device, and captured programs that run without building a graph.

tinygrad's state is global to the process (engine/gate.py). So graphs are built in `Program.build`
only; a step reads nothing that another thread may change.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tinygrad import Tensor, TinyJit, UOp, dtypes
from tinygrad.device import Buffer, BufferSpec, TinyELF
from tinygrad.device import Device as TINY
from tinygrad.engine.realize import get_call_arg_uops, get_runtime, resolve_params
from tinygrad.uop.ops import Ops

from ..forward import F32

Bounds = Mapping[str, tuple[int, int]]  # variable -> least and greatest value
Values = Mapping[str, int]


class Array:
    """float32 memory on a device, zeros at first. On the CPU it is taken as it is touched."""

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.shape = shape
        # nolru: zeros from the system rather than what some other buffer left, and no memory
        # that stays with tinygrad after free().
        options = BufferSpec(nolru=True)
        self.buffer = Buffer(device, math.prod(shape), dtypes.float32, options=options).allocate()
        self.uop = UOp.from_buffer(self.buffer)
        # Kept, since looking a device up fails while another thread compiles (ALLOW_DEVICE_USAGE).
        self._device = TINY[device]
        self.host: F32 | None = None  # the memory itself, where it is the host's
        if device == "CPU":
            view = self.buffer.as_memoryview(force_zero_copy=True)
            self.host = np.frombuffer(view, np.float32).reshape(shape)
        else:
            self.write(np.zeros(shape, np.float32))

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * 4

    def tensor(self) -> Tensor:
        return Tensor(self.uop).reshape(self.shape)

    def write(self, values: F32) -> None:
        if self.host is not None:
            self.host[...] = values
        else:
            data = np.ascontiguousarray(values, np.float32).reshape(self.shape)
            self.buffer.allocator._copyin(self.buffer._buf, data.data.cast("B"))

    def read(self) -> F32:
        """The values; on the CPU a view that the next program may change."""
        self._device.synchronize()
        if self.host is not None:
            return self.host
        out = np.empty(self.shape, np.float32)
        self.buffer.allocator._copyout(out.data.cast("B"), self.buffer._buf)
        return out

    def copy_rows(self, source: "Array", n: int) -> None:
        """Take the first n rows of another array. On the CPU, untouched memory stays so."""
        if self.host is not None:
            self.host[:n] = source.read()[:n]
        else:
            values = self.read()
            values[:n] = source.read()[:n]
            self.write(values)

    def free(self) -> None:
        self.host = None
        if self.buffer.is_allocated():
            self.buffer.deallocate()


class Program:
    """A captured graph, to be run on other arrays of the same shapes and with other values."""

    def __init__(self, captured: Any) -> None:
        self.captured = captured

    @classmethod
    def build(
        cls, function: Callable[..., None], inputs: Sequence[Array], bounds: Bounds
    ) -> "Program":
        """Capture function(*tensors, *variables), run once with the least of each variable."""
        variables = [UOp.variable(name, *limits).bind(limits[0]) for name, limits in bounds.items()]
        jit: Any = TinyJit(function)
        jit.cnt = 1  # capture at once: the uncaptured run before it would build the graph twice
        jit(*(array.tensor() for array in inputs), *variables)
        return cls(jit.captured)

    def free(self) -> None:
        """Free what lies between its kernels."""
        self.captured.free_intermediates()


class Run:
    """Programs in a row, each with its arrays, as one call.

    On the CPU the kernels of all of them become a table of function addresses and arguments, which
    a few lines of C walk through: one call without the GIL. tinygrad takes some 20 us of Python for
    each kernel, a third of a step, and would wait for the GIL at each while a cell computes.
    Elsewhere tinygrad runs them. Arrays must not be freed before it is dropped.
    """

    def __init__(self, steps: Sequence[tuple[Program, Sequence[Array]]], device: str) -> None:
        self._steps = [(p.captured, [array.uop for array in inputs]) for p, inputs in steps]
        self._table = _Table.of(self._steps) if device == "CPU" else None

    def __call__(self, values: Sequence[Values]) -> None:
        """values: of the variables, for each program."""
        if self._table is not None:
            self._table.run(values)
            return
        for (captured, uops), of_program in zip(self._steps, values, strict=True):
            captured(uops, dict(of_program))


# ---------------------------------------------------------------------- the CPU's table

_ROW = 24  # a function and its arguments; layers take up to 15
_WALK = f"""
typedef unsigned long long u64;
typedef void (*kernel)({", ".join(["u64"] * (_ROW - 1))});
void walk(const u64* row, const u64* end) {{
  for (; row < end; row += {_ROW}) {{
    ((kernel)row[0])({", ".join(f"row[{i}]" for i in range(1, _ROW))});
  }}
}}
"""


class _Table:
    """Kernel calls of several programs: uint64 [n, _ROW], the function's address, then arguments.

    A kernel takes fewer arguments than a row has: in the calling conventions of C it does not see
    the rest.
    """

    def __init__(
        self, walk: Any, rows: list[list[int]], places: list[dict[str, list[int]]]
    ) -> None:
        self._walk = walk  # the loaded C function, kept as long as it may run
        self._rows = np.zeros((len(rows), _ROW), np.uint64)
        for row, values in zip(self._rows, rows, strict=True):
            row[: len(values)] = values
        self._flat = self._rows.reshape(-1)
        # For each program: variable -> where its value stands in the table.
        self._places = [{k: np.array(v, np.intp) for k, v in p.items()} for p in places]

    @classmethod
    def of(cls, steps: Sequence[tuple[Any, list[UOp]]]) -> "_Table | None":
        """The table of these programs, or None where a call is not a plain kernel."""
        walk = _walk()
        rows: list[list[int]] = []
        places: list[dict[str, list[int]]] = []
        for captured, uops in steps:
            places.append({})
            for call in captured.linear.src:
                found = _kernel_rows(call, tuple(uops), len(rows), places[-1])
                if walk is None or found is None:
                    return None
                rows += found
        return cls(walk, rows, places)

    def run(self, values: Sequence[Values]) -> None:
        for places, of_program in zip(self._places, values, strict=True):
            for name, where in places.items():
                self._flat[where] = of_program[name]
        start = self._rows.ctypes.data
        self._walk.fxn(ctypes.c_uint64(start), ctypes.c_uint64(start + self._rows.nbytes))


def _kernel_rows(
    call: UOp, uops: tuple[UOp, ...], at: int, places: dict[str, list[int]]
) -> list[list[int]] | None:
    """The rows of one kernel, which stand in the table from row `at` on: one for each of its parts.

    Writes into `places` where the values of variables go.
    """
    ast: Any = call.src[0]
    if ast.op is not Ops.PROGRAM or len(ast.arg.globals) + len(ast.arg.vars) >= _ROW:
        return None
    if any(u.is_bound_var for u in call.src[1:]) or len(get_call_arg_uops(call)) == 0:
        return None
    parts = ast.arg.global_size[0]  # tinygrad's "threads", which it runs one after the other
    if not all(isinstance(size, int) for size in ast.arg.global_size):
        return None
    resolved = resolve_params(call, uops)
    buffers: list[Any] = [resolved[i].buffer for i in ast.arg.globals]
    addresses = [b.ensure_allocated().get_buf("CPU").va_addr for b in buffers]
    function = get_runtime("CPU", ast).addr  # stays loaded: tinygrad's cache holds it
    names = [variable.expr for variable in ast.arg.vars]
    rows = []
    for part in range(parts):
        first = (at + part) * _ROW + 1 + len(addresses)
        for i, name in enumerate(names):
            if name != "core_id":
                places.setdefault(name, []).append(first + i)
        rows.append([function, *addresses, *(part if name == "core_id" else 0 for name in names)])
    return rows


@functools.cache
def _walk() -> Any:
    """The C function, loaded; None where tinygrad does not compile C for its CPU device."""
    device: Any = TINY["CPU"]
    renderer = device.renderer
    if type(renderer.compiler).__name__ != "ClangCompiler":
        return None
    lib = renderer.compiler.compile_cached(_WALK)
    return device.runtime(TinyELF(lib, "walk", renderer.target, ()))
