"""What is known of one row: its answer with numbers, or its error; and columns of many."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..chat.constraints.kinds import parse
from ..chat.reply import Reply
from ..decisions.decision import Decision
from ..errors import LLMError
from ..events import Constraint, Schema
from ..json_types import JsonObject
from .frames import Columns, Kind

CUT = "the answer was cut off before its JSON was whole; allow more tokens with max_tokens"


@dataclass(frozen=True, slots=True)
class Answer:
    """One row's answer.

    Attributes:
        text: The answer; None where there is an error.
        probability: That the model writes exactly these tokens: with `choices` the choice's share
            of all choices, else the product of the probabilities of the drawn tokens, a constraint
            and the temperature left aside.
        entropy: In nats: with `choices` of the distribution over the choices; else the mean of
            -log p of the drawn tokens, which estimates the entropy of a token.
        tokens: How many tokens were drawn.
        finish: Why it ended, a `FinishReason`.
        expected: With `scale`, the mean of the scale under the probabilities of its numbers.
        error: What kept the row from an answer.
    """

    text: str | None = None
    probability: float | None = None
    entropy: float | None = None
    tokens: int | None = None
    finish: str | None = None
    expected: float | None = None
    error: str | None = None

    def to_json(self) -> JsonObject:
        """The answer as a line of a cache holds it; floats keep every bit."""
        return {
            f.name: value
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) is not None
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> "Answer | None":
        """The answer of `to_json`; None where the data is none.

        >>> Answer.from_json(Answer("yes", 0.1).to_json())
        Answer(text='yes', probability=0.1, ...)
        """
        text, tokens, finish = (data.get(k) for k in ("text", "tokens", "finish"))
        numbers = [data.get(k) for k in ("probability", "entropy", "expected")]
        if not isinstance(text, str) or not isinstance(tokens, int | None):
            return None
        if not all(n is None or isinstance(n, float | int) for n in numbers):
            return None
        p, entropy, expected = (None if n is None else float(n) for n in numbers)  # type: ignore[arg-type]
        finish = finish if isinstance(finish, str) else None
        return cls(text, p, entropy, tokens, finish, expected)


def answer_of(reply: Reply) -> Answer:
    """The answer that a reply is."""
    drawn = [t.logprob for t in reply.tokens if not t.forced]
    known = [x for x in drawn if x is not None]
    probability = entropy = None
    if reply.choices is not None:
        probability = reply.choices.get(reply.text)
        entropy = entropy_of(reply.choices.values())
    elif known and len(known) == len(drawn):
        probability = math.exp(math.fsum(known))
        entropy = 0.0 - math.fsum(known) / len(known)
    return Answer(reply.text, probability, entropy, len(drawn), reply.finish_reason)


def answer_that(decision: Decision) -> Answer:
    """The answer that a decision is."""
    return Answer(
        decision.choice, decision.probability, decision.entropy,
        decision.tokens.get(decision.choice), "stop", decision.expected,
    )  # fmt: skip


def entropy_of(shares: Iterable[float]) -> float:
    """Entropy of a distribution in nats: -sum p ln p.

    >>> round(entropy_of([0.5, 0.5]), 6)
    0.693147
    """
    return 0.0 - math.fsum(p * math.log(p) for p in shares if p > 0)


def read_by(answer: Answer, constraint: Constraint | None) -> tuple[Answer, object]:
    """An answer with the Python value that its schema gives it; an error where it has none."""
    if answer.text is None or not isinstance(constraint, Schema):
        return answer, None
    try:
        return answer, parse(constraint, answer.text)
    except LLMError as e:
        return dataclasses.replace(answer, error=str(e)), None
    except ValueError:
        return dataclasses.replace(answer, error=CUT), None


def field_names(constraint: Constraint | None) -> tuple[str, ...] | None:
    """The fields of a schema of objects; None where the answer is one value or a text."""
    schema = constraint.schema if isinstance(constraint, Schema) else None
    for _ in range(8):  # a class that contains itself is a reference into "$defs"
        if not isinstance(schema, Mapping):
            return None
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not isinstance(constraint, Schema):
            break
        whole: object = constraint.schema
        for step in reference.removeprefix("#/").split("/"):
            whole = whole.get(step) if isinstance(whole, Mapping) else None
        schema = whole if isinstance(whole, Mapping) else None
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return tuple(map(str, properties)) if isinstance(properties, Mapping) else None


def columns(out: str, answers: Sequence[Answer], constraint: Constraint | None) -> Columns:
    """The columns of answers: `out`, its numbers, its error, and the fields of a schema.

    >>> [name for name in columns("a", [Answer("x")], None)]
    ['a', 'a_probability', 'a_entropy', 'a_tokens', 'a_finish', 'a_error']
    """
    read = [read_by(answer, constraint) for answer in answers]
    answers = [answer for answer, _ in read]
    fields = field_names(constraint)
    made: dict[str, tuple[Kind, Sequence[object]]] = {}
    if isinstance(constraint, Schema) and fields is None:
        made[out] = ("any", [value for _, value in read])
    else:
        made[out] = ("text", [answer.text for answer in answers])
    kinds: list[tuple[str, Kind]] = [
        ("probability", "number"), ("entropy", "number"), ("tokens", "count"), ("finish", "text"),
    ]  # fmt: skip
    if any(answer.expected is not None for answer in answers):
        kinds.append(("expected", "number"))
    for name in fields or ():
        made[f"{out}_{name}"] = ("any", [_field(value, name) for _, value in read])
    for name, kind in kinds:
        made[f"{out}_{name}"] = (kind, [getattr(answer, name) for answer in answers])
    made[f"{out}_error"] = ("text", [answer.error for answer in answers])
    return made


def _field(value: object, name: str) -> object:
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)
