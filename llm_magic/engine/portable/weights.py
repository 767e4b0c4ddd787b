"""Weights of the portable path: decoded from the file; those multiplied together are stacked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..blocks import VECTORS, Block, Config
from ..forward import F32
from ..gguf import GGUF, TensorInfo
from ..latent import expansion
from ..quants import decode, dequantize
from .graph import LANES
from .programs import Array

Say = Callable[[str, int, int], None]  # (stage, done, total)
PIECE = 4096  # rows of a matrix that are decoded at once while loading: bounds the memory for it


@dataclass(frozen=True, slots=True)
class Weights:
    """output, layers: name -> array, the same names in the layers of one block. Matrices lie in
    panels, see graph.product."""

    output: dict[str, Array]
    layers: list[dict[str, Array]]

    def all(self) -> list[Array]:
        return [array for w in (self.output, *self.layers) for array in w.values()]


# Our name -> roles in the file whose rows follow each other in it.
_STACKED = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_qkv_bias": ("attn_q_bias", "attn_k_bias", "attn_v_bias"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
    "ffn_gate_up_bias": ("ffn_gate_bias", "ffn_up_bias"),
    "ffn_expert_gate_up": ("ffn_expert_gate", "ffn_expert_up"),
    "ffn_expert_gate_up_bias": ("ffn_expert_gate_bias", "ffn_expert_up_bias"),
    "ffn_shared_gate_up": ("ffn_shared_gate", "ffn_shared_up"),
}


# Vectors that are added to a whole product, whose last panel is filled up.
_FILLED = (*("attn_q_bias", "ffn_gate_bias", "ffn_up_bias", "ffn_expert_gate_bias", "output_bias"),)


def _stacked(block: Block) -> dict[str, tuple[str, ...]]:
    """Our name -> roles of every weight of a block."""
    names = {name: parts for name, parts in _STACKED.items() if set(parts) <= set(block.roles)}
    done = {part for parts in names.values() for part in parts}
    names |= {role: (role,) for role in block.roles if role not in done}
    if "attn_v_b" in names:  # the two halves of one matrix
        del names["attn_v_b"]
        names["attn_kv_b"] = names.pop("attn_k_b")
    return names


def load_weights(gguf: GGUF, config: Config, device: str, say: Say) -> Weights:
    def load(roles: tuple[str, ...], layer: int | None = None) -> Array:
        infos = [config.source(role, layer).of(gguf.tensors) for role in roles]
        if roles[0] in VECTORS:
            infos = [info.part(0, (info.size,)) for info in infos]
        if layer is not None and roles[0] in ("attn_kv_b", "attn_k_b"):
            return _load([expansion(config, gguf.tensors, layer)], device, fill=False)
        if roles[0] == "ffn_expert_down":
            return _load_side_by_side(infos[0], device)
        infos = [
            info.part(0, (info.size // info.shape[-1], info.shape[-1])) if len(info.shape) == 3
            else info for info in infos
        ]  # fmt: skip
        return _load(infos, device, fill=roles[0] in _FILLED)

    layers: list[dict[str, Array]] = []
    for i, layer in enumerate(config.layers):
        say("load", i, config.n_layers + 1)
        layers.append({name: load(roles, i) for name, roles in _stacked(layer.block).items()})
    say("load", config.n_layers, config.n_layers + 1)
    output = {"output_norm": load(("output_norm",))}
    output["output"] = load(("embedding" if config.tied else "output",))
    output |= {role: load((role,)) for role in ("output_norm_bias", "output_bias")
               if role in config.extras}  # fmt: skip
    say("load", config.n_layers + 1, config.n_layers + 1)
    return Weights(output, layers)


def _load(infos: list[TensorInfo], device: str, fill: bool) -> Array:
    """Tensors with rows under each other, decoded: a vector as it is, a matrix in panels.

    fill: a vector gets zeros up to a multiple of LANES.
    """
    rows, width = sum(info.shape[0] for info in infos), infos[0].shape[-1]
    if len(infos[0].shape) == 1:
        vector = np.concatenate([dequantize(info) for info in infos])
        if fill:
            vector = np.pad(vector, (0, -len(vector) % LANES))
        array = Array(vector.shape, device)
        array.write(vector)
        return array
    array = Array((-(-rows // LANES), width, LANES), device)
    panels = array.host if array.host is not None else np.zeros(array.shape, np.float32)
    for at, values in _pieces(infos):
        whole = len(values) // LANES * LANES
        panels[at // LANES : (at + whole) // LANES] = (
            values[:whole].reshape(-1, LANES, width).transpose(0, 2, 1)
        )
        if whole < len(values):
            panels[-1, :, : len(values) - whole] = values[whole:].T
    if array.host is None:
        array.write(panels)
    return array


def _load_side_by_side(info: TensorInfo, device: str) -> Array:
    """Matrices of several experts [experts, outputs, inputs] as one of experts * inputs inputs."""
    experts, outputs, inputs = info.shape
    array = Array((-(-outputs // LANES), experts * inputs, LANES), device)
    panels = array.host if array.host is not None else np.zeros(array.shape, np.float32)
    for e in range(experts):
        values = np.zeros((len(panels) * LANES, inputs), np.float32)
        values[:outputs] = dequantize(info.part(e * outputs, (outputs, inputs)))
        own = values.reshape(-1, LANES, inputs).transpose(0, 2, 1)
        panels[:, e * inputs : (e + 1) * inputs] = own
    if array.host is None:
        array.write(panels)
    return array


def _pieces(infos: list[TensorInfo]) -> Iterator[tuple[int, F32]]:
    """(index of the first row, rows) from top to bottom; all but the last in whole panels."""
    if len(infos) > 1:
        yield 0, np.concatenate([dequantize(info) for info in infos])
        return
    (info,) = infos
    data = info.load().reshape(info.shape[0], -1)
    for at in range(0, info.shape[0], PIECE):
        part = data[at : at + PIECE]
        yield at, decode(info.type, part.reshape(-1)).reshape(len(part), info.shape[1])
