"""The reference of the magics (docs/reference/magics.md), made from their tables.

Options come from the table `OPTIONS`, commands from `COMMANDS`, settings from the traits of the
magics class. docs/tree.py writes the page.
"""

from llm_magic.ui.magics.cell import LLMMagics
from llm_magic.ui.magics.commands import COMMANDS
from llm_magic.ui.options import GROUPS, OPTIONS, Option

WHERE = (
    "Where an option works: on a cell, in `%llm compare`, in a chat (`%llm chat`, and the settings "
    "of the widget), for a branch of the live view."
)

HEAD = """# Magics

Made from the tables of the magics by `docs/tree.py`. Inside a notebook `%%llm?` shows the options,
and `--help` works behind every command.

`%load_ext llm_magic` makes both magics available: `%%llm [options]` answers the text of its cell,
`%llm COMMAND` runs one of the commands below.
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([HEAD, *options(), *commands(), *settings()])


def options() -> list[str]:
    lines = ["## Options of a cell", "", WHERE, ""]
    for group in GROUPS:
        rows = [_row(option) for option in OPTIONS if option.group == group]
        lines += [f"### {group}", "", "| option | meaning | where |", "| --- | --- | --- |"]
        lines += [*rows, ""]
    return lines


def _row(option: Option) -> str:
    names = ", ".join(f"`{_typed(option, flag)}`" for flag in option.flags)
    return f"| {names} | {_cell(option.described)} | {', '.join(option.at)} |"


def _typed(option: Option, flag: str) -> str:
    """The option as it is typed, with a word for its value."""
    if option.kind in ("flag", "switch"):
        return flag
    word = option.metavar or "|".join(option.choices) or option.name.upper()
    text = f"{flag} [{word}]" if option.bare is not None else f"{flag} {word}"
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
