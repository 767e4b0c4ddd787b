"""What a cell requests: its options and its text, checked before any model is loaded."""

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
from .cell_options import request_options, system_of
from .session import Notebook

# Options that only mean something in a chat, by the name that they have in the namespace.
_CHAT_ONLY = {
    "system": "--system", "chat": "--chat", "new": "--new", "prefill": "--prefill",
    "tools": "--tools", "approve": "--approve and --no-approve", "max_steps": "--max-steps",
    "tool_choice": "--tool-choice", "thinking": "--think and --no-think", "trim": "--trim",
}  # fmt: skip
_OFF = {"new": False, "trim": False}  # flags that nobody set


@dataclass(frozen=True, slots=True)
class CellRequest:
    """The request of one cell.

    Attributes:
        text: The cell's text with its variables inserted.
        system: The system prompt; None where there is none.
        tools: The tools that the cell names; None where it has no --tools.
        options: Keyword options of `LLM.stream`.
        args: The cell's options as parsed.
    """

    text: str
    system: str | None
    tools: tuple[Tool, ...] | None
    options: dict[str, Any]
    args: argparse.Namespace

    @property
    def is_plain(self) -> bool:
        """Whether the text is continued or scored as it is, without a chat template."""
        return bool(self.args.complete or self.args.score)

    @property
    def is_turn(self) -> bool:
        """Whether it is a turn of a Conversation, or one question by itself."""
        return self.args.chat is not None or bool(self.tools)


def prepare(nb: Notebook, args: argparse.Namespace, text: str) -> CellRequest:
    """Check the options of a cell and look up all names.

    Raises:
        UsageError: An option is wrong, contradicts another one, or names what does not exist.
        InterpolationError: A variable of the text cannot be inserted.
        ToolError: A function cannot be a tool.
    """
    _check(args)
    names = nb.names

    def fill(value: str, source: str = "the cell") -> str:
        return value if args.raw else nb.fill(value, source)

    system = None if args.complete or args.score else system_of(nb, args)
    if system is not None:
        system = fill(system, "LLMMagics.system" if args.system is None else "--system")
    options = request_options(nb, args) | lookup.constraint(names, args)
    if args.inspect or args.steer:
        from .. import look_inside  # and with it numpy

        options |= look_inside.options(names, args)
    if args.prefill:
        options["given"] = fill(args.prefill, "--prefill")
    tools = None if args.tools is None else lookup.tools(names, args.tools)
    return CellRequest(fill(text), system, tools, options, args)


def _check(args: argparse.Namespace) -> None:
    """UsageError for options that contradict each other."""
    if args.complete or args.score:
        plain = "--score" if args.score else "--complete"
        for name, option in _CHAT_ONLY.items():
            if getattr(args, name) is not None and getattr(args, name) != _OFF.get(name):
                raise UsageError(f"{option} cannot be used with {plain}")
    bound = next((o for o in kinds.names() if getattr(args, o, None)), None)
    if args.score and (args.inspect or args.steer):
        raise UsageError("--inspect and --steer cannot be used with --score; use llm.inspect()")
    if args.score and bound:
        raise UsageError(f"--{bound} cannot be used with --score, which generates nothing")
    if args.new and args.chat is None:
        raise UsageError("--new needs --chat NAME: the conversation to start over")
    if args.max_steps is not None and args.max_steps < 1:
        raise UsageError(f"--max-steps {args.max_steps}: must be 1 or more")
    if args.chat is None and not args.tools:
        for name in ("approve", "max_steps", "tool_choice"):
            if getattr(args, name):
                raise UsageError(f"{_CHAT_ONLY[name]} needs --tools NAME,NAME")


def model_of(nb: Notebook, args: argparse.Namespace) -> str:
    """The model that answers: of the option, else of the conversation, else the notebook's."""
    if args.model is None and args.chat is not None and not args.new:
        return nb.conversations.models.get(args.chat) or nb.name_of(None)
    return nb.name_of(args.model)


@contextmanager
def open_stream(nb: Notebook, asked: CellRequest, llm: LLM) -> Iterator[Stream]:
    """The stream that answers. RequestError where the model or the conversation refuses it."""
    if asked.is_plain:
        yield llm.stream(asked.text, **asked.options)
    elif asked.is_turn:
        conversation = _conversation(nb, asked, llm)
        name = asked.args.chat
        cell = nb.conversations.asking_cell(name) if name is not None else None
        yield conversation.send(asked.text, cell=cell, **asked.options)
    else:
        question = (Message("user", asked.text),)
        yield llm.stream(question, system=asked.system, **asked.options)


def _conversation(nb: Notebook, asked: CellRequest, llm: LLM) -> Conversation:
    """The conversation that the cell continues or begins, changed as the cell says.

    Model, system prompt, tools and how they are run belong to the conversation: they stay until a
    cell gives others. All other options are those of one turn.
    """
    args = asked.args

    def begin() -> Conversation:
        return Conversation(llm, asked.system, asked.tools or ())

    if args.chat is None:
        conversation = begin()
    else:
        conversation = nb.conversations.open(args.chat, begin, args.new)
        nb.conversations.models[args.chat] = model_of(nb, args)
    conversation.llm = llm
    if args.system is not None:
        conversation.system = asked.system
    rules = conversation.rules
    if asked.tools is not None:
        # Approval stays on for other tools, until --no-approve switches it off.
        rules = replace(begin().rules, approve=rules.approve)
    approved = rules.approve is not None if args.approve is None else args.approve
    approval = CellApproval(lambda: nb.conversations.run) if approved else None
    steps = rules.max_steps if args.max_steps is None else args.max_steps
    conversation.rules = replace(rules, max_steps=steps, approve=approval)
    return conversation
