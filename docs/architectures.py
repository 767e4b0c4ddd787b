"""The reference of model files (docs/reference/models.md): architectures and types, with proofs.

Architectures come from the table `ARCHITECTURES`, types of tensors from `QUANTS`; what each is
compared with comes from the cases and stored references of the tests. docs/tree.py writes the page.
"""

import sys
from pathlib import Path

import numpy as np

from llm_magic.engine.arch import ARCHITECTURES, RECURRENT, Architecture
from llm_magic.engine.blocks import Experts
from llm_magic.engine.quants import QUANTS, QuantType

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS))
from support.families import CASES  # noqa: E402

HEAD = """# Model files

Made from the engine's tables by `docs/tree.py`. The name of an architecture is what a GGUF file
calls it (`general.architecture`); `%llm status` shows it.

## Architectures

*transformers*: a small model with random weights in float32 gives the logits that transformers
computes, every one within 0.001 (`tests/engine/test_architectures.py`; the references are in
`tests/data/architectures`). *llama.cpp*: on the same file the next token is llama.cpp's, and the
log-probabilities differ by less than 0.03 nats, which is what its float16 cache is off by. Both
hold for the portable path and for the kernels.

| architecture | models | a layer | compared with |
| --- | --- | --- | --- |"""

ANGLES = """Angles: plain, linear, YaRN, longrope and the factors of Llama 3.1 (`rope_freqs`), of
whole heads or of a part; NTK-aware scaling is another base."""
TYPES = """Every type is decoded to exactly the float32 values of `gguf.quants.dequantize`, and may
be mixed with others in one file (`tests/unit/test_quants.py`). The kernels compute with a type's
own blocks, or with those it is rewritten to at load, which loses nothing."""
NORMS = {"rms": "RMS norm", "layer": "layer norm", None: "no norm"}


def page() -> str:
    """The whole page as Markdown."""
    known = set(np.load(TESTS / "data" / "architectures" / "logits.npz").files)
    lines = [HEAD]
    for name, row in sorted(ARCHITECTURES.items()):
        cases = {case for case, made in CASES.items() if made.arch == name}
        proofs = ["transformers"] if cases & known else []
        proofs += ["llama.cpp"] if any(not CASES[case].peer for case in cases) else []
        lines.append(f"| `{name}` | {row.models} | {_layer(row)} | {', '.join(proofs)} |")
    recurrent = ", ".join(f"`{name}`" for name in sorted(RECURRENT))
    lines += [
        "",
        "Recurrent models keep a state instead of a KV cache and are refused:",
        recurrent + ".",
    ]
    lines += ["", ANGLES, ""]
    return "\n".join([*lines, *_types()]) + "\n"


def _layer(row: Architecture) -> str:
    attention, feed_forward = row.parts
    said = [NORMS[attention.norm]]
    if attention.post:
        said.append("norms behind the parts")
    if attention.qk_norm:
        said.append("norms of queries and keys")
    said.append(f"{'gated ' if feed_forward.gated else ''}{feed_forward.activation}")
    said += ["experts"] if isinstance(feed_forward, Experts) else []
    said += ["sinks"] if attention.sinks else []
    said += ["latent attention"] if attention.latent else []
    said += ["parallel parts"] if row.parallel else []
    said += ["learned positions"] if row.learned_positions else []
    return ", ".join(said)


def _types() -> list[str]:
    columns = ["type", "bits of a weight in the file", "the kernels' blocks"]
    lines = ["## Types of tensors", "", TYPES, "", f"| {' | '.join(columns)} |"]
    lines.append("| --- | --- | --- |")
    return lines + [_type(quant) for quant in QUANTS.values()]


def _type(quant: QuantType) -> str:
    bits = f"{8 * quant.bytes / quant.block:g}"
    own = "its own" if quant.rewrite is None else f"rewritten as {quant.tile}"
    return f"| {quant.name} | {bits} | {own} |"
