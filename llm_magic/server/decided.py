"""Typed questions about one text: /v1/decisions and /v1/systemone.

Both forms ask for a yes or no, for a choice, or for a level of a scale, and are answered as
`LLM.decide` decides: whole texts scored behind the prompt, in several orders. The forms are those
of OpenAI's Decisions API (public beta; the types of openai-python in November 2026) and of System
One (TypeSafe's Jev). What they share is read into `Asked`; both are young and may change.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ..decisions.asking import decisions
from ..decisions.decision import Decision
from ..decisions.question import Question, question
from ..errors import LLMError
from ..events import Message
from ..json_types import Json, JsonObject
from ..llm import LLM
from ..provider import Prompt, Request
from .body import Body
from .problems import bad

MOST_QUESTIONS = 128
Value = str | bool


@dataclass(frozen=True, slots=True)
class Asked:
    """One question.

    Attributes:
        kind: "predicate", "choice" or "score", whatever the form calls it.
        name: What the client calls it; "" for nothing.
        text: The instructions, with what the options mean.
        options: The texts to decide between.
        values: What the client calls each option.
    """

    kind: str
    name: str
    text: str
    options: tuple[str, ...] = ()
    values: tuple[Value, ...] = ()

    def question(self, where: str) -> Question:
        """What is decided between. ApiError where the options make no decision."""
        if self.kind == "predicate":
            return question(yes_no=True)
        try:
            read = question(choices=list(self.options))
        except LLMError as e:
            raise bad(f"{where}: {e}", "questions") from None
        if self.kind == "choice":
            return read
        return Question(read.choices, values=tuple(map(float, range(len(read.choices)))))


def openai(body: Body, llm: LLM, name: str) -> JsonObject:
    """The answer of /v1/decisions. Blocks while the model decides."""
    body.only(("input", "model", "questions", "safety_identifier"))
    text = _input(body.get("input"))
    asked = [
        _openai_question(i, value)
        for i, value in enumerate(cast("list[object]", _questions(body, list)))
    ]
    found, usage = _decided(llm, text, asked)
    answers: list[Json] = []
    for one, decision in zip(asked, found, strict=True):
        answer: JsonObject = {"type": one.kind, **({"name": one.name} if one.name else {})}
        answers.append({**answer, **_openai_answer(one, decision)})
    details: JsonObject = {
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    total: JsonObject = {**usage, **details, "total_tokens": usage["input_tokens"]}
    return {"model": name, "answers": answers, "usage": total}


def system_one(body: Body, llm: LLM, name: str) -> JsonObject:
    """The answer of /v1/systemone. Blocks while the model decides."""
    body.only(("state", "model", "questions"))
    text = _content(body.get("state"), "state")
    asked = [
        _system_one_question(key, value)
        for key, value in cast("Mapping[str, object]", _questions(body, dict)).items()
    ]
    found, usage = _decided(llm, text, asked)
    answers = {
        one.name: _system_one_answer(one, decision)
        for one, decision in zip(asked, found, strict=True)
    }
    return {"model": name, "answers": answers, "usage": usage}


# ----------------------------------------------------------------------------- deciding


def _decided(llm: LLM, text: str, asked: Sequence[Asked]) -> tuple[list[Decision], dict[str, Json]]:
    """The decision of each question about a text, and the numbers of tokens."""
    read = [one.question(_where(i, one)) for i, one in enumerate(asked)]  # before anything runs
    found, tokens = [], 0
    for one, what in zip(asked, read, strict=True):
        prompt: Prompt = (Message("user", f"{text}\n\n{one.text}"),)
        (decision,) = decisions(llm.provider, what, [prompt], _request)
        if isinstance(decision, LLMError):
            raise decision
        found.append(decision)
        tokens += len(llm.provider.render(_request(next(what.prompts(prompt)))).ids)
    return found, {"input_tokens": tokens, "output_tokens": 0}


def _request(prompt: Prompt) -> Request:
    return Request(prompt, thinking=False)


def _confidence(found: Decision) -> float:
    """1 where one option has all the probability, 0 where all are equally likely."""
    return min(1.0, max(0.0, 1.0 - found.entropy / math.log(len(found.probabilities))))


def _openai_answer(asked: Asked, found: Decision) -> JsonObject:
    shares = list(found.probabilities.values())
    if asked.kind == "predicate":
        return {"probability": found.probabilities["yes"]}
    if asked.kind == "choice":
        return {
            "choice": asked.values[asked.options.index(found.choice)],
            "confidence": _confidence(found),
            "probabilities": [
                {"value": value, "probability": p}
                for value, p in zip(asked.values, shares, strict=True)
            ],
        }
    return {
        "score": found.expected,
        "confidence": _confidence(found),
        "probabilities": [
            {"label": label, "value": i, "probability": p}
            for i, (label, p) in enumerate(zip(asked.options, shares, strict=True))
        ],
    }


def _system_one_answer(asked: Asked, found: Decision) -> JsonObject:
    if asked.kind == "predicate":
        return {"type": "noul", "noul": found.probabilities["yes"]}
    if asked.kind == "choice":
        return {
            "type": "choice",
            "choice": found.choice,
            "probabilities": dict(found.probabilities),
            "confidence": _confidence(found),
        }
    return {
        "type": "score",
        "score": found.expected,
        "legend": {str(i): label for i, label in enumerate(asked.options)},
        "probabilities": {str(i): p for i, p in enumerate(found.probabilities.values())},
        "confidence": _confidence(found),
    }


# ----------------------------------------------------------------------------- reading


def _where(i: int, asked: Asked) -> str:
    return f"the question {asked.name!r:.80}" if asked.name else f"questions[{i}]"


def _questions(body: Body, kind: "type[list[object] | dict[str, object]]") -> object:
    """The questions as they were sent: a list, or an object with a name for each."""
    value = body.get("questions")
    if not isinstance(value, kind) or not value:
        what = "a list" if kind is list else "an object"
        raise bad(f"questions must be {what} with a question at least", "questions")
    if len(cast("list[object]", value)) > MOST_QUESTIONS:
        raise bad(f"the most questions at once are {MOST_QUESTIONS}", "questions")
    return value


def _input(value: object) -> str:
    """A text, or the text of user messages."""
    if not isinstance(value, list):
        return _content(value, "input", str)
    texts = []
    for i, message in enumerate(value):
        read = _fields(message, f"input[{i}]", "input")
        if read.get("role") != "user":
            raise bad(f"input[{i}]: only user messages can be decided about", "input")
        texts.append(_parts(read.get("content"), f"input[{i}].content"))
    return _content("\n\n".join(texts), "input", str)


def _parts(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(f"{where} must be a text or a list of parts", "input")
    out = []
    for part in content:
        read = _fields(part, where, "input")
        if read.get("type") not in ("input_text", "text") or not isinstance(read.get("text"), str):
            raise bad(f"{where}: this model reads text only", "input", "unsupported_content")
        out.append(str(read.get("text")))
    return "".join(out)


def _content(value: object, where: str, kind: "type[object]" = object) -> str:
    """A text, or structured data as JSON text."""
    if isinstance(value, str) and value.strip():
        return value
    if value and kind is object and isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    raise bad(f"{where} is missing or empty", where.split(".")[0].split("[")[0])


def _fields(value: object, where: str, param: str) -> Body:
    if not isinstance(value, Mapping):
        raise bad(f"{where} must be an object", param)
    return Body(value)


def _openai_question(i: int, value: object) -> Asked:
    where = f"questions[{i}]"
    read = _fields(value, where, "questions")
    kind, name = read.text("type"), read.text("name")
    text = _content(read.get("instructions"), f"{where}.instructions", str)
    if kind == "predicate":
        read.only(("type", "name", "instructions"))
        return Asked(kind, name, text)
    if kind == "choice":
        read.only(("type", "name", "instructions", "choices"))
        pairs = [_option(one, where, "value") for one in read.listed("choices")]
    elif kind == "score":
        read.only(("type", "name", "instructions", "levels"))
        pairs = [_option(one, where, "label") for one in read.listed("levels")]
    else:
        raise bad(f"{where}.type is {kind!r:.40}; it must be predicate, choice or score",
                  "questions")  # fmt: skip
    values = tuple(value for value, _ in pairs)
    options = tuple(_word(value) for value in values)
    return Asked(kind, name, _meant(text, zip(options, (d for _, d in pairs), strict=True)),
                 options, values)  # fmt: skip


def _option(value: object, where: str, field: str) -> tuple[Value, str]:
    read = _fields(value, where, "questions")
    read.only((field, "description"))
    found = read.get(field)
    if not isinstance(found, str | bool) or (field == "label" and isinstance(found, bool)):
        raise bad(f"{where}: each {field} must be a text", "questions")
    return found, read.text("description")


def _word(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else value


def _system_one_question(name: str, value: object) -> Asked:
    where = f"questions.{name:.80}"
    read = _fields(value, where, "questions")
    read.only(("type", "instructions", "criteria"))
    text = _content(read.get("instructions"), where)
    kind, criteria = read.text("type"), read.get("criteria")
    if kind == "noul":
        meant = cast("Mapping[str, object]", criteria) if isinstance(criteria, Mapping) else {}
        words = {"true": "yes", "false": "no"}
        pairs = [(words.get(key, key), _described(value)) for key, value in meant.items()]
        return Asked("predicate", name, _meant(text, pairs))
    if kind == "choice":
        if not isinstance(criteria, Mapping):
            raise bad(f"{where}.criteria must be an object of options", "questions")
        options = tuple(map(str, criteria))
        pairs = [(key, _described(value)) for key, value in criteria.items()]
        return Asked(kind, name, _meant(text, pairs), options, options)
    if kind != "score":
        raise bad(f"{where}.type is {kind!r:.40}; it must be noul, choice or score", "questions")
    if not isinstance(criteria, list):
        raise bad(f"{where}.criteria must be a list of levels, the lowest first", "questions")
    levels = tuple(_described(level) for level in criteria)
    return Asked(kind, name, text, levels, levels)


def _described(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _meant(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    """The instructions, and below them what each option means."""
    lines = [f"{name}: {what}" for name, what in pairs if what]
    return "\n".join([text, *lines])
