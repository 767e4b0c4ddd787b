"""A table of architectures: metadata and tensor shapes of a GGUF file become one frozen `Config`.

A `Config` is complete and checked, so nothing else reads the file's keys. A new architecture is one
row of `ARCHITECTURES`, made of the parts in blocks.py, whose docstring has the formula that they
fill in. Biases and fused tensors are found by their names in the file.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

from .blocks import (
    FUSED,
    LAYER_WEIGHTS,
    MODEL_WEIGHTS,
    Attention,
    Block,
    Config,
    FeedForward,
    Layer,
    NormKind,
    Parts,
    QKNorm,
)
from .rope import Pairs, Rope

Metadata = Mapping[str, object]
Shapes = Mapping[str, tuple[int, ...]]

# Derived data that old converters wrote: what it holds follows from the metadata.
IGNORED_ENDINGS = (".attn_rot_embd.weight", ".attention.rotary_emb.inv_freq")


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


Turns = tuple[Rope | None, int | None]  # the rope and the window of a layer


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: how a Config follows from the metadata, beyond what all architectures share.

    Attributes:
        pairs: Which entries of a head turn together.
        parts: The parts of a layer; their widths and biases come from the file.
        parallel: See `Block`.
        output_norm: The norm before the output matrix.
        scaled_embedding: The embedding is multiplied by sqrt(dim).
        turns: (keys, n_layers, rope) -> rope and window of every layer.
        attention_scale: (n_layers, dim, n_heads, head_dim) -> what the key `attention.scale` is
            where the file lacks it.
        names: Role -> name in the file, where it is another than in `LAYER_WEIGHTS`.
    """

    pairs: Pairs
    parts: Parts = (Attention(), FeedForward())
    parallel: bool = False
    output_norm: NormKind = "rms"
    scaled_embedding: bool = False
    turns: Callable[[_Keys, int, Rope], tuple[Turns, ...]] = field(
        default=lambda _keys, n_layers, rope: ((rope, None),) * n_layers
    )
    attention_scale: Callable[[int, int, int, int], float] = field(
        default=lambda _n_layers, _dim, _n_heads, head_dim: 1.0 / math.sqrt(head_dim)
    )
    names: Mapping[str, str] = field(default_factory=dict)


def _gemma3_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Five layers with a window and a local rope, then one that sees all. Scaling: global only."""
    window, period = keys.count("attention.sliding_window"), 6
    pattern = keys.metadata.get(keys.name("attention.sliding_window_pattern"))
    base = keys.real("rope.freq_base_swa", 10_000.0)
    local: Turns = (Rope(base, rope.dim, rope.pairs, factors=rope.factors), window)
    full: Turns = (rope, None)
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


def _gemma2_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Layers with a window and layers that see all take turns, the first with a window."""
    window = keys.count("attention.sliding_window", 4096)
    return tuple((rope, None if i % 2 else window) for i in range(n_layers))


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
    "llama": Architecture("adjacent"),  # Llama, Mistral, SmolLM2, TinyLlama
    "qwen2": Architecture("halves"),  # Qwen2, Qwen2.5: their biases are found by name
    "exaone": Architecture("halves"),  # EXAONE 3
    "qwen3": Architecture("halves", (Attention(qk_norm=QKNorm()), FeedForward())),
    "gemma": Architecture("halves", (Attention(), FeedForward("gelu_tanh")), scaled_embedding=True),
    "gemma2": Architecture(
        "halves",
        (Attention(post="rms"), FeedForward("gelu_tanh", post="rms")),
        scaled_embedding=True,
        turns=_gemma2_turns,
        attention_scale=_gemma2_scale,
    ),
    "gemma3": Architecture(
        "halves",
        (Attention(qk_norm=QKNorm(), post="rms"), FeedForward("gelu_tanh", post="rms")),
        scaled_embedding=True,
        turns=_gemma3_turns,
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
    rope = _rope(keys, row.pairs, head_dim, shapes)
    block, fused = _block(row, keys, shapes)
    kind = "attention.layer_norm_rms_epsilon"
    if row.output_norm == "layer":
        kind = "attention.layer_norm_epsilon"
    return Config(
        architecture=name,
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_vocab=n_vocab,
        n_tokens=n_tokens,
        n_ctx_train=keys.count("context_length"),
        layers=tuple(Layer(block, *turn) for turn in row.turns(keys, n_layers, rope)),
        norm_eps=keys.real(kind),
        attention_scale=keys.optional("attention.scale")
        or row.attention_scale(n_layers, dim, n_heads, head_dim),
        output_norm=row.output_norm,
        embedding_scale=math.sqrt(dim) if row.scaled_embedding else 1.0,
        attention_softcap=keys.optional("attn_logit_softcapping"),
        logit_softcap=keys.optional("final_logit_softcapping"),
        extras=frozenset(r for r in _EXTRAS if MODEL_WEIGHTS[r] in shapes),
        names=tuple(row.names.items()),
        fused=fused,
    )


# Weights outside the layers that a file may have or lack.
_EXTRAS = ("output", "output_bias", "output_norm_bias")


def _block(row: Architecture, keys: _Keys, shapes: Shapes) -> tuple[Block, frozenset[str]]:
    """The row's parts with what this file adds, and the keys of `FUSED` that it has."""
    attention, feed_forward = row.parts
    fused = {
        tensor
        for tensor, roles in FUSED.items()
        if tensor.format(i=0) in shapes
        and not any(LAYER_WEIGHTS[role].format(i=0) in shapes for role in roles[:1])
        and (feed_forward.gated or "ffn_gate" not in roles)
    }

    def given(role: str) -> bool:
        names = [row.names.get(role, LAYER_WEIGHTS[role])]
        names += [tensor for tensor in fused if role in FUSED[tensor]]
        return any(name.format(i=0) in shapes for name in names)

    def biases(part: Attention | FeedForward) -> frozenset[str]:
        groups = [group for group in part.OPTIONAL if given(group[0])]
        return frozenset(role for group in groups for role in group)

    attention = replace(attention, biases=biases(attention))
    if attention.qk_norm and attention.qk_norm.optional and not given("attn_q_norm"):
        attention = replace(attention, qk_norm=None)
    width = keys.count("feed_forward_length")
    feed_forward = replace(feed_forward, biases=biases(feed_forward), width=width)
    return Block((attention, feed_forward), row.parallel), frozenset(fused)


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


def _rope(keys: _Keys, pairs: Pairs, head_dim: int, shapes: Shapes) -> Rope:
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
    factors = "rope_factors" if MODEL_WEIGHTS["rope_factors"] in shapes else None
    return Rope(keys.real("rope.freq_base", 10_000.0), turned, pairs, linear, factors)


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
