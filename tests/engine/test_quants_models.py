"""The tensors of the real models, dequantised as gguf.quants does it, bit for bit."""

from pathlib import Path

import gguf
import numpy as np
import pytest

from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.quants import check_supported, dequantize


def oracle(kind: str, raw: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind]).reshape(-1)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.model
def test_smollm2_equals_the_reference(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as g:
        check_supported(g)
        for info in list(g.tensors.values())[::9]:
            raw = info.data.reshape(*info.shape[:-1], -1)
            assert same_bits(dequantize(info).reshape(-1), oracle(info.type_name, raw))


@pytest.mark.gemma
def test_gemma3_equals_the_reference(gemma3_path: Path) -> None:
    with open_gguf(gemma3_path) as g:
        check_supported(g)
        assert {"Q5_0", "Q8_0", "Q4_K", "Q6_K"} < {t.type_name for t in g.tensors.values()}
        for info in list(g.tensors.values())[1::7]:
            raw = info.data.reshape(*info.shape[:-1], -1)
            assert same_bits(dequantize(info).reshape(-1), oracle(info.type_name, raw))
