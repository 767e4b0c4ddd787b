"""The portable forward pass: pure tinygrad operations in float32, on any tinygrad device.

Comes in: an open GGUF and its Config, then rows (token id, slot, position). Goes out: logits of
chosen rows (engine/forward.py). It is the oracle of the kernels: exact weights, float32 keys and
values, no shortcut that changes a number. It must not know requests, text or threads.

Two programs are compiled, each for 1 and for CHUNK rows: one layer, and the output (norm and
vocabulary). All layers run the same program on their own weights. Positions enter as variables, and
attention reads only the blocks of the cache that hold something, so nothing is compiled after
loading. What differs between layers is data: the rotation angles come from the host for each chunk,
a window is a variable, and a layer without one has a window of the whole context.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tinygrad import Tensor, TinyJit, UOp, dtypes
from tinygrad.device import Buffer, BufferSpec
from tinygrad.device import Device as TINY

from . import device as devices
from .arch import MODEL_WEIGHTS, Config, Rope, layer_weight
from .forward import F32, I32
from .gate import Gate
from .gguf import GGUF, TensorInfo
from .quants import decode, dequantize

Say = Callable[[str, int, int], None]  # (stage, done, total)

CHUNK = 8  # rows of the program for prompts: small enough that a step can stop soon
MAX_ROWS = 32
LANES = 16  # outputs that lie beside each other in a matrix, see _Array.panels
SPLIT = 8  # parts of a dot product for one row, see _product
BLOCK = 64  # cache positions that attention reads at once
PIECE = 4096  # rows of a matrix that are decoded at once while loading: bounds the memory for it


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
        self.config, self.device = config, device
        self._gate = gate or Gate()
        self._say: Say = on_progress or (lambda stage, done, total: None)
        self._n_ctx, self._n_slots = n_ctx, n_slots
        self._embedding: TensorInfo | None = gguf.tensors[MODEL_WEIGHTS["embedding"]]
        self._weights = _load_weights(gguf, config, device, self._say)
        self._angles = _Angles.of(gguf, config, device)
        self._x = {t: (self._array(t, config.dim), self._array(t, config.dim)) for t in SIZES}
        self._logits = {t: self._array(t, self._weights.output.shape[0] * LANES) for t in SIZES}
        self._caches = [self._new_cache(n_ctx) for _ in range(n_slots)]
        self._filled = [0] * n_slots  # positions of each slot whose memory was touched
        self._programs: dict[tuple[str, int], _Program] = {}
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
    def description(self) -> str:
        return f"portable, {self.device}"

    @property
    def closed(self) -> bool:
        return self._embedding is None

    @property
    def memory_bytes(self) -> int:
        """Weights and KV cache; on the CPU, the filled part of the cache: the rest is not there."""
        if self.closed:
            return 0
        weights = sum(array.nbytes for array in self._weights.all())
        if self.device != "CPU":
            return weights + sum(array.nbytes for cache in self._caches for array in cache.all())
        per_position = 2 * self.config.n_layers * self.config.kv_dim * 4
        return weights + per_position * sum(self._filled)

    # ------------------------------------------------------------------ programs

    def warm_up(self, on_progress: Say) -> None:
        """Build and compile every program, so that no step has to. Call while holding the gate."""
        with devices.building():
            for i, t in enumerate(SIZES):
                on_progress("compile", 2 * i, 2 * len(SIZES))
                self._programs["layer", t] = self._build_layer(t)
                on_progress("compile", 2 * i + 1, 2 * len(SIZES))
                self._programs["output", t] = self._build_output(t)
        on_progress("compile", 2 * len(SIZES), 2 * len(SIZES))

    def _build_layer(self, t: int) -> "_Program":
        weights = self._weights.layers[0]
        cos, sin = self._angles.arrays[self.config.layers[0].rope, t]
        # Capturing runs it once: on a cache of its own, since the real one may be in use.
        shape = self._caches[0].keys[0].shape
        cache, positions = [self._array(*shape), self._array(*shape)], shape[0]
        inputs = [*self._x[t], cos, sin, *weights.values(), *cache]
        names, config = tuple(weights), self.config

        def layer(*args: Any) -> None:
            x, out, cos, sin, *rest = args[: len(inputs)]
            keys, values = rest[len(names) :]
            at = _Where(*args[len(inputs) :])
            w = dict(zip(names, rest[: len(names)], strict=True))
            x = x + _attention(config, w, x, cos, sin, keys, values, at)
            out.assign(x + _feed_forward(config, w, x)).realize()

        bounds = {
            "first": (0, positions // BLOCK - 1),
            "blocks": (1, positions // BLOCK),
            "position": (0, positions - t),
            "window": (1, positions),
        }
        program = _Program.build(layer, inputs, bounds)
        for array in cache:
            array.free()
        return program

    def _build_output(self, t: int) -> "_Program":
        config = self.config
        x, logits = self._x[t][0], self._logits[t]

        def output(x: Tensor, norm: Tensor, matrix: Tensor, logits: Tensor) -> None:
            values = _product(_norm(x, norm, config.norm_eps).contiguous(), matrix)
            logits.assign(_soft_cap(values, config.logit_softcap)).realize()

        inputs = [x, self._weights.output_norm, self._weights.output, logits]
        return _Program.build(output, inputs, {})

    # ------------------------------------------------------------------ steps

    def step(self, tokens: I32, slots: I32, positions: I32, want: I32) -> F32:
        """See Forward.step. Rows of one slot are cut into chunks of CHUNK rows or 1.

        The last chunk of a slot may be filled up: positions after its last row then hold keys and
        values of nothing, which no row can see before they are written again.
        """
        self._check(tokens, slots, positions)
        x = self._embed(tokens)  # [n, dim]
        wanted = np.empty((len(want), self.config.dim), np.float32)
        for first, last in _chunks(slots):
            slot, position = int(slots[first]), int(positions[first])
            hidden = self._layers(x[first:last], slot, position)
            a, b = np.searchsorted(want, (first, last))
            wanted[a:b] = hidden[want[a:b] - first]
        return self._vocabulary(wanted)

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

    def _embed(self, tokens: I32) -> F32:
        """Rows of the embedding, decoded from the file's mapping: memory holds no second copy."""
        info, config = self._embedding, self.config
        assert info is not None
        rows = info.data.reshape(config.n_vocab, -1)[tokens]
        x = decode(info.type, rows.reshape(-1)).reshape(len(tokens), config.dim)
        return x if config.embedding_scale == 1.0 else x * np.float32(config.embedding_scale)

    def _layers(self, x: F32, slot: int, position: int) -> F32:
        """Run all layers on rows of one slot; float32 [n, dim] after the last."""
        n, t = len(x), 1 if len(x) == 1 else CHUNK
        here, there = self._x[t]
        self._rows[:n], self._rows[n:] = x, 0.0
        here.write(self._rows[:t])
        self._angles.write(t, position)
        program, cache = self._programs["layer", t], self._caches[slot]
        last_block = (position + t - 1) // BLOCK
        for i, layer in enumerate(self.config.layers):
            window = min(layer.window or self._n_ctx, self._n_ctx)
            first = max(0, position - window + 1) // BLOCK
            angles = self._angles.arrays[layer.rope, t]
            weights = self._weights.layers[i].values()
            program(
                [here, there, *angles, *weights, cache.keys[i], cache.values[i]],
                {
                    "first": first,
                    "blocks": last_block - first + 1,
                    "position": position,
                    "window": window,
                },
            )
            here, there = there, here
        self._filled[slot] = max(self._filled[slot], position + t)
        return here.read()[:n]

    def _vocabulary(self, hidden: F32) -> F32:
        """Logits of rows that left the last layer: [m, dim] -> [m, n_vocab]."""
        out = np.empty((len(hidden), self.n_vocab), np.float32)
        done = 0
        while done < len(hidden):
            t = CHUNK if len(hidden) - done > 1 else 1
            n = min(t, len(hidden) - done)
            self._rows[:n], self._rows[n:] = hidden[done : done + n], 0.0
            x, logits = self._x[t][0], self._logits[t]
            x.write(self._rows[:t])
            output = (x, self._weights.output_norm, self._weights.output, logits)
            self._programs["output", t](output, {})
            out[done : done + n] = logits.read()[:n, : self.n_vocab]
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
        """See Forward.resize. A larger context builds the layer's programs again."""
        n_ctx, n_slots = max(n_ctx, self._n_ctx), max(n_slots, self._n_slots)
        if n_ctx > self._n_ctx:
            with self._gate.build():
                self._grow_context(n_ctx)
        while self._n_slots < n_slots:
            self._caches.append(self._new_cache(self._n_ctx))
            self._filled.append(0)
            self._n_slots += 1

    def _grow_context(self, n_ctx: int) -> None:
        for slot, old in enumerate(self._caches):
            new = self._new_cache(n_ctx)
            for a, b in zip(old.all(), new.all(), strict=True):
                b.copy_rows(a, min(self._filled[slot], a.shape[0]))
                a.free()
            self._caches[slot] = new
        self._n_ctx = n_ctx
        with devices.building():
            for t in SIZES:
                self._programs.pop(("layer", t)).free()
                self._programs["layer", t] = self._build_layer(t)

    def _new_cache(self, n_ctx: int) -> "_Cache":
        # Room for a filled-up chunk at the end, in whole blocks.
        positions = -(-(n_ctx + CHUNK - 1) // BLOCK) * BLOCK
        shape = (positions, self.config.n_kv_heads, self.config.head_dim)
        n = self.config.n_layers
        return _Cache(
            [self._array(*shape) for _ in range(n)], [self._array(*shape) for _ in range(n)]
        )

    def _array(self, *shape: int) -> "_Array":
        return _Array(shape, self.device)

    def close(self) -> None:
        """See Forward.close."""
        if self.closed:
            return
        self._embedding = None
        arrays = [*self._weights.all(), *self._angles.all(), *self._logits.values()]
        arrays += [array for pair in self._x.values() for array in pair]
        arrays += [array for cache in self._caches for array in cache.all()]
        for program in self._programs.values():
            program.free()
        for array in arrays:
            array.free()
        self._programs.clear()
        self._caches.clear()
        devices.free_unused(self.device)


SIZES = (1, CHUNK)


def _chunks(slots: I32) -> Iterator[tuple[int, int]]:
    """Cut rows into (first, last + 1): one slot each, at most CHUNK rows."""
    first = 0
    for i in range(1, len(slots) + 1):
        if i == len(slots) or slots[i] != slots[first] or i - first == CHUNK:
            yield first, i
            first = i


# ---------------------------------------------------------------------- the graphs


@dataclass(frozen=True, slots=True)
class _Where:
    """The variables of the layer's program: rows position .. position + t - 1 of one slot.

    first, blocks: the part of the cache to read, in blocks. window: rows that a row may see.
    """

    first: UOp
    blocks: UOp
    position: UOp
    window: UOp


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def _soft_cap(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else (x / cap).tanh() * cap


def _product(x: Tensor, panels: Tensor) -> Tensor:
    """x [t, inputs] times a matrix in panels [outputs / LANES, inputs, LANES] -> [t, outputs].

    The lanes are outputs that lie beside each other: tinygrad makes vector instructions of them.
    One row alone has too few outputs for its heuristics, and sums that wait for each other: its dot
    products are cut into SPLIT parts, which are added afterwards.
    """
    t, (n_panels, inputs, lanes) = x.shape[0], panels.shape
    parts = math.gcd(inputs, SPLIT) if t == 1 else 1
    x = x.reshape(t, 1, parts, 1, inputs // parts)
    w = panels.reshape(1, n_panels, parts, inputs // parts, lanes).transpose(-1, -2)
    sums = (x * w).sum(-1)  # [t, n_panels, parts, lanes]
    if parts > 1:
        sums = sums.contiguous()
    return sums.sum(2).reshape(t, n_panels * lanes)


def _rotate(x: Tensor, rope: Rope, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x [t, heads, head_dim]; cos, sin [t, 1, dim / 2]."""
    t, heads, head_dim = x.shape
    turned, rest = x[..., : rope.dim], x[..., rope.dim :]
    if rope.pairs == "adjacent":
        pairs = turned.reshape(t, heads, rope.dim // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        turned = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=-1)
        turned = turned.reshape(t, heads, rope.dim)
    else:
        a, b = turned[..., : rope.dim // 2], turned[..., rope.dim // 2 :]
        turned = (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)
    return turned if rope.dim == head_dim else turned.cat(rest, dim=-1)


def _attention(
    config: Config,
    w: dict[str, Tensor],
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    at: _Where,
) -> Tensor:
    """What attention adds to x [t, dim]. Writes this chunk's rows of keys and values first."""
    t, kv, head_dim = x.shape[0], config.n_kv_heads, config.head_dim
    heads, rope = config.n_heads, config.layers[0].rope
    h = _norm(x, w["attn_norm"], config.norm_eps).contiguous()
    qkv = _product(h, w["attn_qkv"])
    if config.qkv_bias:
        qkv = qkv + w["attn_qkv_bias"]
    qkv = qkv.contiguous()[:, : (heads + 2 * kv) * head_dim].reshape(t, heads + 2 * kv, head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv], qkv[:, heads + kv :]
    if config.qk_norm:
        q = _norm(q, w["attn_q_norm"], config.norm_eps).contiguous()
        k = _norm(k, w["attn_k_norm"], config.norm_eps).contiguous()
    q = _rotate(q, rope, cos, sin).contiguous()
    rows = ((at.position, at.position + t), None, None)
    keys.shrink(rows).assign(_rotate(k, rope, cos, sin))
    values.shrink(rows).assign(v)
    out = _attend(config, q, keys, values, at)  # [t, heads * head_dim]
    out = _product(out, w["attn_output"])[:, : config.dim]
    if config.output_bias:
        out = out + w["attn_output_bias"]
    if config.post_norms:
        out = _norm(out.contiguous(), w["post_attention_norm"], config.norm_eps)
    return out


def _attend(config: Config, q: Tensor, keys: Tensor, values: Tensor, at: _Where) -> Tensor:
    """softmax(q k^T) v over the blocks first .. first + blocks - 1 of the cache."""
    t, kv, head_dim = q.shape[0], config.n_kv_heads, config.head_dim
    group, n = config.n_heads // kv, at.blocks

    def read(cache: Tensor) -> Tensor:  # -> [kv, blocks, BLOCK, head_dim]
        blocked = cache.reshape(-1, BLOCK, kv, head_dim)
        return blocked.shrink(((at.first, at.first + n), None, None, None)).permute(2, 0, 1, 3)

    q = q.reshape(t, kv, group, head_dim).permute(1, 2, 0, 3).reshape(kv, group, t, 1, 1, head_dim)
    scores = (q * read(keys).reshape(kv, 1, 1, n, BLOCK, head_dim)).sum(-1)
    scores = _soft_cap(scores * config.attention_scale, config.attention_softcap)
    blocks = Tensor.arange(keys.shape[0] // BLOCK).shrink(((0, n),)).reshape(1, n, 1) + at.first
    key = blocks * BLOCK + Tensor.arange(BLOCK).reshape(1, 1, BLOCK)
    gap = Tensor.arange(t).reshape(t, 1, 1) + at.position - key  # [t, blocks, BLOCK]
    # Every row sees itself, so no maximum is -inf.
    scores = ((gap >= 0) & (gap < at.window)).where(scores, -math.inf).contiguous()
    e = (scores - scores.max((-2, -1), keepdim=True)).exp().contiguous()
    total = e.sum((-2, -1)).reshape(kv, group, t, 1)
    parts = 4 if t == 1 else 1  # as in _product
    v = read(values).reshape(kv, 1, 1, n, BLOCK // parts, parts, head_dim)
    e = e.reshape(kv, group, t, n, BLOCK // parts, parts, 1)
    out = (e * v).sum((3, 4))  # [kv, group, t, parts, head_dim]
    if parts > 1:
        out = out.contiguous()
    out = out.sum(3) / total
    return out.permute(2, 0, 1, 3).reshape(t, config.q_dim).contiguous()


def _feed_forward(config: Config, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the gated feed-forward part (Shazeer 2020) adds to x [t, dim]."""
    x = x.contiguous()
    h = _norm(x, w["ffn_norm"], config.norm_eps).contiguous()
    both = _product(h, w["ffn_gate_up"]).contiguous()
    gate, up = both[:, : config.ff], both[:, config.ff : 2 * config.ff]
    act = gate.silu() if config.activation == "silu" else _gelu(gate)
    out = _product((act * up).contiguous(), w["ffn_down"])[:, : config.dim]
    if config.post_norms:
        out = _norm(out.contiguous(), w["post_ffw_norm"], config.norm_eps)
    return out


def _gelu(x: Tensor) -> Tensor:
    """The tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1.0 + (math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)).tanh())


# ---------------------------------------------------------------------- programs and memory


class _Array:
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

    def copy_rows(self, source: "_Array", n: int) -> None:
        """Take the first n rows of another array. Untouched memory stays untouched on the CPU."""
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


class _Program:
    """A captured graph. Calling it builds nothing: it runs compiled kernels on other memory."""

    def __init__(self, captured: Any) -> None:
        self._captured = captured

    @classmethod
    def build(
        cls,
        function: Callable[..., None],
        inputs: Sequence[_Array],
        bounds: dict[str, tuple[int, int]],
    ) -> "_Program":
        """Capture function(*tensors, *variables), run once with the least of each variable."""
        variables = [UOp.variable(name, *limits).bind(limits[0]) for name, limits in bounds.items()]
        jit: Any = TinyJit(function)
        jit.cnt = 1  # capture at once: the uncaptured run before it would build the graph twice
        jit(*(array.tensor() for array in inputs), *variables)
        return cls(jit.captured)

    def __call__(self, inputs: Sequence[_Array], values: dict[str, int]) -> None:
        self._captured([array.uop for array in inputs], values)

    def free(self) -> None:
        """Free what lies between its kernels."""
        self._captured.free_intermediates()


@dataclass(frozen=True, slots=True)
class _Cache:
    """Keys and values of one slot, an array [positions, n_kv_heads, head_dim] per layer."""

    keys: list[_Array]
    values: list[_Array]

    def all(self) -> list[_Array]:
        return [*self.keys, *self.values]


@dataclass(frozen=True, slots=True)
class _Angles:
    """cos and sin of the rotation angles of a chunk's rows, [t, 1, dim / 2] for each kind of rope.

    Computed on the host in float64: float32 angles are off by 1e-3 at position 10,000.
    """

    frequencies: dict[Rope, npt.NDArray[np.float64]]
    arrays: dict[tuple[Rope, int], tuple[_Array, _Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, gguf: GGUF, config: Config, device: str) -> "_Angles":
        factors = None
        if config.rope_factors:
            factors = dequantize(gguf.tensors[MODEL_WEIGHTS["rope_factors"]]).reshape(-1)
        ropes = dict.fromkeys(layer.rope for layer in config.layers)
        self = cls({rope: rope.inv_freq(factors) for rope in ropes})
        for rope in ropes:
            for t in SIZES:
                shape = (t, 1, rope.dim // 2)
                self.arrays[rope, t] = _Array(shape, device), _Array(shape, device)
        return self

    def write(self, t: int, position: int) -> None:
        """Set the angles for rows at position .. position + t - 1."""
        for rope, frequencies in self.frequencies.items():
            angles = np.arange(position, position + t)[:, None, None] * frequencies
            cos, sin = self.arrays[rope, t]
            cos.write(np.cos(angles).astype(np.float32))
            sin.write(np.sin(angles).astype(np.float32))

    def all(self) -> list[_Array]:
        return [array for pair in self.arrays.values() for array in pair]


# ---------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class _Weights:
    """layers: name -> array, the same names in each; matrices lie in panels, see _product."""

    output_norm: _Array
    output: _Array
    layers: list[dict[str, _Array]]

    def all(self) -> list[_Array]:
        return [self.output_norm, self.output, *(a for w in self.layers for a in w.values())]


# Our name -> roles in the file whose rows follow each other in it.
_STACKED = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_qkv_bias": ("attn_q_bias", "attn_k_bias", "attn_v_bias"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
}


def _load_weights(gguf: GGUF, config: Config, device: str, say: Say) -> _Weights:
    stacked = {part for parts in _STACKED.values() for part in parts}
    names = {name: parts for name, parts in _STACKED.items() if parts[0] in config.layer_roles}
    names |= {role: (role,) for role in config.layer_roles if role not in stacked}
    layers: list[dict[str, _Array]] = []
    for i in range(config.n_layers):
        say("load", i, config.n_layers + 1)
        layers.append(
            {
                name: _load([gguf.tensors[layer_weight(part, i)] for part in parts], device)
                for name, parts in names.items()
            }
        )
    say("load", config.n_layers, config.n_layers + 1)
    output = MODEL_WEIGHTS["embedding" if config.tied else "output"]
    weights = _Weights(
        _load([gguf.tensors[MODEL_WEIGHTS["output_norm"]]], device),
        _load([gguf.tensors[output]], device),
        layers,
    )
    say("load", config.n_layers + 1, config.n_layers + 1)
    return weights


def _load(infos: list[TensorInfo], device: str) -> _Array:
    """Tensors with rows under each other, decoded: a vector as it is, a matrix in panels.

    Vectors that stand for rows of a matrix (biases) get zeros up to the matrix's padded height.
    """
    rows, width = sum(info.shape[0] for info in infos), infos[0].shape[-1]
    if len(infos[0].shape) == 1:
        vector = np.concatenate([dequantize(info) for info in infos])
        if len(infos) > 1:
            vector = np.pad(vector, (0, -len(vector) % LANES))
        array = _Array(vector.shape, device)
        array.write(vector)
        return array
    array = _Array((-(-rows // LANES), width, LANES), device)
    panels = array.host if array.host is not None else np.zeros(array.shape, np.float32)
    for at, values in _pieces(infos):
        whole = len(values) // LANES * LANES
        panels[at // LANES : (at + whole) // LANES] = (
            values[:whole].reshape(-1, LANES, width).transpose(0, 2, 1)
        )
        if whole < len(values):
            panels[-1, :, : len(values) - whole] = values[whole:].T
    if array.host is None:
        array.write(panels)
    return array


def _pieces(infos: list[TensorInfo]) -> Iterator[tuple[int, F32]]:
    """(index of the first row, rows) from top to bottom; all but the last in whole panels."""
    if len(infos) > 1:
        yield 0, np.concatenate([dequantize(info) for info in infos])
        return
    (info,) = infos
    data = info.data.reshape(info.shape[0], -1)
    for at in range(0, info.shape[0], PIECE):
        part = data[at : at + PIECE]
        yield at, decode(info.type, part.reshape(-1)).reshape(len(part), info.shape[1])
