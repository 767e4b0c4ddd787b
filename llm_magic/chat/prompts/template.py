"""From messages to the prompt that a model was trained on.

Text of messages, tools and documents is data: where it spells a control token, a mark (a character
that occurs nowhere in it) is put behind the spelling's first character, so that a tokenizer that
splits at control strings does not see one. `Rendered.mark` names the mark; `Rendered.plain` is the
text without it.

What a template cannot render is reshaped (adapt.py), which is decided by rendering a probe,
once, when a conversation first needs to know.
"""

import difflib
import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import jinja2

from llm_magic.errors import TemplateError, named
from llm_magic.events import Message, ToolSpec

from ..parsing.syntax import ReasoningTags, detect_reasoning, detect_syntax, opens_reasoning
from . import adapt, sandbox
from .budget import Overrun, TemplateOverrun, budgeted
from .entries import Support, append_text, is_object, message_entries, tool_entry
from .probe import probe, shows_texts
from .rendered import Rendered, free_marks, segments_of
from .turn_formats import PRESETS

Entries = Sequence[object]  # what a template sees of messages or tools: mappings

ROLES = ("system", "user", "assistant", "tool")
TOKEN_NAMES = ("bos", "eos", "unk", "pad", "sep")


class Template:
    """A chat template.

    source: jinja2 text, or None. tokens: strings of bos, eos, unk, pad, sep as far as they exist.
    control_texts: spellings of the vocabulary's control tokens. family: architecture or model
    family, for what the source does not tell. preset: the pre-tokenizer's name, which names the
    turn format of a model that has no template.

    Safe to use from any thread.
    """

    def __init__(
        self,
        source: str | None,
        tokens: Mapping[str, str] | None = None,
        control_texts: Sequence[str] = (),
        family: str = "",
        preset: str = "",
    ) -> None:
        self.source = source
        self.tokens = {name: (tokens or {}).get(name) or "" for name in TOKEN_NAMES}
        self.syntax = detect_syntax(source, family)
        self.reasoning: ReasoningTags | None = detect_reasoning(source)
        self._preset = PRESETS.get(preset) if source is None else None
        if self._preset and control_texts and self._preset.needs not in control_texts:
            self._preset = None
        controls = {text for text in control_texts if len(text) > 1}
        self._controls = re.compile(f"(?={_one_of(controls)}).", re.DOTALL) if controls else None

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end an answer where nothing else would: the next line's role."""
        if self.source is not None or self._preset:
            return ()
        return tuple(f"\n{role}:" for role in ("user", "assistant", "system", "tool"))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        add_generation_prompt: bool = True,
        thinking: bool | None = None,
        kwargs: Mapping[str, object] | None = None,
        continue_final: bool | None = None,
    ) -> Rendered:
        """The prompt of a conversation.

        thinking: for templates that can switch reasoning; None is off. kwargs: further variables of
        the template; they win over ours. continue_final: the last message is an assistant's text to
        be continued; None: it is whenever it comes from the assistant and calls no tool.

        Raises TemplateError with the template's own words, and the message's index where known.
        """
        messages = tuple(messages)
        if not messages:
            raise TemplateError("there are no messages")
        for i, message in enumerate(messages):
            _check_parts(i, message)
        if continue_final is None:
            continue_final = messages[-1].role == "assistant" and not messages[-1].calls
        job = _Job(
            self, tuple(tools), add_generation_prompt, bool(thinking), kwargs or {}, continue_final
        )
        with budgeted():  # one for the whole request, probes and the search for a culprit included
            return self._rendered(job, messages)

    def _rendered(self, job: "_Job", messages: tuple[Message, ...]) -> Rendered:
        try:
            return job.render(messages)
        except TemplateOverrun:
            raise
        except TemplateError as error:
            if error.index is None:
                error.index = job.blame(messages, str(error))
                if error.index is not None:
                    error.args = (f"{error} (messages[{error.index}])",)
            raise

    @cached_property
    def support(self) -> Support:
        """What this template can render, found out by rendering probes."""
        return probe(self)

    def knows(
        self, role: str, kwargs: Mapping[str, object], tools: Sequence[ToolSpec] = ()
    ) -> bool:
        """Whether the template renders messages of a role besides the usual ones."""
        messages, texts = (Message("user", "hello"), Message(role, "probe_role")), ("probe_role",)
        entries = [tool_entry(tool) for tool in tools] or None
        return shows_texts(self, messages, texts, self.support, entries, kwargs)

    def run(self, variables: Mapping[str, Any]) -> str:
        """The template's output for these variables. Raises TemplateError."""
        if self.source is None:
            return self._turns(variables["messages"], variables["add_generation_prompt"])
        try:
            return sandbox.render(self._compiled, variables)
        except sandbox.Refused as e:
            raise TemplateError(str(e)) from None
        except Overrun as e:
            raise TemplateOverrun(f"the chat template needs too much: {e}") from None
        except TemplateError:
            raise
        except Exception as e:  # a template can fail in any way that Python can
            raise TemplateError(f"the chat template failed: {named(e)}") from e

    @cached_property
    def _compiled(self) -> jinja2.Template:
        assert self.source is not None
        try:
            return sandbox.compiled(self.source)
        except Overrun as e:
            raise TemplateOverrun(f"the chat template needs too much: {e}") from None
        except Exception as e:  # syntax errors, and whatever a hostile source makes of the parser
            raise TemplateError(f"the chat template cannot be compiled: {named(e)}") from e

    def _turns(self, messages: Sequence[Mapping[str, object]], cue: bool) -> str:
        """The fallback: the preset's turns, or "role: content" lines and the assistant's cue."""
        if self._preset:
            return self._preset.write(messages, cue, self.tokens["eos"])
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return "".join(lines) + ("assistant:" if cue else "")

    def protect(self, value: object, mark: str) -> Any:
        """The value with every spelling of a control token in its texts broken by the mark."""
        if self._controls is None:
            return value
        match value:
            case str():
                return self._controls.sub(lambda m: m.group() + mark, value)
            case Mapping():
                return {self.protect(k, mark): self.protect(v, mark) for k, v in value.items()}
            case list() | tuple():
                return [self.protect(v, mark) for v in value]
        return value


def _one_of(texts: Collection[str]) -> str:
    """A pattern for the shortest of these texts, branching by character.

    Gemma has 6,250 control texts: tried one by one at every "<", 20 kB of them take 0.2 s.
    """
    if "" in texts:
        return ""
    rest: dict[str, set[str]] = {}
    for text in texts:
        rest.setdefault(text[0], set()).add(text[1:])
    branches = [re.escape(first) + _one_of(tails) for first, tails in sorted(rest.items())]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


# ----------------------------------------------------------------------------- one rendering


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of Template.render."""

    template: Template
    tools: tuple[ToolSpec, ...]
    cue: bool
    thinking: bool
    kwargs: Mapping[str, object]
    continued: bool

    def render(self, messages: tuple[Message, ...]) -> Rendered:
        known = self._known_roles(messages)
        adapted, tools = self._adapt(known)
        try:
            rendered = self._rendered(adapted, tools)
        except TemplateOverrun:
            raise
        except TemplateError:
            odd = (call for m in adapted for call in m.calls if not is_object(call.arguments))
            if next(odd, None) is None:
                raise
            rendered = self._rendered(adapted, tools, wrapped=True)
        lost = self._lost(messages, rendered.plain)
        if lost is not None and messages[lost].role == "system" and lost:
            # The template renders a leading system message only: later ones become the user's.
            rendered = self._rendered(adapt.alternating(adapted), tools)
            lost = self._lost(messages, rendered.plain)
        if lost is not None:
            raise TemplateError(
                f"the chat template leaves out messages[{lost}], of role {messages[lost].role!r}",
                lost,
            )
        return rendered

    def _rendered(
        self, adapted: tuple[Message, ...], tools: Sequence[ToolSpec], wrapped: bool = False
    ) -> Rendered:
        entries = message_entries(adapted, self.template.support, wrapped)
        specs = [tool_entry(tool) for tool in tools]
        documents = self.kwargs.get("documents")
        mark, end = free_marks((self.template.source or "", entries, specs, documents))
        variables = self._variables(mark, specs, documents)
        entries = self.template.protect(entries, mark)
        if self.continued:
            append_text(entries[-1], end)
        text = self._run(variables, entries, self.cue and not self.continued, mark, end)
        if self.continued:
            cut = text.rfind(end)
            if cut < 0:
                raise TemplateError(
                    "the chat template leaves the last assistant message out, so it cannot be"
                    " continued",
                    len(adapted) - 1,
                )
            text = text[:cut]
        plain = text.replace(mark, "")
        tail = self._tail(variables, entries, plain, mark, end)
        inside = opens_reasoning(tail, self.template.reasoning)
        return Rendered(text, mark, segments_of(adapted, plain), tail, inside)

    def _known_roles(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages with `developer` as `system` where the template lacks it."""
        out = []
        for i, message in enumerate(messages):
            if message.role not in ROLES and not self._knows(message.role):
                if message.role != "developer":
                    raise TemplateError(_unknown_role(i, message.role), i)
                message = replace(message, role="system")
            out.append(message)
        return tuple(out)

    def _knows(self, role: str) -> bool:
        return self.template.knows(role, self.kwargs, self.tools)

    def _lost(self, messages: Sequence[Message], plain: str) -> int | None:
        """The index of a message of a user or of the system whose text is not in the prompt."""
        if "messages" not in (self.template.source or "messages"):
            return None  # no chat template: its text is the same for all conversations
        squeezed = ""
        for i, message in enumerate(messages):
            text = message.text.strip()
            if message.role not in ("user", "system", "developer") or not text or text in plain:
                continue
            squeezed = squeezed or _squeezed(plain)
            forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
            if not any(_squeezed(form) in squeezed for form in (*forms, html.escape(text))):
                return i
        return None

    def _variables(self, mark: str, specs: Entries, documents: object) -> dict[str, object]:
        variables: dict[str, object] = {
            **{f"{name}_token": text for name, text in self.template.tokens.items()},
            "tools": self.template.protect(specs, mark) or None,
            "enable_thinking": self.thinking,
            "thinking": self.thinking,
            **self.kwargs,
        }
        if documents is not None:
            variables["documents"] = self.template.protect(documents, mark)
        return variables

    def _run(
        self,
        variables: dict[str, object],
        entries: Entries,
        cue: bool,
        mark: str,
        end: str,
    ) -> str:
        text = self.template.run({"add_generation_prompt": cue, **variables, "messages": entries})
        for char in (mark, end):  # a template may have printed the repr or ASCII JSON of a text
            text = text.replace(f"\\u{ord(char):04x}", char) if "\\u" in text else text
        return text

    def _tail(
        self,
        variables: dict[str, object],
        entries: Entries,
        plain: str,
        mark: str,
        end: str,
    ) -> str:
        """What the assistant's turn starts with: the rest behind the same prompt without it."""
        tags = self.template.reasoning
        if tags is None or tags.open not in plain:
            return ""
        before = entries[:-1] if self.continued else entries
        try:
            head = self._run(variables, before, False, mark, end).replace(mark, "")
        except TemplateOverrun:
            raise
        except TemplateError:
            head = ""
        return (
            plain[len(head) :] if head and plain.startswith(head) else plain[-len(tags.open) - 8 :]
        )

    def _adapt(
        self, messages: tuple[Message, ...]
    ) -> tuple[tuple[Message, ...], Sequence[ToolSpec]]:
        """Messages and tools as far as the template can take them."""
        template, tools = self.template, self.tools
        if tools and not template.support.tool_list:
            text = adapt.describe_tools(tools, template.syntax)
            messages, tools = adapt.with_instructions(messages, text), ()
        exchange = any(m.calls or m.role == "tool" for m in messages)
        if exchange and not template.support.tools:
            messages = adapt.tools_as_text(messages, template.syntax)
        elif exchange and not template.support.parallel:
            messages = adapt.one_call_each(messages)
        if messages[0].role == "system" and not template.support.system:
            messages = adapt.system_folded(messages)
        if _repeats(messages) and not template.support.repeats:
            messages = adapt.alternating(messages)
        return messages, tools

    def blame(self, messages: tuple[Message, ...], reason: str) -> int | None:
        """The index of the message that a template refuses: the first whose prefix fails so."""
        job = replace(self, cue=True, continued=False)
        for n in range(1, min(len(messages), 64) + 1):
            try:
                job.render(messages[:n])
            except TemplateOverrun:
                return None
            except TemplateError as error:
                if str(error) == reason:
                    return n - 1
        return None


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _unknown_role(index: int, role: str) -> str:
    near = difflib.get_close_matches(role.lower(), ROLES, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    known = ", ".join(ROLES)
    return (
        f"messages[{index}] has the role {role!r}, which this model's chat template does not know;"
        f" the roles are {known}{hint}"
    )


def _check_parts(index: int, message: Message) -> None:
    if isinstance(message.content, tuple):
        for part in message.content:
            if part.type != "text":
                raise TemplateError(
                    f"messages[{index}] has a part of type {part.type!r};"
                    " this model reads only text",
                    index,
                )


def _repeats(messages: Sequence[Message]) -> bool:
    """Whether it is more than user and assistant in turns behind a system message."""
    roles = [m.role for m in messages if m.role != "tool" and not m.calls]
    late_system = "system" in roles[1:]
    return late_system or any(a == b for a, b in pairwise(roles))
