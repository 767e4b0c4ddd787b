"""The forward pass as tinygrad expressions: Tensors in, Tensors out; nothing is run here.

blocks.py defines what is computed; here it is shaped so that tinygrad makes few and fast kernels.
"""

import math
from dataclasses import dataclass

from tinygrad import Tensor, UOp

from ..blocks import (
    Activation,
    Attention,
    Block,
    Config,
    Experts,
    FeedForward,
    Latent,
    NormKind,
    QKNorm,
)
from ..rope import Rope

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


@dataclass(frozen=True, slots=True)
class Turn:
    """How this layer's heads turn. cos, sin: [t, 1, rope.dim / 2]."""

    rope: Rope
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of one slot in one layer, each [positions, kv heads, head_dim]."""

    keys: Tensor
    values: Tensor


Weights = dict[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm over the last axis (Ba et al. 2016)."""
    x = (x - x.mean(-1, keepdim=True)).contiguous()
    x = x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return x if bias is None else x + bias


def normed(kind: NormKind | None, role: str, w: Weights, x: Tensor, eps: float) -> Tensor:
    """x through the norm of this kind whose weights are w[role] and, if there, w[role_bias]."""
    if kind is None:
        return x
    if kind == "rms":
        return norm(x, w[role], eps)
    return layer_norm(x, w[role], w.get(f"{role}_bias"), eps)


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


def _rotate(x: Tensor, turn: Turn | None) -> Tensor:
    """Rotary embedding of x [t, heads, head_dim]."""
    if turn is None:
        return x
    t, heads, head_dim = x.shape
    dim, cos, sin = turn.rope.dim, turn.cos, turn.sin
    turned, rest = x[..., :dim], x[..., dim:]
    if turn.rope.pairs == "adjacent":
        pairs = turned.reshape(t, heads, dim // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        turned = Tensor.stack(a * cos - b * sin, a * sin + b * cos, dim=-1)
        turned = turned.reshape(t, heads, dim)
    else:
        a, b = turned[..., : dim // 2], turned[..., dim // 2 :]
        turned = (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)
    return turned if dim == head_dim else turned.cat(rest, dim=-1)


def block(
    config: Config,
    parts: Block,
    w: Weights,
    x: Tensor,
    turn: Turn | None,
    cache: Cache,
    at: Where,
) -> Tensor:
    """What a layer leaves of x [t, dim]. Writes this chunk's rows of keys and values first."""
    by = parts.residual_scale
    added = mixed(
        config, parts.attention, w, heads(config, parts.attention, w, x, turn, cache, at)[1]
    )
    after = x + (added if by == 1.0 else added * by)
    out = feed_forward(config, parts.feed_forward, w, x if parts.parallel else after)
    return after + (out if by == 1.0 else out * by)


def heads(
    config: Config,
    part: Attention,
    w: Weights,
    x: Tensor,
    turn: Turn | None,
    cache: Cache,
    at: Where,
) -> tuple[Tensor, Tensor]:
    """Turned queries [t, heads, head_dim], and what each head gives [t, heads * value_dim].

    Writes this chunk's rows of keys and values first.
    """
    h = normed(part.norm, "attn_norm", w, x, config.norm_eps).contiguous()
    if part.latent and turn:
        q, k, v = _latent(config, part.latent, w, h, turn)
    else:
        q, k, v = _projected(config, part, w, h)
    q, t = _rotate(q, turn).contiguous(), x.shape[0]
    rows = ((at.position, at.position + t), None, None)
    cache.keys.shrink(rows).assign(_rotate(k, turn))
    cache.values.shrink(rows).assign(v)
    z = _attend(config, q, cache, w.get("attn_sinks"), at)
    if config.value_dim != config.head_dim:
        z = z.reshape(t, config.n_heads, config.head_dim)[..., : config.value_dim]
        z = z.reshape(t, config.o_dim).contiguous()
    return q, z


def _latent(
    config: Config, spec: Latent, w: Weights, h: Tensor, turn: Turn
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of latent attention, with those entries first that turn."""
    t, n, head_dim, turned = h.shape[0], config.n_heads, config.head_dim, turn.rope.dim
    plain, rank = head_dim - turned, spec.rank
    q = product(h, w["attn_q"]).contiguous()[:, : n * head_dim].reshape(t, n, head_dim)
    q = q[..., plain:].cat(q[..., :plain], dim=-1)
    a = product(h, w["attn_kv_a"]).contiguous()
    short = norm(a[:, :rank], w["attn_kv_a_norm"], config.norm_eps).contiguous()
    piece = a[:, rank : rank + turned].reshape(t, 1, turned).expand(t, n, turned)
    wide = plain + config.value_dim
    made = product(short, w["attn_kv_b"]).contiguous()[:, : n * wide].reshape(t, n, wide)
    keys = piece.cat(made[..., :plain], dim=-1)
    values = made[..., plain:].pad((None, None, (0, head_dim - config.value_dim)))
    return q.contiguous(), keys.contiguous(), values.contiguous()


def _projected(
    config: Config, part: Attention, w: Weights, h: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [t, heads, head_dim], before they turn."""
    t, kv, head_dim = h.shape[0], config.n_kv_heads, config.head_dim
    n, eps = config.n_heads, config.norm_eps
    qkv = product(h, w["attn_qkv"])
    if "attn_qkv_bias" in w:
        qkv = qkv + w["attn_qkv_bias"]
    qkv = qkv.contiguous()[:, : (n + 2 * kv) * head_dim].reshape(t, n + 2 * kv, head_dim)
    q, k, v = qkv[:, :n], qkv[:, n : n + kv], qkv[:, n + kv :]
    if part.qk_norm:
        q = _head_norm(part.qk_norm, q, w["attn_q_norm"], eps).contiguous()
        k = _head_norm(part.qk_norm, k, w["attn_k_norm"], eps).contiguous()
    return q, k, v


def mixed(config: Config, part: Attention, w: Weights, z: Tensor) -> Tensor:
    """What attention adds to the rows [t, dim], from what its heads give."""
    out = product(z, w["attn_output"])[:, : config.dim]
    if "attn_output_bias" in w:
        out = out + w["attn_output_bias"]
    if part.post:
        out = normed(part.post, "post_attention_norm", w, out.contiguous(), config.norm_eps)
    return out


def _head_norm(spec: QKNorm, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of queries or keys x [t, heads, head_dim]."""
    t, heads, head_dim = x.shape
    if spec.over == "row":
        x, weight = x.reshape(t, heads * head_dim), weight.reshape(heads * head_dim)
    elif spec.own:
        weight = weight.reshape(heads, head_dim)
    out = norm(x, weight, eps) if spec.kind == "rms" else layer_norm(x, weight, None, eps)
    return out.reshape(t, heads, head_dim)


def _attend(config: Config, q: Tensor, cache: Cache, sinks: Tensor | None, at: Where) -> Tensor:
    """softmax(q k^T) v over the blocks first .. first + blocks - 1 of the cache."""
    keys, values = cache.keys, cache.values
    t, kv, head_dim = q.shape[0], config.n_kv_heads, config.head_dim
    group, n = config.n_heads // kv, at.blocks

    def read(rows: Tensor) -> Tensor:  # -> [kv, blocks, BLOCK, head_dim]
        blocked = rows.reshape(-1, BLOCK, kv, head_dim)
        return blocked.shrink(((at.first, at.first + n), None, None, None)).permute(2, 0, 1, 3)

    q = q.reshape(t, kv, group, head_dim).permute(1, 2, 0, 3).reshape(kv, group, t, 1, 1, head_dim)
    scores = (q * read(keys).reshape(kv, 1, 1, n, BLOCK, head_dim)).sum(-1)
    scores = soft_cap(scores * config.attention_scale, config.attention_softcap)
    blocks = Tensor.arange(keys.shape[0] // BLOCK).shrink(((0, n),)).reshape(1, n, 1) + at.first
    key = blocks * BLOCK + Tensor.arange(BLOCK).reshape(1, 1, BLOCK)
    gap = Tensor.arange(t).reshape(t, 1, 1) + at.position - key  # [t, blocks, BLOCK]
    # Every row sees itself, so no maximum is -inf.
    scores = ((gap >= 0) & (gap < at.window)).where(scores, -math.inf).contiguous()
    top = scores.max((-2, -1), keepdim=True)
    if sinks is not None:
        sinks = sinks.reshape(kv, group, 1, 1, 1)
        top = top.maximum(sinks)
    e = (scores - top).exp().contiguous()
    total = e.sum((-2, -1)).reshape(kv, group, t, 1)
    if sinks is not None:
        total = total + (sinks - top).exp().reshape(kv, group, t, 1)
    parts = 4 if t == 1 else 1  # as in product
    v = read(values).reshape(kv, 1, 1, n, BLOCK // parts, parts, head_dim)
    e = e.reshape(kv, group, t, n, BLOCK // parts, parts, 1)
    out = (e * v).sum((3, 4))  # [kv, group, t, parts, head_dim]
    if parts > 1:
        out = out.contiguous()
    out = out.sum(3) / total
    return out.permute(2, 0, 1, 3).reshape(t, config.q_dim).contiguous()


def feed_forward(config: Config, part: FeedForward | Experts, w: Weights, x: Tensor) -> Tensor:
    """What the feed-forward part adds to x [t, dim]; gated: Shazeer 2020."""
    x, eps = x.contiguous(), config.norm_eps
    h = normed(part.norm, "ffn_norm", w, x, eps).contiguous()
    out = _experts(config, part, w, h) if isinstance(part, Experts) else _inner(config, part, w, h)
    if part.post:
        out = normed(part.post, "post_ffw_norm", w, out.contiguous(), eps)
    return out


def _inner(config: Config, part: FeedForward, w: Weights, h: Tensor) -> Tensor:
    inner = product(h, w["ffn_gate_up" if part.gated else "ffn_up"])
    if (bias := w.get("ffn_gate_up_bias" if part.gated else "ffn_up_bias")) is not None:
        inner = inner + bias
    inner, n = inner.contiguous(), part.width
    if part.gated:
        act = _gated(part.activation, inner[:, :n], inner[:, n : 2 * n])
    else:
        act = activate(part.activation, inner[:, :n])
    out = product(act.contiguous(), w["ffn_down"])[:, : config.dim]
    if "ffn_down_bias" in w:
        out = out + w["ffn_down_bias"]
    return out


def _gated(kind: Activation, gate: Tensor, up: Tensor) -> Tensor:
    if kind == "clamped":
        gate, up = gate.minimum(7.0), up.clip(-7.0, 7.0)
        return gate * (1.702 * gate).sigmoid() * (up + 1.0)
    return activate(kind, gate) * up


def _experts(config: Config, part: Experts, w: Weights, h: Tensor) -> Tensor:
    """A mixture of experts as one wide feed-forward part: those not chosen have the weight 0.

    It computes all of them. That is slow, and every number is that of the chosen ones alone.
    """
    t, n, width = h.shape[0], part.count, part.width
    weights = _routed(part, w, h).contiguous()  # [t, n]
    inner = product(h, w["ffn_expert_gate_up"])
    if "ffn_expert_gate_up_bias" in w:
        inner = inner + w["ffn_expert_gate_up_bias"]
    inner = inner.contiguous()
    gate, up = inner[:, : n * width], inner[:, n * width : 2 * n * width]
    act = _gated(part.activation, gate, up).reshape(t, n, width) * weights.reshape(t, n, 1)
    act = act.reshape(t, n * width).contiguous()
    out = product(act, w["ffn_expert_down"])[:, : config.dim]
    if "ffn_expert_down_bias" in w:
        bias = w["ffn_expert_down_bias"].reshape(1, n, config.dim)
        out = out + (weights.reshape(t, n, 1) * bias).sum(1)
    if not part.shared:
        return out
    both, shared = product(h, w["ffn_shared_gate_up"]).contiguous(), part.shared
    act = _gated(part.activation, both[:, :shared], both[:, shared : 2 * shared])
    more = product(act.contiguous(), w["ffn_shared_down"])[:, : config.dim]
    if "ffn_shared_router" in w:
        more = more * (h * w["ffn_shared_router"]).sum(-1, keepdim=True).sigmoid()
    return out + more


def _routed(part: Experts, w: Weights, h: Tensor) -> Tensor:
    """The weight of each expert for each row, [t, count]; 0 for those that a row does not take."""
    scores = product(h, w["ffn_router"])[:, : part.count]
    if "ffn_router_bias" in w:
        scores = scores + w["ffn_router_bias"]
    scores = scores.contiguous()
    weights = scores
    if part.gating != "chosen":
        weights = scores.softmax(-1) if part.gating == "softmax" else scores.sigmoid()
    weights = by = weights.contiguous()
    if "ffn_router_correction" in w:
        by = by + w["ffn_router_correction"]
    # How many are better: greater, or as great and before it.
    this, other = by.unsqueeze(2), by.unsqueeze(1)
    index = Tensor.arange(part.count)
    before = (other == this) & (index.reshape(1, 1, -1) < index.reshape(1, -1, 1))
    taken = ((other > this) | before).cast("float32").sum(2) < part.used  # [t, count]
    if part.gating == "chosen":
        weights = taken.where(scores, -math.inf).softmax(-1)
    weights = taken.where(weights, 0.0)
    if part.normalized:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * part.scale


def output(config: Config, w: Weights, x: Tensor) -> Tensor:
    """Logits of rows x [t, dim]; the last columns fill up the last panel of the matrix."""
    h = normed(config.output_norm, "output_norm", w, x, config.norm_eps).contiguous()
    logits = product(h, w["output"])
    if "output_bias" in w:
        logits = logits + w["output_bias"]
    if config.logit_scale != 1.0:
        logits = logits * config.logit_scale
    return soft_cap(logits, config.logit_softcap)


def activate(kind: Activation, x: Tensor) -> Tensor:
    """The nonlinear function of a feed-forward part."""
    match kind:
        case "silu":
            return x.silu()
        case "gelu_tanh":
            return _gelu_tanh(x)
        case "gelu":  # Hendrycks and Gimpel 2016, exact
            return 0.5 * x * (1.0 + (x * math.sqrt(0.5)).erf())
        case "relu":
            return x.relu()
        case "relu_squared":
            return x.relu().square()
        case "clamped":
            raise ValueError("only a gated part is clamped")


def _gelu_tanh(x: Tensor) -> Tensor:
    """The tanh form (Hendrycks and Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    return 0.5 * x * (1.0 + (math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)).tanh())
