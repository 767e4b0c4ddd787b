"""A real llama.cpp server (xllamacpp) in a process of its own, with the `/slots` route.

It prints its address and runs until its standard input is closed, so it cannot outlive a test run.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CTX = 2048


def main(model: str, *flags: str) -> None:
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model
    p.n_parallel, p.n_ctx, p.n_gpu_layers = 2, CTX, 0
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    p.warmup = p.fit_params = False
    p.hostnames, p.port = ["127.0.0.1"], 0
    p.endpoint_slots = True
    if "embed" in flags:
        p.embedding = True
        p.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(p)
    print(f"address {server.listening_address}", flush=True)
    sys.stdin.read()


class Running:
    """A server that runs; `url` is its base address."""

    def __init__(self, model: Path, *flags: str) -> None:
        command = [sys.executable, __file__, str(model), *flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        address = ""
        while not address:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the llama.cpp server did not start")
            if line.startswith("address "):
                address = line.split()[1]
        self.url = f"{address}/v1"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()


@contextmanager
def llama_server(model: Path, *flags: str) -> Iterator[Running]:
    running = Running(model, *flags)
    try:
        yield running
    finally:
        running.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
