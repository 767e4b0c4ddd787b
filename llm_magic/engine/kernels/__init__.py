"""CPU kernels: C sources (c/), compiled by tinygrad's own compiler, and their Python bindings.

In reading order: forward.py (the `Forward`), layout.py and c/model.h (the memory layout),
c/step.h (the pass) and its phases c/rows.h, c/heads.h, c/products.h; under them c/acts.h and
c/weights.h (activations and weights as the products read them), c/matmul.h, c/attention.h;
c/summary.h, c/pack.h (repacking at load); c/team.h and team.py (threads); targets.py and c/isa_*.h
(variants); memory.py. c/entry.c ties them together.

A block type is a row of `quants.QUANTS`, which names its tile. A new kind of tile is a row in
`layout.KINDS` with its sizes, its case in c/weights.h (values) and c/matmul.h (integers of a
group), and a function in c/pack.h. The tests take their list from `KINDS`.

A new instruction set is a header c/isa_NAME.h and a row in `targets.TARGETS`.

LLM_MAGIC_KERNEL forces a variant: avx512vnni, avx2vnni, avx2, neon, plain.
"""

from .forward import KernelForward, need, supports

__all__ = ["KernelForward", "need", "supports"]
