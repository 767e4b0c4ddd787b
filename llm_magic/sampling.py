"""Sampling settings: one table of what they mean, which values are valid, and how they are read.

`Sampling` holds the settings of a request, `FIELDS` describes each of them once. The Python API,
the options of the magics, forms, saved replies and the engine's checks all read this table.
"""

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Literal, cast

from .errors import RequestError
from .utf8 import whole

LARGEST = 1e30  # of a number: what it does to logits stays a float32
MAX_TEXTS = 64  # stop strings, or sequence breakers
MAX_TEXT_CHARS = 4096  # of one of them

Kind = Literal["number", "count", "pair", "texts", "bias"]
Group = Literal["length", "draw", "filter", "penalty", "token"]
Bias = tuple[tuple[int | str, float], ...]
SamplingValue = int | float | tuple[float, float] | tuple[str, ...] | Bias


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens. A field that is None is unset: the model or the caller decides.

    `FIELDS` describes every field. The order of processing is that of llama.cpp: logit bias,
    penalties, DRY, the constraint; then, unless the temperature is 0, top-k, typical, top-p, min-p,
    XTC, the temperature and the draw. Mirostat replaces the filters.

    >>> Sampling(temperature=0.2).over(Sampling(temperature=0.7, max_tokens=256)).max_tokens
    256
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    mirostat: tuple[float, float] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_last_n: int | None = None
    dry_breakers: tuple[str, ...] | None = None
    logit_bias: Bias | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: tuple[str, ...] | None = None

    def over(self, default: "Sampling") -> "Sampling":
        """These settings, with `default` filling every unset field."""
        values = {}
        for f in fields(self):
            own = getattr(self, f.name)
            values[f.name] = getattr(default, f.name) if own is None else own
        return Sampling(**values)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken at every position."""
        return (self.temperature or 0.0) == 0.0 and self.mirostat is None


@dataclass(frozen=True, slots=True)
class Field:
    """One sampling setting.

    Attributes:
        name: The field of `Sampling`, and the keyword option of `LLM.chat`.
        kind: "number" (float), "count" (int), "pair" (two floats), "texts" (one or more strings)
            or "bias" (a mapping of token id or text to a number).
        group: Where a form lists it.
        help: One line for people.
        low, high: The smallest and the largest valid number.
        above: Whether `low` itself is not valid.
        default: The value that takes effect where nothing sets the field; None: no effect.
    """

    name: str
    kind: Kind
    group: Group
    help: str
    low: float = -LARGEST
    high: float = LARGEST
    above: bool = False
    default: int | float | tuple[str, ...] | None = None

    @property
    def bounds(self) -> str:
        """The valid values in words.

        >>> FIELDS["top_p"].bounds
        'a number from 0 to 1'
        >>> FIELDS["max_tokens"].bounds
        'a whole number, 0 or more'
        """
        if self.kind == "texts":
            return f"a text or a list of at most {MAX_TEXTS} texts"
        if self.kind == "bias":
            return "a mapping of token ids or texts of one token to numbers"
        kind = {"number": "a number", "count": "a whole number", "pair": "two numbers"}[self.kind]
        if self.low == -LARGEST and self.high == LARGEST:
            return kind
        if self.high >= LARGEST:
            return f"{kind} above {self.low:g}" if self.above else f"{kind}, {self.low:g} or more"
        first = f"above {self.low:g} up to" if self.above else f"from {self.low:g} to"
        return f"{kind} {first} {self.high:g}"

    def read(self, value: object) -> SamplingValue:
        """The value in its own type. numpy scalars count as numbers.

        Raises:
            RequestError: The value is not valid. The message names the field and its bounds.

        >>> FIELDS["stop"].read("END")
        ('END',)
        >>> FIELDS["top_k"].read(2.5)
        Traceback (most recent call last):
        llm_magic.errors.RequestError: top_k is 2.5; it must be a whole number
        """
        return _READERS[self.kind](self, value)

    def wrong(self, value: object) -> RequestError:
        """The error of a value that is not valid."""
        return RequestError(f"{self.name} is {_shown(value)}; it must be {self.bounds}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # a foreign class; what it is must do
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def scalar(value: object) -> int | float | None:
    """The number that a value is: int, float, Decimal, or a numpy scalar. None for all else.

    A boolean is not a number here.
    """
    if type(value) in (int, float):
        return cast("int | float", value)
    if getattr(value, "ndim", None) == 0 and callable(item := getattr(value, "item", None)):
        value = item()  # a numpy scalar, or an array without dimensions
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal):
        value = float(value)
    try:
        if isinstance(value, numbers.Integral):
            return operator.index(value)
        return float(value) if isinstance(value, numbers.Real) else None
    except (OverflowError, TypeError, ValueError):
        return None


def _number(field: Field, value: object) -> int | float:
    number = scalar(value)
    if (
        number is None
        or not field.low <= number <= field.high  # which not-a-number is not
        or (field.above and number == field.low)
        or (field.kind == "count" and not isinstance(number, int))
    ):
        raise field.wrong(value)
    return number


def _pair(field: Field, value: object) -> tuple[float, float]:
    parts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else []
    if len(parts) != 2:
        raise field.wrong(value)
    first, second = parts
    return float(_number(field, first)), float(_number(field, second))


def _texts(field: Field, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise field.wrong(value)
    texts: list[str] = []
    for text in value:
        if not isinstance(text, str) or len(texts) == MAX_TEXTS:
            raise field.wrong(value)
        if len(text) > MAX_TEXT_CHARS:
            raise RequestError(
                f"{field.name} has a text of {len(text):,} characters; "
                f"the limit is {MAX_TEXT_CHARS:,}"
            )
        texts.append(whole(text))
    return tuple(filter(None, texts))


def _bias(field: Field, value: object) -> Bias:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, str | bytes):
        raise field.wrong(value)
    out: list[tuple[int | str, float]] = []
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise field.wrong(value)
        out.append((_token(field, pair[0]), _bias_value(field, *pair)))
    return tuple(out)


def _token(field: Field, key: object) -> int | str:
    if isinstance(key, str):
        # JSON knows only string keys: "123" is an id, any other string is the text of a token.
        return int(key) if key.isascii() and key.isdigit() and len(key) < 10 else whole(key)
    number = scalar(key)
    if not isinstance(number, int):
        raise RequestError(f"{field.name}: {_shown(key)} is neither a token id nor a text")
    return number


def _bias_value(field: Field, key: object, value: object) -> float:
    number = scalar(value)
    if number is None or not number <= LARGEST:
        raise RequestError(
            f"{field.name} of token {_shown(key)} is {_shown(value)}; it must be a number up to "
            f"{LARGEST:.0e}, or minus infinity to forbid the token"
        )
    return -math.inf if number == -math.inf else float(max(number, -LARGEST))


_READERS: Mapping[Kind, Callable[[Field, object], SamplingValue]] = {
    "number": _number,
    "count": _number,
    "pair": _pair,
    "texts": _texts,
    "bias": _bias,
}

_TABLE = (
    Field("max_tokens", "count", "length", "Most tokens of an answer.", 0),
    Field("min_tokens", "count", "length", "Fewest tokens of an answer, before an end token or a "
          "stop string may end it.", 0),
    Field("stop", "texts", "length", "Texts that end the answer; they are not part of it."),
    Field("temperature", "number", "draw", "How random the draw is: 0 always takes the most likely "
          "token, 1 draws from the model's own distribution. A negative value counts as 1."),
    Field("seed", "count", "draw", "Start of the random numbers: the same seed draws the same "
          "answer.", 0, math.inf),
    Field("top_k", "count", "filter", "Keep the k most likely tokens; 0 or less keeps all."),
    Field("top_p", "number", "filter", "Keep the most likely tokens that together have this "
          "probability; 1 keeps all.", 0, 1),
    Field("min_p", "number", "filter", "Keep tokens with at least this share of the most likely "
          "one's probability; 0 keeps all.", 0, 1),
    Field("typical_p", "number", "filter", "Keep the tokens of most typical surprise that together "
          "have this probability; 1 keeps all.", 0, 1, above=True),
    Field("xtc_probability", "number", "filter", "Chance at each token that XTC removes the most "
          "likely candidates and keeps the last one above xtc_threshold; 0 is off.", 0, 1),
    Field("xtc_threshold", "number", "filter", "Probability from which on XTC may remove a "
          "candidate; above 0.5 nothing is removed.", 0, 1, default=0.1),
    Field("mirostat", "pair", "filter", "(tau, eta) of Mirostat 2: aim for a surprise of tau bits, "
          "adjusted at rate eta. Replaces the filters.", 0, above=True),
    Field("repeat_penalty", "number", "penalty", "Divides the logits of tokens that occurred in "
          "the last repeat_last_n; 1 is off.", 1 / LARGEST, default=1.0),
    Field("repeat_last_n", "count", "penalty", "How many of the last tokens the repeat, frequency "
          "and presence penalties look at: 0 is off, -1 is all.", -1, default=64),
    Field("frequency_penalty", "number", "penalty", "Subtracted from a token's logit for each time "
          "it occurred in the last repeat_last_n; 0 is off."),
    Field("presence_penalty", "number", "penalty", "Subtracted once from the logit of every token "
          "that occurred in the last repeat_last_n; 0 is off."),
    Field("dry_multiplier", "number", "penalty", "Strength of DRY, which penalises tokens that "
          "would continue a repeated passage; 0 is off.", 0),
    Field("dry_base", "number", "penalty", "DRY's penalty grows by this factor with each repeated "
          "token.", 1, default=1.75),
    Field("dry_allowed_length", "count", "penalty", "Longest repetition that DRY allows without a "
          "penalty.", 0, default=2),
    Field("dry_last_n", "count", "penalty", "How many of the last tokens DRY looks at: 0 is off, "
          "-1 is all.", -1, default=-1),
    Field("dry_breakers", "texts", "penalty", "A token that contains one of these texts ends a "
          "repetition for DRY.", default=("\n", ":", '"', "*")),
    Field("logit_bias", "bias", "token", "Added to the logit of a token, by id or by text of one "
          "token; minus infinity forbids it."),
)  # fmt: skip

FIELDS: Mapping[str, Field] = {field.name: field for field in _TABLE}


def read(values: Mapping[str, object]) -> Sampling:
    """Settings from plain values; None is unset. RequestError names the first one that is wrong.

    >>> read({"temperature": 0, "stop": ["END", ""]})
    Sampling(temperature=0, ..., stop=('END',))
    """
    known = {name: FIELDS[name].read(v) for name, v in values.items() if v is not None}
    return Sampling(**known)  # type: ignore[arg-type]


def check(sampling: Sampling) -> None:
    """Raise RequestError naming the first setting that is not valid."""
    for f in _TABLE:
        if (value := getattr(sampling, f.name)) is not None:
            f.read(value)
