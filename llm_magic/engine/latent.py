"""The matrix of latent attention that makes keys and values, in the two forms that files have.

Comes in: a Config whose attention is latent, and a file's tensors. Goes out: one matrix
[heads * (plain + values), rank], each head's key rows before its value rows. Old files hold it so;
newer ones hold the key rows transposed, head by head, which no row of blocks can be taken from:
they are decoded to float32.
"""

from collections.abc import Mapping

import numpy as np

from .blocks import Config
from .gguf import TensorInfo
from .quants import dequantize


def expansion(config: Config, tensors: Mapping[str, TensorInfo], layer: int) -> TensorInfo:
    """The matrix of one layer, as it lies in the file or made of its two halves."""
    if "attn_kv_b" in config.layers[layer].block.roles:
        return config.source("attn_kv_b", layer).of(tensors)
    keys, values = (config.source(f"attn_{m}_b", layer).of(tensors) for m in "kv")
    made = np.concatenate([dequantize(keys).transpose(0, 2, 1), dequantize(values)], axis=1)
    made = np.ascontiguousarray(made.reshape(-1, made.shape[-1]), np.float32)
    return TensorInfo(
        name=keys.name,
        shape=made.shape,
        type=0,
        type_name="F32",
        data=made.view(np.uint8).reshape(-1),
        offset=keys.offset,
        nbytes=made.nbytes,
        path=keys.path,
    )
