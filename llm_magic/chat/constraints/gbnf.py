"""Grammars in GBNF (llama.cpp's form) as Lark grammars.

llguidance splits a text into lexemes and matches each greedily: after `[ \\n]*` no "\\n" can
follow. In GBNF it can. Rules that are not recursive therefore become lexemes (one regular
expression each, with cheap masks) only where the result is the same: no lexeme can continue with
what may follow it, and no two start alike. Otherwise every character is a lexeme, which is exact
for all grammars but slower (1 to 5 ms a mask instead of 0.1 at 49,152 tokens).
"""

import json
import re

from llm_magic.errors import SchemaError

from .gbnf_tree import EVERY, Chars, Node, complement, merged
from .lark import checked
from .lexemes import Lexemes
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


class _Gbnf:
    """A parser of GBNF. rules: by name, in the order of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0
        self.rules: dict[str, Node] = {}
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

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._is("|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Node("choice", parts=options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while (item := self._item()) is not None:
            suffix = self._suffix()
            if re.fullmatch(r"\{0+(,0+)?\}", suffix):
                continue  # none of it
            parts.append(Node("repeat", suffix, [item]) if suffix else item)
        return parts[0] if len(parts) == 1 else Node("sequence", parts=parts)

    def _item(self) -> Node | None:
        match self._peek():
            case "text":
                text = _unescaped(self._take("text")[1:-1])
                letters = [Node("chars", chars=((ord(c), ord(c)),)) for c in text]
                return letters[0] if len(letters) == 1 else Node("sequence", parts=letters)
            case "class":
                return Node("chars", chars=_class(self._take("class")[1:-1]))
            case "id":
                return Node("id", self._take("id"))
            case "name" if self._peek(1) != "define":
                return Node("name", self._take("name"))
            case "mark" if self._is("."):
                self._at += 1
                return Node("chars", chars=EVERY)
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
        if not Lexemes(self.rules, plain).harmless():
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


def _lark(node: Node, written: dict[str, str]) -> str:
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


def _group(node: Node, written: dict[str, str]) -> str:
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
    chars = merged(ranges)
    return complement(chars) if negated else chars
