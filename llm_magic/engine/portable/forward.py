"""The portable forward pass: pure tinygrad operations in float32, on any tinygrad device.

It is the reference for the kernels: exact weights, float32 keys and values, no shortcut that
changes a number.

Two programs are compiled, each for 1 and for CHUNK rows: one layer, and the output (norm and
vocabulary). All layers of the same block run the same program on their own weights. Positions enter
as variables, and attention reads only the blocks of the cache that hold something, so nothing is
compiled after loading. What else differs between layers is data: the rotation angles come from the
host for each chunk, a layer that does not turn has angles of 0, a window is a variable, and a layer
without one has a window of the whole context.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import device as devices
from ..blocks import Block, Config
from ..forward import F32, I32, StepResult, Taps
from ..gate import Gate
from ..gguf import GGUF, TensorInfo
from ..quants import decode, dequantize
from ..room import Need, check_fits
from ..rope import Rope
from . import graph
from .graph import BLOCK, LANES
from .programs import Array, Program, Run, Values
from .taps import TappedLayers, part
from .taps import check as check_taps
from .weights import Say, load_weights

CHUNK = 8  # rows of the program for prompts: small enough that a step can stop soon
SIZES = (1, CHUNK)
FEW = 2  # so many rows take less time alone than in a chunk that is filled up
MAX_ROWS = 32


def need(config: Config) -> Need:
    """The memory that `Portable` would take on the CPU: weights as float32.

    An embedding that is not the output matrix too stays in the file.
    """
    spare = set() if config.tied else {config.source("embedding").name}
    shapes = [shape for name, shape in config.tensors().items() if name not in spare]
    weights = 4 * sum(math.prod(shape) for shape in shapes)
    logits = 4 * sum(SIZES) * -(-config.n_tokens // LANES) * LANES
    return Need(weights, _position_bytes(config), logits)


def _position_bytes(config: Config) -> int:
    return 2 * config.n_layers * config.kv_dim * 4


class Portable:
    """A model with its KV cache as plain tinygrad programs. All calls come from one thread.

    Whoever constructs it holds the gate (graphs are built); `resize` takes the gate itself.
    """

    def __init__(
        self,
        gguf: GGUF,
        config: Config,
        n_ctx: int,
        n_slots: int,
        device: str = "CPU",
        gate: Gate | None = None,
        on_progress: Say | None = None,
    ) -> None:
        config = config.at_context(n_ctx)
        self.config, self.device = config, device
        if device == "CPU":
            check_fits(gguf.path.name, need(config), n_ctx)
        self._gate = gate or Gate()
        self._say: Say = on_progress or (lambda stage, done, total: None)
        self._n_ctx, self._n_slots = n_ctx, n_slots
        self._embedding: TensorInfo | None = config.source("embedding").of(gguf.tensors)
        self._table: F32 | None = None  # of positions, where the model has one
        if "positions" in config.extras:
            table = config.source("positions").of(gguf.tensors)
            self._table = dequantize(table).reshape(table.shape)
        self._weights = load_weights(gguf, config, device, self._say)
        self._angles = _Angles.of(gguf, config, device)
        self._x = {t: (self._array(t, config.dim), self._array(t, config.dim)) for t in SIZES}
        n_logits = self._weights.output["output"].shape[0] * LANES
        self._logits = {t: self._array(t, n_logits) for t in SIZES}
        self._caches = [self._new_cache(n_ctx) for _ in range(n_slots)]
        self._filled = [0] * n_slots  # positions of each slot whose memory was touched
        self._programs: dict[tuple[Block | None, int], Program] = {}  # None: the output's
        self._runs: dict[tuple[int, int], Run] = {}  # (rows, slot) -> all layers
        self._outputs: dict[int, Run] = {}
        self._tapped: TappedLayers | None = None  # built when the first step needs it
        self._rows = np.zeros((CHUNK, config.dim), np.float32)
        self.warm_up(self._say)

    # ------------------------------------------------------------------ sizes

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
        return MAX_ROWS

    @property
    def description(self) -> str:
        return f"portable, {self.device}"

    @property
    def closed(self) -> bool:
        return self._embedding is None

    @property
    def position_bytes(self) -> int:
        return _position_bytes(self.config)

    def forget(self, slot: int) -> None:
        """See `Forward.forget`. The memory stays: programs are bound to it."""

    @property
    def memory_bytes(self) -> int:
        """Weights and KV cache; on the CPU, the filled part of the cache: the rest is not there."""
        if self.closed:
            return 0
        weights = sum(array.nbytes for array in self._weights.all())
        if self.device != "CPU":
            return weights + sum(array.nbytes for cache in self._caches for array in cache.all())
        return weights + self.position_bytes * sum(self._filled)

    # ------------------------------------------------------------------ programs

    def warm_up(self, on_progress: Say) -> None:
        """Build and compile every program, so that no step has to. Call while holding the gate."""
        with devices.building():
            wanted = [(kind, t) for t in SIZES for kind in (*self.config.blocks, None)]
            for i, (kind, t) in enumerate(wanted):
                on_progress("compile", i, len(wanted))
                if kind is None:
                    self._programs[kind, t] = self._build_output(t)
                else:
                    self._programs[kind, t] = self._build_layer(kind, t, self._caches[0])
        self._plan()
        on_progress("compile", len(wanted), len(wanted))

    def _build_layer(self, kind: Block, t: int, cache_of_slot: "_Cache") -> Program:
        first = next(i for i, layer in enumerate(self.config.layers) if layer.block == kind)
        weights = self._weights.layers[first]
        angles = self._angles.of_layer(first, t)
        # Capturing runs it once: on a cache of its own, since the real one may be in use.
        shape = cache_of_slot.keys[0].shape
        cache, positions = [self._array(*shape), self._array(*shape)], shape[0]
        inputs = [*self._x[t], *angles, *weights.values(), *cache]
        names, config, rope = tuple(weights), self.config, self._angles.rope

        def layer(*args: Any) -> None:
            x, out, *rest = args[: len(inputs)]
            turn = graph.Turn(rope, rest.pop(0), rest.pop(0)) if rope else None
            w = dict(zip(names, rest[: len(names)], strict=True))
            at = graph.Where(*args[len(inputs) :])
            cache = graph.Cache(*rest[len(names) :])
            out.assign(graph.block(config, kind, w, x, turn, cache, at)).realize()

        bounds = {
            "first": (0, positions // BLOCK - 1),
            "blocks": (1, positions // BLOCK),
            "position": (0, positions - t),
            "window": (1, positions),
        }
        program = Program.build(layer, inputs, bounds)
        for array in cache:
            array.free()
        return program

    def _build_output(self, t: int) -> Program:
        config, names = self.config, tuple(self._weights.output)

        def output(x: Any, logits: Any, *weights: Any) -> None:
            w = dict(zip(names, weights, strict=True))
            logits.assign(graph.output(config, w, x)).realize()

        return Program.build(output, self._output_arrays(t), {})

    def _output_arrays(self, t: int) -> list[Array]:
        return [self._x[t][0], self._logits[t], *self._weights.output.values()]

    def _plan(self) -> None:
        """Lay out the runs of a step. Builds no graph."""
        for t in SIZES:
            program = self._programs[None, t]
            self._outputs[t] = Run([(program, self._output_arrays(t))], self.device)
            for slot in range(self._n_slots):
                if (t, slot) not in self._runs:
                    self._runs[t, slot] = self._layer_run(t, self._caches[slot])

    def _layer_run(self, t: int, cache: "_Cache") -> Run:
        here, there = self._x[t]
        steps = []
        for i, layer in enumerate(self.config.layers):
            angles, weights = self._angles.of_layer(i, t), self._weights.layers[i].values()
            inputs = [here, there, *angles, *weights, cache.keys[i], cache.values[i]]
            steps.append((self._programs[layer.block, t], inputs))
            here, there = there, here
        return Run(steps, self.device)

    # ------------------------------------------------------------------ steps

    @property
    def batch_invariant(self) -> bool:
        return False

    def step(
        self,
        tokens: I32,
        slots: I32,
        positions: I32,
        want: I32,
        top: int = 0,
        taps: Taps | None = None,
    ) -> StepResult:
        """See Forward.step. Rows of one slot are cut into chunks of CHUNK rows or 1.

        The last chunk of a slot may be filled up: positions after its last row then hold keys and
        values of nothing, which no row can see before they are written again.
        """
        self._check(tokens, slots, positions)
        if taps is not None:
            check_taps(taps, self.config, len(tokens))
        x = self._embed(tokens, positions)  # [n, dim]
        wanted = np.empty((len(want), self.config.dim), np.float32)
        for first, last in _chunks(slots):
            slot, position = int(slots[first]), int(positions[first])
            if taps is None:
                hidden = self._layers(x[first:last], slot, position)
            else:
                hidden = self._tapped_layers(x[first:last], slot, position, part(taps, first, last))
            a, b = np.searchsorted(want, (first, last))
            wanted[a:b] = hidden[want[a:b] - first]
        return StepResult(self._vocabulary(wanted))

    def unembed(self, hidden: F32, top: int = 0) -> StepResult:
        """See `Forward.unembed`."""
        return StepResult(self._vocabulary(hidden))

    def _check(self, tokens: I32, slots: I32, positions: I32) -> None:
        """Programs do not check what they are given: a wrong number here would write anywhere."""
        if self.closed:
            raise RuntimeError("this forward pass is closed")
        n = len(tokens)
        limits = ((tokens, self.n_vocab), (slots, self.n_slots), (positions, self.n_ctx))
        if not 1 <= n <= MAX_ROWS or any(len(array) != n for array, _ in limits):
            raise ValueError(f"a step takes 1 to {MAX_ROWS} rows, each with token, slot, position")
        for array, limit in limits:
            if array.min() < 0 or array.max() >= limit:
                raise ValueError(f"token, slot or position outside 0 to {limit - 1}")

    def _embed(self, tokens: I32, positions: I32) -> F32:
        """Rows of the embedding, decoded from the file's mapping: memory holds no second copy."""
        info, config = self._embedding, self.config
        assert info is not None
        rows = info.data.reshape(config.n_vocab, -1)[tokens]
        x = decode(info.type, rows.reshape(-1)).reshape(len(tokens), config.dim)
        x = x if config.embedding_scale == 1.0 else x * np.float32(config.embedding_scale)
        return x if self._table is None else x + self._table[positions]

    def _layers(self, x: F32, slot: int, position: int) -> F32:
        """Run all layers on rows of one slot; float32 [n, dim] after the last."""
        n, t = len(x), 1 if len(x) == 1 else CHUNK
        self._rows[:n], self._rows[n:] = x, 0.0
        self._x[t][0].write(self._rows[:t])
        self._angles.write(t, position)
        windows = [layer.window for layer in self.config.layers]
        values = {window: self._values(t, position, window) for window in set(windows)}
        self._runs[t, slot]([values[window] for window in windows])
        self._filled[slot] = max(self._filled[slot], position + t)
        last = self._x[t][self.config.n_layers % 2]
        return last.read()[:n]

    def _tapped_layers(self, x: F32, slot: int, position: int, taps: Taps) -> F32:
        """As `_layers`, with stops at every point of a layer."""
        if self._tapped is None:
            with self._gate.build(), devices.building():
                shape = self._caches[0].keys[0].shape
                rope, angles = self._angles.rope, self._angles.of_layer
                self._tapped = TappedLayers(
                    self.config, self._weights, rope, angles, SIZES, shape, self.device
                )
        t = 1 if len(x) == 1 else CHUNK
        self._angles.write(t, position)
        values = [self._values(t, position, layer.window) for layer in self.config.layers]
        cache = self._caches[slot]
        out = self._tapped.run(x, position, values, cache.keys, cache.values, taps)
        self._filled[slot] = max(self._filled[slot], position + t)
        return out

    def _values(self, t: int, position: int, window: int | None) -> Values:
        """The variables of a layer with this window, for rows from `position` on."""
        window = min(window or self._n_ctx, self._n_ctx)
        first = max(0, position - window + 1) // BLOCK
        blocks = (position + t - 1) // BLOCK - first + 1
        return {"first": first, "blocks": blocks, "position": position, "window": window}

    def _vocabulary(self, hidden: F32) -> F32:
        """Logits of rows that left the last layer: [m, dim] -> [m, n_vocab]."""
        out = np.empty((len(hidden), self.n_vocab), np.float32)
        done = 0
        while done < len(hidden):
            t = CHUNK if len(hidden) - done > 1 else 1
            n = min(t, len(hidden) - done)
            self._rows[:n], self._rows[n:] = hidden[done : done + n], 0.0
            self._x[t][0].write(self._rows[:t])
            self._outputs[t]([{}])
            out[done : done + n] = self._logits[t].read()[:n, : self.n_vocab]
            done += n
        return out

    # ------------------------------------------------------------------ the cache

    def copy(self, source: int, target: int, n: int) -> None:
        """See Forward.copy."""
        if source == target or n == 0:
            return
        for a, b in zip(self._caches[source].all(), self._caches[target].all(), strict=True):
            b.copy_rows(a, n)
        self._filled[target] = max(self._filled[target], n)

    def resize(self, n_ctx: int, n_slots: int) -> None:
        """See Forward.resize. A larger context builds the layer's programs again. Where memory or a
        compiler fails, all is as before: so old and new caches are held at once."""
        n_ctx, n_slots = max(n_ctx, self._n_ctx), max(n_slots, self._n_slots)
        if (n_ctx, n_slots) == (self._n_ctx, self._n_slots):
            return
        with self._gate.build():
            kept = 0 if n_ctx > self._n_ctx else self._n_slots
            caches = [self._new_cache(n_ctx) for _ in range(n_slots - kept)]
            if not kept:
                self._grow_context(n_ctx, caches[: self._n_slots])
            self._caches += caches[self._n_slots - kept :]
            self._filled += [0] * (n_slots - self._n_slots)
            self._n_slots = n_slots
            self._plan()

    def _grow_context(self, n_ctx: int, caches: list["_Cache"]) -> None:
        with devices.building():
            programs: dict[tuple[Block | None, int], Program] = {
                (kind, t): self._build_layer(kind, t, caches[0])
                for kind in self.config.blocks
                for t in SIZES
            }
        for slot, (old, new) in enumerate(zip(self._caches, caches, strict=True)):
            for a, b in zip(old.all(), new.all(), strict=True):
                b.copy_rows(a, min(self._filled[slot], a.shape[0]))
                a.free()
        for key, program in programs.items():
            self._programs[key].free()
            self._programs[key] = program
        self._caches, self._n_ctx = caches, n_ctx
        self._runs.clear()
        self._drop_tapped()

    def _drop_tapped(self) -> None:
        if self._tapped is not None:
            self._tapped.free()
            self._tapped = None

    def _new_cache(self, n_ctx: int) -> "_Cache":
        # Room for a filled-up chunk at the end, in whole blocks.
        positions = -(-(n_ctx + CHUNK - 1) // BLOCK) * BLOCK
        shape = (positions, self.config.n_kv_heads, self.config.head_dim)
        n = self.config.n_layers
        return _Cache(
            [self._array(*shape) for _ in range(n)], [self._array(*shape) for _ in range(n)]
        )

    def _array(self, *shape: int) -> "Array":
        return Array(shape, self.device)

    def close(self) -> None:
        """See Forward.close."""
        if self.closed:
            return
        self._embedding = None
        self._drop_tapped()
        arrays = [*self._weights.all(), *self._angles.all(), *self._logits.values()]
        arrays += [array for pair in self._x.values() for array in pair]
        arrays += [array for cache in self._caches for array in cache.all()]
        for program in self._programs.values():
            program.free()
        for array in arrays:
            array.free()
        self._programs.clear()
        self._runs.clear()
        self._outputs.clear()
        self._caches.clear()
        devices.free_unused(self.device)


def _chunks(slots: I32) -> Iterator[tuple[int, int]]:
    """Cut rows into (first, last + 1): one slot each, CHUNK rows or less, FEW rows alone."""
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[first] or i - first == CHUNK:
            if i - first > FEW:
                yield first, i
            else:
                yield from ((row, row + 1) for row in range(first, i))
            first = i


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys and values of one slot, an array [positions, n_kv_heads, head_dim] per layer."""

    keys: list[Array]
    values: list[Array]

    def all(self) -> list[Array]:
        return [*self.keys, *self.values]


@dataclass(frozen=True, slots=True)
class _Angles:
    """cos and sin of the rotation angles of a chunk's rows, [t, 1, dim / 2] for each kind of rope.

    Computed on the host in float64: float32 angles are off by 1e-3 at position 10,000. rope: any of
    the model's, for what all have in common; None: no layer turns.
    """

    rope: Rope | None
    kinds: tuple[Rope | None, ...]  # of the layers
    frequencies: dict[Rope | None, npt.NDArray[np.float64]]
    arrays: dict[tuple[Rope | None, int], tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, gguf: GGUF, config: Config, device: str) -> "_Angles":
        rope = next((rope for rope in config.ropes if rope), None)
        kinds = tuple(layer.rope for layer in config.layers)
        self = cls(rope, kinds, {})
        for kind in config.ropes if rope else ():
            self.frequencies[kind] = _frequencies(gguf, config, kind, rope)
            for t in SIZES:
                shape = (t, 1, len(self.frequencies[kind]))
                self.arrays[kind, t] = Array(shape, device), Array(shape, device)
        return self

    def of_layer(self, layer: int, t: int) -> tuple[Array, ...]:
        """cos and sin for t rows of a layer; nothing where no layer turns."""
        return self.arrays[self.kinds[layer], t] if self.rope else ()

    def write(self, t: int, position: int) -> None:
        """Set the angles for rows at position .. position + t - 1."""
        for rope, frequencies in self.frequencies.items():
            angles = np.arange(position, position + t)[:, None, None] * frequencies
            by = rope.magnitude if rope else 1.0
            cos, sin = self.arrays[rope, t]
            cos.write((by * np.cos(angles)).astype(np.float32))
            sin.write((by * np.sin(angles)).astype(np.float32))

    def all(self) -> list[Array]:
        return [array for pair in self.arrays.values() for array in pair]


def _frequencies(
    gguf: GGUF, config: Config, kind: Rope | None, rope: Rope | None
) -> npt.NDArray[np.float64]:
    """Radians per position of a kind of rope; zeros for layers that do not turn."""
    if kind is None:
        return np.zeros(rope.dim // 2 if rope else 0)
    factors = None
    if kind.factors:
        factors = dequantize(config.source(kind.factors).of(gguf.tensors)).reshape(-1)
    return kind.inv_freq(factors)
