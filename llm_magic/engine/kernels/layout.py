"""The memory layout of the kernels: the tables that the C code reads, computed once per model.

`Layout` holds offsets of weights and scratch memory, and the bytes of `model_t`. Its structs mirror
c/model.h and c/weights.h field by field.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_magic.errors import EngineError

from ..blocks import Attention, Config, Experts, Source
from ..gguf import TensorInfo
from ..latent import expansion
from ..quants import QUANTS
from ..rope import Rope
from .memory import HUGE

I32 = npt.NDArray[np.int32]
Read = Callable[[TensorInfo], npt.NDArray[np.float32]]

# Kind of tile (most are named after the ggml type) -> number in c/weights.h, in its order.
_KINDS = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K Q2_K Q3_K IQ4_NL IQ4_XS MXFP4 SCALED"
KINDS = {name: i for i, name in enumerate(_KINDS.split())}
# Bytes of a block of 16 outputs x 32 inputs; bytes before every eighth block.
BLOCK_BYTES = dict(
    zip(
        KINDS,
        (2048, 1024, 1024, 288, 320, 352, 384, 544, 288, 352, 416, 160, 224, 288, 272, 272, 544),
        strict=True,
    )
)
SUPER_BYTES = {
    "Q4_K": 64,
    "Q5_K": 64,
    "Q6_K": 32,
    "Q2_K": 64,
    "Q3_K": 32,
    "IQ4_XS": 32,
    "SCALED": 64,
}
MAX_HEAD, CHUNK, SPAN = 512, 64, 256  # c/attention.h
SHARED_ROWS = 16  # c/model.h
TOP_MAX = 32  # c/summary.h
WORK_BYTES = 64 * (8 + 8 * TOP_MAX)  # c/summary.h: part_t[PARTS_MAX]
ROW_BYTES = 128  # of a block of activations, at most: c/acts.h, c/isa_avx512amx.h

MAT = np.dtype([("at", "i8"), ("kind", "i4"), ("n", "i4"), ("k", "i4"), ("pad", "i4")])
EXPERT_MATRICES = ("expert_gate", "expert_up", "expert_down")
MATRICES = ("q", "k", "v", "o", "gate", "up", "down", "router", *EXPERT_MATRICES, "kv_a")
ROLES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_router",
    "expert_gate": "ffn_expert_gate",
    "expert_up": "ffn_expert_up",
    "expert_down": "ffn_expert_down",
    "kv_a": "attn_kv_a",
}
# With experts, these are the matrices of the part that all rows take.
SHARED = {"gate": "ffn_shared_gate", "up": "ffn_shared_up", "down": "ffn_shared_down"}
VECTORS = {
    "attn_norm": "attn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attn": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "post_ffn": "post_ffw_norm",
    "q_bias": "attn_q_bias",
    "k_bias": "attn_k_bias",
    "v_bias": "attn_v_bias",
    "o_bias": "attn_output_bias",
    "attn_norm_bias": "attn_norm_bias",
    "ffn_norm_bias": "ffn_norm_bias",
    "gate_bias": "ffn_gate_bias",
    "up_bias": "ffn_up_bias",
    "down_bias": "ffn_down_bias",
    "sinks": "attn_sinks",
    "router_bias": "ffn_router_bias",
    "correction": "ffn_router_correction",
    "shared_router": "ffn_shared_router",
    "expert_gate_bias": "ffn_expert_gate_bias",
    "expert_up_bias": "ffn_expert_up_bias",
    "expert_down_bias": "ffn_expert_down_bias",
    "kv_a_norm": "attn_kv_a_norm",
}
# Numbers of the parts' kinds in c/model.h, in its order.
NORMS = {kind: i for i, kind in enumerate((None, "rms", "layer"))}
ACTIVATIONS = ("silu", "gelu_tanh", "gelu", "relu", "relu_squared", "clamped")
GATINGS = ("softmax", "sigmoid", "chosen")
KIND = (
    *("rope", "window", "attn_norm_kind", "post_attn_kind", "ffn_norm_kind", "post_ffn_kind"),
    *("qk_norm_kind", "qk_norm_row", "activation", "parallel"),
    *("latent", "pad", "experts", "used", "gating", "normalized"),
)
LAYER = np.dtype(
    [(m, MAT) for m in MATRICES]
    + [(v, "i8") for v in VECTORS]
    + [(k, "i4") for k in KIND]
    + [("residual_scale", "f4"), ("expert_scale", "f4")]
)
MAX_ROPES, MAX_EXPERTS = 4, 512  # c/model.h
ACTS = np.dtype([("q", "i8"), ("s", "i8"), ("f", "i8"), ("blocks", "i4"), ("pad", "i4")])
SIZES = ("n_layers", "dim", "heads", "kv_heads", "head", "head_pad", "ff", "vocab")
COUNTS = (
    *SIZES,
    "output_norm_kind",
    "n_ropes",
    "max_rows",
    "max_parts",
    "max_experts",
    "value_head",
    "kv_a_wide",
    "pad",
)
REALS = (
    *("eps", "embedding_scale", "attention_scale", "attention_softcap", "logit_softcap"),
    "logit_scale",
)
STRIDES = ("kv_slot", "kv_chunk", "kv_layer", "kv_head")
PLACES = ("x", "h", "qkv", "att", "parts", "trig", "items", "work")
EXPERT_PLACES = ("normal", "scores", "choices", "picks", "first", "given", "kv_a")
MODEL = np.dtype(
    [(c, "i4") for c in COUNTS]
    + [("rotated", "i4", (MAX_ROPES,)), ("magnitude", "f4", (MAX_ROPES,))]
    + [(r, "f4") for r in REALS]
    + [("inv_freq", "i8", (MAX_ROPES,))]
    + [(v, "i8") for v in ("output_norm", "output_norm_bias", "output_bias")]
    + [(m, MAT) for m in ("embedding", "positions", "output")]
    + [(s, "i8") for s in STRIDES + PLACES + EXPERT_PLACES]
    + [(a, ACTS) for a in ("in", "mixed", "inner", "picked", "latent")]
)
PACK = np.dtype(
    [(f, "i8") for f in ("from", "to", "rows", "n_from", "kind", "k", "tiles", "chunk")]
)
UNLIMITED = 1 << 30  # window of a layer that sees everything


def up(n: int, to: int) -> int:
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix to repack. rows: source row of every output, -1 a row of zeros; None: in order."""

    tensor: TensorInfo
    at: int
    tiles: int
    rows: I32 | None


@dataclass(frozen=True, slots=True)
class Vector:
    """One float32 or float64 vector, already in the order of the outputs it meets."""

    at: int
    values: npt.NDArray[Any]


@dataclass(slots=True)
class Layout:
    """Everything that is placed; filled by `lay_out`, then only read."""

    matrices: list[Matrix] = field(default_factory=list)
    vectors: list[Vector] = field(default_factory=list)
    weight_bytes: int = 0
    scratch_bytes: int = 0
    model: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(1, MODEL))
    layers: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, LAYER))

    def weight(self, nbytes: int) -> int:
        at = self.weight_bytes
        self.weight_bytes = up(at + nbytes, 64)
        return at

    def scratch(self, nbytes: int) -> int:
        at = self.scratch_bytes
        self.scratch_bytes = up(at + nbytes, 64)
        return at

    def vector(self, values: npt.NDArray[Any]) -> int:
        """Place a vector, with zeros up to a multiple of 32. Returns its offset."""
        padded = np.zeros(up(len(values), 32), values.dtype)
        padded[: len(values)] = values
        at = self.weight(padded.nbytes)
        self.vectors.append(Vector(at, padded))
        return at


def tile_bytes(kind: str, k: int) -> int:
    blocks = up(k, 32) // 32
    return blocks * BLOCK_BYTES[kind] + up(blocks, 8) // 8 * SUPER_BYTES.get(kind, 0)


def head_rows(heads: int, head: int, rope: Rope | None) -> I32:
    """Source row of every padded output of a projection to heads, [up(heads * head_pad, 32)].

    Each head is padded to a multiple of 16. Where the rotation turns adjacent entries, they are
    brought to distance rope.dim / 2: queries and keys move alike, so their products stay, and one
    kind of rotation serves all models.
    """
    order = np.arange(head)
    if rope is not None and rope.pairs == "adjacent":
        turned = order[: rope.dim]
        order = np.concatenate([turned[0::2], turned[1::2], order[rope.dim :]])
    pad = up(head, 16)
    rows = np.full((heads, pad), -1, np.int32)
    rows[:, :head] = order + head * np.arange(heads)[:, None]
    return _filled(rows)


def latent_rows(config: Config, rank: int, rope: Rope) -> dict[str, I32]:
    """Source rows of latent attention's matrices: q, kv_a, and k and v of its expansion.

    The entries of a head that turn come first, as in other models. k has rows of zeros there.
    """
    turned, head, value = rope.dim, config.head_dim, config.value_dim
    plain, pad, heads = head - turned, up(head, 16), config.n_heads
    piece = np.arange(turned)
    if rope.pairs == "adjacent":
        piece = np.concatenate([piece[0::2], piece[1::2]])
    each = np.arange(heads)[:, None]
    q, k, v = (np.full((heads, pad), -1, np.int32) for _ in range(3))
    q[:, :head] = np.concatenate([plain + piece, np.arange(plain)]) + head * each
    k[:, turned:head] = np.arange(plain) + (plain + value) * each
    v[:, :value] = plain + np.arange(value) + (plain + value) * each
    kv_a = np.full(up(up(rank, 32) + turned, 32), -1, np.int32)
    kv_a[:rank] = np.arange(rank)
    kv_a[up(rank, 32) : up(rank, 32) + turned] = rank + piece
    return {"q": _filled(q), "k": _filled(k), "v": _filled(v), "kv_a": kv_a}


def _filled(rows: I32) -> I32:
    """In one axis, with rows of zeros up to a multiple of 32."""
    out = np.full(up(rows.size, 32), -1, np.int32)
    out[: rows.size] = rows.reshape(-1)
    return out


def expert_rows(experts: int, n: int) -> I32:
    """Source row of every output of a matrix of several experts, each padded to 32 outputs."""
    rows = np.full((experts, up(n, 32)), -1, np.int32)
    rows[:, :n] = np.arange(experts * n).reshape(experts, n)
    return rows.reshape(-1)


def _picked(values: npt.NDArray[np.float32], rows: I32 | None) -> npt.NDArray[np.float32]:
    if rows is None:
        return values
    return np.where(rows >= 0, values[np.maximum(rows, 0)], np.float32(0)).astype(np.float32)


class _Builder:
    """Places what one model needs; `tensors` and `read` give the file's content."""

    def __init__(
        self, config: Config, tensors: Mapping[str, TensorInfo], read: Read, max_rows: int
    ) -> None:
        self.config, self.tensors, self.read, self.max_rows = config, tensors, read, max_rows
        self.out = Layout(layers=np.zeros(config.n_layers, LAYER))
        self.ropes = list(config.ropes)
        parts = [block.feed_forward for block in config.blocks]
        mixtures = [part for part in parts if isinstance(part, Experts)]
        latents = [block.attention.latent for block in config.blocks]
        self.rank = max((latent.rank for latent in latents if latent), default=0)
        turned = max((rope.dim for rope in config.ropes if rope), default=0)
        self.kv_a_wide = up(up(self.rank, 32) + turned, 32) if self.rank else 0
        # Most experts of a layer, and most of them that a row takes.
        self.most = (
            max((part.count for part in mixtures), default=0),
            max((part.used for part in mixtures), default=0),
        )

    def matrix(
        self, source: Source | TensorInfo, rows: I32 | None
    ) -> tuple[int, int, int, int, int]:
        info = source.of(self.tensors) if isinstance(source, Source) else source
        if len(info.shape) == 3:  # of several experts, under each other
            info = info.part(0, (info.size // info.shape[-1], info.shape[-1]))
        n, k = info.shape
        tiles = (len(rows) if rows is not None else up(n, 32)) // 16
        kind = QUANTS[info.type].tile
        at = self.out.weight(tiles * tile_bytes(kind, k))
        self.out.matrices.append(Matrix(info, at, tiles, rows))
        return (at, KINDS[kind], tiles * 16 if rows is not None else n, k, 0)

    def vector(self, role: str, layer: int | None = None, rows: I32 | None = None) -> int:
        """Place a weight that is a vector, its entries in the order of `rows`."""
        info = self.config.source(role, layer).of(self.tensors)
        values = _picked(self.read(info).reshape(-1), rows)
        if layer is not None and role in ("post_attention_norm", "post_ffw_norm"):
            values = values * np.float32(self.config.layers[layer].block.residual_scale)
        return self.out.vector(values)

    def layer(self, i: int) -> None:
        c, out, layer = self.config, self.out.layers[i], self.config.layers[i]
        heads = {"q": c.n_heads, "k": c.n_kv_heads, "v": c.n_kv_heads}
        rows = {
            m: head_rows(n, c.head_dim, None if m == "v" else layer.rope) for m, n in heads.items()
        }
        if layer.block.attention.latent and layer.rope:
            rows |= latent_rows(c, layer.block.attention.latent.rank, layer.rope)
            both = expansion(c, self.tensors, i)
            out["k"], out["v"] = self.matrix(both, rows["k"]), self.matrix(both, rows["v"])
        orders = {f"{m}_bias": r for m, r in rows.items()}
        orders |= {f"{m}_norm": self._head_norm_rows(i, rows[m]) for m in "qk"}
        part = layer.block.feed_forward
        roles = ROLES | (SHARED if isinstance(part, Experts) else {})
        if isinstance(part, Experts):
            widths = {"expert_gate": part.width, "expert_up": part.width, "expert_down": c.dim}
            rows |= {m: expert_rows(part.count, width) for m, width in widths.items()}
            orders |= {f"{m}_bias": rows[m] for m in widths}
        for m in MATRICES:
            if roles[m] in layer.block.roles:
                out[m] = self.matrix(c.source(roles[m], i), rows.get(m))
                if m in EXPERT_MATRICES:  # of one: the others lie behind it
                    out[m]["n"] = up(widths[m], 32)
        for v, role in VECTORS.items():
            out[v] = self.vector(role, i, orders.get(v)) if role in layer.block.roles else -1
        self.kinds(i)

    def _head_norm_rows(self, i: int, rows: I32) -> I32:
        """Where each padded entry of queries or keys finds its norm's weight."""
        norm = self.config.layers[i].block.attention.qk_norm
        if norm is None or norm.own or norm.over == "row":
            return rows
        return np.where(rows >= 0, rows % self.config.head_dim, -1).astype(np.int32)

    def kinds(self, i: int) -> None:
        """What the phases of this layer do, beyond where its weights lie."""
        out, layer = self.out.layers[i], self.config.layers[i]
        block = layer.block
        attention: Attention = block.attention
        feed_forward = block.feed_forward
        norm = attention.qk_norm
        values = {
            "rope": self.ropes.index(layer.rope),
            "window": layer.window or UNLIMITED,
            "attn_norm_kind": NORMS[attention.norm],
            "post_attn_kind": NORMS[attention.post],
            "ffn_norm_kind": NORMS[feed_forward.norm],
            "post_ffn_kind": NORMS[feed_forward.post],
            "qk_norm_kind": NORMS[norm.kind if norm else None],
            "qk_norm_row": norm is not None and norm.over == "row",
            "activation": ACTIVATIONS.index(feed_forward.activation),
            "parallel": block.parallel,
            "latent": attention.latent.rank if attention.latent else 0,
            "residual_scale": block.residual_scale,
        }
        if isinstance(feed_forward, Experts):
            values["experts"], values["used"] = feed_forward.count, feed_forward.used
            values["gating"] = GATINGS.index(feed_forward.gating)
            values["normalized"] = feed_forward.normalized
            values["expert_scale"] = feed_forward.scale
        for name, value in values.items():
            out[name] = value

    def model(self) -> None:
        c, m = self.config, self.out.model[0]
        pad = up(c.head_dim, 16)
        counts = (c.n_layers, c.dim, c.n_heads, c.n_kv_heads, c.head_dim, pad, c.ff, c.n_vocab)
        for name, value in zip(
            COUNTS,
            (
                *(*counts, NORMS[c.output_norm], len(self.ropes), self.max_rows, 0, self.most[0]),
                *(c.value_dim, self.kv_a_wide, 0),
            ),
            strict=True,
        ):
            m[name] = value
        reals = (c.norm_eps, c.embedding_scale, c.attention_scale, c.attention_softcap or 0)
        for name, real in zip(REALS, (*reals, c.logit_softcap or 0, c.logit_scale), strict=True):
            m[name] = real
        for r, rope in enumerate(self.ropes):
            if rope is None:
                continue
            factors = None
            if rope.factors:
                factors = self.read(c.source(rope.factors).of(self.tensors)).reshape(-1)
            m["rotated"][r], m["magnitude"][r] = rope.dim, rope.magnitude
            m["inv_freq"][r] = self.out.vector(rope.inv_freq(factors))
        for role in ("output_norm", "output_norm_bias", "output_bias"):
            m[role] = self.vector(role) if role in c.model_roles else -1
        m["embedding"] = self.matrix(c.source("embedding"), None)
        if "positions" in c.extras:
            m["positions"] = self.matrix(c.source("positions"), None)
        tied = m["embedding"] if c.tied else self.matrix(c.source("output"), None)
        m["output"] = tied

    def scratch(self) -> None:
        c, m, n, out = self.config, self.out.model[0], self.max_rows, self.out
        wide, pad, f32 = up(c.dim, 32), up(c.head_dim, 16), 4
        qkv = up(c.n_heads * pad, 32) + 2 * up(c.n_kv_heads * pad, 32)
        trig = max(2 * up(r.dim // 2 if r else 0, 8) for r in self.ropes) * len(self.ropes)
        sizes = {"x": wide, "h": wide, "qkv": qkv, "att": up(c.o_dim, 32), "trig": trig}
        for name, count in sizes.items():
            m[name] = out.scratch(n * count * f32)
        m["items"] = out.scratch(n * 16)
        m["work"] = out.scratch(WORK_BYTES)
        experts, used = self.most
        if experts:
            sizes = {"normal": wide, "scores": up(experts, 32), "given": wide}
            sizes |= {"choices": 2 * used, "picks": 2 * used}
            for name, count in sizes.items():
                m[name] = out.scratch(n * count * f32)
            m["first"] = out.scratch((experts + 1) * f32)
        inputs_of = {"in": c.dim, "mixed": c.o_dim, "inner": c.ff}
        inputs_of |= {"picked": c.dim} if experts else {}
        if self.rank:
            inputs_of["latent"] = self.rank
            m["kv_a"] = out.scratch(n * self.kv_a_wide * f32)
        for name, inputs in inputs_of.items():
            blocks = up(inputs, 32) // 32
            a = m[name]
            a["blocks"] = blocks
            a["q"], a["s"] = out.scratch(n * blocks * ROW_BYTES), out.scratch(n * blocks * 16)
            a["f"] = out.scratch(n * blocks * 32 * f32)


def lay_out(config: Config, tensors: Mapping[str, TensorInfo], read: Read, max_rows: int) -> Layout:
    """Place all weights and the scratch memory of one model.

    read: a tensor -> its float32 values. max_rows: most rows of a step.
    """
    builder = _Builder(config, tensors, read, max_rows)
    builder.model()
    for i in range(config.n_layers):
        builder.layer(i)
    builder.scratch()
    return builder.out


def set_context(layout: Layout, config: Config, n_ctx: int) -> tuple[int, int]:
    """Write what depends on the number of positions a slot holds.

    Returns (16-bit numbers of cache per slot, bytes of scratch memory).
    """
    if "positions" in config.extras and n_ctx > config.n_ctx_train:
        raise EngineError(
            f"this model has positions for {config.n_ctx_train:,} tokens, not {n_ctx:,}"
        )
    m, pad, chunks = layout.model[0], up(config.head_dim, 16), up(n_ctx, CHUNK) // CHUNK
    spans = up(n_ctx, SPAN) // SPAN
    m["kv_head"] = 2 * CHUNK * (pad + 2)  # keys, float32 units, values, float32 units
    m["kv_layer"] = config.n_kv_heads * m["kv_head"]
    m["kv_chunk"] = config.n_layers * m["kv_layer"]
    slot = int(chunks * m["kv_chunk"])
    # A slot that begins in the middle of a huge page takes one more than it fills.
    m["kv_slot"] = up(slot, HUGE // 2) if slot > HUGE else slot
    # Behind everything else: the shares of a few rows' spans.
    m["parts"], m["max_parts"] = layout.scratch_bytes, spans
    parts = SHARED_ROWS * config.n_heads * spans * (16 + pad) * 4
    return int(m["kv_slot"]), layout.scratch_bytes + parts
