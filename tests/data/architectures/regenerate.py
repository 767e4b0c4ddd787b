"""Writes logits.npz: what transformers computes, in float32, for the models of support/families.py.

    pip install torch transformers gguf
    python tests/data/architectures/regenerate.py

The weights of a case follow from its tensors' names. Here they are given to the model that
transformers has for the family: named as there, and put back into its order where llama.cpp's
converter changes it (heads that turn in adjacent pairs, fused matrices, norms that add 1).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from support import families  # noqa: E402
from support.families import (  # noqa: E402
    CASES,
    DIM,
    EXPERT_FF,
    EXPERTS,
    FF,
    HEAD,
    HEADS,
    KV,
    USED,
    VOCAB,
    Case,
)

Weights = dict[str, np.ndarray]

COMMON = {
    "hidden_size": DIM,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "max_position_embeddings": families.CTX,
    "head_dim": HEAD,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
RMS = {"rms_norm_eps": 1e-5}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "rope_theta": 10_000.0}  # fmt: skip
LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
MODEL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def turned_back(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of adjacent pairs -> halves, the inverse of what the converter does."""
    return w.reshape(heads, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def by_names(
    case: Case,
    weights: Weights,
    layer: dict[str, str],
    outside: dict[str, str] | None = None,
    prefix: str = "model.layers.{i}.",
    permuted: bool = False,
    less_one: bool = False,
) -> Weights:
    """State of a model whose names differ alone (and the order of turning entries, or norms - 1)."""
    state: Weights = {}
    for name, ours in (outside or MODEL_NAMES).items():
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in weights:
                state[f"{name}.{kind}"] = weights[f"{ours}.{kind}"]
    for i in range(case.layers):
        for name, ours in layer.items():
            for kind in ("weight", "bias"):
                value = weights.get(f"blk.{i}.{ours}.{kind}")
                if value is None:
                    continue
                if permuted and ours in ("attn_q", "attn_k"):
                    value = turned_back(value, HEADS if ours == "attn_q" else KV)
                state[f"{prefix.format(i=i)}{name}.{kind}"] = value
    if less_one:
        for name in state:
            if "norm" in name and name.endswith("weight"):
                state[name] = state[name] - 1
    return state


def split(fused: np.ndarray, kv: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values of a fused tensor."""
    return fused[:DIM], fused[DIM : DIM + kv], fused[DIM + kv :]


def interleaved(weights: Weights, i: int, groups: int, kind: str) -> np.ndarray:
    """Fused rows as Falcon and GPT-NeoX have them: queries, key, value of one group together."""
    q, k, v = split(weights[f"blk.{i}.attn_qkv.{kind}"], groups * HEAD)
    rest = q.shape[1:]
    parts = [x.reshape(groups, -1, HEAD, *rest) for x in (q, k, v)]
    return np.concatenate(parts, 1).reshape(-1, *rest)


def llama(case: Case, w: Weights) -> Any:
    rope = YARN if "rope.scaling.type" in case.keys else ROPE
    config = hf.LlamaConfig(
        **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=rope,
        tie_word_embeddings=case.tied,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config), by_names(case, w, LLAMA_NAMES, permuted=True)


def mistral(case: Case, w: Weights) -> Any:
    config = hf.MistralConfig(
        **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=ROPE,
        tie_word_embeddings=case.tied, sliding_window=None,
    )  # fmt: skip
    return hf.MistralForCausalLM(config), by_names(case, w, LLAMA_NAMES, permuted=True)


def mistral3(case: Case, w: Weights) -> Any:
    rope = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    config = hf.Ministral3Config(
        **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=rope,
        tie_word_embeddings=False, sliding_window=None,
    )  # fmt: skip
    return hf.Ministral3ForCausalLM(config), by_names(case, w, LLAMA_NAMES, permuted=True)


def plain(
    name: str, names: dict[str, str] | None = None, permuted: bool = False, **more: Any
) -> Callable[[Case, Weights], Any]:
    """A family whose layers have the names of Llama's."""

    def build(case: Case, w: Weights) -> Any:
        rope = YARN if "rope.scaling.type" in case.keys else ROPE
        settings = {
            **COMMON, **RMS, "num_hidden_layers": case.layers, "rope_parameters": rope,
            "tie_word_embeddings": case.tied, **more,
        }  # fmt: skip
        model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**settings))
        return model, by_names(case, w, {**LLAMA_NAMES, **(names or {})}, permuted=permuted)

    return build


def phi3(case: Case, w: Weights) -> Any:
    rope: dict[str, Any] = ROPE
    if "rope_factors_long.weight" in w:
        rope = {
            "rope_type": "longrope", "rope_theta": 10_000.0,
            "original_max_position_embeddings": 32, "partial_rotary_factor": 0.75,
            "long_factor": w["rope_factors_long.weight"].tolist(),
            "short_factor": w["rope_factors_short.weight"].tolist(),
            "attention_factor": float(np.float32(1.19)),
        }  # fmt: skip
    window = case.keys.get("attention.sliding_window")
    config = hf.Phi3Config(
        **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=rope,
        tie_word_embeddings=False, sliding_window=window,
        original_max_position_embeddings=32 if "rope_factors_long.weight" in w else families.CTX,
        partial_rotary_factor=0.75 if "rope_factors_long.weight" in w else 1.0,
    )  # fmt: skip
    names = {**LLAMA_NAMES, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    del names["mlp.up_proj"]
    return hf.Phi3ForCausalLM(config), by_names(case, w, names)


def post_normed(name: str, **more: Any) -> Callable[[Case, Weights], Any]:
    """OLMo 2 and 3, EXAONE 4: norms behind the parts."""

    def build(case: Case, w: Weights) -> Any:
        rope = YARN if "rope.scaling.type" in case.keys else ROPE
        settings = {
            **COMMON, **RMS, "num_hidden_layers": case.layers, "rope_parameters": rope,
            "tie_word_embeddings": case.tied, **more,
        }  # fmt: skip
        names = {
            **LLAMA_NAMES,
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        }
        model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**settings))
        return model, by_names(case, w, names)

    return build


def gemma(name: str, **more: Any) -> Callable[[Case, Weights], Any]:
    def build(case: Case, w: Weights) -> Any:
        settings = {
            **COMMON, **RMS, "num_hidden_layers": case.layers, "rope_parameters": ROPE,
            "query_pre_attn_scalar": HEAD, "hidden_activation": "gelu_pytorch_tanh", **more,
        }  # fmt: skip
        names = dict(LLAMA_NAMES)
        if name != "Gemma":
            names |= {
                "post_attention_layernorm": "post_attention_norm",
                "pre_feedforward_layernorm": "ffn_norm",
                "post_feedforward_layernorm": "post_ffw_norm",
            }
        config = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
        model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, config)(**settings))
        return model, by_names(case, w, names, less_one=True)

    return build


def glm(name: str) -> Callable[[Case, Weights], Any]:
    def build(case: Case, w: Weights) -> Any:
        rope = {**ROPE, "partial_rotary_factor": 0.5}
        config = getattr(hf, f"{name}Config")(
            **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=rope,
            partial_rotary_factor=0.5, attention_bias=True, tie_word_embeddings=False,
        )  # fmt: skip
        names = {**LLAMA_NAMES, "mlp.gate_up_proj": "ffn_up"}
        del names["mlp.up_proj"]
        if name == "Glm4":
            names["post_self_attn_layernorm"] = "post_attention_norm"
            names["post_mlp_layernorm"] = "post_ffw_norm"
        w = dict(w)
        for i in range(case.layers):
            for kind in ("weight", "bias"):
                if (fused := w.pop(f"blk.{i}.attn_qkv.{kind}", None)) is not None:
                    for letter, part in zip("qkv", split(fused, KV * HEAD), strict=True):
                        w[f"blk.{i}.attn_{letter}.{kind}"] = part
        return getattr(hf, f"{name}ForCausalLM")(config), by_names(case, w, names)

    return build


def granite(case: Case, w: Weights) -> Any:
    keys = case.keys
    config = hf.GraniteConfig(
        **COMMON, **RMS, num_hidden_layers=case.layers, rope_parameters=ROPE,
        tie_word_embeddings=True, attention_multiplier=keys["attention.scale"],
        embedding_multiplier=keys["embedding_scale"], residual_multiplier=keys["residual_scale"],
        logits_scaling=keys["logit_scale"],
    )  # fmt: skip
    return hf.GraniteForCausalLM(config), by_names(case, w, LLAMA_NAMES, permuted=True)


def starcoder2(case: Case, w: Weights) -> Any:
    config = hf.Starcoder2Config(
        **COMMON, num_hidden_layers=case.layers, rope_parameters=ROPE, norm_epsilon=1e-5,
        use_bias=True, sliding_window=None, tie_word_embeddings=True,
    )  # fmt: skip
    names = {**LLAMA_NAMES, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
    return hf.Starcoder2ForCausalLM(config), by_names(case, w, names)


def stablelm(case: Case, w: Weights) -> Any:
    large = "blk.0.attn_q_norm.weight" in w
    config = hf.StableLmConfig(
        **COMMON, num_hidden_layers=case.layers, layer_norm_eps=1e-5, use_qkv_bias=not large,
        qk_layernorm=large, use_parallel_residual=large, tie_word_embeddings=False,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.25}, partial_rotary_factor=0.25,
    )  # fmt: skip
    state = by_names(case, w, LLAMA_NAMES)
    for i in range(case.layers if large else 0):
        for ours, count in (("q", HEADS), ("k", KV)):
            own = state.pop(f"model.layers.{i}.self_attn.{ours}_norm.weight")
            for h in range(count):
                name = f"model.layers.{i}.self_attn.{ours}_layernorm.norms.{h}.weight"
                state[name] = own[h]
    return hf.StableLmForCausalLM(config), state


def gpt2(case: Case, w: Weights) -> Any:
    big = case.arch == "starcoder"
    kind, name = (hf.GPTBigCodeConfig, "GPTBigCode") if big else (hf.GPT2Config, "GPT2LMHead")
    config = kind(
        vocab_size=VOCAB, n_positions=families.CTX, n_embd=DIM, n_layer=case.layers,
        n_head=HEADS, n_inner=FF, layer_norm_epsilon=1e-5,
    )  # fmt: skip
    if big:
        config.activation_function, config.multi_query = "gelu_pytorch_tanh", True
    layer = {
        "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
    }  # fmt: skip
    outside = {
        "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
    }  # fmt: skip
    state = by_names(case, w, layer, outside, "transformer.h.{i}.")
    if not big:  # GPT-2 keeps its matrices as [inputs, outputs]
        for key in state:
            if ".c_" in key and key.endswith("weight"):
                state[key] = state[key].T.copy()
    model = getattr(hf, f"{name}ForCausalLM" if big else "GPT2LMHeadModel")(config)
    return model, state


def gptneox(case: Case, w: Weights) -> Any:
    config = hf.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=case.layers,
        num_attention_heads=HEADS, intermediate_size=FF, max_position_embeddings=families.CTX,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.25}, rotary_pct=0.25,
        use_parallel_residual=True, layer_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    layer = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    }  # fmt: skip
    outside = {
        "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output", "lm_head": "output",
    }  # fmt: skip
    state = by_names(case, w, layer, outside, "gpt_neox.layers.{i}.")
    for i in range(case.layers):
        for kind in ("weight", "bias"):
            name = f"gpt_neox.layers.{i}.attention.query_key_value.{kind}"
            state[name] = interleaved(w, i, HEADS, kind)
    return hf.GPTNeoXForCausalLM(config), state


def phi2(case: Case, w: Weights) -> Any:
    settings = {**COMMON, "num_key_value_heads": HEADS}
    config = hf.PhiConfig(
        **settings, num_hidden_layers=case.layers, layer_norm_eps=1e-5,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.5}, partial_rotary_factor=0.5,
        tie_word_embeddings=False,
    )  # fmt: skip
    names = {
        **LLAMA_NAMES, "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    }  # fmt: skip
    outside = {**MODEL_NAMES, "model.final_layernorm": "output_norm"}
    del outside["model.norm"]
    return hf.PhiForCausalLM(config), by_names(case, w, names, outside)


def falcon(case: Case, w: Weights) -> Any:
    large = "blk.0.attn_norm_2.weight" in w
    groups = KV if large else 1
    config = hf.FalconConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=case.layers, ffn_hidden_size=FF,
        num_attention_heads=HEADS, num_kv_heads=groups, layer_norm_epsilon=1e-5, alibi=False,
        new_decoder_architecture=large, multi_query=not large, parallel_attn=True, bias=False,
        rope_parameters=ROPE, tie_word_embeddings=case.tied,
        num_ln_in_parallel_attn=2 if large else 1,
    )  # fmt: skip
    layer = {
        "self_attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
        **({"ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"} if large
           else {"input_layernorm": "attn_norm"}),
    }  # fmt: skip
    outside = {
        "transformer.word_embeddings": "token_embd", "transformer.ln_f": "output_norm",
        "lm_head": "output",
    }  # fmt: skip
    state = by_names(case, w, layer, outside, "transformer.h.{i}.")
    for i in range(case.layers):
        name = f"transformer.h.{i}.self_attention.query_key_value.weight"
        state[name] = interleaved(w, i, groups, "weight")
    return hf.FalconForCausalLM(config), state


def cohere(name: str) -> Callable[[Case, Weights], Any]:
    def build(case: Case, w: Weights) -> Any:
        own = "blk.0.attn_q_norm.weight" in w
        more = {"sliding_window": 8} if name == "Cohere2" else {"use_qk_norm": own}
        config = getattr(hf, f"{name}Config")(
            **COMMON, num_hidden_layers=case.layers, layer_norm_eps=1e-5, rope_parameters=ROPE,
            logit_scale=case.keys["logit_scale"], tie_word_embeddings=True, **more,
        )  # fmt: skip
        return getattr(hf, f"{name}ForCausalLM")(config), by_names(case, w, LLAMA_NAMES)

    return build


def nemotron(case: Case, w: Weights) -> Any:
    config = hf.NemotronConfig(
        **COMMON, num_hidden_layers=case.layers, norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.5}, partial_rotary_factor=0.5,
    )  # fmt: skip
    return hf.NemotronForCausalLM(config), by_names(case, w, LLAMA_NAMES, less_one=True)


def mixture(
    name: str, experts: str = "mlp.experts", router: str = "mlp.gate", permuted: bool = False,
    **more: Any,
) -> Callable[[Case, Weights], Any]:  # fmt: skip
    """Families with experts, whose gate and up matrices transformers stacks."""

    def build(case: Case, w: Weights) -> Any:
        settings = {
            **COMMON, **RMS, "num_hidden_layers": case.layers, "rope_parameters": ROPE,
            "tie_word_embeddings": case.tied, "intermediate_size": EXPERT_FF,
            "moe_intermediate_size": EXPERT_FF, "num_experts_per_tok": USED, **more,
        }  # fmt: skip
        counted = "num_experts" if "num_experts" in more else "num_local_experts"
        settings[counted] = EXPERTS
        model = getattr(hf, f"{name}ForCausalLM")(getattr(hf, f"{name}Config")(**settings))
        names = {
            **LLAMA_NAMES, router: "ffn_gate_inp",
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
        }  # fmt: skip
        state = by_names(case, w, names, permuted=permuted)
        for i in range(case.layers):
            gate, up, down = (w[f"blk.{i}.ffn_{m}_exps.weight"] for m in ("gate", "up", "down"))
            at = f"model.layers.{i}.{experts}."
            state[at + "gate_up_proj"] = np.concatenate([gate, up], 1)
            state[at + "down_proj"] = down
            if (shared := w.get(f"blk.{i}.ffn_gate_inp_shexp.weight")) is not None:
                state[f"model.layers.{i}.mlp.shared_expert_gate.weight"] = shared[None]
        return model, state

    return build


def gpt_oss(case: Case, w: Weights) -> Any:
    rope = {**YARN, "truncate": False} if "rope.scaling.type" in case.keys else ROPE
    config = hf.GptOssConfig(
        **{**COMMON, "intermediate_size": EXPERT_FF}, **RMS, num_hidden_layers=case.layers,
        rope_parameters=rope, num_local_experts=EXPERTS,
        num_experts_per_tok=USED, sliding_window=8, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )  # fmt: skip
    names = {
        **LLAMA_NAMES, "post_attention_layernorm": "post_attention_norm",
        "mlp.router": "ffn_gate_inp",
    }  # fmt: skip
    state = by_names(case, w, names)
    for i in range(case.layers):
        at = f"model.layers.{i}.mlp.experts."
        state[f"model.layers.{i}.self_attn.sinks"] = w[f"blk.{i}.attn_sinks.weight"]
        for kind, end in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (w[f"blk.{i}.ffn_{m}_exps.{kind}"] for m in ("gate", "up", "down"))
            both = np.stack([gate, up], 2).reshape(EXPERTS, 2 * EXPERT_FF, *gate.shape[2:])
            turn = (0, 2, 1) if kind == "weight" else (0, 1)
            state[f"{at}gate_up_proj{end}"] = both.transpose(turn)
            state[f"{at}down_proj{end}"] = down.transpose(turn)
    return hf.GptOssForCausalLM(config), state


def deepseek2(case: Case, w: Weights) -> Any:
    rope = ROPE
    if "rope.scaling.type" in case.keys:
        rope = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
    sigmoid = "expert_gating_func" in case.keys
    version = "3" if sigmoid else "2"
    kind = getattr(hf, f"DeepseekV{version}Config")
    more = {"n_group": 1, "topk_group": 1, "rope_interleave": True} if sigmoid else {}
    config = kind(
        **{**COMMON, "num_key_value_heads": HEADS, "head_dim": 8}, **RMS,
        num_hidden_layers=case.layers, rope_parameters=rope, tie_word_embeddings=False,
        kv_lora_rank=32, q_lora_rank=None, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=12,
        n_routed_experts=EXPERTS, n_shared_experts=1, num_experts_per_tok=USED,
        first_k_dense_replace=1, moe_intermediate_size=EXPERT_FF, norm_topk_prob=sigmoid,
        routed_scaling_factor=1.5, topk_method="greedy", **more,
    )  # fmt: skip
    model = getattr(hf, f"DeepseekV{version}ForCausalLM")(config)
    names = {
        **LLAMA_NAMES, "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
        "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
        "mlp.gate": "ffn_gate_inp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
        "mlp.shared_experts.up_proj": "ffn_up_shexp",
        "mlp.shared_experts.down_proj": "ffn_down_shexp",
    }  # fmt: skip
    state = by_names(case, w, names)
    for i in range(case.layers):
        at = f"model.layers.{i}."
        if (keys := w.get(f"blk.{i}.attn_k_b.weight")) is not None:
            both = np.concatenate([keys.transpose(0, 2, 1), w[f"blk.{i}.attn_v_b.weight"]], 1)
            state[f"{at}self_attn.kv_b_proj.weight"] = both.reshape(-1, both.shape[-1])
        if i:
            gate, up, down = (w[f"blk.{i}.ffn_{m}_exps.weight"] for m in ("gate", "up", "down"))
            state[f"{at}mlp.experts.gate_up_proj"] = np.concatenate([gate, up], 1)
            state[f"{at}mlp.experts.down_proj"] = down
        if (correction := w.get(f"blk.{i}.exp_probs_b.bias")) is not None:
            state[f"{at}mlp.gate.e_score_correction_bias"] = correction
    return model, state


LOCAL3 = ["sliding_attention"] * 3 + ["full_attention"]
FAMILIES: dict[str, Callable[[Case, Weights], Any]] = {
    "llama": llama,
    "mistral": mistral,
    "llama-yarn": llama,
    "qwen2": plain("Qwen2"),
    "qwen2-yarn": plain("Qwen2"),
    "qwen3": plain("Qwen3"),
    "phi3": phi3,
    "phi3-long": phi3,
    "phi3-short": phi3,
    "olmo2": post_normed("Olmo2"),
    "olmo3": post_normed(
        "Olmo3",
        sliding_window=8,
        layer_types=[*LOCAL3, LOCAL3[0]],
        rope_parameters={"full_attention": YARN, "sliding_attention": ROPE},
    ),
    "exaone4": post_normed(
        "Exaone4", sliding_window=None, sliding_window_pattern=4, layer_types=["full_attention"] * 4
    ),
    "exaone4-32b": post_normed("Exaone4", sliding_window=8, sliding_window_pattern=4, layer_types=[*LOCAL3, LOCAL3[0]]),
    "granite": granite,
    "smollm3": plain("SmolLM3", permuted=True, use_sliding_window=False),
    "glm4": glm("Glm4"),
    "chatglm": glm("Glm"),
    "gemma": gemma("Gemma"),
    "gemma2": gemma("Gemma2", sliding_window=8),
    "gemma3": gemma(
        "Gemma3",
        sliding_window=8,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "starcoder2": starcoder2,
    "starcoder": gpt2,
    "stablelm": stablelm,
    "stablelm-12b": stablelm,
    "gpt2": gpt2,
    "gptneox": gptneox,
    "phi2": phi2,
    "falcon": falcon,
    "falcon-40b": falcon,
    "command-r": cohere("Cohere"),
    "command-r-plus": cohere("Cohere"),
    "cohere2": cohere("Cohere2"),
    "nemotron": nemotron,
    "mixtral": mixture("Mixtral", permuted=True, sliding_window=None),
    "qwen2moe": mixture(
        "Qwen2Moe", num_experts=EXPERTS, shared_expert_intermediate_size=64, norm_topk_prob=False
    ),
    "qwen3moe": mixture("Qwen3Moe", num_experts=EXPERTS, norm_topk_prob=True),
    "olmoe": mixture(
        "Olmoe", num_experts=EXPERTS, norm_topk_prob=False, num_key_value_heads=HEADS
    ),
    "granitemoe": mixture(
        "GraniteMoe", "block_sparse_moe.experts", "block_sparse_moe.router", permuted=True,
        attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.3,
        logits_scaling=2.0,
    ),
    "deepseek2": deepseek2,
    "deepseek2-joined": deepseek2,
    "moonlight": deepseek2,
    "mistral3": mistral3,
    "gpt-oss": gpt_oss,
    "gpt-oss-yarn": gpt_oss,
    "gpt-oss-mxfp4": gpt_oss,
    "arcee": plain("Arcee", permuted=True),
    "seed_oss": plain(
        "SeedOss", {"post_attention_layernorm": "post_attention_norm"}, attention_bias=True
    ),
    "ernie4_5": plain("Ernie4_5"),
}


def logits(name: str) -> np.ndarray:
    """float32 [families.ROWS, VOCAB] of a case."""
    case = CASES[name]
    weights = {key: np.asarray(value) for key, value in families.weights(case).items()}
    model, state = FAMILIES[name](case, weights)
    tied = {"lm_head.weight"} if case.tied else set()
    wanted = {k for k in model.state_dict() if "rotary" not in k and "inv_freq" not in k}
    wanted -= {k for k in wanted if k.endswith((".attn.bias", ".masked_bias"))}
    missing = wanted - set(state) - tied
    if zero := {k for k in missing if k.endswith("bias")}:  # the file has none: they are zero
        state |= {k: np.zeros(model.state_dict()[k].shape, np.float32) for k in zero}
        missing -= zero
    assert not missing, (name, sorted(missing))
    given = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items() if k in wanted}
    model.load_state_dict(given, strict=False)
    model.tie_weights()
    model = model.float().eval()
    with torch.no_grad():
        ids = torch.tensor([families.ids(case)])
        out = model(ids, use_cache=False).logits[0].float().numpy()
    return out[families.rows(case)]


def main() -> None:
    torch.manual_seed(0)
    names = sys.argv[1:] or list(FAMILIES)
    path = Path(__file__).with_name("logits.npz")
    kept = dict(np.load(path)) if path.exists() and sys.argv[1:] else {}
    for name in names:
        kept[name] = logits(name)
        print(name, kept[name].shape, float(np.abs(kept[name]).max()))
    np.savez_compressed(path, **dict(sorted(kept.items())))


if __name__ == "__main__":
    main()
