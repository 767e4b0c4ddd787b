"""The reference of the magics (docs/reference/magics.md), made from what the magics parse.

Options come from the parser of `%%llm`, commands from `COMMANDS`, settings from the traits of the
magics class. docs/tree.py writes the page.
"""

import argparse

from llm_magic.ui.magics.cell import LLMMagics
from llm_magic.ui.magics.commands import COMMANDS

HEAD = """# Magics

Made from what the magics parse, by `docs/tree.py`. Inside a notebook `%%llm?` shows the options,
and `--help` works behind every command.

`%load_ext llm_magic` makes both magics available: `%%llm [options]` answers the text of its cell,
`%llm COMMAND` runs one of the commands below.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([HEAD, *options(), *commands(), *settings()])


def options() -> list[str]:
    lines = ["## Options of a cell", ""]
    groups: dict[str, list[argparse.Action]] = {}
    for group in LLMMagics.cell.parser._action_groups:
        shown = [a for a in group._group_actions if a.option_strings and a.dest != "help"]
        if shown:
            groups.setdefault(str(group.title), []).extend(shown)
    for title, actions in groups.items():
        lines += [f"### {title}", "", *_table(actions), ""]
    return lines


def _table(actions: list[argparse.Action]) -> list[str]:
    rows = []
    for action in actions:
        names = ", ".join(f"`{_typed(action, name)}`" for name in action.option_strings)
        text = (action.help or "").replace("%%", "%")
        if action.choices:
            text += f" ({', '.join(map(str, action.choices))})"
        rows.append(f"| {names} | {_cell(text)} |")
    return ["| option | meaning |", "| --- | --- |", *rows]


def _typed(action: argparse.Action, name: str) -> str:
    """The option as it is typed, with a word for its value."""
    if action.nargs == 0:
        return name
    word = action.metavar or action.dest.upper()
    text = f"{name} [{word}]" if action.nargs == "?" else f"{name} {word}"
    return text.replace("|", "\\|")


def commands() -> list[str]:
    rows = []
    for name, command in COMMANDS.items():
        usage = f"%llm {name} {command.usage}".strip().replace("|", "\\|").replace("%%%%", "%%")
        rows.append(f"| `{usage}` | {_cell(command.what)} |")
    return ["## Commands", "", "| command | what it does |", "| --- | --- |", *rows, ""]


def settings() -> list[str]:
    rows = []
    for name, trait in sorted(LLMMagics.class_own_traits(config=True).items()):
        default = trait.default_value_repr().replace("|", "\\|")
        rows.append(f"| `{name}` | `{default}` | {_cell(trait.help)} |")
    return [
        *("## Settings of a notebook", ""),
        *("`%config LLMMagics.temperature = 0` sets one; `%config LLMMagics` lists them.", ""),
        *("| setting | default | meaning |", "| --- | --- | --- |", *rows, ""),
    ]


def _cell(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text[:1].upper() + text[1:]
