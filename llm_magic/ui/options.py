"""The options of a request: a row says what one is called, what it takes and where it works.

The command line of `%%llm`, the settings of chats and branches, `%llm compare`, saved settings and
the reference page are all made from `OPTIONS`. To add an option, add a row here.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from llm_magic.errors import RequestError
from llm_magic.llm import CHAT
from llm_magic.sampling import FIELDS, Field
from llm_magic.utf8 import whole

Kind = Literal["text", "integer", "number", "flag", "switch", "texts", "biases", "pair"]
Place = Literal["cell", "compare", "chat", "branch"]
Group = Literal[
    "Model and prompt",
    "Table",
    "Conversation",
    "Tools",
    "Constraint",
    "Sampling",
    "Penalties",
    "Inside",
    "Output",
]
GROUPS: tuple[Group, ...] = get_args(Group)

Biases = tuple[tuple[int | str, float], ...]
Value = str | int | float | bool | tuple[str, ...] | tuple[float, float] | Biases

MAX_TEXT = 100_000  # characters of a text that a page may send


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        name: The keyword of `LLM.stream`, and the attribute that argparse sets.
        kind: What it takes. A "flag" is there or not; a "switch" is on, off or unset; "texts" and
            "biases" may be repeated; a "pair" is two numbers.
        group: The heading under which it is listed.
        help: What it does, in one line.
        at: Where it can be given: on a cell, in `%llm compare`, in a chat, for a branch.
        short: Its one-letter form, "-t".
        label: Its name in a form; an option without one is in no form.
        metavar: What stands for its value in the help.
        low, high: Bounds, both allowed. None: no bound.
        choices: The only values there are.
        bare: What the option means without a value; in a form, what its check box sets.
        bare_text: The same for a text.
        bare_label: In a form, the name of the number below that check box.
        default: What holds while it is unset, in words.
        completes: What Tab offers as its value: "models", "variables" or "conversations".
        more: A form lists it under "More settings".
        sampling: It is a field of `Sampling`, which checks its value.
        own: The extension itself reads it; it is no keyword of `LLM.stream`.

    Example:
        >>> find("top_p").flag
        '--top-p'
        >>> find("top_p").check("0.5")
        0.5
    """

    name: str
    kind: Kind
    group: Group
    help: str
    at: tuple[Place, ...] = ("cell",)
    short: str = ""
    label: str = ""
    metavar: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    bare: int | None = None
    bare_text: str = ""
    bare_label: str = ""
    default: str = ""
    completes: Literal["", "models", "variables", "conversations"] = ""
    more: bool = False
    sampling: bool = False
    own: bool = False

    @property
    def flag(self) -> str:
        """As typed: `--top-p`."""
        return "--" + ("think" if self.name == "thinking" else self.name.replace("_", "-"))

    @property
    def flags(self) -> tuple[str, ...]:
        """All of its spellings, the short one first."""
        off = (f"--no-{self.flag[2:]}",) if self.kind == "switch" else ()
        return (*filter(None, (self.short,)), self.flag, *off)

    @property
    def described(self) -> str:
        """The help with what holds while the option is unset.

        >>> find("max_tokens").described
        'most tokens of an answer (default: 256)'
        """
        return f"{self.help} (default: {self.default})" if self.default else self.help

    def check(self, value: object, said: str = "") -> Value | None:
        """The value in its right type, or None for "unset".

        Args:
            value: What a page, a program, a file or a command line gives; texts are parsed.
            said: How the option is called in an error; empty: by its label.

        Raises:
            RequestError: The value is of the wrong type or out of bounds.

        Example:
            >>> find("logit_bias").check("yes=5, 42=-1")
            (('yes', 5.0), (42, -1.0))
            >>> find("stop").check(["END"])
            ('END',)
            >>> find("top_p").check(2)
            Traceback (most recent call last):
            ...
            llm_magic.errors.RequestError: Top p: 2 is not between 0 and 1
        """
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        said = said or self.label or self.flag
        checked = _CHECKS[self.kind](self, value, said)
        if self.sampling:
            try:
                return FIELDS[self.name].read(checked)
            except RequestError as e:
                raise RequestError(f"{said}: {str(e).partition(' is ')[2]}") from None
        return checked

    def shown(self, value: Value | None) -> str | int | float | bool | None:
        r"""A value as a form shows it; `check` reads it back.

        >>> find("stop").shown(("END", "\n"))
        'END|\\n'
        >>> find("logit_bias").shown((("yes", 5.0),))
        'yes=5'
        """
        match value:
            case None | str() | int() | float():
                return value
            case _ if self.kind == "texts":
                return "|".join(_escaped(str(text), "|") for text in value)
            case _ if self.kind == "biases":
                pairs = (pair for pair in value if isinstance(pair, tuple))
                return ", ".join(f"{_escaped(str(k), ',')}={v:g}" for k, v in pairs)
            case _:
                return ", ".join(f"{number:g}" for number in value if isinstance(number, float))


# ----------------------------------------------------------------------------- checks


def _text(option: Option, value: object, said: str) -> Value:
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise RequestError(f"{said}: a text of at most {MAX_TEXT} characters")
    if option.choices and value not in option.choices:
        raise RequestError(f"{said}: {clip(value)} is not one of {', '.join(option.choices)}")
    return whole(value)


def _flag(option: Option, value: object, said: str) -> Value:
    if not isinstance(value, bool):
        raise RequestError(f"{said}: on, off or default")
    return value


def _number(option: Option, value: object, said: str) -> Value:
    is_whole = option.kind == "integer"
    wrong = f"{said}: {clip(value)} is not a {'whole ' * is_whole}number"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise RequestError(wrong)
    try:
        number = (int(value) if is_whole else float(value)) if isinstance(value, str) else value
        if is_whole and number != int(number):
            raise ValueError
    except (ValueError, OverflowError):
        raise RequestError(wrong) from None
    _bounded(option, number, value, said)
    return int(number) if is_whole else float(number)


def _bounded(option: Option, number: float, value: object, said: str) -> None:
    low, high = option.low, option.high
    if (low is None or number >= low) and (high is None or number <= high):
        return  # NaN is inside no bounds
    if low is not None and high is not None:
        bounds = f"between {low:g} and {high:g}"
    else:
        bounds = f"{low:g} or more" if low is not None else f"{high:g} or less"
    raise RequestError(f"{said}: {clip(value)} is not {bounds}")


def _texts(option: Option, value: object, said: str) -> Value:
    if isinstance(value, str):
        return tuple(filter(None, (unescaped(part, "|") for part in _split(value, "|"))))
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return tuple(whole(text) for text in value if text)
    raise RequestError(f"{said}: {clip(value)} is not a text or a list of texts")


def _biases(option: Option, value: object, said: str) -> Value:
    pairs: list[Sequence[object]]
    if isinstance(value, str):
        parts = [part.rpartition("=") for part in _split(value, ",") if part.strip()]
        pairs = [
            (unescaped(key.lstrip() if len(parts) > 1 else key, ",") if sep else "", number)
            for key, sep, number in parts
        ]
    elif isinstance(value, Mapping):
        pairs = [*value.items()]
    elif isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    ):
        pairs = [*value]
    else:
        pairs = [("", "")]
    found: list[tuple[int | str, float]] = []
    for key, number in pairs:
        try:
            bias = float(number)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            bias = float("nan")
        if key == "" or isinstance(key, bool) or not isinstance(key, str | int) or bias != bias:
            raise RequestError(f"{said}: {clip(value)} is not TOKEN=NUMBER, as in yes=5 or 42=-1")
        found.append((int(key) if str(key).isdecimal() else key, bias))
    return tuple(found)


def _pair(option: Option, value: object, said: str) -> Value:
    parts: object = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    try:
        numbers = [float(part) for part in cast("Sequence[str]", parts)]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 2:
        raise RequestError(f"{said}: {clip(value)} is not {option.metavar}: two numbers")
    return numbers[0], numbers[1]


_CHECKS: dict[Kind, Callable[[Option, object, str], Value]] = {
    "text": _text, "flag": _flag, "switch": _flag, "integer": _number, "number": _number,
    "texts": _texts, "biases": _biases, "pair": _pair,
}  # fmt: skip


def clip(value: object) -> str:
    """A value as an error quotes it: at most 40 characters."""
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _split(text: str, mark: str) -> list[str]:
    """The parts between marks; a mark behind a backslash, itself not escaped, belongs to a part."""
    return [m[0] for m in re.finditer(rf"(?:\\.|[^\\{mark}]|\\$)+", text, re.DOTALL)]


def unescaped(text: str, mark: str = "") -> str:
    r"""A text as typed on one line: \n, \t, \s and \\ mean a line end, a tab, a space, a backslash.

    >>> unescaped(r"a\nb")
    'a\nb'
    """
    known = {"n": "\n", "t": "\t", "s": " ", "\\": "\\", **({mark: mark} if mark else {})}
    return re.sub(r"\\(.)", lambda m: known.get(m[1], m[0]), text)


def _escaped(text: str, mark: str) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")
    text = text.replace(mark, "\\" + mark)
    return "\\s" + text[1:] if text.startswith(" ") else text


# ----------------------------------------------------------------------------- the table

DEFAULTS = {"max_tokens": CHAT.max_tokens, "temperature": CHAT.temperature}  # of chats and cells

_EVERY: tuple[Place, ...] = ("cell", "compare", "chat", "branch")
_KINDS: dict[str, Kind] = {
    "number": "number", "count": "integer", "pair": "pair", "texts": "texts", "bias": "biases",
}  # fmt: skip
_GROUPS: dict[str, Group] = {
    "length": "Sampling", "draw": "Sampling", "filter": "Sampling", "penalty": "Penalties",
    "token": "Penalties",
}  # fmt: skip
_SHORT = {"max_tokens": "-n", "temperature": "-t"}
_LABELS = {
    "max_tokens": "Longest answer", "min_tokens": "Shortest answer", "stop": "Stop texts",
    "repeat_last_n": "Penalty window", "xtc_probability": "XTC probability",
    "xtc_threshold": "XTC threshold", "dry_multiplier": "DRY multiplier", "dry_base": "DRY base",
    "dry_allowed_length": "DRY allowed length", "dry_last_n": "DRY window",
    "dry_breakers": "DRY breakers",
}  # fmt: skip
_METAVARS = {"pair": "TAU,ETA", "texts": "TEXT", "bias": "TOKEN=X", "number": "X", "count": "N"}
_HIGHEST = {"temperature": 5}
_LOWEST = {"max_tokens": 1, "temperature": 0}  # for people; programs may pass less
_COMMON = ("temperature", "max_tokens", "top_p", "top_k", "min_p", "seed")  # in this order


def _sampling(field: Field) -> Option:
    """The option for a setting of `llm_magic.sampling`, which describes it."""
    default = DEFAULTS.get(field.name, field.default)
    words = field.help.rstrip(".")
    return Option(
        field.name, _KINDS[field.kind], _GROUPS[field.group], words[0].lower() + words[1:]
        if not words.startswith(("DRY", "XTC", "(")) else words,
        _EVERY, _SHORT.get(field.name, ""),
        _LABELS.get(field.name, field.name.replace("_", " ").capitalize()),
        metavar=_METAVARS[field.kind],
        low=_LOWEST.get(field.name, field.low), high=_HIGHEST.get(field.name, field.high),
        default="" if default is None else _in_words(default),
        more=field.name not in _COMMON, sampling=True,
    )  # fmt: skip


def _in_words(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(repr(text) for text in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_TALK: tuple[Place, ...] = ("cell", "chat")

OPTIONS: tuple[Option, ...] = (
    Option("model", "text", "Model and prompt", "a model's name or path (see %llm models)",
           ("cell", "compare", "chat"), "-m", "Model", completes="models", own=True),
    Option("system", "text", "Model and prompt", "system prompt", ("cell", "compare", "chat"),
           "-s", "System prompt", default="none", own=True),
    Option("complete", "flag", "Model and prompt", "continue the text as it is, without a chat",
           ("cell", "compare"), own=True),
    Option("score", "flag", "Model and prompt",
           "generate nothing; show how likely the text itself is", ("cell", "compare"), own=True),
    Option("raw", "flag", "Model and prompt", "do not replace {{ name }}", own=True),
    Option("prefill", "text", "Model and prompt", "the answer begins with this text",
           metavar="TEXT", own=True),
    Option("thinking", "switch", "Model and prompt", "let the model reason first, if it can",
           _TALK, label="Thinking", default="the model's own"),

    Option("map", "text", "Table",
           "answer the cell for every row of the frame NAME; {{ column }} is the row's value",
           metavar="NAME", completes="variables", own=True),
    Option("cache", "text", "Table",
           "keep the answers of --map in this file; the next run asks only what is missing",
           metavar="FILE", own=True),

    Option("chat", "text", "Conversation",
           "this cell is a turn of the conversation NAME; running it again replaces its turn",
           _TALK, metavar="NAME", completes="conversations", own=True),
    Option("new", "flag", "Conversation", "start the conversation over", own=True),
    Option("trim", "flag", "Conversation", "drop the oldest turns if they do not fit"),

    Option("tools", "text", "Tools", "functions that the model may call, separated by commas",
           _TALK, metavar="NAMES", completes="variables", own=True),
    Option("approve", "switch", "Tools",
           "ask before each call; stays on in the conversation until --no-approve", own=True),
    Option("max_steps", "integer", "Tools", "most rounds of calls", metavar="N", low=1,
           default="8", own=True),
    Option("tool_choice", "text", "Tools", "auto, none, required, or the tool to call",
           metavar="WHICH"),

    Option("schema", "text", "Constraint", "JSON for this dict, dataclass, model or type", _TALK,
           metavar="NAME", completes="variables"),
    Option("regex", "text", "Constraint", "text that matches this pattern (quote it)", _TALK,
           metavar="PATTERN"),
    Option("choices", "text", "Constraint", "one of these, or of the list of that name", _TALK,
           metavar="A|B|C", completes="variables"),
    Option("grammar", "text", "Constraint", "a sentence of this grammar (Lark or GBNF)", _TALK,
           metavar="NAME", completes="variables"),

    *(_sampling(FIELDS[name]) for name in (*_COMMON, *(n for n in FIELDS if n not in _COMMON))),

    Option("inspect", "text", "Inside",
           "record activations (blocks.*.hook_resid_post) and show the lens; reply.inspection has "
           "them", metavar="NAMES", bare_text="blocks.*.hook_resid_post", own=True),
    Option("steer", "text", "Inside",
           "add the control vector of this file, or of that name, with this strength",
           metavar="FILE[:SCALE]", completes="variables", own=True),

    Option("logprobs", "integer", "Output",
           "record the N most likely tokens per step and shade the answer by probability", _TALK,
           label="Log-probabilities", metavar="N", low=0, high=100, bare=5,
           bare_label="Alternatives per token", default="off"),
    Option("format", "text", "Output", "how to show the answer", short="-f",
           choices=("markdown", "text", "code"), own=True),
    Option("show", "text", "Output", "more sections, separated by commas: prompt, tokens, stats",
           own=True),
    Option("live", "flag", "Output", "show the live view: every token, and branches", own=True),
    Option("out", "text", "Output", "bind the Reply to this name (it is also in _llm)",
           short="-o", metavar="NAME", own=True),
    Option("quiet", "flag", "Output", "show nothing", short="-q", own=True),
)  # fmt: skip

_BY_NAME = {option.name: option for option in OPTIONS}
CONSTRAINTS = tuple(option.name for option in OPTIONS if option.group == "Constraint")


def find(name: str) -> Option:
    """The option of that name.

    Raises:
        RequestError: There is no such option.

    Example:
        >>> find("temperature").flags
        ('-t', '--temperature')
    """
    if name not in _BY_NAME:
        raise RequestError(f"there is no option {name!r}")
    return _BY_NAME[name]


def at(place: Place) -> tuple[Option, ...]:
    """The options that can be given in a place, in the order of the table.

    >>> [option.name for option in at("branch")][:3]
    ['temperature', 'max_tokens', 'top_p']
    """
    return tuple(option for option in OPTIONS if place in option.at)


def add_arguments(parser: argparse.ArgumentParser, place: Place, *, sides: bool = False) -> None:
    """Give a parser the options of a place, under their headings.

    Args:
        parser: Receives the options; each sets the attribute of its name, None while unset.
        place: Which options.
        sides: Every option that takes a value may be repeated, once for each side of a comparison.

    Example:
        >>> parser = argparse.ArgumentParser()
        >>> add_arguments(parser, "branch")
        >>> parser.parse_args(["-t", "0", "--stop", "END"]).stop
        ['END']
    """
    for group in GROUPS:
        options = [option for option in at(place) if option.group == group]
        if options:
            box = parser.add_argument_group(group)
            for option in options:
                _add(box, option, sides)


def _add(box: "argparse._ArgumentGroup", option: Option, sides: bool) -> None:
    help = option.described.replace("%", "%%")
    if option.kind == "flag":
        box.add_argument(*option.flags, dest=option.name, action="store_true", help=help)
        return
    if option.kind == "switch":
        on, off = option.flags
        box.add_argument(on, dest=option.name, action="store_true", default=None, help=help)
        box.add_argument(off, dest=option.name, action="store_false", default=None,
                         help="the opposite")  # fmt: skip
        return
    kinds: dict[Kind, Callable[[str], object]] = {"integer": int, "number": float}
    if option.kind == "texts":
        kinds["texts"] = unescaped
    repeated = sides or option.kind in ("texts", "biases")
    bare = option.bare_text or option.bare
    box.add_argument(
        *option.flags, dest=option.name, type=kinds.get(option.kind, str), help=help,
        action="append" if repeated else "store", metavar=option.metavar or None,
        choices=option.choices or None,
        nargs=None if bare is None else "?", const=bare,
    )  # fmt: skip


def values(parsed: Mapping[str, object]) -> dict[str, Value]:
    """What a parsed command line says, as checked keyword options of `LLM.stream`.

    Args:
        parsed: Attributes of the namespace, by name; others than the request's are left alone.

    Raises:
        RequestError: A value is out of bounds; the error names the option as it is typed.

    Example:
        >>> values({"top_k": 5, "logit_bias": ["yes=1", "no=-1"], "quiet": True})
        {'top_k': 5, 'logit_bias': (('yes', 1.0), ('no', -1.0))}
    """
    found: dict[str, Value] = {}
    for name, value in parsed.items():
        option = _BY_NAME.get(name)
        if option is None or option.own or option.name in CONSTRAINTS or value is None:
            continue
        if option.kind == "biases" and isinstance(value, list):
            pairs = [pair for text in value for pair in _biases(option, text, option.flag)]  # type: ignore[union-attr]
            value = tuple(pairs)
        checked = option.check(value, f"{option.flag} {clip(value)}")
        if (checked is not None and checked is not False) or option.kind == "switch":
            found[name] = checked  # type: ignore[assignment]
    return found
