"""The portable forward pass against a float64 numpy forward that shares no code with it."""

import gc
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.toy import toy_gguf

from llm_magic.engine import arch, device
from llm_magic.engine.arch import Architecture, read_config
from llm_magic.engine.blocks import Attention, FeedForward, QKNorm
from llm_magic.engine.gate import Gate
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.portable.forward import CHUNK, MAX_ROWS, Portable
from llm_magic.errors import UnsupportedModelError

CLOSE = 1e-4
C = CHUNK


# ---------------------------------------------------------------------- the oracle


@dataclass
class Oracle:
    """Reads the file with gguf-py and evaluates whole sequences in float64."""

    path: Path

    def __post_init__(self):
        reader = gguf.GGUFReader(self.path)
        self.keys = {k: f.contents() for k, f in reader.fields.items()}
        self.arch = self.keys["general.architecture"]
        self.w = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type)
            .reshape([int(n) for n in reversed(t.shape)])
            .astype(np.float64)
            for t in reader.tensors
        }

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)

    def norm(self, x, name):
        eps = self.key("attention.layer_norm_rms_epsilon")
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * self.w[name]

    def rope(self, x, base, linear):
        """x [n, heads, head_dim], position = row."""
        dim = self.key("rope.dimension_count", x.shape[-1])
        i = np.arange(dim // 2)
        angle = np.arange(len(x))[:, None] / linear * base ** (-2.0 * i / dim)
        if "rope_freqs.weight" in self.w:
            angle = angle / self.w["rope_freqs.weight"].reshape(-1)
        z = np.exp(1j * angle)[:, None, :]
        out = x.copy()
        if self.arch == "llama":
            a, b = out[..., 0:dim:2], out[..., 1:dim:2]
        else:
            a, b = out[..., : dim // 2], out[..., dim // 2 : dim]
        turned = (a + 1j * b) * z
        a[...], b[...] = turned.real, turned.imag
        return out

    def layer_kind(self, i):
        """(rope base, linear scaling, window) of layer i."""
        base, linear = self.key("rope.freq_base"), self.key("rope.scaling.factor", 1.0)
        if self.arch == "gemma3" and (i + 1) % self.key("attention.sliding_window_pattern", 6):
            return 10000.0, 1.0, self.key("attention.sliding_window")
        return base, linear, 10**9

    def attention(self, x, i):
        n, b = len(x), f"blk.{i}."
        heads, kv = self.key("attention.head_count"), self.key("attention.head_count_kv")
        base, linear, window = self.layer_kind(i)
        h = self.norm(x, b + "attn_norm.weight")

        def project(name, count):
            out = h @ self.w[f"{b}{name}.weight"].T + self.w.get(f"{b}{name}.bias", 0.0)
            out = out.reshape(n, count, -1)
            if f"{b}{name}_norm.weight" in self.w:
                out = self.norm(out, f"{b}{name}_norm.weight")
            return out if name == "attn_v" else self.rope(out, base, linear)

        q = project("attn_q", heads)
        k, v = (np.repeat(project(m, kv), heads // kv, axis=1) for m in ("attn_k", "attn_v"))
        s = np.einsum("qhd,khd->hqk", q, k) * (self.key("attention.scale") or q.shape[-1] ** -0.5)
        s = capped(s, self.key("attn_logit_softcapping"))
        gap = np.arange(n)[:, None] - np.arange(n)
        s = np.where((gap >= 0) & (gap < window), s, -np.inf)
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", p, v).reshape(n, -1)
        return out @ self.w[b + "attn_output.weight"].T + self.w.get(b + "attn_output.bias", 0.0)

    def feed_forward(self, x, i):
        b = f"blk.{i}."
        h = self.norm(x, b + "ffn_norm.weight")
        g, u = (h @ self.w[f"{b}ffn_{name}.weight"].T for name in ("gate", "up"))
        if self.arch == "gemma3":
            g = g / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (g + 0.044715 * g**3)))
        else:
            g = g / (1 + np.exp(-g))
        return (g * u) @ self.w[b + "ffn_down.weight"].T

    def __call__(self, ids):
        """Logits of the token after each position, float64 [n, vocab]."""
        x = self.w["token_embd.weight"][np.asarray(ids)]
        if self.arch == "gemma3":
            x = x * x.shape[-1] ** 0.5
        for i in range(self.key("block_count")):
            for part, after in ((self.attention, "attention"), (self.feed_forward, "ffw")):
                y = part(x, i)
                name = f"blk.{i}.post_{after}_norm.weight"
                x = x + (self.norm(y, name) if name in self.w else y)
        out = self.w.get("output.weight", self.w["token_embd.weight"])
        logits = self.norm(x, "output_norm.weight") @ out.T
        return capped(logits, self.key("final_logit_softcapping"))


def capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


# ---------------------------------------------------------------------- help


def portable(path, n_ctx=64, n_slots=3, where="CPU", **options) -> Portable:
    where = device.prepare(where).name
    with open_gguf(path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        return Portable(file, config, n_ctx, n_slots, where, **options)


def evaluate(forward, ids, slot=0, at=0, size=MAX_ROWS):
    """Logits after each of `ids`, from position `at` of the slot on, `size` rows a step."""
    out = []
    for i in range(0, len(ids), size):
        part = ids[i : i + size]
        n = len(part)
        rows = np.arange(at + i, at + i + n)
        out.append(step(forward, part, [slot] * n, rows, range(n)))
    return np.concatenate(out)


def step(forward, tokens, slots, positions, want):
    arrays = (np.array([*a], np.int32) for a in (tokens, slots, positions, want))
    return forward.step(*arrays).logits.copy()


def ids_of(n, seed=0, vocab=256):
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


def worst(a, b):
    assert a.shape == b.shape
    return float(np.abs(a - b).max())


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = toy_gguf(tmp_path_factory.mktemp("llama") / "m.gguf", ctx=128, seed=1)
    return portable(path), Oracle(path)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    path = toy_gguf(
        tmp_path_factory.mktemp("gemma") / "m.gguf",
        arch="gemma3",
        tokenizer="spm",
        layers=4,
        kv_heads=1,
        ctx=256,
        rope_base=1e6,
        metadata={"gemma3.attention.sliding_window_pattern": 2},
    )
    return portable(path, n_ctx=160), Oracle(path)


# ---------------------------------------------------------------------- rows and chunks


# B093
@pytest.mark.parametrize("cached", [0, 1, C - 1, C])
@pytest.mark.parametrize("n", [1, C - 1, C, C + 1, 2 * C, 2 * C + 1])
def test_chunks_equal_tokens_one_at_a_time(llama, n, cached):
    forward, oracle = llama
    ids = ids_of(cached + n, seed=n * 100 + cached)
    evaluate(forward, ids[:cached], slot=0) if cached else None
    chunked = evaluate(forward, ids[cached:], slot=0, at=cached)
    single = evaluate(forward, ids, slot=1, size=1)[cached:]
    assert worst(chunked, single) < CLOSE
    assert worst(chunked, oracle(ids)[cached:]) < CLOSE


def test_only_the_wanted_rows_come_back_in_order(llama):
    forward, oracle = llama
    ids = ids_of(20, seed=5)
    right = oracle(ids)
    rows = [0] * 20, range(20)
    assert worst(step(forward, ids, *rows, [2, 9, 10, 19]), right[[2, 9, 10, 19]]) < CLOSE
    assert step(forward, ids, *rows, []).shape == (0, forward.n_vocab)
    assert worst(step(forward, ids[:1], [0], [0], [0]), right[:1]) < CLOSE


def test_slots_share_a_step_and_do_not_see_each_other(llama):
    """A prompt chunk, a decode row and a second prompt in one step."""
    forward, oracle = llama
    a, b, c = ids_of(12, 1), ids_of(9, 2), ids_of(17, 3)
    evaluate(forward, a[:11], slot=2)
    evaluate(forward, c[:4], slot=1)
    tokens = [*b, a[11], *c[4:]]
    slots = [0] * 9 + [2] + [1] * 13
    positions = [*range(9), 11, *range(4, 17)]
    got = step(forward, tokens, slots, positions, range(23))
    right = np.concatenate([oracle(b), oracle(a)[11:], oracle(c)[4:]])
    assert worst(got, right) < CLOSE


# B092
def test_a_prompt_again_or_its_prefix_gives_the_cold_logits(llama):
    forward, oracle = llama
    ids = ids_of(21, seed=7)
    cold = evaluate(forward, ids, slot=0)
    again = evaluate(forward, ids[20:], slot=0, at=20)  # full hit: the last token once more
    assert worst(again, cold[20:]) < 1e-3
    assert again.argmax() == cold[20].argmax()
    prefix = evaluate(forward, ids[9:10], slot=0, at=9)
    assert worst(prefix, cold[9:10]) < 1e-3
    other = ids[:10] + ids_of(6, seed=8)
    assert worst(evaluate(forward, other[10:], slot=0, at=10), oracle(other)[10:]) < CLOSE
    fresh = ids_of(5, seed=9)
    assert worst(evaluate(forward, fresh, slot=0), oracle(fresh)) < CLOSE


# B094
def test_a_cached_prefix_gives_the_greedy_answer_of_a_cold_run(llama):
    forward, _ = llama
    prompt = ids_of(30, seed=11)

    def answer(slot, cached):
        ids = list(prompt)
        last = evaluate(forward, ids[cached:], slot, at=cached)[-1:]
        logits = [last]
        for _ in range(12):
            ids.append(int(logits[-1].argmax()))
            logits.append(evaluate(forward, ids[-1:], slot, at=len(ids) - 1))
        return ids, np.concatenate(logits)

    cold_ids, cold = answer(1, 0)
    evaluate(forward, prompt[:19], slot=2)
    warm_ids, warm = answer(2, 19)
    assert warm_ids == cold_ids
    assert worst(warm, cold) < 1e-3


def test_filled_up_chunks_leave_nothing_behind(llama):
    """A chunk of 3 writes CHUNK positions; what it wrote too much is written again before use."""
    forward, oracle = llama
    ids = ids_of(40, seed=13)
    got, at = [], 0
    for n in (3, 1, 5, 2, 1, 1, 7, 3, 9, 4, 2, 2):
        got.append(evaluate(forward, ids[at : at + n], slot=0, at=at))
        at += n
    assert worst(np.concatenate(got), oracle(ids)) < CLOSE


def test_the_window_can_be_filled_to_its_last_position(llama):
    forward, oracle = llama
    ids = ids_of(forward.n_ctx, seed=17)
    got = evaluate(forward, ids, slot=1)
    assert worst(got, oracle(ids)) < CLOSE
    last = evaluate(forward, ids[-3:], slot=1, at=forward.n_ctx - 3)
    assert worst(last, got[-3:]) < CLOSE


@pytest.mark.parametrize(
    "rows",
    [
        ([-1], [0], [0]),
        ([9999], [0], [0]),
        ([1], [3], [0]),
        ([1], [0], [64]),
        ([1], [0], [-1]),
        ([], [], []),
        ([1] * (MAX_ROWS + 1), [0] * (MAX_ROWS + 1), range(MAX_ROWS + 1)),
        ([1, 2], [0], [0]),
    ],
)
def test_rows_outside_the_model_are_refused_before_they_write(llama, rows):
    with pytest.raises(ValueError, match=r"outside|takes"):
        step(llama[0], *rows, [])


# ---------------------------------------------------------------------- architectures


def test_gemma3_with_windows_and_two_ropes(gemma):
    forward, oracle = gemma
    ids = ids_of(150, seed=3)
    assert worst(evaluate(forward, ids), oracle(ids)) < CLOSE
    single = evaluate(forward, ids[140:], at=140, size=1)
    assert worst(single, oracle(ids)[140:]) < CLOSE


def test_a_row_sees_exactly_its_window(tmp_path):
    """One local layer, window 8: the row at 40 sees 33 .. 40, in chunks and alone."""
    path = toy_gguf(tmp_path / "m.gguf", arch="gemma3", tokenizer="none", layers=1, ctx=128)
    forward = portable(path, n_ctx=100, n_slots=2)
    ids = ids_of(96, seed=1)
    base = evaluate(forward, ids)
    for far, sees in ((32, False), (33, True), (40, True)):
        other = ids.copy()
        other[far] = (other[far] + 1) % 256
        changed = evaluate(forward, other, slot=1)
        assert (worst(changed[40:41], base[40:41]) > CLOSE) is sees
        alone = evaluate(forward, other[40:41], slot=1, at=40)
        assert worst(alone, changed[40:41]) < CLOSE


# B088
def test_rope_freqs_divide_the_angles(tmp_path):
    plain = toy_gguf(tmp_path / "a.gguf", heads=8, kv_heads=8, ctx=128)
    scaled = toy_gguf(tmp_path / "b.gguf", heads=8, kv_heads=8, ctx=128, rope_freqs=[1, 1, 8, 8])
    ids = ids_of(60, seed=2)
    a, b = evaluate(portable(plain), ids), evaluate(portable(scaled), ids)
    assert worst(b, Oracle(scaled)(ids)) < CLOSE
    assert worst(a[:1], b[:1]) < CLOSE  # position 0 does not turn
    assert worst(a[-1:], b[-1:]) > 10 * CLOSE


CASES = {
    "odd sizes": {
        "dim": 48,
        "heads": 3,
        "kv_heads": 3,
        "ff": 72,
        "tokenizer": "none",
        "vocab": 261,
    },
    "untied": {"tied": False},
    "one kv head, wide heads": {"heads": 4, "kv_heads": 1, "head_dim": 32},
    "linear rope scaling": {
        "metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    },
    "half of a head turns": {"metadata": {"llama.rope.dimension_count": 8}},
    "soft caps, own scale": {
        "metadata": {
            "llama.attn_logit_softcapping": 2.0,
            "llama.final_logit_softcapping": 3.0,
            "llama.attention.scale": 0.3,
        }
    },
    "mixed types": {
        "dim": 256,
        "ff": 256,
        "layers": 1,
        "tied": False,
        "types": {
            "token_embd*": "Q6_K",
            "output.*": "Q8_0",
            "*attn_q*": "Q4_K",
            "*attn_k*": "Q5_0",
            "*attn_v*": "F16",
            "*ffn_up*": "Q4_1",
            "*ffn_down*": "Q5_K",
            "*": "BF16",
        },
    },
}


@pytest.mark.parametrize("name", CASES)
def test_llama_variants(tmp_path, name):
    path = toy_gguf(tmp_path / "m.gguf", ctx=128, **CASES[name])
    forward = portable(path, n_slots=1)
    ids = ids_of(33, seed=4)
    right = Oracle(path)(ids)
    assert worst(evaluate(forward, ids), right) < CLOSE
    assert worst(evaluate(forward, ids, size=1), right) < CLOSE


@pytest.mark.parametrize(("name", "qk_norm"), [("qwen2", False), ("qwen3", True)])
def test_a_new_architecture_is_one_row_of_the_table(tmp_path, monkeypatch, name, qk_norm):
    path = toy_gguf(tmp_path / "m.gguf", arch=name, ctx=128)
    monkeypatch.delitem(arch.ARCHITECTURES, name)
    with pytest.raises(UnsupportedModelError, match=name):
        portable(path)
    norm = QKNorm() if qk_norm else None
    row = Architecture(name, "halves", (Attention(qk_norm=norm), FeedForward()))
    monkeypatch.setitem(arch.ARCHITECTURES, name, row)
    forward = portable(path)
    biases = forward.config.layers[0].block.attention.biases
    assert ("attn_q_bias" in biases) is (name == "qwen2")
    ids = ids_of(20, seed=6)
    assert worst(evaluate(forward, ids), Oracle(path)(ids)) < CLOSE


# B091
def test_padding_rows_of_the_vocabulary_are_evaluated_like_others(tmp_path):
    """Their logits are the file's; that their ids are never drawn is the sampler's part."""
    path = toy_gguf(tmp_path / "m.gguf", embed_rows=400)
    forward = portable(path, n_slots=1)
    assert forward.n_vocab == 400
    assert forward.config.n_tokens < 400
    assert worst(evaluate(forward, [1, 2, 399]), Oracle(path)([1, 2, 399])) < CLOSE


# ---------------------------------------------------------------------- cache, memory, device


def test_resize_keeps_what_is_in_the_cache(tmp_path):
    path = toy_gguf(tmp_path / "m.gguf", ctx=512)
    forward, oracle = portable(path, n_ctx=40, n_slots=1), Oracle(path)
    ids = ids_of(200, seed=21)
    evaluate(forward, ids[:37])
    before = forward.memory_bytes
    forward.resize(200, 3)
    assert (forward.n_ctx, forward.n_slots) == (200, 3)
    assert forward.memory_bytes == before  # new positions take memory when they are filled
    assert worst(evaluate(forward, ids[37:], at=37), oracle(ids)[37:]) < CLOSE
    assert worst(evaluate(forward, ids[:9], slot=2), oracle(ids[:9])) < CLOSE
    forward.resize(10, 1)
    assert (forward.n_ctx, forward.n_slots) == (200, 3)  # never smaller
    assert forward.memory_bytes > before


@pytest.mark.parametrize("step", ["_new_cache", "_build_layer"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_resize_that_fails_changes_nothing(tmp_path, monkeypatch, step, after):
    path = toy_gguf(tmp_path / "m.gguf", ctx=512)
    forward, oracle = portable(path, n_ctx=40, n_slots=2), Oracle(path)
    ids = ids_of(100, seed=21)
    evaluate(forward, ids[:37], slot=1)
    real, calls = getattr(forward, step), []

    def limited(*args):
        calls.append(args)
        if len(calls) > after:
            raise MemoryError("the device is full")
        return real(*args)

    monkeypatch.setattr(forward, step, limited)
    with pytest.raises(MemoryError):
        forward.resize(200, 3)
    monkeypatch.undo()
    assert (forward.n_ctx, forward.n_slots) == (40, 2)
    assert worst(evaluate(forward, ids[37:40], slot=1, at=37), oracle(ids)[37:40]) < CLOSE
    forward.resize(200, 3)
    assert worst(evaluate(forward, ids[40:], slot=1, at=40), oracle(ids)[40:]) < CLOSE
    forward.close()


def test_copy_takes_a_prefix_to_another_slot(llama):
    forward, oracle = llama
    ids = ids_of(30, seed=23)
    evaluate(forward, ids, slot=0)
    forward.copy(0, 2, 18)
    forward.copy(0, 2, 0)
    forward.copy(1, 1, 5)
    other = ids[:18] + ids_of(7, seed=24)
    assert worst(evaluate(forward, other[18:], slot=2, at=18), oracle(other)[18:]) < CLOSE
    assert worst(evaluate(forward, ids[29:], slot=0, at=29), oracle(ids)[29:]) < CLOSE


def test_a_device_whose_memory_is_not_the_hosts(tmp_path):
    """A second CPU device goes the way of any other device: copies in and out."""
    path = toy_gguf(tmp_path / "m.gguf", ctx=128, dim=48, heads=3, kv_heads=3)
    forward, oracle = portable(path, n_ctx=20, n_slots=2, where="cpu:1"), Oracle(path)
    assert forward.description == "portable, CPU:1"
    ids = ids_of(40, seed=25)
    assert worst(evaluate(forward, ids[:15]), oracle(ids[:15])) < CLOSE
    forward.resize(64, 2)
    forward.copy(0, 1, 15)
    assert worst(evaluate(forward, ids[15:], slot=1, at=15), oracle(ids)[15:]) < CLOSE
    forward.close()


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_close_gives_the_memory_back(tmp_path):
    """50 MB of weights: resident memory falls by nearly all of it."""
    path = toy_gguf(tmp_path / "m.gguf", layers=1, vocab=200_000, tokenizer="none", ctx=64)

    def used():
        forward = portable(path, n_slots=1)
        step(forward, ids_of(30), [0] * 30, range(30), [29])
        return forward

    used().close()  # what stays with Python, numpy and tinygrad is there from now on
    gc.collect()
    empty = resident()
    forward = used()
    held, loaded = forward.memory_bytes, resident()
    assert held > 50e6
    assert loaded - empty > 0.9 * held
    buffers = [weakref.ref(array.buffer) for array in forward._weights.all()]
    forward.close()
    forward.close()
    del forward
    gc.collect()
    assert resident() - empty < 0.1 * held
    assert not any(buffer() is not None and buffer().is_allocated() for buffer in buffers)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_empty_cache_takes_no_memory(tmp_path):
    path = toy_gguf(tmp_path / "m.gguf", layers=4, ctx=100_000)
    portable(path, n_ctx=64, n_slots=1).close()
    before = resident()
    forward = portable(path, n_ctx=100_000, n_slots=4)  # 400 MB when full
    assert resident() - before < 20e6
    assert forward.memory_bytes < 2e6
    forward.close()


def test_a_closed_forward_refuses_steps(tmp_path):
    forward = portable(toy_gguf(tmp_path / "m.gguf", layers=1), n_slots=1)
    forward.close()
    assert forward.memory_bytes == 0
    with pytest.raises(RuntimeError, match="closed"):
        step(forward, [1], [0], [0], [0])


# ---------------------------------------------------------------------- graphs


# TG-84
def test_everything_is_compiled_while_loading(tmp_path, monkeypatch):
    from tinygrad import Tensor
    from tinygrad.engine import realize

    path = toy_gguf(tmp_path / "m.gguf", arch="gemma3", tokenizer="none", layers=7, ctx=512)
    said = []
    forward = portable(path, n_ctx=300, on_progress=lambda *a: said.append(a))
    stages = list(dict.fromkeys(stage for stage, _, _ in said))
    assert stages == ["load", "compile"]
    for stage in stages:
        steps = [(done, total) for s, done, total in said if s == stage]
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1] > 0
        assert all(a[0] <= b[0] for a, b in pairwise(steps))

    def refuse(*args, **kwargs):
        raise AssertionError("a step built a graph")

    for module, name in (
        (realize, "compile_linear"),
        (realize, "lower_and_compile"),
        (Tensor, "realize"),
    ):
        monkeypatch.setattr(module, name, refuse)
    ids = ids_of(290, seed=31)
    got = evaluate(forward, ids)
    alone = evaluate(forward, ids[260:], at=260, size=1)
    monkeypatch.undo()
    right = Oracle(path)(ids)
    assert worst(got, right) < CLOSE
    assert worst(alone, right[260:]) < CLOSE


def test_steps_beside_user_code_that_captures_and_computes(llama):
    """Steps run on one thread while another captures its own TinyJit programs: neither disturbs."""
    from tinygrad import Tensor, TinyJit

    forward, oracle = llama
    ids = ids_of(24, seed=41)
    right = oracle(ids)
    stop, faults, rounds = threading.Event(), [], []

    def steps():
        try:
            while not stop.is_set():
                assert worst(evaluate(forward, ids, slot=0), right) < CLOSE
                assert worst(evaluate(forward, ids[:3], slot=1, size=1), right[:3]) < CLOSE
                rounds.append(1)
        except BaseException as e:
            faults.append(e)

    thread = threading.Thread(target=steps)
    thread.start()
    for i in range(4):
        double = TinyJit(lambda x, by=float(i + 2): (x * by).realize())
        for n in range(4):
            x = Tensor([float(n), 1.0], device="CPU").contiguous().realize()
            assert double(x).tolist() == [n * (i + 2.0), i + 2.0]
    stop.set()
    thread.join()
    assert not faults
    assert rounds


def test_a_step_on_the_cpu_is_a_few_calls_without_the_gil(llama):
    """No Python between kernels: a cell that computes in Python would be waited for at each."""
    forward, _ = llama
    tables = [run._table for run in [*forward._runs.values(), *forward._outputs.values()]]
    assert len(tables) == 2 * forward.n_slots + 2
    assert all(table is not None for table in tables)
    assert all(len(table._rows) > forward.config.n_layers for table in tables[:-2])


def test_the_users_tinygrad_settings_change_nothing(llama, tmp_path):
    from tinygrad.helpers import BEAM, Context

    path = toy_gguf(tmp_path / "m.gguf", layers=1, ctx=128)
    ids = ids_of(12, seed=43)
    with Context(BEAM=2, JIT=0, NOOPT=1, PARALLEL=2, DEFAULT_FLOAT="float16"):
        forward = portable(path, n_slots=1)
        assert worst(evaluate(forward, ids), Oracle(path)(ids)) < CLOSE
        assert worst(evaluate(llama[0], ids), llama[1](ids)) < CLOSE
        assert BEAM.value == 2


def test_growing_waits_until_the_running_cell_is_over(tmp_path):
    gate = Gate()
    forward = portable(toy_gguf(tmp_path / "m.gguf", layers=1), n_ctx=16, n_slots=1, gate=gate)
    gate.enter()  # a cell runs on this thread
    grower = threading.Thread(target=forward.resize, args=(32, 1))
    grower.start()
    time.sleep(0.3)
    assert forward.n_ctx == 16
    with gate.lend():
        grower.join(timeout=30)
    gate.leave()
    assert forward.n_ctx == 32
