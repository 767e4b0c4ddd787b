"""`python -m llm_magic`: demo, verify, fetch, models, remove, bench, chat.

An error of the package is one line on stderr, and the exit status is 1. Imports that take time are
made inside the command that needs them.
"""

import argparse
import importlib
import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import LLMError

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from .chat.conversation import Conversation
    from .chat.reply import Reply
    from .provider import Stream

REPLY_MIME = "application/vnd.llm-magic.reply+json"
NOTEBOOK = "01-quickstart.ipynb"
CELL_TIMEOUT = 600  # seconds; the first cell may compile kernels on a slow machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["bench"]:  # it has its own parser: only it knows its options
            return int(importlib.import_module("llm_magic.bench").main(words[1:]))
        options = _parser().parse_args(words)
        return int(options.run(options))
    except LLMError as error:
        print(f"llm_magic: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_magic", description="Local models in notebooks."
    )
    parser.add_argument("--version", action="version", version=f"llm_magic {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="execute the first notebook and show its answer")
    demo.add_argument("notebook", nargs="?", type=Path, help="another notebook to execute")
    demo.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of the executed notebook"
    )
    demo.set_defaults(run=_demo)

    fetch = commands.add_parser("fetch", help="download models into the user's cache")
    fetch.add_argument("names", nargs="*", default=["smollm2"], metavar="MODEL")
    fetch.set_defaults(run=_fetch)

    models = commands.add_parser(
        "models", help="list the models that have a name, and what they need"
    )
    models.set_defaults(run=_models)

    remove = commands.add_parser("remove", help="delete the files of models that were downloaded")
    remove.add_argument("names", nargs="+", metavar="MODEL")
    remove.set_defaults(run=_remove)

    commands.add_parser("bench", help="measure speed: bench --help", add_help=False)
    check = commands.add_parser(
        "verify",
        help="generate every reply of saved notebooks again",
        description="Generate every reply of saved notebooks again, from the record in its output. "
        "Exit status: 0 all are right, 1 one differs, 2 one cannot be checked.",
    )
    check.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK")
    check.add_argument(
        "-m", "--model", action="append", default=[], help="name or file of a model that made them"
    )
    check.add_argument("--html", type=Path, metavar="FILE", help="write the report here, too")
    check.set_defaults(run=_verify)
    chat = commands.add_parser("chat", help="talk to a model in this terminal")
    chat.add_argument("model", nargs="?", default="smollm2")
    chat.add_argument("-s", "--system", help="system prompt")
    chat.add_argument("-n", "--max-tokens", type=int, default=256)
    chat.add_argument("-t", "--temperature", type=float, default=0.7)
    chat.set_defaults(run=_chat)
    return parser


# ----------------------------------------------------------------------------- demo


def _demo(options: argparse.Namespace) -> int:
    """Execute a notebook with the real kernel, save it under `--out`, show its first reply."""
    try:
        import nbformat
        from nbclient.exceptions import CellExecutionError
    except ModuleNotFoundError as e:
        needs = "pip install 'llm-magic[lab]'"
        raise LLMError(f"the demo executes a notebook and needs {e.name}: {needs}") from None

    source = options.notebook or _shipped_notebook()
    _fetch(argparse.Namespace(names=["smollm2"]))
    notebook = nbformat.read(source, as_version=4)
    target = options.out / source.name
    target.parent.mkdir(parents=True, exist_ok=True)
    os.environ.pop("LLM_MAGIC_DOCS", None)  # a demo shows true times
    print(f"executing {source}")
    status = 0
    try:
        _execute(notebook, source.parent)
    except CellExecutionError as error:
        print(f"\na cell failed: {error.ename}: {error.evalue}", file=sys.stderr)
        status = 1
    nbformat.write(notebook, target)
    for prompt, reply in _replies(notebook)[:1]:
        _show(prompt, reply)
    _how_to_open(target)
    return status


def _shipped_notebook() -> Path:
    """The notebook of the checkout, or the one that came with the wheel."""
    package = Path(__file__).resolve().parent
    shared = Path(sysconfig.get_path("data")) / "share" / "llm-magic"
    for place in (package.parent / "notebooks" / NOTEBOOK, shared / NOTEBOOK):
        if place.exists():
            return place
    raise LLMError(f"{NOTEBOOK} is not installed; name a notebook: python -m llm_magic demo FILE")


def _execute(notebook: "NotebookNode", folder: Path) -> None:
    from nbclient import NotebookClient

    started = time.monotonic()

    def begin(cell: "NotebookNode", cell_index: int) -> None:
        line = " ⏎ ".join(cell.source.split("\n"))
        print(
            f"  [{time.monotonic() - started:5.1f} s] {shorten(line, 78, placeholder=' …')}",
            flush=True,
        )

    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=begin,
        extra_arguments=["--log-level=ERROR"],  # the kernel's remarks about its sockets
    )
    client.execute()
    print(f"  [{time.monotonic() - started:5.1f} s] done")


def _replies(notebook: "NotebookNode") -> list[tuple[str, "Reply"]]:
    """(source of the cell, reply) of each output that carries a reply."""
    from .chat.reply import Reply

    return [
        (cell.source, Reply.from_dict(output.data[REPLY_MIME]))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if REPLY_MIME in output.get("data", {})
    ]


def _show(prompt: str, reply: "Reply") -> None:
    speed, usage = reply.timings, reply.usage
    print(f"\n{_indented(prompt)}\n\n{_indented(reply.text)}\n")
    print(
        f"{reply.model}: {usage.completion} tokens at {speed.decode_tps:.0f} tok/s, "
        f"prompt {usage.prompt} tokens at {speed.prefill_tps:.0f} tok/s"
    )


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.strip().splitlines())


def _how_to_open(target: Path) -> None:
    inside = Path("dev").exists() and Path("pyproject.toml").exists()
    command = "./dev lab" if inside else f"{sys.executable} -m jupyterlab"
    print(f"\nexecuted notebook: {target}\nopen it:           {command} {target}")


# ----------------------------------------------------------------------------- verify


def _verify(options: argparse.Namespace) -> int:
    """Check notebooks; the exit status is that of the worst."""
    from .ui.views import html, records, verified
    from .verify.finder import Finder
    from .verify.run import verify

    finder = Finder(options.model)
    reports = []
    for path in options.notebooks:
        reports.append(verify(path, finder, records.differences))
        print(verified.plain(reports[-1]), end="\n\n", flush=True)
    if options.html is not None:
        parts = (
            f"<h2>{html.text(report.name)}</h2>{verified.fragment(report).html}"
            for report in reports
        )
        page = f'<!doctype html><meta charset="utf-8"><title>verify</title>{"".join(parts)}'
        try:
            options.html.write_text(page, encoding="utf-8")
        except OSError as error:
            raise LLMError(f"cannot write {options.html}: {error.strerror}") from None
    found = {report.status for report in reports}
    return 1 if 1 in found else max(found)


# ----------------------------------------------------------------------------- models


def _fetch(options: argparse.Namespace) -> int:
    from . import models

    for name in options.names:
        model = models.resolve(name, progress=_bar(name))
        print(f"{name}: {model.path}")
    return 0


def _remove(options: argparse.Namespace) -> int:
    from . import models

    for name in options.names:
        gone = models.remove(name)
        print(f"{gone.name}: removed, {gone.size / 1e6:,.0f} MB are free again")
    return 0


def _models(options: argparse.Namespace) -> int:
    from . import catalogue

    for line in catalogue.listing():
        print(line)
    return 0


def _bar(name: str) -> Callable[..., Any]:
    """A progress callback for a terminal: one line, rewritten; silent where nobody watches."""

    def show(stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            share = f"{100 * done // total:3d} %" if total else f"{done >> 20} MiB"
            print(f"\r{name}: {stage} {share}", end="\n" if done == total else "", file=sys.stderr)

    return show


# ----------------------------------------------------------------------------- chat

_CHAT = """/undo        remove the last question and its answer
/retry       answer the last question again
/reset       clear the conversation; the system prompt stays
/save FILE   save the conversation as JSON in OpenAI's format
/load FILE   continue a saved conversation
/help        show this list; Ctrl-C stops an answer, Ctrl-D ends the chat"""


def _chat(options: argparse.Namespace) -> int:
    """Chat until end of file. Ctrl-C stops an answer; its text so far stays in the conversation."""
    from . import Conversation, load

    settings = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    talk = Conversation(load(options.model), options.system, **settings)
    while (line := _ask()) is not None:
        try:
            _say(talk, line)
        except LLMError as error:
            if not sys.stdin.isatty():
                raise  # a script must not go on as if it had been answered
            print(f"llm_magic: {error}\n", file=sys.stderr)
    return 0


def _ask() -> str | None:
    """The next line that is not blank; None at end of file. No prompt if stdin is no terminal."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        if line.strip():
            return line


def _say(talk: "Conversation", line: str) -> None:
    """Run a command or ask a question. An unknown word that begins with / is a question."""
    command, _, rest = line.strip().partition(" ")
    match command, rest.strip():
        case "/undo", "":
            gone = talk.undo()
            print(f"Removed: {_one_line(gone.question.text)}\n" if gone else "Nothing to undo.\n")
        case "/reset", "":
            talk.reset()
            print("Conversation cleared.\n")
        case "/retry", "":
            _answer(talk.regenerate())
        case "/save", str(name) if name:
            _save(talk, Path(name).expanduser())
        case "/load", str(name) if name:
            _load(talk, Path(name).expanduser())
        case "/help", "":
            print(f"{_CHAT}\n")
        case _:
            _answer(talk.send(line))


def _one_line(text: str) -> str:
    from .utf8 import for_terminal

    return for_terminal(shorten(text, 60))


def _answer(stream: "Stream") -> None:
    """Print an answer while it streams, reasoning dimmed, and a blank line after it.

    Control characters of the answer are shown, not sent to the terminal.
    """
    from .events import Delta
    from .utf8 import for_terminal

    dim, plain = ("\x1b[2m", "\x1b[22m") if sys.stdout.isatty() else ("", "")
    kind, said = "answer", False
    with stream:
        while True:
            try:
                for event in stream:
                    if not isinstance(event, Delta) or (event.kind == "reasoning" and not dim):
                        continue
                    if event.kind != kind:
                        kind = event.kind
                        print(dim if kind == "reasoning" else f"{plain}\n\n", end="")
                    said = said or kind == "answer"
                    print(for_terminal(event.text), end="", flush=True)
                break
            except KeyboardInterrupt:
                stream.cancel("interrupted")  # and drain: the stream still ends with Finish
    print(plain if kind == "reasoning" else "", end="")
    print("" if said else "(no answer)")
    print()  # one blank line after every answer


def _save(talk: "Conversation", path: Path) -> None:
    text = json.dumps(talk.to_openai(), ensure_ascii=False, indent=1)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise LLMError(f"cannot write {path}: {error.strerror}") from None
    print(f"Saved {len(talk.messages)} messages to {path}\n")


def _load(talk: "Conversation", path: Path) -> None:
    try:
        messages = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LLMError(f"cannot read {path}: {error}") from None
    if not isinstance(messages, list):
        raise LLMError(f"{path} holds no messages: a list of {{'role': ..., 'content': ...}}")
    talk.load(messages)
    print(f"Loaded {len(talk.messages)} messages from {path}\n")


if __name__ == "__main__":
    sys.exit(main())
