"""A row of the table of architectures, a file's metadata and its shapes become a `Config`."""

import math
from dataclasses import replace

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

from .arch_keys import Keys, Shapes
from .arch_rope import rope_of
from .arch_rules import Architecture
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
)

# Derived data that old converters wrote: what it holds follows from the metadata.
IGNORED_ENDINGS = (".attn_rot_embd.weight", ".attention.rotary_emb.inv_freq")


def config_of(name: str, row: Architecture, keys: Keys, shapes: Shapes) -> Config:
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
    rope = rope_of(keys, row.pairs, head_dim, shapes)
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
    row: Architecture, keys: Keys, shapes: Shapes, n_layers: int
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
    row: Architecture, keys: Keys, shapes: Shapes, layer: int
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


def _experts(part: Experts, keys: Keys, found: frozenset[str]) -> Experts:
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


def _head_dims(keys: Keys, dim: int, n_heads: int, latent: bool) -> tuple[int, int]:
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


def _vocabulary(keys: Keys, shapes: Shapes) -> tuple[int, int]:
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


def check_tensors(config: Config, shapes: Shapes) -> None:
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
