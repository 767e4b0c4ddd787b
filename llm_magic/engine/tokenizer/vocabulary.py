"""GGUF metadata -> a checked vocabulary: token texts, kinds, special ids, end ids.

The metadata is untrusted. In a `Vocabulary` every id is in range and every token has one text; the
model's generation_config.json and config.json may add end ids.

The rules for control tokens, their detection by text, and the set of end ids are llama.cpp's
(src/llama-vocab.cpp), so that a model ends its turn in both at the same token.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TypeVar

import numpy as np

from llm_magic.errors import GGUFError, ModelWarning, UnsupportedModelError
from llm_magic.utf8 import quoted

from .pretokenizers import preset

PREFIX = "tokenizer.ggml."
T = TypeVar("T")
D = TypeVar("D")


Model = Literal["bpe", "spm", "wordpiece", "unigram"]
# The name in a file -> how its text becomes tokens.
MODELS: Mapping[str, Model] = {
    "gpt2": "bpe",
    "llama": "spm",
    "bert": "wordpiece",
    "t5": "unigram",
}
# Special ids of files that leave them out, by model (those of llama.cpp).
_DEFAULT_IDS: Mapping[Model, Mapping[str, int]] = {
    "bpe": {},
    "spm": {"bos": 1, "eos": 2, "unk": 0},
    "wordpiece": {"bos": 101, "unk": 100, "sep": 102, "pad": 0},
    "unigram": {"eos": 1, "unk": 2, "pad": 0},
}


class Kind(IntEnum):
    """What a token is, with the numbers of the GGUF format."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER = 4  # recognised in any text, and shown
    UNUSED = 5
    BYTE = 6


# Where the file names no end of turn, the first of these that is in the vocabulary is it.
_EOT_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)
_EOM_TEXTS = ("<|eom_id|>",)
# Every one of these ends generation wherever it exists.
_END_TEXTS = (
    *_EOT_TEXTS,
    *_EOM_TEXTS,
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)
_FIM_TEXTS: Mapping[str, tuple[str, ...]] = {
    "prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "middle": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repo": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}
# The first key of a row wins; the later ones are older spellings.
_FIM_KEYS: Mapping[str, tuple[str, ...]] = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "pad": ("fim_pad_token_id",),
    "repo": ("fim_rep_token_id",),
    "sep": ("fim_sep_token_id",),
}
# gpt-oss writes its channels with these: they must stay visible to whoever parses them.
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that the metadata says about tokens.

    model: how text becomes tokens: "bpe" (byte-level merges), "spm" (merges that come from scores,
        unknown characters fall back to bytes), "wordpiece" (the longest token that a word begins
        with), "unigram" (the likeliest cut by scores).
    pre: the pre-tokenizer's name (BPE only).
    texts: the stored text of each token; bytes that are not UTF-8 are surrogate escapes.
    ids: text -> id.
    kinds: one Kind a token.
    scores: float32 [n], SPM and unigram only.
    merges: "left right" by falling priority, BPE only.
    end_ids: a token of these ends generation.
    fim: ids of the fill-in-the-middle tokens by role (prefix, suffix, middle, pad, repo, sep).
    rstrip: control tokens that swallow the white space after them (Phi-3).
    """

    model: Model
    pre: str
    texts: Sequence[str]
    ids: Mapping[str, int]
    kinds: bytes
    scores: np.ndarray | None
    merges: list[str]
    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unk: int | None
    pad: int | None
    sep: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    end_ids: frozenset[int]
    fim: Mapping[str, int]
    rstrip: frozenset[int]
    charsmap: bytes = b""  # unigram: SentencePiece's compiled normalisation
    squeeze: bool = False  # unigram: several spaces count as one
    lowercase: bool = True  # wordpiece

    @property
    def spaced(self) -> bool:
        """Whether the texts of tokens write a space as U+2581."""
        return self.model != "bpe"


def read_vocabulary(
    metadata: Mapping[str, Any], configs: Iterable[Mapping[str, Any]] = ()
) -> Vocabulary:
    """The vocabulary of a GGUF file.

    configs: generation_config.json and config.json where the model has them, in this order: the
        first with an `eos_token_id` (one id or a list) overrides the file's, and all of its ids
        end generation.

    Raises GGUFError where the metadata is damaged, UnsupportedModelError for a tokenizer model or
    a pre-tokenizer that we do not have.
    """
    model = _model(metadata)
    texts = _texts(metadata)
    ids = _ids(texts)
    pre = _pre(metadata) if model == "bpe" else ""
    reader = _Specials(metadata, ids, _kinds(metadata, len(texts)), model)
    eos_ids = reader.eos_ids(configs)
    special = reader.detect(eos_ids)
    wants_bos = preset(pre).add_bos if model == "bpe" else model in ("spm", "wordpiece")
    add_bos = _typed(metadata, "add_bos_token", bool, wants_bos)
    add_eos = _typed(metadata, "add_eos_token", bool, model == "unigram")
    for flag, name in ((add_bos, "bos"), (add_eos, "eos")):
        if flag and special[name] is None:
            raise GGUFError(f"{PREFIX}add_{name}_token is true, but there is no {name}_token_id")
    return Vocabulary(
        model=model,
        pre=pre,
        texts=texts,
        ids=ids,
        kinds=bytes(reader.kinds),
        scores=_scores(metadata, len(texts)) if model in ("spm", "unigram") else None,
        merges=_merges(metadata) if model == "bpe" else [],
        add_bos=add_bos,
        add_eos=add_eos,
        add_space_prefix=_typed(metadata, "add_space_prefix", bool, model != "bpe"),
        end_ids=frozenset(reader.end_ids),
        fim=reader.fim,
        rstrip=reader.rstrip(),
        charsmap=_charsmap(metadata) if model == "unigram" else b"",
        squeeze=_typed(metadata, "remove_extra_whitespaces", bool, False),
        lowercase=_typed(metadata, "normalizer.lowercase", bool, True),
        **special,
    )


class _Specials:
    """The special ids of a vocabulary, given and detected. `kinds` is corrected on the way."""

    def __init__(
        self, metadata: Mapping[str, Any], ids: Mapping[str, int], kinds: bytearray, model: Model
    ) -> None:
        self.metadata, self.ids, self.kinds = metadata, ids, kinds
        self.defaults = _DEFAULT_IDS[model]
        self.end_ids: set[int] = set()
        self.fim: dict[str, int] = {}

    def eos_ids(self, configs: Iterable[Mapping[str, Any]]) -> list[int]:
        """EOS first, then the other ids that end generation by the same key."""
        for config in configs:
            if (found := config.get("eos_token_id")) is not None:
                return self._checked(found, "eos_token_id of the model's configuration")
        if PREFIX + "eos_token_id" not in self.metadata:
            default = self.defaults.get("eos")
            return [] if default is None or default >= len(self.kinds) else [default]
        return self._checked(self.metadata[PREFIX + "eos_token_id"], PREFIX + "eos_token_id")

    def detect(self, eos_ids: list[int]) -> dict[str, int | None]:
        """The special ids by name, after all rules; fills end_ids, fim and kinds."""
        special: dict[str, int | None] = {
            # Encoders call the token before a text "cls".
            "bos": self._given("bos_token_id", self._given("cls_token_id", self._default("bos"))),
            "eos": eos_ids[0] if eos_ids else None,
            "eot": self._named(("eot_token_id",), _EOT_TEXTS),
            "eom": self._named(("eom_token_id",), _EOM_TEXTS),
            "unk": self._given("unknown_token_id", self._default("unk")),
            "pad": self._given("padding_token_id", self._default("pad")),
            # The format's own spelling.
            "sep": self._given("seperator_token_id", self._default("sep")),
        }
        for role, keys in _FIM_KEYS.items():
            if (found := self._named(keys, _FIM_TEXTS[role])) is not None:
                self.fim[role] = found
        self.end_ids.update(self.fim[role] for role in ("pad", "repo", "sep") if role in self.fim)
        self.end_ids.update(i for text in _END_TEXTS if (i := self._control(text)) is not None)
        for text in _SHOWN_TEXTS:
            if text in self.ids:
                self.kinds[self.ids[text]] = Kind.USER
        named = (special["eot"], special["eom"], *eos_ids)
        self.end_ids.update(i for i in named if i is not None)
        self._except()
        return special

    def rstrip(self) -> frozenset[int]:
        name = str(self.metadata.get("general.name", "")).lower()
        if "phi-3" not in name and "phi3" not in name:
            return frozenset()
        special = (Kind.CONTROL, Kind.USER, Kind.UNKNOWN)
        found = {i for i, kind in enumerate(self.kinds) if kind in special}
        found |= {self.ids[text] for text in ("</s>",) if text in self.ids}
        return frozenset(found - {self.ids.get(t) for t in ("<unk>", "<s>", "<|endoftext|>")})

    def _except(self) -> None:
        """Two families use a text that ends turns elsewhere in the middle of an answer."""
        ends = {text for text in _END_TEXTS if self.ids.get(text) in self.end_ids}
        calls = bool(ends & {"<|call|>", "<|calls|>"})
        if calls and "<|end|>" in ends and ends & {"<|return|>", "<|flush|>"}:
            self._release("<|end|>", Kind.USER)
        if "<|tool_response>" in ends and "</s>" in ends:
            self._release("</s>", Kind.NORMAL)

    def _release(self, text: str, kind: Kind) -> None:
        self.end_ids.discard(self.ids[text])
        self.kinds[self.ids[text]] = kind

    def _default(self, name: str) -> int | None:
        """The special id where the file says nothing; None where its model has none."""
        return self.defaults.get(name)

    def _named(self, keys: Sequence[str], texts: Sequence[str]) -> int | None:
        """The id under the first of `keys` that is set, else the first of `texts` there is."""
        for key in keys:
            if (given := self._given(key)) is not None:
                return given
        found = next((text for text in texts if text in self.ids), None)
        return None if found is None else self._control(found)

    def _control(self, text: str) -> int | None:
        """The id of a token that acts as control token, whatever the file calls it."""
        i = self.ids.get(text)
        if i is not None:
            self.kinds[i] = Kind.CONTROL
        return i

    def _given(self, key: str, default: int | None = None) -> int | None:
        if PREFIX + key not in self.metadata:
            return default if default is not None and default < len(self.kinds) else None
        found = self._checked(self.metadata[PREFIX + key], PREFIX + key)
        return found[0] if found else None

    def _checked(self, value: Any, where: str) -> list[int]:
        """Ids in range. -1, also as uint32, is how some files say "none"."""
        if value is None:
            return []
        values = value if isinstance(value, list | tuple | np.ndarray) else [value]
        out = []
        for v in values:
            if isinstance(v, bool) or not isinstance(v, int | np.integer):
                raise GGUFError(f"{where} is not a token id: {quoted(v)}")
            if int(v) in (-1, 0xFFFFFFFF):
                continue
            if not 0 <= int(v) < len(self.kinds):
                raise GGUFError(f"{where} is {v}, but there are {len(self.kinds)} tokens")
            out.append(int(v))
        return out


def _pre(metadata: Mapping[str, Any]) -> str:
    """The pre-tokenizer's name. A file without one was made by an old converter: llama.cpp takes
    "default" for it, which may cut numbers and words otherwise than the model was trained on."""
    found = _typed(metadata, "pre", str, "")
    if not found:
        warnings.warn(
            f"the model file does not name its pre-tokenizer ({PREFIX}pre): 'default' is assumed, "
            "so numbers and words may be split otherwise than in training; a newer conversion of "
            "the model says it",
            ModelWarning,
            stacklevel=2,
        )
    return found or "default"


def _model(metadata: Mapping[str, Any]) -> Model:
    name = _typed(metadata, "model", str, None)
    if name is None:
        raise GGUFError(f"{PREFIX}model is missing: the file has no tokenizer")
    if name not in MODELS:
        known = ", ".join(MODELS)
        raise UnsupportedModelError(f"tokenizer model {quoted(name)} is not supported ({known})")
    return MODELS[name]


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    value = metadata.get(PREFIX + "precompiled_charsmap")
    if value is None:
        return b""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise GGUFError(f"{PREFIX}precompiled_charsmap is not a list of bytes")
    return array.astype(np.uint8).tobytes()


def _typed(metadata: Mapping[str, Any], key: str, kind: type[T], default: D) -> T | D:
    if PREFIX + key not in metadata:
        return default
    value = metadata[PREFIX + key]
    if not isinstance(value, kind):
        raise GGUFError(f"{PREFIX}{key} has the type {type(value).__name__}, not {kind.__name__}")
    return value


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(PREFIX + key)
    if value is None:
        raise GGUFError(f"{PREFIX}{key} is missing")
    if not isinstance(value, list) or not all(map(str.__instancecheck__, value)):
        raise GGUFError(f"{PREFIX}{key} is not a list of strings")
    return value


def _texts(metadata: Mapping[str, Any]) -> list[str]:
    texts = _strings(metadata, "tokens")
    if not texts:
        raise GGUFError(f"{PREFIX}tokens is empty")
    if "" in texts:
        # Holes in a vocabulary: they need distinct texts that no input spells by accident.
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    return texts


def _ids(texts: list[str]) -> dict[str, int]:
    ids = dict(zip(texts, range(len(texts)), strict=True))
    if len(ids) != len(texts):
        twice = next(i for i, text in enumerate(texts) if ids[text] != i)
        where = f"{twice} and {ids[texts[twice]]}"
        raise GGUFError(f"{PREFIX}tokens has the same text {quoted(texts[twice])} at {where}")
    return ids


def _numbers(metadata: Mapping[str, Any], key: str, n: int) -> np.ndarray | None:
    value = metadata.get(PREFIX + key)
    if value is None:
        return None
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise GGUFError(f"{PREFIX}{key} is not a list of numbers")
    if len(array) != n:
        raise GGUFError(f"{PREFIX}{key} has {len(array)} entries for {n} tokens")
    return array


def _kinds(metadata: Mapping[str, Any], n: int) -> bytearray:
    types = _numbers(metadata, "token_type", n)
    if types is None:
        return bytearray([Kind.NORMAL]) * n
    known = (types >= Kind.UNDEFINED) & (types <= Kind.BYTE)
    return bytearray(np.where(known, types, Kind.UNDEFINED).astype(np.uint8).tobytes())


def _scores(metadata: Mapping[str, Any], n: int) -> np.ndarray:
    scores = _numbers(metadata, "scores", n)
    if scores is None:
        raise GGUFError(f"{PREFIX}scores is missing: a llama tokenizer needs them")
    if np.isnan(scores).any():
        raise GGUFError(f"{PREFIX}scores[{int(np.isnan(scores).argmax())}] is not a number")
    return scores.astype(np.float32)


def _merges(metadata: Mapping[str, Any]) -> list[str]:
    return _strings(metadata, "merges")
