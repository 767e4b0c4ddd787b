"""Generated parts of the documentation.

The annotated tree of docs/how-it-works.md (the first sentence of every file, in reading order), the
list of docs/decisions/index.md, docs/reference/magics.md (magics.py) and docs/reference/models.md
(architectures.py).

.venv/bin/python docs/tree.py            check, exit 1 if one of them differs
.venv/bin/python docs/tree.py --write    write them
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

import architectures
import magics

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference" / "magics.md"
PAGE = ROOT / "docs" / "how-it-works.md"
DECISIONS = ROOT / "docs" / "decisions"
BLOCK = re.compile(r"```text\n(llm_magic/\n.*?)```", re.DOTALL)
KINDS = {".py", ".c", ".h", ".js", ".css"}
WIDTH = 24  # column of the annotations

# What to read first, by folder; what is not named here follows in alphabetical order.
ORDER = {
    "": "events.py errors.py utf8.py prefix.py columns.py provider.py models engine chat providers "
    "llm.py hub.py branching.py bench __main__.py ui",
    "bench": "report.py subjects.py worker.py measure.py notebook.py random_model.py command.py",
    "models": "table.py cache.py wheels.py web.py",
    "engine": "gguf.py quants.py tokenizer blocks.py arch.py rope.py "
    "arch_rules.py arch_config.py arch_rope.py arch_keys.py forward.py device.py heap.py "
    "gate.py portable kernels serving load.py",
    "engine/tokenizer": "tokenizer.py vocabulary.py pretokenizers.py",
    "engine/portable": "forward.py graph.py programs.py",
    "engine/kernels": "targets.py layout.py memory.py team.py forward.py bandwidth.py c",
    "engine/kernels/c": "entry.c step.h weights.h acts.h matmul.h attention.h summary.h pack.h "
    "vec.h",
    "engine/serving": "scheduler.py generation.py slots.py sampling.py speculation.py",
    "chat": "parsing schema.py json_values.py typed_values.py prompts constraints tools saved.py "
    "reply.py stream.py turn.py exchanges.py conversation.py",
    "chat/prompts": "template.py sandbox.py entries.py adapt.py",
    "chat/parsing": "syntax.py router.py markup",
    "chat/constraints": "compiler.py guides.py gbnf.py tool_calls.py narrow",
    "chat/tools": "definition.py execution.py",
    "ui": "views widgets reply_methods.py magics",
    "ui/views": "html.py tokens.py logprobs.py mime.py",
    "ui/widgets": "shared chat explorer",
    "ui/widgets/chat": "widget.py controller.py request.py thread.py chat.js turn.js",
    "ui/widgets/explorer": "widget.py tree.py explorer.js",
    "ui/magics": "extension.py cell.py options.py request.py",
}
# Files whose first lines are not about them.
SAID = {
    "c": "freestanding C, one text per kind of CPU: a single function is the whole forward pass",
    "chat.css": "how a chat looks, in the colours of the page around it",
}
REST = """
notebooks/                tutorials with their outputs; every test run executes and compares them
tests/                    see tests/README.md
  acceptance.md           what must hold, and the test that proves it
docs/                     the documentation, and the scripts that make its generated parts
binder/                   what a Binder launch installs
dev, .ci/run              every job of this repository; what a clean machine runs
"""


def tree() -> str:
    lines = ["llm_magic/", *_lines(ROOT / "llm_magic", "", 1, _tracked())]
    return "\n".join(lines) + "\n" + REST.lstrip("\n")


def _tracked() -> set[Path] | None:
    """What git knows, so that a file under work changes nothing; None where there is no git."""
    command = ["git", "ls-files", "-z", "llm_magic"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return None if ran.returncode else {ROOT / name for name in ran.stdout.split("\0") if name}


def _lines(folder: Path, name: str, depth: int, tracked: set[Path] | None = None) -> Iterator[str]:
    order = ORDER.get(name, "").split()
    if depth == 1:
        yield _line("__init__.py", _sentence(folder / "__init__.py"), depth)
    found = [path for path in folder.iterdir() if _counts(path, tracked)]
    for path in sorted(found, key=lambda p: _rank(p.name, order)):
        if path.is_dir():
            yield _line(path.name + "/", _sentence(path / "__init__.py"), depth)
            yield from _lines(path, f"{name}/{path.name}".lstrip("/"), depth + 1, tracked)
        else:
            yield _line(path.name, _sentence(path), depth)


def _counts(path: Path, tracked: set[Path] | None) -> bool:
    if path.is_dir():
        return any(_counts(inner, tracked) for inner in path.iterdir())
    known = tracked is None or path in tracked
    return known and path.suffix in KINDS and path.name != "__init__.py"


def _rank(name: str, order: list[str]) -> tuple[int, str]:
    return (order.index(name) if name in order else len(order), name)


def _line(name: str, said: str, depth: int) -> str:
    said = SAID.get(name.rstrip("/"), said)
    line = f"{'  ' * depth}{name}".ljust(WIDTH) + "  " + shorten(said, 100, placeholder=" …")
    return line.rstrip()


def _sentence(path: Path) -> str:
    """The first sentence of a module's docstring, or of a source file's first comment."""
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comment = re.search(r"/\*+(.*?)\*/|((?:^//[^\n]*\n)+)", text, re.DOTALL | re.MULTILINE)
        said = re.sub(r"^\s*(?:\*|//)", "", comment[1] or comment[2], flags=re.M) if comment else ""
    said = " ".join(said.strip().split("\n\n")[0].split())
    return re.split(r"(?<=\w)\.\s", said, maxsplit=1)[0].rstrip(".")


def with_tree(text: str) -> str:
    """The page with the tree of the files in its block."""
    block = BLOCK.search(text)
    if block is None:
        raise SystemExit(f"{PAGE.name} has no tree: a ```text block that begins with llm_magic/")
    return text[: block.start(1)] + tree() + text[block.end(1) :]


def decisions() -> str:
    """The index of the decisions: the title of every page, in the order of their titles."""
    pages = [path for path in DECISIONS.glob("*.md") if path.name != "index.md"]
    titles = sorted((path.read_text(encoding="utf-8").split("\n")[0][2:], path) for path in pages)
    lines = [f"- [{title}]({path.name})" for title, path in titles]
    head = "# Decisions\n\nWhat was decided, why, and what follows from it: one page each.\n\n"
    return head + "\n".join(lines) + "\n"


def generated() -> dict[Path, str]:
    """Every page that is generated, whole or in part, and its right text."""
    return {
        PAGE: with_tree(PAGE.read_text(encoding="utf-8")),
        DECISIONS / "index.md": decisions(),
        REFERENCE: magics.page(),
        REFERENCE.with_name("models.md"): architectures.page(),
    }


def main(arguments: list[str]) -> int:
    wrong = 0
    for path, text in generated().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--write" in arguments:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"docs/{path.name} is not that of the files (python docs/tree.py --write)")
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
