"""The parts of a layer, and `Config`: everything about a model but its weights.

What every Config computes (x: [rows, dim], float32):

    x = embedding[token] * embedding_scale + positions[position] (where the model has them)
    for each layer:
        a = attention(norm(x))
        x = x + residual_scale * norm(a)              the second norm where `post` names one
        f = feed_forward(norm(x))                     of the x before attention if `parallel`
        x = x + residual_scale * norm(f)
    logits = (norm(x) @ output.T + output_bias) * logit_scale     then cap * tanh(l / cap)

    norm(x), "rms":    x / sqrt(mean(x^2) + eps) * weight
             "layer":  (x - mean(x)) / sqrt(var(x) + eps) * weight + bias
             None:     x
    attention(h):
        q, k, v = h @ attn_q.T + attn_q_bias, ...
        q, k = norm(q), norm(k)                       as `qk_norm` says
        q, k = rope(q), rope(k)                       angles of the layer's `Rope`
        s = q @ k.T * attention_scale                 then cap * tanh(s / cap) with a softcap
        p = softmax(s where 0 <= q_pos - k_pos < window)
        p @ v @ attn_output.T + attn_output_bias
    feed_forward(h), gated: (act(h @ ffn_gate.T + b) * (h @ ffn_up.T + b)) @ ffn_down.T + b
                 not gated: act(h @ ffn_up.T + b) @ ffn_down.T + b

                 "clamped" (gpt-oss): g * sigmoid(1.702 g) * (u + 1), g <= 7, -7 <= u <= 7
    experts(h): g = gating(h @ ffn_router.T + b); the `used` experts with the largest g (+
                correction) count:
                sum of g_e * feed_forward_e(h) over them, g divided by its sum if `normalized`,
                times `scale`; + sigmoid(h @ ffn_shared_router) * feed_forward_shared(h)

With `latent` attention a = h @ attn_kv_a.T is a short vector and a piece of a key. A head's key is
rope(the piece), then what attn_kv_b makes of norm(the short vector); so are values. The entries of
a head that turn come first here; in the file they are its last.
With sinks, softmax has one more entry for each head, whose value is zero.
Biases are added where the file has them. Files of models whose norms multiply by 1 + weight hold
the sum already.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from .gguf import TensorInfo
from .rope import Rope

NormKind = Literal["rms", "layer"]
Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu_squared", "clamped"]
Gating = Literal["softmax", "sigmoid", "chosen"]

# Role -> name in the file. `{i}` is the layer.
MODEL_WEIGHTS = {
    "embedding": "token_embd.weight",
    "positions": "position_embd.weight",
    "output_norm": "output_norm.weight",
    "output_norm_bias": "output_norm.bias",
    "output": "output.weight",
    "output_bias": "output.bias",
    "rope_factors": "rope_freqs.weight",
    "rope_factors_short": "rope_factors_short.weight",
    "rope_factors_long": "rope_factors_long.weight",
}
LAYER_WEIGHTS = {
    "attn_norm": "blk.{i}.attn_norm.weight",
    "attn_norm_bias": "blk.{i}.attn_norm.bias",
    "attn_q": "blk.{i}.attn_q.weight",
    "attn_k": "blk.{i}.attn_k.weight",
    "attn_v": "blk.{i}.attn_v.weight",
    "attn_kv_a": "blk.{i}.attn_kv_a_mqa.weight",
    "attn_kv_a_norm": "blk.{i}.attn_kv_a_norm.weight",
    "attn_kv_b": "blk.{i}.attn_kv_b.weight",
    "attn_k_b": "blk.{i}.attn_k_b.weight",
    "attn_v_b": "blk.{i}.attn_v_b.weight",
    "attn_q_bias": "blk.{i}.attn_q.bias",
    "attn_k_bias": "blk.{i}.attn_k.bias",
    "attn_v_bias": "blk.{i}.attn_v.bias",
    "attn_q_norm": "blk.{i}.attn_q_norm.weight",
    "attn_k_norm": "blk.{i}.attn_k_norm.weight",
    "attn_sinks": "blk.{i}.attn_sinks.weight",
    "attn_output": "blk.{i}.attn_output.weight",
    "attn_output_bias": "blk.{i}.attn_output.bias",
    "post_attention_norm": "blk.{i}.post_attention_norm.weight",
    "ffn_norm": "blk.{i}.ffn_norm.weight",
    "ffn_norm_bias": "blk.{i}.ffn_norm.bias",
    "ffn_gate": "blk.{i}.ffn_gate.weight",
    "ffn_gate_bias": "blk.{i}.ffn_gate.bias",
    "ffn_up": "blk.{i}.ffn_up.weight",
    "ffn_up_bias": "blk.{i}.ffn_up.bias",
    "ffn_down": "blk.{i}.ffn_down.weight",
    "ffn_down_bias": "blk.{i}.ffn_down.bias",
    "ffn_router": "blk.{i}.ffn_gate_inp.weight",
    "ffn_router_bias": "blk.{i}.ffn_gate_inp.bias",
    "ffn_router_correction": "blk.{i}.exp_probs_b.bias",
    "ffn_expert_gate": "blk.{i}.ffn_gate_exps.weight",
    "ffn_expert_gate_bias": "blk.{i}.ffn_gate_exps.bias",
    "ffn_expert_up": "blk.{i}.ffn_up_exps.weight",
    "ffn_expert_up_bias": "blk.{i}.ffn_up_exps.bias",
    "ffn_expert_down": "blk.{i}.ffn_down_exps.weight",
    "ffn_expert_down_bias": "blk.{i}.ffn_down_exps.bias",
    "ffn_shared_router": "blk.{i}.ffn_gate_inp_shexp.weight",
    "ffn_shared_gate": "blk.{i}.ffn_gate_shexp.weight",
    "ffn_shared_up": "blk.{i}.ffn_up_shexp.weight",
    "ffn_shared_down": "blk.{i}.ffn_down_shexp.weight",
    "post_ffw_norm": "blk.{i}.post_ffw_norm.weight",
}
# Weights that are no matrices, though some files give them two axes.
VECTORS = frozenset(
    role for role in (*MODEL_WEIGHTS, *LAYER_WEIGHTS) if role.endswith(("norm", "_bias"))
) | {
    *("rope_factors", "rope_factors_short", "rope_factors_long"),
    *("attn_sinks", "ffn_router_correction", "ffn_shared_router"),
}
# Tensors that hold several weights, their rows under each other: name in the file -> roles.
FUSED = {
    "blk.{i}.attn_qkv.weight": ("attn_q", "attn_k", "attn_v"),
    "blk.{i}.attn_qkv.bias": ("attn_q_bias", "attn_k_bias", "attn_v_bias"),
    "blk.{i}.ffn_up.weight": ("ffn_gate", "ffn_up"),
}


@dataclass(frozen=True, slots=True)
class QKNorm:
    """The norm of queries and keys before they turn.

    Attributes:
        kind: As for other norms.
        over: "head": each head by itself; "row": all heads of a row as one vector.
        own: Each head has weights of its own; else they share them. Of "row" it is always so.
        optional: Only some files of the architecture have it.
    """

    kind: NormKind = "rms"
    over: Literal["head", "row"] = "head"
    own: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Keys and values that are made of a short vector (DeepSeek-AI 2024).

    Attributes:
        rank: Entries of the short vector.
        split: The file holds attn_k_b and attn_v_b, see latent.py; else attn_kv_b.
    """

    rank: int = 0
    split: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention over the cache.

    Attributes:
        sinks: Each head has a score that no position takes (gpt-oss).
        biases: Roles of those that the file has.
    """

    norm: NormKind | None = "rms"
    qk_norm: QKNorm | None = None
    post: NormKind | None = None
    sinks: bool = False
    latent: Latent | None = None
    biases: frozenset[str] = frozenset()

    # Found by their names in the file; one of the queries alone is an error.
    OPTIONAL: ClassVar = (
        ("attn_norm_bias",),
        ("attn_q_bias", "attn_k_bias", "attn_v_bias"),
        ("attn_output_bias",),
    )

    @property
    def roles(self) -> frozenset[str]:
        """The weights that it needs."""
        roles = {"attn_q", "attn_output", *self.biases}
        if self.latent:
            roles |= {"attn_kv_a", "attn_kv_a_norm"}
            roles |= {"attn_k_b", "attn_v_b"} if self.latent.split else {"attn_kv_b"}
        else:
            roles |= {"attn_k", "attn_v"}
        roles |= {"attn_norm"} if self.norm else set()
        roles |= {"attn_sinks"} if self.sinks else set()
        roles |= {"attn_q_norm", "attn_k_norm"} if self.qk_norm else set()
        return frozenset(roles | ({"post_attention_norm"} if self.post else set()))


@dataclass(frozen=True, slots=True)
class FeedForward:
    """Two or three matrices with a nonlinear function between them. width: of what it is of."""

    activation: Activation = "silu"
    gated: bool = True
    norm: NormKind | None = "rms"
    post: NormKind | None = None
    width: int = 0
    biases: frozenset[str] = frozenset()

    OPTIONAL: ClassVar = (
        ("ffn_norm_bias",),
        ("ffn_gate_bias", "ffn_up_bias"),
        ("ffn_up_bias",),
        ("ffn_down_bias",),
    )

    @property
    def roles(self) -> frozenset[str]:
        """The weights that it needs."""
        roles = {"ffn_up", "ffn_down", *self.biases} | ({"ffn_gate"} if self.gated else set())
        roles |= {"ffn_norm"} if self.norm else set()
        return frozenset(roles | ({"post_ffw_norm"} if self.post else set()))


@dataclass(frozen=True, slots=True)
class Experts:
    """Several gated feed-forward parts, of which each row takes a few (Shazeer et al. 2017).

    Attributes:
        gating: What makes weights of the router's scores: "softmax" over all experts, "sigmoid" of
            each, or softmax over the "chosen" ones.
        normalized: The weights of the chosen ones are divided by their sum.
        count, used: Experts, and how many of them a row takes.
        width: Inner width of one expert.
        shared: Inner width of the part that every row takes, 0: there is none.
        scale: Multiplies the weights.
        biases: Roles that this file has beyond the necessary ones.
    """

    activation: Activation = "silu"
    gating: Gating = "softmax"
    normalized: bool = False
    norm: NormKind | None = "rms"
    post: NormKind | None = None
    count: int = 0
    used: int = 0
    width: int = 0
    shared: int = 0
    scale: float = 1.0
    biases: frozenset[str] = frozenset()

    gated: ClassVar = True
    OPTIONAL: ClassVar = (
        ("ffn_norm_bias",),
        ("ffn_router_bias",),
        ("ffn_router_correction",),
        ("ffn_expert_gate_bias", "ffn_expert_up_bias", "ffn_expert_down_bias"),
        ("ffn_shared_gate", "ffn_shared_up", "ffn_shared_down"),
        ("ffn_shared_router",),
    )

    @property
    def roles(self) -> frozenset[str]:
        """The weights that it needs."""
        roles = {"ffn_router", "ffn_expert_gate", "ffn_expert_up", "ffn_expert_down", *self.biases}
        roles |= {"ffn_norm"} if self.norm else set()
        return frozenset(roles | ({"post_ffw_norm"} if self.post else set()))


Parts = tuple[Attention, FeedForward | Experts]


@dataclass(frozen=True, slots=True)
class Block:
    """The parts of a layer in their order, and how they meet in the residual stream.

    Attributes:
        parts: Attention, then what follows it.
        parallel: Every part reads the layer's input; else each reads what the one before left.
        residual_scale: Multiplies what a part adds.
    """

    parts: Parts
    parallel: bool = False
    residual_scale: float = 1.0

    @property
    def attention(self) -> Attention:
        return self.parts[0]

    @property
    def feed_forward(self) -> FeedForward | Experts:
        return self.parts[1]

    @property
    def roles(self) -> tuple[str, ...]:
        """The weights of all parts, in the order of `LAYER_WEIGHTS`."""
        wanted = frozenset[str]().union(*(part.roles for part in self.parts))
        return tuple(role for role in LAYER_WEIGHTS if role in wanted)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. rope None: nothing turns. window: a row sees itself and window - 1 before it."""

    block: Block
    rope: Rope | None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight lies: rows first .. first + shape[0] - 1 of a tensor of so many rows."""

    name: str
    shape: tuple[int, ...]
    first: int = 0
    rows: int = 0

    @property
    def whole(self) -> tuple[int, ...]:
        """Shape of the whole tensor."""
        return (self.rows or self.shape[0], *self.shape[1:])

    def of(self, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
        """The weight as a tensor of its own, on the file's memory."""
        info = tensors[self.name]
        return info if info.shape == self.shape else info.part(self.first, self.shape)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything about a model but its weights. Counts are positive, shapes are checked.

    Attributes:
        dim: Width of the residual stream.
        n_kv_heads: Divides n_heads: query head h reads key head h // (n_heads // n_kv_heads).
        head_dim: Entries of a head's queries and keys.
        value_dim: Entries of a head's values; as many, but for latent attention.
        n_vocab: Rows of the embedding and of the output matrix.
        n_tokens: Entries of the tokenizer, <= n_vocab: ids from n_tokens on are padding rows.
        n_ctx_train: Tokens of context that the model was made for.
        n_ctx_most: Tokens that the context may grow to; less than n_ctx_train where the angles of
            a longer context are others, see `at_context`.
        layers: Their ropes turn as many entries, in the same pairs.
        extras: Roles outside the layers that this file has beyond embedding and output norm.
        names: (role, name in the file) where the architecture has names of its own.
        fused: Keys of `FUSED` that the file has.
    """

    architecture: str
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    n_vocab: int
    n_tokens: int
    n_ctx_train: int
    n_ctx_most: int
    layers: tuple[Layer, ...]
    norm_eps: float
    attention_scale: float
    output_norm: NormKind = "rms"
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    logit_scale: float = 1.0
    extras: frozenset[str] = frozenset()
    names: tuple[tuple[str, str], ...] = ()
    fused: frozenset[str] = frozenset()

    def at_context(self, n_ctx: int) -> "Config":
        """The model as it computes with a context of so many tokens.

        Where its angles depend on the context (longrope), they are settled: a context up to
        `n_ctx_most` keeps them.
        """
        settled = {rope: rope.at_context(n_ctx) for rope in self.ropes if rope}
        if all(rope == new for rope, new in settled.items()):
            return self
        layers = [replace(la, rope=settled[la.rope] if la.rope else None) for la in self.layers]
        shorter = [r.original for r in settled if r.long_factors and n_ctx <= r.original]
        return replace(self, layers=tuple(layers), n_ctx_most=min([self.n_ctx_most, *shorter]))

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def o_dim(self) -> int:
        """What attention gives, before its output matrix."""
        return self.n_heads * self.value_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def ff(self) -> int:
        """The widest inner width of a feed-forward part, or of an expert."""
        parts = [block.feed_forward for block in self.blocks]
        shared = [part.shared for part in parts if isinstance(part, Experts)]
        return max([*(part.width for part in parts), *shared])

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the embedding matrix."""
        return "output" not in self.extras

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The different blocks of the layers, by their first layer."""
        return tuple(dict.fromkeys(layer.block for layer in self.layers))

    @property
    def ropes(self) -> tuple[Rope | None, ...]:
        """The different ropes of the layers, by their first layer."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))

    @property
    def model_roles(self) -> tuple[str, ...]:
        """Weights outside the layers. A tied model has no "output": read "embedding" twice."""
        wanted = {"embedding", "output_norm", *self.extras}
        for rope in self.ropes:
            wanted |= {role for role in (rope and (rope.factors, rope.long_factors)) or () if role}
        return tuple(role for role in MODEL_WEIGHTS if role in wanted)

    def shape(self, role: str, layer: int = 0) -> tuple[int, ...]:
        """Row-major shape of a weight: matrices are [outputs, inputs]."""
        q, kv, dim = self.q_dim, self.kv_dim, self.dim
        width = self.layers[layer].block.feed_forward.width
        match role:
            case "embedding" | "output":
                return (self.n_vocab, dim)
            case "positions":
                return (self.n_ctx_train, dim)
            case "output_bias":
                return (self.n_vocab,)
            case "rope_factors" | "rope_factors_short" | "rope_factors_long":
                return (next((rope.dim for rope in self.ropes if rope), 0) // 2,)
            case "attn_q" | "attn_q_bias":
                return (q, dim) if role == "attn_q" else (q,)
            case "attn_k" | "attn_v":
                return (kv, dim)
            case "attn_k_bias" | "attn_v_bias":
                return (kv,)
            case "attn_q_norm":
                return self._qk_norm_shape(layer, self.n_heads)
            case "attn_k_norm":
                return self._qk_norm_shape(layer, self.n_kv_heads)
            case "attn_output":
                return (dim, self.o_dim)
            case "attn_kv_a" | "attn_kv_a_norm" | "attn_kv_b" | "attn_k_b" | "attn_v_b":
                return self._latent_shape(role, layer)
            case "ffn_gate" | "ffn_up":
                return (width, dim)
            case "ffn_gate_bias" | "ffn_up_bias":
                return (width,)
            case "ffn_down":
                return (dim, width)
            case "attn_sinks":
                return (self.n_heads,)
        part = self.layers[layer].block.feed_forward
        return _expert_shape(part, role, dim) if isinstance(part, Experts) else (dim,)

    def _latent_shape(self, role: str, layer: int) -> tuple[int, ...]:
        this = self.layers[layer]
        rank = this.block.attention.latent.rank if this.block.attention.latent else 0
        turned = this.rope.dim if this.rope else 0
        plain, heads = self.head_dim - turned, self.n_heads
        return {
            "attn_kv_a": (rank + turned, self.dim),
            "attn_kv_a_norm": (rank,),
            "attn_kv_b": (heads * (plain + self.value_dim), rank),
            "attn_k_b": (heads, rank, plain),
            "attn_v_b": (heads, self.value_dim, rank),
        }[role]

    def _qk_norm_shape(self, layer: int, heads: int) -> tuple[int, ...]:
        norm = self.layers[layer].block.attention.qk_norm or QKNorm()
        if norm.over == "row":
            return (heads * self.head_dim,)
        return (heads, self.head_dim) if norm.own else (self.head_dim,)

    def source(self, role: str, layer: int | None = None) -> Source:
        """Where a weight lies in the file. layer None: a weight outside the layers."""
        own = dict(self.names)
        if layer is None:
            return Source(own.get(role, MODEL_WEIGHTS[role]), self.shape(role))
        for tensor, roles in FUSED.items():
            if tensor in self.fused and role in roles:
                rows = [self.shape(r, layer)[0] for r in roles]
                at = roles.index(role)
                name, shape = tensor.format(i=layer), self.shape(role, layer)
                return Source(name, shape, sum(rows[:at]), sum(rows))
        name = own.get(role, LAYER_WEIGHTS[role]).format(i=layer)
        return Source(name, self.shape(role, layer))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model needs: name in the file -> row-major shape."""
        sources = [self.source(role) for role in self.model_roles]
        for i, layer in enumerate(self.layers):
            sources += [self.source(role, i) for role in layer.block.roles]
        return {source.name: source.whole for source in sources}


def _expert_shape(part: Experts, role: str, dim: int) -> tuple[int, ...]:
    match role:
        case "ffn_router":
            return (part.count, dim)
        case "ffn_router_bias" | "ffn_router_correction":
            return (part.count,)
        case "ffn_expert_gate" | "ffn_expert_up":
            return (part.count, part.width, dim)
        case "ffn_expert_gate_bias" | "ffn_expert_up_bias":
            return (part.count, part.width)
        case "ffn_expert_down":
            return (part.count, dim, part.width)
        case "ffn_expert_down_bias":
            return (part.count, dim)
        case "ffn_shared_gate" | "ffn_shared_up":
            return (part.shared, dim)
        case "ffn_shared_down":
            return (dim, part.shared)
    return (dim,)
