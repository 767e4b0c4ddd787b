"""Text <-> token ids, built from GGUF metadata on top of the `tokenizers` package.

The oracle is llama.cpp: the same text gives the same ids, special tokens included, and no Unicode
normalisation takes place, even where a model's original tokenizer would compose (Qwen2). Two
deliberate differences: `bos=True` never puts a second BOS before a text that starts with one, and
showing text never "cleans up" spaces. A lone surrogate, which UTF-8 cannot carry, counts as U+FFFD.

Three kinds of tokens matter to callers:
- control (and unknown) tokens: recognised only when special=True; never shown unless asked for;
- user-defined tokens: recognised in any text, and shown;
- the rest: result of tokenising.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

from llm_magic.errors import GGUFError
from llm_magic.events import Piece
from llm_magic.utf8 import quoted

from .encoders import unigram, wordpiece
from .pretokenizers import preset, splitters
from .sentencepiece import spm_merges
from .sidecar import read_sidecar
from .specials import SpecialFinder
from .string_table import Texts
from .vocabulary import Kind, Vocabulary, read_vocabulary

_HIDDEN = (Kind.CONTROL, Kind.UNKNOWN)
_HOLE = "\uffff\uffff"  # the name of "no token"; no single character and no merge spells it
_WHITE = " \t\n\v\f\r"


def build_tokenizer(
    metadata: Mapping[str, Any],
    cache_dir: Path | None = None,
    key: str | None = None,
    configs: Iterable[Mapping[str, Any]] = (),
    check: Callable[[], None] | None = None,
    beside: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> "Tokenizer":
    """The tokenizer of a model file.

    metadata: of the GGUF file, with `tokenizer.ggml.*`.
    cache_dir, key: where what takes long is kept, and under which name; see `spm_merges`.
    configs: generation_config.json, config.json, where the model has them; see `read_vocabulary`.
    beside: tokenizer.json and tokenizer_config.json beside the model: that tokenizer is taken.

    Raises GGUFError where the metadata is damaged, UnsupportedModelError where it names a tokenizer
    or a pre-tokenizer that we do not have.
    """
    if beside[0] and (sidecar := read_sidecar(metadata, *beside)) is not None:
        return Tokenizer(read_vocabulary(sidecar.metadata, configs), sidecar.model, {})
    vocabulary = read_vocabulary(metadata, configs)
    match vocabulary.model:
        case "bpe":
            return Tokenizer(vocabulary, *_bpe_model(vocabulary))
        case "spm":
            return Tokenizer(vocabulary, *_spm_model(vocabulary, cache_dir, key, check))
        case "wordpiece":
            return Tokenizer(vocabulary, wordpiece(vocabulary), {})
        case "unigram":
            return Tokenizer(vocabulary, unigram(vocabulary), {})


class Tokenizer:
    """A vocabulary in use. Immutable after construction: any thread may use it at any time.

    n_vocab: number of tokens; the model's output matrix may have more rows.
    bos, eos, eot, eom, unk, pad, sep: ids, or None.
    add_bos, add_eos: what the model wants at the start and end of a text.
    bos_prefix: the ids every prompt starts with: () or BOS, and GLM-4's <sop> after it.
    end_ids: generation ends at any of these; their text is never part of an answer.
    special_ids: tokens that are recognised in text as wholes (control, unknown, user-defined).
    control_ids: those of them that are not shown and that `special=False` does not recognise.
    control_texts: the texts of control_ids, longest first: what untrusted text must not spell.
    fim: fill-in-the-middle ids by role: prefix, suffix, middle, pad, repo, sep.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        model: tokenizers.Tokenizer,
        expand: Mapping[int, tuple[int, ...]],
    ) -> None:
        """expand: what ids from n_vocab on, which stand for symbols without a token, become."""
        # What was only needed to build the model, which finds the id of a text, need not stay.
        texts = Texts(vocabulary.texts)
        v = self._vocabulary = replace(vocabulary, texts=texts, ids={}, scores=None, merges=[])
        self._model, self._expand = model, expand
        self.n_vocab = len(v.texts)
        self.bos, self.eos, self.eot, self.eom = v.bos, v.eos, v.eot, v.eom
        self.unk, self.pad, self.sep = v.unk, v.pad, v.sep
        self.add_bos, self.add_eos = v.add_bos, v.add_eos
        self.end_ids, self.fim = v.end_ids, v.fim
        hidden = [i for i, kind in enumerate(v.kinds) if kind in _HIDDEN]
        user = [i for i, kind in enumerate(v.kinds) if kind == Kind.USER]
        self.control_ids = frozenset(hidden)
        self.special_ids = frozenset(hidden) | frozenset(user)
        named = (v.texts[i] for i in hidden)
        self.control_texts = tuple(sorted(named, key=lambda t: (-len(t), t)))
        self.bos_prefix = self._bos_prefix()
        self._finder = SpecialFinder(
            [(v.texts[i], i) for i in hidden], [(v.texts[i], i) for i in user]
        )

    # ------------------------------------------------------------------------- text -> ids

    def encode(
        self,
        text: str,
        special: bool = True,
        bos: bool = False,
        mark: str | None = None,
        start: bool = True,
    ) -> list[int]:
        """The ids of a text.

        special: whether the texts of control tokens are those tokens.
        bos: start with what the model wants at the start of a text (`with_bos`).
        mark: a character that somebody put inside control-token texts that must stay text. It is
            removed, and the ids are those of the text without it, except that a control token
            which had a mark inside is not recognised: as if that place were encoded with
            special=False. Marks elsewhere do nothing. One character that the text has not.
        start: the text starts a text, so it gets the space that the vocabulary may put there;
            False for what continues a text.
        """
        text = _valid(text)
        cuts: list[int] = []
        if mark and mark in text:
            plain = text.split(mark)
            text = "".join(plain)
            at = 0
            for part in plain[:-1]:
                at += len(part)
                cuts.append(at)
        ids: list[int] = []
        done, fresh = 0, start
        for span in self._finder.find(text, special, cuts):
            if span.start > done:
                ids += self._plain(text[done : span.start], fresh)
            ids.append(span.id)
            done, fresh = span.end, True
            if span.id in self._vocabulary.rstrip:
                done += len(text[done:]) - len(text[done:].lstrip(_WHITE))
        if done < len(text):
            ids += self._plain(text[done:], fresh)
        return self.with_bos(ids) if bos else ids

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """`ids` with the model's BOS before them, unless it wants none or it is there already.

        What a template wrote itself is never taken away, nor is anything doubled.
        """
        prefix = list(self.bos_prefix)
        out = list(ids)
        if out[: len(prefix)] == prefix:
            return out
        if prefix and out[:1] == prefix[:1]:
            return prefix + out[1:]
        return prefix + out

    def whole(self, text: str, other: str | None = None) -> list[int]:
        """The ids of a whole text: with what the model wants before and behind it.

        Args:
            text: The text. Names of control tokens in it are text.
            other: A second text, which an encoder compares with the first: `[CLS] text [SEP] other
                [SEP]` in a WordPiece vocabulary, `<s> text </s></s> other </s>` in the others.
        """
        ids = [*self.bos_prefix, *self.encode(text, special=False)]
        if not self.is_encoder:
            return [*ids, self.eos] if self.add_eos and self.eos is not None else ids
        end = self.eos if self.sep is None else self.sep
        ends = [] if end is None else [end]
        if other is None:
            return ids + ends
        middle = ends if self._vocabulary.model == "wordpiece" else ends * 2
        return [*ids, *middle, *self.encode(other, special=False), *ends]

    @property
    def is_encoder(self) -> bool:
        """Whether the vocabulary is one of encoders: WordPiece or unigram."""
        return self._vocabulary.model in ("wordpiece", "unigram")

    def pieces(self, text: str, special: bool = True) -> list[Piece]:
        """The tokens of a text, each with its id, text and bytes."""
        return [self.piece(i) for i in self.encode(text, special)]

    # ------------------------------------------------------------------------- ids -> text

    def is_special(self, token: int) -> bool:
        """Whether the token is a control (or unknown) token: not part of what people read."""
        return token in self.control_ids

    def token_bytes(self, token: int, special: bool = True) -> bytes:
        """The bytes that the token stands for; of a control token its name.

        special=False: control tokens are b"", as in streamed answers. Tokens of the file's kind
        "unused" stand for no bytes. A SentencePiece token keeps its leading space.
        Raises IndexError for an id outside the vocabulary.
        """
        v = self._vocabulary
        if not 0 <= token < self.n_vocab:
            raise IndexError(f"token {token} is outside the vocabulary of {self.n_vocab}")
        text = v.texts[token]
        match v.kinds[token]:
            case Kind.CONTROL | Kind.UNKNOWN:
                return text.encode("utf-8", "surrogateescape") if special else b""
            case Kind.USER:
                return text.encode("utf-8", "surrogateescape")
            case Kind.BYTE:
                return _byte(text)
            case Kind.NORMAL if v.spaced:
                return text.replace("▁", " ").encode("utf-8", "surrogateescape")
            case Kind.NORMAL:
                return _from_byte_level(text)
            case _:
                return b""

    def id_of(self, name: str) -> int | None:
        """The token that the vocabulary stores under this text: a control token by its name."""
        texts = self._vocabulary.texts
        if self.is_encoder or _valid(name) != name:  # which the model does not hold, see _symbols
            return texts.index(name) if name in texts else None
        found = self._model.token_to_id(name)
        # The model has names of its own, for bytes and for symbols without a token.
        real = found is not None and found < self.n_vocab and texts[found] == name
        if real:
            return found
        # A tokenizer that lay beside the model does not hold the special ones.
        return next((i for i in sorted(self.special_ids) if texts[i] == name), None)

    def token_text(self, token: int) -> str:
        """The token's bytes as text; a part of a character is U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def piece(self, token: int) -> Piece:
        data = self.token_bytes(token)
        return Piece(token, data.decode("utf-8", "replace"), data, self.is_special(token))

    def decode(self, ids: Iterable[int], skip_special: bool = True, start: bool = True) -> str:
        """The text of `ids`; what is not UTF-8 becomes U+FFFD.

        start: the ids start a text. Where the vocabulary puts a space before a text (and after each
            special token), that space is taken off again, so that decode(encode(x)) == x. False
            for a continuation, whose first space is its own.
        """
        strip = start and self._vocabulary.add_space_prefix
        out = bytearray()
        for token in ids:
            data = self.token_bytes(token, not skip_special)
            if token in self.special_ids:
                strip = self._vocabulary.add_space_prefix
            elif data:
                data = data.removeprefix(b" ") if strip else data
                strip = False
            out += data
        return out.decode("utf-8", "replace")

    # ------------------------------------------------------------------------- inside

    def _plain(self, text: str, fresh: bool) -> list[int]:
        """Ids of a text without special tokens. fresh: it starts a text or follows such a token."""
        if self._vocabulary.model == "spm":
            if fresh and self._vocabulary.add_space_prefix:
                text = " " + text
            text = text.replace(" ", "▁")
        ids: list[int] = self._model.encode(text, add_special_tokens=False).ids
        if ids and max(ids) >= self.n_vocab:
            return [i for token in ids for i in self._expand.get(token, (token,))]
        return ids

    def _bos_prefix(self) -> tuple[int, ...]:
        if not self.add_bos or self.bos is None:
            return ()
        sop = self.id_of("<sop>") if self._vocabulary.pre == "glm4" else None
        return (self.bos,) if sop is None else (self.bos, sop)


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# ------------------------------------------------------------------------------ models


def _symbols(v: Vocabulary) -> dict[str, int]:
    """text -> id as the Rust side can hold it: texts that are not UTF-8 get a name no text spells.

    Such a text can't arise by merging valid characters, so losing its name loses nothing.
    """
    try:
        "".join(v.texts).encode()
    except UnicodeEncodeError:
        return {_name(text, i): i for text, i in v.ids.items()}
    return dict(v.ids)


def _name(text: str, i: int) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return f"\ufffe{i}\ufffe"
    return text


def _bpe_model(v: Vocabulary) -> tuple[tokenizers.Tokenizer, dict[int, tuple[int, ...]]]:
    rules = preset(v.pre)
    symbols = _symbols(v)
    merges = _bpe_merges(v)
    # A byte without a token is dropped after merging, not before: its neighbours must not meet.
    hole = len(v.texts)
    symbols[_HOLE] = hole
    model = tokenizers.Tokenizer(
        models.BPE(vocab=symbols, merges=merges, unk_token=_HOLE, ignore_merges=rules.ignore_merges)
    )
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [*splitters(rules), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return model, {hole: ()}


def _bpe_merges(v: Vocabulary) -> list[tuple[str, str]]:
    """The merges as pairs, each once. Raises GGUFError naming the first that cannot be applied."""
    pairs: dict[tuple[str, str], None] = {}
    ids = v.ids
    for i, merge in enumerate(v.merges):
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut < 0 or left not in ids or right not in ids or left + right not in ids:
            raise GGUFError(f"tokenizer.ggml.merges[{i}] does not join tokens: {quoted(merge)}")
        pairs[left, right] = None
    return list(pairs)


def _spm_model(
    v: Vocabulary, cache_dir: Path | None, key: str | None, check: Callable[[], None] | None
) -> tuple[tokenizers.Tokenizer, dict[int, tuple[int, ...]]]:
    assert v.scores is not None
    n = len(v.texts)
    symbols = _symbols(v)
    merges = spm_merges(list(symbols), v.scores, cache_dir, key, check)
    expand: dict[int, tuple[int, ...]] = {}
    fallback = _byte_tokens(v)
    # Characters of tokens that are no tokens themselves can still be merged into those.
    for char in sorted(set().union(*symbols) - symbols.keys()):
        expand[n + len(expand)] = _bytes_of(char, fallback, v.unk)
        symbols[char] = n + len(expand) - 1
    # <0x00>...<0xFF> is how the Rust side asks for the token of a byte.
    symbols |= {f"<0x{b:02X}>": i for b, i in fallback.items()}
    hole = n + len(expand)
    expand[hole] = () if v.unk is None else (v.unk,)
    symbols[_HOLE] = hole
    model = tokenizers.Tokenizer(
        models.BPE(vocab=symbols, merges=merges, unk_token=_HOLE, byte_fallback=True)
    )
    return model, expand


def _byte_tokens(v: Vocabulary) -> dict[int, int]:
    """byte -> the token that stands for it: <0xNN>, else the raw byte (old vocabularies)."""
    out = {}
    for b in range(256):
        raw = bytes([b]).decode("utf-8", "surrogateescape")
        token = v.ids.get(f"<0x{b:02X}>", v.ids.get(raw))
        if token is not None:
            out[b] = token
    return out


def _bytes_of(char: str, fallback: Mapping[int, int], unk: int | None) -> tuple[int, ...]:
    tokens = [fallback.get(b) for b in char.encode()]
    if None in tokens:
        return () if unk is None else (unk,)
    return tuple(t for t in tokens if t is not None)


# ------------------------------------------------------------------------------ bytes


def _byte_level() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_LEVEL = _byte_level()


def _from_byte_level(text: str) -> bytes:
    try:
        return bytes([BYTE_LEVEL[char] for char in text])
    except KeyError:  # a token that was added as plain text
        return b"".join(
            bytes([BYTE_LEVEL[c]]) if c in BYTE_LEVEL else c.encode("utf-8", "surrogateescape")
            for c in text
        )


def _byte(text: str) -> bytes:
    """The byte of a token <0xNN>. A byte token with another text stands for that text."""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        try:
            return bytes([int(text[3:5], 16)])
        except ValueError:
            pass
    return text.encode("utf-8", "surrogateescape")
