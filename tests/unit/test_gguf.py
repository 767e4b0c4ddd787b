"""The header parser: what it reads from good files, and what it says about all others."""

import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.toy import info, kv, kv_array, kv_str, kv_u32, raw_gguf, string, toy_gguf

from llm_magic.engine.gguf import open_gguf
from llm_magic.errors import GGUFError, LLMError, ModelNotFoundError

U64 = struct.Struct("<Q").pack
DATA = bytes(range(128))


# ----------------------------------------------------------------------------- good files


def test_toy_reads_like_gguf_py(tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "toy.gguf", types={"*ffn*": "Q4_1", "*": "F16"}, tied=False)
    oracle = gguf.GGUFReader(path)
    with open_gguf(path) as g:
        assert g.path == path
        assert g.paths == (path,)
        assert g.version == 3
        assert list(g.tensors) == [t.name for t in oracle.tensors]
        for want in oracle.tensors:
            got = g.tensors[want.name]
            assert got.shape == tuple(reversed(want.shape.tolist()))
            assert (got.type, got.type_name) == (int(want.tensor_type), want.tensor_type.name)
            assert (got.offset, got.nbytes) == (want.data_offset, want.n_bytes)
            assert got.size == want.n_elements
            assert bytes(got.data) == want.data.tobytes()
            assert not got.data.flags.writeable
        for key, field in oracle.fields.items():
            if not key.startswith("GGUF."):
                got = g.metadata[key]
                assert (got.tolist() if hasattr(got, "tolist") else got) == field.contents()


def test_every_value_type(tmp_path: Path) -> None:
    kvs = [
        kv("u8", 0, b"\xff"),
        kv("i8", 1, b"\xff"),
        kv("u16", 2, b"\xff\xff"),
        kv("i16", 3, b"\xff\xff"),
        kv("u32", 4, b"\xff" * 4),
        kv("i32", 5, b"\xff" * 4),
        kv("f32", 6, struct.pack("<f", 0.1)),
        kv("yes", 7, b"\x01"),
        kv("no", 7, b"\x00"),
        kv_str("str", "grün ✅"),
        kv("u64", 10, b"\xff" * 8),
        kv("i64", 11, b"\xff" * 8),
        kv("f64", 12, struct.pack("<d", 0.1)),
        kv_array("bools", 7, 2, b"\x00\x01"),
        kv_array("floats", 6, 2, struct.pack("<2f", 1.5, -2.5)),
        kv_array("longs", 11, 2, struct.pack("<2q", -(2**63), 2**63 - 1)),
        kv_array("none", 4, 0, b""),
        kv_array("words", 8, 2, string("a") + string("")),
        kv_array("no words", 8, 0, b""),
    ]
    m = open_gguf(raw_gguf(tmp_path / "m.gguf", kvs), vocab_only=True).metadata
    assert [m[k] for k in ("u8", "u16", "u32", "u64")] == [255, 65535, 2**32 - 1, 2**64 - 1]
    assert [m[k] for k in ("i8", "i16", "i32", "i64")] == [-1] * 4
    assert m["f32"] == np.float32(0.1)
    assert m["f64"] == 0.1
    assert (m["yes"], m["no"]) == (True, False)
    assert m["str"] == "grün ✅"
    assert all(type(m[k]) is int for k in ("u8", "i64"))
    assert type(m["f32"]) is float
    assert m["bools"].dtype == np.bool_
    assert m["bools"].tolist() == [False, True]
    assert m["floats"].tolist() == [1.5, -2.5]
    assert m["longs"].tolist() == [-(2**63), 2**63 - 1]
    assert m["none"].size == 0
    assert not m["floats"].flags.writeable
    assert m["words"] == ["a", ""]
    assert m["no words"] == []


def test_strings_that_are_not_utf8(tmp_path: Path) -> None:
    odd = b"a\xff\xe2\x9c"
    kvs = [kv_str("general.name", odd), kv_array("tokens", 8, 2, string(odd) + string("ok"))]
    m = open_gguf(raw_gguf(tmp_path / "m.gguf", kvs), vocab_only=True).metadata
    assert m["general.name"] == "a\ufffd\ufffd"
    assert m["tokens"][0].encode("utf-8", "surrogateescape") == odd
    assert m["tokens"][1] == "ok"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("align", [1, 8, 32, 4096])
def test_alignment_and_versions(tmp_path: Path, version: int, align: int) -> None:
    path = raw_gguf(
        tmp_path / "m.gguf",
        [kv_u32("general.alignment", align)],
        [info("a", (4,)), info("b", (8,), offset=align * -(-16 // align))],
        DATA.ljust(2 * max(align, 64), b"\7"),
        version=version,
        align=align,
    )
    with open_gguf(path) as g:
        assert bytes(g.tensors["a"].data) == DATA[:16]
        at = align * -(-16 // align)
        assert bytes(g.tensors["b"].data) == DATA.ljust(2 * max(align, 64), b"\7")[at : at + 32]


def test_shape_is_row_major(tmp_path: Path) -> None:
    path = raw_gguf(tmp_path / "m.gguf", [], [info("t", (4, 2, 3))], bytes(96))
    with open_gguf(path) as g:
        assert g.tensors["t"].shape == (3, 2, 4)


def test_gaps_and_any_order_of_tensors(tmp_path: Path) -> None:
    infos = [info("late", (4,), offset=96), info("early", (4,), offset=0)]
    with open_gguf(raw_gguf(tmp_path / "m.gguf", [], infos, DATA)) as g:
        assert list(g.tensors) == ["late", "early"]
        assert bytes(g.tensors["late"].data) == DATA[96:112]


def test_close_is_repeatable_and_views_outlive_it(tmp_path: Path) -> None:
    g = open_gguf(toy_gguf(tmp_path / "m.gguf"))
    view = g.tensors["output_norm.weight"].data
    before = view.tobytes()
    g.close()
    g.close()
    assert g.closed
    assert g.tensors == {}
    assert g.metadata["general.architecture"] == "llama"
    assert view.tobytes() == before


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs /proc")
def test_close_drops_the_mapping(tmp_path: Path) -> None:
    path = toy_gguf(tmp_path / "mapped.gguf")
    g = open_gguf(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    g.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_vocabulary_alone_only_when_asked(tmp_path: Path) -> None:
    path = raw_gguf(tmp_path / "m.gguf", [kv_str("general.architecture", "llama")])
    with pytest.raises(GGUFError, match="no tensors"):
        open_gguf(path)
    assert open_gguf(path, vocab_only=True).tensors == {}


# ----------------------------------------------------------------------------- refused files

ONE = [info("t", (32,))]
B083 = {
    "n_kv 2**63": ({"n_kv": 2**63}, "metadata entry count", 16),
    "n_kv one too many": (
        {"kvs": [kv_u32("a", 1)], "n_kv": 2, "data": b""},
        "metadata entry count",
        16,
    ),
    "n_tensors 2**40": ({"n_tensors": 2**40}, "tensor count", 8),
    "n_tensors 2**64-1": ({"n_tensors": 2**64 - 1}, "tensor count", 8),
    "key length 2**62": ({"kvs": [U64(2**62) + b"abcdefgh"]}, "key of metadata entry 0", 24),
    "key length 2**17": ({"kvs": [string(b"k" * 2**17) + bytes(8)]}, "key of metadata", 24),
    "empty key": ({"kvs": [kv_u32("", 1)]}, "key of metadata entry 0", 24),
    "key not UTF-8": ({"kvs": [kv_u32(b"\xff", 1)]}, "key of metadata entry 0", 24),
    "string length 2**64-1": ({"kvs": [kv("k", 8, U64(2**64 - 1) + b"x")]}, "value of 'k'", 37),
    "string length 2**40": ({"kvs": [kv("k", 8, U64(2**40) + b"x")]}, "value of 'k'", 37),
    "string one byte too long": (
        {"kvs": [kv("k", 8, U64(2) + b"x")], "data": b""},
        "value of 'k'",
        45,
    ),
    "array length 2**61": ({"kvs": [kv_array("k", 4, 2**61, bytes(8))]}, "array 'k'", 41),
    "array of 2**64-1 bytes": ({"kvs": [kv_array("k", 0, 2**64 - 1, b"")]}, "array 'k'", 41),
    "array too long by one": (
        {"kvs": [kv_array("k", 4, 3, bytes(8))], "data": b""},
        "array 'k'",
        49,
    ),
    "strings 2**61": ({"kvs": [kv_array("k", 8, 2**61, bytes(8))]}, "array 'k'", 41),
    "string in array 2**63": ({"kvs": [kv_array("k", 8, 1, U64(2**63))]}, "element of 'k' 0", 49),
    "strings end early": (
        {"kvs": [kv_array("k", 8, 2, string("aaaaaaaaaa"))]},
        "element of 'k' 1",
        67,
    ),
    "array of arrays": ({"kvs": [kv_array("k", 9, 1, bytes(20))]}, "element type of 'k'", 37),
    "array of 13": ({"kvs": [kv_array("k", 13, 1, bytes(8))]}, "array 'k'", 49),
    "value type 99": ({"kvs": [kv("k", 99, bytes(8))]}, "value of 'k'", 37),
    "bool 2": ({"kvs": [kv("k", 7, b"\x02")]}, "value of 'k'", 37),
    "key twice": ({"kvs": [kv_u32("k", 1), kv_u32("k", 1)]}, "key of metadata entry 1", 41),
    "alignment 0": ({"kvs": [kv_u32("general.alignment", 0)], "infos": ONE}, "alignment", 49),
    "alignment 3": ({"kvs": [kv_u32("general.alignment", 3)], "infos": ONE}, "alignment", 49),
    "alignment text": ({"kvs": [kv_str("general.alignment", "32")], "infos": ONE}, "alignment", 49),
    "alignment true": ({"kvs": [kv("general.alignment", 7, b"\1")], "infos": ONE}, "alignment", 49),
    "alignment 2**31": (
        {"kvs": [kv_u32("general.alignment", 2**31)], "infos": ONE},
        "data of tensor 't'",
        2**31,
    ),
    "n_dims 0": ({"infos": [info("t", (), n_dims=0) + bytes(16)]}, "n_dims of tensor 't'", 33),
    "n_dims 5": ({"infos": [info("t", (1,) * 5)]}, "n_dims of tensor 't'", 33),
    "n_dims 2**32-1": ({"infos": [info("t", n_dims=2**32 - 1)]}, "n_dims of tensor 't'", 33),
    "dims wrap to 0": ({"infos": [info("t", (2**63, 4))]}, "dim 0 of tensor 't'", 37),
    "dims wrap to 32": ({"infos": [info("t", (32, 2**59 + 1))]}, "dim 1 of tensor 't'", 45),
    "bytes wrap": ({"infos": [info("t", (2**62,))]}, "data of tensor 't'", 64),
    "dim 0": ({"infos": [info("t", (32, 0))]}, "dim 1 of tensor 't'", 45),
    "tensor type 255": ({"infos": [info("t", kind=255)]}, "type of tensor 't'", 45),
    "tensor type removed": ({"infos": [info("t", kind=31)]}, "type of tensor 't'", 45),
    "half a block": ({"infos": [info("t", (33,), kind=2)]}, "dim 0 of tensor 't'", 37),
    "offset 2**64-32": (
        {"infos": [info("t", offset=2**64 - 32)]},
        "data of tensor 't'",
        2**64 + 32,
    ),
    "offset misaligned": ({"infos": [info("t", offset=4)]}, "offset of tensor 't'", 24),
    "overlap": (
        {"infos": [info("a", (16,)), info("b", (8,), offset=32)]},
        "offset of tensor 'b'",
        57,
    ),
    "same place": ({"infos": [info("a", (8,)), info("b", (8,))]}, "offset of tensor 'b'", 57),
    "data too short": ({"infos": [info("t", (33,))]}, "data of tensor 't'", 64),
    "tensor twice": ({"infos": [info("t", (8,)), info("t", (8,), offset=32)]}, "name of", 57),
    "empty tensor name": ({"infos": [info("", (8,))]}, "name of tensor 0", 24),
    "tensor name 2**50": ({"infos": [U64(2**50) + bytes(40)]}, "name of tensor 0", 24),
}


@pytest.mark.parametrize("case", B083)
def test_crafted_sizes(tmp_path: Path, case: str) -> None:
    parts, field, offset = B083[case]
    path = raw_gguf(tmp_path / "evil.gguf", **{"data": DATA, **parts})
    tracemalloc.start()
    start = time.perf_counter()
    with pytest.raises(GGUFError) as e:
        open_gguf(path)
    seconds, peak = time.perf_counter() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 50e6
    assert field in str(e.value)
    assert f"at offset {offset}:" in str(e.value)


# B083
def test_huge_sparse_file_does_not_take_memory(tmp_path: Path) -> None:
    # 1 TB that takes no disk: the bytes that remain allow almost any count.
    for i, kvs in enumerate(
        [kv("k", 8, U64(2**39)), kv_array("k", 0, 2**39, b""), kv_array("k", 8, 2**36, b"")]
    ):
        path = raw_gguf(tmp_path / f"{i}.gguf", [kvs])
        try:
            os.truncate(path, 2**40)
        except OSError:
            pytest.skip("no sparse files of this size here")
        tracemalloc.start()
        with pytest.raises(GGUFError, match="is more than"):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 50e6
        tracemalloc.stop()


def test_messages_are_bounded_and_printable(tmp_path: Path) -> None:
    name = "\x1b[31m" + "x" * 60000
    path = raw_gguf(tmp_path / "m.gguf", [], [info(name, kind=255)])
    with pytest.raises(GGUFError) as e:
        open_gguf(path)
    assert len(str(e.value)) < 1000
    assert "\x1b" not in str(e.value)


# B085
@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GGUF\x00\x00\x00\x03" + bytes(4), "big-endian file"),
        (b"GGUF\x00\x00\x00\x02" + bytes(4), "big-endian file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(4), "version 1 is not supported"),
        (b"GGUF\x04\x00\x00\x00" + bytes(4), "version 4 is not supported"),
        (b"GGUF\x00\x00\x00\x00" + bytes(4), "version 0 is not supported"),
        (b"GGUX\x03\x00\x00\x00" + bytes(4), "not a GGUF file"),
        (b"FUGG\x03\x00\x00\x00" + bytes(4), "not a GGUF file"),
    ],
)
def test_big_endian_and_other_versions(tmp_path: Path, head: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head)
    with pytest.raises(GGUFError, match=says):
        open_gguf(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"G", "not a GGUF file"),
        (b"GGUF", "version, at offset 4: needs 4 bytes, 0 are left"),
        (b"GGUF\x03\x00\x00\x00", "tensor count, at offset 8: needs 8 bytes"),
        (b"hello, this is text\n" * 9, "not a GGUF file: it begins with b'hell'"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"\n <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"tjgg" + bytes(60), "old format"),
        (U64(100) + b'{"__metadata__":{}}', "safetensors"),
    ],
)
def test_other_files_are_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=says) as e:
        open_gguf(path)
    assert str(path) in str(e.value)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no such file: .*nothing\.gguf"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(GGUFError, match="is a folder"):
        open_gguf(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(GGUFError, match="not a regular file"):
            open_gguf(tmp_path / "pipe.gguf")


def test_truncated_anywhere(tmp_path: Path) -> None:
    whole = toy_gguf(tmp_path / "m.gguf", types="Q4_0", layers=1, tokenizer="none").read_bytes()
    cut = tmp_path / "cut.gguf"
    for n in [*range(0, 1200, 7), len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:n])
        with pytest.raises(GGUFError):
            open_gguf(cut)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    at=st.integers(0, 900),
    value=st.binary(min_size=1, max_size=8),
)
def test_damaged_anywhere_is_an_error_of_ours_or_harmless(
    tmp_path: Path, at: int, value: bytes
) -> None:
    path = tmp_path / "m.gguf"
    if not path.exists():
        toy_gguf(path, layers=1, tokenizer="none", types="Q8_0")
    data = bytearray(path.read_bytes())
    data[at : at + len(value)] = value
    hurt = tmp_path / "hurt.gguf"
    hurt.write_bytes(data)
    try:
        with open_gguf(hurt) as g:
            for t in g.tensors.values():
                assert len(t.data) == t.nbytes
    except LLMError:
        pass


# ----------------------------------------------------------------------------- split sets


@pytest.fixture
def split(tmp_path: Path) -> Callable[[int], Path]:
    """Three files of 7 tensors; output.weight lies in the last but one."""
    toy_gguf(tmp_path / "m.gguf", tied=False, split=7)
    assert len(list(tmp_path.glob("m-*.gguf"))) == 3
    return lambda no: tmp_path / f"m-{no:05d}-of-00003.gguf"


# B086
def test_any_file_opens_the_same_model(split: Callable[[int], Path], tmp_path: Path) -> None:
    whole = open_gguf(toy_gguf(tmp_path / "whole.gguf", tied=False))
    for no in (1, 2, 3):
        with open_gguf(split(no)) as g:
            assert g.path == split(1)
            assert g.paths == (split(1), split(2), split(3))
            assert list(g.tensors) == list(whole.tensors)
            for name, want in whole.tensors.items():
                got = g.tensors[name]
                assert (got.shape, got.type) == (want.shape, want.type)
                assert np.array_equal(got.data, want.data)
            keys = {k: v for k, v in g.metadata.items() if not k.startswith("split.")}
            assert list(keys) == list(whole.metadata)
            # Tied or not is seen from all files together.
            assert g.tensors["output.weight"].path == split(3)


# B086
@pytest.mark.parametrize("opened", [1, 2])
def test_missing_file_is_named(split: Callable[[int], Path], opened: int) -> None:
    split(3).unlink()
    with pytest.raises(ModelNotFoundError, match=r"missing .*m-00003-of-00003\.gguf"):
        open_gguf(split(opened))


# B086
def test_mixed_up_files_are_refused(split: Callable[[int], Path], tmp_path: Path) -> None:
    shutil.move(split(2), tmp_path / "aside")
    shutil.move(split(3), split(2))
    shutil.move(tmp_path / "aside", split(3))
    with pytest.raises(GGUFError, match=r"m-00002-of-00003\.gguf: .*split\.no is 2"):
        open_gguf(split(1))


# B086
def test_renamed_file_says_what_is_needed(split: Callable[[int], Path]) -> None:
    alone = split(1).rename(split(1).with_name("model.gguf"))
    with pytest.raises(GGUFError, match=r"split\.count .* name must end"):
        open_gguf(alone)


# B086
def test_tensor_total_is_checked(split: Callable[[int], Path], tmp_path: Path) -> None:
    one = split(1).read_bytes()
    key = string("split.tensors.count")
    at = one.index(key) + len(key) + 4
    split(1).write_bytes(one[:at] + struct.pack("<i", 22) + one[at + 4 :])
    with pytest.raises(GGUFError, match=r"split\.tensors\.count is 22.* 21 tensors"):
        open_gguf(split(2))


# B086
def test_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for no in (1, 2):
        kvs = [kv("split.no", 2, struct.pack("<H", no - 1)), kv("split.count", 2, b"\2\0")]
        raw_gguf(tmp_path / f"m-{no:05d}-of-00002.gguf", kvs, [info("t", (32,))], DATA)
    with pytest.raises(GGUFError, match="'t' is in two files"):
        open_gguf(tmp_path / "m-00001-of-00002.gguf")


# B086
@pytest.mark.parametrize("count", [b"\2", b"\xff"])
def test_hostile_counts(tmp_path: Path, count: bytes) -> None:
    kvs = [kv("split.no", 2, b"\0\0"), kv("split.count", 1, count)]
    path = raw_gguf(tmp_path / "m-00001-of-65535.gguf", kvs, [info("t", (32,))], DATA)
    with pytest.raises(GGUFError, match=r"split\.count"):
        open_gguf(path)


# B086
def test_first_file_may_hold_metadata_alone(tmp_path: Path) -> None:
    def kvs(no: int) -> list[bytes]:
        return [kv("split.no", 2, struct.pack("<H", no)), kv("split.count", 2, b"\2\0")]

    raw_gguf(tmp_path / "m-00001-of-00002.gguf", [*kvs(0), kv_str("general.name", "n")])
    raw_gguf(tmp_path / "m-00002-of-00002.gguf", kvs(1), [info("t", (32,))], DATA)
    with open_gguf(tmp_path / "m-00002-of-00002.gguf") as g:
        assert list(g.tensors) == ["t"]
        assert g.metadata["general.name"] == "n"


# ----------------------------------------------------------------------------- real files


def _best(path: Path) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        open_gguf(path).close()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.model
def test_smollm2_opens(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as g:
        assert len(g.tensors) == 272
        assert g.tensors["token_embd.weight"].shape == (49152, 576)
        assert g.metadata["tokenizer.ggml.tokens"][2] == "<|im_end|>"
    assert _best(smollm2_path) < 0.4  # measured 0.03


@pytest.mark.gemma
def test_a_vocabulary_of_262144_opens_quickly(gemma3_path: Path) -> None:
    with open_gguf(gemma3_path) as g:
        assert len(g.metadata["tokenizer.ggml.tokens"]) == 262144
        assert g.metadata["tokenizer.ggml.scores"].dtype == np.float32
    assert _best(gemma3_path) < 0.4  # measured 0.08
