"""Control vectors as GGUF files, in the form of llama.cpp and repeng.

Architecture `controlvector`; `controlvector.model_hint` names the model's architecture; a float32
tensor `direction.{block}` [dim] for each block.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import LLMError, RequestError
from .forward import F32
from .gguf import open_gguf
from .quants import dequantize

ARCHITECTURE = "controlvector"
PREFIX = "direction."


def read(path: Path) -> tuple[dict[int, F32], str]:
    """(block -> float32 [dim], the architecture of its model)

    Raises:
        RequestError: The file cannot be read or holds no control vector.
    """
    try:
        with open_gguf(path) as file:
            found = file.metadata.get("general.architecture")
            if found != ARCHITECTURE:
                raise RequestError(f"{path.name} holds a {found}, no control vector")
            directions = {
                int(name.removeprefix(PREFIX)): dequantize(info).reshape(-1).copy()
                for name, info in file.tensors.items()
                if name.startswith(PREFIX) and name.removeprefix(PREFIX).isdigit()
            }
            hint = str(file.metadata.get(f"{ARCHITECTURE}.model_hint", ""))
    except RequestError:
        raise
    except (LLMError, OSError) as e:
        raise RequestError(f"{path} cannot be read as a control vector: {e}") from e
    if not directions:
        raise RequestError(f"{path.name} has no tensor named like 'direction.1'")
    if len({len(vector) for vector in directions.values()}) > 1:
        raise RequestError(f"{path.name} has directions of different widths")
    return dict(sorted(directions.items())), hint


def write(path: Path, directions: Mapping[int, F32], model: str) -> None:
    """Write a control vector; llama.cpp reads blocks from 1 on.

    Raises:
        RequestError: There is nothing to write, or block 0 has a direction.
    """
    import gguf

    if not directions:
        raise RequestError("a control vector without directions cannot be saved")
    if 0 in directions:
        raise RequestError("the file's form has no direction for block 0; leave it out")
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_string(f"{ARCHITECTURE}.model_hint", model)
    writer.add_uint32(f"{ARCHITECTURE}.layer_count", len(directions))
    for block, vector in sorted(directions.items()):
        writer.add_tensor(f"{PREFIX}{block}", np.ascontiguousarray(vector, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
