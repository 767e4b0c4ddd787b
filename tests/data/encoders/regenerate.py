"""Vectors of encoders as transformers computes them: rewrites the files beside this.

    python tests/data/encoders/regenerate.py FOLDER_OF_MINILM    (torch, transformers, gguf)

minilm.npz: all-MiniLM-L6-v2 in float32 on the CPU, eager attention: token ids, and the vectors of
the last layer, for the texts below; and the ids of its own tokenizer for every string of
../tokenizer/regenerate.py.
pair.npz, nomic.npz: a BERT cross-encoder and a nomic-bert with few random weights, which are in the
files ("w." before their names), and what they compute.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    NomicBertConfig,
    NomicBertModel,
)

HERE = Path(__file__).resolve().parent
TEXTS = (
    "A cat sits on the mat.",
    "Überraschung! embeddings 日本語",
    "x",
    "The quick brown fox jumps over the lazy dog. " * 20,
)


def minilm(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = BertModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    out = {}
    for i, text in enumerate(TEXTS):
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state[0].numpy()
        out[f"ids{i}"] = np.array(ids, np.int32)
        out[f"mean{i}"] = hidden.mean(0)
        out[f"some{i}"] = hidden[:3]
    np.savez_compressed(HERE / "minilm.npz", **out)
    strings = json.loads((HERE.parent / "tokenizer" / "smollm2.json").read_text("utf-8"))["cases"]
    cases = [
        [s["text"], tokenizer(s["text"], add_special_tokens=False)["input_ids"]]
        for s in strings
        if not any(mark in s["text"] for mark in ("[UNK]", "[SEP]", "[CLS]", "[PAD]", "[MASK]"))
    ]
    text = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (HERE / "minilm_ids.json").write_text(f"[\n{text}\n]\n", "utf-8")


def pair() -> None:
    """A cross-encoder with random weights: scores of pairs of ids."""
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=40, num_labels=1, hidden_act="gelu",
        initializer_range=0.3, attn_implementation="eager",
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    ids = torch.tensor([[2, 11, 12, 13, 3, 14, 15, 3]])
    types = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]])
    with torch.no_grad():
        score = model(ids, token_type_ids=types).logits.item()
        hidden = model.bert(ids, token_type_ids=types).last_hidden_state[0].numpy()
    weights = {f"w.{k}": v.numpy().astype(np.float32) for k, v in model.state_dict().items()}
    np.savez_compressed(HERE / "pair.npz", score=score, hidden=hidden, ids=ids[0].numpy(), **weights)


def nomic() -> None:
    torch.manual_seed(8)
    config = NomicBertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=40, initializer_range=0.3,
        attn_implementation="eager",
    )  # fmt: skip
    model = NomicBertModel(config).eval()
    ids = torch.tensor([[2, 11, 12, 13, 30, 14, 15, 3]])
    with torch.no_grad():
        hidden = model(ids).last_hidden_state[0].numpy()
    weights = {f"w.{k}": v.numpy().astype(np.float32) for k, v in model.state_dict().items()}
    np.savez_compressed(HERE / "nomic.npz", hidden=hidden, ids=ids[0].numpy(), **weights)


if __name__ == "__main__":
    minilm(sys.argv[1])
    pair()
    nomic()
