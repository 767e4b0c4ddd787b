"""Parses the lines of magics: words, options with their values, hints at misspellings."""

import argparse
import difflib
import keyword
import re
import shlex
from typing import cast

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

_OPTION = re.compile(r"\s*(-\S*)(?:\s|$)")
_VALUE = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|\S+)""")


def words(line: str) -> list[str]:
    """The line as a shell would split it. UsageError for a quote left open."""
    try:
        return shlex.split(line)
    except ValueError as e:
        raise UsageError(f"{str(e).lower()} in: {line.strip()}") from None


def is_name(text: str) -> bool:
    """Can this be bound in a notebook?"""
    return text.isidentifier() and not keyword.iskeyword(text)


def unquoted(text: str) -> str:
    """The text without a pair of quotes around all of it.

    >>> unquoted('"Why is the sky blue?"')
    'Why is the sky blue?'
    >>> unquoted('"a" or "b"')
    '"a" or "b"'
    """
    inner = text.strip()[1:-1]
    quoted = _VALUE.fullmatch(text.rstrip()) and text.strip()[0] in "\"'" and len(text.strip()) > 1
    return inner if quoted else text


def escapes(text: str) -> str:
    """A stop string as typed: \\n and \\t mean a line end and a tab."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def parse(parser: MagicArgumentParser, line: str, magic: str) -> argparse.Namespace:
    """The options of a line. UsageError names near spellings. magic: as typed, "%%llm"."""
    try:
        return cast(argparse.Namespace, parser.parse_args(words(line)))
    except UsageError as e:
        raise UsageError(_with_hint(str(e), line, parser, magic)) from None


def split(parser: MagicArgumentParser, line: str) -> tuple[str, str]:
    """Options at the start of a line, and the text after them, untouched.

    Behind a text in quotes there may be options too, as people write them: `"Why?" -n 4`.
    """
    known = parser._option_string_actions
    at = 0
    while (word := _OPTION.match(line, at)) is not None:
        if word[1] == "--":
            return line[:at], line[word.end() :].lstrip()
        at = word.end()
        action = known.get(word[1].partition("=")[0])
        if action is None or action.nargs == 0 or "=" in word[1]:
            continue
        value = _VALUE.match(line, at)
        if value is not None and (action.nargs != "?" or value[1].isdigit()):
            at = value.end()
    text = line[at:].lstrip()
    quoted = _VALUE.match(text) if text[:1] in ("'", '"') else None
    if quoted is not None and (after := text[quoted.end() :].strip()).startswith("-"):
        more, left = split(parser, after)
        if not left:
            return f"{line[:at]} {more}", quoted[1]
    return line[:at], text


def _with_hint(message: str, line: str, parser: MagicArgumentParser, magic: str) -> str:
    """argparse's message, and what was probably meant."""
    known = parser._option_string_actions
    helps = f"{magic.split()[0]}?"  # IPython takes `%llm load?` for a question about its own %load
    if {"-h", "--help"} & {*words(line)}:
        return f"{helps} lists the options of {magic}"
    for word in words(line):
        name = word.partition("=")[0]
        if name.startswith("-") and name not in known and name in message:
            near = difflib.get_close_matches(name, known, 2, 0.6)
            hint = f"; did you mean {' or '.join(near)}?" if near else "."
            return f"{magic}: there is no option {name}{hint} {helps} lists them"
        if not name.startswith("-") and message.endswith(f"unrecognized arguments: {word}"):
            if "--model" not in known:
                return f"{magic}: unexpected argument {word!r}"
            text = "A prompt goes below this line. " if magic.startswith("%%") else ""
            return f"{magic}: unexpected argument {word!r}. {text}To choose a model use -m {word}"
    if "unrecognized arguments: " in message:
        rest = message.partition(": ")[2]
        text = "A prompt goes below this line. " if magic.startswith("%%") else ""
        return f"{magic}: unexpected arguments {rest!r}. {text}Values with spaces need quotes"
    return f"{magic}: {message} ({helps} lists the options)"
