"""The commands of `%llm`: `COMMANDS` and the functions that its rows name."""

import argparse
import difflib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError

from llm_magic import branching
from llm_magic import models as files
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message, Piece, Progress
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.models.table import EMBEDDING

from .. import options
from ..views import compare, mime, plots, records, similarity, summary, throughput, tokens
from . import (  # fmt: skip
    cell_options,
    cell_run,
    command_line,
    connect_command,
    conversation_commands,
    decide_command,
    log_commands,
    lookup,
    screens,
    serve_command,
    status,
    tool_commands,
)
from .brief_errors import brief_errors
from .session import Command, Notebook, command_parser, parse


def ask(nb: Notebook, rest: str) -> None:
    """Answer one line."""
    options_line, text = command_line.split(cell_options.PARSER, rest)
    if not text.strip():
        raise UsageError(f"ask: there is no text to answer: %{nb.magic_name} ask TEXT")
    cell_run.run(nb, cell_options.parse(nb, options_line), command_line.unquoted(text))


def help_(nb: Notebook, rest: str) -> None:
    """What there is, or the options of one command."""
    run_command(nb, f"{rest.split()[0]} --help" if rest.strip() else "")


def fetch(nb: Notebook, rest: str) -> None:
    """Download a model, so that it loads without a network later."""
    parser = command_parser(nb, "fetch")
    parser.add_argument("name", nargs="?")
    name = nb.name_of(parse(nb, parser, rest).name)
    screen = screens.screen(nb.shell, nb.look(), name)
    found = files.fetch(name, lambda stage, n, of: screen.event(Progress(stage, n, of)))
    size = found.path.stat().st_size / 1e6
    screen.say(status.note(f"{found.name} is on this machine ({size:,.0f} MB); it loads offline"))


def load(nb: Notebook, rest: str) -> None:
    """Load a model and use it from now on."""
    parser = command_parser(nb, "load")
    parser.add_argument("name", nargs="?")
    for option in ("--ctx", "--slots", "--threads", "--cache-mb"):
        parser.add_argument(option, type=int)
    parser.add_argument("--device")
    args = parse(nb, parser, rest)
    name = nb.name_of(args.name)
    screen = screens.screen(nb.shell, nb.look(), name)
    start = time.monotonic()
    llm = nb.load(name, screen, ctx=args.ctx, slots=args.slots, threads=args.threads,
                  device=args.device, cache_mb=args.cache_mb)  # fmt: skip
    nb.model = name
    screen.say(status.loaded(llm, time.monotonic() - start, steady=nb.docs_mode))


def unload(nb: Notebook, rest: str) -> None:
    """Free one model, or all."""
    parser = command_parser(nb, "unload")
    parser.add_argument("name", nargs="?")
    gone = hub.unload(parse(nb, parser, rest).name)
    nb.show(status.note(f"unloaded {', '.join(gone)}" if gone else "nothing was loaded"))


def models(nb: Notebook, rest: str) -> None:
    """Which models there are."""
    parse(nb, command_parser(nb, "models"), rest)
    nb.show(status.models(hub.loaded(), nb.magic_name))


def remove(nb: Notebook, rest: str) -> None:
    """Delete the files of a fetched model."""
    parser = command_parser(nb, "remove")
    parser.add_argument("name")
    gone = hub.remove(parse(nb, parser, rest).name)
    what = f"{gone.name} was removed from this machine ({gone.size / 1e6:,.0f} MB are free again)"
    nb.show(status.note(f"{what}; %{nb.magic_name} fetch brings it back"))


def state(nb: Notebook, rest: str) -> None:
    """What is loaded."""
    parse(nb, command_parser(nb, "status"), rest)
    nb.show(status.table(hub.loaded(), nb.name_of(None)))


def chat(nb: Notebook, rest: str) -> object:
    """A chat beside the cells, on the same engine."""
    from ..widgets.chat.widget import Chat

    args = cell_options.parse(nb, rest)
    names = nb.names
    bound = cell_options.request_options(nb, args) | lookup.constraint(names, args)
    tools = lookup.tools(names, args.tools or "")
    llm, system = nb.name_of(args.model), cell_options.system_of(nb, args)
    return Chat(llm, system=system, tools=tools, name=args.chat, **bound)


def bench(nb: Notebook, rest: str) -> object:
    """Measure speed and memory."""
    from . import bench_command  # it brings the whole benchmark

    return bench_command.command(nb, rest)


def compare_models(nb: Notebook, rest: str) -> object:
    """How far a quantisation parts from another one on a text."""
    from . import compare_models_command

    return compare_models_command.command(nb, rest)


def verify(nb: Notebook, rest: str) -> object:
    """Generate every reply of a saved notebook again."""
    from . import verify_command

    return verify_command.command(nb, rest)


def _bench_options() -> str:
    from . import bench_command

    return bench_command.options_help()


def stats(nb: Notebook, rest: str) -> object:
    """The ledger of this notebook, as a table or as a plot."""
    parser = command_parser(nb, "stats")
    parser.add_argument("--plot", action="store_true")
    parser.add_argument("--dark", action="store_true", default=None)
    args = parse(nb, parser, rest)
    if args.plot:
        return plots.plot_ledger(nb.ledger, dark=args.dark)
    page, plain = throughput.ledger(nb.ledger), throughput.ledger_text(nb.ledger)
    nb.show(mime.Fragment(page, plain))
    return None


# ----------------------------------------------------------------------------- tokens


def tokenize(nb: Notebook, rest: str) -> None:
    """The tokens of a text, of a text as a chat turn, or of the last prompt."""
    parser = command_parser(nb, "tokenize")
    parser.add_argument("-m", "--model")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--plain", action="store_true")
    head, text = command_line.split(parser, rest)
    args = parse(nb, parser, head)
    reply = None if text else _reply(nb, None)
    named = args.model or (reply.model if reply is not None and hub.get(reply.model) else None)
    name = nb.name_of(named)
    screen = screens.screen(nb.shell, nb.look(), name)
    llm = nb.load(name, screen)
    cached = None
    if reply is not None:
        pieces = pieces_of(llm, reply.prompt or "", reply.prompt_ids)
        cached = summary.cached(reply.usage)
    elif args.chat:
        pieces = _chat_pieces(llm, nb.fill(text, "the line"))
    else:
        pieces = llm.tokenize(nb.fill(text, "the line"), special=not args.plain)
    screen.say(mime.Fragment(tokens.inspector(pieces, cached), tokens.listing(pieces)))


def _chat_pieces(llm: LLM, text: str) -> list[Piece]:
    """The pieces of a user message as the chat template puts it."""
    prompt = llm.render((Message("user", text),))
    return pieces_of(llm, prompt.text, prompt.ids)


def pieces_of(llm: LLM, text: str, ids: tuple[int, ...]) -> list[Piece]:
    """The pieces behind ids. `text` is what they say, markers included."""
    pieces = llm.tokenize(text)
    found = tuple(p.id for p in pieces)
    if found == ids or not ids:
        return pieces
    if found == ids[1:]:  # the template does not write BOS, the tokenizer adds it
        return [Piece(ids[0], "<bos>", b"", True), *pieces]
    # Text of a user that looks like a marker stays text in `ids`: ask for each one.
    texts = [llm.detokenize([i]) for i in ids]
    return [Piece(i, t or "<control>", t.encode(), not t) for i, t in zip(ids, texts, strict=True)]


# ----------------------------------------------------------------------------- two or more


def side_by_side(nb: Notebook, rest: str) -> None:
    """Two answers, two scored texts or two replies side by side."""
    parser = command_parser(nb, "compare")
    options.add_arguments(parser, "compare", sides=True)
    head, text = command_line.split(parser, rest)
    args = parse(nb, parser, head)
    if args.score:
        replies, titles = _scored(
            nb, args, [nb.fill(t, "the line") for t in command_line.words(text)]
        )
    elif (known := _named_replies(nb, text)) is not None:
        replies, titles = known, text.split()
    else:
        replies = _generated(nb, args, nb.fill(command_line.unquoted(text), "the line"))
        titles = compare.titles_of(replies)
    shown = [summary.steady(reply) for reply in replies] if nb.docs_mode else replies
    view = mime.Fragment(compare.fragment(shown, titles), compare.plain(shown, titles))
    view.metadata = records.parts(replies, nb.look(), view._repr_mimebundle_())
    nb.show(view)


def _named_replies(nb: Notebook, text: str) -> list[Reply] | None:
    names = text.split()
    visible = nb.names
    found = [visible.get(name) for name in names]
    if len(names) < 2 or not all(isinstance(f, Reply) for f in found):
        return None
    return [f for f in found if isinstance(f, Reply)]


def _sides(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One dict of settings per side. What is args once holds for all sides."""
    values = {
        option.name: getattr(args, option.name)
        for option in options.at("compare")
        if option.kind != "flag"
    }
    count = max([len(v) for v in values.values() if v] + [1])
    wrong = [name for name, v in values.items() if v and len(v) not in (1, count)]
    if wrong:
        flag = options.find(wrong[0]).flag
        raise UsageError(f"compare: {flag} must be args once, or once for each side")
    sides = [
        {name: v[0] if len(v) == 1 else v[i] for name, v in values.items() if v}
        for i in range(count)
    ]
    names = ("model", "system")
    return [{k: side[k] for k in names if k in side} | options.values(side) for side in sides]


def _generated(nb: Notebook, args: argparse.Namespace, text: str) -> list[Reply]:
    if not text.strip():
        raise UsageError(
            f"compare: there is no text to answer: %{nb.magic_name} compare -m ONE -m OTHER TEXT"
        )
    sides = _sides(args)
    if len(sides) == 1:  # nothing differs: two draws of the same thing
        sides = [dict(sides[0]), dict(sides[0])]
    screen = screens.screen(nb.shell, nb.look(), nb.name_of(None))
    replies = []
    for i, side in enumerate(sides):
        screen.event(Progress("answering", i, len(sides)))
        defaults = cell_options.request_options(nb, cell_options.parse(nb, "")) | {"logprobs": 5}
        settings = defaults | {k: v for k, v in side.items() if k not in ("model", "system")}
        llm = nb.load(nb.name_of(side.get("model")), screen)
        prompt = text if args.complete else (Message("user", text),)
        system = None if args.complete else side.get("system")
        stream = llm.stream(prompt, system=system, **settings)
        replies.append(screens.follow(stream, screens.QuietScreen(), nb.keep))
    screen.close("")
    return replies


def _scored(
    nb: Notebook, args: argparse.Namespace, texts: list[str]
) -> tuple[list[Reply], list[str]]:
    sides = _sides(args)
    if not texts:
        raise UsageError('compare --score: give the texts in quotes: "one" "another"')
    screen = screens.screen(nb.shell, nb.look(), nb.name_of(None))
    replies = []
    pairs = [(side, text) for side in sides for text in texts]
    for i, (side, text) in enumerate(pairs):
        screen.event(Progress("scoring", i, len(pairs)))
        replies.append(cell_run.scored(nb.load(nb.name_of(side.get("model")), screen), text))
    screen.close("")
    titles = [t[:40] for t in texts] if len(sides) == 1 else compare.titles_of(replies)
    return replies, titles


# ----------------------------------------------------------------------------- branches


def branch(nb: Notebook, rest: str) -> None:
    """Go on from another token of a reply."""
    parser = command_parser(nb, "branch")
    parser.add_argument("place", nargs="?", type=int)
    parser.add_argument("token", nargs="?")
    parser.add_argument("-r", "--reply")
    options.add_arguments(parser, "branch")
    args = parse(nb, parser, rest)
    reply = _reply(nb, args.reply)
    place = args.place if args.place is not None else _uncertain(reply)
    wanted = args.token
    token = branching.choice(reply, place, int(wanted) if _is_count(wanted) else wanted)
    kept = _follow_branch(nb, reply, place, token, args)
    if args.reply:
        nb.shell.user_ns[args.reply] = kept


def _follow_branch(nb: Notebook, reply: Reply, place: int, token: Any,
                   args: argparse.Namespace) -> Reply:  # fmt: skip
    look = replace(nb.look(), format="text")  # a branch begins in the middle of a sentence
    screen = screens.screen(nb.shell, look, reply.model)
    llm = nb.load(reply.model if hub.get(reply.model) else nb.name_of(None), screen)
    head = branching.prefix(reply, place, token)
    settings = branching.defaults(reply, head) | options.values(vars(args))
    stream = branching.stream(llm, reply, head, **settings)
    beside = _BranchScreen(screen, look, reply, place)
    screens.follow(
        stream,
        beside,
        lambda branch: nb.keep(branching.keep(reply, place, branch), branching.measured(branch)),
    )
    return beside.reply


class _BranchScreen:
    """A screen on which a branch ends beside the reply that it left."""

    def __init__(self, inner: screens.Screen, look: mime.Look, reply: Reply, place: int) -> None:
        self.event, self.close, self.say = inner.event, inner.close, inner.say
        self._inner, self._look, self._place = inner, look, place
        self.reply = self._first = reply

    def final(self, reply: Reply, note: str = "") -> None:
        self.reply = branching.keep(self._first, self._place, reply)
        if isinstance(self._inner, screens.TextScreen):
            self._inner.final(reply, note)
        else:
            shown = mime.Branch(self.reply, self._look, note)
            shown.metadata = records.parts(
                [self.reply], self._look, shown._repr_mimebundle_(), "branch"
            )
            self.say(shown)


def _is_count(text: str | None) -> bool:
    return text is not None and text.isdigit()


def _uncertain(reply: Reply) -> int:
    """The place where another token was most nearly taken."""
    gaps = [
        (t.logprob - others[0], i)
        for i, t in enumerate(reply.tokens)
        if t.logprob is not None
        and (others := [a.logprob for a in t.top if a.id != t.id and a.logprob is not None])
    ]
    if not gaps:
        raise RequestError("no alternatives were recorded: generate with --logprobs")
    return min(gaps)[1]


def _reply(nb: Notebook, name: str | None) -> Reply:
    found = nb.names.get(name or "_llm")
    if not isinstance(found, Reply):
        what = f"{name} is not a reply" if name else "there is no reply yet"
        raise UsageError(f"{what}; a %%{nb.magic_name} cell makes one (-o NAME keeps it)")
    return found


def similar(nb: Notebook, rest: str) -> None:
    """How near the texts of a variable are to each other."""
    parser = command_parser(nb, "similar")
    parser.add_argument("texts")
    parser.add_argument("-m", "--model", default=EMBEDDING)
    given = parse(nb, parser, rest)
    found = lookup.value(nb.names, given.texts, "similar")
    listed = getattr(found, "tolist", None)  # a column of a table, an array
    texts = listed() if callable(listed) else found
    if isinstance(texts, Mapping):
        texts = list(texts.values())
    screen = screens.screen(nb.shell, nb.look(), given.model)
    llm = nb.load(given.model, screen)
    cosines = llm.similar(texts)
    body, plain = similarity.fragment(texts, cosines), similarity.plain(texts, cosines)
    screen.say(mime.Fragment(body, plain))


COMMANDS = {
    "ask": Command(ask, "[options of %%llm] TEXT", "answer one line"),
    "help": Command(help_, "[COMMAND]", "what there is, or the options of a command"),
    "?": Command(help_, "", "the same as help"),
    "fetch": Command(fetch, "[NAME]", "download a model, so that it loads without a network"),
    "load": Command(
        load,
        "[NAME] [--ctx N] [--slots N] [--threads N] [--device D] [--cache-mb N]",
        "load and use a model",
    ),
    **connect_command.COMMANDS,
    "unload": Command(unload, "[NAME]", "free one model, or all"),
    "models": Command(models, "", "which models there are, and what they need"),
    "remove": Command(remove, "NAME", "delete the files of a model that was downloaded"),
    "status": Command(state, "", "what is loaded"),
    "chat": Command(chat, "[options of %%llm]", "a chat beside the cells, on the same engine"),
    "tokenize": Command(
        tokenize, "[-m MODEL] [--chat] [--plain] [TEXT]", "the tokens of a text or the last prompt"
    ),
    "compare": Command(
        side_by_side,
        '[options, twice where they differ] TEXT | --score "A" "B" | REPLY REPLY',
        "answers, texts or replies side by side",
    ),
    **decide_command.COMMANDS,
    "branch": Command(
        branch,
        "[PLACE] [TOKEN] [-r REPLY] [sampling options of %%llm]",
        "go on from another token of the last reply",
    ),
    "similar": Command(
        similar, "TEXTS [-m MODEL]", "how near the texts of a variable are to each other"
    ),
    "tools": Command(tool_commands.tools, "[NAME,NAME]", "functions that a model could call"),
    **conversation_commands.COMMANDS,
    "bench": Command(
        bench,
        "[MODEL] [--peer NAME]... [--threads N] [--rounds N] [--quick] [--random-1b]",
        "speed and memory here, and of peers beside it",
        _bench_options,
    ),
    "compare-models": Command(
        compare_models,
        "BASE MODEL [--window N] --text TEXT|FILE",
        "KL divergence, same top token and perplexity ratio of two quantisations on a text",
    ),
    "verify": Command(
        verify,
        "NOTEBOOK.ipynb [-m MODEL]...",
        "generate every reply of a saved notebook again, and say what differs",
    ),
    "serve": Command(
        serve_command.serve, serve_command.USAGE, "the model for other programs of this machine"
    ),
    "log": Command(
        log_commands.log, log_commands.USAGE, "a file with every request and reply of this notebook"
    ),
    "stats": Command(stats, "[--plot] [--dark]", "tokens and speeds of every cell so far"),
}

HELP = ("-h", "--help")


def run_command(nb: Notebook, line: str) -> object:
    """Run the line of a `%llm` magic as typed; without a command it shows what is loaded.

    Raises:
        UsageError: There is no such command; the message says what was probably meant.
    """
    name, _, rest = line.strip().partition(" ")
    if not name:
        usage = [(name, c.usage, c.what) for name, c in COMMANDS.items()]
        nb.show(status.overview(nb.magic_name, usage, hub.loaded(), nb.name_of(None)))
        return None
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(_no_command(nb.magic_name, name, line.strip()))
    if rest.strip() in HELP:
        nb.show(command.help(f"%{nb.magic_name} {name}"))
        return None
    with brief_errors(nb):
        return command.run(nb, rest.strip())


def _no_command(magic: str, command: str, line: str) -> str:
    near = difflib.get_close_matches(command, COMMANDS, 2, 0.6)
    hint = f"did you mean %{magic} {' or '.join(near)}?" if near else ""
    known = hint or f"there are {', '.join(COMMANDS)}."
    # More than one word reads like a question to the model.
    ask = f" To ask the model: %{magic} ask {line}" if " " in line or not near else ""
    return f"%{magic} {command}: no such command; {known}{ask}"
