"""Writes golden.json: what transformers in float32 chooses on every item, from the same GGUF file.

    python tests/data/harness/golden.py PATH/TO/SmolLM2-135M-Instruct-Q4_1.gguf

Needs torch, transformers, accelerate and gguf; no test needs them. Each continuation is tokenised as
lm-evaluation-harness does it: the whole text, less the tokens of the context alone.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent


def main(path: Path) -> None:
    torch.set_num_threads(1)
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    items = [json.loads(line) for line in (HERE / "items.jsonl").read_text().splitlines()]
    chosen, sums = [], []
    for i, item in enumerate(items):
        scores = scores_of(model, tokenizer, item["text"], [" " + c for c in item["choices"]])
        sums.append([round(s, 4) for s in scores])
        chosen.append(max(range(len(scores)), key=scores.__getitem__))
        if i % 50 == 0:
            print(i, flush=True)
    found = {
        "file": path.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "chosen": chosen,
        "logprobs": sums,
    }
    (HERE / "golden.json").write_text(json.dumps(found) + "\n")


@torch.no_grad()
def scores_of(model, tokenizer, context: str, continuations: list[str]) -> list[float]:
    """One row for each continuation, filled up at its end: what comes later changes nothing."""
    n = len(tokenizer(context, add_special_tokens=False).input_ids)
    rows = [tokenizer(context + c, add_special_tokens=False).input_ids for c in continuations]
    longest = max(map(len, rows))
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    logprobs = model(padded).logits.log_softmax(-1)
    return [
        sum(float(logprobs[r, i - 1, row[i]]) for i in range(n, len(row)))
        for r, row in enumerate(rows)
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
