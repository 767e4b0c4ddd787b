"""Vocabularies of encoders: WordPiece (BERT) and unigram (XLM-RoBERTa), as the Rust side runs them.

GGUF files write the tokens of both with U+2581 for a space before them. WordPiece itself marks the
other ones: `##ing` goes on a word, `ing` begins one.
"""

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from llm_magic.errors import GGUFError

from .vocabulary import PREFIX, Kind, Vocabulary

SPACE = "▁"
WORD = 100  # characters of a word; a longer one is unknown
CONTINUES = "##"


def wordpiece(v: Vocabulary) -> tokenizers.Tokenizer:
    """Words by white space and punctuation, then the longest token that the rest begins with.

    Reference: Devlin et al. 2018 (BERT), in the form of the original's `BertTokenizer`.
    """
    if v.unk is None:
        raise GGUFError(f"{PREFIX}unknown_token_id is missing: a bert tokenizer needs it")
    whole = (Kind.CONTROL, Kind.UNKNOWN)
    symbols = {}
    for i, (text, kind) in enumerate(zip(v.texts, v.kinds, strict=True)):
        if kind in whole or i == v.unk:
            symbols[text] = i
        elif text.startswith(SPACE):
            symbols[text[1:]] = i
        else:
            symbols[CONTINUES + text] = i
    model = tokenizers.Tokenizer(
        models.WordPiece(vocab=symbols, unk_token=v.texts[v.unk], max_input_chars_per_word=WORD)
    )
    model.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=v.lowercase,
        lowercase=v.lowercase,
    )
    model.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return model


def unigram(v: Vocabulary) -> tokenizers.Tokenizer:
    """The cut of a text with the greatest sum of scores. Reference: Kudo 2018."""
    if v.unk is None or v.scores is None:
        raise GGUFError(f"{PREFIX}unknown_token_id is missing: a t5 tokenizer needs it")
    pairs = list(zip(v.texts, map(float, v.scores), strict=True))
    model = tokenizers.Tokenizer(models.Unigram(vocab=pairs, unk_id=v.unk, byte_fallback=False))
    steps: list[normalizers.Normalizer] = []
    if v.charsmap:
        try:
            steps.append(normalizers.Precompiled(v.charsmap))
        except Exception as e:
            raise GGUFError(f"{PREFIX}precompiled_charsmap is damaged: {e}") from e
    if v.squeeze:
        steps += [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    if steps:
        model.normalizer = normalizers.Sequence(steps)
    prefix = "always" if v.add_space_prefix else "never"
    model.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prefix, split=True)
    return model
