r"""Pre-tokenizers of byte-level BPE vocabularies: where text is cut before any merge.

The expressions are facts of the models, in the form that llama.cpp gives them (src/llama-vocab.cpp
and src/unicode.cpp), because its token ids are the reference: where it simplified a model's own
expression (the letter cases of tekken and gpt-4o hold for ASCII only, kimi-k2 ignores marks), so
do we. Several expressions apply in turn, each inside the pieces of the one before; look-ahead
never sees past its piece. A match is a piece, and so is the text between two matches.

No preset normalises: "e\u0301" and "\u00e9" stay different, although the reference tokenizer of
Qwen2 composes (NFC). llama.cpp does not, and its ids win.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tokenizers import PreTokenizedString, Regex
from tokenizers.pre_tokenizers import PreTokenizer, Sequence, Split

from llm_magic.errors import UnsupportedModelError
from llm_magic.utf8 import quoted

# `(?i:...)` is spelled out: case folding would also take U+017F for "s" and U+212A for "k".
_ENDINGS = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

_GPT2 = r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_ENDINGS}|{_WORD}|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
_QWEN2 = rf"{_ENDINGS}|{_WORD}|\p{{N}}|{_MARKS}|{_SPACES}"
_QWEN35 = (
    rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)

_UPPER = r"(?:(?=\p{L})[^a-z])"  # any letter but a small ASCII one
_LOWER = r"(?:(?=\p{L})[^A-Z])"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_MARKS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_MARKS_SLASH}|{_SPACES}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+(?:{_ENDINGS})?|{_LEAD}{_UPPER}+{_LOWER}*(?:{_ENDINGS})?"
    rf"|\p{{N}}{{1,3}}|{_MARKS_SLASH}|{_SPACES}"
)

_HAN = (
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}"
)
_KIMI = (
    rf"[{_HAN}]+|{_LEAD}(?:(?=\p{{L}})[^{_HAN}])+(?:{_ENDINGS})?"
    rf"|\p{{N}}{{1,3}}|{_MARKS}|{_SPACES}"
)
# llama.cpp's tables are those of Unicode 15; to it, what Unicode 16 added is no letter, digit, mark
# or punctuation. Found by comparing all code points; gaps between the additions are left out.
_LATER = "".join(
    rf"\x{{{first:X}}}-\x{{{last:X}}}"
    for first, last in (
        (0x0897, 0x0897),
        (0x1B4E, 0x1B4F),
        (0x1B7F, 0x1B7F),
        (0x1C89, 0x1C8A),
        (0xA7CB, 0xA7CF),
        (0xA7DA, 0xA7F1),
        (0x105C0, 0x105FF),
        (0x10D40, 0x10D8F),
        (0x10EC2, 0x10EFC),
        (0x11380, 0x113FF),
        (0x116D0, 0x116FF),
        (0x11BC0, 0x11BFF),
        (0x11F5A, 0x11F5A),
        (0x13456, 0x143FF),
        (0x16100, 0x1613F),
        (0x16D40, 0x16D7F),
        (0x18CD6, 0x18CFF),
        (0x1CC00, 0x1CEBF),
        (0x1E5D0, 0x1E5FF),
    )
)
_DEFAULT = (r"[\p{P}$+<=>\^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class Preset:
    """How one family of vocabularies cuts text.

    patterns: Oniguruma expressions, applied in turn.
    ignore_merges: a piece that is a token is that token, merges or not.
    add_bos: what the family does where the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_FAMILIES: tuple[tuple[str, Preset], ...] = (
    ("default", Preset(_DEFAULT)),
    ("gpt-2 gpt2 olmo mpt jais exaone4 phi-2 trillion granite-docling", Preset((_GPT2,))),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        Preset((r"\p{N}", _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral lfm2",
        Preset((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("glm4 chatglm-bpe dbrx smaug-bpe", Preset((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 solar-open", Preset((_QWEN2,))),
    ("qwen35", Preset((_QWEN35,))),
    ("tekken", Preset((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("gpt-4o llama4 minimax-m2", Preset((_GPT4O,))),
    ("kimi-k2", Preset((_KIMI,))),
)
PRESETS: dict[str, Preset] = {name: p for names, p in _FAMILIES for name in names.split()}


def preset(name: str) -> Preset:
    """The preset called `name`. Raises UnsupportedModelError naming an unknown one."""
    found = PRESETS.get(name)
    if found is None:
        raise UnsupportedModelError(
            f"pre-tokenizer {quoted(name)} is not supported (known: {', '.join(sorted(PRESETS))})"
        )
    return found


def splitters(rules: Preset) -> list[PreTokenizer]:
    """One splitter for each expression, to be applied in turn."""
    return [Split(Regex(_pinned(pattern)), "isolated") for pattern in rules.patterns]


def _pinned(pattern: str) -> str:
    return re.sub(r"\\p\{[LNMP]\}", lambda found: f"[{found[0]}&&[^{_LATER}]]", pattern)


def split(pre: str, text: str) -> list[str]:
    """The pieces of `text`; joined, they are `text`. No vocabulary needed."""
    return list(_pieces(pre, text))


@cache
def _sequence(pre: str) -> PreTokenizer:
    return Sequence(splitters(preset(pre)))


def _pieces(pre: str, text: str) -> Iterator[str]:
    whole = PreTokenizedString(text)
    _sequence(pre).pre_tokenize(whole)
    for piece, _, _ in whole.get_splits():
        yield piece
