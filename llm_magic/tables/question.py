"""A template with its settings: what one row asks, and everything that its answer depends on."""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, cast

from ..chat.constraints import kinds
from ..chat.conversation import Conversation
from ..chat.json_values import to_json
from ..chat.origin import Identified
from ..chat.stream import Stream
from ..chat.tools.definition import Tool, as_tools
from ..decisions.methods import DecideOptions, deciding
from ..errors import LLMError, RequestError
from ..events import Choices, Constraint, Message, Schema
from ..json_types import Json
from ..provider import Prompt, Provider, Request
from .answers import Answer, answer_that
from .cache import key_of
from .run import Asked, Task
from .template import Template, template_of

SEED_BITS = 32
DECIDES = ("yes_no", "scale", "order", "listed", "length", "calibration")  # see LLM.decide


class Asker(Protocol):
    """What a table needs of a model; llm.LLM is one."""

    provider: Provider

    @property
    def model(self) -> str: ...

    def stream(self, prompt: Any, **options: Any) -> Stream: ...

    def _request(self, prompt: Prompt, options: Mapping[str, object]) -> Request: ...


class Question:
    """A template with its settings, checked before anything is asked."""

    def __init__(
        self,
        llm: Asker,
        template: object,
        system: str | None,
        names: Mapping[str, object] | None,
        options: Mapping[str, object],
    ) -> None:
        self.llm = llm
        self.template = Template(template, system, names)
        options = {name: value for name, value in options.items() if value is not None}
        self.tools: tuple[Tool, ...] = as_tools(
            cast("Sequence[object]", options.get("tools") or ())
        )
        options.setdefault("temperature", 0.0)
        asked = {name: options.pop(name) for name in DECIDES if name in options}
        # One request as every row's will be: all options are checked here.
        self.request = llm._request(self.template.messages, options)
        self.constraint: Constraint | None = self.request.constraint
        self.decision = self._decision(asked, options)
        self.options = {k: v for k, v in options.items() if k != "tools"}
        sampling = self.request.sampling
        self.drawn = not sampling.greedy
        self.seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed
        self._settings = key_of(
            _model(llm.provider),
            template_of(self.template.messages),
            _settings(self.request),
            to_json(self.decision),
        )

    def _decision(
        self, asked: Mapping[str, object], options: Mapping[str, object]
    ) -> DecideOptions | None:
        """The options of `LLM.decide` where the rows are decisions; None: they are answers.

        A choice that is drawn, or that follows calls of tools, is an answer under a constraint.
        """
        bound = isinstance(self.constraint, Choices)
        able = "choices" in self.llm.provider.capabilities
        if not asked and not (bound and able and self.request.sampling.greedy and not self.tools):
            return None
        if self.constraint is not None and not bound:
            raise RequestError(f"{min(asked)} cannot be used together with another constraint")
        also = {k: options[k] for k in ("thinking", "template_kwargs", "reuse") if k in options}
        choices = options.get("choices")
        found = {**asked, **also} | ({"choices": choices} if choices is not None else {})
        return cast("DecideOptions", found)

    def decide(self, prompts: Iterator[tuple[Message, ...]]) -> Iterator[Answer | LLMError]:
        """The answers of prompts that are decisions, in order."""
        for found in deciding(self.llm.provider, prompts, self.decision or {}):
            yield found if isinstance(found, LLMError) else answer_that(found)

    def ask(self, row: Mapping[str, object]) -> Asked:
        """What a row asks, or its error."""
        try:
            messages = self.template.fill(row)
        except LLMError as e:
            return Answer(error=str(e))
        key = key_of(self._settings, template_of(messages))
        return Task(key, messages, lambda: self._open(messages, key))

    def _open(self, messages: tuple[Message, ...], key: str) -> Stream:
        options = dict(self.options)
        if self.drawn:
            options["seed"] = _seed(self.seed, key)
        if not self.tools:
            return self.llm.stream(messages, **options)
        talk = Conversation(self.llm, tools=self.tools)
        return talk.answer(messages, lambda added, reply: None, **options)


def _model(provider: Provider) -> str:
    if isinstance(provider, Identified):
        return provider.origin().file.sha256() or provider.model
    return provider.model


def _settings(request: Request) -> Json:
    """Everything of a request that its answer depends on, but the prompt."""
    constraint = request.constraint
    return to_json({
        "sampling": {k: v for k, v in asdict(request.sampling).items() if v is not None},
        "constraint": None if constraint is None else _bound(constraint),
        "tools": [asdict(tool) for tool in request.tools],
        "tool_choice": request.tool_choice,
        "thinking": request.thinking,
        "template_kwargs": dict(request.template_kwargs),
        "suffix": request.suffix,
        "tool_syntax": request.tool_syntax,
        "given": [token.id for token in request.given],
    })  # fmt: skip


def _bound(constraint: Constraint) -> Json:
    data = constraint.schema if isinstance(constraint, Schema) else asdict(constraint)
    return {kinds.KINDS[type(constraint)].name: to_json(data)}


def _seed(base: int, key: str) -> int:
    digest = hashlib.sha256(f"{base}:{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
