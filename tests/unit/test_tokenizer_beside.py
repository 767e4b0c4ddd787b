"""A tokenizer.json beside a model file, each kind against the tokenizer of the same vocabulary."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from llm_magic.engine.tokenizer.tokenizer import BYTE_LEVEL, Tokenizer, build_tokenizer
from llm_magic.errors import ModelWarning

G = "tokenizer.ggml."
SPECIAL = ["<|start|>", "<|end|>"]
TEXTS = ("hello", " hello hell", "ab\n\nAB 12", "héllo 日本", "", "x<|end|>y", "a  b")


def byte_level(merges: list[tuple[str, str]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metadata of a GGUF file, tokenizer.json) of one byte-level vocabulary."""
    tokens = [*BYTE_LEVEL, *(a + b for a, b in merges)]
    model = tokenizers.Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    )
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    data = json.loads(model.to_str())
    data["added_tokens"] = [added(len(tokens) + i, text) for i, text in enumerate(SPECIAL)]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*tokens, *SPECIAL],
        "token_type": np.array([1] * len(tokens) + [3, 3], np.int32),
        "merges": [f"{a} {b}" for a, b in merges],
        "eos_token_id": len(tokens) + 1,
    }
    return {G + k: v for k, v in metadata.items()}, data


def added(i: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": text, "special": True, **flags}


MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hell"), ("1", "2")]


def same(a: Tokenizer, b: Tokenizer, texts: tuple[str, ...] = TEXTS) -> bool:
    return all(
        a.encode(text, special=special, start=start) == b.encode(text, special=special, start=start)
        for text in texts
        for special in (True, False)
        for start in (True, False)
    ) and [a.token_bytes(i) for i in range(a.n_vocab)] == [
        b.token_bytes(i) for i in range(b.n_vocab)
    ]


def beside(metadata: Mapping[str, Any], data: Mapping[str, Any], **config: Any) -> Tokenizer:
    return build_tokenizer(metadata, beside=(data, config))


def test_the_tokenizer_beside_the_model_wins() -> None:
    # LAI-25
    metadata, data = byte_level(MERGES)
    inside = build_tokenizer(metadata)
    assert same(beside(metadata, data), inside)
    data["model"]["merges"] = data["model"]["merges"][:3]  # the file beside it is the newer one
    fixed = beside(metadata, data)
    assert fixed.encode("hello") != inside.encode("hello")
    assert fixed.decode(fixed.encode("hello")) == "hello"
    assert fixed.end_ids == inside.end_ids


def test_settings_beside_the_model_name_the_special_tokens() -> None:
    metadata, data = byte_level(MERGES)
    t = beside(metadata, data, bos_token={"content": "<|start|>"}, add_bos_token=True)
    assert t.with_bos(t.encode("a")) == [t.id_of("<|start|>"), *t.encode("a")]
    assert beside(metadata, data, eos_token="<|start|>").eos == t.bos


def test_wordpiece_beside_the_model() -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "un", "##able", "!"]
    model = tokenizers.Tokenizer(
        models.WordPiece(vocab={w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    model.normalizer = normalizers.BertNormalizer()
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    data = json.loads(model.to_str())
    data["added_tokens"] = [added(i, words[i]) for i in range(4)]
    metadata = {
        G + "model": "bert",
        G + "tokens": [*words[:4], "▁the", "▁un", "able", "▁!"],
        G + "token_type": np.array([3] * 4 + [1] * 4, np.int32),
        G + "cls_token_id": 2,
        G + "seperator_token_id": 3,
        G + "unknown_token_id": 1,
    }
    assert same(beside(metadata, data), build_tokenizer(metadata), ("The unable!", "[SEP] x"))


def test_sentencepiece_beside_the_model_keeps_the_space_before_a_text() -> None:
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *fallback, "▁", "a", "b", "ab", "▁ab"]
    vocab = {t: i for i, t in enumerate(tokens)}
    model = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[("a", "b"), ("▁", "ab")], unk_token="<unk>",
                   byte_fallback=True)
    )  # fmt: skip
    model.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    data = json.loads(model.to_str())
    data["added_tokens"] = [added(i, tokens[i]) for i in range(3)]
    scores = [0.0] * (3 + 256) + [-9.0, -8.0, -7.0, -1.0, -2.0]
    metadata = {
        G + "model": "llama",
        G + "tokens": tokens,
        G + "scores": np.array(scores, np.float32),
        G + "token_type": np.array([2, 3, 3] + [6] * 256 + [1] * 5, np.int32),
    }
    texts = ("ab", "ab ab", "a日b", " ab")
    assert same(beside(metadata, data), build_tokenizer(metadata), texts)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["model"].update(type="Other"), "'Other' is not known"),
        (lambda d: d["model"].pop("vocab"), "vocab"),
        (lambda d: d["model"].update(merges=["x y"]), "out of vocabulary"),
        (lambda d: d["added_tokens"].append(added(1 << 40, "far")), "token with the id"),
        (
            lambda d: d["model"].update(vocab={f"w{i}": i for i in range(100)}, merges=[]),
            "belongs to another model",
        ),
        (lambda d: d["added_tokens"].append(added(300, "one more")), "belongs to another model"),
        (lambda d: d.update(model=3), "has no attribute"),
    ],
)
def test_a_file_that_cannot_be_taken_is_named_and_left_alone(change, reason) -> None:
    metadata, data = byte_level(MERGES)
    change(data)
    with pytest.warns(ModelWarning, match=f"tokenizer.json beside the model is not used.*{reason}"):
        t = beside(metadata, data)
    assert same(t, build_tokenizer(metadata))
