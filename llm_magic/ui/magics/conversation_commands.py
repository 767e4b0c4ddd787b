"""Commands for the conversations of cells: history, undo, reset, fork, export, import."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError

from llm_magic.chat.conversation import Conversation, Exchange
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message
from llm_magic.hub import hub

from ..views import html, summary, tooltrace
from ..views.mime import Fragment
from . import command_line, status
from .lookup import value
from .session import Command, Notebook, command_parser, parse

MAX_RESULT = 300  # characters of a tool's result in the transcript of an imported conversation

# ----------------------------------------------------------------------------- commands


def history(nb: Notebook, rest: str) -> None:
    """Show a conversation; `-o` binds the Conversation itself."""
    parser = command_parser(nb, "history")
    parser.add_argument("name", nargs="?")
    parser.add_argument("-o", "--out")
    args = parse(nb, parser, rest)
    if args.name is None and nb.conversations.latest is None:
        nb.show(status.note(f"no conversation yet; %%{nb.magic_name} --chat NAME begins one"))
        return
    name, conversation = nb.conversations.find(args.name)
    if args.out is not None:
        _bind(nb, args.out, conversation)
    others = [n for n in nb.conversations.named if n != name]
    nb.show(transcript(name, conversation, others, steady=nb.docs_mode))


def reset(nb: Notebook, rest: str) -> None:
    """Forget conversations, with their system prompts and tools."""
    parser = command_parser(nb, "reset")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    args = parse(nb, parser, rest)
    known = list(nb.conversations.named)
    names = known if args.all else args.names or (known if len(known) == 1 else [])
    if not names and known:
        raise UsageError(f"reset: name a conversation ({', '.join(known)}), or use --all")
    nb.conversations.remove(names)
    nb.show(
        status.note(f"forgotten: {', '.join(names)}" if names else "there are no conversations")
    )


def undo(nb: Notebook, rest: str) -> None:
    """Forget the last question of a conversation and its answer."""
    parser = command_parser(nb, "undo")
    parser.add_argument("name", nargs="?")
    name, conversation = nb.conversations.find(parse(nb, parser, rest).name)
    gone = conversation.undo()
    left = len(conversation.exchanges)
    what = f"forgot {summary.one_line(gone.question.text, 60)!r}" if gone else "nothing to undo"
    nb.show(status.note(f"{name}: {what}; {left} exchange{'s' * (left != 1)} left"))


def fork(nb: Notebook, rest: str) -> None:
    """A second conversation with the same past; both go on by themselves."""
    parser = command_parser(nb, "fork")
    parser.add_argument("name")
    parser.add_argument("new")
    parser.add_argument("--upto", type=int)
    args = parse(nb, parser, rest)
    _, conversation = nb.conversations.find(args.name)
    _vacant(nb, args.new)
    nb.conversations.put(args.new, conversation.fork(args.upto))
    if (model := nb.conversations.models.get(args.name)) is not None:
        nb.conversations.models[args.new] = model
    nb.show(
        status.note(f"{args.new}: {_size(nb.conversations.named[args.new])}, as in {args.name}")
    )


def export(nb: Notebook, rest: str) -> None:
    """The messages of a conversation as OpenAI's JSON: into a file, a name, or shown."""
    parser = command_parser(nb, "export")
    parser.add_argument("name", nargs="?")
    parser.add_argument("file", nargs="?")
    parser.add_argument("-o", "--out")
    args = parse(nb, parser, rest)
    name, conversation = nb.conversations.find(args.name)
    messages = conversation.to_openai()
    text = json.dumps(messages, ensure_ascii=False, indent=1)
    if args.out is not None:
        _bind(nb, args.out, messages)
    if args.file is not None:
        try:
            Path(args.file).expanduser().write_text(text + "\n", encoding="utf-8")
        except OSError as e:
            raise UsageError(f"export: {e}") from None
    if args.out is None and args.file is None:
        nb.show(Fragment(html.code(text, "json"), text))
        return
    targets = " and ".join(filter(None, (args.file, args.out)))
    nb.show(status.note(f"{name}: {len(messages)} messages are in {targets}"))


def load(nb: Notebook, rest: str) -> None:
    """Begin a conversation with messages from a JSON file, or from a name of the notebook."""
    parser = command_parser(nb, "import")
    parser.add_argument("source")
    parser.add_argument("name")
    args = parse(nb, parser, rest)
    _vacant(nb, args.name)
    messages = _messages(nb, args.source)
    usual = nb.name_of(None)
    conversation = Conversation(hub.get(usual) or _UnloadedModel(usual))
    conversation.load(messages)
    nb.conversations.put(args.name, conversation)
    nb.show(status.note(f"{args.name}: {_size(conversation)}"))


def _messages(nb: Notebook, source: str) -> list[Any]:
    path = Path(source).expanduser()
    if source in nb.shell.user_ns or not path.exists():
        found = value(nb.shell.user_ns, source, "import")
    else:
        try:
            found = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as e:
            raise UsageError(f"import {source}: {e}") from None
    if isinstance(found, dict):  # the body of a request holds them under this name
        found = found.get("messages")
    if not isinstance(found, list | tuple):
        raise RequestError(f"{source} holds no messages: a list of {{'role': ..., 'content': ...}}")
    return list(found)


class _UnloadedModel:
    """A model that is loaded when it is first used; the next cell replaces it by its own."""

    def __init__(self, model: str) -> None:
        self.model = model

    def stream(self, prompt: Any, **options: Any) -> Any:
        return hub.load(self.model).stream(prompt, **options)


def _bind(nb: Notebook, name: str, thing: object) -> None:
    if not command_line.is_name(name):
        raise UsageError(f"--out {name}: not a Python name")
    nb.shell.user_ns[name] = thing


def _vacant(nb: Notebook, name: str) -> None:
    if name in nb.conversations.named:
        raise UsageError(
            f"the conversation {name!r} exists; %{nb.magic_name} reset {name} deletes it"
        )


def _size(conversation: Conversation) -> str:
    n = len(conversation.exchanges)
    return f"{n} exchange{'s' * (n != 1)}"


COMMANDS = {
    "history": Command(history, "[NAME] [-o VARIABLE]", "a conversation of --chat cells"),
    "reset": Command(reset, "[NAME ... | --all]", "forget conversations"),
    "undo": Command(undo, "[NAME]", "forget a conversation's last question and answer"),
    "fork": Command(fork, "NAME NEW [--upto N]", "go on twice from one conversation"),
    "export": Command(export, "[NAME] [FILE] [-o VARIABLE]", "its messages as OpenAI's JSON"),
    "import": Command(load, "FILE|VARIABLE NAME", "a conversation from such messages"),
}

# ----------------------------------------------------------------------------- the view

# Hex colours only: front ends strip variables.
_EDGE = {"You": "#8a8a8a", "Model": "#1f77b4", "System": "#6e7781"}


def transcript(
    name: str, conversation: Conversation, others: Sequence[str] = (), *, steady: bool = False
) -> Fragment:
    """A conversation as static HTML and text: questions, calls, answers; reasoning is folded.

    others: names of further conversations. steady: without times, equal on every run.
    """
    parts = [name, summary.model_name(conversation.llm.model), _size(conversation)]
    if conversation.rules.tools:
        parts.append("tools: " + ", ".join(t.name for t in conversation.rules.tools))
    also = f"also: {', '.join(others)}" if others else ""
    body, lines = [html.note(*map(html.text, parts))], [" · ".join(parts)]
    if conversation.system:
        body.append(_row("System", html.verbatim(conversation.system)))
        lines.append(f"System: {conversation.system}")
    for exchange in conversation.exchanges:
        page, plain = _exchange(exchange, steady)
        body.append(page)
        lines.append(plain)
    if also:
        body.append(html.note(html.text(also)))
        lines.append(also)
    return Fragment("".join(body), "\n\n".join(lines))


def _exchange(exchange: Exchange, steady: bool) -> tuple[str, str]:
    question, *rest = exchange.messages
    reply = exchange.reply or Reply("")
    trace = (summary.steady(reply) if steady else reply).trace
    page = _row("You", html.verbatim(question.text), f"#{exchange.id}")
    inner, lines = [], [f"#{exchange.id} You: {question.text}"]
    for kind, text in _parts(rest, traced=bool(trace)):
        match kind:
            case "reasoning":
                inner.append(html.fold("Reasoning", html.markdown(text)))
            case "answer":
                inner.append(html.markdown(text))
                lines.append(f"Model: {text}")
            case "trace":
                inner.append(tooltrace.fragment(trace))
                lines.append(tooltrace.plain(trace))
            case _:
                inner.append(html.note(html.text(text)))
                lines.append(text)
    return page + _row("Model", "".join(inner)), "\n".join(lines)


def _parts(messages: list[Message], traced: bool) -> Iterator[tuple[str, str]]:
    """(kind, text) of the parts of an answer.

    Args:
        messages: What follows the question.
        traced: Whether the reply has a trace, which shows all calls in the place of the first;
            without it (an imported conversation) each call and result is a part.
    """
    shown = not traced
    if traced and not any(m.calls for m in messages):  # cut between calls: only words were kept
        yield "trace", ""
        shown = True
    for message in messages:
        if message.role == "tool":
            if not traced:
                yield "result", f"{message.name or 'tool'} → {_short(message.text)}"
            continue
        if message.reasoning:
            yield "reasoning", message.reasoning
        if message.text:
            yield "answer", message.text
        if message.calls and not shown:
            yield "trace", ""
            shown = True
        for call in () if traced else message.calls:
            yield "call", f"{call.name} {_short(call.arguments)}"


def _short(text: str) -> str:
    return summary.one_line(" ".join(text.split()), MAX_RESULT)


def _row(who: str, inner: str, mark: str = "") -> str:
    style = f"margin:6px 0;padding:2px 10px;border-left:3px solid {_EDGE[who]}"
    head = f"<strong>{who}</strong> {mark}"
    return f'<div style="{style}">{head}{inner}</div>'
