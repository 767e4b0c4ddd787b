"""CPU kernels: C sources (c/), compiled by tinygrad's own compiler, and what binds them."""

from .forward import KernelForward, supports

__all__ = ["KernelForward", "supports"]
