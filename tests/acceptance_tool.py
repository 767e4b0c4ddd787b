"""Checks acceptance.md against the tests: which test proves which row.

The ids are in data/ids.txt. The source of the tests is parsed, never imported. A test claims an id
in a comment or docstring inside the function, in a comment right above it, in a marker's argument
(`@pytest.mark.proves("F240")`), or in its name. A comment elsewhere at module level, for example in
a table of inputs, claims the id for the whole file.

    python tests/acceptance_tool.py            check, exit 1 on a fault
    python tests/acceptance_tool.py --write    fill the column "tests", keep notes typed by hand
    python tests/acceptance_tool.py --open     list rows that nothing proves yet
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "acceptance.md"
IDS = TESTS / "data" / "ids.txt"
SHOWN = 3  # nodes listed per row: a proof to look at, not a census

IN_TEXT = re.compile(r"\b(?:(?:LAI|LC|TG|LB)-\d+[a-z]?|(?:B\d|F[1-7])\d\d)\b")
IN_NAME = re.compile(r"(?<=_)(?:(LAI|LC|TG|LB)_?(\d+[a-z]?)|((?:B\d|F[1-7])\d\d))(?=_|$)")
DONE_LINE = re.compile(r"^Issues done:(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `note`: `open`, `later`, `n/a: reason` or free text beside a proof."""

    id: str
    issue: str
    about: str
    tests: tuple[str, ...]
    note: str

    def line(self) -> str:
        tests = "<br>".join(f"`{node}`" for node in self.tests)
        return "| " + " | ".join((self.id, self.issue, self.about, tests, self.note)) + " |"


def known_ids() -> list[str]:
    return IDS.read_text(encoding="utf-8").split()


# ----------------------------------------------------------------------------- claims in tests


def claims(root: Path = TESTS) -> dict[str, list[str]]:
    """id -> test nodes that claim it, in the order of files and lines."""
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("test_*.py")):
        file = path.relative_to(root.parent).as_posix()
        for id_, node in _claims_in(path.read_text(encoding="utf-8"), file):
            nodes = found.setdefault(id_, [])
            if node not in nodes:
                nodes.append(node)
    return found


def _claims_in(source: str, file: str) -> Iterator[tuple[str, str]]:
    spans = [
        (first, last, f"{file}::{name}", doc)
        for first, last, name, doc in _tests(ast.parse(source), source.splitlines())
    ]
    for _, _, node, doc in spans:
        name = node.rpartition("::")[2]
        for family, number, case in IN_NAME.findall(name):
            yield case or f"{family}-{number}", node
        for id_ in IN_TEXT.findall(doc):
            yield id_, node
    for line, text in _comments(source):
        node = next((n for first, last, n, _ in spans if first <= line <= last), file)
        for id_ in IN_TEXT.findall(text):
            yield id_, node


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _tests(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """(first line, last line, name, docstring and markers) of each test. The span of lines includes
    the comments right above."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            for inner in node.body:
                if _is_test(inner):
                    yield _span(inner, f"{node.name}::{inner.name}", lines)
        elif _is_test(node):
            yield _span(node, node.name, lines)


def _is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


def _span(
    node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, lines: list[str]
) -> tuple[int, int, str, str]:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    marked = [
        str(argument.value)
        for mark in node.decorator_list
        if isinstance(mark, ast.Call) and getattr(mark.func, "attr", "") == "proves"
        for argument in mark.args
        if isinstance(argument, ast.Constant)
    ]
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    text = " ".join([ast.get_docstring(node) or "", *marked])
    return first, node.end_lineno or node.lineno, name, text


# ----------------------------------------------------------------------------- the table


def rows(text: str) -> list[Row]:
    """The table's rows. Raises ValueError with the line for one that has not five cells."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("| ") or line.startswith(("| id |", "| --")):
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 5:
            raise ValueError(f"{TABLE.name}:{number}: {len(cells)} cells, not 5")
        id_, issue, about, tests, note = cells
        nodes = tuple(re.findall(r"`([^`]+)`", tests))
        found.append(Row(id_, issue, about, nodes, note))
    return found


def faults(text: str, claimed: dict[str, list[str]]) -> list[str]:
    """What is wrong with the table, one sentence each; empty when it holds."""
    table = rows(text)
    known, listed = known_ids(), [row.id for row in table]
    done = set(match[1].split()) if (match := DONE_LINE.search(text)) else set()
    wrong = [f"{id_}: has no row" for id_ in known if id_ not in listed]
    wrong += [f"{id_}: listed {listed.count(id_)} times" for id_ in known if listed.count(id_) > 1]
    wrong += [f"{id_}: not an id of ids.txt" for id_ in listed if id_ not in known]
    wrong += [
        f"{id_}: claimed by {n[0]}, unknown" for id_, n in claimed.items() if id_ not in known
    ]
    for row in table:
        wrong += _row_faults(row, claimed.get(row.id, []), done)
    return wrong


def _row_faults(row: Row, nodes: list[str], done: set[str]) -> list[str]:
    wrong = [
        f"{row.id}: {n} does not exist or does not claim it" for n in row.tests if n not in nodes
    ]
    if nodes and not row.tests:
        wrong.append(f"{row.id}: proved by {nodes[0]}, but the table does not say so (--write)")
    if not row.tests and not nodes and not re.match(r"open$|later\b|n/a: \S", row.note):
        wrong.append(f"{row.id}: neither a test nor a note (open, later, n/a: reason)")
    if row.tests and row.note == "open":
        wrong.append(f"{row.id}: has a test and is still noted as open (--write)")
    if row.issue in done and row.note == "open":
        wrong.append(f"{row.id}: open, though issue {row.issue} is done")
    return wrong


def written(text: str, claimed: dict[str, list[str]]) -> str:
    """The table with its column "tests" filled from the tests; other lines and notes stay."""
    fresh = {row.id: _filled(row, claimed.get(row.id, [])).line() for row in rows(text)}
    lines = [fresh.get(_id_of(line), line) for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _filled(row: Row, nodes: list[str]) -> Row:
    kept = [node for node in row.tests if node in nodes]
    tests = tuple(dict.fromkeys([*kept, *nodes]))[:SHOWN]
    if tests:
        return replace(row, tests=tests, note="" if row.note == "open" else row.note)
    return replace(row, tests=(), note=row.note or "open")


def _id_of(line: str) -> str:
    return line.split("|")[1].strip() if line.startswith("| ") and line.count("|") > 1 else ""


def main(arguments: list[str]) -> int:
    text, claimed = TABLE.read_text(encoding="utf-8"), claims()
    if "--write" in arguments:
        text = written(text, claimed)
        TABLE.write_text(text, encoding="utf-8")
    if "--open" in arguments:
        print("\n".join(row.line() for row in rows(text) if not row.tests))
    table = rows(text)
    proved = sum(bool(row.tests) for row in table)
    excused = sum(not row.tests and row.note.startswith("n/a:") for row in table)
    wrong = faults(text, claimed)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    rest = len(table) - proved - excused
    counts = f"{proved} proved, {excused} not applicable, {rest} open"
    print(f"{len(table)} rows: {counts}; {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
