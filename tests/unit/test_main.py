"""`python -m llm_magic`: what it parses, prints and returns, without a model."""

import json
import subprocess
import sys

import nbformat
import pytest

import llm_magic
from llm_magic import __main__ as front
from llm_magic.chat.reply import Reply
from llm_magic.errors import LLMError
from llm_magic.events import Delta, Finish, Timings, Usage


def _notebook(*bundles: dict) -> nbformat.NotebookNode:
    v4 = nbformat.v4
    cells = [
        v4.new_code_cell(f"%%llm\nquestion {i}", outputs=[v4.new_output("display_data", data=data)])
        for i, data in enumerate(bundles)
    ]
    return v4.new_notebook(cells=cells)


def test_help_names_every_command_and_loads_nothing_heavy():
    code = (
        "import sys; from llm_magic.__main__ import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'tinygrad', 'numpy', 'nbclient', 'IPython'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("demo", "fetch", "models", "bench", "chat"):
        assert command in ran.stdout
    assert ran.stdout.splitlines()[-1] == "[]"


def test_version(capsys):
    with pytest.raises(SystemExit):
        front.main(["--version"])
    assert capsys.readouterr().out.split() == ["llm_magic", llm_magic.__version__]


def test_errors_of_the_package_are_one_line(monkeypatch, capsys):
    def fail(_options):
        raise LLMError("no such thing")

    monkeypatch.setattr(front, "_models", fail)
    assert front.main(["models"]) == 1
    assert capsys.readouterr().err == "llm_magic: no such thing\n"


def test_bench_gets_its_own_arguments(monkeypatch):
    class Bench:
        @staticmethod
        def main(words):
            return 7 if words == ["--json", "smollm2"] else 0

    monkeypatch.setitem(sys.modules, "llm_magic.bench", Bench)
    assert front.main(["bench", "--json", "smollm2"]) == 7


def test_demo_shows_the_first_reply(capsys):
    reply = Reply(
        "Paris.",
        model="toy",
        usage=Usage(prompt=9, completion=3),
        timings=Timings(prefill_tps=321.4, decode_tps=87.6),
    )
    notebook = _notebook({"text/plain": "x"}, {front.REPLY_MIME: reply.to_dict()})
    ((prompt, found),) = front._replies(notebook)
    front._show(prompt, found)
    said = capsys.readouterr().out
    assert "question 1" in said
    assert "    Paris." in said
    assert "toy: 3 tokens at 88 tok/s, prompt 9 tokens at 321 tok/s" in said


@pytest.mark.parametrize("module", ["nbformat", "nbclient.exceptions"])
def test_demo_without_what_executes_notebooks_says_what_to_install(monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    assert front.main(["demo"]) == 1
    assert capsys.readouterr().err.endswith(f"needs {module}: pip install 'llm-magic[lab]'\n")


def test_demo_saves_the_notebook_and_fails_when_a_cell_does(tmp_path, monkeypatch, capsys):
    from nbclient.exceptions import CellExecutionError

    def execute(notebook, _folder):
        notebook.cells[0].outputs = []
        raise CellExecutionError("", "ValueError", "broken")

    source = tmp_path / "some.ipynb"
    nbformat.write(_notebook({"text/plain": "x"}), source)
    monkeypatch.setattr(front, "_fetch", lambda _options: 0)
    monkeypatch.setattr(front, "_execute", execute)
    assert front.main(["demo", str(source), "--out", str(tmp_path / "out")]) == 1
    assert json.loads((tmp_path / "out" / "some.ipynb").read_text())["cells"][0]["outputs"] == []
    assert "ValueError: broken" in capsys.readouterr().err


class _Stream:
    """Three events; the consumer is interrupted at the second."""

    def __init__(self, interrupt):
        self.interrupt = interrupt
        self.cancelled = []
        self.left = [
            Delta("answer", "one "),
            Delta("answer", "two"),
            Finish("stop", Usage(), Timings()),
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __iter__(self):
        return self

    def __next__(self):
        if self.interrupt and len(self.left) == 2:
            self.interrupt = False
            raise KeyboardInterrupt
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def cancel(self, reason):
        self.cancelled.append(reason)
        self.left = self.left[-1:]


@pytest.mark.parametrize("interrupt", [False, True])
def test_terminal_chat_keeps_the_conversation_until_end_of_file(monkeypatch, capsys, interrupt):
    """TG-69: every answer ends with a blank line; an interrupted one stays in the conversation."""
    seen, lines = [], iter(["hello", "  ", "again"])

    class Fake:
        def stream(self, messages, **settings):
            seen.append(([(m.role, m.content) for m in messages], settings))
            return _Stream(interrupt)

    def typed(_prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(llm_magic, "load", lambda *_, **__: Fake())
    assert front.main(["chat", "-s", "Be kind.", "-t", "0"]) == 0
    answer = "one " if interrupt else "one two"
    assert seen[1][0] == [
        ("system", "Be kind."),
        ("user", "hello"),
        ("assistant", answer),
        ("user", "again"),
    ]
    assert seen[0][1] == {"max_tokens": 256, "temperature": 0.0}
    assert capsys.readouterr().out == f"{answer}\n\n" * 2
