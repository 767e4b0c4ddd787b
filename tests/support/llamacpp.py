"""llama.cpp's own C interface, out of the library that xllamacpp brings.

Its Python binding has no call for control vectors; the library exports the C functions. Structures
of parameters are passed as they come from the library's own defaults, so their fields need not be
known: a larger copy on the stack does no harm.
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

Opaque = type("Opaque", (ctypes.Structure,), {"_fields_": [("bytes", ctypes.c_byte * 1024)]})
_Silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _Silent(lambda level, text, data: None)


def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("xllamacpp*.so"))
    lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    pointers = ("model_load_from_file", "init_from_model")
    for name in pointers:
        getattr(lib, f"llama_{name}").restype = ctypes.c_void_p
    for name in ("model_default_params", "context_default_params", "batch_get_one"):
        getattr(lib, f"llama_{name}").restype = Opaque
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_log_set(_silent, None)
    return lib


def last_logits(
    path: Path, ids: Sequence[int], n_vocab: int, vectors: np.ndarray | None = None
) -> np.ndarray:
    """The logits behind the last id, float32 [n_vocab].

    Args:
        path: The model's file.
        ids: At most 512.
        n_vocab: Entries of the vocabulary.
        vectors: Float32 [layers - 1, dim]: what is added behind layer 1, 2 and so on.
    """
    lib = _library()
    lib.llama_backend_init()
    model = ctypes.c_void_p(
        lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    )
    context = ctypes.c_void_p(lib.llama_init_from_model(model, lib.llama_context_default_params()))
    assert model
    assert context
    if vectors is not None:
        data = np.ascontiguousarray(vectors, np.float32)
        found = lib.llama_set_adapter_cvec(
            context, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.size),
            ctypes.c_int(data.shape[1]), ctypes.c_int(1), ctypes.c_int(len(data)),
        )  # fmt: skip
        assert found == 0
    tokens = (ctypes.c_int32 * len(ids))(*ids)
    assert lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(ids))) == 0
    row = lib.llama_get_logits_ith(context, -1)
    logits = np.ctypeslib.as_array(row, (n_vocab,)).copy()
    lib.llama_free(context)
    lib.llama_model_free(model)
    return logits
