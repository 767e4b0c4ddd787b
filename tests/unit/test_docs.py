"""What README and docs claim: links, commands, file names, the generated parts, their length."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import llm_magic
from llm_magic.chat.constraints.compiler import GRAMMARS
from llm_magic.chat.constraints.kinds import KINDS
from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.engine.arch import ARCHITECTURES
from llm_magic.ui.magics.commands import COMMANDS

TABLES = (COMMANDS, KINDS, GRAMMARS, SYNTAXES, ARCHITECTURES)
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / name for name in ("llms.txt", "tests/README.md", "tests/fuzz/README.md")),
    *sorted(DOCS.rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files_and_headings(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(FENCE.sub("", text)):
        path = page.parent / target
        assert path.exists(), target
        if anchor:
            assert anchor in _anchors(path.read_text(encoding="utf-8")), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_named_files_and_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:llm_magic|tests|docs|notebooks)/[\w./]+\w)`", text)
    # A page may name an example that a reader would add; it says so with the word `my`.
    assert not [n for n in named if "my" not in n and not (ROOT / n).exists()]
    jobs = (ROOT / "dev").read_text()
    for job in re.findall(r"\./dev (\w+)", text):
        assert re.search(rf"^{job}\b.*\)", jobs, re.MULTILINE), job


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    assert len(text.split()) <= 1200


def test_every_picture_is_shown_and_every_shown_picture_exists():
    shown = set()
    for page in PAGES:
        sources = re.findall(r' (?:src|srcset)="([^"]+)"', page.read_text(encoding="utf-8"))
        shown |= {(page.parent / source).resolve() for source in sources}
    assert shown == {path.resolve() for path in (DOCS / "images").iterdir()}


def test_the_changelog_has_this_version_in_the_order_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(llm_magic.__version__)}\]", text, re.MULTILINE)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)", text, re.MULTILINE)) <= kinds
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        titles = re.findall(r"^### (.*)", section, re.MULTILINE)
        assert len(titles) == len(set(titles)), titles
    assert f"version: {llm_magic.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_every_page_is_in_the_navigation_or_a_decision():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    listed = set(re.findall(r"[\w/-]+\.md", config))
    assert not {page for page in pages if not page.startswith("decisions/")} - listed
    notebooks = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"notebooks/([\w-]+\.ipynb)", config)) == notebooks


def test_a_decision_says_context_decision_and_consequences():
    for path in (DOCS / "decisions").glob("*.md"):
        if path.name != "index.md":
            text = path.read_text(encoding="utf-8").lower()
            assert re.search(r"context|problem", text), path.name
            assert "decision" in text, path.name


def _texts_of_the_package() -> str:
    """Every string of the package; of an f-string the parts between its values."""
    found = []
    for path in (ROOT / "llm_magic").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    scripts = (path.read_text(encoding="utf-8") for path in (ROOT / "llm_magic").rglob("*.js"))
    return "\0".join([*found, *scripts])


def test_messages_of_the_troubleshooting_page_are_those_of_the_package():
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.*)`$", text, re.MULTILINE)
    assert len(messages) >= 15
    said = _texts_of_the_package()
    texts = [re.sub(r"^\w+(Error|Warning): ", "", message) for message in messages]
    parts = [part.strip() for text in texts for part in text.split("…")]
    assert not [part for part in parts if part not in said]


# F272
def test_the_docs_say_why_a_prompt_is_coloured_as_python():
    """No front end lets a cell magic choose the language of its cell without an extension."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^### Python keywords are coloured.*\n\n(.*)", text, re.MULTILINE)
    assert "highlight" in section


def _examples() -> dict[str, str]:
    """Section of docs/adding.md -> its Python blocks as one program."""
    text = (DOCS / "adding.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    blocks = {s.split("\n")[0]: re.findall(r"^```python\n(.*?)^```", s, re.DOTALL | re.MULTILINE)
              for s in sections}  # fmt: skip
    return {title: "\n".join(found) for title, found in blocks.items() if found}


@pytest.mark.parametrize("title", _examples())
def test_examples_of_adding_things_run(title):
    before = [set(table) for table in TABLES]
    try:
        exec(
            compile(_examples()[title], f"docs/adding.md, {title}", "exec"), {"__name__": "example"}
        )
    finally:
        for table, keys in zip(TABLES, before, strict=True):
            for key in set(table) - keys:
                del table[key]


# ----------------------------------------------------------------------------- generated parts


def test_the_tree_the_decisions_and_the_reference_are_those_of_the_files():
    ran = subprocess.run([sys.executable, DOCS / "tree.py"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_new_file_or_a_new_sentence_changes_the_tree(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    tree = importlib.import_module("tree")
    package = tmp_path / "llm_magic"
    (package / "engine" / "c").mkdir(parents=True)
    (package / "__init__.py").write_text('"""The package. More."""')
    (package / "b.py").write_text('"""Second:\nin words.\n\nMore."""')
    (package / "events.py").write_text('"""First."""')
    (package / "engine" / "__init__.py").write_text('"""Runs."""')
    (package / "engine" / "x.c").write_text("/* What x\n * does. And more. */\nint x;")
    lines = [" ".join(line.split()) for line in tree._lines(package, "", 1)]
    assert lines == [
        "__init__.py The package",
        "events.py First",
        "engine/ Runs",
        "x.c What x does",
        "b.py Second: in words",
    ]


# ----------------------------------------------------------------------------- docstrings


def test_twenty_public_docstrings_have_an_example():
    count = 0
    for path in (ROOT / "llm_magic").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
                count += ">>> " in (ast.get_docstring(node) or "")
    assert count >= 20
