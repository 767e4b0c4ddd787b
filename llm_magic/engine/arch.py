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
    Experts,
    FeedForward,
    Gating,
    Latent,
    Layer,
    NormKind,
    Parts,
    QKNorm,
)
from .rope import Pairs, Rope, Yarn

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

    def names_one_of(self, key: str, other: str) -> int:
        """A positive integer under the first of two keys that the file has."""
        return self.count(key if self.name(key) in self.metadata else other)

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
        models: The models whose files name this architecture, for the documentation.
        pairs: Which entries of a head turn together.
        parts: The parts of a layer; their widths and biases come from the file.
        parallel: See `Block`.
        output_norm: The norm before the output matrix.
        scaled_embedding: The embedding is multiplied by sqrt(dim).
        turns: (keys, n_layers, rope) -> rope and window of every layer.
        attention_scale: (n_layers, dim, n_heads, head_dim) -> what the key `attention.scale` is
            where the file lacks it.
        scaled_by: keys -> what attention_scale is multiplied by.
        context: keys -> the most tokens that are computed rightly, where that is less than what
            the model was made for.
        learned_positions: A table of positions is added to the embedding.
        divided_logits: The key `logit_scale` divides the logits; else it multiplies them.
        names: Role -> name in the file, where it is another than in `LAYER_WEIGHTS`.
        adjust: (row, keys, shapes) -> the row for this file, where its files differ.
    """

    models: str
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
    scaled_by: "Callable[[_Keys], float] | None" = None
    context: "Callable[[_Keys], int] | None" = None
    learned_positions: bool = False
    divided_logits: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    adjust: "Callable[[Architecture, _Keys, Shapes], Architecture] | None" = None


def _with_window(keys: _Keys, n_layers: int, period: int) -> list[bool]:
    """Which layers have a window: all but every `period`-th, unless the file says otherwise."""
    name = keys.name("attention.sliding_window_pattern")
    pattern = keys.metadata.get(name)
    if isinstance(pattern, list | tuple | np.ndarray):  # one flag a layer
        if len(pattern) != n_layers:
            raise GGUFError(f"{name} has {len(pattern)} entries for {n_layers} layers")
        return [bool(flag) for flag in pattern]
    if pattern is not None:
        period = keys.count("attention.sliding_window_pattern")
    return [(i + 1) % period != 0 for i in range(n_layers)]


def _gemma3_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Five layers with a window and a local rope, then one that sees all. Scaling: global only."""
    window, base = keys.count("attention.sliding_window"), keys.real("rope.freq_base_swa", 10_000.0)
    local = Rope(base, rope.dim, rope.pairs, factors=rope.factors)
    flags = _with_window(keys, n_layers, 6)
    return tuple((local, window) if flag else (rope, None) for flag in flags)


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


def _no_turns(_keys: _Keys, n_layers: int, _rope: Rope) -> tuple[Turns, ...]:
    return ((None, None),) * n_layers


def _one_window(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """All layers have the window that the file names, if it names one."""
    named = keys.optional("attention.sliding_window")
    window = None if named is None else keys.count("attention.sliding_window")
    return ((rope, window),) * n_layers


def _smollm3_turns(_keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Every fourth layer does not turn."""
    return tuple((rope if (i + 1) % 4 else None, None) for i in range(n_layers))


def _windows_turn(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Three layers with a window that turn, then one that sees all and does not (Cohere 2)."""
    window, flags = keys.count("attention.sliding_window"), _with_window(keys, n_layers, 4)
    return tuple((rope, window) if flag else (None, None) for flag in flags)


def _exaone4_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """As `_windows_turn` where the file names a window, else all layers turn and see all."""
    if keys.optional("attention.sliding_window") is None:
        return ((rope, None),) * n_layers
    return _windows_turn(keys, n_layers, rope)


def _olmo2_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """OLMo 3 names a window: three layers with it and an unscaled rope, then one that sees all."""
    if keys.optional("attention.sliding_window") is None:
        return ((rope, None),) * n_layers
    window, flags = keys.count("attention.sliding_window"), _with_window(keys, n_layers, 4)
    local = Rope(rope.base, rope.dim, rope.pairs, factors=rope.factors)
    return tuple((local, window) if flag else (rope, None) for flag in flags)


def _one_norm(row: Architecture, _keys: _Keys, shapes: Shapes) -> Architecture:
    """Parallel parts behind one norm, where the file has no norm for the second part."""
    if LAYER_WEIGHTS["ffn_norm"].format(i=0) in shapes:
        return row
    names = {
        "ffn_norm": LAYER_WEIGHTS["attn_norm"],
        "ffn_norm_bias": LAYER_WEIGHTS["attn_norm_bias"],
    }
    return replace(row, parallel=True, names={**row.names, **names})


def _falcon_norms(row: Architecture, keys: _Keys, shapes: Shapes) -> Architecture:
    """The large models have a norm of its own for attention, `attn_norm_2`."""
    row = _one_norm(row, keys, shapes)
    if "blk.0.attn_norm_2.weight" not in shapes:
        return row
    names = {
        "attn_norm": "blk.{i}.attn_norm_2.weight",
        "attn_norm_bias": "blk.{i}.attn_norm_2.bias",
    }
    return replace(row, names={**row.names, **names})


def _gptneox_parallel(row: Architecture, keys: _Keys, _shapes: Shapes) -> Architecture:
    parallel = keys.metadata.get(keys.name("use_parallel_residual"), True)
    if not isinstance(parallel, bool):
        raise GGUFError(f"{keys.name('use_parallel_residual')} must be true or false")
    return replace(row, parallel=parallel)


def _mixture(row: Architecture, keys: _Keys, _shapes: Shapes) -> Architecture:
    """Experts where the file names some (Mixtral)."""
    if keys.optional("expert_count") is None:
        return row
    return replace(row, parts=(row.parts[0], Experts(normalized=True)))


def _gpt_oss_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Every second layer sees all, the others a window. YaRN's range is not rounded."""
    if rope.yarn:
        rope = replace(rope, yarn=replace(rope.yarn, whole=False))
    window, flags = keys.count("attention.sliding_window"), _with_window(keys, n_layers, 2)
    return tuple((rope, window if flag else None) for flag in flags)


def _deepseek2_turns(keys: _Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Where YaRN scales the scores, it leaves cosines and sines as they are."""
    if rope.yarn and keys.optional("rope.scaling.yarn_log_multiplier") is not None:
        rope = replace(rope, magnitude=1.0)
    return ((rope, None),) * n_layers


def _deepseek2_scale(keys: _Keys) -> float:
    """(1 + 0.1 m ln factor)^2, as DeepSeek's code has it; files hold 0.1 m."""
    by = keys.optional("rope.scaling.yarn_log_multiplier")
    if by is None or keys.metadata.get(keys.name("rope.scaling.type")) != "yarn":
        return 1.0
    return (1.0 + by * max(0.0, math.log(_yarn(keys).factor))) ** 2


def _mistral3_context(keys: _Keys) -> int:
    """Beyond its original context queries grow with their position, which no part computes."""
    if keys.optional("attention.temperature_scale") is None:
        return keys.count("context_length")
    return keys.count("rope.scaling.original_context_length")


# Declared out: models with a recurrent state, whole or in some layers (TG-81).
RECURRENT = frozenset(
    {
        *("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "jamba", "falcon-h1"),
        *("plamo2", "granitehybrid", "nemotron_h", "lfm2", "lfm2moe", "qwen3next", "kimi-linear"),
    }
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "Llama, Mistral, Mixtral, SmolLM2, TinyLlama", "adjacent", adjust=_mixture
    ),
    "qwen2": Architecture("Qwen 2, Qwen 2.5", "halves"),
    "exaone": Architecture("EXAONE 3", "halves"),
    "qwen3": Architecture("Qwen 3", "halves", (Attention(qk_norm=QKNorm()), FeedForward())),
    "gemma": Architecture(
        "Gemma", "halves", (Attention(), FeedForward("gelu_tanh")), scaled_embedding=True
    ),
    "gemma2": Architecture(
        "Gemma 2",
        "halves",
        (Attention(post="rms"), FeedForward("gelu_tanh", post="rms")),
        scaled_embedding=True,
        turns=_gemma2_turns,
        attention_scale=_gemma2_scale,
    ),
    "gemma3": Architecture(
        "Gemma 3",
        "halves",
        (Attention(qk_norm=QKNorm(), post="rms"), FeedForward("gelu_tanh", post="rms")),
        scaled_embedding=True,
        turns=_gemma3_turns,
        attention_scale=_gemma3_scale,
    ),
    "phi3": Architecture("Phi-3, Phi-3.5, Phi-4, Phi-4-mini", "halves", turns=_one_window),
    "olmo2": Architecture(
        "OLMo 2, OLMo 3",
        "halves",
        (
            Attention(norm=None, qk_norm=QKNorm(over="row"), post="rms"),
            FeedForward(norm=None, post="rms"),
        ),
        turns=_olmo2_turns,
    ),
    "exaone4": Architecture(
        "EXAONE 4",
        "halves",
        (
            Attention(norm=None, qk_norm=QKNorm(), post="rms"),
            FeedForward(norm=None, post="rms"),
        ),
        turns=_exaone4_turns,
    ),
    "granite": Architecture("Granite 3", "adjacent", divided_logits=True),
    "smollm3": Architecture("SmolLM3", "adjacent", turns=_smollm3_turns),
    "glm4": Architecture(
        "GLM-4-0414", "adjacent", (Attention(post="rms"), FeedForward(post="rms"))
    ),
    "chatglm": Architecture("ChatGLM 3, GLM-4-9B", "adjacent"),
    "internlm2": Architecture("InternLM 2, 2.5", "adjacent"),
    "ernie4_5": Architecture("ERNIE 4.5", "adjacent"),
    "seed_oss": Architecture(
        "Seed-OSS", "halves", names={"ffn_norm": LAYER_WEIGHTS["post_attention_norm"]}
    ),
    "arcee": Architecture(
        "AFM", "adjacent", (Attention(), FeedForward("relu_squared", gated=False))
    ),
    "starcoder2": Architecture(
        "StarCoder 2",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        turns=_one_window,
    ),
    "stablelm": Architecture(
        "StableLM, StableLM 2",
        "halves",
        (
            Attention(norm="layer", qk_norm=QKNorm("layer", own=True, optional=True)),
            FeedForward(norm="layer"),
        ),
        output_norm="layer",
        adjust=_one_norm,
    ),
    "gpt2": Architecture(
        "GPT-2",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        learned_positions=True,
        turns=_no_turns,
    ),
    "starcoder": Architecture(
        "StarCoder, SantaCoder",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        learned_positions=True,
        turns=_no_turns,
    ),
    "gptneox": Architecture(
        "GPT-NeoX, Pythia",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu", gated=False, norm="layer")),
        output_norm="layer",
        adjust=_gptneox_parallel,
    ),
    "phi2": Architecture(
        "Phi-1, Phi-1.5, Phi-2",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        adjust=_one_norm,
    ),
    "falcon": Architecture(
        "Falcon",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu", gated=False, norm="layer")),
        output_norm="layer",
        adjust=_falcon_norms,
    ),
    "command-r": Architecture(
        "Command R, Command R+",
        "adjacent",
        (
            Attention(norm="layer", qk_norm=QKNorm("layer", own=True, optional=True)),
            FeedForward(norm="layer"),
        ),
        output_norm="layer",
        adjust=_one_norm,
    ),
    "cohere2": Architecture(
        "Command R7B, Command A",
        "adjacent",
        (Attention(norm="layer"), FeedForward(norm="layer")),
        output_norm="layer",
        turns=_windows_turn,
        adjust=_one_norm,
    ),
    "qwen2vl": Architecture("Qwen2-VL, Qwen2.5-VL (text)", "halves"),
    "qwen3vl": Architecture(
        "Qwen3-VL (text)", "halves", (Attention(qk_norm=QKNorm()), FeedForward())
    ),
    "mistral3": Architecture(
        "Ministral 3, Devstral 2", "adjacent", context=_mistral3_context, adjust=_mixture
    ),
    "qwen2moe": Architecture("Qwen1.5-MoE, Qwen2-57B-A14B", "halves", (Attention(), Experts())),
    "qwen3moe": Architecture(
        "Qwen3-30B-A3B, Qwen3-235B-A22B",
        "halves",
        (Attention(qk_norm=QKNorm()), Experts(normalized=True)),
    ),
    "olmoe": Architecture("OLMoE", "halves", (Attention(qk_norm=QKNorm(over="row")), Experts())),
    "granitemoe": Architecture(
        "Granite 3 MoE", "adjacent", (Attention(), Experts(normalized=True)), divided_logits=True
    ),
    "gpt-oss": Architecture(
        "gpt-oss",
        "halves",
        (Attention(sinks=True), Experts("clamped", "chosen")),
        turns=_gpt_oss_turns,
        names={"ffn_norm": LAYER_WEIGHTS["post_attention_norm"]},
    ),
    "deepseek2": Architecture(
        "DeepSeek-V2-Lite, DeepSeek-Coder-V2-Lite, Moonlight",
        "adjacent",
        (Attention(latent=Latent()), Experts()),
        turns=_deepseek2_turns,
        scaled_by=_deepseek2_scale,
    ),
    "nemotron": Architecture(
        "Nemotron-4, Minitron",
        "halves",
        (Attention(norm="layer"), FeedForward("relu_squared", gated=False, norm="layer")),
        output_norm="layer",
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
    latent = row.parts[0].latent is not None
    head_dim, value_dim = _head_dims(keys, dim, n_heads, latent)
    if latent:
        n_kv_heads = n_heads  # after the expansion; newer files say 1
        if value_dim > head_dim or keys.optional("attention.q_lora_rank") is not None:
            raise UnsupportedModelError(
                "latent attention with queries of a low rank, or with values longer than keys, is "
                "not supported"
            )
    # Each layer has at least one tensor: a count beyond them is a lie that would cost memory.
    if n_layers > len(shapes):
        raise GGUFError(
            f"{keys.name('block_count')} is {n_layers}, the file has {len(shapes)} tensors"
        )
    n_vocab, n_tokens = _vocabulary(keys, shapes)
    if row.adjust:
        row = row.adjust(row, keys, shapes)
    rope = _rope(keys, row.pairs, head_dim, shapes)
    n_ctx = keys.count("context_length")
    if row.context:
        n_ctx = min(n_ctx, row.context(keys))
    blocks, fused = _blocks(row, keys, shapes, n_layers)
    extras = {r for r in _EXTRAS if MODEL_WEIGHTS[r] in shapes}
    extras |= {"positions"} if row.learned_positions else set()
    logit_scale = keys.optional("logit_scale") or 1.0
    if row.divided_logits:
        logit_scale = 1.0 / logit_scale
    kind = "attention.layer_norm_rms_epsilon"
    if row.output_norm == "layer":
        kind = "attention.layer_norm_epsilon"
    return Config(
        architecture=name,
        dim=dim,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        n_vocab=n_vocab,
        n_tokens=n_tokens,
        n_ctx_train=n_ctx,
        n_ctx_most=n_ctx,
        layers=tuple(
            Layer(block, *turn)
            for block, turn in zip(blocks, row.turns(keys, n_layers, rope), strict=True)
        ),
        norm_eps=keys.real(kind),
        attention_scale=(
            keys.optional("attention.scale")
            or row.attention_scale(n_layers, dim, n_heads, head_dim)
        )
        * (row.scaled_by(keys) if row.scaled_by else 1.0),
        output_norm=row.output_norm,
        embedding_scale=math.sqrt(dim)
        if row.scaled_embedding
        else keys.optional("embedding_scale") or 1.0,
        attention_softcap=keys.optional("attn_logit_softcapping"),
        logit_softcap=keys.optional("final_logit_softcapping"),
        logit_scale=logit_scale,
        extras=frozenset(extras),
        names=tuple(row.names.items()),
        fused=fused,
    )


# Weights outside the layers that a file may have or lack.
_EXTRAS = ("output", "output_bias", "output_norm_bias")


def _blocks(
    row: Architecture, keys: _Keys, shapes: Shapes, n_layers: int
) -> tuple[list[Block], frozenset[str]]:
    """The block of every layer, and the keys of `FUSED` that this file has."""
    attention, feed_forward = row.parts
    dense = 0
    if isinstance(feed_forward, Experts):
        named = keys.optional("leading_dense_block_count")
        dense = 0 if named is None else min(keys.count("leading_dense_block_count"), n_layers)
    first, fused = _block(row, keys, shapes, dense if dense < n_layers else 0)
    blocks = [first] * n_layers
    if dense:
        plain = FeedForward(feed_forward.activation, True, feed_forward.norm, feed_forward.post)
        lead, more = _block(replace(row, parts=(attention, plain)), keys, shapes, 0)
        blocks[:dense] = [lead] * dense
        fused |= more
    return blocks, fused


def _block(
    row: Architecture, keys: _Keys, shapes: Shapes, layer: int
) -> tuple[Block, frozenset[str]]:
    """The row's parts with what this file adds in a layer, and the keys of `FUSED` that it has."""
    attention, feed_forward = row.parts
    fused = {
        tensor
        for tensor, roles in FUSED.items()
        if tensor.format(i=layer) in shapes
        and LAYER_WEIGHTS[roles[0]].format(i=layer) not in shapes
        and (feed_forward.gated or "ffn_up" not in roles)
    }

    def given(role: str) -> bool:
        names = [row.names.get(role, LAYER_WEIGHTS[role])]
        names += [tensor for tensor in fused if role in FUSED[tensor]]
        return any(name.format(i=layer) in shapes for name in names)

    def biases(part: Attention | FeedForward | Experts) -> frozenset[str]:
        groups = [group for group in part.OPTIONAL if given(group[0])]
        return frozenset(role for group in groups for role in group)

    attention = replace(attention, biases=biases(attention))
    if attention.latent:
        latent = Latent(keys.count("attention.kv_lora_rank"), split=given("attn_k_b"))
        attention = replace(attention, latent=latent)
    if attention.qk_norm and attention.qk_norm.optional and not given("attn_q_norm"):
        attention = replace(attention, qk_norm=None)
    found = biases(feed_forward)
    if isinstance(feed_forward, Experts):
        feed_forward = replace(_experts(feed_forward, keys, found), biases=found)
    else:
        width = keys.count("feed_forward_length")
        feed_forward = replace(feed_forward, biases=found, width=width)
    scale = keys.optional("residual_scale") or 1.0
    return Block((attention, feed_forward), row.parallel, scale), frozenset(fused)


def _experts(part: Experts, keys: _Keys, found: frozenset[str]) -> Experts:
    """The sizes of a mixture of experts, and how its file says that it weighs them."""
    count, used = keys.count("expert_count"), keys.count("expert_used_count")
    if used > count:
        raise GGUFError(
            f"{keys.name('expert_used_count')} ({used}) is above "
            f"{keys.name('expert_count')} ({count})"
        )
    if (keys.optional("expert_group_count") or 1) > 1:
        raise UnsupportedModelError(
            f"experts in groups ({keys.name('expert_group_count')}) are not supported"
        )
    width, shared = keys.names_one_of("expert_feed_forward_length", "feed_forward_length"), 0
    if "ffn_shared_up" in found:
        shared = keys.count(
            "expert_shared_feed_forward_length",
            width * keys.count("expert_shared_count", 1),
        )
    gating = keys.metadata.get(keys.name("expert_gating_func"))
    if gating is not None and (not isinstance(gating, int) or gating not in _GATINGS):
        name = keys.name("expert_gating_func")
        raise UnsupportedModelError(f"{name} {quoted(gating)} is not supported; supported: 1, 2, 3")
    normalized = keys.metadata.get(keys.name("expert_weights_norm"), part.normalized)
    if not isinstance(normalized, bool):
        raise GGUFError(f"{keys.name('expert_weights_norm')} must be true or false")
    return replace(
        part,
        count=count,
        used=used,
        width=width,
        shared=shared,
        gating=part.gating if gating is None else _GATINGS[gating],
        normalized=normalized,
        scale=keys.optional("expert_weights_scale") or 1.0,
    )


# Values of the key `expert_gating_func`.
_GATINGS: dict[object, Gating] = {1: "softmax", 2: "sigmoid", 3: "chosen"}


def _head_dims(keys: _Keys, dim: int, n_heads: int, latent: bool) -> tuple[int, int]:
    """Entries of a head's keys and of its values."""
    if dim % n_heads and keys.name("attention.key_length") not in keys.metadata:
        raise GGUFError(
            f"{keys.name('embedding_length')} ({dim}) is not a multiple of "
            f"{keys.name('attention.head_count')} ({n_heads})"
        )
    if latent:
        # Newer files name what a cache of short vectors would hold, and these beside it.
        ending = "_mla" if keys.name("attention.key_length_mla") in keys.metadata else ""
        head_dim = keys.count(f"attention.key_length{ending}")
        return head_dim, keys.count(f"attention.value_length{ending}")
    head_dim = keys.count("attention.key_length", dim // n_heads)
    if (value := keys.count("attention.value_length", head_dim)) != head_dim:
        raise UnsupportedModelError(
            f"values have {value} entries a head and keys {head_dim}: not supported"
        )
    return head_dim, head_dim


def _rope(keys: _Keys, pairs: Pairs, head_dim: int, shapes: Shapes) -> Rope:
    turned = keys.count("rope.dimension_count", head_dim)
    if turned > head_dim or turned % 2:
        raise GGUFError(
            f"{keys.name('rope.dimension_count')} must be even and at most {head_dim}, not {turned}"
        )
    base = keys.real("rope.freq_base", 10_000.0)
    magnitude = keys.optional("rope.scaling.attn_factor") or 1.0
    if MODEL_WEIGHTS["rope_factors_long"] in shapes:
        original = keys.count("rope.scaling.original_context_length")
        roles = ("rope_factors_short", "rope_factors_long")
        return Rope(base, turned, pairs, 1.0, *roles, original, magnitude=magnitude)
    factors = "rope_factors" if MODEL_WEIGHTS["rope_factors"] in shapes else None
    scaling = keys.metadata.get(keys.name("rope.scaling.type"), "none")
    if isinstance(scaling, str) and scaling == "yarn":
        if base <= 1:
            raise GGUFError(f"{keys.name('rope.freq_base')} must be above 1 with YaRN, not {base}")
        yarn = _yarn(keys)
        by = magnitude * _yarn_magnitude(keys, yarn.factor)
        return Rope(base, turned, pairs, factors=factors, yarn=yarn, magnitude=by)
    linear = 1.0
    if isinstance(scaling, str) and scaling == "linear":
        linear = keys.real("rope.scaling.factor")
    elif not isinstance(scaling, str) or scaling not in ("none", "longrope"):
        raise UnsupportedModelError(
            f"rope scaling {quoted(scaling)} is not supported; supported: none, linear, yarn, "
            "longrope, rope_freqs.weight"
        )
    elif old := keys.optional("rope.scale_linear"):  # files from before rope.scaling.*
        linear = old
    return Rope(base, turned, pairs, linear, factors, magnitude=magnitude)


def _yarn(keys: _Keys) -> Yarn:
    def bounded(key: str, default: float | None = None) -> float:
        if not 1e-6 <= (value := keys.real(key, default)) <= 1e6:
            raise GGUFError(f"{keys.name(key)} must be between 1e-6 and 1e6, not {value}")
        return value

    return Yarn(
        bounded("rope.scaling.factor"),
        keys.count("rope.scaling.original_context_length", keys.count("context_length")),
        bounded("rope.scaling.yarn_beta_fast", 32.0),
        bounded("rope.scaling.yarn_beta_slow", 1.0),
    )


def _yarn_magnitude(keys: _Keys, factor: float) -> float:
    """What YaRN multiplies cosines and sines by: 1 + 0.1 ln factor, unless the model undoes it."""

    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    undone = keys.optional("rope.scaling.yarn_log_multiplier")
    return grown(1.0) / (1.0 if undone is None else grown(undone))


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
