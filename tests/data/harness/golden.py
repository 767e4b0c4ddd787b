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
    torch.manual_seed(0)
    where = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    items = [json.loads(line) for line in (HERE / "items.jsonl").read_text().splitlines()]
    chosen, sums = [], []
    for item in items:
        scores = [score(model, tokenizer, item["text"], " " + c) for c in item["choices"]]
        sums.append([round(s, 4) for s in scores])
        chosen.append(max(range(len(scores)), key=scores.__getitem__))
    found = {
        "file": path.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "chosen": chosen,
        "logprobs": sums,
    }
    (HERE / "golden.json").write_text(json.dumps(found) + "\n")


@torch.no_grad()
def score(model, tokenizer, context: str, continuation: str) -> float:
    whole = tokenizer(context + continuation, add_special_tokens=False).input_ids
    n = len(tokenizer(context, add_special_tokens=False).input_ids)
    logits = model(torch.tensor([whole])).logits[0].log_softmax(-1)
    return sum(float(logits[i - 1, whole[i]]) for i in range(n, len(whole)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
