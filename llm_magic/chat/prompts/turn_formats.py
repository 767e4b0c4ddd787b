"""Turn formats for chat models that come without a template.

The name of the pre-tokenizer tells which format a model uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llm_magic.errors import TemplateError


@dataclass(frozen=True, slots=True)
class Turns:
    """A turn format. head and foot hold {role} and {eos}; roles: (head, foot) where they differ by
    role, and then only these roles exist. needs: a control string without which it is not used."""

    name: str
    head: str = ""
    foot: str = ""
    needs: str = ""
    roles: tuple[tuple[str, str, str], ...] = ()

    def write(self, messages: Sequence[Mapping[str, Any]], cue: bool, eos: str) -> str:
        parts = []
        for message in messages:
            head, foot = self._around(message["role"], eos)
            parts.append(head + message["content"] + foot)
        if cue:
            parts.append(self._around("assistant", eos)[0])
        return "".join(parts)

    def _around(self, role: str, eos: str) -> tuple[str, str]:
        for name, head, foot in self.roles:
            if name == role:
                return head, foot.replace("{eos}", eos)
        if self.roles:
            raise TemplateError(f"role {role!r} does not exist in the turn format {self.name!r}")
        return self.head.replace("{role}", role), self.foot.replace("{eos}", eos)


_LLAMA3 = Turns(
    "llama3", "<|start_header_id|>{role}<|end_header_id|>\n\n", "{eos}", "<|start_header_id|>"
)
_GLM4 = Turns("glm4", "<|{role}|>", "", "<|user|>")
_QWEN2 = Turns("qwen2", "<|im_start|>{role}\n", "{eos}\n", "<|im_start|>")

# By the name of the pre-tokenizer.
PRESETS: dict[str, Turns] = {
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "kimi-k2": Turns("kimi-k2", "<|im_{role}|>{role}<|im_middle|>", "{eos}", "<|im_middle|>"),
    "olmo": Turns("olmo", "<|{role}|>\n", "\n"),
    "glm4": _GLM4,
    "chatglm-bpe": _GLM4,
    "tekken": Turns(
        "tekken",
        needs="[INST]",
        roles=(("user", "[INST]", "[/INST]"), ("assistant", "", "{eos}")),
    ),
}
