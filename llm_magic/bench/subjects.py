"""The engines under test, each as it is used: ours, and those of llama.cpp and transformers.

A subject takes a GGUF file, a number of threads and prompts as token ids, and returns one number
per call. It lives in a process of its own (subject_process.py).

What is equal: the file, threads, context, prompts, the number of tokens, greedy choice, no cached
prefix, end tokens that do not end, a KV cache of 16 bits a number (ours integers, theirs floats).
What cannot be is in `NOTES`.
"""

import inspect
import os
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ..errors import RequestError
from . import labels
from .report import OURS

Ids = Sequence[int]

CTX = 4096  # positions of each stream
STREAMS = 4  # streams that a subject must be able to hold
SLOW_TOKENS = 16  # enough of a subject that needs a tenth of a second for each
SLOW_SECONDS = 3.0  # of decoding by a subject that needs longer
SLOW_ROUNDS = 2  # that count, of a subject whose rounds are long


class Subject(Protocol):
    """An engine. Speeds are in tokens a second; what a subject cannot do raises RequestError."""

    def __init__(self, path: str, threads: int) -> None: ...

    def prepare(self) -> None:
        """Import what it needs, so that memory can be looked at before the model is there."""

    def load(self) -> None: ...

    def prefill(self, ids: Ids) -> float:
        """Evaluating the prompt up to its first token."""

    def decode(self, ids: Ids, n: int) -> float:
        """n tokens after the prompt; the first one comes with the prompt and does not count."""

    def streams(self, prompts: Sequence[Ids], n: int) -> float:
        """All prompts at once, n tokens each: tokens of all by the time of all."""


def together(work: Sequence[Callable[[], int]]) -> float:
    """Tokens a second of functions that run at once and return how many tokens they made."""
    counts = [0] * len(work)
    began, ended = [0.0] * len(work), [0.0] * len(work)
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def client(i: int) -> None:
        start.wait()
        began[i] = time.perf_counter()
        try:
            counts[i] = work[i]()
        except BaseException as e:
            errors.append(e)
        ended[i] = time.perf_counter()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts) / (max(ended) - min(began))


def exactly(n: int, made: int) -> int:
    """n, or RequestError where a subject ended early: its numbers would not be comparable."""
    if made != n:
        raise RequestError(f"made {made} tokens instead of {n}")
    return n


class Ours:
    """This engine through its scheduler, which every cell, widget and request goes through."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._local: Any = None
        self._empty = 0  # bytes with nothing in the cache

    def prepare(self) -> None:
        import_module("llm_magic.providers.local")
        import_module("llm_magic.engine.load")
        from ..engine import device

        device.prepare()

    def load(self) -> None:
        from ..providers.local import Local

        self._local = Local("bench", Path(self.path), CTX, STREAMS, self.threads)
        self._local.wait(lambda progress: None)
        self._empty = self._local.engine.loaded().forward.memory_bytes

    def _run(self, ids: Ids, n: int, top: int = 0, guess: bool = False) -> tuple[float, float]:
        """(prefill, decode) in tokens a second."""
        from ..engine.serving.job import Job
        from ..events import Finish, Sampling

        settings = Sampling(temperature=0.0, max_tokens=n)
        job = Job(tuple(ids), settings, top=top, reuse=False, guess=guess, end_ids=frozenset())
        *_, finish = self._local.engine.scheduler.submit(job)
        assert isinstance(finish, Finish)
        exactly(n, finish.usage.completion)
        return finish.timings.prefill_tps, finish.timings.decode_tps

    def prefill(self, ids: Ids) -> float:
        return self._run(ids, 1)[0]

    def decode(self, ids: Ids, n: int) -> float:
        return self._run(ids, n)[1]

    def streams(self, prompts: Sequence[Ids], n: int) -> float:
        def one(ids: Ids) -> Callable[[], int]:
            def run() -> int:
                self._run(ids, n)
                return n

            return run

        return together([one(ids) for ids in prompts])

    def repeated(self, ids: Ids, n: int) -> float:
        """`decode` behind these tokens said four times, without guesses."""
        return self._run([*ids] * 4, n)[1]

    def guessed(self, ids: Ids, n: int) -> float:
        """The same with guesses at the next tokens: in all other tasks there are none."""
        return self._run([*ids] * 4, n, guess=True)[1]

    def logprobs(self, ids: Ids, n: int) -> float:
        """`decode` with five alternatives recorded at each token."""
        return self._run(ids, n, top=5)[1]

    def labels(self, ids: Ids, n: int) -> float:
        return labels.ours(self._local, ids, n)

    def busy(self, ids: Ids, n: int) -> float:
        """`decode` while another thread never lets go of the interpreter of its own accord."""
        done: list[float] = []
        thread = threading.Thread(target=lambda: done.append(self.decode(ids, n)))
        thread.start()
        x = 0
        while thread.is_alive():
            for i in range(1000):
                x += i
        if not done:
            raise RequestError("the generation beside the loop failed")
        return done[0]

    def outside(self, ids: Ids, n: int) -> float:
        """Milliseconds a token that are not spent in compiled code: scheduler, sampler, reader."""
        forward = self._local.engine.loaded().forward
        name = "_call" if hasattr(forward, "_call") else "step"
        call, inside = getattr(forward, name), []

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                inside.append((start, time.perf_counter()))

        setattr(forward, name, timed)
        try:
            first, last = self._span(ids, n)
        finally:
            setattr(forward, name, call)
        # What ran between the first and the last token, and nothing of the prompt.
        busy = sum(end - start for start, end in inside if start >= first and end <= last)
        return (last - first - busy) / (n - 1) * 1e3

    def _span(self, ids: Ids, n: int) -> tuple[float, float]:
        """When the first and the last token came, on the clock of `perf_counter`."""
        from ..engine.serving.job import Job
        from ..events import Sampling, Token

        settings = Sampling(temperature=0.0, max_tokens=n)
        job = Job(tuple(ids), settings, reuse=False, guess=False, end_ids=frozenset())
        submitted = time.perf_counter()
        at = [i.at for i in self._local.engine.scheduler.submit(job) if isinstance(i, Token)]
        exactly(n, len(at))
        return submitted + at[0], submitted + at[-1]

    def kv_bytes(self) -> float:
        """Bytes of the KV cache that have been filled."""
        return float(self._local.engine.loaded().forward.memory_bytes - self._empty)


class Xllamacpp:
    """llama.cpp by its prebuilt wheel; the times are taken inside the library."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._server: Any = None

    def prepare(self) -> None:
        import xllamacpp

        assert xllamacpp

    def load(self) -> None:
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = self.path
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = self.threads
        p.n_parallel = STREAMS
        p.n_ctx = CTX * STREAMS
        p.n_gpu_layers = 0
        p.warmup = False  # every task is rehearsed; a first token need not wait for it
        p.fit_params = False
        # No copies of caches for prompts that may come back: ours makes none here, either.
        p.cache_ram_mib = p.n_ctx_checkpoints = 0
        p.cache_idle_slots = p.cache_prompt = False
        self._server = xllamacpp.Server(p)

    def _run(self, ids: Ids, n: int) -> dict[str, float]:
        asked = {"prompt": list(ids), "n_predict": n, "ignore_eos": True, "cache_prompt": False,
                 "temperature": 0}  # fmt: skip
        answer = self._server.handle_completions(asked)
        if "timings" not in answer:
            raise RequestError(str(answer)[:200])
        timings: dict[str, float] = answer["timings"]
        exactly(len(ids), int(timings["prompt_n"]))
        exactly(n, int(timings["predicted_n"]))
        return timings

    def prefill(self, ids: Ids) -> float:
        return self._run(ids, 1)["prompt_per_second"]

    def decode(self, ids: Ids, n: int) -> float:
        # Its own rate counts the first token, which the prompt's evaluation has paid for.
        return (n - 1) / self._run(ids, n)["predicted_ms"] * 1e3

    def streams(self, prompts: Sequence[Ids], n: int) -> float:
        def one(ids: Ids) -> Callable[[], int]:
            return lambda: int(self._run(ids, n)["predicted_n"])

        return together([one(ids) for ids in prompts])

    def labels(self, ids: Ids, n: int) -> float:
        ask = self._server.handle_completions
        return max(labels.of_server(ask, ids, n, clients) for clients in (1, STREAMS))


class LlamaCppPython:
    """llama.cpp by llama-cpp-python (compiled on this machine), evaluated token by token."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._llama: Any = None

    def prepare(self) -> None:
        import llama_cpp  # type: ignore[import-not-found]

        assert llama_cpp

    def load(self) -> None:
        from llama_cpp import Llama

        self._llama = Llama(
            self.path, n_ctx=CTX, n_threads=self.threads, n_threads_batch=self.threads,
            n_batch=2048, n_ubatch=512, n_gpu_layers=0, verbose=False,
        )  # fmt: skip

    def _eval(self, ids: Ids) -> float:
        start = time.perf_counter()
        self._llama.eval(list(ids))
        return time.perf_counter() - start

    def prefill(self, ids: Ids) -> float:
        self._llama.reset()
        return len(ids) / self._eval(ids)

    def decode(self, ids: Ids, n: int) -> float:
        self._llama.reset()
        self._eval(ids)
        following = [ids[i % len(ids)] for i in range(n - 1)]
        return len(following) / sum(self._eval([i]) for i in following)

    def streams(self, prompts: Sequence[Ids], n: int) -> float:
        if len(prompts) > 1:
            raise RequestError("llama-cpp-python has one sequence per object")
        self._llama.reset()
        start = time.perf_counter()
        self._eval(prompts[0])
        for i in range(n - 1):
            self._eval([prompts[0][i % len(prompts[0])]])
        return n / (time.perf_counter() - start)


class Transformers:
    """transformers on torch's CPU path, from the same file."""

    dtype = "bfloat16"

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._model: Any = None
        self._torch: Any = None
        self._past = ""  # what its forward pass calls the cache

    def prepare(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # the file is here: nothing to ask anybody about it
        import torch  # type: ignore[import-not-found]
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

        assert AutoModelForCausalLM
        torch.set_num_threads(self.threads)
        self._torch = torch

    def load(self) -> None:
        from transformers import AutoModelForCausalLM

        self.prepare()
        path = Path(self.path)
        dtype = getattr(self._torch, self.dtype)
        self._model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=dtype
        ).eval()
        known = inspect.signature(self._model.forward).parameters
        self._past = "cache" if "cache" in known else "past_key_values"  # before 5.2x

    def _cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._model.config)

    def _eval(self, ids: Ids, cache: Any) -> float:
        """Seconds for these tokens, which the cache takes in."""
        start = time.perf_counter()
        with self._torch.inference_mode():
            tensor = self._torch.tensor([list(ids)])
            self._model(tensor, **{self._past: cache}, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start

    def prefill(self, ids: Ids) -> float:
        return len(ids) / self._eval(ids, self._cache())

    def decode(self, ids: Ids, n: int) -> float:
        cache, seconds, made = self._cache(), 0.0, 0
        self._eval(ids, cache)
        while made < min(n, SLOW_TOKENS) and (seconds < SLOW_SECONDS or made < 2):
            seconds += self._eval([ids[made % len(ids)]], cache)
            made += 1
        return made / seconds

    def streams(self, prompts: Sequence[Ids], n: int) -> float:
        raise RequestError("transformers has no scheduler for single requests")


class TransformersFloat32(Transformers):
    """The same in 32 bits: exact, and more to read."""

    dtype = "float32"


SUBJECTS: dict[str, type[Subject]] = {
    OURS: Ours,
    "xllamacpp": Xllamacpp,
    "llama-cpp-python": LlamaCppPython,
    "transformers": Transformers,
    "transformers-f32": TransformersFloat32,
}
PEERS = tuple(name for name in SUBJECTS if name != OURS)
# They convert the file at load, which takes up to a minute and says nothing about a start, and know
# no streams: only their evaluation of tokens is compared.
EVALUATORS = frozenset({"transformers", "transformers-f32"})
MODULES = {
    "xllamacpp": "xllamacpp",
    "llama-cpp-python": "llama_cpp",
    "transformers": "transformers",
    "transformers-f32": "transformers",
}
NOTES = {
    "xllamacpp": "xllamacpp: a prebuilt wheel, its server's own timings; it fills the KV cache of"
    f" {STREAMS} streams of {CTX} tokens at load, ours grows as it is used",
    "llama-cpp-python": "llama-cpp-python: evaluation alone, without choosing a token, and one"
    " stream only",
    "transformers": "transformers: weights and cache in bfloat16, which rounds the file's weights;"
    f" evaluation alone, {SLOW_TOKENS} tokens per round (as many as {SLOW_SECONDS:.0f} s allow),"
    f" {SLOW_ROUNDS} rounds",
    "transformers-f32": "transformers-f32: weights and cache in float32; evaluation alone,"
    f" {SLOW_TOKENS} tokens per round (as many as {SLOW_SECONDS:.0f} s allow),"
    f" {SLOW_ROUNDS} rounds",
}
