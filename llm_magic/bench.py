"""Speed of this engine and of its peers, measured side by side in one run.

Comes in: a model's name and which peers to measure. Goes out: a Report (numbers, machine, versions)
as a table, as JSON, or as a plot (ui layer). It must not know notebooks.

How it measures. Every subject lives in a process of its own with the model loaded once, so that one
cannot disturb another, and does one task at a time when told to: the subjects take turns within
each task, `rounds` times, so that a noisy machine disturbs all of them alike. Equal threads, batch,
context and KV type (f16). Prompts are random token ids, new in each round, so no cache can help.
The best round counts (the least disturbed one); the spread is reported. Nothing is warm for one and
cold for another: each subject runs every task once before it is measured.
"""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from .errors import LLMError, RequestError

PEERS = ("xllamacpp", "llama-cpp-python", "transformers")
OURS = "llm_magic"
CTX = 4096
DECODE = 64  # tokens generated per measurement
PREFILLS = (32, 128, 512, 2048)
DEPTHS = (0, 512, 2048)
STREAMS = (1, 2, 4)
LOW_ID, HIGH_ID = 300, 30000  # ordinary tokens in every vocabulary that we meet
READ_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Result:
    """One task of one subject. values: per round, in `unit`; best: the least disturbed round."""

    task: str
    subject: str
    unit: str
    values: tuple[float, ...]

    @property
    def best(self) -> float:
        return min(self.values) if self.unit in ("s", "MB") else max(self.values)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything of one run. bandwidth: bytes a second that `threads` threads read from memory."""

    model: str
    file_bytes: int
    threads: int
    machine: dict[str, str]
    versions: dict[str, str]
    results: tuple[Result, ...]
    bandwidth: float
    failures: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(r.subject for r in self.results))

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(r.task for r in self.results))

    def get(self, task: str, subject: str) -> Result | None:
        return next((r for r in self.results if (r.task, r.subject) == (task, subject)), None)

    def ratio(self, task: str, peer: str) -> float | None:
        """How many times faster we are than a peer (for seconds and megabytes: how much less)."""
        ours, theirs = self.get(task, OURS), self.get(task, peer)
        if ours is None or theirs is None or not ours.best or not theirs.best:
            return None
        if ours.unit in ("s", "MB"):
            return theirs.best / ours.best
        return ours.best / theirs.best

    @property
    def bandwidth_share(self) -> float | None:
        """Share of the read bandwidth that decoding reaches, if every weight is read once a token.
        """
        decode = self.get("decode at 0", OURS)
        if decode is None or not self.bandwidth:
            return None
        return decode.best * self.file_bytes / self.bandwidth

    def to_dict(self) -> dict[str, Any]:
        out = asdict(self)
        out["version"] = 1
        out["ratios"] = {
            peer: {t: r for t in self.tasks if (r := self.ratio(t, peer)) is not None}
            for peer in self.subjects
            if peer != OURS
        }
        out["bandwidth_share"] = self.bandwidth_share
        return out

    def __str__(self) -> str:
        return table(self)


def table(report: Report) -> str:
    """The report as aligned text."""
    peers = [s for s in report.subjects if s != OURS]
    head = ["task", OURS, *(c for p in peers for c in (p, "ratio"))]
    rows = [head]
    for task in report.tasks:
        row = [task, _cell(report.get(task, OURS))]
        for peer in peers:
            ratio = report.ratio(task, peer)
            row += [_cell(report.get(task, peer)), f"{ratio:.2f}x" if ratio else ""]
        rows.append(row)
    widths = [max(len(r[i]) for r in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w)
            for i, (c, w) in enumerate(zip(r, widths, strict=True))
        )
        for r in rows
    ]
    lines.insert(1, "  ".join("-" * w for w in widths))
    share = report.bandwidth_share
    lines += [
        "",
        f"model     {report.model}, {report.file_bytes / 1e6:.0f} MB; {report.threads} threads",
        "machine   " + ", ".join(report.machine.values()),
        "versions  " + ", ".join(f"{k} {v}" for k, v in report.versions.items()),
        f"bandwidth {report.bandwidth / 1e9:.1f} GB/s read"
        + (f"; decode reaches {share:.0%} of it" if share else ""),
    ]
    lines += [f"{name} failed: {why}" for name, why in report.failures.items()]
    return "\n".join([*lines, *report.notes])


def _cell(result: Result | None) -> str:
    if result is None:
        return ""
    digits = 2 if result.best < 10 else 0
    return f"{result.best:.{digits}f} {result.unit}"


# ----------------------------------------------------------------------------- subjects


class Subject(Protocol):
    """An engine under test, inside its worker process. Methods return the value of one measurement.
    """

    def load(self) -> float: ...  # seconds

    def prefill(self, n: int) -> float: ...  # tokens a second

    def decode(self, depth: int) -> float: ...  # tokens a second

    def streams(self, n: int) -> float: ...  # tokens a second of n streams together


def _ids(n: int) -> list[int]:
    return [random.randrange(LOW_ID, HIGH_ID) for _ in range(n)]


def _together(n: int, one: Callable[[], int]) -> float:
    """Tokens a second of n threads that each run `one` (which returns its token count)."""
    counts = [0] * n

    def client(i: int) -> None:
        counts[i] = one()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / (time.perf_counter() - start)


class Ours:
    """This engine, through the scheduler: what every cell and widget uses."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._scheduler: Any = None

    def load(self) -> float:
        from .local import Local

        start = time.perf_counter()
        local = Local("bench", Path(self.path), ctx=CTX, threads=self.threads)
        local.wait(lambda progress: None)
        self._scheduler = local.engine.scheduler
        return time.perf_counter() - start

    def _run(self, ids: list[int], n: int, top: int = 0) -> tuple[float, float, int]:
        """(prefill tokens a second, decode tokens a second, tokens)"""
        from .engine.scheduler import Job
        from .events import Finish, Sampling

        settings = Sampling(temperature=0.0, max_tokens=n)
        job = Job(tuple(ids), settings, top=top, reuse=False, end_ids=frozenset())
        *_, finish = self._scheduler.submit(job)
        assert isinstance(finish, Finish)
        return finish.timings.prefill_tps, finish.timings.decode_tps, finish.usage.completion

    def prefill(self, n: int) -> float:
        return self._run(_ids(n), 1)[0]

    def decode(self, depth: int) -> float:
        return self._run(_ids(depth + 1), DECODE)[1]

    def streams(self, n: int) -> float:
        return _together(n, lambda: self._run(_ids(8), DECODE)[2])

    def logprobs(self) -> float:
        """Decode speed with five alternatives reported."""
        return self._run(_ids(1), DECODE, top=5)[1]

    def busy(self) -> float:
        """Decode speed while this thread runs a pure Python loop."""
        done: list[float] = []
        thread = threading.Thread(target=lambda: done.append(self._run(_ids(1), DECODE)[1]))
        thread.start()
        x = 0
        while thread.is_alive():
            for i in range(1000):
                x += i
        return done[0]


class Xllamacpp:
    """llama.cpp by its prebuilt wheel; its own timings, taken inside the library."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._server: Any = None

    def load(self) -> float:
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = self.path
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = self.threads
        p.n_parallel = max(STREAMS)
        p.n_ctx = CTX * p.n_parallel
        p.n_gpu_layers = 0
        start = time.perf_counter()
        self._server = xllamacpp.Server(p)
        return time.perf_counter() - start

    def _run(self, ids: list[int], n: int) -> dict[str, float]:
        asked = {"prompt": ids, "n_predict": n, "ignore_eos": True, "cache_prompt": False,
                 "temperature": 0}  # fmt: skip
        timings: dict[str, float] = self._server.handle_completions(asked)["timings"]
        return timings

    def prefill(self, n: int) -> float:
        return self._run(_ids(n), 1)["prompt_per_second"]

    def decode(self, depth: int) -> float:
        return self._run(_ids(depth + 1), DECODE)["predicted_per_second"]

    def streams(self, n: int) -> float:
        return _together(n, lambda: int(self._run(_ids(8), DECODE)["predicted_n"]))


class LlamaCppPython:
    """llama.cpp by llama-cpp-python (compiled on this machine), token by token."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._llama: Any = None

    def load(self) -> float:
        from llama_cpp import Llama  # type: ignore[import-not-found]

        start = time.perf_counter()
        self._llama = Llama(
            self.path, n_ctx=CTX, n_threads=self.threads, n_threads_batch=self.threads,
            n_batch=512, verbose=False,
        )  # fmt: skip
        return time.perf_counter() - start

    def _eval(self, ids: list[int]) -> float:
        start = time.perf_counter()
        self._llama.eval(ids)
        return time.perf_counter() - start

    def prefill(self, n: int) -> float:
        self._llama.reset()
        return n / self._eval(_ids(n))

    def decode(self, depth: int) -> float:
        self._llama.reset()
        self._eval(_ids(depth + 1))
        return (DECODE - 1) / sum(self._eval([i]) for i in _ids(DECODE - 1))

    def streams(self, n: int) -> float:
        if n > 1:
            raise RequestError("llama-cpp-python has one sequence per object")
        return self.decode(8)


class Transformers:
    """transformers on torch CPU, from the same GGUF (dequantised to bfloat16 by the library)."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        self._model: Any = None
        self._torch: Any = None

    def load(self) -> float:
        import torch  # type: ignore[import-not-found]
        from transformers import AutoModelForCausalLM  # type: ignore[import-not-found]

        torch.set_num_threads(self.threads)
        folder, name = os.path.split(self.path)
        start = time.perf_counter()
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16
        ).eval()
        return time.perf_counter() - start

    def _eval(self, ids: list[int], past: Any = None) -> tuple[float, Any]:
        start = time.perf_counter()
        with self._torch.inference_mode():
            out = self._model(
                self._torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=1
            )
        return time.perf_counter() - start, out.past_key_values

    def prefill(self, n: int) -> float:
        return n / self._eval(_ids(n))[0]

    def decode(self, depth: int) -> float:
        _, past = self._eval(_ids(depth + 1))
        seconds = 0.0
        for i in _ids(16):  # it is slow: 16 tokens say enough
            took, past = self._eval([i], past)
            seconds += took
        return 16 / seconds

    def streams(self, n: int) -> float:
        if n > 1:
            raise RequestError("transformers has no scheduler for single requests")
        return self.decode(8)


SUBJECTS: dict[str, type[Any]] = {
    OURS: Ours,
    "xllamacpp": Xllamacpp,
    "llama-cpp-python": LlamaCppPython,
    "transformers": Transformers,
}

# ----------------------------------------------------------------------------- workers


class Worker:
    """A subject in a process of its own: one JSON line asks, one answers."""

    def __init__(self, name: str, path: str, threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "llm_magic.bench", "--worker", name, path, str(threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def ask(self, method: str, *arguments: int) -> float:
        """The value of one measurement. RequestError with the subject's reason if it has none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            code = self._process.wait()
            raise RequestError(f"its process ended with status {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise RequestError(answer["error"])
        return float(answer["value"])

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _work(name: str, path: str, threads: int) -> None:
    """The worker's side. stdout belongs to the protocol: what libraries print goes to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subject = SUBJECTS[name](path, threads)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        try:
            value = _memory() if method == "memory" else getattr(subject, method)(*arguments)
            answer: dict[str, Any] = {"value": value}
        except Exception as e:  # whatever a peer raises is its result
            answer = {"error": f"{type(e).__name__}: {e}"[:500]}
        channel.write(json.dumps(answer) + "\n")
        channel.flush()
    os._exit(0)  # peers may hang while their threads wind up


def _memory() -> float:
    """Resident memory of this process in MB."""
    try:
        text = Path("/proc/self/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1e6 if sys.platform == "darwin" else 1e3)


# ----------------------------------------------------------------------------- the run


def available(names: Iterable[str]) -> list[str]:
    """Those peers that are installed."""
    modules = {
        "xllamacpp": "xllamacpp",
        "llama-cpp-python": "llama_cpp",
        "transformers": "transformers",
    }
    from importlib.util import find_spec

    return [n for n in names if find_spec(modules[n]) is not None]


def run(
    model: str = "smollm2",
    peers: Sequence[str] = (),
    threads: int | None = None,
    rounds: int = 3,
    quick: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure. say: told what is being done. quick: fewer sizes. Raises what models.resolve raises.
    """
    from . import models
    from .engine.kernels.team import available_cores

    for peer in peers:
        if peer not in PEERS:
            raise RequestError(f"unknown peer {peer!r}; there are {', '.join(PEERS)}")
    path = str(models.resolve(model).path)
    threads = threads or available_cores()
    results: list[Result] = []
    failures: dict[str, str] = {}
    say("memory bandwidth")
    bandwidth = read_bandwidth(threads)
    results += _imports(rounds)
    workers: list[Worker] = []
    try:
        for name in (OURS, *peers):
            say(f"loading {model} in {name}")
            worker = Worker(name, path, threads)
            workers.append(worker)
            try:
                results.append(Result("load", name, "s", (worker.ask("load"),)))
                first = time.perf_counter()
                worker.ask("prefill", 16)
                took = time.perf_counter() - first
                results.append(Result("first token after load", name, "s", (took,)))
            except RequestError as e:
                failures[name] = str(e)
        living = [w for w in workers if w.name not in failures]
        for task, method, arguments in _tasks(quick):
            say(task)
            results += _turns(living, task, method, arguments, rounds)
        for worker in living:
            results.append(Result("resident memory", worker.name, "MB", (worker.ask("memory"),)))
    finally:
        for worker in workers:
            worker.close()
    size = os.path.getsize(path)
    machine, versions = _machine(), _versions([w.name for w in workers])
    return Report(
        model,
        size,
        threads,
        machine,
        versions,
        tuple(results),
        bandwidth,
        failures,
        _notes(results),
    )


def _tasks(quick: bool) -> list[tuple[str, str, tuple[int, ...]]]:
    prefills = (128, 512) if quick else PREFILLS
    depths = (0, 512) if quick else DEPTHS
    tasks: list[tuple[str, str, tuple[int, ...]]] = []
    tasks += [(f"prefill {n}", "prefill", (n,)) for n in prefills]
    tasks += [(f"decode at {d}", "decode", (d,)) for d in depths]
    tasks += [(f"{n} stream{'s' * (n > 1)}", "streams", (n,)) for n in STREAMS]
    tasks += [
        ("decode with 5 logprobs", "logprobs", ()),
        ("decode beside a Python loop", "busy", ()),
    ]
    return tasks


def _turns(
    workers: Sequence[Worker], task: str, method: str, arguments: tuple[int, ...], rounds: int
) -> list[Result]:
    """One task for all subjects, taking turns; the first turn of each is a rehearsal."""
    values: dict[str, list[float]] = {w.name: [] for w in workers}
    for turn in range(rounds + 1):
        for worker in workers:
            if worker.name != OURS and method in ("logprobs", "busy"):
                continue
            try:
                value = worker.ask(method, *arguments)
            except RequestError:
                continue  # a peer that cannot do this has no row
            if turn:
                values[worker.name].append(value)
    return [Result(task, name, "tok/s", tuple(v)) for name, v in values.items() if v]


def _imports(rounds: int) -> list[Result]:
    """Seconds that `import llm_magic` adds to a Python process."""
    code = "import time; t = time.perf_counter(); import llm_magic; print(time.perf_counter() - t)"
    took = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(rounds)
    ]
    return [Result("import", OURS, "s", tuple(took))]


def _notes(results: Sequence[Result]) -> tuple[str, ...]:
    by_task = {r.task: r.best for r in results if r.subject == OURS}
    notes = []
    base = by_task.get("decode at 0")
    if base and "decode with 5 logprobs" in by_task:
        notes.append(
            f"five logprobs keep {by_task['decode with 5 logprobs'] / base:.0%} of the speed"
        )
    if base and "decode beside a Python loop" in by_task:
        notes.append(
            f"a Python loop beside keeps {by_task['decode beside a Python loop'] / base:.0%}"
        )
    if by_task.get("1 stream") and by_task.get("4 streams"):
        gain = by_task["4 streams"] / by_task["1 stream"]
        notes.append(f"four streams together: {gain:.2f}x one stream")
    return tuple(notes)


def read_bandwidth(threads: int, size: int = READ_BYTES, tries: int = 5) -> float:
    """Bytes a second that so many threads read: best of `tries` passes over `size` bytes."""
    import numpy as np

    data = np.ones(size // 8, np.int64)
    parts = np.array_split(data, threads)
    best = float("inf")
    for _ in range(tries):
        workers = [threading.Thread(target=np.bitwise_or.reduce, args=(part,)) for part in parts]
        start = time.perf_counter()
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        best = min(best, time.perf_counter() - start)
    return size / best


def _machine() -> dict[str, str]:
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    from .engine.device import cpu_features

    wide = [
        f for f in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2", "asimddp") if f in cpu_features()
    ]
    return {
        "cpu": name,
        "cores": f"{os.cpu_count()} cores",
        "features": " ".join(wide) or "plain",
        "system": f"{platform.system()} {platform.machine()}",
    }


def _versions(subjects: Iterable[str]) -> dict[str, str]:
    names = ["llm-magic", "tinygrad", "numpy", *(s for s in subjects if s != OURS)]
    out = {"python": platform.python_version()}
    for name in names:
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = "?"
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: python -m llm_magic bench."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--worker"]:
        _work(words[1], words[2], int(words[3]))
    parser = argparse.ArgumentParser(prog="python -m llm_magic bench", description=run.__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--peer", action="append", choices=PEERS, help="measure beside us (repeat)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    options = parser.parse_args(words)
    try:
        report = run(
            options.model, options.peer or available(["xllamacpp"]), options.threads,
            options.rounds, options.quick, say=lambda text: print(text, file=sys.stderr),
        )  # fmt: skip
    except LLMError as e:
        print(f"llm_magic: {e}", file=sys.stderr)
        return 1
    print(json.dumps(report.to_dict(), indent=1) if options.json else table(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
