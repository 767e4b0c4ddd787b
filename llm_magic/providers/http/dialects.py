"""What kinds of server there are, and what each can do beyond OpenAI's protocol: one row per kind.

A new kind is a row of `DIALECTS`, and a line in discover.py that recognises it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_magic.provider import Capability

# Our sampling settings that every server takes, with their names on the wire.
COMMON: Mapping[str, str] = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "stop": "stop",
    "logit_bias": "logit_bias",
}
_VLLM = {
    "top_k": "top_k",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
}
_LLAMA = {
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_last_n": "dry_penalty_last_n",
    "dry_breakers": "dry_sequence_breakers",
}

Form = Literal["schema", "regex", "choices", "grammar"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    Attributes:
        name: For people and for the `dialect` option.
        sampling: Settings beyond `COMMON`, with their names on the wire.
        bound: The kinds of constraint that it holds an answer to.
        binds: How constraints beyond a schema are written: as a GBNF grammar ("gbnf"), in vLLM's
            object ("vllm"), in SGLang's fields ("sglang") or in fields of our names ("own").
        text: The form of its tokenise routes: "llama", "vllm", or None where it has none.
        ids: Whether a prompt may be token ids.
        echo: Whether it gives the logprobs of a prompt (`echo` with `logprobs`).
        progress: Whether it reports the progress of a prompt.
        kwargs: Whether it takes variables of the chat template.
        history: Whether earlier reasoning may be part of the messages.
        tools_logprobs: Whether a stream may have tools and logprobs at once.
        named_choice: Whether a tool may be required by name.
        zero_top: Whether logprobs without alternatives may be asked for.
        raw: Further fields of an embedding request, so that the vectors are not normalised.
    """

    name: str
    sampling: Mapping[str, str] = field(default_factory=dict)
    bound: frozenset[Form] = frozenset({"schema"})
    binds: Literal["", "gbnf", "vllm", "sglang", "own"] = ""
    text: Literal["llama", "vllm"] | None = None
    ids: bool = False
    echo: bool = False
    progress: bool = False
    kwargs: bool = False
    history: bool = False
    tools_logprobs: bool = True
    named_choice: bool = True
    zero_top: bool = True
    raw: Mapping[str, object] = field(default_factory=dict)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What a provider over such a server can do."""
        found: set[Capability] = {"complete", "chat", "logprobs", "tools", "constraint"}
        if self.text is not None:
            found |= {"tokenize", "given"}
        if self.echo:
            found.add("score")
        if self.echo and self.text is not None:
            found.add("choices")
        return frozenset(found)

    def wire(self, name: str) -> str | None:
        """The name of a sampling setting in a request; None where the server has none."""
        return COMMON.get(name) or self.sampling.get(name)


_ALL: frozenset[Form] = frozenset({"schema", "regex", "choices", "grammar"})

DIALECTS: Mapping[str, Dialect] = {
    row.name: row
    for row in (
        Dialect("openai"),
        Dialect(
            "llama.cpp", _LLAMA, frozenset({"schema", "choices", "grammar"}), "gbnf", "llama",
            ids=True, progress=True, kwargs=True, history=True, tools_logprobs=False,
            named_choice=False, zero_top=False, raw={"embd_normalize": -1},
        ),
        Dialect(
            "vllm", _VLLM, _ALL, "vllm", "vllm", ids=True, echo=True, kwargs=True, history=True
        ),
        Dialect("sglang", _VLLM, _ALL, "sglang", ids=True, kwargs=True, history=True),
        Dialect(
            "llm_magic", {**_LLAMA, "min_tokens": "min_tokens", "dry_last_n": "dry_last_n",
                          "dry_breakers": "dry_breakers"},
            _ALL, "vllm", "llama", ids=True, echo=True, progress=True, kwargs=True, history=True,
            raw={"normalize": False},
        ),
        Dialect(
            "llama-swap", _LLAMA, frozenset({"schema", "choices", "grammar"}), "gbnf",
            progress=True, kwargs=True, history=True, tools_logprobs=False, named_choice=False,
            zero_top=False, raw={"embd_normalize": -1},
        ),
        Dialect("ollama"),
        Dialect("lmstudio"),
        Dialect("localai", {"top_k": "top_k"}, frozenset({"schema", "grammar"}), "own"),
    )
}  # fmt: skip
