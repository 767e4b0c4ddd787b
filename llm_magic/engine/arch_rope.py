"""How the heads of a model turn, from its metadata."""

import math

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

from .arch_keys import Keys, Shapes
from .blocks import MODEL_WEIGHTS
from .rope import Pairs, Rope, Yarn


def rope_of(keys: Keys, pairs: Pairs, head_dim: int, shapes: Shapes) -> Rope:
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
        yarn = yarn_of(keys)
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


def yarn_of(keys: Keys) -> Yarn:
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


def _yarn_magnitude(keys: Keys, factor: float) -> float:
    """What YaRN multiplies cosines and sines by: 1 + 0.1 ln factor, unless the model undoes it."""

    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    undone = keys.optional("rope.scaling.yarn_log_multiplier")
    return grown(1.0) / (1.0 if undone is None else grown(undone))
