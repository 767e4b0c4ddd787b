"""Whether greedy lexemes accept every sentence of a grammar: what may follow each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from .gbnf_tree import Chars, Node, meet, merged


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


class Lexemes:
    """The lexemes of a grammar whose `plain` rules are lexemes, and what may follow each."""

    def __init__(self, rules: Mapping[str, Node], plain: set[str]) -> None:
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
            meet(shape.more, follow) or (shape.empty and meet(shape.first, follow))
            for shape, follow in shapes
        ):
            return False
        pairs = combinations([shape for shape, _ in shapes], 2)
        return not any(meet(a.first, b.first) and not (a.single and b.single) for a, b in pairs)

    @staticmethod
    def _grown(old: dict[str, _Shape], new: dict[str, _Shape]) -> bool:
        changed = old != new
        old.update(new)
        return changed

    def _shape(self, node: Node) -> _Shape:
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
                more = merged((*inner.more, *inner.first))
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
            if meet(a.first, b.first) and not (a.single and b.single):
                more += b.all
        first = merged(pair for s in shapes for pair in s.first)
        every = merged(pair for s in shapes for pair in s.all)
        single = all(s.single for s in shapes)
        return _Shape(any(s.empty for s in shapes), first, every, merged(more), single)

    @staticmethod
    def _joined(a: _Shape, b: _Shape) -> _Shape:
        first = merged((*a.first, *b.first)) if a.empty else a.first
        more = b.more
        if b.empty:
            more = merged((*a.more, *b.more, *b.first))
        return _Shape(a.empty and b.empty, first, merged((*a.all, *b.all)), more)

    def _spread(self, node: Node, follow: Chars) -> Chars:
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
                after = merged((*before, *follow))
                self._changed = self._changed or after != before or key not in self._lexemes
                self._lexemes[key] = (shape, after)
            case "choice":
                for part in node.parts:
                    self._spread(part, follow)
            case "repeat":
                again = () if node.value == "?" else shape.first
                self._spread(node.parts[0], merged((*follow, *again)))
            case "sequence":
                rest = follow
                for part in reversed(node.parts):
                    rest = self._spread(part, rest)
        return merged((*shape.first, *follow)) if shape.empty else shape.first

    def _note_rule(self, name: str, follow: Chars) -> None:
        after = merged((*self._follow[name], *follow))
        if after != self._follow[name]:
            self._follow[name] = after
            self._changed = True
