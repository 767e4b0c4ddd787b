"""Makes float32.json: decisions computed in float32 on exactly the weights of the model files.

The portable path evaluates every prompt with every choice by itself, without cache and batch, and
the sums are those of the definition. Takes some minutes.

    python tests/data/decisions/make.py
"""

import json
import math
from pathlib import Path

import numpy as np

import llm_magic
from llm_magic import models
from llm_magic.decisions import arithmetic
from llm_magic.decisions.question import as_subject, question
from llm_magic.engine import device
from llm_magic.engine.arch import read_config
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.portable.forward import Portable
from llm_magic.provider import Request

FILE = Path(__file__).with_name("float32.json")
NAME = "smollm2"
ASKED = [
    (
        "Which sentiment has this review?\n\nThe soup was cold.",
        {"choices": ["positive", "negative"]},
    ),
    (
        "Which colour is the sky at noon?",
        {"choices": ["deep blue", "bright green", "dark red"]},
    ),
    ("Is ice colder than steam?", {"yes_no": True}),
    ("How good was it? It was the best meal of my life!", {"scale": [1, 10]}),
    ("Which is it?", {"choices": ["good", "good enough", "not good at all"]}),
]


def portable(name: str) -> Portable:
    with open_gguf(models.resolve(name).path) as file:
        config = read_config(file.metadata, {n: t.shape for n, t in file.tensors.items()})
        return Portable(file, config, 256, 1, device.prepare().name)


def logprobs(forward: Portable, ids: list[int], first: int) -> np.ndarray:
    """Log-probabilities behind every position from `first` - 1 on, in float64."""
    found = []
    for i in range(0, len(ids), forward.max_rows):
        part = np.array(ids[i : i + forward.max_rows], np.int32)
        rows = np.arange(len(part), dtype=np.int32)
        step = forward.step(part, np.zeros(len(part), np.int32), rows + i, rows)
        found.append(step.logits.astype(np.float64))
    x = np.concatenate(found)[first - 1 :]
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def decided(forward: Portable, llm: llm_magic.LLM, text: str, options: dict) -> dict[str, float]:
    """The probabilities of a decision, choice by choice."""
    asked, tokenizer = question(**options), llm.provider.engine.loaded().tokenizer
    ends = sorted(tokenizer.end_ids)
    nested = any(a != b and b.startswith(a) for a in asked.choices for b in asked.choices)
    rows = []
    for prompt in asked.prompts(as_subject(text)):
        ids = list(llm.provider.render(Request(prompt, thinking=False)).ids)
        row = {}
        for choice in asked.choices:
            tokens = tokenizer.encode(choice, special=False, start=False)
            found = logprobs(forward, [*ids, *tokens], len(ids))
            total = math.fsum(found[i, t] for i, t in enumerate(tokens))
            row[choice] = total + (math.log(np.exp(found[-1, ends]).sum()) if nested else 0.0)
        rows.append(arithmetic.normalised(row))
    return arithmetic.probabilities(arithmetic.mean_of(rows))


def main() -> None:
    made = []
    llm, forward = llm_magic.load(NAME), portable(NAME)
    for text, options in ASKED:
        shares = decided(forward, llm, text, options)
        made.append({"model": NAME, "text": text, "options": options, "probabilities": shares})
        print(shares)
    forward.close()
    FILE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
