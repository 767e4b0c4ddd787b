"""Grammars in GBNF (llama.cpp's form) as Lark grammars.

llguidance splits a text into lexemes and matches each greedily: after `[ \\n]*` no "\\n" can
follow. In GBNF it can. Rules that are not recursive therefore become lexemes (one regular
expression each, with cheap masks) only where the result is the same: no lexeme can continue with
what may follow it, and no two start alike. Otherwise every character is a lexeme, which is exact
for all grammars but slower (1 to 5 ms a mask instead of 0.1 at 49,152 tokens).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from llm_magic.errors import SchemaError

from .lark import checked
from .limits import MAX_BRACKETS, MAX_COUNT, MAX_GRAMMAR

_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*(?:\[[^\]]*\]\s*)?:(?!:=))")
_TOKEN = re.compile(
    r"""(?P<skip>[ \t]+|\#[^\n]*)
      | (?P<line>\r?\n|\r)
      | (?P<define>::=)
      | (?P<text>"(?:[^"\\\n]|\\.)*")
      | (?P<class>\[(?:[^\]\\\n]|\\.)*\])
      | (?P<id><\[\d+\]>)
      | (?P<name>[A-Za-z0-9_-]+)
      | (?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})
      | (?P<mark>[()|*+?.])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}


def as_lark(text: str) -> str:
    """A Lark grammar from Lark or GBNF. SchemaError when it is empty or cannot be read."""
    if not text.strip():
        raise SchemaError("the grammar is empty")
    if len(text) > MAX_GRAMMAR:
        raise SchemaError(f"the grammar is longer than {MAX_GRAMMAR:,} characters")
    if _LARK.search(text):
        return checked(text)
    return _Gbnf(text).lark()


Chars = tuple[tuple[int, int], ...]  # ranges of code points, both ends included, sorted

LAST = 0x10FFFF
EVERY: Chars = ((0, LAST),)


@dataclass(slots=True)
class _Node:
    """A node of a rule's syntax tree.

    kind: chars (one character of a set), id (Lark text in `value`), name; of several parts:
    sequence, choice, repeat (its suffix in `value`).
    """

    kind: str
    value: str = ""
    parts: list["_Node"] = field(default_factory=list)
    chars: Chars = ()

    def walk(self) -> Iterator["_Node"]:
        yield self
        for part in self.parts:
            yield from part.walk()

    def ends(self, ending: set[str]) -> bool:
        """Whether the node has a finite sentence, given the rules that are known to have one."""
        match self.kind:
            case "name":
                return self.value in ending
            case "chars":
                return bool(self.chars)
            case "choice":
                return any(part.ends(ending) for part in self.parts)
            case "repeat":
                return self.least() == 0 or self.parts[0].ends(ending)
        return all(part.ends(ending) for part in self.parts)

    def count(self) -> int:
        """The largest number of copies that nested repetitions make of one part."""
        inside = max((part.count() for part in self.parts), default=1)
        counts = re.findall(r"\d+", self.value) if self.kind == "repeat" else []
        return inside * max([1, *map(int, counts)])

    def least(self) -> int:
        """The smallest count of a repetition."""
        count = re.match(r"\{(\d+)", self.value)
        return int(count[1]) if count else int(self.value == "+")

    def names(self) -> set[str]:
        return {node.value for node in self.walk() if node.kind == "name"}


class _Gbnf:
    """A parser of GBNF. rules: by name, in the order of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0
        self.rules: dict[str, _Node] = {}
        while self._peek() != "end":
            self._rule()
        if "root" not in self.rules:
            raise SchemaError("the grammar has no rule called root (GBNF) or start (Lark)")
        for name, rule in self.rules.items():
            for other in rule.names():
                if other not in self.rules:
                    raise SchemaError(
                        f"the grammar's rule {name!r} refers to {other!r}, which is missing"
                    )
        self._check_counts()
        self._check_ends()

    # ------------------------------------------------------------------ reading

    def _split(self) -> list[tuple[str, str, int]]:
        out, at = [], 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._error(at)
            kind, value = match.lastgroup or "", match.group()
            if kind not in ("skip", "line"):
                out.append((kind, value, at))
            at = match.end()
        return [*out, ("end", "", at)]

    def _error(self, at: int) -> SchemaError:
        line = self._text.count("\n", 0, at) + 1
        near = self._text[at : at + 20].split("\n")[0] or "the end"
        return SchemaError(f"the grammar cannot be read: line {line}, at {near!r}")

    def _peek(self, ahead: int = 0) -> str:
        index = min(self._at + ahead, len(self._tokens) - 1)
        return self._tokens[index][0]

    def _take(self, kind: str, value: str = "") -> str:
        token = self._tokens[self._at]
        if token[0] != kind or (value and token[1] != value):
            raise self._error(token[2])
        self._at += 1
        return token[1]

    def _is(self, mark: str) -> bool:
        return self._tokens[self._at][:2] == ("mark", mark)

    def _rule(self) -> None:
        at = self._tokens[self._at][2]
        name = self._take("name")
        if name in self.rules:
            raise SchemaError(f"the grammar has two rules called {name!r}")
        self._take("define")
        self.rules[name] = self._choice()
        if self._peek() != "end" and not (self._peek() == "name" and self._peek(1) == "define"):
            raise self._error(max(at, self._tokens[self._at][2]))

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._is("|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Node("choice", parts=options)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while (item := self._item()) is not None:
            suffix = self._suffix()
            if re.fullmatch(r"\{0+(,0+)?\}", suffix):
                continue  # none of it
            parts.append(_Node("repeat", suffix, [item]) if suffix else item)
        return parts[0] if len(parts) == 1 else _Node("sequence", parts=parts)

    def _item(self) -> _Node | None:
        match self._peek():
            case "text":
                text = _unescaped(self._take("text")[1:-1])
                letters = [_Node("chars", chars=((ord(c), ord(c)),)) for c in text]
                return letters[0] if len(letters) == 1 else _Node("sequence", parts=letters)
            case "class":
                return _Node("chars", chars=_class(self._take("class")[1:-1]))
            case "id":
                return _Node("id", self._take("id"))
            case "name" if self._peek(1) != "define":
                return _Node("name", self._take("name"))
            case "mark" if self._is("."):
                self._at += 1
                return _Node("chars", chars=EVERY)
            case "mark" if self._is("("):
                if self._depth == MAX_BRACKETS:
                    raise SchemaError(
                        f"the grammar's brackets are nested more than {MAX_BRACKETS} deep"
                    )
                self._at += 1
                self._depth += 1
                inner = self._choice()
                self._depth -= 1
                self._take("mark", ")")
                return inner
        return None

    def _suffix(self) -> str:
        if self._peek() == "count":
            suffix = re.sub(r"\s", "", self._take("count"))
            low, *rest = suffix[1:-1].split(",")
            high = rest[0] if rest and rest[0] else low
            if max(len(low), len(high)) > 9 or max(int(low), int(high)) > MAX_COUNT:
                raise SchemaError(f"the grammar repeats {suffix}; at most {MAX_COUNT:,} is read")
            if int(high) < int(low):
                raise SchemaError(f"the grammar repeats {suffix}, which is no range")
            return suffix
        if any(map(self._is, "*+?")):
            return self._take("mark")
        return ""

    def _check_counts(self) -> None:
        """Refuse rules whose nested repetitions multiply to more than MAX_COUNT."""
        for name, rule in self.rules.items():
            if rule.count() > MAX_COUNT:
                raise SchemaError(
                    f"the grammar's rule {name!r} repeats its parts more than {MAX_COUNT:,} times"
                )

    def _check_ends(self) -> None:
        """Refuse rules reachable from `root` that have no finite sentence."""
        ending: set[str] = set()
        while more := {n for n, r in self.rules.items() if n not in ending and r.ends(ending)}:
            ending |= more
        reached, new = set[str](), {"root"}
        while new:
            reached |= new
            new = {name for rule in new for name in self.rules[rule].names()} - reached
        for name in self.rules:
            if name in reached and name not in ending:
                raise SchemaError(
                    f"the grammar's rule {name!r} never ends: each of its alternatives contains the"
                    " rule again; add one that does not"
                )

    # ------------------------------------------------------------------ writing

    def lark(self) -> str:
        plain = self._plain()
        if not _Lexemes(self.rules, plain).harmless():
            plain = set()
        written = {}
        for i, name in enumerate(self.rules):
            word = re.sub(r"\W|-", "_", name)
            written[name] = f"T{i}_{word.upper()}" if name in plain else f"r{i}_{word.lower()}"
        lines = [f"start: {written['root']}"]
        for name, rule in self.rules.items():
            lines.append(f"{written[name]}: {_lark(rule, written)}")
        return "\n".join(lines) + "\n"

    def _plain(self) -> set[str]:
        """Rules that neither are nor reach a recursive rule and contain no token ids."""
        with_ids = {n for n, rule in self.rules.items() if any(p.kind == "id" for p in rule.walk())}
        plain: set[str] = set()
        while True:
            more = {
                name
                for name, rule in self.rules.items()
                if name not in plain and name not in with_ids and rule.names() <= plain
            }
            if not more:
                return plain
            plain |= more


def _lark(node: _Node, written: dict[str, str]) -> str:
    match node.kind:
        case "name":
            return written[node.value]
        case "chars":
            return _lark_chars(node.chars)
        case "choice":
            return " | ".join(_lark(part, written) for part in node.parts)
        case "sequence":
            return " ".join(_group(part, written) for part in node.parts) or '""'
        case "repeat":
            return _group(node.parts[0], written) + node.value
    return node.value


def _group(node: _Node, written: dict[str, str]) -> str:
    text = _lark(node, written)
    whole = node.kind in ("choice", "sequence", "repeat")
    return f"({text})" if whole else text


def _lark_chars(chars: Chars) -> str:
    if len(chars) == 1 and chars[0][0] == chars[0][1]:
        return json.dumps(chr(chars[0][0]), ensure_ascii=False)
    ranges = (f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in chars)
    return f"/[{''.join(ranges)}]/"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_escaped_char, text)


def _escaped_char(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _CONTROL.get(match[4], match[4])


def _class(body: str) -> Chars:
    """The characters of [body]."""
    negated = body.startswith("^")
    letters: list[str] = []  # "-" between two characters is "" here
    at = int(negated)
    while at < len(body):
        match = _ESCAPE.match(body, at)
        piece = match.group() if match else body[at]
        at += len(piece)
        between = piece == "-" and letters and letters[-1] and at < len(body)
        letters.append("" if between else _escaped_char(match) if match else piece)
    ranges = []
    while letters:
        low = high = letters.pop(0)
        if letters and not letters[0]:
            high = letters[1]
            del letters[:2]
        if high < low:
            raise SchemaError(f"the grammar's class [{body}] has a range that goes backwards")
        ranges.append((ord(low), ord(high)))
    merged = _merged(ranges)
    return _complement(merged) if negated else merged


# ----------------------------------------------------------------------------- lexemes


def _merged(ranges: Iterable[tuple[int, int]]) -> Chars:
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def _complement(chars: Chars) -> Chars:
    edges = [-1, *(edge for pair in chars for edge in pair), LAST + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((low + 1, high - 1) for low, high in pairs if low + 1 <= high - 1)


def _meet(a: Chars, b: Chars) -> bool:
    return any(low <= top and bottom <= high for low, high in a for bottom, top in b)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The characters of a node's sentences.

    first: those that start one. all: those in one. more: those that can continue a complete one.
    empty: the empty text is a sentence. single: each sentence is one character.
    """

    empty: bool
    first: Chars
    all: Chars = ()
    more: Chars = ()
    single: bool = False


class _Lexemes:
    """The lexemes of a grammar whose `plain` rules are lexemes, and what may follow each."""

    def __init__(self, rules: Mapping[str, _Node], plain: set[str]) -> None:
        self._rules, self._plain = rules, plain
        self._shapes: dict[str, _Shape] = {}
        self._follow: dict[str, Chars] = dict.fromkeys(rules, ())
        self._lexemes: dict[int | str, tuple[_Shape, Chars]] = {}
        while self._grown(self._shapes, {n: self._shape(rule) for n, rule in rules.items()}):
            pass
        self._changed = True
        while self._changed:
            self._changed = False
            for name in rules:
                if name not in plain:
                    self._spread(rules[name], self._follow[name])
        if "root" in plain:
            self._lexemes["root"] = (self._shapes["root"], ())

    def harmless(self) -> bool:
        """Whether greedy lexemes accept every sentence of the grammar."""
        shapes = list(self._lexemes.values())
        if any(
            _meet(shape.more, follow) or (shape.empty and _meet(shape.first, follow))
            for shape, follow in shapes
        ):
            return False
        pairs = combinations([shape for shape, _ in shapes], 2)
        return not any(_meet(a.first, b.first) and not (a.single and b.single) for a, b in pairs)

    @staticmethod
    def _grown(old: dict[str, _Shape], new: dict[str, _Shape]) -> bool:
        changed = old != new
        old.update(new)
        return changed

    def _shape(self, node: _Node) -> _Shape:
        match node.kind:
            case "chars":
                return _Shape(False, node.chars, node.chars, single=True)
            case "name":
                return self._shapes.get(node.value, _Shape(False, ()))
            case "choice":
                return self._choice([self._shape(p) for p in node.parts])
            case "repeat":
                inner = self._shape(node.parts[0])
                if node.value == "?":
                    return _Shape(True, inner.first, inner.all, inner.more)
                empty = inner.empty or node.least() == 0
                more = _merged((*inner.more, *inner.first))
                return _Shape(empty, inner.first, inner.all, more)
            case "sequence":
                out = _Shape(True, ())
                for part in node.parts:
                    out = self._joined(out, self._shape(part))
                return out if len(node.parts) != 1 else self._shape(node.parts[0])
        return _Shape(False, ())  # a token id is no character

    @staticmethod
    def _choice(shapes: Sequence[_Shape]) -> _Shape:
        """The shape of alternatives: one may be the beginning of another that starts alike."""
        more = [pair for s in shapes for pair in s.more]
        for a, b in permutations(shapes, 2):
            if _meet(a.first, b.first) and not (a.single and b.single):
                more += b.all
        first = _merged(pair for s in shapes for pair in s.first)
        every = _merged(pair for s in shapes for pair in s.all)
        single = all(s.single for s in shapes)
        return _Shape(any(s.empty for s in shapes), first, every, _merged(more), single)

    @staticmethod
    def _joined(a: _Shape, b: _Shape) -> _Shape:
        first = _merged((*a.first, *b.first)) if a.empty else a.first
        more = b.more
        if b.empty:
            more = _merged((*a.more, *b.more, *b.first))
        return _Shape(a.empty and b.empty, first, _merged((*a.all, *b.all)), more)

    def _spread(self, node: _Node, follow: Chars) -> Chars:
        """Record what follows each lexeme inside the node.

        Returns:
            The characters that may come first, with `follow` if the node may be empty.
        """
        shape = self._shape(node)
        match node.kind:
            case "name" if node.value not in self._plain:
                self._note_rule(node.value, follow)
            case "name" | "chars":
                key = node.value or id(node)
                before = self._lexemes.get(key, (shape, ()))[1]
                after = _merged((*before, *follow))
                self._changed = self._changed or after != before or key not in self._lexemes
                self._lexemes[key] = (shape, after)
            case "choice":
                for part in node.parts:
                    self._spread(part, follow)
            case "repeat":
                again = () if node.value == "?" else shape.first
                self._spread(node.parts[0], _merged((*follow, *again)))
            case "sequence":
                rest = follow
                for part in reversed(node.parts):
                    rest = self._spread(part, rest)
        return _merged((*shape.first, *follow)) if shape.empty else shape.first

    def _note_rule(self, name: str, follow: Chars) -> None:
        after = _merged((*self._follow[name], *follow))
        if after != self._follow[name]:
            self._follow[name] = after
            self._changed = True
