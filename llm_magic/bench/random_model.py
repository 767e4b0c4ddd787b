"""A llama of 1.1 billion random weights: nothing to read in it, but as fast or slow as a real one.

The file has the same bytes everywhere.

The shape is that of TinyLlama-1.1B: 22 layers of 2048, 32 heads on 4 of keys, 5632 inside, 32,000
tokens, an output matrix of its own; all matrices Q4_0. Weights are uniform 4-bit numbers with the
deviation of a fresh model (1 / sqrt(inputs)), so that logits stay finite. The vocabulary is SPM's
(byte tokens, then made-up words), because every engine insists on one.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import numpy as np

Say = Callable[[str], None]

SIZE = 622_000_000  # bytes of the file, about
NAME = "random-llama-1.1b-q4_0.gguf"
ALIGN = 32
BLOCK = 32  # weights of a Q4_0 block: a 16-bit scale, then 16 bytes of two weights each
F32, Q4_0 = 0, 2  # tensor types of GGUF
UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5  # value types of GGUF
UNKNOWN, CONTROL, NORMAL, BYTE = 2, 3, 1, 6  # token types
PIECE = 1 << 20  # blocks made at a time


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a llama."""

    layers: int = 22
    dim: int = 2048
    heads: int = 32
    kv_heads: int = 4
    inside: int = 5632
    tokens: int = 32000
    context: int = 4096

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, shape with the inputs last), matrices and norms in the order of the file."""
        kv = self.dim // self.heads * self.kv_heads
        yield "token_embd.weight", (self.tokens, self.dim)
        for i in range(self.layers):
            block = {
                "attn_norm": (self.dim,),
                "attn_q": (self.dim, self.dim),
                "attn_k": (kv, self.dim),
                "attn_v": (kv, self.dim),
                "attn_output": (self.dim, self.dim),
                "ffn_norm": (self.dim,),
                "ffn_gate": (self.inside, self.dim),
                "ffn_up": (self.inside, self.dim),
                "ffn_down": (self.dim, self.inside),
            }
            yield from ((f"blk.{i}.{name}.weight", shape) for name, shape in block.items())
        yield "output_norm.weight", (self.dim,)
        yield "output.weight", (self.tokens, self.dim)


def random_1b(say: Say = lambda text: None) -> Path:
    """The path of the model in the user's cache; written there if it is not there yet."""
    from ..models import cache

    path = cache.files() / NAME
    if not path.exists():
        say(f"writing {path} ({SIZE / 1e6:.0f} MB)")
        with cache.workspace(SIZE) as folder:
            cache.place(write(folder / NAME, Shape()), path)
    return path


def write(path: Path, shape: Shape, seed: int = 0) -> Path:
    """Write a model of this shape; returns its path."""
    with open(path, "wb") as file:
        _header(file, shape)
        for i, (_, dims) in enumerate(shape.tensors()):
            _tensor(file, dims, seed * 1000 + i)
    return path


# ----------------------------------------------------------------------------- the header


def _header(file: BinaryIO, shape: Shape) -> None:
    keys = _keys(shape)
    tensors = list(shape.tensors())
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)))
    for key, value in keys.items():
        file.write(_text(key) + value)
    at = 0
    for name, dims in tensors:
        kind = Q4_0 if len(dims) > 1 else F32
        file.write(_text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *reversed(dims)))
        file.write(struct.pack("<IQ", kind, at))
        at += -(-_nbytes(dims) // ALIGN) * ALIGN
    file.write(b"\0" * (-file.tell() % ALIGN))


def _keys(s: Shape) -> dict[str, bytes]:
    """Metadata: key -> type and value as the file has them."""
    numbers = {
        "llama.vocab_size": s.tokens,
        "llama.context_length": s.context,
        "llama.embedding_length": s.dim,
        "llama.block_count": s.layers,
        "llama.feed_forward_length": s.inside,
        "llama.rope.dimension_count": s.dim // s.heads,
        "llama.attention.head_count": s.heads,
        "llama.attention.head_count_kv": s.kv_heads,
        "general.file_type": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    texts, kinds = _vocabulary(s.tokens)
    scores = [0.0] * 259 + [-float(i) for i in range(s.tokens - 259)]
    return {
        "general.architecture": struct.pack("<I", STRING) + _text("llama"),
        "general.name": struct.pack("<I", STRING) + _text("random llama"),
        **{key: struct.pack("<II", UINT32, value) for key, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", FLOAT32, 1e-5),
        "llama.rope.freq_base": struct.pack("<If", FLOAT32, 10000.0),
        "tokenizer.ggml.model": struct.pack("<I", STRING) + _text("llama"),
        "tokenizer.ggml.tokens": _array(STRING, b"".join(map(_text, texts)), s.tokens),
        "tokenizer.ggml.scores": _array(FLOAT32, struct.pack(f"<{s.tokens}f", *scores), s.tokens),
        "tokenizer.ggml.token_type": _array(
            INT32, struct.pack(f"<{s.tokens}i", *kinds), s.tokens
        ),
        "tokenizer.ggml.add_bos_token": struct.pack("<I?", BOOL, True),
    }  # fmt: skip


def _vocabulary(n: int) -> tuple[list[str], list[int]]:
    """Texts and types of n tokens: three special ones, the bytes, single letters, made-up words."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581"]
    texts += [chr(c) for c in range(33, 127)]
    texts += [f"\u2581w{i}" for i in range(n - len(texts))]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(texts) - 259)]
    return texts[:n], kinds[:n]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _array(kind: int, data: bytes, n: int) -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, n) + data


# ----------------------------------------------------------------------------- the weights


def _nbytes(dims: Sequence[int]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n * 4 if len(dims) == 1 else n // BLOCK * 18


def _tensor(file: BinaryIO, dims: tuple[int, ...], seed: int) -> None:
    import numpy as np

    if len(dims) == 1:
        file.write(np.ones(dims, "<f4").tobytes())
    else:
        # Uniform integers from -8 to 7 deviate by 4.61.
        scale = np.float16(1 / (4.61 * dims[-1] ** 0.5))
        rng = np.random.Generator(np.random.PCG64(seed))
        blocks = dims[0] * dims[1] // BLOCK
        for first in range(0, blocks, PIECE):
            file.write(_blocks(rng, min(PIECE, blocks - first), scale))
    file.write(b"\0" * (-file.tell() % ALIGN))


def _blocks(rng: "np.random.Generator", n: int, scale: "np.float16") -> bytes:
    import numpy as np

    out = np.empty((n, 18), np.uint8)
    out[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    out[:, 2:] = np.frombuffer(rng.bytes(n * 16), np.uint8).reshape(n, 16)
    return out.tobytes()
