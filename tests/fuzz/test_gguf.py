"""Model files that are damaged or hostile: an error of the package or a working model, never more.

`python -m tests.fuzz.test_gguf 5000 [first]` loads 5,000 mutated files and prints what it saw.
"""

import functools
import os
import random
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil
import pytest
from support import isolated
from support.fuzz import rounds
from support.gguf_parts import ARRAY, CODES, STRING, Array, Entry, Parts, Tensor, string
from support.toy import toy_gguf

from llm_magic.engine.arch import read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.load import Engine, Options
from llm_magic.engine.quants import check_supported
from llm_magic.engine.serving.job import Job
from llm_magic.engine.tokenizer.tokenizer import build_tokenizer
from llm_magic.errors import LLMError, ModelError
from llm_magic.events import Token
from llm_magic.models.cache import cache_dir
from llm_magic.sampling import Sampling

pytestmark = [
    pytest.mark.timeout(600 + 3 * int(os.environ.get("LLM_MAGIC_FUZZ", "0"))),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits memory as Linux does"),
]

MEMORY = 300 << 20  # bytes that reading headers may add
SECONDS = 2.0  # of this thread, for one header
BATCH = 40  # loads in one child process
LOADS = "mutated loads"
PROGRAMS = "LLM_MAGIC_FUZZ_PROGRAMS"  # where children keep what tinygrad compiles
TEXT = "Once upon a time, <|im_start|>user\nhello<end_of_turn> world 12 \u00e9\U0001f600"
LENGTHS = (0, 1, 2**16, 2**28, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
COUNTS = (0, 1, 2, 3, 5, 7, 31, 33, 64, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1)
REALS = (
    *(0.0, -0.0, 1.0, -1.0, 1e-30, 1e-45, 1e30, 3.4e38, -3.4e38, 0.5, 1e-5, 10_000.0),
    *(float("inf"), float("-inf"), float("nan")),
)
TEXTS = (
    *(b"", b"a", b" ", b" a", b"\xff", b"\xed\xa0\x80", b"\0", b"\x1b[31m", b"x" * 5000),
    *(b"</s>", b"<|im_end|>", b"<0x00>", b"<0xZZ>", b"\xe2\x96\x81", b"\xef\xbf\xbf" * 2),
    *(b"llama", b"gpt2", b"default", b"glm4", b"linear", b"yarn", b"none", b"phi3"),
    *(b"qwen2", b"gemma3", b"mamba", b"[EMPTY_3]", b"h e", b"a\xcc\x81", b"\xf0\x9f\x98\x80"),
)
KINDS = tuple(range(14))
SHAPES = (
    *(b".embedding_length", b".block_count", b".head_count", b".head_count_kv", b".key_length"),
    *(b".value_length", b".feed_forward_length"),
)
LONGEST = 1000  # characters of a message: a file may hold texts of any length
MODELS = {
    "llama": {"tokenizer": "spm"},
    "llama Q8_0": {"tokenizer": "bpe", "types": "Q8_0", "tied": False},
    "qwen2 Q4_0": {"arch": "qwen2", "types": "Q4_0", "pre": "qwen2"},
    "qwen3 F16": {"arch": "qwen3", "types": "F16", "pre": "qwen2"},
    "gemma2": {"arch": "gemma2", "tokenizer": "spm"},
    "gemma3 BF16": {"arch": "gemma3", "tokenizer": "spm", "types": "BF16"},
    "llama Q4_K": {"types": {"*ffn_down*": "Q6_K", "*": "Q4_K"}, "dim": 256, "ff": 256},
    "llama Q5_1": {"types": {"*attn*": "Q5_1", "*ffn*": "Q5_0"}, "rope_freqs": [1.0] * 8},
}
SMALL = {"layers": 2, "dim": 32, "heads": 2, "kv_heads": 1, "ff": 32, "ctx": 64}


@functools.cache
def model(name: str) -> Parts:
    with tempfile.TemporaryDirectory() as folder:
        return Parts.read(toy_gguf(Path(folder) / "toy.gguf", **{**SMALL, **MODELS[name]}))


# ----------------------------------------------------------------------------- single changes


def value(rng: random.Random, kind: int) -> bytes:
    """The bytes of a value of this kind, probably an extreme one."""
    if kind == STRING:
        return string(rng.choice(TEXTS))
    if kind == ARRAY:
        inner = rng.choice([k for k in KINDS if k in CODES or k == STRING])
        count = rng.choice((0, 0, 1, 2, 3, 300))
        items = [value(rng, inner) for _ in range(count)]
        return struct.pack("<IQ", inner, count) + b"".join(items)
    code = CODES.get(kind)
    if code is None:
        return rng.randbytes(8)
    if code in "fd":
        return struct.pack("<" + code, rng.choice(REALS))
    size = struct.calcsize(code)
    number = rng.choice((*COUNTS, -1, -(2**31), 2**64 - 1, rng.getrandbits(64)))
    return (number & (256**size - 1)).to_bytes(size, "little")


def other_value(rng: random.Random, e: Entry) -> None:
    """Mostly of the entry's own kind: such a file is read further."""
    if rng.random() < 0.4:
        e.kind = rng.choice(KINDS)
    e.payload = value(rng, e.kind)


def other_number(rng: random.Random, e: Entry) -> None:
    """A value near the one that there is, where it is a number."""
    if (code := CODES.get(e.kind)) is None:
        other_item(rng, e)
        return
    (old,) = struct.unpack("<" + code, e.payload)
    if code in "fd":
        new = old * rng.choice((-1, 0.5, 2, 1e-3, 1e3, 1e10))
        e.payload = struct.pack("<" + code, max(-3e38, min(3e38, new)))
    else:
        size = len(e.payload)
        new = rng.choice((old + 1, old - 1, old * 2, old // 2, old ^ 1 << rng.randrange(8 * size)))
        e.payload = (new & (256**size - 1)).to_bytes(size, "little")


def other_item(rng: random.Random, e: Entry) -> None:
    """One element or the length of an array; of a string, some bytes."""
    if e.kind != ARRAY:
        text = bytearray(e.payload[8:])
        for _ in range(rng.randrange(1, 4)):
            if text:
                text[rng.randrange(len(text))] = rng.randrange(256)
        if e.kind == STRING:
            e.payload = string(bytes(text[: rng.choice((len(text), rng.randrange(len(text) + 1)))]))
        return
    array = Array.read(e.payload)
    items, n = array.items, len(array.items)
    at = rng.randrange(n) if n else 0
    new = rng.choice(TEXTS) if array.kind == STRING else value(rng, array.kind)
    match rng.randrange(7):
        case 0:
            del items[at:]
        case 1 if n:
            del items[at]
        case 2:
            items.insert(at, new)
        case 3 if n:
            items.append(items[at])
        case 4 if n:
            other = rng.randrange(n)
            items[at], items[other] = items[other], items[at]
        case 5 if n:
            items[:] = [new] * n
        case _ if n:
            items[at] = new
    e.payload = array.payload()


def other_element(rng: random.Random, e: Entry) -> None:
    """Two elements of an array exchanged, or one that is another, without a text twice."""
    array = Array.read(e.payload)
    i, j = rng.randrange(len(array.items)), rng.randrange(len(array.items))
    new = rng.choice(TEXTS) if array.kind == STRING else value(rng, array.kind)
    if rng.random() < 0.5 or new in array.items:
        array.items[i], array.items[j] = array.items[j], array.items[i]
    else:
        array.items[i] = new
    e.payload = array.payload()


def other_length(rng: random.Random, e: Entry) -> None:
    """A length that lies: of a string, or of an array or its element type."""
    if e.kind == STRING:
        e.payload = struct.pack("<Q", rng.choice(LENGTHS)) + e.payload[8:]
    elif e.kind == ARRAY and rng.random() < 0.5:
        e.payload = struct.pack("<I", rng.choice(KINDS)) + e.payload[4:]
    elif e.kind == ARRAY:
        e.payload = e.payload[:4] + struct.pack("<Q", rng.choice(LENGTHS)) + e.payload[12:]
    else:
        e.kind = rng.choice(KINDS)


def other_tensor(rng: random.Random, t: Tensor) -> None:
    match rng.randrange(6):
        case 0 if t.dims:
            t.dims[rng.randrange(len(t.dims))] = rng.choice((*LENGTHS, 2, 16, 31, 32, 64))
        case 1:
            t.dims = [rng.choice((1, 2, 32, *LENGTHS)) for _ in range(rng.randrange(7))]
        case 2:
            t.dims.reverse()
        case 3:
            t.kind = rng.choice((*range(42), 2**31, 2**32 - 1))
        case 4:
            t.offset = rng.choice((0, 1, 32, t.offset + 32, t.offset - 32 & 2**64 - 1, *LENGTHS))
        case _:
            t.name = rng.choice((*TEXTS, b"output.weight", b"rope_freqs.weight", b"x" * 70_000))


def rearrange(rng: random.Random, parts: Parts) -> None:
    """Entries or tensors that are missing, doubled, exchanged or counted wrongly."""
    rows: list[Entry] | list[Tensor] = parts.entries if rng.random() < 0.7 else parts.tensors
    if not rows:
        return
    i, j = rng.randrange(len(rows)), rng.randrange(len(rows))
    match rng.randrange(7):
        case 0:
            del rows[i]
        case 1:
            rows.insert(j, rows[i])
        case 2:
            rows[i], rows[j] = rows[j], rows[i]
        case 3:
            a, b = rng.choice(parts.entries), rng.choice(parts.entries)
            a.kind, b.kind = b.kind, a.kind
        case 4:
            a, b = rng.choice(parts.entries), rng.choice(parts.entries)
            a.kind, a.payload, b.kind, b.payload = b.kind, b.payload, a.kind, a.payload
        case 5:
            parts.n_kv = rng.choice((*LENGTHS, len(parts.entries) + 1, len(parts.entries) - 1))
        case _:
            parts.n_tensors = rng.choice((*LENGTHS, len(parts.tensors) + 1, len(parts.tensors) - 1))


def other_bytes(rng: random.Random, raw: bytearray, head: int) -> None:
    """Bits, bytes and numbers of the first `head` bytes; what is cut off or put in."""
    at = rng.randrange(max(1, min(head, len(raw) - 8)))
    match rng.randrange(6):
        case 0:
            raw[at] ^= 1 << rng.randrange(8)
        case 1:
            raw[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        case 2:
            raw[at : at + 8] = struct.pack("<Q", rng.choice(LENGTHS))
        case 3:
            raw[at : at + 4] = struct.pack("<I", rng.choice(COUNTS))
        case 4:
            del raw[at : at + rng.choice((1, 4, 8, 100))]
        case _:
            raw[at:at] = rng.randbytes(rng.choice((1, 4, 8, 100)))


def mutated(rng: random.Random) -> bytes:
    """A toy file with one to three changes of its header."""
    parts = model(rng.choice(list(MODELS))).copy()
    lies, torn = 0, 0
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        match rng.randrange(8):
            case 0 | 1:
                torn += 1
            case 2 | 3:
                lies += 1
            case 4:
                other_tensor(rng, rng.choice(parts.tensors))
            case _:
                change = rng.choice((other_value, other_number, other_item))
                change(rng, rng.choice(parts.entries))
    for _ in range(lies):  # after the others, which need entries that hold what they say
        if rng.random() < 0.5:
            rearrange(rng, parts)
        else:
            other_length(rng, rng.choice(parts.entries))
    raw, head = bytearray(parts.file()), len(parts.header())
    for _ in range(torn):
        other_bytes(rng, raw, head)
    if rng.random() < 0.05:
        del raw[rng.randrange(len(raw)) :]
    return bytes(raw)


# ----------------------------------------------------------------------------- headers


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """An allocation that takes this process beyond so many more bytes fails."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def read_header(path: Path) -> str:
    """How far a file can be read. Only errors of the package may come."""
    stage = "file"
    try:
        with open_gguf(path) as gguf:
            stage = "config"
            check_supported(gguf)
            shapes = {name: t.shape for name, t in gguf.tensors.items()}
            config = read_config(gguf.metadata, shapes)
            stage = "tokenizer"
            tokenizer = build_tokenizer(gguf.metadata)
            ids = tokenizer.encode(TEXT, bos=True)
            assert all(0 <= i < config.n_tokens for i in ids)
            tokenizer.decode(ids)
            assert all(tokenizer.piece(i).id == i for i in range(tokenizer.n_vocab))
            return "read"
    except LLMError as e:
        one_of_ours(e)
        return f"refused: {stage}"


def one_of_ours(e: LLMError) -> None:
    """It says something, briefly, and is not the load's word for what nobody foresaw."""
    assert 0 < len(str(e)) <= LONGEST, str(e)[:2000]
    unforeseen = type(e) is ModelError and not isinstance(e.__cause__, OSError | None)
    assert not unforeseen, e


def test_a_mutated_header_is_read_or_refused_in_bounds(tmp_path: Path) -> None:
    path, outcomes, slowest = tmp_path / "toy.gguf", Counter[str](), 0.0
    for name in MODELS:
        path.write_bytes(model(name).file())
        assert read_header(path) == "read", name
    with warnings.catch_warnings(), at_most(MEMORY):
        warnings.simplefilter("ignore")
        for number, rng in rounds("mutated headers"):
            path.write_bytes(mutated(rng))
            start = time.thread_time()
            try:
                outcomes[read_header(path)] += 1
            except BaseException as e:
                raise AssertionError(f"case {number}: {type(e).__name__}: {e}") from e
            spent = time.thread_time() - start
            slowest = max(slowest, spent)
            assert spent < SECONDS, f"case {number}: {spent:.1f} s"
    print(dict(outcomes), f"slowest {slowest * 1000:.0f} ms")
    if outcomes.total() >= 1000:
        stages = {"read", "refused: file", "refused: config", "refused: tokenizer"}
        assert set(outcomes) == stages, outcomes


# ----------------------------------------------------------------------------- loads


def spoil(rng: random.Random, parts: Parts) -> None:
    """Some bytes of the tensors: single ones, a stretch, or one number again and again."""
    data = bytearray(parts.data)
    at = rng.randrange(len(data) - 4) & ~3
    number = struct.pack("<f", rng.choice(REALS))
    match rng.randrange(5):
        case 0:
            for _ in range(rng.choice((1, 10, 1000))):
                data[rng.randrange(len(data))] = rng.randrange(256)
        case 1:
            data[at : at + 4] = number
        case 2:
            n = min(rng.choice((64, 4096, len(data))), len(data) - at)
            data[at : at + n] = (number * (n // 4 + 1))[:n]
        case 3:
            n = min(rng.choice((64, 4096, len(data))), len(data) - at)
            data[at : at + n] = rng.randbytes(n)
        case _:
            data[:] = (number * (len(data) // 4 + 1))[: len(data)]
    parts.data = bytes(data)


def loadable(rng: random.Random) -> bytes:
    """A toy file with other values and weights, which still loads more often than not."""
    parts = model(rng.choice(list(MODELS))).copy()
    if rng.random() < 0.7:
        spoil(rng, parts)
    # Values that shapes follow from change rarely: nearly all such files are refused.
    shapes = rng.random() < 0.1
    for _ in range(rng.choice((0, 1, 1, 2))):
        if rng.random() < 0.6:
            free = [e for e in parts.entries if shapes or not e.key.endswith(SHAPES)]
            number = rng.choice([e for e in free if e.kind in CODES])
            (other_value if rng.random() < 0.2 else other_number)(rng, number)
        else:
            change = other_item if rng.random() < 0.2 else other_element
            change(rng, rng.choice([e for e in parts.entries if e.kind == ARRAY]))
    return parts.file()


@functools.cache
def folder() -> "tempfile.TemporaryDirectory[str]":
    """A child's own folder, and cache: what is compiled is shared, nothing else."""
    own = tempfile.TemporaryDirectory()
    compiled = {"bin": cache_dir() / "bin", "tinygrad": Path(os.environ[PROGRAMS])}
    for name, path in compiled.items():
        path.mkdir(parents=True, exist_ok=True)
        Path(own.name, name).symlink_to(path, target_is_directory=True)
    os.environ["LLM_MAGIC_CACHE"] = own.name
    warnings.simplefilter("ignore")
    return own


def check(seed: int) -> str:
    """Load one mutated file, with kernels for even seeds, and generate three tokens."""
    rng = random.Random(f"{LOADS}:{seed}")
    path = Path(folder().name) / "toy.gguf"
    path.write_bytes(loadable(rng))
    os.environ["LLM_MAGIC_KERNEL"] = "portable" if seed % 2 else ""
    engine = Engine(path, Options(n_ctx=64, n_slots=1, threads=rng.choice((1, 2))))
    try:
        return answer(engine, rng)
    finally:
        engine.close()


def answer(engine: Engine, rng: random.Random) -> str:
    engine.start()
    try:
        engine.ready.result()
    except ModelError as e:
        one_of_ours(e)
        return "refused"
    way = type(engine.loaded().forward).__name__
    tokenizer = engine.loaded().tokenizer
    ids = tuple(tokenizer.encode(TEXT, bos=True))[:24] or (0,)
    sampling = Sampling(temperature=rng.choice((0.0, 1.0)), max_tokens=3, min_tokens=3, seed=1)
    try:
        items = list(engine.scheduler.submit(Job(ids, sampling, top=3)))
    except LLMError as e:
        return f"{way}: {type(e).__name__}"
    tokens = [item for item in items if isinstance(item, Token)]
    assert all(0 <= t.id < tokenizer.n_vocab for t in tokens)
    return f"{way}: tokens" if tokens else f"{way}: no tokens"


@contextmanager
def shared_programs() -> Iterator[None]:
    """One folder for tinygrad's programs of all child processes: most files need the same ones."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patch:
        patch.setenv(PROGRAMS, path)
        yield


@shared_programs()
def test_a_mutated_model_gives_tokens_or_an_error_of_the_package() -> None:
    outcomes, numbers = Counter[str](), rounds(LOADS)
    while batch := [number for number, _ in islice(numbers, BATCH)]:
        report = isolated.run("fuzz.test_gguf", len(batch), first=batch[0], seconds_each=60)
        assert not report.findings, str(report)
        outcomes += report.outcomes
    print(dict(outcomes))
    if outcomes.total() >= 100:
        assert {"KernelForward: tokens", "Portable: tokens", "refused"} <= set(outcomes)


if __name__ == "__main__":
    counts = map(int, sys.argv[1:])
    with shared_programs():
        print(isolated.run("fuzz.test_gguf", *counts, seconds_each=60, verbose=True))
