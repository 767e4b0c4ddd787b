"""What a person types on our lines: names of the caller, questions in odd places, Tab."""

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from support.shells import cell, command, displays

from llm_magic.errors import InterpolationError
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import extension


def prompts(script: Scripted) -> list[str]:
    return [request.prompt[-1].text for request in script.requests]


# ----------------------------------------------------------------------------- names


def test_a_line_in_a_function_sees_the_function_s_variables(
    shell: InteractiveShell, script: Scripted
) -> None:
    """F201"""
    shell.run_cell(
        "city, land = 'Lisbon', 'Portugal'\n"
        "shell = get_ipython()\n"
        "def ask(city):\n    shell.run_line_magic('llm', 'ask visit {{ city }} in {{ land }}')\n"
        "def cell(city):\n    get_ipython().run_cell_magic('llm', '', 'see {{ city }}')\n"
        "def line(city):\n    %llm ask go to {{ city }}\n"
        "with_one = [ask('Paris'), cell('Rome'), line('Oslo')]"
    ).raise_error()
    with displays(shell):
        shell.run_line_magic("llm", "ask home {{ city }}")
    expected = ["visit Paris in Portugal", "see Rome", "go to Oslo", "home Lisbon"]
    assert prompts(script) == expected


def test_a_name_that_is_nowhere_is_the_only_error(
    shell: InteractiveShell, script: Scripted
) -> None:
    """F201, F268: suggestions are names of the notebook, not IPython's own."""
    shell.user_ns["opened"] = 1
    with pytest.raises(InterpolationError, match=r"no variable 'opene'; did you mean 'opened'\?"):
        cell(shell, "", "{{ opene }}")
    with pytest.raises(InterpolationError) as e:
        cell(shell, "", "{{ opem }}")
    assert "'open'" not in str(e.value)


def test_a_reply_is_inserted_as_its_text(shell: InteractiveShell, script: Scripted) -> None:
    """F202"""
    cell(shell, "-o reply", "Hi")
    cell(shell, "", "Repeat: {{ reply }} {{ _llm }}")
    assert prompts(script)[-1] == "Repeat: An **answer**. An **answer**."


# ----------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    "typed", ["%%llm What is 2+2?", "%%llm What is 2+2?\n\n", "%llm ask What is 2+2?"]
)
def test_a_question_on_the_magic_s_own_line_is_asked(
    shell: InteractiveShell, script: Scripted, typed: str
) -> None:
    """F268"""
    with displays(shell):
        shell.run_cell(typed).raise_error()
    assert prompts(script) == ["What is 2+2?"]


def test_options_before_a_question_on_the_line_hold(
    shell: InteractiveShell, script: Scripted
) -> None:
    with displays(shell):
        shell.run_cell("%%llm -t 0 -n 9 What is it?").raise_error()
    assert script.requests[-1].sampling.temperature == 0
    assert prompts(script) == ["What is it?"]


@pytest.mark.parametrize("line", ["help", "?", "help ask", ""])
def test_help_is_a_command(shell: InteractiveShell, script: Scripted, line: str) -> None:
    """F268"""
    assert command(shell, line)["text/plain"]


def test_fetch_is_a_command(
    shell: InteractiveShell, script: Scripted, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F268"""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF" * 500_000)
    assert "it loads offline" in command(shell, f"fetch {file}")["text/plain"]


def test_quotes_around_all_of_a_text_are_not_sent(
    shell: InteractiveShell, script: Scripted
) -> None:
    """F274"""
    command(shell, 'compare "Why is it?"')
    with displays(shell):
        shell.run_line_magic("llm", "ask 'Who?'")
        shell.run_line_magic("llm", 'ask "One" or "two"?')
    assert prompts(script) == ["Why is it?", "Why is it?", "Who?", '"One" or "two"?']


# ----------------------------------------------------------------------------- reload, Tab


def test_conversations_survive_a_reload(shell: InteractiveShell, script: Scripted) -> None:
    """F211"""
    cell(shell, "--chat trip", "Hi")
    extension.load_ipython_extension(shell)
    cell(shell, "--chat trip", "And then?")
    said = [m.text for m in script.requests[-1].prompt if m.role == "user"]
    assert said == ["Hi", "And then?"]


def completions(shell: InteractiveShell, text: str) -> list[str]:
    with provisionalcompleter():
        found = shell.Completer.completions(text, len(text))
        return [text[: c.start] + c.text for c in found]


def test_tab_offers_our_own_words_and_no_others(shell: InteractiveShell, script: Scripted) -> None:
    """F261"""
    shell.user_ns["__secret"] = 1
    offered = completions(shell, "%%llm --")
    assert "%%llm --temperature" in offered
    assert all(word.startswith("%%llm --") and "__" not in word for word in offered)
    assert completions(shell, "%%llm --temp") == ["%%llm --temperature"]
    loads = completions(shell, "%llm load --")
    assert loads
    assert not [word for word in loads if "abs" in word]
    assert "%llm load smollm2" in completions(shell, "%llm load smo")
    # Other lines, and the text of a cell, are completed by others.
    assert completions(shell, "prin")
    assert not [w for w in completions(shell, "%%llm\nWhat --te") if "--temperature" in w]
