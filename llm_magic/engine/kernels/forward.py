"""The forward pass on the CPU by our own kernels: one compiled function, called a few times a step.

The C sources in c/ are compiled by tinygrad's CPU compiler and bound as one tinygrad custom kernel
on tinygrad buffers. tinygrad loads the program and runs it once; from then on its function pointer
is called directly with a fixed argument block, which costs microseconds, and releases the GIL.
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_magic.errors import EngineError, UnsupportedModelError

from .. import device
from ..blocks import Config, Experts
from ..cpu import cpu_features
from ..forward import F32, I32, RowSummaries, StepResult, Taps
from ..gguf import GGUF, TensorInfo
from ..quants import QUANTS, dequantize, in_tile_blocks
from ..room import Need, check_fits
from . import job
from . import layout as lay
from .layout import KINDS, up
from .memory import Region
from .taps import table
from .targets import Target, choose, compiled, usable
from .team import Command, Team, available_cores

Progress = Callable[[str, int, int], None]
MAX_ROWS = 512
LOGIT_BYTES = 32 << 20  # of one step: scoring a text must not take what its length says
MIN_WANTED = 16


def supports(gguf: GGUF, config: Config) -> str | None:
    """Why the kernels cannot evaluate this model on this machine, or None if they can."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return "this system has no private anonymous mappings"
    if not usable(cpu_features()):
        return "this CPU lacks the instructions of every kernel variant"
    if config.head_dim > lay.MAX_HEAD:
        return f"heads of {config.head_dim} entries (at most {lay.MAX_HEAD})"
    parts = [block.feed_forward for block in config.blocks]
    if any(isinstance(part, Experts) and part.count > lay.MAX_EXPERTS for part in parts):
        return f"more than {lay.MAX_EXPERTS} experts"
    if len(config.ropes) > lay.MAX_ROPES:
        return f"more than {lay.MAX_ROPES} kinds of rotary embedding"
    for name, shape in config.tensors().items():
        quant = QUANTS.get(gguf.tensors[name].type)
        if len(shape) > 1 and quant is None:
            return f"no kernel for {gguf.tensors[name].type_name} ({name})"
    return None


def need(gguf: GGUF, config: Config, n_ctx: int, n_slots: int) -> Need:
    """The memory that `KernelForward` would take; only vectors of the file are read."""
    layout = _placed(gguf, config)
    _, scratch = lay.set_context(layout, config, n_ctx)
    return _need(layout, config, scratch, n_slots)


def _placed(gguf: GGUF, config: Config) -> lay.Layout:
    return lay.lay_out(config, gguf.tensors, dequantize, MAX_ROWS)


def _need(layout: lay.Layout, config: Config, scratch: int, n_slots: int) -> Need:
    row = up(config.n_vocab, 32)
    logits = _most_wanted(row, n_slots) * row * 4
    return Need(layout.weight_bytes, _position_bytes(layout), scratch + logits)


def _position_bytes(layout: lay.Layout) -> int:
    return int(layout.model[0]["kv_chunk"]) * 2 // lay.CHUNK


def _most_wanted(row: int, n_slots: int) -> int:
    """Rows of logits: as many as LOGIT_BYTES hold, but one of each slot in any case."""
    fit = max(MIN_WANTED, LOGIT_BYTES // (row * 4))
    return min(MAX_ROWS, max(fit, n_slots))


class KernelForward:
    """One model on the CPU. All calls come from one thread; see `Forward` for the contract.

    Weights are repacked once, from the file's mapping; afterwards the file may be closed.
    target: force a variant ("avx512vnni", ...); threads None: all cores the process may use.
    Build it inside `Gate.build`: tinygrad's graph is built here, and nowhere later.
    """

    def __init__(
        self,
        gguf: GGUF,
        config: Config,
        n_ctx: int,
        n_slots: int,
        threads: int | None = None,
        on_progress: Progress | None = None,
        target: str | None = None,
    ) -> None:
        if reason := supports(gguf, config):
            raise UnsupportedModelError(f"the kernel path cannot run this model: {reason}")
        config = config.at_context(n_ctx)
        self.config, self._n_ctx, self._n_slots = config, n_ctx, n_slots
        forced = target or os.environ.get("LLM_MAGIC_KERNEL") or None
        self.target: Target = choose(cpu_features(), forced)
        self._closed = self._many = False
        self._before = 0  # rows of the last step
        report = on_progress or (lambda stage, done, total: None)
        self._layout = _placed(gguf, config)
        # 16-bit numbers per slot, bytes
        self._slot, scratch = lay.set_context(self._layout, config, n_ctx)
        self._row = up(config.n_vocab, 32)
        check_fits(gguf.path.name, _need(self._layout, config, scratch, n_slots), n_ctx)
        self._weights = Region(self._layout.weight_bytes + lay.up(1, 4096), huge=True)
        self._kv, self._scratch, self._logits = self._sized(n_ctx, n_slots, self._slot, scratch)
        self._filled = np.zeros(n_slots, np.int64)  # positions ever written, per slot
        self._plan = Region(self._layout.model.nbytes + self._layout.layers.nbytes)
        words = job.HEAD + MAX_ROWS * (5 + 2 * lay.TOP_MAX)
        self._job = Region(words * 4)
        self._words: I32 = self._job.view(np.int32, words)
        self._team = Team(threads or available_cores())
        self._write_plan()
        report("compile", 0, 1)
        self._bind()
        report("compile", 1, 1)
        self._pack(report)

    # ------------------------------------------------------------------ the contract

    @property
    def n_vocab(self) -> int:
        return self.config.n_vocab

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_slots(self) -> int:
        return self._n_slots

    @property
    def max_rows(self) -> int:
        return MAX_ROWS

    @property
    def max_wanted(self) -> int:
        return self._wanted(self._n_slots)

    def _wanted(self, n_slots: int) -> int:
        return _most_wanted(self._row, n_slots)

    @property
    def threads(self) -> int:
        return self._team.threads

    @property
    def description(self) -> str:
        n = self._team.threads
        return f"{self.target.title}, {n} thread{'s' if n > 1 else ''}"

    @property
    def batch_invariant(self) -> bool:
        return True

    def step(
        self,
        tokens: I32,
        slots: I32,
        positions: I32,
        want: I32,
        top: int = 0,
        taps: Taps | None = None,
    ) -> StepResult:
        """See `Forward.step`. The logits are a view of memory that the next step overwrites.

        top: at most 32 entries. The kernel computes the summaries in the same call: a second call
        would cost another hand-over of the interpreter, which a running cell may hold.
        """
        n, m, words = len(tokens), len(want), self._words
        self._check(tokens, slots, positions, want)
        if not 0 <= top <= lay.TOP_MAX:
            raise EngineError(f"top is {top}; a step lists at most {lay.TOP_MAX} entries of a row")
        tapped = None if taps is None else self._tapped(taps, n)
        self._expect(m)
        if n <= lay.SHARED_ROWS < self._before:
            self._scratch.discard(0)  # a prompt has been read: its rows are not needed any more
        self._before = n
        n_taps = 0 if tapped is None else len(tapped)
        words[: len(job.WORDS)] = job.COMMAND["step"], n, m, top, n_taps
        if tapped is not None:
            words[job.TAPS : job.TAPS + 2].view(np.int64)[0] = tapped.ctypes.data
        at = job.HEAD
        for rows in (tokens, slots, positions, want):
            words[at : at + len(rows)] = rows
            at += MAX_ROWS
        if n == 1:  # numpy's general way costs 10 us
            slot = int(slots[0])
            self._filled[slot] = max(self._filled[slot], int(positions[0]) + 1)
        else:
            np.maximum.at(self._filled, slots, positions + 1)
        self._team.ready()
        self._call(*self._arguments)
        return StepResult(self._rows(m), self._summaries(m, top) if top and m else None)

    def unembed(self, hidden: F32, top: int = 0) -> StepResult:
        """See `Forward.unembed`. The logits are a view of memory that the next step overwrites."""
        n, dim = hidden.shape
        if not 1 <= n <= self.max_wanted or dim != self.config.dim or not 0 <= top <= lay.TOP_MAX:
            raise EngineError(f"{n} vectors of {dim} entries do not fit the model's output")
        self._expect(n)
        wide = up(dim, 32)
        rows = self._scratch.view(np.float32, n * wide, int(self._layout.model[0]["x"]))
        rows = rows.reshape(n, wide)
        rows[:, :dim], rows[:, dim:] = hidden, 0.0
        self._before = max(self._before, n)
        self._words[: len(job.WORDS)] = job.COMMAND["unembed"], n, n, top, 0
        self._team.ready()
        self._call(*self._arguments)
        return StepResult(self._rows(n), self._summaries(n, top) if top else None)

    def _tapped(self, taps: Taps, n: int) -> npt.NDArray[Any] | None:
        """The table of a step's taps; None without any."""
        found = table(taps, self.config, n, int(self._layout.model[0]["head_pad"]))
        return found if len(found) else None

    def _expect(self, m: int) -> None:
        """So many rows of logits come: the memory of more goes back to the system."""
        if self._many and m <= self._n_slots:
            self._logits.discard(self._n_slots * self._row * 4)
        self._many = m > self._n_slots

    def _summaries(self, m: int, top: int) -> RowSummaries:
        """What the last step wrote behind the job: argmax, log-sum-exp, ids and values by row."""
        at = job.HEAD + 4 * MAX_ROWS
        out = self._words[at : at + m * (1 + 2 * top)].copy()
        ids = out[m : m * (1 + top)].reshape(m, top)
        values = out[m * (1 + top) :].view(np.float32).reshape(m, top)
        return RowSummaries(out[:m].view(np.float32), ids, values)

    def copy(self, source: int, target: int, n: int) -> None:
        """Copy positions 0 .. n-1 of one slot's cache to another slot."""
        cache = self._kv.view(np.uint16, self._n_slots * self._slot).reshape(self._n_slots, -1)
        used = self._used(n)  # whole chunks: what lies behind n is written before it is read
        cache[target, :used] = cache[source, :used]
        self._filled[target] = max(self._filled[target], n)

    def forget(self, slot: int) -> None:
        """See `Forward.forget`."""
        self._kv.discard(slot * self._slot * 2, self._slot * 2)
        self._filled[slot] = 0

    def resize(self, n_ctx: int, n_slots: int) -> None:
        """Grow the KV cache, keeping what is in it. Sizes never shrink.

        EngineError where the system has no room for it: then all is as before.
        """
        n_ctx, n_slots = max(n_ctx, self._n_ctx), max(n_slots, self._n_slots)
        if (n_ctx, n_slots) == (self._n_ctx, self._n_slots):
            return
        old, before, model = self._kv, self._n_slots, self._layout.model.copy()
        slot, scratch = lay.set_context(self._layout, self.config, n_ctx)
        try:
            made = self._sized(n_ctx, n_slots, slot, scratch)
        except BaseException:
            self._layout.model[:] = model
            raise
        for region in (self._scratch, self._logits):
            region.close()
        self._kv, self._scratch, self._logits = made
        had = old.view(np.uint16, old.nbytes // 2)[: before * self._slot].reshape(before, -1)
        new = self._kv.view(np.uint16, n_slots * slot).reshape(n_slots, slot)
        for s, filled in enumerate(self._filled):
            used = self._used(int(filled))
            new[s, :used] = had[s, :used]
        del had, new
        self._slot, self._many, self._before = slot, False, 0
        self._filled = np.concatenate([self._filled, np.zeros(n_slots - self._n_slots, np.int64)])
        self._n_ctx, self._n_slots = n_ctx, n_slots
        self._write_plan()
        self._set_arguments()
        old.close()

    def set_threads(self, threads: int) -> None:
        """Share the steps among so many threads from now on."""
        self._team.resize(threads)

    @property
    def position_bytes(self) -> int:
        return _position_bytes(self._layout)

    @property
    def memory_bytes(self) -> int:
        """Weights, and the part of the cache that has been written."""
        if self._closed:
            return 0
        return self._layout.weight_bytes + 2 * sum(self._used(int(f)) for f in self._filled)

    def close(self) -> None:
        """Free weights and cache. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._team.stop()
        self._words = np.zeros(0, np.int32)
        for region in self._regions():
            region.close()

    # ------------------------------------------------------------------ inside

    def _sized(
        self, n_ctx: int, n_slots: int, slot: int, scratch: int
    ) -> tuple[Region, Region, Region]:
        """The memory that depends on the sizes: cache, scratch, logits."""
        try:
            return (
                Region(n_slots * slot * 2, huge=True),
                Region(scratch),
                Region(self._wanted(n_slots) * self._row * 4),
            )
        except MemoryError as e:
            raise EngineError(
                f"no room for {n_slots:,} conversations of {n_ctx:,} tokens: {e}; "
                "ask for a smaller ctx or for fewer slots"
            ) from e

    def _regions(self) -> tuple[Region, ...]:
        """In the order of the kernel's arguments."""
        return (self._job, self._plan, self._weights, self._kv, self._scratch, self._logits,
                self._team.memory)  # fmt: skip

    def _set_arguments(self) -> None:
        self._arguments = tuple(region.address for region in self._regions())

    def _write_plan(self) -> None:
        model, layers = self._layout.model, self._layout.layers
        raw = np.concatenate([model.view(np.uint8).reshape(-1), layers.view(np.uint8).reshape(-1)])
        self._plan.bytes[: len(raw)] = raw

    def _bind(self) -> None:
        """Have tinygrad compile and load the program, and take its function pointer.

        Nothing is realised for it and no setting of tinygrad changes: user code may run meanwhile
        on another thread, and what is realised would end up in a capture that it has under way.
        """
        from tinygrad import UOp, dtypes
        from tinygrad.uop.ops import KernelInfo, Ops, ProgramInfo

        text, binary = compiled(self.target)
        cpu = device.opened("CPU")
        buffers = [
            UOp.placeholder((region.nbytes,), dtypes.uint8, slot=i)
            for i, region in enumerate(self._regions())
        ]
        sink = UOp.sink(*buffers, arg=KernelInfo(name="llm_magic_kernel"))
        lines = UOp(Ops.LINEAR, src=tuple(sink.toposort()))
        parts = (sink, lines, UOp(Ops.SOURCE, arg=text), UOp(Ops.BINARY, arg=binary))
        info = ProgramInfo.from_sink(sink, cpu.renderer.target)
        self._program = cpu.runtime(UOp(Ops.PROGRAM, src=parts, arg=info).to_elf())
        pointers = [ctypes.c_void_p] * len(self._regions())
        self._call = ctypes.CFUNCTYPE(None, *pointers)(self._program.addr)
        self._team.bind(_commander(self._call, self._program))
        self._set_arguments()

    def _pack(self, report: Progress) -> None:
        """Repack all weights from the file's mapping into tiles."""
        done, total = 0, sum(m.tensor.nbytes for m in self._layout.matrices)
        for v in self._layout.vectors:
            self._weights.view(v.values.dtype, len(v.values), v.at)[:] = v.values
        self._words[job.WORD["command"]] = job.COMMAND["pack"]
        entry = self._job.view(lay.PACK, 1, 4 * job.PACK)
        self._team.ready()
        for m in self._layout.matrices:
            kind, data = in_tile_blocks(m.tensor)
            rows = None if m.rows is None else np.ascontiguousarray(m.rows)
            n, k = m.tensor.shape
            entry[0] = (data.ctypes.data, self._weights.address + m.at,
                        0 if rows is None else rows.ctypes.data, n, KINDS[kind],
                        k, m.tiles, 0)  # fmt: skip
            self._call(*self._arguments)
            _forget(m.tensor)
            done += m.tensor.nbytes
            report("weights", done, total)
        # Nothing looks at the file any more, so that it is unmapped when it is closed.
        nothing = np.empty(0, np.uint8)
        self._layout.matrices = [
            replace(m, tensor=replace(m.tensor, data=nothing)) for m in self._layout.matrices
        ]

    def _rows(self, m: int) -> F32:
        """The first m rows of logits, [m, n_vocab]."""
        logits: F32 = self._logits.view(np.float32, m * self._row).reshape(m, self._row)
        return logits[:, : self.config.n_vocab]

    def _used(self, filled: int) -> int:
        """Halves of a slot's cache that hold something: whole chunks from its start on."""
        return up(filled, lay.CHUNK) // lay.CHUNK * int(self._layout.model[0]["kv_chunk"])

    def _check(self, tokens: I32, slots: I32, positions: I32, want: I32) -> None:
        """A wrong index would write outside our memory: refuse it."""
        n, m = len(tokens), len(want)
        if not (
            0 < n <= MAX_ROWS
            and len(slots) == n == len(positions)
            and _within(tokens, self.config.n_vocab)
            and _within(slots, self._n_slots)
            and _within(positions, self._n_ctx)
            and (m == 0 or (m <= min(n, self.max_wanted) and _within(want, n)))
        ):
            raise EngineError("a row of the batch is outside the model's sizes")


def _within(values: I32, end: int) -> bool:
    """All of them are 0 .. end - 1."""
    if len(values) == 1:
        return 0 <= int(values[0]) < end
    return int(values.min()) >= 0 and int(values.max()) < end


def _commander(call: Callable[..., None], program: Any) -> Command:
    """Runs commands that concern the team alone. It keeps the program's code in memory."""

    def command(name: str, team: int) -> None:
        words = np.zeros(job.HEAD, np.int32)
        words[job.WORD["command"]] = job.COMMAND[name]
        call(words.ctypes.data, None, None, None, None, None, team)
        assert program is not None

    return command


def _forget(tensor: TensorInfo) -> None:
    """The file's pages of a repacked tensor need not stay in memory."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    base: Any = tensor.data.base
    while base is not None and not isinstance(base, mmap.mmap | memoryview):
        base = getattr(base, "base", None)
    source = base.obj if isinstance(base, memoryview) else base
    if isinstance(source, mmap.mmap):
        first = -(-tensor.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.offset + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            with contextlib.suppress(ValueError, OSError):
                source.madvise(mmap.MADV_DONTNEED, first, length)
