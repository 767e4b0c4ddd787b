"""What the kernel tests compare with: a float64 forward pass, and tiles read back with numpy."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm_magic.engine import device, lowbit
from llm_magic.engine.arch import read_config
from llm_magic.engine.blocks import LAYER_WEIGHTS, Config
from llm_magic.engine.gguf import GGUF, open_gguf
from llm_magic.engine.kernels import KernelForward
from llm_magic.engine.kernels.layout import BLOCK_BYTES, SUPER_BYTES, up
from llm_magic.engine.portable.forward import Portable
from llm_magic.engine.quants import QUANTS, dequantize


def kernel_forward(path: Path, *, n_ctx: int = 256, n_slots: int = 4, **options) -> KernelForward:
    device.prepare()
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        return KernelForward(file, config, n_ctx, n_slots, **options)


def portable_forward(path, n_ctx=64, n_slots=2):
    device.prepare()
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        return Portable(file, config, n_ctx, n_slots)


def i32(*values) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1)


def evaluate(forward, ids, slot=0, at=0, want=None) -> np.ndarray:
    """Logits of all (or the wanted) rows of one step, repeated where they are too many for one."""
    n = len(ids)
    rows = np.arange(n, dtype=np.int32)
    batch = (i32(*ids), np.full(n, slot, np.int32), rows + at)
    want = rows if want is None else i32(*want)
    parts = [want[i : i + forward.max_wanted] for i in range(0, len(want), forward.max_wanted)]
    return np.concatenate([forward.step(*batch, part).logits.copy() for part in parts or [want]])


def summaries(forward, ids, want, top):
    """What a step over these ids in slot 0 says about the wanted rows besides their logits."""
    rows = np.arange(len(ids), dtype=np.int32)
    return forward.step(i32(*ids), 0 * rows, rows, i32(*want), top).summaries


def log_softmax(logits) -> np.ndarray:
    x = np.asarray(logits, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@dataclass
class Oracle:
    """Whole sequences in float64 on exactly dequantised weights; no code is the kernels'."""

    path: Path

    def __post_init__(self):
        with open_gguf(self.path) as file:
            self.config: Config = read_config(
                file.metadata, {n: t.shape for n, t in file.tensors.items()}
            )
            self.w = _weights(file)
        self.points: dict[tuple[str, int], np.ndarray] = {}  # of the last call of `logits`

    def norm(self, x, w):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config.norm_eps) * w

    def turn(self, x, rope, factors):
        """x: [n, heads, head_dim], position = row."""
        angle = np.arange(len(x))[:, None, None] * rope.inv_freq(factors)
        c, s, out = np.cos(angle), np.sin(angle), x.copy()
        turned = out[..., : rope.dim]
        if rope.pairs == "adjacent":
            a, b = x[..., 0 : rope.dim : 2], x[..., 1 : rope.dim : 2]
            turned[..., 0::2], turned[..., 1::2] = a * c - b * s, a * s + b * c
        else:
            half = rope.dim // 2
            a, b = x[..., :half], x[..., half : rope.dim]
            turned[..., :half], turned[..., half:] = a * c - b * s, a * s + b * c
        return out

    def attention(self, i, h):
        c, n = self.config, len(h)
        layer = c.layers[i]
        factors = self.w.get("rope_freqs.weight")
        heads = {}
        for name, count in (
            ("attn_q", c.n_heads),
            ("attn_k", c.n_kv_heads),
            ("attn_v", c.n_kv_heads),
        ):
            x = h @ self.w[_name(name, i)].T
            x = x + self.w.get(_name(f"{name}_bias", i), 0.0)
            x = x.reshape(n, count, c.head_dim)
            if layer.block.attention.qk_norm and name != "attn_v":
                x = self.norm(x, self.w[_name(f"{name}_norm", i)])
            x = x if name == "attn_v" else self.turn(x, layer.rope, factors)
            heads[name] = x
        self.points |= {
            (p, i): heads[w].reshape(n, -1)
            for p, w in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"))
        }
        k, v = (np.repeat(heads[x], c.n_heads // c.n_kv_heads, 1) for x in ("attn_k", "attn_v"))
        score = np.einsum("qhd,khd->hqk", heads["attn_q"], k) * c.attention_scale
        if c.attention_softcap:
            score = c.attention_softcap * np.tanh(score / c.attention_softcap)
        gap = np.arange(n)[:, None] - np.arange(n)
        score = np.where((gap >= 0) & (gap < (layer.window or n + 1)), score, -np.inf)
        p = np.exp(score - score.max(-1, keepdims=True))
        self.points["pattern", i] = p / p.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", self.points["pattern", i], v).reshape(n, -1)
        self.points["z", i] = out
        out = out @ self.w[_name("attn_output", i)].T
        return out + self.w.get(_name("attn_output_bias", i), 0.0)

    def logits(self, ids) -> np.ndarray:
        c, w = self.config, self.w
        x = w["token_embd.weight"][np.asarray(ids)] * c.embedding_scale
        for i, layer in enumerate(c.layers):
            attention, feed_forward = layer.block.parts

            def at(role, i=i):
                return w[_name(role, i)]

            self.points["resid_pre", i] = x
            h = self.attention(i, self.norm(x, at("attn_norm")))
            h = self.norm(h, at("post_attention_norm")) if attention.post else h
            self.points["attn_out", i] = h
            self.points["resid_mid", i] = x = x + h
            h = self.norm(x, at("ffn_norm"))
            gate, up_ = h @ at("ffn_gate").T, h @ at("ffn_up").T
            if feed_forward.activation == "silu":
                gate = gate / (1 + np.exp(-gate))
            else:
                gate = gate * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            h = (gate * up_) @ at("ffn_down").T
            h = self.norm(h, at("post_ffw_norm")) if feed_forward.post else h
            self.points["mlp_out", i] = h
            self.points["resid_post", i] = x = x + h
        out = self.points["normalized", c.n_layers - 1] = self.norm(x, w["output_norm.weight"])
        logits = out @ (w["token_embd.weight"] if c.tied else w["output.weight"]).T
        cap = c.logit_softcap
        return cap * np.tanh(logits / cap) if cap else logits


def _name(role: str, layer: int) -> str:
    return LAYER_WEIGHTS[role].format(i=layer)


def _weights(file: GGUF) -> dict[str, np.ndarray]:
    return {
        name: dequantize(info).reshape(info.shape).astype(np.float64)
        for name, info in file.tensors.items()
    }


# ----------------------------------------------------------------------------- tiles


def read_tiles(forward: KernelForward, index: int) -> np.ndarray:
    """Values of repacked matrix number `index`, float64 [tiles * 16, k]: the layout in numpy."""
    m = forward._layout.matrices[index]
    kind, k = QUANTS[m.tensor.type].tile, m.tensor.shape[1]
    blocks, size, head = up(k, 32) // 32, BLOCK_BYTES[kind], SUPER_BYTES.get(kind, 0)
    tile = blocks * size + up(blocks, 8) // 8 * head
    raw = forward._weights.bytes[m.at : m.at + m.tiles * tile].reshape(m.tiles, tile)
    out = np.zeros((m.tiles, 16, blocks * 32))
    at, top = 0, np.empty((m.tiles, 0), np.uint8)
    for b in range(blocks):
        if head and b % 8 == 0:
            top, at = raw[:, at : at + head], at + head
        block = np.ascontiguousarray(raw[:, at : at + size])
        out[:, :, b * 32 : b * 32 + 32] = _block(kind, block, np.ascontiguousarray(top))
        at += size
    return out.reshape(m.tiles * 16, -1)[:, :k]


def _block(kind, block, top):
    """[tiles, block bytes] -> float64 [tiles, 16 outputs, 32 inputs]."""
    n = len(block)
    if kind in ("F32", "F16"):
        x = block.view({"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float64)
        return x.reshape(n, 32, 16).transpose(0, 2, 1)
    if kind == "BF16":
        x = (block.view("<u2").astype(np.uint32) << 16).view("<f4").astype(np.float64)
        return x.reshape(n, 32, 16).transpose(0, 2, 1)

    def half(raw, at):
        return np.ascontiguousarray(raw[:, at : at + 32]).view("<f2").astype(np.float64)[:, :, None]

    at, minimum = 32, np.zeros((n, 16, 1))
    if kind in ("Q4_K", "Q5_K"):
        d = half(top, 0) * block[:, :16, None]
        minimum = -half(top, 32) * block[:, 16:32, None]
    elif kind == "Q2_K":
        pair = block[:, :32].reshape(n, 2, 16).transpose(0, 2, 1)
        d = half(top, 0) * np.repeat(pair & 15, 16, axis=2)
        minimum = -half(top, 32) * np.repeat(pair >> 4, 16, axis=2)
    elif kind == "SCALED":
        pair = block[:, :32].view(np.int8).reshape(n, 2, 16).transpose(0, 2, 1)
        d = top.view("<f4").astype(np.float64)[:, :, None] * np.repeat(pair, 16, axis=2)
    elif kind == "IQ4_XS":
        d, at = half(top, 0) * block[:, :16].view(np.int8)[:, :, None], 16
    elif kind == "MXFP4":
        d, at = 2.0 ** (block[:, :16, None].astype(np.float64) - 128), 16
    elif kind in ("Q6_K", "Q3_K"):
        pair = block[:, :32].view(np.int8).reshape(n, 2, 16).transpose(0, 2, 1)
        d = half(top, 0) * np.repeat(pair, 16, axis=2)
    else:
        d = half(block, 0)
        if kind in ("Q4_1", "Q5_1"):
            minimum, at = half(block, 32), 64
    high = np.zeros((n, 16, 32), np.uint8)
    if kind in ("Q5_0", "Q5_1", "Q5_K"):
        bits = block[:, at : at + 64].reshape(n, 16, 4)
        high = _grouped([(bits >> j & 1) << 4 for j in range(8)])
        at += 64
    if kind == "Q6_K":
        pairs = block[:, at : at + 128].reshape(n, 2, 16, 4)
        high = _grouped([(pairs[:, j // 4] >> 2 * (j % 4) & 3) << 4 for j in range(8)])
        at += 128
    if kind == "Q3_K":
        bits = block[:, at : at + 64].reshape(n, 16, 4)
        high = _grouped([(bits >> j & 1) << 2 for j in range(8)])
        at += 64
    rest = block[:, at:].reshape(n, -1, 16, 4)
    if kind in ("Q2_K", "Q3_K"):
        q = _grouped([rest[:, j // 4] >> 2 * (j % 4) & 3 for j in range(8)])
    elif kind in ("Q8_0", "SCALED"):
        q = _grouped([rest[:, j] for j in range(8)])
    else:
        q = _grouped([rest[:, j % 4] >> (4 if j >= 4 else 0) & 15 for j in range(8)])
    if kind in ("IQ4_NL", "IQ4_XS", "MXFP4"):
        q = (lowbit.E2M1 if kind == "MXFP4" else lowbit.IQ4)[q]
    offset = {"Q4_0": 8, "Q5_0": 16, "Q6_K": 32, "Q8_0": 128, "Q3_K": 4, "SCALED": 128}.get(kind, 0)
    return d * ((q | high).astype(np.float64) - offset) + minimum


def _grouped(groups):
    """Eight [tiles, 16, 4] -> [tiles, 16, 32]."""
    return np.concatenate(groups, axis=2)
