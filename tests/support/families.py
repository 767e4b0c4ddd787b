"""Small models of many architectures, made from nothing but their names: the same bytes everywhere.

`write(path, case)` makes a GGUF file with the keys and tensors that llama.cpp's converter writes
for the family. Its weights follow from the tensors' names, so that a reference that was computed
elsewhere (tests/data/architectures) belongs to the file that a test makes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from support.toy import _add, _tokenizer_keys, encode

DIM, HEADS, KV, HEAD, FF, CTX = 64, 4, 2, 16, 96, 256
VOCAB = 299  # of the toy tokenizer
EXPERTS, USED, EXPERT_FF = 6, 2, 48
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """One file. layer: tensors of a layer ("attn_q.weight") and their shapes, "" for none.

    keys: without the architecture's prefix, over the common ones; None leaves a key out.
    """

    arch: str
    layer: Shapes
    keys: Mapping[str, Any] = field(default_factory=dict)
    other: Shapes = field(default_factory=dict)  # tensors outside the layers
    layers: int = 4
    tied: bool = True
    n_ctx: int = CTX
    norm: str = "rms"
    peer: str = ""  # why llama.cpp is no reference for it
    values: Mapping[str, Any] = field(default_factory=dict)  # of tensors, instead of random ones
    types: Mapping[str, str] = field(default_factory=dict)  # name pattern -> ggml type, else F32
    first: Shapes = field(default_factory=dict)  # what layer 0 has instead of `layer`


def attention(
    q: int = HEADS * HEAD, kv: int = KV * HEAD, bias: bool = False, out_bias: bool = False
) -> Shapes:
    out: Shapes = {"attn_q.weight": (q, DIM), "attn_k.weight": (kv, DIM)}
    out |= {"attn_v.weight": (kv, DIM), "attn_output.weight": (DIM, q)}
    out |= {"attn_q.bias": (q,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)} if bias else {}
    return out | ({"attn_output.bias": (DIM,)} if out_bias else {})


def fused(kv: int = KV * HEAD, bias: bool = False, out_bias: bool = False) -> Shapes:
    n = DIM + 2 * kv
    out: Shapes = {"attn_qkv.weight": (n, DIM), "attn_output.weight": (DIM, DIM)}
    out |= {"attn_qkv.bias": (n,)} if bias else {}
    return out | ({"attn_output.bias": (DIM,)} if out_bias else {})


def gated(bias: bool = False) -> Shapes:
    return {
        "ffn_gate.weight": (FF, DIM),
        "ffn_up.weight": (FF, DIM),
        "ffn_down.weight": (DIM, FF),
    }


def experts(bias: bool = False, shared: int = 0, gate: bool = False) -> Shapes:
    e, f = EXPERTS, EXPERT_FF
    out: Shapes = {"ffn_gate_inp.weight": (e, DIM), "ffn_gate_exps.weight": (e, f, DIM)}
    out |= {"ffn_up_exps.weight": (e, f, DIM), "ffn_down_exps.weight": (e, DIM, f)}
    if bias:
        out |= {"ffn_gate_inp.bias": (e,), "ffn_gate_exps.bias": (e, f)}
        out |= {"ffn_up_exps.bias": (e, f), "ffn_down_exps.bias": (e, DIM)}
    if shared:
        out |= {"ffn_gate_shexp.weight": (shared, DIM), "ffn_up_shexp.weight": (shared, DIM)}
        out |= {"ffn_down_shexp.weight": (DIM, shared)}
    return out | ({"ffn_gate_inp_shexp.weight": (DIM,)} if gate else {})


def plain(bias: bool = False, up: int = FF) -> Shapes:
    out: Shapes = {"ffn_up.weight": (up, DIM), "ffn_down.weight": (DIM, FF)}
    return out | ({"ffn_up.bias": (up,), "ffn_down.bias": (DIM,)} if bias else {})


def norms(*names: str, bias: bool = False) -> Shapes:
    out: Shapes = {f"{name}.weight": (DIM,) for name in names}
    return out | ({f"{name}.bias": (DIM,) for name in names} if bias else {})


PRE = norms("attn_norm", "ffn_norm")
PRE_BIAS = norms("attn_norm", "ffn_norm", bias=True)
POST = norms("post_attention_norm", "post_ffw_norm")
OUT_BIAS: Shapes = {"output_norm.bias": (DIM,)}
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
OWN_NORMS: Shapes = {"attn_q_norm.weight": (HEADS, HEAD), "attn_k_norm.weight": (KV, HEAD)}
ROW_NORMS: Shapes = {"attn_q_norm.weight": (HEADS * HEAD,), "attn_k_norm.weight": (KV * HEAD,)}
LONG = {"rope_factors_short.weight": np.linspace(1, 1.5, 6, dtype=np.float32),
        "rope_factors_long.weight": np.linspace(1, 9, 6, dtype=np.float32)}  # fmt: skip
LONGROPE = {"rope.dimension_count": 12, "rope.scaling.original_context_length": 32,
            "rope.scaling.attn_factor": 1.19}  # fmt: skip
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64}  # fmt: skip
MIXTURE = {"expert_count": EXPERTS, "expert_used_count": USED,
           "expert_feed_forward_length": EXPERT_FF}  # fmt: skip
GEMMA = {"attention.key_length": HEAD, "attention.value_length": HEAD}
WINDOW = {"attention.sliding_window": 8}
GPT_OSS = (
    norms("attn_norm", "post_attention_norm")
    | attention(bias=True, out_bias=True)
    | {"attn_sinks.weight": (HEADS,)}
    | experts(bias=True)
)

# Latent attention: keys of 8 entries beside the 8 that turn, values of 12, a short vector of 32.
LATENT_KEYS = {
    "attention.kv_lora_rank": 32,
    "rope.dimension_count": 8,
    "attention.key_length": 16,
    "attention.value_length": 12,
    "leading_dense_block_count": 1,
    **MIXTURE,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.5,
}
LATENT_NORMS = PRE | {"attn_kv_a_norm.weight": (32,)}
LATENT: Shapes = {
    "attn_q.weight": (HEADS * 16, DIM),
    "attn_kv_a_mqa.weight": (32 + 8, DIM),
    "attn_output.weight": (DIM, HEADS * 12),
}
JOINED: Shapes = {"attn_kv_b.weight": (HEADS * (8 + 12), 32)}
HALVES: Shapes = {"attn_k_b.weight": (HEADS, 32, 8), "attn_v_b.weight": (HEADS, 12, 32)}
NO_LATENT = "it takes latent attention without a low rank of queries for 27 layers alone"

CASES: dict[str, Case] = {
    "llama": Case("llama", PRE | attention() | gated(), {"rope.dimension_count": HEAD}),
    "mistral": Case(
        "llama", PRE | attention() | gated(), {"rope.dimension_count": HEAD}, tied=False
    ),
    "llama-yarn": Case(
        "llama", PRE | attention() | gated(), {"rope.dimension_count": HEAD, **YARN}
    ),
    "qwen2": Case("qwen2", PRE | attention(bias=True) | gated()),
    "qwen2-yarn": Case("qwen2", PRE | attention(bias=True) | gated(), YARN),
    "qwen3": Case("qwen3", PRE | HEAD_NORMS | attention() | gated()),
    "qwen2vl": Case(
        "qwen2vl", PRE | attention(bias=True) | gated(), {"rope.dimension_sections": [2, 3, 3, 0]},
    ),
    "qwen3vl": Case(
        "qwen3vl", PRE | HEAD_NORMS | attention() | gated(),
        {"rope.dimension_sections": [3, 3, 2, 0]},
    ),
    "mistral3": Case(
        "mistral3", PRE | attention() | gated(),
        {"rope.dimension_count": HEAD, **YARN, "rope.scaling.yarn_log_multiplier": 1.0,
         "attention.temperature_scale": 0.1, **GEMMA}, tied=False, n_ctx=64,
    ),
    "phi3": Case(
        "phi3",
        PRE | fused() | plain(up=2 * FF),
        {"rope.dimension_count": HEAD, "rope.scaling.original_context_length": CTX, **WINDOW},
        tied=False,
        peer="llama.cpp leaves the window of Phi-3 out",
    ),
    "phi3-long": Case(
        "phi3", PRE | fused() | plain(up=2 * FF), LONGROPE, tied=False, values=LONG
    ),
    "phi3-short": Case(
        "phi3", PRE | fused() | plain(up=2 * FF), {**LONGROPE, "context_length": 256},
        values=LONG, n_ctx=32, tied=False,
        peer="the harness asks for a longer context",
    ),
    "olmo2": Case("olmo2", POST | ROW_NORMS | attention() | gated(), tied=False),
    "granite": Case(
        "granite",
        PRE | attention() | gated(),
        {"rope.dimension_count": HEAD, "attention.scale": 0.2, "embedding_scale": 3.0,
         "residual_scale": 0.3, "logit_scale": 2.0},
    ),
    "smollm3": Case("smollm3", PRE | attention() | gated(), {"rope.dimension_count": HEAD}),
    "glm4": Case(
        "glm4", PRE | POST | attention(bias=True) | plain(up=2 * FF), {"rope.dimension_count": 8},
        tied=False,
    ),
    "exaone": Case("exaone", PRE | attention() | gated(), tied=False),
    "exaone4": Case("exaone4", POST | HEAD_NORMS | attention() | gated()),
    "exaone4-32b": Case(
        "exaone4", POST | HEAD_NORMS | attention() | gated(), WINDOW, layers=5,
        peer="it takes the windows for a size of 64 layers alone",
    ),
    "olmo3": Case(
        "olmo2", POST | ROW_NORMS | attention() | gated(),
        {**WINDOW, **YARN, "attention.sliding_window_pattern": [True, True, True, False, True]},
        tied=False, layers=5,
    ),
    "gemma": Case("gemma", PRE | attention() | gated(), GEMMA),
    "gemma2": Case(
        "gemma2", PRE | POST | attention() | gated(),
        {**GEMMA, **WINDOW, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": Case(
        "gemma3", PRE | POST | HEAD_NORMS | attention() | gated(),
        {**GEMMA, **WINDOW, "rope.freq_base": 1e6}, layers=7,
    ),
    "starcoder": Case(
        "starcoder",
        PRE_BIAS | fused(kv=HEAD, bias=True, out_bias=True) | plain(bias=True),
        {"attention.head_count_kv": 1, "rope.freq_base": None},
        other={**OUT_BIAS, "position_embd.weight": (CTX, DIM)},
        norm="layer",
    ),
    "starcoder2": Case(
        "starcoder2",
        PRE_BIAS | attention(bias=True, out_bias=True) | plain(bias=True),
        other=OUT_BIAS,
        norm="layer",
    ),
    "stablelm": Case(
        "stablelm", PRE_BIAS | attention(bias=True) | gated(), {"rope.dimension_count": 4},
        other=OUT_BIAS, norm="layer", tied=False,
    ),
    "stablelm-12b": Case(
        "stablelm",
        norms("attn_norm", bias=True) | OWN_NORMS | attention() | gated(),
        {"rope.dimension_count": 4},
        other=OUT_BIAS, norm="layer", tied=False,
    ),
    "gpt2": Case(
        "gpt2",
        PRE_BIAS | fused(kv=DIM, bias=True, out_bias=True) | plain(bias=True),
        {"attention.head_count_kv": None, "rope.freq_base": None},
        other={**OUT_BIAS, "position_embd.weight": (CTX, DIM)},
        norm="layer",
    ),
    "gptneox": Case(
        "gptneox",
        PRE_BIAS | fused(kv=DIM, bias=True, out_bias=True) | plain(bias=True),
        {"attention.head_count_kv": None, "rope.dimension_count": 4,
         "use_parallel_residual": True},
        other=OUT_BIAS, norm="layer", tied=False,
    ),
    "phi2": Case(
        "phi2",
        norms("attn_norm", bias=True) | attention(kv=DIM, bias=True, out_bias=True)
        | plain(bias=True),
        {"attention.head_count_kv": HEADS, "rope.dimension_count": 8},
        other={**OUT_BIAS, "output.bias": (VOCAB,)}, norm="layer", tied=False,
    ),
    "falcon": Case(
        "falcon", norms("attn_norm", bias=True) | fused(kv=HEAD) | plain(),
        {"attention.head_count_kv": 1, "rope.freq_base": None},
        other=OUT_BIAS, norm="layer",
    ),
    "falcon-40b": Case(
        "falcon", norms("attn_norm", "attn_norm_2", bias=True) | fused() | plain(),
        {"rope.freq_base": None}, other=OUT_BIAS, norm="layer", tied=False,
    ),
    "command-r": Case(
        "command-r", norms("attn_norm") | attention() | gated(), {"logit_scale": 0.5},
        norm="layer",
    ),
    "command-r-plus": Case(
        "command-r", norms("attn_norm") | OWN_NORMS | attention() | gated(),
        {"logit_scale": 0.5}, norm="layer", layers=64,
    ),
    "cohere2": Case(
        "cohere2", norms("attn_norm") | attention() | gated(),
        {"logit_scale": 0.5, "rope.dimension_count": HEAD, **WINDOW}, norm="layer",
    ),
    "mixtral": Case(
        "llama", PRE | attention() | experts(),
        {"rope.dimension_count": HEAD, "expert_count": EXPERTS, "expert_used_count": USED,
         "feed_forward_length": EXPERT_FF}, tied=False,
    ),
    "qwen2moe": Case(
        "qwen2moe", PRE | attention(bias=True) | experts(shared=64, gate=True),
        {**MIXTURE, "expert_shared_feed_forward_length": 64}, tied=False,
    ),
    "qwen3moe": Case("qwen3moe", PRE | HEAD_NORMS | attention() | experts(), MIXTURE, tied=False),
    "olmoe": Case(
        "olmoe",
        PRE | {"attn_q_norm.weight": (DIM,), "attn_k_norm.weight": (DIM,)} | attention(kv=DIM)
        | experts(),
        {"expert_count": EXPERTS, "expert_used_count": USED, "feed_forward_length": EXPERT_FF,
         "attention.head_count_kv": HEADS},
        tied=False,
    ),
    "granitemoe": Case(
        "granitemoe", PRE | attention() | experts(),
        {"rope.dimension_count": HEAD, "attention.scale": 0.2, "embedding_scale": 3.0,
         "residual_scale": 0.3, "logit_scale": 2.0, "feed_forward_length": EXPERT_FF,
         "expert_count": EXPERTS, "expert_used_count": USED},
    ),
    "gpt-oss": Case("gpt-oss", GPT_OSS, {**MIXTURE, **WINDOW, **GEMMA}, tied=False),
    "gpt-oss-mxfp4": Case(
        "gpt-oss", GPT_OSS, {**MIXTURE, **WINDOW, **GEMMA}, tied=False,
        types={"*ffn_gate_exps.weight": "MXFP4", "*ffn_up_exps.weight": "MXFP4"},
        peer="its activations of 8 bits choose other experts in a random model",
    ),
    "gpt-oss-yarn": Case(
        "gpt-oss", GPT_OSS, {**MIXTURE, **WINDOW, **YARN, **GEMMA}, tied=False,
        peer="it rounds the ends of YaRN's range, which matters in a small model",
    ),
    "deepseek2": Case(
        "deepseek2",
        LATENT_NORMS | LATENT | HALVES | experts(shared=EXPERT_FF),
        {**LATENT_KEYS, "attention.head_count_kv": 1, "attention.key_length": 40,
         "attention.value_length": 32, "attention.key_length_mla": 16,
         "attention.value_length_mla": 12},
        first=LATENT_NORMS | LATENT | HALVES | gated(), tied=False, peer=NO_LATENT,
    ),
    "deepseek2-joined": Case(
        "deepseek2",
        LATENT_NORMS | LATENT | JOINED | experts(shared=EXPERT_FF),
        {**LATENT_KEYS, **YARN, "attention.head_count_kv": HEADS,
         "rope.scaling.yarn_log_multiplier": 0.0707},
        first=LATENT_NORMS | LATENT | JOINED | gated(), tied=False, peer=NO_LATENT,
    ),
    "moonlight": Case(
        "deepseek2",
        LATENT_NORMS | LATENT | JOINED | experts(shared=EXPERT_FF)
        | {"exp_probs_b.bias": (EXPERTS,)},
        {**LATENT_KEYS, "attention.head_count_kv": HEADS, "expert_gating_func": 2,
         "expert_weights_norm": True},
        first=LATENT_NORMS | LATENT | JOINED | gated(), tied=False, peer=NO_LATENT,
    ),
    "nemotron": Case(
        "nemotron", PRE_BIAS | attention() | plain(), {"rope.dimension_count": 8},
        other=OUT_BIAS, norm="layer", tied=False,
    ),
    "arcee": Case("arcee", PRE | attention() | plain(), {"rope.dimension_count": HEAD}),
    "seed_oss": Case(
        "seed_oss",
        norms("attn_norm", "post_attention_norm") | attention(bias=True) | gated(),
        tied=False,
    ),
    "ernie4_5": Case("ernie4_5", PRE | attention() | gated(), {"rope.dimension_count": HEAD}),
    "internlm2": Case(
        "internlm2", PRE | attention() | gated(), {"rope.dimension_count": HEAD}, tied=False
    ),
    "chatglm": Case(
        "chatglm", PRE | fused(bias=True) | plain(up=2 * FF), {"rope.dimension_count": 8},
        tied=False,
    ),
}  # fmt: skip


def weights(case: Case) -> dict[str, np.ndarray]:
    """What every tensor of the file means, by its name."""
    out = {}
    for name, array in _made(case).items():
        kind, data = _encoded(case, name, array)
        out[name] = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
    return out


def _encoded(case: Case, name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    """The ggml type of a tensor and its data."""
    kind = next((k for pattern, k in case.types.items() if fnmatch(name, pattern)), "F32")
    if kind == "F32":
        return kind, np.ascontiguousarray(array, np.float32)
    data = encode(array.reshape(-1, array.shape[-1]), kind)
    return kind, np.ascontiguousarray(data.reshape(*array.shape[:-1], -1))


def _made(case: Case) -> dict[str, np.ndarray]:
    made = {name: _random(name, shape) for name, shape in tensors(case).items()}
    return made | {name: np.asarray(value) for name, value in case.values.items()}


def tensors(case: Case) -> Shapes:
    """Row-major shape of every tensor of the file, by its name."""
    shapes: Shapes = {"token_embd.weight": (VOCAB, DIM), "output_norm.weight": (DIM,)}
    shapes |= {} if case.tied else {"output.weight": (VOCAB, DIM)}
    shapes |= case.other
    for i in range(case.layers):
        own = case.first if case.first and i == 0 else case.layer
        shapes |= {f"blk.{i}.{name}": shape for name, shape in own.items()}
    return shapes | {name: np.shape(value) for name, value in case.values.items()}


def _random(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers from the raw bits of a generator that is seeded by the name."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    x = ((raw >> np.uint64(40)).astype(np.float64) / 2**23 - 1).reshape(shape) * 3**0.5
    if "norm" in name:
        return (x * 0.1 + (0 if name.endswith(".bias") else 1)).astype(np.float32)
    if len(shape) == 1:
        return (x * 0.3).astype(np.float32)
    gain = 1.5 if "attn_q" in name or "attn_k" in name else 1.0
    return (x * gain / shape[-1] ** 0.5 * (2 if "token_embd" in name else 1)).astype(np.float32)


def keys(case: Case) -> dict[str, Any]:
    """Metadata without the architecture's prefix."""
    epsilon = "attention.layer_norm_rms_epsilon"
    if case.norm == "layer":
        epsilon = "attention.layer_norm_epsilon"
    common = {
        "context_length": CTX,
        "embedding_length": DIM,
        "block_count": case.layers,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV,
        "rope.freq_base": 10_000.0,
        epsilon: 1e-5,
    }
    merged = {**common, **case.keys}
    return {key: value for key, value in merged.items() if value is not None}


def ids(case: Case) -> list[int]:
    """The tokens of the test: 40, or as many as the case's context has."""
    raw = np.random.PCG64(5).random_raw(min(40, case.n_ctx))
    return [int(i) % 287 + 3 for i in raw]


def rows(case: Case) -> list[int]:
    """The positions whose logits are kept as a reference."""
    return [i for i in (0, 1, 4, 9, 17, 25, 31, 39) if i < case.n_ctx]


def write(path: Path, case: Case) -> Path:
    writer = gguf.GGUFWriter(path, case.arch)
    tokenizer, n_tokens = _tokenizer_keys("bpe", "smollm", *_pieces(), None)
    assert n_tokens == VOCAB
    for key, value in tokenizer.items():
        _add(writer, key, value)
    for key, value in keys(case).items():
        _add(writer, f"{case.arch}.{key}", value)
    for name, array in _made(case).items():
        kind, data = _encoded(case, name, array)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pieces() -> tuple[list[str], list[str]]:
    from support.toy import MERGES, PIECES

    return MERGES, PIECES
