"""A BERT model in safetensors, as a package carries it, becomes a GGUF file.

Keys, names and token texts are those that llama.cpp's converter writes, so llama.cpp loads the
file too. The same source gives the same bytes: the result has a checksum like every other model.

Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md,
https://github.com/huggingface/safetensors#format.
"""

import json
import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from ..errors import DownloadError

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_POOLINGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2}
_SPECIAL = {"unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls", "mask": "mask"}
# Names of a layer's parts -> names in GGUF.
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_MODEL = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
_UNUSED = re.compile(r"pooler\..*|embeddings\.position_ids")


class Output(Protocol):
    """Where the file goes."""

    def write(self, data: bytes, /) -> object: ...


Open = Callable[[str], IO[bytes]]  # a file of the model's folder, by its name


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor in the source: float32, `shape`, its bytes at `start` of the data."""

    name: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def bert_to_gguf(open_file: Open, name: str, licence: str, out: Output) -> None:
    """Write the GGUF file of a BERT model of sentence-transformers.

    Args:
        open_file: Opens `config.json`, `vocab.txt`, `tokenizer_config.json`,
            `1_Pooling/config.json` and `model.safetensors`.
        name: The model's name in the metadata.
        licence: Its licence in the metadata.
        out: Where the file is written.

    Raises:
        DownloadError: A file is damaged, or is not of that form.
    """
    config = _json(open_file, "config.json")
    tokenizer = _json(open_file, "tokenizer_config.json")
    pooling = _json(open_file, "1_Pooling/config.json")
    vocabulary = _text(open_file, "vocab.txt").splitlines()
    if config.get("model_type") != "bert" or config.get("hidden_act") != "gelu":
        raise DownloadError(f"{name}: config.json is not that of a BERT model")
    entries = _entries(config, tokenizer, pooling, vocabulary, name, licence)
    with open_file("model.safetensors") as source:
        tensors = _tensors(source)
        _write(out, entries, [(_renamed(t.name), t) for t in tensors], source)


def _json(open_file: Open, name: str) -> Mapping[str, object]:
    try:
        value = json.loads(_text(open_file, name))
    except ValueError as e:
        raise DownloadError(f"{name} is not JSON: {e}") from e
    if not isinstance(value, dict):
        raise DownloadError(f"{name} is not a JSON object")
    return value


def _text(open_file: Open, name: str) -> str:
    with open_file(name) as file:
        return file.read().decode("utf-8")


def _entries(
    config: Mapping[str, object],
    tokenizer: Mapping[str, object],
    pooling: Mapping[str, object],
    vocabulary: Sequence[str],
    name: str,
    licence: str,
) -> list[bytes]:
    special = {role: str(tokenizer.get(f"{role}_token", "")) for role in _SPECIAL}
    kind = next((n for key, n in _POOLINGS.items() if pooling.get(key)), 0)

    def u32(key: str, value: object) -> bytes:
        return _entry(key, _U32, struct.pack("<I", value))

    return [
        _entry("general.architecture", _STRING, _string("bert")),
        _entry("general.type", _STRING, _string("model")),
        _entry("general.name", _STRING, _string(name)),
        _entry("general.license", _STRING, _string(licence.lower())),
        u32("general.file_type", 0),
        u32("bert.block_count", config["num_hidden_layers"]),
        u32("bert.context_length", config["max_position_embeddings"]),
        u32("bert.embedding_length", config["hidden_size"]),
        u32("bert.feed_forward_length", config["intermediate_size"]),
        u32("bert.attention.head_count", config["num_attention_heads"]),
        _entry(
            "bert.attention.layer_norm_epsilon", _F32, struct.pack("<f", config["layer_norm_eps"])
        ),
        _entry("bert.attention.causal", _BOOL, b"\0"),
        u32("bert.pooling_type", kind),
        _entry("tokenizer.ggml.model", _STRING, _string("bert")),
        _entry("tokenizer.ggml.pre", _STRING, _string("default")),
        u32("tokenizer.ggml.token_type_count", config["type_vocab_size"]),
        _strings("tokenizer.ggml.tokens", [_token(t, special.values()) for t in vocabulary]),
        _entry("tokenizer.ggml.token_type", _ARRAY, struct.pack("<IQ", _I32, len(vocabulary))
               + struct.pack(f"<{len(vocabulary)}i",
                             *(3 if t in special.values() else 1 for t in vocabulary))),
        *(
            u32(f"tokenizer.ggml.{_SPECIAL[role]}_token_id", vocabulary.index(text))
            for role, text in special.items()
            if text in vocabulary
        ),
    ]  # fmt: skip


def _token(text: str, special: Collection[str]) -> str:
    """WordPiece marks what goes on a word with ##; GGUF marks what begins one with U+2581."""
    if text in special:
        return text
    return text[2:] if text.startswith("##") else "▁" + text


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _strings(key: str, texts: Sequence[str]) -> bytes:
    head = struct.pack("<IQ", _STRING, len(texts))
    return _entry(key, _ARRAY, head + b"".join(map(_string, texts)))


def _renamed(name: str) -> str:
    if name in _MODEL:
        return _MODEL[name]
    found = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if found is None or found[2] not in _LAYER:
        raise DownloadError(f"model.safetensors has a tensor that BERT does not have: {name}")
    return f"blk.{found[1]}.{_LAYER[found[2]]}.{found[3]}"


def _tensors(source: IO[bytes]) -> list[_Tensor]:
    """The float32 tensors of a safetensors file, in the order of their names."""
    (size,) = struct.unpack("<Q", source.read(8))
    header = json.loads(source.read(size))
    found = []
    for name, about in sorted(header.items()):
        if name == "__metadata__" or _UNUSED.fullmatch(name):
            continue
        if about["dtype"] != "F32":
            raise DownloadError(f"tensor {name} of model.safetensors is {about['dtype']}, not F32")
        start, end = about["data_offsets"]
        found.append(_Tensor(name, tuple(about["shape"]), 8 + size + start, end - start))
    return found


def _write(
    out: Output, entries: list[bytes], tensors: list[tuple[str, _Tensor]], source: IO[bytes]
) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries)
    offset = 0
    for name, t in tensors:
        head += _string(name) + struct.pack("<I", len(t.shape))
        head += struct.pack(f"<{len(t.shape)}Q", *reversed(t.shape))
        head += struct.pack("<IQ", 0, offset)  # F32
        offset += _padded(t.nbytes)
    out.write(head + bytes(_padded(len(head)) - len(head)))
    for _, t in tensors:
        source.seek(t.start)
        data = source.read(t.nbytes)
        if len(data) != t.nbytes:
            raise DownloadError("model.safetensors ends too soon")
        out.write(data + bytes(_padded(t.nbytes) - t.nbytes))


def _padded(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT
