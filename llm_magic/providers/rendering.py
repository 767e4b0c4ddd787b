"""Requests as prompts: chat template, fill-in-the-middle, trimming, and what fits the window."""

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..chat.exchanges import exchanges, shortened
from ..errors import ContextOverflowError, RequestError
from ..events import Message, Token
from ..provider import RenderedPrompt, Request

if TYPE_CHECKING:
    from ..chat.prompts.template import Template
    from ..engine.load import Engine


class Renderer:
    """Renders requests for one loaded model. The template is read when it is first needed."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._template: Template | None = None
        self._lock = threading.Lock()

    @property
    def template(self) -> "Template":
        """The model's chat template: beside the file, else inside it, else the fallback."""
        with self._lock:
            if self._template is None:
                self._template = _template(self._engine)
            return self._template

    def template_of(self, request: Request) -> "Template":
        """The template, with the syntax of calls that a request asks for."""
        template, name = self.template, request.tool_syntax
        if name is None:
            return template
        from ..chat.parsing.syntax import SYNTAXES

        if name not in SYNTAXES:
            known = ", ".join(SYNTAXES)
            raise RequestError(f"tool_syntax is {name!r}; there are {known}")
        template = copy.copy(template)
        template.syntax = SYNTAXES[name]
        return template

    def render(self, request: Request) -> RenderedPrompt:
        """The prompt of a request as text and as the ids that the model gets, with one BOS.

        Raises:
            TemplateError: The chat template refuses the messages.
        """
        prompt = request.prompt
        if isinstance(prompt, RenderedPrompt):
            return self._with_ids(prompt)
        tokenizer = self._engine.loaded().tokenizer
        if isinstance(prompt, str):
            ids = tokenizer.encode(prompt, special=True)
            if request.suffix and {"prefix", "suffix", "middle"} <= tokenizer.fim.keys():
                # Fill in the middle: the suffix goes before the place that the model continues.
                fim, after = tokenizer.fim, tokenizer.encode(request.suffix, special=False)
                ids = [fim["prefix"], *ids, fim["suffix"], *after, fim["middle"]]
            return RenderedPrompt(prompt, tuple(tokenizer.with_bos(ids)))
        if request.messages:
            return self._chat_prompt(request)
        ids = list(cast("tuple[int, ...]", prompt))
        self.check_ids(ids)
        return RenderedPrompt(tokenizer.decode(ids, skip_special=False), tuple(ids))

    def _with_ids(self, prompt: RenderedPrompt) -> RenderedPrompt:
        """A rendered prompt that was read back from a file has its text, but no ids."""
        if prompt.ids:
            self.check_ids(prompt.ids)
            return prompt
        tokenizer = self._engine.loaded().tokenizer
        ids = tokenizer.encode(prompt.text, special=True)
        return replace(prompt, ids=tuple(tokenizer.with_bos(ids)))

    def _chat_prompt(self, request: Request) -> RenderedPrompt:
        tokenizer = self._engine.loaded().tokenizer
        template = self.template_of(request)
        offered = request.offered

        def render(messages: tuple[Message, ...]) -> RenderedPrompt:
            r = template.render(
                messages,
                tools=offered,
                thinking=request.thinking,
                kwargs=request.template_kwargs,
            )
            ids = tokenizer.encode(r.text, special=True, mark=r.mark)
            return RenderedPrompt(
                text=r.plain,
                ids=tuple(tokenizer.with_bos(ids)),
                messages=messages,
                tools=offered,
                reasoning=template.reasoning is not None,
                in_reasoning=r.in_reasoning,
                calls=bool(offered),
            )

        messages = request.messages
        whole = render(messages)
        n_ctx = self._engine.loaded().forward.n_ctx
        # The answer must fit behind the prompt: reserve max_tokens for it, at most half the window.
        budget = min(request.sampling.max_tokens or 1, n_ctx // 2)
        room = n_ctx - budget - len(request.given)
        if not request.trim or len(whole.ids) <= room:
            return whole
        low, high = 1, len(exchanges(messages)[1]) - 1
        while low < high:  # how many of the oldest exchanges must go
            middle = (low + high) // 2
            if len(render(shortened(messages, middle)).ids) <= room:
                high = middle
            else:
                low = middle + 1
        return render(shortened(messages, low)) if high > 0 else whole

    def check_ids(self, ids: Sequence[int]) -> None:
        """RequestError for an id that the vocabulary does not have."""
        n = self._engine.loaded().config.n_tokens
        for i in ids:
            if not 0 <= i < n:
                raise RequestError(f"token id {i} is not in the vocabulary (0 to {n - 1})")

    def begin(self, request: Request) -> tuple[RenderedPrompt, tuple[Token, ...]]:
        """The prompt of a request, and the tokens that the answer begins with, all with ids.

        The words of a chat's answer are cut off from the prompt that continues an assistant's
        message with them: a template may open that message in another way than an empty one.
        """
        if all(token.id is not None for token in request.given):
            self.check_ids([token.id for token in request.given if token.id is not None])
            return self.render(request), request.given
        text = b"".join(token.bytes for token in request.given).decode("utf-8", "replace")
        free, messages = replace(request, given=()), request.messages
        if messages and messages[-1].role != "assistant" and not _is_rendered(request):
            begun = (*messages, Message("assistant", text))
            whole = self.render(replace(free, prompt=begun))
            for words in (text, text.strip()):
                if (found := self._cut(whole, words.encode())) is not None:
                    return found
        ids = self._engine.loaded().tokenizer.encode(text, special=False, start=False)
        return self.render(free), self._given(ids)

    def _cut(
        self, whole: RenderedPrompt, words: bytes
    ) -> tuple[RenderedPrompt, tuple[Token, ...]] | None:
        """The prompt without the words at its end, and these; None where it does not end so."""
        token_bytes = self._engine.loaded().tokenizer.token_bytes
        taken, at = b"", len(whole.ids)
        while at and not taken.endswith(words) and len(taken) <= len(words):
            at -= 1
            taken = token_bytes(whole.ids[at]) + taken
        if not words or not taken.endswith(words):
            return None
        prompt = replace(
            whole,
            text=whole.text.removesuffix(taken.decode("utf-8", "replace")),
            ids=whole.ids[:at],
            messages=whole.messages[:-1],
        )
        return prompt, self._given(whole.ids[at:])

    def _given(self, ids: Sequence[int]) -> tuple[Token, ...]:
        token_bytes = self._engine.loaded().tokenizer.token_bytes
        return tuple(Token(i, token_bytes(i), None, None, forced=True) for i in ids)

    def check_room(self, request: Request, n: int, n_ctx: int) -> None:
        if n < n_ctx:
            return
        model = self._engine.loaded()
        ways = ["shorten the prompt"]
        if not request.trim and len(request.messages) > 1:
            ways.append("leave the oldest exchanges out with trim=True")
        if n_ctx < model.config.n_ctx_train:
            ways.append(f"load the model with ctx=N (up to {model.config.n_ctx_train})")
        else:
            ways.append("start a new conversation")
        raise ContextOverflowError(n, n_ctx, f"{', '.join(ways[:-1])}, or {ways[-1]}")


def _is_rendered(request: Request) -> bool:
    return isinstance(request.prompt, RenderedPrompt)


def _template(engine: "Engine") -> "Template":
    from ..chat.prompts.template import Template

    model = engine.loaded()
    about = model.metadata
    family = str(about.get("general.architecture", ""))
    if family == "llama":  # the shape of many families; what the model calls itself tells more
        family = str(about.get("general.basename") or about.get("general.name") or family)
    return Template(
        model.template,
        model.special_texts,
        model.tokenizer.control_texts,
        family,
        str(about.get("tokenizer.ggml.pre", "")),
    )
