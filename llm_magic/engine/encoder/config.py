"""A table of encoders: metadata and tensors of a GGUF file -> one `EncoderConfig`, checked.

What every row computes (x: [tokens, dim], float32; every norm is a LayerNorm with weight and bias):

    x = norm(embedding[token] + type_embedding[segment] + position_embedding[position])
    for each layer:
        q, k, v = x @ attn_q.T + bias, ...                  from one matrix `attn_qkv` in some files
        q, k = rope(q), rope(k)                             where there is no position_embedding
        a = softmax(q @ k.T / sqrt(head_dim)) @ v           every token sees every other one
        x = norm(x + a @ attn_output.T + bias)
        h = gelu(x @ ffn_up.T + bias)                       or silu(x @ ffn_gate.T) * (x @ ffn_up.T)
        x = norm(x + h @ ffn_down.T + bias)

References: Devlin et al. 2018 (BERT); Nussbaum et al. 2024 (nomic-embed).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from llm_magic.errors import GGUFError, UnsupportedModelError

PoolingName = Literal["none", "mean", "cls", "last", "rank"]
# The numbers of `<architecture>.pooling_type` in GGUF.
POOLINGS: Mapping[int, PoolingName] = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}

_KEY = b"general.architecture"
_HEAD = 4096  # bytes of a file in which writers put that key: they write it first


@dataclass(frozen=True, slots=True)
class Encoder:
    """A row of the table: gated: whether the feed-forward part has a gate (SiLU), else GELU."""

    gated: bool
    rope: bool


ENCODERS: Mapping[str, Encoder] = {
    "bert": Encoder(gated=False, rope=False),
    "nomic-bert": Encoder(gated=True, rope=True),
}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes of an encoder. n_ctx: the longest text in tokens; rope_base: of rotary positions."""

    architecture: str
    kind: Encoder
    n_layers: int
    dim: int
    n_heads: int
    n_ff: int
    n_ctx: int
    eps: float
    rope_base: float
    pooling: PoolingName

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


def read_encoder(metadata: Mapping[str, object]) -> EncoderConfig:
    """The sizes of an encoder, from the metadata of its file.

    Raises:
        GGUFError: A key is missing or its value is not valid.
        UnsupportedModelError: The architecture is no encoder of the table, or it is one with
            mixtures of experts.
    """
    name = str(metadata.get("general.architecture", ""))
    if name not in ENCODERS:
        raise UnsupportedModelError(
            f"architecture {name!r} is not an encoder that is known: {', '.join(ENCODERS)}"
        )

    def number(key: str, default: float | None = None, least: float = 1) -> float:
        value = metadata.get(f"{name}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise GGUFError(f"{name}.{key} is missing or not a number")
        if not least <= value <= 1 << 31:
            raise GGUFError(f"{name}.{key} is {value}, which is out of range")
        return value

    def whole(key: str) -> int:
        value = number(key)
        if int(value) != value:
            raise GGUFError(f"{name}.{key} is {value}, not a whole number")
        return int(value)

    if metadata.get(f"{name}.attention.causal") is True:
        raise UnsupportedModelError(f"{name} with causal attention is not supported")
    if metadata.get(f"{name}.expert_count"):
        raise UnsupportedModelError(f"{name} with a mixture of experts is not supported")
    dim, n_heads = whole("embedding_length"), whole("attention.head_count")
    if dim % n_heads or (dim // n_heads) % 2:
        raise GGUFError(f"{n_heads} heads do not divide an embedding of {dim} into even parts")
    pooling = POOLINGS.get(cast("int", metadata.get(f"{name}.pooling_type", 1)), "mean")
    return EncoderConfig(
        architecture=name,
        kind=ENCODERS[name],
        n_layers=whole("block_count"),
        dim=dim,
        n_heads=n_heads,
        n_ff=whole("feed_forward_length"),
        n_ctx=whole("context_length"),
        eps=number("attention.layer_norm_epsilon", least=0),
        rope_base=number("rope.freq_base", 10_000.0),
        pooling=pooling,
    )


def architecture(path: Path) -> str:
    """The architecture that a file names in its first entries; "" where they do not tell.

    Only a look: whether the file is sound is found out when it is loaded.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    at = head.find(struct.pack("<Q", len(_KEY)) + _KEY)
    if not head.startswith(b"GGUF") or at < 0:
        return ""
    at += 8 + len(_KEY)
    kind, length = struct.unpack_from("<IQ", head, at) if at + 12 <= len(head) else (0, 0)
    return head[at + 12 : at + 12 + min(length, 64)].decode("utf-8", "replace") if kind == 8 else ""


def is_encoder(path: Path) -> bool:
    """Whether a file holds an encoder, which embeds texts and does not generate any."""
    return architecture(path) in ENCODERS
