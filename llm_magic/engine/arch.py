"""A table of architectures: metadata and tensor shapes of a GGUF file become one frozen `Config`.

A `Config` is complete and checked, so nothing else reads the file's keys. A new architecture is one
row of `ARCHITECTURES`, made of the parts in blocks.py, whose docstring has the formula that they
fill in. Biases and fused tensors are found by their names in the file.
"""

from llm_magic.errors import GGUFError, UnsupportedModelError
from llm_magic.utf8 import quoted

from .arch_config import check_tensors, config_of
from .arch_keys import Keys, Metadata, Shapes
from .arch_rules import (
    Architecture,
    deepseek2_scale,
    deepseek2_turns,
    exaone4_turns,
    falcon_norms,
    gemma2_scale,
    gemma2_turns,
    gemma3_scale,
    gemma3_turns,
    gpt_oss_turns,
    gptneox_parallel,
    mistral3_context,
    mixture,
    no_turns,
    olmo2_turns,
    one_norm,
    one_window,
    smollm3_turns,
    windows_turn,
)
from .blocks import LAYER_WEIGHTS, Attention, Config, Experts, FeedForward, Latent, QKNorm

# Declared out: models with a recurrent state, whole or in some layers (TG-81).
RECURRENT = frozenset(
    {
        *("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "jamba", "falcon-h1"),
        *("plamo2", "granitehybrid", "nemotron_h", "lfm2", "lfm2moe", "qwen3next", "kimi-linear"),
    }
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "Llama, Mistral, Mixtral, SmolLM2, TinyLlama", "adjacent", adjust=mixture
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
        turns=gemma2_turns,
        attention_scale=gemma2_scale,
    ),
    "gemma3": Architecture(
        "Gemma 3",
        "halves",
        (Attention(qk_norm=QKNorm(), post="rms"), FeedForward("gelu_tanh", post="rms")),
        scaled_embedding=True,
        turns=gemma3_turns,
        attention_scale=gemma3_scale,
    ),
    "phi3": Architecture("Phi-3, Phi-3.5, Phi-4, Phi-4-mini", "halves", turns=one_window),
    "olmo2": Architecture(
        "OLMo 2, OLMo 3",
        "halves",
        (
            Attention(norm=None, qk_norm=QKNorm(over="row"), post="rms"),
            FeedForward(norm=None, post="rms"),
        ),
        turns=olmo2_turns,
    ),
    "exaone4": Architecture(
        "EXAONE 4",
        "halves",
        (
            Attention(norm=None, qk_norm=QKNorm(), post="rms"),
            FeedForward(norm=None, post="rms"),
        ),
        turns=exaone4_turns,
    ),
    "granite": Architecture("Granite 3", "adjacent", divided_logits=True),
    "smollm3": Architecture("SmolLM3", "adjacent", turns=smollm3_turns),
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
        turns=one_window,
    ),
    "stablelm": Architecture(
        "StableLM, StableLM 2",
        "halves",
        (
            Attention(norm="layer", qk_norm=QKNorm("layer", own=True, optional=True)),
            FeedForward(norm="layer"),
        ),
        output_norm="layer",
        adjust=one_norm,
    ),
    "gpt2": Architecture(
        "GPT-2",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        learned_positions=True,
        turns=no_turns,
    ),
    "starcoder": Architecture(
        "StarCoder, SantaCoder",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        learned_positions=True,
        turns=no_turns,
    ),
    "gptneox": Architecture(
        "GPT-NeoX, Pythia",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu", gated=False, norm="layer")),
        output_norm="layer",
        adjust=gptneox_parallel,
    ),
    "phi2": Architecture(
        "Phi-1, Phi-1.5, Phi-2",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu_tanh", gated=False, norm="layer")),
        output_norm="layer",
        adjust=one_norm,
    ),
    "falcon": Architecture(
        "Falcon",
        "halves",
        (Attention(norm="layer"), FeedForward("gelu", gated=False, norm="layer")),
        output_norm="layer",
        adjust=falcon_norms,
    ),
    "command-r": Architecture(
        "Command R, Command R+",
        "adjacent",
        (
            Attention(norm="layer", qk_norm=QKNorm("layer", own=True, optional=True)),
            FeedForward(norm="layer"),
        ),
        output_norm="layer",
        adjust=one_norm,
    ),
    "cohere2": Architecture(
        "Command R7B, Command A",
        "adjacent",
        (Attention(norm="layer"), FeedForward(norm="layer")),
        output_norm="layer",
        turns=windows_turn,
        adjust=one_norm,
    ),
    "qwen2vl": Architecture("Qwen2-VL, Qwen2.5-VL (text)", "halves"),
    "qwen3vl": Architecture(
        "Qwen3-VL (text)", "halves", (Attention(qk_norm=QKNorm()), FeedForward())
    ),
    "mistral3": Architecture(
        "Ministral 3, Devstral 2", "adjacent", context=mistral3_context, adjust=mixture
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
        turns=gpt_oss_turns,
        names={"ffn_norm": LAYER_WEIGHTS["post_attention_norm"]},
    ),
    "deepseek2": Architecture(
        "DeepSeek-V2-Lite, DeepSeek-Coder-V2-Lite, Moonlight",
        "adjacent",
        (Attention(latent=Latent()), Experts()),
        turns=deepseek2_turns,
        scaled_by=deepseek2_scale,
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
    config = config_of(name, row, Keys(name, metadata), shapes)
    check_tensors(config, shapes)
    return config
