"""Ids of the real vocabularies are llama.cpp's: as stored, and live where the peer is there."""

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import missing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.tokenizer import sentencepiece
from llm_magic.engine.tokenizer.tokenizer import Tokenizer, build_tokenizer
from llm_magic.engine.tokenizer.vocabulary import Kind

DATA = Path(__file__).parent.parent / "data" / "tokenizer"


def load_regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", DATA / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


regenerate = load_regenerate()


@dataclass(frozen=True)
class Real:
    """A real model's tokenizer and what llama.cpp said about it."""

    name: str
    path: Path
    cache: Path
    tokenizer: Tokenizer
    stored: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("smollm2", marks=pytest.mark.model),
        pytest.param("gemma3", marks=pytest.mark.gemma),
    ],
)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Real:
    path = request.getfixturevalue(f"{request.param}_path")
    cache = tmp_path_factory.mktemp("tokenizers")
    return Real(
        name=request.param,
        path=path,
        cache=cache,
        tokenizer=build_tokenizer(open_gguf(path).metadata, cache),
        stored=json.loads((DATA / f"{request.param}.json").read_text(encoding="utf-8")),
    )


def need_peer() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        missing("peers", "pip install '.[peers]'")


@pytest.fixture(scope="module")
def peer(real: Real) -> Any:
    need_peer()
    return regenerate.Peer(real.path)


# ------------------------------------------------------------------------------ stored ids


def test_texts_give_the_stored_ids(real: Real) -> None:
    """TG-1, TG-2: more than 300 strings, with and without control tokens, with and without BOS."""
    tokenizer, prefix = real.tokenizer, real.stored["prefix"]
    assert len(real.stored["cases"]) > 300
    for case in real.stored["cases"]:
        text, plain = case["text"], case["plain"]
        special = case.get("special", plain)
        assert tokenizer.encode(text, special=False) == plain, text
        assert tokenizer.encode(text) == special, text
        assert tokenizer.encode(text, special=False, bos=True) == prefix + plain, text
        if special[: len(prefix)] != prefix:
            assert tokenizer.encode(text, bos=True) == prefix + special, text


def test_ids_of_the_references(real: Real, reference_dir: Path) -> None:
    texts = json.loads((reference_dir / "texts.json").read_text(encoding="utf-8"))
    with np.load(reference_dir / f"{real.name}.npz") as stored:
        keys = [key.removesuffix("_ids") for key in stored if key.endswith("_ids")]
        assert keys
        for key in keys:
            assert real.tokenizer.encode(texts[key], bos=True) == stored[f"{key}_ids"].tolist(), key


# B014
def test_end_ids_are_those_of_llamacpp(real: Real) -> None:
    assert sorted(real.tokenizer.end_ids) == real.stored["end_ids"]


def test_round_trip_and_bytes(real: Real) -> None:
    """B077: the bytes of the pieces are those of the text, where the vocabulary has all bytes."""
    tokenizer = real.tokenizer
    unknown = missing_bytes(tokenizer)
    assert len(unknown) == (0 if real.name == "gemma3" else 21)
    for case in real.stored["cases"]:
        text = case["text"]
        data = b"".join(p.bytes for p in tokenizer.pieces(text, special=False))
        if real.name == "gemma3":
            text = text.replace("▁", " ")  # U+2581 is how the vocabulary writes a space
        elif unknown & set(text.encode()):
            continue
        assert data == text.encode(), text


def missing_bytes(tokenizer: Tokenizer) -> set[int]:
    """SmolLM2's vocabulary lacks tokens of some control characters and impossible bytes."""
    single = {tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)}
    return {b for b in range(256) if bytes([b]) not in single}


def test_every_token_is_found_again(real: Real) -> None:
    """A token whose text is whole characters tokenises to itself; not so the byte tokens of
    characters that are tokens too, and one that no merges lead to, in llama.cpp neither.
    """
    tokenizer = real.tokenizer
    names = {tokenizer.id_of(f"<0x{b:02X}>") for b in range(256)}
    lost = []
    for i in range(0, tokenizer.n_vocab, 1 if real.name == "smollm2" else 7):
        text = tokenizer.token_bytes(i).decode("utf-8", "replace")
        if "\ufffd" not in text and i not in names and tokenizer.encode(text) != [i]:
            lost.append(text)
    assert lost == ([] if real.name == "smollm2" else [" ::::::::"])


def test_cached_tokenizer_gives_the_same_ids(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sentencepiece, "_last_cuts", lambda *_: pytest.fail("the cache was not used")
    )
    again = build_tokenizer(open_gguf(real.path).metadata, real.cache)
    for case in real.stored["cases"]:
        assert again.encode(case["text"], special=False) == case["plain"]


# B013
def test_no_role_is_forged(real: Real) -> None:
    tokenizer, mark = real.tokenizer, "\ue123"
    for name in tokenizer.control_texts:
        assert not tokenizer.control_ids & set(tokenizer.encode(f"x{name}y", special=False)), name
        hidden = tokenizer.encode(f"x{name[0]}{mark}{name[1:]}y", mark=mark)
        assert hidden == tokenizer.encode(f"x{name}y", special=False)
        assert tokenizer.encode(name) == [tokenizer.id_of(name)]


# ------------------------------------------------------------------------------ live

SETTINGS = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PARTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.text(" \t\n\r'abAB19-=.<>|▁é日", max_size=12),
    st.sampled_from(regenerate.strings()),
    st.builds(
        lambda part, n: part * n, st.text("a1 -=#\n\té", min_size=1, max_size=3), st.integers(1, 40)
    ),
)


@pytest.mark.peers
def test_stored_ids_are_what_llamacpp_says_now(real: Real, peer: Any) -> None:
    assert [case["text"] for case in real.stored["cases"]] == regenerate.strings()
    assert regenerate.cases(peer, regenerate.strings()) == real.stored["cases"]
    assert regenerate.end_ids(real.path) == real.stored["end_ids"]
    assert peer("", add=True) == real.stored["prefix"]


@pytest.mark.peers
def test_any_text_gives_the_ids_of_llamacpp(real: Real, peer: Any) -> None:
    tokenizer, prefix = real.tokenizer, real.stored["prefix"]

    @SETTINGS
    @given(st.lists(PARTS, max_size=6).map("".join), st.booleans(), st.booleans())
    def check(text: str, add: bool, parse: bool) -> None:
        expected = peer(text, add, parse)
        if add and len(prefix) == 1 and expected[1:2] == prefix:
            expected = expected[1:]  # llama.cpp doubles a BOS that the text has; we do not
        assert tokenizer.encode(text, special=parse, bos=add) == expected

    check()


@pytest.mark.peers
@pytest.mark.slow
@pytest.mark.parametrize("name", regenerate.PRESETS)
def test_every_preset_cuts_text_as_llamacpp_does(name: str) -> None:
    """TG-1, B005: every preset, with a vocabulary that shows where text was cut."""
    need_peer()
    metadata = regenerate.pairs_metadata(name)
    tokenizer = build_tokenizer(metadata)
    with regenerate.toy_model(metadata) as path:
        peer = regenerate.Peer(path)
        for text in regenerate.strings():
            assert tokenizer.encode(text, special=False) == peer(text), text
        for text in code_points():
            assert tokenizer.encode(text) == peer(text, parse=True), text

        @SETTINGS
        @given(st.lists(PARTS, max_size=4).map("".join))
        def check(text: str) -> None:
            assert tokenizer.encode(text) == peer(text, parse=True)

        check()


def code_points() -> Iterator[str]:
    """Each 7th code point of the first two planes and some beyond, between all sorts of others."""
    points = [*range(0x80, 0x20000, 7), *range(0x2A6D0, 0x2F9FF, 97), 0xE0001, 0xF0000, 0x10FFFF]
    valid = [chr(c) for c in points if not 0xD800 <= c <= 0xDFFF]
    for i in range(0, len(valid), 100):
        block = valid[i : i + 100]
        yield "<|end|>".join(f"a{c}a {c}1{c} {c}!{c}{c}\n{c}  {c} {c}" for c in block)


SPM_WORDS = ["▁", "▁▁", "▁B", "B", "A", "a", "b", "ab", "ba", "aba", "bab", "aa", "éa", "\n"]


@pytest.mark.peers
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("name", ["", "Phi-3 mini"])
def test_sentencepiece_merges_as_llamacpp_does(prefix: bool, name: str) -> None:
    """B008, B011: space prefix, byte fallback, control tokens that swallow white space."""
    need_peer()
    special = {"<|endoftext|>": Kind.CONTROL, "<|u|>": Kind.USER, "<|c|>": Kind.CONTROL}
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * 256]
    kinds += [Kind.NORMAL] * len(SPM_WORDS) + list(special.values())
    scores = [0.0] * 259 + [-float(7 * i % 17) for i in range(len(SPM_WORDS))] + [0.0] * 3
    metadata = {
        "general.name": name,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *fallback, *SPM_WORDS, *special],
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.add_space_prefix": prefix,
    }
    tokenizer = build_tokenizer(metadata)
    with regenerate.toy_model(metadata) as path:
        peer = regenerate.Peer(path)
        parts = st.sampled_from([*"abABé日 \n\t", "</s>", "<s>", "<unk>", "aba", "  ", *special])

        @SETTINGS
        @given(st.lists(parts, max_size=15).map("".join), st.booleans())
        def check(text: str, parse: bool) -> None:
            assert tokenizer.encode(text, special=parse) == peer(text, parse=parse)

        check()
