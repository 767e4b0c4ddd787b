"""A table of architectures: metadata and tensor shapes of a GGUF file -> one frozen `Config`.

Comes in: metadata (name -> Python value) and the shape of every tensor (name -> row-major shape).
Goes out: `Config`, complete and checked: whoever holds one need not look at the file's keys again.
It must not know tinygrad, files, quantisation or text.

What every row computes, from `Config` alone (x: [rows, dim], float32; RMS norm with `norm_eps`):

    x = embedding[token] * embedding_scale
    for each layer:
        h = norm(x, attn_norm)
        q, k, v = h @ attn_q.T + attn_q_bias, ...            biases where `qkv_bias`
        q, k = norm(q, attn_q_norm), norm(k, attn_k_norm)    per head, where `qk_norm`
        q, k = rope(q), rope(k)                              angles of the layer's `Rope`
        s = q @ k.T * attention_scale                        then cap * tanh(s / cap) with a softcap
        a = softmax(s where 0 <= q_pos - k_pos < window) @ v
        h = a @ attn_output.T + attn_output_bias
        x = x + (norm(h, post_attention_norm) where `post_norms` else h)
        h = norm(x, ffn_norm)
        h = (activation(h @ ffn_gate.T) * (h @ ffn_up.T)) @ ffn_down.T
        x = x + (norm(h, post_ffw_norm) where `post_norms` else h)
    logits = norm(x, output_norm) @ output.T                 then cap * tanh(l / cap) with a softcap

A new architecture is one row of `ARCHITECTURES`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

Metadata = Mapping[str, object]
Shapes = Mapping[str, tuple[int, ...]]
Pairs = Literal["adjacent", "halves"]
Activation = Literal["silu", "gelu_tanh"]

# Role -> name in the file. `{i}` is the layer.
MODEL_WEIGHTS = {
    "embedding": "token_embd.weight",
    "output_norm": "output_norm.weight",
    "output": "output.weight",
    "rope_factors": "rope_freqs.weight",
}
LAYER_WEIGHTS = {
    "attn_norm": "blk.{i}.attn_norm.weight",
    "attn_q": "blk.{i}.attn_q.weight",
    "attn_k": "blk.{i}.attn_k.weight",
    "attn_v": "blk.{i}.attn_v.weight",
    "attn_q_bias": "blk.{i}.attn_q.bias",
    "attn_k_bias": "blk.{i}.attn_k.bias",
    "attn_v_bias": "blk.{i}.attn_v.bias",
    "attn_q_norm": "blk.{i}.attn_q_norm.weight",
    "attn_k_norm": "blk.{i}.attn_k_norm.weight",
    "attn_output": "blk.{i}.attn_output.weight",
    "attn_output_bias": "blk.{i}.attn_output.bias",
    "post_attention_norm": "blk.{i}.post_attention_norm.weight",
    "ffn_norm": "blk.{i}.ffn_norm.weight",
    "ffn_gate": "blk.{i}.ffn_gate.weight",
    "ffn_up": "blk.{i}.ffn_up.weight",
    "ffn_down": "blk.{i}.ffn_down.weight",
    "post_ffw_norm": "blk.{i}.post_ffw_norm.weight",
}
# Derived data that old converters wrote: what it holds follows from the metadata.
IGNORED_ENDINGS = (".attn_rot_embd.weight", ".attention.rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of one kind of layer.

    The first `dim` entries of a head turn, the rest stays. pairs: "adjacent" turns (0, 1), (2, 3)
    (GGUF files of `llama` have their rows permuted for it); "halves" turns (i, i + dim/2).
    The angle of pair i at position p is p / linear * base ** (-2i / dim) / rope_factors[i].
    """

    base: float
    dim: int
    pairs: Pairs
    linear: float = 1.0  # positions are divided by it ("linear" rope scaling)

    def inv_freq(self, factors: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float64]:
        """Radians per position of each pair, float64 [dim // 2]. factors: rope_freqs.weight.

        Reference: ggml divides the angle by freq_factors (Llama 3.1 and later).
        """
        freq = self.base ** (-np.arange(0, self.dim, 2, dtype=np.float64) / self.dim) / self.linear
        return freq if factors is None else freq / factors.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Layer:
    """What differs between layers. window: a row sees itself and window - 1 before; None: all."""

    rope: Rope
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Everything about a model but its weights. Counts are positive, shapes are checked."""

    architecture: str
    dim: int  # width of the residual stream
    n_heads: int
    n_kv_heads: int  # divides n_heads: query head h reads key head h // (n_heads // n_kv_heads)
    head_dim: int  # of queries, keys and values alike
    ff: int
    n_vocab: int  # rows of the embedding and of the output matrix
    n_tokens: int  # entries of the tokenizer, <= n_vocab: ids from n_tokens on are padding rows
    n_ctx_train: int
    layers: tuple[Layer, ...]  # their ropes differ in base and scaling only
    norm_eps: float
    attention_scale: float
    activation: Activation
    tied: bool  # the output matrix is the embedding matrix
    rope_factors: bool = False  # rope_freqs.weight exists: it divides every layer's inv_freq
    qk_norm: bool = False
    post_norms: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def q_dim(self) -> int:
        return self.n_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.n_kv_heads * self.head_dim

    @property
    def layer_roles(self) -> tuple[str, ...]:
        """Weights that every layer has, in the order of use."""
        left_out = set()
        if not self.qkv_bias:
            left_out |= {"attn_q_bias", "attn_k_bias", "attn_v_bias"}
        if not self.output_bias:
            left_out |= {"attn_output_bias"}
        if not self.qk_norm:
            left_out |= {"attn_q_norm", "attn_k_norm"}
        if not self.post_norms:
            left_out |= {"post_attention_norm", "post_ffw_norm"}
        return tuple(role for role in LAYER_WEIGHTS if role not in left_out)

    @property
    def model_roles(self) -> tuple[str, ...]:
        """Weights outside the layers. A tied model has no "output": read "embedding" twice."""
        left_out = {"output"} if self.tied else set()
        if not self.rope_factors:
            left_out |= {"rope_factors"}
        return tuple(role for role in MODEL_WEIGHTS if role not in left_out)

    def shape(self, role: str) -> tuple[int, ...]:
        """Row-major shape of a weight: matrices are [outputs, inputs]."""
        q, kv = self.q_dim, self.kv_dim
        return {
            "embedding": (self.n_vocab, self.dim),
            "output": (self.n_vocab, self.dim),
            "rope_factors": (self.layers[0].rope.dim // 2,),
            "attn_q": (q, self.dim),
            "attn_k": (kv, self.dim),
            "attn_v": (kv, self.dim),
            "attn_q_bias": (q,),
            "attn_k_bias": (kv,),
            "attn_v_bias": (kv,),
            "attn_q_norm": (self.head_dim,),
            "attn_k_norm": (self.head_dim,),
            "attn_output": (self.dim, q),
            "ffn_gate": (self.ff, self.dim),
            "ffn_up": (self.ff, self.dim),
            "ffn_down": (self.dim, self.ff),
        }.get(role, (self.dim,))

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model needs: name in the file -> row-major shape."""
        named = {MODEL_WEIGHTS[role]: self.shape(role) for role in self.model_roles}
        for i in range(self.n_layers):
            named |= {layer_weight(role, i): self.shape(role) for role in self.layer_roles}
        return named


def layer_weight(role: str, layer: int) -> str:
    """Name in the file of a layer's weight: ("attn_q", 3) -> "blk.3.attn_q.weight"."""
    return LAYER_WEIGHTS[role].format(i=layer)


@dataclass(frozen=True, slots=True)
class _Keys:
    """Reads `<architecture>.<key>`, or refuses with the key's name."""

    architecture: str
    metadata: Metadata

    def name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; a list with one entry per layer must repeat one value."""
        value = self.metadata.get(self.name(key), default)
        if isinstance(value, list | tuple | np.ndarray) and len(value):
            if len(distinct := {str(v) for v in value}) > 1:
                listed = ", ".join(v[:80] for v in sorted(distinct)[:8])
                raise UnsupportedModelError(
                    f"{self.name(key)} differs between layers ({listed}): not supported"
                )
            value = value[0]
        if isinstance(value, np.integer):
            value = int(value)
        if value is None:
            raise GGUFError(f"metadata lacks {self.name(key)}")
        # Above int32 no buffer of ours could index it.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise GGUFError(f"{self.name(key)} must be a positive integer, not {quoted(value)}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite positive number."""
        value = self.metadata.get(self.name(key), default)
        if value is None:
            raise GGUFError(f"metadata lacks {self.name(key)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type,operator]
            raise GGUFError(f"{self.name(key)} must be a positive number, not {quoted(value)}")
        return float(value)  # type: ignore[arg-type]

    def optional(self, key: str) -> float | None:
        """A positive number, or None where the key is missing or 0 (both mean: not used)."""
        value = self.metadata.get(self.name(key))
        unused = value is None or (isinstance(value, int | float) and value == 0)
        return None if unused else self.real(key)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: how a Config follows from the metadata, beyond what all architectures share."""

    pairs: Pairs
    activation: Activation = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    scaled_embedding: bool = False  # by sqrt(dim)
    layers: Callable[[_Keys, int, Rope], tuple[Layer, ...]] = field(
        default=lambda _keys, n_layers, rope: (Layer(rope),) * n_layers
    )
    # Default of `attention.scale`, from (n_layers, dim, n_heads, head_dim).
    attention_scale: Callable[[int, int, int, int], float] = field(
        default=lambda _n_layers, _dim, _n_heads, head_dim: 1.0 / math.sqrt(head_dim)
    )


def _gemma3_layers(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Layer, ...]:
    """Five layers with a window and a local rope, then one that sees all. Scaling: global only."""
    window, period = keys.count("attention.sliding_window"), 6
    pattern = keys.metadata.get(keys.name("attention.sliding_window_pattern"))
    local_rope = Rope(keys.real("rope.freq_base_swa", 10_000.0), rope.dim, rope.pairs)
    local, full = Layer(local_rope, window), Layer(rope)
    if isinstance(pattern, list | tuple | np.ndarray):  # one flag a layer: is it local?
        if len(pattern) != n_layers:
            raise GGUFError(
                f"{keys.name('attention.sliding_window_pattern')} has {len(pattern)} entries "
                f"for {n_layers} layers"
            )
        return tuple(local if flag else full for flag in pattern)
    if pattern is not None:
        period = keys.count("attention.sliding_window_pattern")
    return tuple(full if (i + 1) % period == 0 else local for i in range(n_layers))


def _gemma2_layers(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Layer, ...]:
    """Layers with a window and layers that see all take turns, the first with a window."""
    local = Layer(rope, keys.count("attention.sliding_window", 4096))
    return tuple(Layer(rope) if i % 2 else local for i in range(n_layers))


def _gemma2_scale(n_layers: int, dim: int, n_heads: int, head_dim: int) -> float:
    # The 27B model (46 layers) was trained with 144 = dim / n_heads, though its heads have 128.
    return 1.0 / math.sqrt(dim / n_heads if n_layers == 46 else head_dim)


def _gemma3_scale(n_layers: int, dim: int, n_heads: int, head_dim: int) -> float:
    # The 27B model (62 layers) was trained with 168 = dim / n_heads, though its heads have 128.
    return 1.0 / math.sqrt(dim / n_heads if n_layers == 62 else head_dim)


# Declared out: models with a recurrent state, whole or in some layers (TG-81).
RECURRENT = frozenset(
    {
        *("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "jamba", "falcon-h1"),
        *("plamo2", "granitehybrid", "nemotron_h", "lfm2", "lfm2moe", "qwen3next", "kimi-linear"),
    }
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(pairs="adjacent"),  # Llama, Mistral, SmolLM2, TinyLlama
    "qwen2": Architecture(pairs="halves"),  # Qwen2, Qwen2.5: their biases are found by name
    "exaone": Architecture(pairs="halves"),  # EXAONE 3
    "qwen3": Architecture(pairs="halves", qk_norm=True),
    "gemma": Architecture(pairs="halves", activation="gelu_tanh", scaled_embedding=True),
    "gemma2": Architecture(
        pairs="halves",
        activation="gelu_tanh",
        post_norms=True,
        scaled_embedding=True,
        layers=_gemma2_layers,
        attention_scale=_gemma2_scale,
    ),
    "gemma3": Architecture(
        pairs="halves",
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        layers=_gemma3_layers,
        attention_scale=_gemma3_scale,
    ),
}


def read_config(metadata: Metadata, shapes: Shapes) -> Config:
    """The checked Config of a file.

    Raises UnsupportedModelError for an architecture, a rope scaling or a tensor that we do not
    compute (naming it and what is supported), GGUFError for keys and shapes that contradict.
    """
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError("metadata lacks general.architecture")
    if (row := ARCHITECTURES.get(name)) is None:
        why = "is recurrent: it keeps a state, not a KV cache" if name in RECURRENT else ""
        raise UnsupportedModelError(
            f"architecture {quoted(name)} {why or 'is not supported'}; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    config = _config(name, row, _Keys(name, metadata), shapes)
    _check_tensors(config, shapes)
    return config


def _config(name: str, row: Architecture, keys: _Keys, shapes: Shapes) -> Config:
    n_layers, dim = keys.count("block_count"), keys.count("embedding_length")
    n_heads = keys.count("attention.head_count")
    n_kv_heads = keys.count("attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise GGUFError(
            f"{keys.name('attention.head_count')} ({n_heads}) is not a multiple of "
            f"{keys.name('attention.head_count_kv')} ({n_kv_heads})"
        )
    head_dim = _head_dim(keys, dim, n_heads)
    # Each layer has at least one tensor: a count beyond them is a lie that would cost memory.
    if n_layers > len(shapes):
        raise GGUFError(
            f"{keys.name('block_count')} is {n_layers}, the file has {len(shapes)} tensors"
        )
    n_vocab, n_tokens = _vocabulary(keys, shapes)
    return Config(
        architecture=name,
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        ff=keys.count("feed_forward_length"),
        n_vocab=n_vocab,
        n_tokens=n_tokens,
        n_ctx_train=keys.count("context_length"),
        layers=row.layers(keys, n_layers, _rope(keys, row.pairs, head_dim)),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        attention_scale=keys.optional("attention.scale")
        or row.attention_scale(n_layers, dim, n_heads, head_dim),
        activation=row.activation,
        tied=MODEL_WEIGHTS["output"] not in shapes,
        rope_factors=MODEL_WEIGHTS["rope_factors"] in shapes,
        qk_norm=row.qk_norm,
        post_norms=row.post_norms,
        qkv_bias=layer_weight("attn_q_bias", 0) in shapes,
        output_bias=layer_weight("attn_output_bias", 0) in shapes,
        embedding_scale=math.sqrt(dim) if row.scaled_embedding else 1.0,
        attention_softcap=keys.optional("attn_logit_softcapping"),
        logit_softcap=keys.optional("final_logit_softcapping"),
    )


def _head_dim(keys: _Keys, dim: int, n_heads: int) -> int:
    if dim % n_heads and keys.name("attention.key_length") not in keys.metadata:
        raise GGUFError(
            f"{keys.name('embedding_length')} ({dim}) is not a multiple of "
            f"{keys.name('attention.head_count')} ({n_heads})"
        )
    head_dim = keys.count("attention.key_length", dim // n_heads)
    if (value := keys.count("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedModelError(
            f"values have {value} entries a head and keys {head_dim}: not supported"
        )
    return head_dim


def _rope(keys: _Keys, pairs: Pairs, head_dim: int) -> Rope:
    turned = keys.count("rope.dimension_count", head_dim)
    if turned > head_dim or turned % 2:
        raise GGUFError(
            f"{keys.name('rope.dimension_count')} must be even and at most {head_dim}, not {turned}"
        )
    scaling = keys.metadata.get(keys.name("rope.scaling.type"), "none")
    linear = 1.0
    if isinstance(scaling, str) and scaling == "linear":
        linear = keys.real("rope.scaling.factor")
    elif not isinstance(scaling, str) or scaling != "none":
        raise UnsupportedModelError(
            f"rope scaling {quoted(scaling)} is not supported; supported: none, linear, "
            "rope_freqs.weight"
        )
    elif old := keys.optional("rope.scale_linear"):  # files from before rope.scaling.*
        linear = old
    return Rope(keys.real("rope.freq_base", 10_000.0), turned, pairs, linear)


def _vocabulary(keys: _Keys, shapes: Shapes) -> tuple[int, int]:
    """(rows of the embedding, entries of the tokenizer)."""
    embedding = shapes.get(MODEL_WEIGHTS["embedding"])
    if embedding is None or len(embedding) != 2:
        raise GGUFError(f"tensor {MODEL_WEIGHTS['embedding']} is missing or not a matrix")
    rows = embedding[0]
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if tokens is None:
        return rows, rows  # a file without vocabulary: ids only
    if not isinstance(tokens, list | tuple):
        raise GGUFError("tokenizer.ggml.tokens is not a list of strings")
    n_tokens = len(tokens)
    if n_tokens > rows:
        raise GGUFError(
            f"tokenizer.ggml.tokens has {n_tokens} entries, "
            f"but {MODEL_WEIGHTS['embedding']} only {rows} rows"
        )
    return rows, n_tokens


def _check_tensors(config: Config, shapes: Shapes) -> None:
    wanted = config.tensors()
    if missing := [name for name in wanted if name not in shapes]:
        raise GGUFError(f"the file lacks {_listed(missing)}")
    for name, shape in wanted.items():
        if tuple(shapes[name]) != shape:
            raise GGUFError(f"tensor {name} has shape {list(shapes[name])}, expected {list(shape)}")
    # A weight that we do not use means a computation that we do not know: refuse, never guess.
    unknown = [n for n in shapes if n not in wanted and not n.endswith(IGNORED_ENDINGS)]
    if unknown:
        raise UnsupportedModelError(
            f"unsupported tensors in this {config.architecture} model: {_listed(unknown)}"
        )


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:80] for name in sorted(names)[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
