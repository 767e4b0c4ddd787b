"""The kinds of constraint: how each is named, and how Python values become one.

`KINDS` is the one list of them. A kind has a data class in `events`, a row here, and a row in
`compiler.GRAMMARS`; options of `LLM` and of `%%llm`, and errors, are made from the rows.
"""

import enum
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from llm_magic.errors import RequestError, SchemaError
from llm_magic.events import Choices, Constraint, Grammar, Regex, Schema
from llm_magic.utf8 import whole

from ..schema import as_schema
from ..typed_values import loads_as


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of constraint.

    Attributes:
        name: the option that takes it, such as "regex" (`--regex` in a cell).
        of: makes the constraint from what a user gave. Raises SchemaError.
        parse: the Python value of a whole answer.
        help: one line for option lists.
    """

    name: str
    of: Callable[[object], Constraint]
    parse: Callable[[Constraint, str], object]
    help: str


def schema(value: object) -> Schema:
    """A schema constraint from a JSON schema, a bool or a Python type.

    Args:
        value: a dict in JSON schema, True or False, or a type: a dataclass, TypedDict, NamedTuple,
            Enum, pydantic model, or a hint such as `list[int]`.

    Raises:
        SchemaError: the value is no schema and has none.

    >>> schema({"type": "integer"}).schema
    {'type': 'integer'}
    >>> schema(list[int]).schema
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    plain = isinstance(value, Mapping | bool)
    return Schema(as_schema(value), None if plain else value)


def regex(value: object) -> Regex:
    """A regex constraint from a text or a compiled pattern, whose flags are kept.

    Raises:
        SchemaError: the value is neither, or empty.

    >>> regex(r"[0-9]{3}")
    Regex(pattern='[0-9]{3}')
    >>> regex(re.compile("yes|no", re.IGNORECASE))
    Regex(pattern='(?i:yes|no)')
    """
    if isinstance(value, re.Pattern):
        value = _with_flags(value)
    if not isinstance(value, str):
        raise SchemaError(f"regex is {value!r}; give a text or re.compile(...)")
    if not value:
        raise SchemaError("the regular expression is empty")
    return Regex(whole(value))


def _with_flags(pattern: "re.Pattern[str] | re.Pattern[bytes]") -> str:
    if isinstance(pattern.pattern, bytes):
        raise SchemaError("regex is a pattern of bytes; give a pattern of text")
    text = _VERBOSE.sub(_unspaced, pattern.pattern) if pattern.flags & re.X else pattern.pattern
    flags = "".join(
        letter for letter, flag in (("i", re.I), ("m", re.M), ("s", re.S)) if pattern.flags & flag
    )
    return f"(?{flags}:{text})" if flags else text


# White space and comments of a verbose pattern; escapes and classes keep theirs.
_VERBOSE = re.compile(r"(?P<kept>\\.|\[\^?\]?(?:[^\]\\]|\\.)*\])|\s+|\#[^\n]*", re.DOTALL)


def _unspaced(match: "re.Match[str]") -> str:
    return match["kept"] or ""


def choices(value: object) -> Choices:
    """A choices constraint from "yes|no", texts, an Enum class or a Literal.

    Raises:
        SchemaError: there are no choices, or one of them is empty or no text.

    >>> choices("yes|no")
    Choices(options=('yes', 'no'))
    >>> choices(["a|b", "c"])
    Choices(options=('a|b', 'c'))
    >>> choices(typing.Literal["on", "off"])
    Choices(options=('on', 'off'))
    """
    listed: Iterable[object]
    if isinstance(value, str):
        listed = [part.strip() for part in value.split("|")]
    elif typing.get_origin(value) is typing.Literal:
        listed = typing.get_args(value)
    elif isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        raise SchemaError(
            f'choices is {value!r}; give "yes|no", a list of texts, or an Enum class of texts'
        )
    else:
        listed = value
    texts = [item.value if isinstance(item, enum.Enum) else item for item in listed]
    for text in texts:
        if not isinstance(text, str) or not text:
            raise SchemaError(f"choices holds {text!r}; each choice must be a text, none empty")
    if not texts:
        raise SchemaError("choices is empty; give one or more texts")
    return Choices(tuple(dict.fromkeys(whole(str(text)) for text in texts)))


def grammar(value: object) -> Grammar:
    """A grammar constraint from a text in GBNF or Lark.

    Raises:
        SchemaError: the value is no text, or empty.

    >>> grammar('root ::= "yes" | "no"').text
    'root ::= "yes" | "no"'
    """
    if not isinstance(value, str):
        raise SchemaError(f"grammar is {value!r}; give a text in GBNF (root ::= ...) or Lark")
    if not value.strip():
        raise SchemaError("the grammar is empty")
    return Grammar(whole(value))


def _text(constraint: Constraint, text: str) -> object:
    return text


KINDS: dict[type[Constraint], Kind] = {
    Schema: Kind("schema", schema, loads_as, "answer in JSON that is valid under a schema or type"),
    Regex: Kind("regex", regex, _text, "the whole answer matches a regular expression"),
    Choices: Kind("choices", choices, _text, "the answer is one of these texts"),
    Grammar: Kind("grammar", grammar, _text, "the answer is a sentence of a GBNF or Lark grammar"),
}


def names() -> tuple[str, ...]:
    """The options that give a constraint, in order.

    >>> names()
    ('schema', 'regex', 'choices', 'grammar')
    """
    return tuple(kind.name for kind in KINDS.values())


def constraint_of(options: Mapping[str, object]) -> Constraint | None:
    """The constraint among options by name; None when there is none.

    Raises:
        RequestError: two constraints are given.
        SchemaError: the value cannot be used.

    >>> constraint_of({"choices": "yes|no", "temperature": 0.5})
    Choices(options=('yes', 'no'))
    """
    given = [kind for kind in KINDS.values() if options.get(kind.name) is not None]
    if len(given) > 1:
        both = " and ".join(kind.name for kind in given)
        raise RequestError(f"{both} cannot be used together; choose one")
    return given[0].of(options[given[0].name]) if given else None


def parse(constraint: Constraint, text: str) -> object:
    """The Python value of an answer under a constraint.

    A schema gives JSON's value, or an instance of the type that was given as schema; every other
    kind gives the text.

    Raises:
        ValueError: the text is not a whole JSON value.
        SchemaError: a validator of the type refuses the value.

    >>> parse(schema({"type": "integer"}), "42")
    42
    >>> parse(regex("[a-z]+"), "abc")
    'abc'
    """
    return KINDS[type(constraint)].parse(constraint, text)
