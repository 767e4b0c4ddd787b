"""A log of requests and replies in a SQLite file, from which a reply is loaded again.

Off unless a person turns it on with `%llm log on PATH`. The file is opened for each operation, so
several notebooks may share one, and nothing is held open in between.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from .chat.reply import Reply
from .errors import RequestError
from .events import Message, ToolSpec, as_messages

APPLICATION = 0x6C6C6D31  # of PRAGMA application_id: the file is ours
VERSION = 1
BUSY_SECONDS = 5.0  # while another notebook writes
SHOWN = 200  # characters of a text in a row of a search

_SCHEMA = f"""
CREATE TABLE replies (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,       -- UTC
    notebook TEXT NOT NULL,
    cell TEXT NOT NULL,     -- the number of the input, or "chat", "branch"
    model TEXT NOT NULL,
    asked TEXT NOT NULL,    -- what a person wrote last
    answer TEXT NOT NULL,
    texts TEXT NOT NULL,    -- the texts of all messages, or the prompt: what is searched
    request TEXT NOT NULL,  -- JSON: messages, tools, ids of the prompt
    reply TEXT NOT NULL     -- JSON: Reply.to_dict
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One reply of the log, shortened. at: UTC, ISO 8601."""

    id: int
    at: str
    notebook: str
    cell: str
    model: str
    asked: str
    answer: str


class ReplyLog:
    """A file of replies. Methods may be called from any thread.

    >>> import tempfile
    >>> log = ReplyLog(Path(tempfile.mkdtemp()) / "log.sqlite")
    >>> log.add(Reply("Paris.", model="smollm2", prompt="The capital of France?"), cell=3)
    1
    >>> [(row.id, row.cell, row.answer) for row in log.search("paris")]
    [(1, '3', 'Paris.')]
    >>> log.load(1).text
    'Paris.'
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open or make the file.

        Raises:
            RequestError: It cannot be written, or is not such a log.
        """
        self.path = Path(path).expanduser()
        new = not self.path.exists()
        with self._open() as db:
            (found,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if empty and not found:
                db.executescript(_SCHEMA)
            elif found != APPLICATION:
                raise RequestError(f"{self.path} is another program's database")
            elif version != VERSION:
                raise RequestError(
                    f"{self.path} has version {version}; this release reads version {VERSION}"
                )
        if new:  # what people ask is theirs alone
            with contextlib.suppress(OSError):
                self.path.chmod(0o600)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as db, db:
                db.create_function("folded", 1, _folded, deterministic=True)
                yield db
        except sqlite3.Error as e:
            raise RequestError(f"the log {self.path} cannot be used: {e}") from e

    def __len__(self) -> int:
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def add(self, reply: Reply, cell: int | str = "", notebook: str = "") -> int:
        """Append a reply with its request; returns its number in the log."""
        request = {
            "messages": [asdict(message) for message in reply.messages],
            "tools": [asdict(tool) for tool in reply.tools],
            "prompt_ids": list(reply.prompt_ids),
        }
        values = (
            datetime.now(UTC).isoformat(timespec="seconds"), notebook, str(cell), reply.model,
            asked(reply), reply.text or reply.reasoning, _texts(reply),
            json.dumps(request, ensure_ascii=False, default=str),
            json.dumps(reply.to_dict(), ensure_ascii=False),
        )  # fmt: skip
        with self._open() as db:
            added = db.execute(
                "INSERT INTO replies (at, notebook, cell, model, asked, answer, texts, "
                "request, reply) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            return int(added.lastrowid or 0)

    def search(self, text: str = "", most: int = 20) -> list[Row]:
        """The newest replies in whose request or answer a text occurs, upper or lower case."""
        with self._open() as db:
            rows = db.execute(
                "SELECT id, at, notebook, cell, model, asked, answer FROM replies WHERE "
                "instr(folded(answer), ?1) OR instr(folded(texts), ?1) ORDER BY id DESC LIMIT ?2",
                (text.casefold(), most),
            ).fetchall()
        return [
            Row(id, at, notebook, cell, model, asked[:SHOWN], answer[:SHOWN])
            for id, at, notebook, cell, model, asked, answer in rows
        ]

    def load(self, number: int) -> Reply:
        """A reply as it was, with its request.

        Raises:
            RequestError: There is no such reply, or it is damaged.
        """
        with self._open() as db:
            row = db.execute(
                "SELECT reply, request FROM replies WHERE id = ?", (number,)
            ).fetchone()
        if row is None:
            raise RequestError(f"the log {self.path} has no reply {number}")
        try:
            reply, request = Reply.from_dict(json.loads(row[0])), json.loads(row[1])
            return replace(
                reply,
                messages=as_messages([_message(m) for m in request["messages"]]),
                tools=tuple(ToolSpec(**tool) for tool in request["tools"]),
                prompt_ids=tuple(int(i) for i in request["prompt_ids"]),
            )
        except (ValueError, TypeError, KeyError) as e:
            raise RequestError(f"reply {number} of {self.path} is damaged: {e}") from None


def asked(reply: Reply) -> str:
    """What a person wrote last: the last message of a user, else the prompt."""
    users = [m.text for m in reply.messages if m.role == "user"]
    return users[-1] if users else reply.prompt or ""


def _texts(reply: Reply) -> str:
    calls = [call.arguments for message in reply.messages for call in message.calls]
    texts = [message.text for message in reply.messages] or [reply.prompt or ""]
    return "\n".join([*texts, *calls])


def _folded(text: str) -> str:
    return text.casefold()


def _message(data: Mapping[str, object]) -> Mapping[str, object] | Message:
    """A message of `asdict` in the form that `as_messages` reads."""
    calls = data.get("calls")
    return {
        **data,
        "tool_call_id": data.get("call_id"),
        "tool_calls": calls if isinstance(calls, Sequence) else (),
    }
