"""Embedding models: vectors are those of transformers in float32, whatever else is embedded."""

import json
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llm_magic
from llm_magic.engine.encoder.config import architecture
from llm_magic.engine.encoder.forward import erf
from llm_magic.engine.encoder.load import load_encoder
from llm_magic.errors import (
    ContextOverflowError,
    GGUFError,
    ModelWarning,
    NotLoadedError,
    RequestError,
    UnsupportedError,
    UnsupportedModelError,
)

DATA = Path(__file__).parent.parent / "data" / "encoders"
TEXTS = (
    "A cat sits on the mat.",
    "Überraschung! embeddings 日本語",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 20,
)
NAMES = {
    "bert.embeddings.word_embeddings": "token_embd",
    "bert.embeddings.position_embeddings": "position_embd",
    "bert.embeddings.token_type_embeddings": "token_types",
    "bert.embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "bert.pooler.dense": "cls",
    "classifier": "cls.output",
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


def in_gguf(name: str) -> str:
    """A weight's name in transformers -> in GGUF."""
    name, _, end = name.rpartition(".")
    words = name.split(".")
    if "layers" in words or "layer" in words:
        at = next(i for i, word in enumerate(words) if word.isdigit())
        return f"blk.{words[at]}.{NAMES['.'.join(words[at + 1 :])]}.{end}"
    return f"{NAMES[name]}.{end}"


def write(path: Path, arch: str, stored: dict[str, np.ndarray], **extra: object) -> Path:
    """A GGUF file of stored weights with a WordPiece vocabulary of 60 tokens."""
    out = gguf.GGUFWriter(path, arch)
    sizes = {"block_count": 2, "context_length": 40, "embedding_length": 32,
             "feed_forward_length": 48, "attention.head_count": 4}  # fmt: skip
    for key, value in sizes.items():
        out.add_uint32(f"{arch}.{key}", value)
    out.add_float32(f"{arch}.attention.layer_norm_epsilon", 1e-12)
    out.add_float32(f"{arch}.rope.freq_base", 1000.0)
    for key, number in extra.items():
        out.add_uint32(f"{arch}.{key}", int(str(number)))
    out.add_tokenizer_model("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁w{i}" for i in range(4, 56)), *"abcd"]
    out.add_token_list(words)
    out.add_token_types([3, 3, 3, 3, *[1] * 56])
    for key, i in (("unknown", 1), ("cls", 2), ("seperator", 3), ("padding", 0)):
        out.add_uint32(f"tokenizer.ggml.{key}_token_id", i)
    for name, values in stored.items():
        if name.startswith("w.") and "position_ids" not in name:
            out.add_tensor(in_gguf(name[2:]), values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def silent(stage: str, done: int, total: int) -> None:
    pass


# ---------------------------------------------------------------- the values


def test_a_cross_encoder_scores_pairs_as_transformers_does(tmp_path: Path) -> None:
    # LB-65: the pair as the vocabulary writes it, the first value of the head is the score
    stored = dict(np.load(DATA / "pair.npz"))
    path = write(tmp_path / "pair.gguf", "bert", stored, pooling_type=4)
    model = load_encoder(path, silent)
    ids = stored["ids"].astype(np.int64)
    assert np.abs(model.forward.encode(ids, 5) - stored["hidden"]).max() < 5e-6
    assert model.forward.score(ids, 5) == pytest.approx(float(stored["score"]), abs=1e-5)
    assert model.tokenizer.whole("w11 w12 w13", "w14 w15") == ids.tolist()
    llm = llm_magic.load(path)
    try:
        assert llm.rerank("w11 w12 w13", []) == []
        ranked = llm.rerank("w11 w12 w13", ["w20", "w14 w15", "w21"])
        assert [r.score for r in ranked] == sorted((r.score for r in ranked), reverse=True)
        alone = llm.rerank("w11 w12 w13", ["w14 w15"])[0].score
        assert alone == next(r.score for r in ranked if r.index == 1)
        assert alone == pytest.approx(float(stored["score"]), abs=1e-5)
        assert len(llm.rerank("w11", ["w20", "w14 w15", "w21"], top_n=2)) == 2
        with pytest.raises(RequestError, match="query is ''"):
            llm.rerank("", ["w14"])
        with pytest.raises(ContextOverflowError, match="shorten the query or the document"):
            llm.rerank("w11", ["w14 " * 50])
    finally:
        llm.unload()


def test_rotary_positions_and_gates_of_nomic_bert(tmp_path: Path) -> None:
    stored = dict(np.load(DATA / "nomic.npz"))
    model = load_encoder(write(tmp_path / "nomic.gguf", "nomic-bert", stored), silent)
    vectors = model.forward.encode(stored["ids"].astype(np.int64))
    assert np.abs(vectors - stored["hidden"]).max() < 5e-6


def test_the_error_function() -> None:
    from math import erf as exact

    x = np.linspace(-6, 6, 20001, dtype=np.float32)
    assert np.abs(erf(x) - np.array([exact(float(v)) for v in x])).max() < 1e-6


@pytest.fixture(scope="module")
def llm(minilm_path: Path):
    llm = llm_magic.load("minilm")
    yield llm
    llm.unload()


@pytest.mark.minilm
class TestMiniLM:
    """all-MiniLM-L6-v2, converted here from the safetensors of a package."""

    def test_vectors_are_those_of_transformers(self, llm: llm_magic.LLM) -> None:
        # LAI-71: the last hidden state behind the final norm, its mean, of length 1
        stored = np.load(DATA / "minilm.npz")
        for i, text in enumerate(TEXTS):
            (vectors,) = llm.embed([text], pooling="none", normalize=False)
            assert np.abs(vectors[:3] - stored[f"some{i}"]).max() < 1e-5
            mean = llm.embed(text, normalize=False)
            assert mean.shape == (1, 384)
            assert np.abs(mean[0] - stored[f"mean{i}"]).max() < 1e-5
            unit = llm.embed(text)
            assert np.linalg.norm(unit.astype(np.float64)) == pytest.approx(1, abs=1e-6)
            assert (llm.embed(text, pooling="cls", normalize=False)[0] == vectors[0]).all()
            assert (llm.embed(text, pooling="last", normalize=False)[0] == vectors[-1]).all()

    def test_ids_are_those_of_its_own_tokenizer(self, llm: llm_magic.LLM) -> None:
        cases = json.loads((DATA / "minilm_ids.json").read_text(encoding="utf-8"))
        assert len(cases) > 250
        for text, ids in cases:
            assert [p.id for p in llm.tokenize(text, special=False)] == ids, text

    @settings(max_examples=10, deadline=None)
    @given(
        others=st.lists(st.text(min_size=1).filter(lambda t: t.strip()), max_size=4),
        at=st.integers(0, 4),
    )
    def test_a_vector_has_the_same_bits_in_any_company(self, llm, others, at) -> None:
        # LAI-72: the same text, the same vector
        alone = llm.embed(TEXTS[1])[0]
        texts = [*others[:at], TEXTS[1], *others[at:]]
        assert (llm.embed(texts)[texts.index(TEXTS[1])] == alone).all()

    def test_near_texts_are_near(self, llm: llm_magic.LLM) -> None:
        cosines = llm.similar(["A cat sits on the mat.", "Stocks fell.", "A kitten on a rug."])
        assert cosines.shape == (3, 3)
        assert np.allclose(np.diag(cosines), 1)
        assert cosines[0, 2] > 0.5 > cosines[0, 1]
        ranked = llm.rerank("Where is the cat?", ["Stocks fell.", "The cat is in the garden."])
        assert [r.index for r in ranked] == [1, 0]

    def test_wrong_texts_are_named(self, llm: llm_magic.LLM) -> None:
        # LAI-70: an empty text is an error
        with pytest.raises(RequestError, match="text 1 is empty"):
            llm.embed(["a", " "])
        with pytest.raises(RequestError, match=r"texts\[0\] is 3; it must be a text"):
            llm.embed([3])
        with pytest.raises(RequestError, match="pooling is 'max'"):
            llm.embed(["a"], pooling="max")
        assert llm.embed([]).shape == (0, 0)

    def test_a_long_text_is_an_error_unless_it_may_be_cut(self, llm: llm_magic.LLM) -> None:
        long = "word " * 600
        with pytest.raises(ContextOverflowError, match="truncate=True"):
            llm.embed(["a", long])
        with pytest.warns(ModelWarning, match="text 1 has 602 tokens and was cut to the 512"):
            cut = llm.embed(["a", long], truncate=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (llm.embed("word " * 510)[0] == cut[1]).all()

    def test_it_says_that_it_does_not_generate(self, llm: llm_magic.LLM) -> None:
        for call in (lambda: llm.complete("x"), lambda: llm.chat("x"), lambda: llm.score("x")):
            with pytest.raises(UnsupportedError, match="embedding model"):
                call()


def test_an_unloaded_encoder_says_so(tmp_path: Path) -> None:
    # LAI-70: without a model it is not loaded
    stored = dict(np.load(DATA / "nomic.npz"))
    path = write(tmp_path / "n.gguf", "nomic-bert", stored)
    llm = llm_magic.load(path)
    assert llm_magic.load(path) is llm
    llm.unload()
    with pytest.raises(NotLoadedError):
        llm.embed("w4")


# ---------------------------------------------------------------- damaged files


def test_damaged_encoders_are_refused(tmp_path: Path) -> None:
    stored = dict(np.load(DATA / "nomic.npz"))
    some = {k: v for k, v in stored.items() if "layers.1.mlp.up_proj" not in k}
    with pytest.raises(GGUFError, match=r"lacks blk\.1\.ffn_up\.weight"):
        llm_magic.load(write(tmp_path / "a.gguf", "nomic-bert", some))
    wide = stored | {"w.layers.1.mlp.up_proj.weight": np.zeros((40, 32), np.float32)}
    with pytest.raises(
        GGUFError, match=r"ffn_up\.weight has shape \[40, 32\], expected \[48, 32\]"
    ):
        llm_magic.load(write(tmp_path / "b.gguf", "nomic-bert", wide))
    with pytest.raises(UnsupportedModelError, match="mixture of experts"):
        llm_magic.load(write(tmp_path / "c.gguf", "nomic-bert", stored, expert_count=4))
    more = stored | {"w.layers.0.mlp.up_proj.bias": np.zeros(48, np.float32)}
    more["w.layers.2.mlp.up_proj.weight"] = np.zeros((48, 32), np.float32)
    with pytest.raises(UnsupportedModelError, match=r"unsupported tensors.*blk\.2\.ffn_up"):
        llm_magic.load(write(tmp_path / "d.gguf", "nomic-bert", more))
    assert not [x for x in llm_magic.hub.hub.loaded() if x.model in "abcd"]


def test_a_look_at_the_first_bytes_tells_the_architecture(tmp_path: Path) -> None:
    stored = dict(np.load(DATA / "nomic.npz"))
    path = write(tmp_path / "n.gguf", "nomic-bert", stored)
    assert architecture(path) == "nomic-bert"
    data = path.read_bytes()
    for end in range(80):
        path.write_bytes(data[:end])
        assert "nomic-bert".startswith(architecture(path))
    assert architecture(tmp_path / "none.gguf") == ""
