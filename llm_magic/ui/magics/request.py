"""What a cell asks for: its options and its text become one stream.

Comes in: options as parsed, the text of the cell, the notebook. Goes out: an `Ask`, checked before
any model is loaded, and the stream that answers it. It must not know how a reply is shown.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from IPython.core.error import UsageError

from llm_magic.chat.constraints import kinds
from llm_magic.chat.conversation import Conversation
from llm_magic.chat.tools.definition import Tool
from llm_magic.events import Message
from llm_magic.llm import LLM
from llm_magic.provider import Stream

from . import lookup
from .approval import CellApproval
from .prefill import Prefilled
from .session import Notebook

# Options that only mean something in a chat, by the name that they have in the namespace.
_CHAT_ONLY = {
    "system": "--system", "chat": "--chat", "new": "--new", "prefill": "--prefill",
    "tools": "--tools", "approve": "--approve and --no-approve", "max_steps": "--max-steps",
    "tool_choice": "--tool-choice", "thinking": "--think and --no-think", "trim": "--trim",
}  # fmt: skip
_OFF = {"new": False, "trim": False}  # flags that nobody set


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a cell.

    plain: the text is continued as it is. tools: None where the cell does not name any. options:
    keyword options of `LLM.stream`.
    """

    text: str
    plain: bool
    system: str | None
    prefill: str
    tools: tuple[Tool, ...] | None
    options: dict[str, Any]
    given: argparse.Namespace

    @property
    def talks(self) -> bool:
        """Is it a turn of a Conversation, or one question by itself?"""
        return self.given.chat is not None or bool(self.tools)


def prepare(nb: Notebook, given: argparse.Namespace, text: str) -> Ask:
    """Check the options and look up all names. UsageError, InterpolationError, ToolError."""
    plain = given.complete or given.score
    _check(given)
    names = nb.names

    def fill(value: str, source: str = "the cell") -> str:
        return value if given.raw else nb.fill(value, source)

    by_setting = given.system is None
    system = None if plain else nb.system_of(given)
    options = nb.sampling(given) | lookup.constraint(names, given)
    return Ask(
        text=fill(text),
        plain=plain,
        system=None
        if system is None
        else fill(system, "LLMMagics.system" if by_setting else "--system"),
        prefill=fill(given.prefill or "", "--prefill"),
        tools=None if given.tools is None else lookup.tools(names, given.tools),
        options=options,
        given=given,
    )


def _check(given: argparse.Namespace) -> None:
    """Options that contradict each other."""
    if given.complete or given.score:
        plain = "--score reads" if given.score else "--complete continues"
        for name, option in _CHAT_ONLY.items():
            if getattr(given, name) is not None and getattr(given, name) != _OFF.get(name):
                raise UsageError(f"{plain} a text as it is: there is no place for {option}")
    bound = next((o for o in kinds.names() if getattr(given, o, None)), None)
    if given.score and bound:
        raise UsageError(f"--score generates nothing: there is no place for --{bound}")
    if given.new and given.chat is None:
        raise UsageError("--new needs --chat NAME: which conversation begins anew?")
    if given.max_steps is not None and given.max_steps < 1:
        raise UsageError(f"--max-steps {given.max_steps}: at least one round of calls")
    if given.chat is None and not given.tools:
        for name in ("approve", "max_steps", "tool_choice"):
            if getattr(given, name):
                raise UsageError(f"{_CHAT_ONLY[name]} needs --tools NAME,NAME")


def model_of(nb: Notebook, given: argparse.Namespace) -> str:
    """The model that answers: the one asked for, else that of the conversation, else the usual."""
    if given.model is None and given.chat is not None and not given.new:
        return nb.talks.models.get(given.chat) or nb.name_of(None)
    return nb.name_of(given.model)


@contextmanager
def opened(nb: Notebook, ask: Ask, llm: LLM) -> Iterator[Stream]:
    """The stream that answers. RequestError where the model or the conversation refuses it."""
    if ask.plain:
        yield llm.stream(ask.text, **ask.options)
    elif ask.talks:
        conversation = _conversation(nb, ask, llm)
        if ask.prefill:
            conversation.llm = Prefilled(llm, ask.prefill)
        name = ask.given.chat
        try:
            yield conversation.send(
                ask.text, cell=nb.talks.asker(name) if name is not None else None, **ask.options
            )
        finally:
            conversation.llm = llm
    else:
        words = (Message("assistant", ask.prefill),) if ask.prefill else ()
        messages = (Message("user", ask.text), *words)
        yield llm.stream(messages, system=ask.system, **ask.options)


def _conversation(nb: Notebook, ask: Ask, llm: LLM) -> Conversation:
    """The conversation that the cell continues or begins, told what the cell says about it.

    Model, system prompt, tools and how they are run belong to the conversation: they stay until a
    cell gives others. All other options are those of one turn.
    """
    given = ask.given

    def begin() -> Conversation:
        return Conversation(llm, ask.system, ask.tools or ())

    if given.chat is None:
        found = begin()
    else:
        found = nb.talks.open(given.chat, begin, given.new)
        nb.talks.models[given.chat] = model_of(nb, given)
    found.llm = llm
    if given.system is not None:
        found.system = ask.system
    rules = found.rules
    if ask.tools is not None:
        # Approval stays on for other tools, until --no-approve switches it off.
        rules = replace(begin().rules, approve=rules.approve)
    asked = rules.approve is not None if given.approve is None else given.approve
    approval = CellApproval(lambda: nb.talks.run) if asked else None
    steps = rules.max_steps if given.max_steps is None else given.max_steps
    found.rules = replace(rules, max_steps=steps, approve=approval)
    return found
