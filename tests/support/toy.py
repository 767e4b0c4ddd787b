"""Toy GGUF files for tests: tiny random models that are valid, and raw bytes that are not.

`toy_gguf` writes a complete model (weights, tokenizer, chat template) of a few hundred kilobytes,
the same bytes for the same options. `raw_gguf` puts a file together field by field, so that any
field can lie. Import as `from toy import toy_gguf`.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
_MERGES = (
    "h e|l l|he ll|hell o|Ġ w|o r|l d|Ġw or|Ġwor ld|Ġ t|Ġt he|i n|Ġ a|e r|o n|Ġ s|a t|r e|i s|"
    "Ġ in|a n|Ġa n|Ġan d|O n|c e|On ce|Ġ u|Ġu p|p on|Ġu pon|Ġ o|Ġo f|i t|Ġ c|Ġc at|Ċ Ċ|Ġ Ġ|u s|"
    "er s|us er"
)
_PIECES = (
    "▁|e|t|a|o|i|n|s|r|h|l|d|c|u|m|f|p|g|w|y|b|v|k|x|j|q|z|.|,|!|?|'|\n|A|O|T|H|W|0|1|2|3|"
    "▁t|he|▁the|in|er|▁a|on|re|▁s|at|▁o|▁w|ll|hell|▁hello|or|ld|▁world|an|▁an|▁and|▁Once|▁upon|▁time|"
    "▁▁"
)
MERGES, PIECES = _MERGES.split("|"), _PIECES.split("|")

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

# ----------------------------------------------------------------------------- whole models


def toy_gguf(
    path: str | Path,
    *,
    arch: str = "llama",
    layers: int = 2,
    dim: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    ff: int = 128,
    ctx: int = 512,
    rope_base: float = 10000.0,
    rms_eps: float = 1e-5,
    types: str | Mapping[str, str] = "F32",
    tied: bool = True,
    rope_freqs: Sequence[float] | None = None,
    tokenizer: str = "bpe",
    pre: str = "smollm",
    merges: Sequence[str] = tuple(MERGES),
    pieces: Sequence[str] = tuple(PIECES),
    vocab: int | None = None,
    embed_rows: int | None = None,
    template: str | None = "default",
    metadata: Mapping[str, Any] | None = None,
    drop: Iterable[str] = (),
    tensors: Mapping[str, F32] | None = None,
    split: int = 0,
    seed: int = 0,
) -> Path:
    """Write a random model and return the path of its (first) file.

    arch: llama, qwen2 (biases), qwen3 (q/k norms), gemma, gemma2 (post norms, soft caps, window 8)
        or gemma3 (q/k norms, post norms, window 8).
    types: one ggml type name for every matrix, or {name pattern: type}, first match wins, else F32.
        Blocks of 32 need dim and ff divisible by 32, the *_K types by 256. Vectors stay F32.
    tokenizer: "bpe" (byte-level; `pre` names the pre-tokenizer), "spm" (byte fallback) or "none".
    vocab: pad the token list with unused tokens up to this size; embed_rows: rows of the embedding
        when they differ from the number of tokens.
    template: "default" = ChatML for bpe, start_of_turn for spm; None = the file has none.
    metadata: extra keys, or None as value to leave a key out. int -> uint32 (negative: int32),
        float -> float32; a pair (value, gguf.GGUFValueType) fixes the type.
    drop: names of tensors to leave out (patterns); tensors: arrays that replace or add tensors.
    split: most tensors per file; 0 = one file. Files are then called NAME-00001-of-0000N.gguf.
    """
    path = Path(path)
    rng = np.random.default_rng(seed)
    keys, n_tokens = _tokenizer_keys(tokenizer, pre, merges, pieces, vocab)
    if template is not None and tokenizer != "none":
        default = CHATML if tokenizer == "bpe" else TURNS
        keys["tokenizer.chat_template"] = default if template == "default" else template
    head_dim = head_dim or dim // heads
    keys |= _arch_keys(arch, layers, dim, heads, kv_heads, head_dim, ff, ctx, rope_base, rms_eps)
    keys |= metadata or {}
    rows = embed_rows or n_tokens
    weights = _weights(rng, arch, layers, dim, heads, kv_heads, head_dim, ff, rows, tied)
    if rope_freqs is not None:
        weights["rope_freqs.weight"] = np.asarray(rope_freqs, np.float32)
    weights |= tensors or {}
    weights = {k: v for k, v in weights.items() if not any(fnmatch(k, p) for p in drop)}
    _write(path, arch, keys, weights, types, split, seed)
    if split and len(weights) > split:
        return next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))))
    return path


def _write(
    path: Path,
    arch: str,
    keys: Mapping[str, Any],
    weights: Mapping[str, F32],
    types: str | Mapping[str, str],
    split: int,
    seed: int,
) -> None:
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    for key, value in keys.items():
        _add(writer, key, value)
    for i, (name, array) in enumerate(weights.items()):
        kind = gguf.GGMLQuantizationType[_type_of(name, array, types)]
        data = encode(array, kind.name, seed=seed * 1000 + i)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _type_of(name: str, array: F32, types: str | Mapping[str, str]) -> str:
    if array.ndim < 2:
        return "F32"
    if isinstance(types, str):
        return types
    return next((kind for pattern, kind in types.items() if fnmatch(name, pattern)), "F32")


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kind = gguf.GGUFValueType
    match value:
        case None:
            return
        case (inner, kind() as fixed):
            writer.add_key_value(key, inner, fixed)
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_int32(key, value) if value < 0 else writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def _arch_keys(
    arch: str,
    layers: int,
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ff: int,
    ctx: int,
    rope_base: float,
    rms_eps: float,
) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "general.name": f"Toy {arch}",
        f"{arch}.context_length": ctx,
        f"{arch}.embedding_length": dim,
        f"{arch}.block_count": layers,
        f"{arch}.feed_forward_length": ff,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": float(rms_eps),
        f"{arch}.rope.freq_base": float(rope_base),
    }
    if arch == "llama":
        keys[f"{arch}.rope.dimension_count"] = head_dim
    if arch in ("qwen3", "gemma", "gemma2", "gemma3") or head_dim != dim // heads:
        keys[f"{arch}.attention.key_length"] = head_dim
        keys[f"{arch}.attention.value_length"] = head_dim
    if arch in ("gemma2", "gemma3"):
        keys[f"{arch}.attention.sliding_window"] = 8
    if arch == "gemma2":
        keys[f"{arch}.attn_logit_softcapping"] = 50.0
        keys[f"{arch}.final_logit_softcapping"] = 30.0
    return keys


def _weights(
    rng: np.random.Generator,
    arch: str,
    layers: int,
    dim: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ff: int,
    rows: int,
    tied: bool,
) -> dict[str, F32]:
    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> F32:
        return (rng.standard_normal((n_out, n_in)) * gain / n_in**0.5).astype(np.float32)

    def vector(n: int, mean: float = 1.0) -> F32:
        return (mean + 0.1 * rng.standard_normal(n)).astype(np.float32)

    q, kv = heads * head_dim, kv_heads * head_dim
    out: dict[str, F32] = {"token_embd.weight": matrix(rows, dim, 2.0)}
    for i in range(layers):
        b = f"blk.{i}."
        out[b + "attn_norm.weight"] = vector(dim)
        for name, n in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
            out[f"{b}{name}.weight"] = matrix(n, dim, 1.5)
            if arch == "qwen2":
                out[f"{b}{name}.bias"] = vector(n, 0.0)
        if arch in ("qwen3", "gemma3"):
            out[b + "attn_q_norm.weight"] = vector(head_dim)
            out[b + "attn_k_norm.weight"] = vector(head_dim)
        out[b + "attn_output.weight"] = matrix(dim, q)
        out[b + "ffn_norm.weight"] = vector(dim)
        if arch in ("gemma2", "gemma3"):
            out[b + "post_attention_norm.weight"] = vector(dim)
            out[b + "post_ffw_norm.weight"] = vector(dim)
        out[b + "ffn_gate.weight"] = matrix(ff, dim)
        out[b + "ffn_up.weight"] = matrix(ff, dim)
        out[b + "ffn_down.weight"] = matrix(dim, ff)
    out["output_norm.weight"] = vector(dim)
    if not tied:
        out["output.weight"] = matrix(rows, dim, 2.0)
    return out


# ----------------------------------------------------------------------------- tokenizers


def byte_chars() -> list[str]:
    """The printable character that byte-level BPE writes for each of the 256 bytes."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def _tokenizer_keys(
    kind: str, pre: str, merges: Sequence[str], pieces: Sequence[str], vocab: int | None
) -> tuple[dict[str, Any], int]:
    ggml = "tokenizer.ggml."
    if kind == "none":
        return {}, vocab or 256
    if kind == "bpe":
        control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokens = control + byte_chars() + [m.replace(" ", "") for m in merges]
        types = [CONTROL] * len(control) + [NORMAL] * (len(tokens) - len(control))
        keys: dict[str, Any] = {
            ggml + "model": "gpt2",
            ggml + "pre": pre,
            ggml + "merges": list(merges) or None,
            ggml + "bos_token_id": 1,
            ggml + "eos_token_id": 2,
            ggml + "unknown_token_id": 0,
            ggml + "add_bos_token": False,
        }
    else:
        control = ["<start_of_turn>", "<end_of_turn>"]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *control, *pieces]
        types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [CONTROL] * 2 + [NORMAL] * len(pieces)
        keys = {
            ggml + "model": "llama",
            ggml + "scores": [0.0] * 261 + [-float(i) for i in range(len(pieces), 0, -1)],
            ggml + "bos_token_id": 1,
            ggml + "eos_token_id": 2,
            ggml + "unknown_token_id": 0,
            ggml + "add_bos_token": True,
            ggml + "add_space_prefix": True,
        }
    for i in range(len(tokens), vocab or 0):
        tokens.append(f"[PAD{i}]")
        types.append(UNUSED)
        if kind == "spm":
            keys[ggml + "scores"].append(-1e4)
    return {**keys, ggml + "tokens": tokens, ggml + "token_type": types}, len(tokens)


# ----------------------------------------------------------------------------- weights as blocks


def encode(array: F32, kind: str, seed: int = 0) -> npt.NDArray[Any]:
    """`array` in a ggml type. K and IQ types get random blocks of the same standard deviation.

    What the blocks mean exactly is `gguf.quants.dequantize` of them; it need not be near `array`.
    """
    if kind == "F32":
        return np.ascontiguousarray(array, np.float32)
    if kind == "F16":
        return array.astype(np.float16)
    if kind in ("BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        return gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    n = array.size // block
    blocks = random_blocks(kind, n, seed=seed, std=float(array.std()))
    return blocks.reshape(*array.shape[:-1], array.shape[-1] // block * size)


def random_blocks(kind: str, n: int, seed: int = 0, std: float = 1.0) -> U8:
    """n random blocks, uint8 [n, bytes per block], finite, of about this standard deviation."""
    rng = np.random.default_rng(seed)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    match kind:
        case "Q4_K" | "Q5_K":
            levels = 16 if kind == "Q4_K" else 32
            scale = rng.integers(20, 64, (n, 8), dtype=np.uint8)
            d = std / (levels / 12**0.5) / 42
            raw[:, 0:2] = _f16(n, d)
            raw[:, 2:4] = _f16(n, d * (levels - 1) / 2)
            raw[:, 4:16] = pack_scales(scale, scale)
        case "Q6_K":
            raw[:, 192:208] = rng.integers(-90, 91, (n, 16), dtype=np.int8).view(np.uint8)
            raw[:, 208:210] = _f16(n, std / (64 / 12**0.5) / 52)
        case "Q2_K":
            raw[:, :16] = rng.integers(4, 16, (n, 16), dtype=np.uint8) * 17  # scale = minimum
            raw[:, 80:82] = _f16(n, std / 12)
            raw[:, 82:84] = _f16(n, std / 8)
        case "Q3_K":
            raw[:, 108:110] = _f16(n, std / 45)
        case "IQ4_XS":
            raw[:, 0:2] = _f16(n, std / 1300)
        case "IQ4_NL":
            raw[:, 0:2] = _f16(n, std / 66)
        case "MXFP4":
            raw[:, 0] = 127 + int(np.floor(np.log2(std))) - rng.integers(1, 4, n)
        case "NVFP4":
            exponent = max(1, int(np.floor(np.log2(std / 4))) + 7)
            raw[:, :4] = exponent << 3 | rng.integers(0, 8, (n, 4), dtype=np.uint8)
        case "IQ2_XXS" | "IQ2_XS" | "IQ2_S" | "IQ3_XXS":
            raw[:, 0:2] = _f16(n, std / (160 if kind == "IQ3_XXS" else 61))
        case "IQ3_S":
            raw[:, 0:2] = _f16(n, std / 150)
        case "IQ1_S":
            raw[:, 0:2] = _f16(n, std / 7)
        case "IQ1_M":
            bits = int(np.float16(std / 7).view(np.uint16))
            for i in range(4):
                raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15) << 4
        case "TQ1_0" | "TQ2_0":
            raw[:, -2:] = _f16(n, std * 1.2)
        case "Q4_0" | "Q5_0" | "Q4_1" | "Q5_1" | "Q8_0":
            steps = {"4": 16, "5": 32, "8": 256}[kind[1]]
            raw[:, 0:2] = _f16(n, std / (steps / 12**0.5))
            if kind.endswith("_1"):
                raw[:, 2:4] = _f16(n, -std * 12**0.5 / 2)
        case _:
            raw[:] = 0
    return raw


def pack_scales(scale: U8, minimum: U8) -> U8:
    """The 12 bytes that hold the eight 6-bit scales and minima [n, 8] of Q4_K and Q5_K."""
    low, high = scale[:, :4] & 63, scale[:, 4:]
    m_low, m_high = minimum[:, :4] & 63, minimum[:, 4:]
    first = low | (high >> 4) << 6
    second = m_low | (m_high >> 4) << 6
    third = (high & 15) | (m_high & 15) << 4
    return np.concatenate([first, second, third], axis=1)


def _f16(n: int, value: float) -> U8:
    return np.full((n, 1), value, np.float16).view(np.uint8)


# ----------------------------------------------------------------------------- raw files


def string(text: str | bytes) -> bytes:
    """A GGUF string: length, then bytes."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def kv(key: str | bytes, kind: int, payload: bytes) -> bytes:
    """One metadata entry. Kinds: 0-5 u8 i8 u16 i16 u32 i32, 6 f32, 7 bool, 8 string, 9 array."""
    return string(key) + struct.pack("<I", kind) + payload


def kv_u32(key: str, value: int) -> bytes:
    return kv(key, 4, struct.pack("<I", value))


def kv_str(key: str, value: str | bytes) -> bytes:
    return kv(key, 8, string(value))


def kv_array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return kv(key, 9, struct.pack("<IQ", kind, count) + payload)


def info(
    name: str | bytes, dims: Sequence[int] = (32,), kind: int = 0, offset: int = 0, n_dims: int = -1
) -> bytes:
    """One tensor entry; `dims` in ggml order (fastest first). `n_dims` may lie."""
    n = len(dims) if n_dims < 0 else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", n, *dims, kind, offset)


def raw_gguf(
    path: str | Path,
    kvs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    align: int = 32,
) -> Path:
    """Write a file from its parts; counts are right unless given."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(infos) if n_tensors is None else n_tensors,
        len(kvs) if n_kv is None else n_kv,
    )
    head += b"".join(kvs) + b"".join(infos)
    if infos:
        head += bytes(-len(head) % align)
    path = Path(path)
    path.write_bytes(head + data)
    return path
