"""A notebook's file as cells, and the outputs that hold replies of a model."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..chat.record import Record, record_in, unsealed
from ..errors import RequestError

KEY = "llm_magic_record"  # in the metadata of an output
VENDOR = "application/vnd.llm-magic."
GENERATES = re.compile(r"^\s*(?:%%llm\b|%llm\s+(?:ask|compare|branch)\b)", re.MULTILINE)
NO_RECORD = (
    "the output has no record of how it was made; run the cell again with this version and save"
)
CHAT = "a chat's transcript keeps no record"
TABLE = "the answers of a table keep no record"


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a cell that a model made, or should have made.

    Attributes:
        cell: Number of the cell.
        source: The whole text of the cell.
        data: The MIME bundle, texts joined.
        records: The records of its replies.
        drawn: How it was drawn, as `ui.views.records` wrote it.
        why: Why it cannot be checked; "" where it can.
        broken: What is wrong with the record itself.
    """

    cell: int
    source: str
    data: Mapping[str, Any] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    drawn: Mapping[str, object] = field(default_factory=dict)
    why: str = ""
    broken: str = ""

    @property
    def line(self) -> str:
        """The first line of the cell."""
        return self.source.strip().partition("\n")[0]


def digest(name: str, line: str, cell: str) -> str:
    """A short hash of a cell magic: its name, its line and its text, without blanks at the ends."""
    text = f"%%{name} {line.strip()}\n{cell.strip()}"
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def ran_as(source: str, ran: str) -> bool:
    """Whether a cell's text is still that of the magic that ran, which `digest` has hashed.

    The magic may stand below another one, such as `%%time`. Of a cell without any (it called
    `run_cell_magic`, say) nothing can be told.

    >>> ran_as("%%time\\n%%llm -t 0\\nHi\\n", digest("llm", "-t 0", "Hi"))
    True
    """
    lines = source.split("\n")
    for i, line in enumerate(lines):
        name, _, rest = line.strip().partition(" ")
        if digest(name[2:], rest, "\n".join(lines[i + 1 :])) == ran and name.startswith("%%"):
            return True
    return not any("%" in line for line in lines)


def outputs(path: Path) -> tuple[list[Output], int]:
    """The outputs that hold replies, and how many cells show something else.

    Raises:
        RequestError: The file is no notebook.
    """
    cells = _cells(path)
    found: list[Output] = []
    others = 0
    for number, cell in enumerate(cells):
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        mine = list(_of_cell(number, cell))
        found += mine
        others += bool(not mine and cell.get("outputs"))
    return found, others


def _cells(path: Path) -> list[Any]:
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as e:
        raise RequestError(f"{path} cannot be read: {e.strerror or e}") from None
    except ValueError:
        raise RequestError(f"{path} is not a notebook: it is no JSON") from None
    cells = data.get("cells") if isinstance(data, Mapping) else None
    if not isinstance(cells, list):
        raise RequestError(
            f"{path} is not a notebook of version 4: it has no list of cells; open and save it in "
            "Jupyter to convert it"
        )
    return cells


def _of_cell(number: int, cell: Mapping[str, Any]) -> Iterator[Output]:
    source = _joined(cell.get("source", ""))
    shown = [o for o in cell.get("outputs") or () if isinstance(o, Mapping)]
    made = [found for o in shown if (found := _of_output(number, source, o)) is not None]
    yield from made
    visible = [o for o in shown if o.get("output_type") != "error"]
    if not made and visible and GENERATES.search(source):
        table = re.match(r"\s*%%llm\b[^\n]*\s--map\b", source) is not None
        yield Output(number, source, why=TABLE if table else NO_RECORD)


def _of_output(number: int, source: str, output: Mapping[str, Any]) -> Output | None:
    data = output.get("data")
    data = {k: _joined(v) for k, v in data.items()} if isinstance(data, Mapping) else {}
    metadata = output.get("metadata")
    sealed = metadata.get(KEY) if isinstance(metadata, Mapping) else None
    if sealed is None:
        kinds = [kind for kind in data if kind.startswith(VENDOR)]
        if not kinds:
            return None
        return Output(number, source, data, why=NO_RECORD if "reply" in kinds[0] else CHAT)
    try:
        found = unsealed(sealed)
        replies = found.get("replies")
        records = tuple(map(record_in, replies if isinstance(replies, list) else ()))
        drawn = found.get("drawn")
    except ValueError as e:
        return Output(number, source, data, broken=str(e))
    if not records:
        return Output(number, source, data, broken="the record holds no reply")
    return Output(number, source, data, records, drawn if isinstance(drawn, Mapping) else {})


def _joined(value: Any) -> Any:
    """A text that the file holds as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value
