"""Tokens a second through the loopback server, beside those of the bare engine in the same run.

    python -m llm_magic.bench.served [MODEL] [--tokens N] [--rounds N]

The client is a process of its own that reads the stream and its JSON. Rounds alternate, and each
has its ratio, so what else the machine does falls on both.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO
from urllib.parse import urlsplit

from ..hub import hub
from ..llm import LLM
from ..served import LocalServer

QUESTION = "Write a long story about a lighthouse keeper."


def ask(url: str, token: str, tokens: int) -> float:
    """Tokens a second of one streamed answer, from the first to the last piece of text."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
    body = {
        "messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": tokens,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request("POST", f"{parts.path}/chat/completions", json.dumps(body), headers)
    times, count = [], 0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if any(choice["delta"].get("content") for choice in chunk["choices"]):
            times.append(time.perf_counter())
        if usage := chunk.get("usage"):
            count = usage["completion_tokens"]
    connection.close()
    return (count - 1) / (times[-1] - times[0])


def bare(llm: LLM, tokens: int) -> float:
    """The same of a stream in this process."""
    times, count = [], 0
    for event in llm.stream([{"role": "user", "content": QUESTION}], temperature=0.0,
                            repeat_penalty=1.0, max_tokens=tokens):  # fmt: skip
        if pieces := getattr(event, "tokens", ()):
            times.append(time.perf_counter())
            count += len(pieces)
    return (count - 1) / (times[-1] - times[0])


def compare(llm: LLM, server: LocalServer, tokens: int, rounds: int) -> list[tuple[float, float]]:
    """(bare, served) of each round. The first to be measured changes with every round."""
    command = [sys.executable, "-m", __spec__.name, "--client", server.url, str(tokens)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None

        def through(to: IO[str], back: IO[str]) -> float:
            to.write(server.token + "\n")  # not on its command line, which others can see
            to.flush()
            return float(back.readline())

        found = []
        for i in range(-1, rounds):  # the first one warms up
            if i % 2:
                served = through(client.stdin, client.stdout)
                found.append((bare(llm, tokens), served))
            else:
                here = bare(llm, tokens)
                found.append((here, through(client.stdin, client.stdout)))
        client.stdin.close()
    return found[1:]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m llm_magic.bench.served", description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.client:
        for line in sys.stdin:
            print(ask(given.client[0], line.strip(), int(given.client[1])), flush=True)
        return 0
    llm = hub.load(given.model)
    server = llm.serve()
    try:
        found = compare(llm, server, given.tokens, given.rounds)
    finally:
        server.stop()
        llm.unload()
    for here, there in found:
        print(f"bare {here:7.1f} tok/s   served {there:7.1f} tok/s   ratio {there / here:.3f}")
    best = max(there for _, there in found) / max(here for here, _ in found)
    middle = statistics.median(there / here for here, there in found)
    print(f"ratio: median of the rounds {middle:.3f}, of the best rounds {best:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
