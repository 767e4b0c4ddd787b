"""What a row of the table of architectures says, and the rules that rows name.

A rule computes from the metadata what differs between the layers, or the files, of one family.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from llm_magic.errors import GGUFError

from .arch_keys import Keys, Shapes
from .arch_rope import yarn_of
from .blocks import LAYER_WEIGHTS, Attention, Experts, FeedForward, NormKind, Parts
from .rope import Pairs, Rope

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
    turns: Callable[[Keys, int, Rope], tuple[Turns, ...]] = field(
        default=lambda _keys, n_layers, rope: ((rope, None),) * n_layers
    )
    attention_scale: Callable[[int, int, int, int], float] = field(
        default=lambda _n_layers, _dim, _n_heads, head_dim: 1.0 / math.sqrt(head_dim)
    )
    scaled_by: "Callable[[Keys], float] | None" = None
    context: "Callable[[Keys], int] | None" = None
    learned_positions: bool = False
    divided_logits: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    adjust: "Callable[[Architecture, Keys, Shapes], Architecture] | None" = None


def with_window(keys: Keys, n_layers: int, period: int) -> list[bool]:
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


def gemma3_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Five layers with a window and a local rope, then one that sees all. Scaling: global only."""
    window, base = keys.count("attention.sliding_window"), keys.real("rope.freq_base_swa", 10_000.0)
    local = Rope(base, rope.dim, rope.pairs, factors=rope.factors)
    flags = with_window(keys, n_layers, 6)
    return tuple((local, window) if flag else (rope, None) for flag in flags)


def gemma2_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Layers with a window and layers that see all take turns, the first with a window."""
    window = keys.count("attention.sliding_window", 4096)
    return tuple((rope, None if i % 2 else window) for i in range(n_layers))


def gemma2_scale(n_layers: int, dim: int, n_heads: int, head_dim: int) -> float:
    # The 27B model (46 layers) was trained with 144 = dim / n_heads, though its heads have 128.
    return 1.0 / math.sqrt(dim / n_heads if n_layers == 46 else head_dim)


def gemma3_scale(n_layers: int, dim: int, n_heads: int, head_dim: int) -> float:
    # The 27B model (62 layers) was trained with 168 = dim / n_heads, though its heads have 128.
    return 1.0 / math.sqrt(dim / n_heads if n_layers == 62 else head_dim)


def no_turns(_keys: Keys, n_layers: int, _rope: Rope) -> tuple[Turns, ...]:
    return ((None, None),) * n_layers


def one_window(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """All layers have the window that the file names, if it names one."""
    named = keys.optional("attention.sliding_window")
    window = None if named is None else keys.count("attention.sliding_window")
    return ((rope, window),) * n_layers


def smollm3_turns(_keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Every fourth layer does not turn."""
    return tuple((rope if (i + 1) % 4 else None, None) for i in range(n_layers))


def windows_turn(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Three layers with a window that turn, then one that sees all and does not (Cohere 2)."""
    window, flags = keys.count("attention.sliding_window"), with_window(keys, n_layers, 4)
    return tuple((rope, window) if flag else (None, None) for flag in flags)


def exaone4_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """As `windows_turn` where the file names a window, else all layers turn and see all."""
    if keys.optional("attention.sliding_window") is None:
        return ((rope, None),) * n_layers
    return windows_turn(keys, n_layers, rope)


def olmo2_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """OLMo 3 names a window: three layers with it and an unscaled rope, then one that sees all."""
    if keys.optional("attention.sliding_window") is None:
        return ((rope, None),) * n_layers
    window, flags = keys.count("attention.sliding_window"), with_window(keys, n_layers, 4)
    local = Rope(rope.base, rope.dim, rope.pairs, factors=rope.factors)
    return tuple((local, window) if flag else (rope, None) for flag in flags)


def one_norm(row: Architecture, _keys: Keys, shapes: Shapes) -> Architecture:
    """Parallel parts behind one norm, where the file has no norm for the second part."""
    if LAYER_WEIGHTS["ffn_norm"].format(i=0) in shapes:
        return row
    names = {
        "ffn_norm": LAYER_WEIGHTS["attn_norm"],
        "ffn_norm_bias": LAYER_WEIGHTS["attn_norm_bias"],
    }
    return replace(row, parallel=True, names={**row.names, **names})


def falcon_norms(row: Architecture, keys: Keys, shapes: Shapes) -> Architecture:
    """The large models have a norm of its own for attention, `attn_norm_2`."""
    row = one_norm(row, keys, shapes)
    if "blk.0.attn_norm_2.weight" not in shapes:
        return row
    names = {
        "attn_norm": "blk.{i}.attn_norm_2.weight",
        "attn_norm_bias": "blk.{i}.attn_norm_2.bias",
    }
    return replace(row, names={**row.names, **names})


def gptneox_parallel(row: Architecture, keys: Keys, _shapes: Shapes) -> Architecture:
    parallel = keys.metadata.get(keys.name("use_parallel_residual"), True)
    if not isinstance(parallel, bool):
        raise GGUFError(f"{keys.name('use_parallel_residual')} must be true or false")
    return replace(row, parallel=parallel)


def mixture(row: Architecture, keys: Keys, _shapes: Shapes) -> Architecture:
    """Experts where the file names some (Mixtral)."""
    if keys.optional("expert_count") is None:
        return row
    return replace(row, parts=(row.parts[0], Experts(normalized=True)))


def gpt_oss_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Every second layer sees all, the others a window. YaRN's range is not rounded."""
    if rope.yarn:
        rope = replace(rope, yarn=replace(rope.yarn, whole=False))
    window, flags = keys.count("attention.sliding_window"), with_window(keys, n_layers, 2)
    return tuple((rope, window if flag else None) for flag in flags)


def deepseek2_turns(keys: Keys, n_layers: int, rope: Rope) -> tuple[Turns, ...]:
    """Where YaRN scales the scores, it leaves cosines and sines as they are."""
    if rope.yarn and keys.optional("rope.scaling.yarn_log_multiplier") is not None:
        rope = replace(rope, magnitude=1.0)
    return ((rope, None),) * n_layers


def deepseek2_scale(keys: Keys) -> float:
    """(1 + 0.1 m ln factor)^2, as DeepSeek's code has it; files hold 0.1 m."""
    by = keys.optional("rope.scaling.yarn_log_multiplier")
    if by is None or keys.metadata.get(keys.name("rope.scaling.type")) != "yarn":
        return 1.0
    return (1.0 + by * max(0.0, math.log(yarn_of(keys).factor))) ** 2


def mistral3_context(keys: Keys) -> int:
    """Beyond its original context queries grow with their position, which no part computes."""
    if keys.optional("attention.temperature_scale") is None:
        return keys.count("context_length")
    return keys.count("rope.scaling.original_context_length")
