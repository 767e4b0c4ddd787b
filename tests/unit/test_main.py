"""`python -m llm_magic`: what it parses, prints and returns, without a model."""

import builtins
import json
import subprocess
import sys

import nbformat
import pytest

import llm_magic
from llm_magic import __main__ as front
from llm_magic.chat.reply import Reply
from llm_magic.errors import LLMError
from llm_magic.events import Timings, Usage
from llm_magic.providers.scripted import Scripted


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


def test_the_version_is_printed(capsys):
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


def _typing(monkeypatch, *lines):
    left = iter(lines)

    def typed(_prompt=""):
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)


def _playing(monkeypatch, *answers):
    script = Scripted(answers)
    monkeypatch.setattr(llm_magic, "load", lambda *_, **__: llm_magic.LLM(script))
    return script


# TG-69
def test_terminal_chat_keeps_the_conversation_until_end_of_file(monkeypatch, capsys):
    """Every answer ends with a blank line."""
    script = _playing(monkeypatch, "one two", "three")
    _typing(monkeypatch, "hello", "  ", "/etc/passwd is what?")
    assert front.main(["chat", "-s", "Be kind.", "-t", "0"]) == 0
    assert [(m.role, m.content) for m in script.requests[1].prompt] == [
        ("system", "Be kind."),
        ("user", "hello"),
        ("assistant", "one two"),
        ("user", "/etc/passwd is what?"),
    ]
    assert script.requests[0].sampling.max_tokens == 256
    assert script.requests[0].sampling.temperature == 0.0
    assert capsys.readouterr().out == "one two\n\nthree\n\n"


# TG-69
def test_an_interrupted_answer_stays_in_the_terminal_chat(monkeypatch, capsys):
    script = _playing(monkeypatch, ["one ", "two"], "three")
    _typing(monkeypatch, "hello", "again")
    pressed = []

    def press(text="", **options):
        real(text, **options)
        if text == "one " and not pressed:
            pressed.append(text)
            raise KeyboardInterrupt

    real = builtins.print
    monkeypatch.setattr("builtins.print", press)
    assert front.main(["chat"]) == 0
    assert script.requests[1].prompt[1].content == "one "
    assert capsys.readouterr().out == "one \n\nthree\n\n"


def test_commands_of_the_terminal_chat(monkeypatch, capsys, tmp_path):
    script = _playing(monkeypatch, "one", "two", "zwei", "three")
    path = tmp_path / "talk.json"
    _typing(
        monkeypatch, "first", "second", "/retry", f"/save {path}", "/undo", "/reset", "/undo",
        f"/load {path}", "third", "/help",
    )  # fmt: skip
    assert front.main(["chat", "-s", "S"]) == 0
    roles = ["system", *["user", "assistant"] * 2]
    assert [m["role"] for m in json.loads(path.read_text("utf-8"))] == roles
    assert [m.text for m in script.requests[-1].prompt][1:] == [
        "first", "one", "second", "zwei", "third",
    ]  # fmt: skip
    out = capsys.readouterr().out
    for words in ("Removed: second", "Nothing to undo.", "5 messages", "/save FILE"):
        assert words in out


@pytest.mark.parametrize(
    "line", ["/load no-such-file", "/load {wrong}", "/save {folder}", "/retry"]
)
def test_an_error_in_the_terminal_chat_is_one_line(monkeypatch, capsys, tmp_path, line):
    (tmp_path / "wrong").write_text('[{"role": "tool"}]')
    _playing(monkeypatch)
    _typing(monkeypatch, line.format(wrong=tmp_path / "wrong", folder=tmp_path), "/help")
    assert front.main(["chat"]) == 1  # nobody types: a script ends here
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("llm_magic: ")
    assert output.err.count("\n") == 1
    _typing(monkeypatch, line.format(wrong=tmp_path / "wrong", folder=tmp_path), "/help")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    assert front.main(["chat"]) == 0
    assert "/save FILE" in capsys.readouterr().out


def test_control_characters_of_an_answer_do_not_reach_the_terminal(monkeypatch, capsys):
    """F223."""
    _playing(monkeypatch, "a\x1b[2Jb\x1b]0;t\x07c\x1b]52;c;aGk=\x07", "next")
    _typing(monkeypatch, "hello\x1b[2J", "/undo", "again")
    assert front.main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "a␛[2Jb␛]0;t␇c␛]52;c;aGk=␇" in out
    assert "Removed: hello␛[2J" in out


def test_reasoning_in_the_terminal_chat_is_dim_or_left_out(monkeypatch, capsys):
    _playing(monkeypatch, "<think>hm</think>yes", "<think>hm")
    _typing(monkeypatch, "a", "b")
    front.main(["chat"])
    assert capsys.readouterr().out == "yes\n\n(no answer)\n\n"
    _playing(monkeypatch, "<think>hm</think>yes", "<think>hm")
    _typing(monkeypatch, "a", "b")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    front.main(["chat"])
    out = capsys.readouterr().out
    assert out.startswith("\x1b[2mhm\x1b[22m\n\nyes\n\n\x1b[2mhm\x1b[22m")
