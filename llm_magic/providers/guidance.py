"""Guides and routers of requests: constraints and tool calls, from the options to the tokens."""

import functools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ..chat.parsing.router import Router
from ..errors import EngineError
from ..events import Constraint, Token
from ..provider import RenderedPrompt, Request
from .rendering import Renderer

if TYPE_CHECKING:
    from ..chat.constraints.compiler import Constrainer
    from ..chat.parsing.syntax import Syntax
    from ..engine.load import Engine
    from ..engine.serving.sampler import Guide


class Guidance:
    """Guides and routers for the requests of one loaded model."""

    def __init__(self, engine: "Engine", renderer: Renderer) -> None:
        self._engine, self._renderer = engine, renderer
        self._constrainer: Constrainer | None = None
        self._controls: dict[int, str] | None = None
        self._lock = threading.Lock()

    @property
    def constrainer(self) -> "Constrainer":
        """Compiles constraints for this vocabulary; made when the first one is used."""
        with self._lock:
            if self._constrainer is None:
                self._constrainer = _constrainer(self._engine)
            return self._constrainer

    def guide(
        self, request: Request, prompt: RenderedPrompt, given: Sequence[Token] = ()
    ) -> "tuple[Guide | None, Syntax | None, bool, str]":
        """What holds a request to its constraint.

        Args:
            request: The request.
            prompt: Its prompt.
            given: The tokens that the answer begins with, all with ids.

        Returns:
            The guide (None: the answer is unconstrained), the syntax of its tool calls, whether
            the guide decides where the answer ends, and the text of the given tokens if they do
            not fit the constraint, which then holds for what follows them.
        """
        text = b"".join(token.bytes for token in given).decode("utf-8", "replace")
        tags = self._renderer.template.reasoning if prompt.reasoning else None
        begun = text.lstrip()
        thinks = not given or prompt.in_reasoning
        thinks = thinks or (tags is not None and _agree(begun, tags.open))
        guide, syntax, bound = self._new_guide(request, prompt, thinks)
        if guide is None:
            return guide, syntax, bound, ""
        try:
            for token in given:
                guide.accept(cast(int, token.id))
        except EngineError:
            return *self._new_guide(request, prompt, False), text
        return guide, syntax, bound, ""

    def _new_guide(
        self, request: Request, prompt: RenderedPrompt, thinks: bool
    ) -> "tuple[Guide | None, Syntax | None, bool]":
        """A guide at the start of an answer. thinks: the answer may begin with reasoning."""
        from ..chat.constraints.tool_calls import can_join

        choice, constraint = request.tool_choice, request.constraint
        tools = request.tools if choice != "none" and prompt.is_chat else ()
        syntax = self._renderer.template_of(request).syntax if tools else None
        must = bool(tools) and choice != "auto"
        tags = self._renderer.template.reasoning if prompt.is_chat and thinks else None
        if constraint is None and not must:
            if not request.tools or choice != "none" or not prompt.is_chat:
                return None, syntax, False
            unused = self._renderer.template_of(request).syntax
            return self.constrainer.no_calls(unused, tags), None, False
        if syntax is not None and (must or can_join(constraint)):
            named = tuple(t for t in tools if choice in ("auto", "required", t.name))
            answer = None if must else constraint
            source = self._renderer.template.source or ""
            guide, syntax = self.constrainer.call_guide(named, syntax, source, answer)
        else:
            guide = self.constrainer.guide(cast(Constraint, constraint))
        if tags is None or (request.thinking is False and not prompt.in_reasoning):
            return guide, syntax, True
        return self.constrainer.late(guide, tags, prompt.in_reasoning), syntax, True

    def router(
        self,
        request: Request,
        prompt: RenderedPrompt,
        stop: tuple[str, ...],
        syntax: "Syntax | None",
    ) -> Router:
        if prompt.calls and not request.tools:
            syntax = self._renderer.template_of(request).syntax  # a branch: its tools are not known
        return Router(
            stop=stop,
            reasoning=self._renderer.template.reasoning if prompt.reasoning else None,
            in_reasoning=prompt.in_reasoning,
            syntax=syntax,
            tools=request.tools,
            calls_without_tools=prompt.calls,
            min_tokens=len(request.given) + (request.sampling.min_tokens or 0),
            controls=self.controls,
        )

    @property
    def controls(self) -> dict[int, str]:
        """The names of control tokens by id: these have no text in an answer."""
        with self._lock:
            if self._controls is None:
                tokenizer = self._engine.loaded().tokenizer
                self._controls = {i: tokenizer.token_text(i) for i in tokenizer.control_ids}
            return self._controls


def _agree(text: str, tag: str) -> bool:
    """Whether the text begins with the tag, or is the beginning of it."""
    return text.startswith(tag) or tag.startswith(text)


def _constrainer(engine: "Engine") -> "Constrainer":
    from ..chat.constraints.compiler import Constrainer
    from ..chat.constraints.guides import Vocabulary

    tokenizer = engine.loaded().tokenizer
    tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
    # What is bound goes on behind a prompt: no space that only the start of a text gets.
    encode = functools.partial(tokenizer.encode, special=False, start=False)
    return Constrainer(Vocabulary(tokens, tokenizer.control_ids, tokenizer.end_ids, encode))
