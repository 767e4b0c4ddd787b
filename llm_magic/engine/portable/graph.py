"""The forward pass as tinygrad expressions: Tensors in, Tensors out, nothing is run here.

Comes in: hidden rows, one layer's weights, its cache, a Config. Goes out: what the layer adds to
the rows, or logits. It must not know files, buffers, slots or programs. What is computed is written
in arch.py; here it is shaped so that tinygrad makes fast kernels of it, and few of them.
"""

import math
from dataclasses import dataclass

from tinygrad import Tensor, UOp

from ..arch import Config, Rope

LANES = 16  # outputs that lie beside each other in a matrix, see product
SPLIT = 8  # parts of a dot product for one row, see product
BLOCK = 64  # cache positions that attention reads at once


@dataclass(frozen=True, slots=True)
class Where:
    """The variables of the layer's program: rows position .. position + t - 1 of one slot.

    first, blocks: the part of the cache to read, in blocks. window: rows that a row may see.
    """

    first: UOp
    blocks: UOp
    position: UOp
    window: UOp


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    return x if cap is None else (x / cap).tanh() * cap


def product(x: Tensor, panels: Tensor) -> Tensor:
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


def attention(
    config: Config,
    w: dict[str, Tensor],
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Where,
) -> Tensor:
    """What attention adds to x [t, dim]. Writes this chunk's rows of keys and values first."""
    t, kv, head_dim = x.shape[0], config.n_kv_heads, config.head_dim
    heads, rope = config.n_heads, config.layers[0].rope
    h = norm(x, w["attn_norm"], config.norm_eps).contiguous()
    qkv = product(h, w["attn_qkv"])
    if config.qkv_bias:
        qkv = qkv + w["attn_qkv_bias"]
    qkv = qkv.contiguous()[:, : (heads + 2 * kv) * head_dim].reshape(t, heads + 2 * kv, head_dim)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv], qkv[:, heads + kv :]
    if config.qk_norm:
        q = norm(q, w["attn_q_norm"], config.norm_eps).contiguous()
        k = norm(k, w["attn_k_norm"], config.norm_eps).contiguous()
    q = _rotate(q, rope, cos, sin).contiguous()
    rows = ((at.position, at.position + t), None, None)
    keys.shrink(rows).assign(_rotate(k, rope, cos, sin))
    values.shrink(rows).assign(v)
    out = _attend(config, q, keys, values, at)  # [t, heads * head_dim]
    out = product(out, w["attn_output"])[:, : config.dim]
    if config.output_bias:
        out = out + w["attn_output_bias"]
    if config.post_norms:
        out = norm(out.contiguous(), w["post_attention_norm"], config.norm_eps)
    return out


def _attend(config: Config, q: Tensor, keys: Tensor, values: Tensor, at: Where) -> Tensor:
    """softmax(q k^T) v over the blocks first .. first + blocks - 1 of the cache."""
    t, kv, head_dim = q.shape[0], config.n_kv_heads, config.head_dim
    group, n = config.n_heads // kv, at.blocks

    def read(cache: Tensor) -> Tensor:  # -> [kv, blocks, BLOCK, head_dim]
        blocked = cache.reshape(-1, BLOCK, kv, head_dim)
        return blocked.shrink(((at.first, at.first + n), None, None, None)).permute(2, 0, 1, 3)

    q = q.reshape(t, kv, group, head_dim).permute(1, 2, 0, 3).reshape(kv, group, t, 1, 1, head_dim)
    scores = (q * read(keys).reshape(kv, 1, 1, n, BLOCK, head_dim)).sum(-1)
    scores = soft_cap(scores * config.attention_scale, config.attention_softcap)
    blocks = Tensor.arange(keys.shape[0] // BLOCK).shrink(((0, n),)).reshape(1, n, 1) + at.first
    key = blocks * BLOCK + Tensor.arange(BLOCK).reshape(1, 1, BLOCK)
    gap = Tensor.arange(t).reshape(t, 1, 1) + at.position - key  # [t, blocks, BLOCK]
    # Every row sees itself, so no maximum is -inf.
    scores = ((gap >= 0) & (gap < at.window)).where(scores, -math.inf).contiguous()
    e = (scores - scores.max((-2, -1), keepdim=True)).exp().contiguous()
    total = e.sum((-2, -1)).reshape(kv, group, t, 1)
    parts = 4 if t == 1 else 1  # as in product
    v = read(values).reshape(kv, 1, 1, n, BLOCK // parts, parts, head_dim)
    e = e.reshape(kv, group, t, n, BLOCK // parts, parts, 1)
    out = (e * v).sum((3, 4))  # [kv, group, t, parts, head_dim]
    if parts > 1:
        out = out.contiguous()
    out = out.sum(3) / total
    return out.permute(2, 0, 1, 3).reshape(t, config.q_dim).contiguous()


def feed_forward(config: Config, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """What the gated feed-forward part (Shazeer 2020) adds to x [t, dim]."""
    x = x.contiguous()
    h = norm(x, w["ffn_norm"], config.norm_eps).contiguous()
    both = product(h, w["ffn_gate_up"]).contiguous()
    gate, up = both[:, : config.ff], both[:, config.ff : 2 * config.ff]
    act = gate.silu() if config.activation == "silu" else _gelu(gate)
    out = product((act * up).contiguous(), w["ffn_down"])[:, : config.dim]
    if config.post_norms:
        out = norm(out.contiguous(), w["post_ffw_norm"], config.norm_eps)
    return out


def output(config: Config, weight: Tensor, matrix: Tensor, x: Tensor) -> Tensor:
    """Logits of rows x [t, dim]; the last columns fill up the last panel of the matrix."""
    h = norm(x, weight, config.norm_eps).contiguous()
    return soft_cap(product(h, matrix), config.logit_softcap)


def _gelu(x: Tensor) -> Tensor:
    """The tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1.0 + (math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)).tanh())
