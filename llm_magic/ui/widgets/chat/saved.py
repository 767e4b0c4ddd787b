"""The saved form of a chat: what a file, a notebook or a page holds of it, checked when it is read.

A turn is {"role", "content"} and, where there is more, "note", "reply" (see `Reply.to_dict`; its
text is the content), and the other versions of this turn: "others", a list of lists of turns, each
of them a version and what was shown below it, and "place", the position of the shown version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import as_messages
from llm_magic.utf8 import whole_json

from ..shared import settings

VERSION = 1
MAX_DEPTH = 40  # versions inside of versions
MAX_ROWS = 20_000
MAX_NAME = 200  # characters of a name or a date


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """One turn.

    Args:
        role: "user" or "assistant".
        text: As it was written.
        note: Why an answer ended early, or the error; "" otherwise.
        reply: What is known of an answer beside its text.
        others: The other versions of the turn, each with what was shown below it.
        place: The position of this version among all of them.
    """

    role: str
    text: str
    note: str = ""
    reply: Reply | None = None
    others: tuple[tuple["SavedTurn", ...], ...] = ()
    place: int = 0


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A saved chat.

    Args:
        rows: The shown turns.
        settings: What a person had set on the page.
        model: Who answered last; "" if unknown.
        at: When (ISO 8601); "" if unknown.
    """

    rows: tuple[SavedTurn, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    model: str = ""
    at: str = ""


def read(data: Any) -> SavedChat:
    """Read a saved conversation, which is not trusted.

    Args:
        data: Plain JSON as `Chat.save` writes it, or a list of messages.

    Raises:
        ValueError: The data is not a saved conversation. The message says why.

    >>> read([{"role": "user", "content": "Hi"}]).rows[0].text
    'Hi'
    >>> read({"version": 7})
    Traceback (most recent call last):
    ValueError: not a conversation saved by this release (version 1)
    """
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return SavedChat(_messages_in(data))
    if not isinstance(data, Mapping) or data.get("version") != VERSION:
        raise ValueError(f"not a conversation saved by this release (version {VERSION})")
    try:
        data = whole_json(dict(data))
        rows = _rows_in(data.get("turns"), [MAX_ROWS], 0)
    except RecursionError:
        raise ValueError("the saved conversation is nested too deeply") from None
    return SavedChat(
        rows, _settings_in(data.get("settings")), _short(data, "model"), _short(data, "at")
    )


def _rows_in(turns: object, room: list[int], depth: int) -> tuple[SavedTurn, ...]:
    if not isinstance(turns, list):
        raise ValueError("the saved conversation has no list of turns")
    room[0] -= len(turns)
    if room[0] < 0 or depth > MAX_DEPTH:
        raise ValueError("the saved conversation has too many turns")
    return tuple(_row_in(i, row, room, depth) for i, row in enumerate(turns))


def _row_in(i: int, row: object, room: list[int], depth: int) -> SavedTurn:
    if not isinstance(row, Mapping) or row.get("role") not in ("user", "assistant"):
        raise ValueError(f"turn {i} is neither a user's nor an assistant's")
    text, note = row.get("content"), row.get("note", "")
    if not isinstance(text, str) or not isinstance(note, str):
        raise ValueError(f"turn {i} has no text")
    reply = None
    if row["role"] == "assistant":
        given = row.get("reply")
        if given is not None and not isinstance(given, Mapping):
            raise ValueError(f"the reply of turn {i} is not an object")
        reply = Reply(text) if given is None else Reply.from_dict({"text": text, **given})
    others = row.get("others", [])
    place = row.get("place", 0)
    if not isinstance(others, list) or type(place) is not int or not 0 <= place <= len(others):
        raise ValueError(f"the versions of turn {i} are not a list")
    versions = tuple(_rows_in(rows, room, depth + 1) for rows in others)
    if any(not rows or rows[0].others for rows in versions):
        raise ValueError(f"a version of turn {i} is no turn")
    return SavedTurn(row["role"], text, note, reply, versions, place)


def _messages_in(data: Sequence[Any]) -> tuple[SavedTurn, ...]:
    """User and assistant messages with a text. Messages of tools are left out."""
    return tuple(
        SavedTurn(m.role, m.text, "", Reply(m.text, m.reasoning) if m.role == "assistant" else None)
        for m in as_messages(data)
        if m.role in ("user", "assistant") and m.text
    )


def _settings_in(values: Any) -> dict[str, Any]:
    """The valid settings. Never the model: a file must not choose which model is asked."""
    found: dict[str, Any] = {}
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if name in settings.SETTINGS and name != "model":
            try:
                found[name] = settings.checked(name, value)
            except RequestError:
                continue  # of another release
    return found


def _short(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value[:MAX_NAME] if isinstance(value, str) else ""
