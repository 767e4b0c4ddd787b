"""`%llm log`: a file with every request and reply of this notebook, off unless it is turned on.

Comes in: a path, a text to search, a number. Goes out: tables, and replies that have all their
views again.
"""

from collections.abc import Sequence

from IPython.core.error import UsageError

from llm_magic.chat.reply import Reply
from llm_magic.reply_log import ReplyLog, Row

from ..views import html
from ..views.mime import Fragment
from . import command_line, status
from .session import Notebook

USAGE = "[on PATH | off | search TEXT | load N]"
SHOWN = 60  # characters of a text in a table


def log(nb: Notebook, rest: str) -> Reply | None:
    """Turn the log on or off, search it, or load a reply."""
    word, _, more = rest.partition(" ")
    more = command_line.unquoted(more.strip())
    match word:
        case "":
            nb.show(_state(nb))
        case "on":
            _on(nb, more)
        case "off" if not more:
            nb.ledger.logging = False
            nb.show(status.note("the log is off"))
        case "search":
            rows = _log(nb).search(more)
            nb.show(_table(rows) if rows else status.note(f"no reply with {more!r} in the log"))
        case "load" if more.isdigit():
            reply = _log(nb).load(int(more))
            nb.shell.user_ns["_llm"] = nb.shell.user_ns_hidden["_llm"] = reply
            return reply
        case _:
            raise UsageError(f"%{nb.magic_name} log {USAGE}")
    return None


def _on(nb: Notebook, path: str) -> None:
    if not path and nb.ledger.log is None:
        raise UsageError(f"give the file: %{nb.magic_name} log on PATH")
    if path:
        nb.ledger.log = ReplyLog(path)
    nb.ledger.logging = True
    nb.show(_state(nb))


def _log(nb: Notebook) -> ReplyLog:
    if nb.ledger.log is None:
        raise UsageError(f"there is no log; %{nb.magic_name} log on PATH starts or opens one")
    return nb.ledger.log


def _state(nb: Notebook) -> Fragment:
    found = nb.ledger.log
    if found is None:
        return status.note(f"the log is off; %{nb.magic_name} log on PATH turns it on")
    count = len(found)
    what = "every request and reply of this notebook is added" if nb.ledger.logging else "off"
    noun = "reply" if count == 1 else "replies"
    return status.note(f"log {found.path}: {what}; {count} {noun} so far")


def _table(rows: Sequence[Row]) -> Fragment:
    head = ("reply", "when (UTC)", "notebook", "cell", "model", "asked", "answer")
    cells = [
        (
            str(row.id), row.at[:19].replace("T", " "), row.notebook, row.cell, row.model,
            _short(row.asked), _short(row.answer),
        )
        for row in rows
    ]  # fmt: skip
    plain = "\n".join(" · ".join(filter(None, row)) for row in cells)
    return Fragment(html.table(head, [[*map(html.text, row)] for row in cells]), plain)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
