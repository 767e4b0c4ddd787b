"""A row becomes messages: `{{ column }}` in a template is the row's value of that column.

The rules are those of cells (`llm_magic.interpolation`): blanks inside the braces, dots and
indices, one pass, everything else between braces stays. `{{ row['a name'] }}` reaches columns whose
name is no identifier. A value that is missing (no such key, None, NaN, NaT, NA) is an error of its
row.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ..arguments import as_chat, shown
from ..errors import InterpolationError, RequestError
from ..events import Message
from ..interpolation import as_text, fields, heads, interpolate, tight_fields

ROW = "row"  # the name of the whole row, unless a column has it
Row = Mapping[str, object]


class MissingValue(RequestError):
    """A row has no value where its template needs one."""


class Template:
    """A question with places for the values of a row.

    >>> [m.text for m in Template("Rate: {{ text }}").fill({"text": "Lovely."})]
    ['Rate: Lovely.']

    Args:
        source: The question as a text, or messages.
        system: A system prompt before it, with places of its own.
        names: Further names that the template may use, such as variables of a notebook. Columns
            win over them.

    Raises:
        RequestError: It is neither, or it names no column.
    """

    def __init__(
        self,
        source: object,
        system: str | None = None,
        names: Mapping[str, object] | None = None,
    ) -> None:
        self.messages = as_chat(source, system)
        self.names = names or {}
        if any(not isinstance(m.content, str) for m in self.messages):
            raise RequestError("template: each message of it must have a text as its content")
        paths = [path for m in self.messages for path in fields(m.text)]
        self.columns = tuple(dict.fromkeys(heads(paths)))
        if not self.columns:
            raise RequestError(self._no_columns())

    def _no_columns(self) -> str:
        tight = [path for m in self.messages for path in tight_fields(m.text)]
        if tight:
            return (
                f"the template has {{{{{tight[0]}}}}} without blanks, which stays as it is; "
                f"write {{{{ {tight[0]} }}}}"
            )
        return (
            "the template names no column, so every row would be asked the same; write "
            "{{ column }} where the row's value belongs"
        )

    def check(self, known: Collection[str]) -> None:
        """RequestError for a name that no row has, before anything is computed.

        Args:
            known: The columns of all rows together.
        """
        for name in self.columns:
            if name in known or name == ROW or name in self.names:
                continue
            near = difflib.get_close_matches(name, known, 3, 0.6)
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else _listing(known)
            raise RequestError(f"{{{{ {name} }}}} in the template: no row has {name!r}; {hint}")

    def fill(self, row: Row) -> tuple[Message, ...]:
        """The messages of one row.

        Raises:
            MissingValue: The row has no value for a place.
            InterpolationError: A place asks for what its value does not have.
        """
        for name in self.columns:
            if name in row:
                if missing(row[name]):
                    raise MissingValue(f"the row's {name!r} is missing ({row[name]})")
            elif name not in self.names and name != ROW:
                raise MissingValue(f"the row has no {name!r}")
        names: Mapping[str, object] = {**self.names, ROW: row, **row}
        return tuple(replace(m, content=self._text(m.text, names)) for m in self.messages)

    def _text(self, text: str, names: Mapping[str, object]) -> str:
        try:
            return interpolate(text, names, _value, source="the template", suggest=())
        except InterpolationError as e:
            if isinstance(e.__cause__, LookupError):  # a key that this row's value lacks
                raise MissingValue(str(e).partition(" To keep")[0]) from None
            raise


def _listing(known: Collection[str]) -> str:
    few = [repr(name) for name in list(known)[:8]]
    return f"there are {', '.join(few)}" if few else "the rows have no columns"


def missing(value: object) -> bool:
    """Whether a value stands for "nothing is known": None, NaN, and pandas' NA and NaT.

    >>> [missing(v) for v in (None, float("nan"), 0, "", "nan")]
    [True, True, False, False, False]
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _value(value: object) -> str:
    if missing(value):
        raise MissingValue(f"a value of the row is missing ({value})")
    return as_text(value, {})


def template_of(messages: Sequence[Message]) -> list[list[str]]:
    """A template as plain JSON: (role, text) of each message."""
    return [[m.role, m.text] for m in messages]


def row_of(value: object, name: str) -> Row:
    """One item of a list as a row: a mapping as it is, a text or a number under `name`."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if value is None or isinstance(value, str | int | float) or hasattr(value, "dtype"):
        return {name: value}
    raise RequestError(
        f"rows holds {shown(value)}; give a frame, a list of texts or a list of dicts"
    )
