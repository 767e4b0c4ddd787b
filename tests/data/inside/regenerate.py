"""Activations of real model files in transformers, float32 and eager attention, as small goldens.

    python tests/data/inside/regenerate.py NAME FILE.gguf

It needs torch, transformers and gguf, which the project itself does not. The golden keeps the
stream behind some blocks and one attention pattern at every position of a short text, and the ids
that the logit lens gives at every block and position. "steered" is the stream behind the last block
and the likeliest token where a control vector (`direction`) was added behind some blocks.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

TEXT = [504, 3575, 282, 4649, 314, 7042, 30, 378, 3575, 282, 7158, 314]
IDS = {
    "smollm2": TEXT,
    "gemma3": [2, 818, 5279, 529, 7001, 563, 9079, 236761, 669, 5279, 529, 9405, 563],
}
BLOCKS = {"smollm2": (0, 8, 15, 22, 29), "gemma3": (0, 5, 11, 17)}
PATTERN = 5
STEERED = range(3, 9)  # blocks of the control vector
KEPT = 48  # entries of each vector, evenly spread


def direction(block: int, width: int) -> np.ndarray:
    """The control vector of the golden, float32 [width]."""
    return np.random.default_rng(block).standard_normal(width).astype(np.float32)


def steered(model, ids, blocks) -> tuple[np.ndarray, np.ndarray]:
    """(stream behind the last block, likeliest tokens) with directions added behind blocks."""
    out, hooks, width = {}, [], model.config.hidden_size

    def add(module, given, result, i):
        hidden = result[0] if isinstance(result, tuple) else result
        hidden = hidden + torch.from_numpy(direction(i, width)) if i in blocks else hidden
        out[i] = hidden.detach()
        return (hidden, *result[1:]) if isinstance(result, tuple) else hidden

    for i, block in enumerate(model.model.layers):
        hooks.append(block.register_forward_hook(lambda m, g, r, i=i: add(m, g, r, i)))
    with torch.no_grad():
        best = model(ids).logits[0].argmax(-1).numpy()
    for hook in hooks:
        hook.remove()
    return out[len(out) - 1][0].numpy(), best


def main(name: str, path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = torch.tensor([IDS[name]])
    streams = {}
    for i, block in enumerate(model.model.layers):
        block.register_forward_hook(
            lambda module, given, out, i=i: streams.__setitem__(
                i, (out[0] if isinstance(out, tuple) else out).detach()
            )
        )
    with torch.no_grad():
        out = model(ids, output_attentions=True)
        lens = [
            model.lm_head(model.model.norm(streams[i])).argmax(-1)[0].numpy()
            for i in range(len(streams))
        ]
    last = out.logits[0].argmax(-1).numpy()
    assert np.array_equal(lens[-1], last)
    plain = dict(streams)  # the hooks go on writing into the other one
    moved, best = steered(model, ids, STEERED)
    width = plain[0].shape[-1]
    entries = np.linspace(0, width - 1, KEPT).astype(int)
    np.savez_compressed(
        Path(__file__).parent / f"{name}.npz",
        ids=np.array(IDS[name], np.int32),
        blocks=np.array(BLOCKS[name]),
        entries=entries,
        streams=np.stack([plain[i][0, :, entries].float().numpy() for i in BLOCKS[name]]),
        norms=np.stack([plain[i][0].double().norm(dim=-1).numpy() for i in BLOCKS[name]]),
        pattern=out.attentions[PATTERN][0].float().numpy(),
        lens=np.stack(lens).astype(np.int32),
        steered=moved[:, entries],
        steered_best=best.astype(np.int32),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
