"""CPU kernels: C sources and the Python that binds them as tinygrad custom kernels."""
