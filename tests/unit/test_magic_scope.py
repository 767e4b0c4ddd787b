"""Which variables a magic sees, and what is said about braces that are not replaced."""

import types

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from llm_magic.errors import InterpolationError
from llm_magic.providers.scripted import Scripted

from ..support import shells


def _asked(script: Scripted) -> str:
    prompt = script.requests[-1].prompt
    return prompt if isinstance(prompt, str) else prompt[-1].text


# F201
@pytest.mark.parametrize(
    "call",
    [
        "run_line_magic('llm', 'ask visit {{ city }}')",
        "run_cell_magic('llm', '', 'visit {{ city }}')",
    ],
)
def test_variables_of_the_calling_function_come_first(
    shell: InteractiveShell, script: Scripted, call: str
) -> None:
    shell.run_cell(f"city = 'Lisbon'\ndef f(city):\n    get_ipython().{call}\nf('Paris')")
    assert _asked(script) == "visit Paris"
    shell.run_cell(f"def g():\n    get_ipython().{call}\ng()")
    assert _asked(script) == "visit Lisbon"


def test_tools_of_the_calling_function_are_found(shell: InteractiveShell, script: Scripted) -> None:
    code = "def f():\n    def local(x: int) -> int: 'Add.'; return x\n"
    call = "    get_ipython().run_cell_magic('llm', '--tools local', 'go')\nf()"
    assert shell.run_cell(code + call).success
    assert script.requests[-1].tools[0].name == "local"


# F210
@pytest.mark.parametrize(
    ("line", "where"), [("-s '{{ nope }}'", "--system"), ("--prefill '{{ nope }}'", "--prefill")]
)
def test_an_unknown_name_says_in_which_option_it_stands(
    shell: InteractiveShell, script: Scripted, line: str, where: str
) -> None:
    with pytest.raises(InterpolationError, match=f"in {where}:"):
        shell.run_cell_magic("llm", line, "Hi")


# F268
def test_suggestions_are_names_of_the_notebook(shell: InteractiveShell, script: Scripted) -> None:
    shell.user_ns["opera"] = "Aida"
    with pytest.raises(InterpolationError) as caught:
        shell.run_cell_magic("llm", "", "{{ opem }}")
    assert "'open'" not in str(caught.value)
    assert "'opera'" in str(caught.value)


# F211
def test_a_reload_keeps_conversations(shell: InteractiveShell, script: Scripted) -> None:
    shell.run_cell_magic("llm", "--chat one", "First")
    shell.extension_manager.reload_extension("llm_magic")
    shell.run_cell_magic("llm", "--chat one", "Second")
    assert [m.text for m in script.requests[-1].prompt if m.role == "user"] == ["First", "Second"]


# F263
def test_braces_without_spaces_are_sent_with_a_warning(
    shell: InteractiveShell, script: Scripted
) -> None:
    shell.user_ns["city"] = "Lisbon"
    first = shells.cell(shell, "", "Visit {{city}}")[0]
    assert _asked(script) == "Visit {{city}}"
    assert "{{city}}" in first["text/plain"]
    assert "{{ city }}" in first["text/plain"]
    assert "Warning" not in shells.cell(shell, "", "Visit {{nowhere}}")[0]["text/plain"]
    assert "Warning" not in shells.cell(shell, "--raw", "Visit {{city}}")[0]["text/plain"]


def test_a_setting_replaces_braces_without_spaces(
    shell: InteractiveShell, script: Scripted
) -> None:
    shell.user_ns.update(city="{{land}}", land="Portugal")
    shell.run_line_magic("config", "LLMMagics.tight_braces = True")
    shell.run_cell_magic("llm", "", r"{{city}} {{ land }} {{nowhere}} \{{land}}")
    assert _asked(script) == "{{land}} Portugal {{nowhere}} {{land}}"


# F268
def test_a_question_on_the_line_of_an_empty_cell_is_asked(
    shell: InteractiveShell, script: Scripted
) -> None:
    assert shell.run_cell("%%llm -t 0 What is 2+2?").success
    assert _asked(script) == "What is 2+2?"
    assert script.requests[-1].sampling.temperature == 0


def test_a_question_above_a_text_says_where_it_goes(
    shell: InteractiveShell, script: Scripted
) -> None:
    with pytest.raises(UsageError, match="A prompt goes below this line"):
        shell.run_cell_magic("llm", "What is this?", "text")


# F274
def test_quotes_around_a_compared_text_are_not_sent(
    shell: InteractiveShell, script: Scripted
) -> None:
    shell.run_line_magic("llm", 'compare "Why?"')
    assert _asked(script) == "Why?"


def test_values_may_come_from_any_mapping() -> None:
    from llm_magic.ui.magics.scope import visible

    names = types.MappingProxyType({"a": 1})
    assert visible(names)["a"] == 1
