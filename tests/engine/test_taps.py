"""Taps of a step: what is recorded, what is changed, and that nothing else changes by it."""

import numpy as np
import pytest
from support import families
from support.kernels_oracle import Oracle, i32, kernel_forward, portable_forward
from support.toy import toy_gguf

from llm_magic.engine import cpu
from llm_magic.engine.forward import CHANGED, POINTS, Change, Read, Taps
from llm_magic.engine.kernels.targets import usable
from llm_magic.engine.portable.forward import Portable
from llm_magic.errors import EngineError

LAYERS, DIM = 2, 64
SUMS = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post")
IDS = np.random.default_rng(5).integers(3, 250, 29).astype(np.int32)
_USABLE = [t.name for t in usable(cpu.cpu_features())]
VARIANTS = list(dict.fromkeys((_USABLE[0], _USABLE[-1]))) if _USABLE else []  # best and plain
ARCHITECTURES = ("llama", "qwen3", "gemma2", "gemma3")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Files by architecture, made once."""
    folder = tmp_path_factory.mktemp("taps")

    def path(arch):
        file = folder / f"{arch}.gguf"
        if not file.exists():
            toy_gguf(file, arch=arch, layers=LAYERS, tokenizer="none", types="Q8_0")
        return file

    return path


@pytest.fixture(scope="module", params=[*VARIANTS, "portable"])
def make(request, model):
    """A function that makes the forward pass of one path, one for each file; all are closed."""
    made = {}

    def forward(arch):
        if arch not in made and request.param == "portable":
            made[arch] = portable_forward(model(arch))
        elif arch not in made:
            options = {"n_ctx": 64, "n_slots": 2, "threads": 2}
            made[arch] = kernel_forward(model(arch), target=request.param, **options)
        return made[arch]

    yield forward
    for one in made.values():
        one.close()


def width(config, point):
    return {"q": config.q_dim, "z": config.q_dim, "k": config.kv_dim, "v": config.kv_dim}.get(
        point, config.dim
    )


def reads(config, n, points=POINTS):
    """(taps that read these points of every layer, the arrays by point and layer)"""
    out = {
        (p, i): np.full((n, width(config, p)), np.nan, np.float32)
        for p in points
        for i in range(config.n_layers)
        if p != "normalized" or i == config.n_layers - 1
    }
    return Taps(tuple(Read(p, i, 0, a) for (p, i), a in out.items())), out


def run(forward, ids=IDS, taps=None, slot=0, at=0, want=None):
    rows = np.arange(len(ids), dtype=np.int32)
    want = rows if want is None else i32(*want)
    return forward.step(ids, rows * 0 + slot, rows + at, want, 0, taps).logits.copy()


def close(got, expected):
    return np.abs(got - expected).max() / np.abs(expected).max()


def in_halves(config, point, i, heads):
    """The oracle's heads in the order in which taps give them."""
    rope = config.layers[i].rope
    if point not in ("q", "k") or rope.pairs == "halves":
        return heads
    order = (*range(0, rope.dim, 2), *range(1, rope.dim, 2), *range(rope.dim, config.head_dim))
    return heads.reshape(len(heads), -1, config.head_dim)[..., order].reshape(len(heads), -1)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_point_is_what_an_independent_forward_pass_has_there(make, model, arch):
    forward, oracle = make(arch), Oracle(model(arch))
    taps, out = reads(forward.config, len(IDS))
    run(forward, taps=taps)
    oracle.logits(IDS)
    # Portable: float32; kernels: activations of 15 bits, keys and values of 16.
    bound = 1e-4 if isinstance(forward, Portable) else 5e-4
    for (point, i), got in out.items():
        expected = in_halves(forward.config, point, i, oracle.points[point, i])
        assert close(got, expected) <= bound, (point, i)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_stream_is_the_sum_of_what_its_blocks_add_in_the_order_of_the_engine(make, arch):
    forward = make(arch)
    taps, out = reads(forward.config, len(IDS), SUMS)
    run(forward, taps=taps)
    for i in range(LAYERS):
        pre, attn, mid, mlp, post = (out[p, i] for p in SUMS)
        np.testing.assert_array_equal(pre + attn, mid)
        np.testing.assert_array_equal(mid + mlp, post)
    np.testing.assert_array_equal(out["resid_post", 0], out["resid_pre", 1])


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("n", [1, 3, 29])
def test_reading_changes_no_bit(make, arch, n):
    forward = make(arch)
    taps, _ = reads(forward.config, n)
    tapped = run(forward, IDS[:n], taps)
    if forward.batch_invariant:
        np.testing.assert_array_equal(tapped, run(forward, IDS[:n]))
    else:  # other programs, whose sums may round differently
        np.testing.assert_allclose(tapped, run(forward, IDS[:n]), atol=1e-4)


def test_final_hidden_states_need_no_logits(make):
    forward = make("llama")
    taps, out = reads(forward.config, len(IDS), ("normalized", "resid_post"))
    assert run(forward, taps=taps, want=()).shape[0] == 0
    hidden = out["normalized", LAYERS - 1]
    assert np.isfinite(hidden).all()
    logits = forward.unembed(out["resid_post", LAYERS - 1][: forward.max_wanted]).logits
    np.testing.assert_array_equal(logits.argmax(-1), run(forward).argmax(-1))
    if forward.batch_invariant:
        np.testing.assert_array_equal(logits, run(forward))


@pytest.mark.parametrize("point", sorted(CHANGED))
def test_a_change_reaches_its_rows_and_no_other_request(make, point):
    """The rows of slot 1 stand in the same batch, before and behind the changed ones."""
    forward = make("gemma3")
    n, wide = 20, width(forward.config, point)
    vector = np.random.default_rng(1).standard_normal((1, wide)).astype(np.float32)
    tokens = np.concatenate([IDS[:9], IDS[:n]])
    slots = i32(*[1] * 9, *[0] * n)
    positions = i32(*range(9), *range(n))
    want = i32(8, 9 + n - 1)
    for add in (True, False):
        plain = forward.step(tokens, slots, positions, want).logits.copy()
        nothing = forward.step(tokens, slots, positions, want, 0, Taps()).logits.copy()
        changed = Taps(changes=(Change(point, 0, 9, n, vector, add),))
        got = forward.step(tokens, slots, positions, want, 0, changed).logits.copy()
        base = plain if forward.batch_invariant else nothing
        np.testing.assert_array_equal(got[0], base[0])
        assert np.abs(got[1] - base[1]).max() > 1e-3


@pytest.mark.parametrize("point", sorted(CHANGED))
def test_replacing_everything_by_itself_changes_no_bit(make, point):
    forward = make("gemma2")
    taps, out = reads(forward.config, len(IDS), (point,))
    before = run(forward, taps=taps)
    changes = tuple(Change(point, i, 0, len(IDS), a, False) for (_, i), a in out.items())
    np.testing.assert_array_equal(run(forward, taps=Taps(changes=changes)), before)


def test_changes_come_before_reads_and_in_their_order(make):
    forward = make("llama")
    n = len(IDS)
    taps, out = reads(forward.config, n, ("resid_post",))
    ones = np.ones((1, DIM), np.float32)
    changes = (
        Change("resid_post", 1, 0, n, 2 * ones, False),
        Change("resid_post", 1, 0, n, ones, True),
        Change("resid_post", 1, 3, 2, 0 * ones[:, :16], False, column=32),
    )
    run(forward, taps=Taps(taps.reads, changes))
    expected = np.full((n, DIM), 3, np.float32)
    expected[3:5, 32:48] = 0
    np.testing.assert_array_equal(out["resid_post", 1], expected)


def test_a_text_in_two_steps_gives_what_it_gives_in_one(make):
    forward = make("llama")
    points = ("resid_mid", "q", "normalized")
    taps, whole = reads(forward.config, len(IDS), points)
    run(forward, taps=taps)
    parts = {key: np.empty_like(a) for key, a in whole.items()}
    for a, b in ((0, 10), (10, len(IDS))):
        some = tuple(Read(p, i, 0, out[a:b]) for (p, i), out in parts.items())
        run(forward, IDS[a:b], Taps(some), at=a)
    for key, expected in whole.items():
        if forward.batch_invariant:
            np.testing.assert_array_equal(parts[key], expected)
        else:
            np.testing.assert_allclose(parts[key], expected, atol=1e-4)


@pytest.mark.parametrize(
    "taps",
    [
        Taps((Read("resid_pre", LAYERS, 0, np.empty((3, DIM), np.float32)),)),
        Taps((Read("nowhere", 0, 0, np.empty((3, DIM), np.float32)),)),
        Taps((Read("resid_pre", 0, 1, np.empty((3, DIM), np.float32)),)),
        Taps(changes=(Change("q", 0, 0, 3, np.empty((1, DIM), np.float32), True),)),
        Taps(changes=(Change("resid_pre", 0, -1, 2, np.empty((1, DIM), np.float32), True),)),
    ],
)
def test_taps_outside_of_the_step_are_refused(make, taps):
    with pytest.raises(EngineError):
        run(make("llama"), IDS[:3], taps)


@pytest.mark.parametrize("name", ["gpt2", "gptneox", "command-r", "gpt-oss"])
def test_taps_reach_blocks_of_every_kind(tmp_path, name):
    """Layer norms, parallel parts, experts: both paths agree, and reading changes no bit."""
    case = families.CASES[name]
    path, ids = families.write(tmp_path / "f.gguf", case), i32(*families.ids(case)[:20])
    found = []
    for forward in (kernel_forward(path, n_ctx=64, n_slots=1), portable_forward(path, 64, 1)):
        points = (*SUMS, "normalized")
        taps, out = reads(forward.config, len(ids), points)
        plain, tapped = run(forward, ids), run(forward, ids, taps)
        assert np.abs(plain - tapped).max() <= (0 if forward.batch_invariant else 1e-4)
        for i in range(forward.config.n_layers):
            pre, attn, _, mlp, post = (out[p, i] for p in SUMS)
            np.testing.assert_array_equal((pre + attn) + mlp, post)
        found.append(out)
        forward.close()
    assert max(close(found[0][key], found[1][key]) for key in found[0]) <= 5e-4
