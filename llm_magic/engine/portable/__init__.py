"""The forward pass in plain tinygrad operations, on any device: the reference for the kernels."""
