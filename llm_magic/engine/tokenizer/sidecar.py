"""A tokenizer.json beside a model file, and what tokenizer_config.json says beside it.

A newer conversion of a tokenizer often comes as such a file, so it wins over the one inside the
model file (LocalAI does the same). It is only taken where it is of this model: a folder of
downloads holds many files.

Format: https://huggingface.co/docs/tokenizers (the `tokenizers` package reads it itself).
"""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tokenizers

from llm_magic.errors import ModelWarning

from .vocabulary import MODELS, PREFIX, Kind, Model

SPACE = "▁"
ALIKE = 0.98  # share of token texts that must be those of the model file
_GGUF_NAMES = {model: name for name, model in MODELS.items()}
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What replaces the tokenizer of a model file.

    metadata: `tokenizer.ggml.*` keys. model: cuts texts without special tokens.
    """

    metadata: Mapping[str, Any]
    model: tokenizers.Tokenizer


def read_sidecar(
    metadata: Mapping[str, Any], data: Mapping[str, Any], config: Mapping[str, Any]
) -> Sidecar | None:
    """The tokenizer of a tokenizer.json; None, with a ModelWarning, where it cannot be taken.

    Args:
        metadata: Of the model file.
        data: The content of tokenizer.json.
        config: The content of tokenizer_config.json; empty without one.
    """
    try:
        kind = _kind(data)
        texts, types = _texts(data, kind)
        own = metadata.get(PREFIX + "tokens")
        if own is not None:
            texts, types = _fitted(texts, types, own)
        keys = {
            **{k: v for k, v in metadata.items() if k.startswith(PREFIX)},
            PREFIX + "model": _GGUF_NAMES[kind],
            PREFIX + "tokens": texts,
            PREFIX + "token_type": np.array(types, np.int32),
            PREFIX + "scores": np.zeros(len(texts), np.float32),
            PREFIX + "merges": [],
            **_settings(config, texts),
        }
        return Sidecar(keys, _model(data, kind))
    except Exception as e:  # the Rust side has errors of its own
        reason = str(e) or type(e).__name__
        warnings.warn(
            f"tokenizer.json beside the model is not used: {reason[:200]}. The tokenizer inside "
            "the model file is",
            ModelWarning,
            stacklevel=2,
        )
        return None


def _kind(data: Mapping[str, Any]) -> Model:
    model = data["model"]
    match model.get("type", "BPE"):
        case "WordPiece":
            return "wordpiece"
        case "Unigram":
            return "unigram"
        case "BPE":
            return "bpe" if "ByteLevel" in json.dumps(data.get("pre_tokenizer")) else "spm"
    raise ValueError(f"its model {model.get('type')!r} is not known")


def _texts(data: Mapping[str, Any], kind: Model) -> tuple[list[str], list[int]]:
    """Token texts as GGUF writes them, and their kinds, by id."""
    vocab = data["model"]["vocab"]
    by_id: dict[int, tuple[str, int]] = {}
    pairs = enumerate(row[0] for row in vocab) if kind == "unigram" else _swapped(vocab)
    for i, text in pairs:
        byte = kind == "spm" and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        by_id[i] = (_written(text, kind), Kind.BYTE if byte else Kind.NORMAL)
    for token in data.get("added_tokens") or ():
        by_id[token["id"]] = (
            token["content"],
            Kind.CONTROL if token.get("special") else Kind.USER,
        )
    n = max(by_id) + 1
    if n > 1 << 24:
        raise ValueError(f"it has a token with the id {n - 1}")
    rows = [by_id.get(i, (f"[EMPTY_{i}]", Kind.UNUSED)) for i in range(n)]
    return [text for text, _ in rows], [int(found) for _, found in rows]


def _swapped(vocab: Mapping[str, int]) -> list[tuple[int, str]]:
    return [(i, text) for text, i in vocab.items()]


def _written(text: str, kind: Model) -> str:
    if kind != "wordpiece":
        return text
    return text[2:] if text.startswith("##") else SPACE + text


def _fitted(texts: list[str], types: list[int], own: list[str]) -> tuple[list[str], list[int]]:
    """As many tokens as the model file has, if they are the same ones."""
    same = sum(a == b for a, b in zip(texts, own, strict=False))
    if len(texts) > len(own) or same < ALIKE * len(texts):
        raise ValueError(
            f"it has {len(texts)} tokens, of which {same} are those of the model file, which has "
            f"{len(own)}: it belongs to another model"
        )
    rest = range(len(texts), len(own))
    return [*texts, *(f"[EMPTY_{i}]" for i in rest)], [*types, *(int(Kind.UNUSED) for _ in rest)]


def _settings(config: Mapping[str, Any], texts: list[str]) -> dict[str, Any]:
    """Special ids and flags of tokenizer_config.json as GGUF keys."""
    out: dict[str, Any] = {}
    for role, name in _SPECIAL.items():
        token = config.get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in texts:
            out[f"{PREFIX}{name}_token_id"] = texts.index(text)
    for flag in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(flag), bool):
            out[PREFIX + flag] = config[flag]
    return out


def _model(data: Mapping[str, Any], kind: Model) -> tokenizers.Tokenizer:
    """The part that cuts texts. Special tokens are found before, and what puts them around a text,
    cuts or pads it is ours."""
    plain = {**data, "added_tokens": [], "truncation": None, "padding": None}
    plain |= {"post_processor": None, "decoder": None}
    if kind == "spm":  # the space before a text depends on what comes before it: see Tokenizer
        plain |= {"normalizer": None, "pre_tokenizer": None}
    return tokenizers.Tokenizer.from_str(json.dumps(plain))
