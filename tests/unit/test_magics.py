"""`%%llm` and `%llm` in an in-process shell: options, settings, registration, errors."""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.shells import cell, command, displays
from traitlets import TraitError

import llm_magic
from llm_magic.errors import (
    ContextOverflowError,
    InterpolationError,
    ModelNotFoundError,
    NotLoadedError,
)
from llm_magic.events import Message, Sampling
from llm_magic.hub import hub
from llm_magic.interpolation import as_text
from llm_magic.llm import LLM
from llm_magic.providers.local import Status
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import command_line, extension
from llm_magic.ui.magics.cell_options import PARSER
from llm_magic.ui.reply_methods import VENDOR
from llm_magic.ui.widgets.shared import jupyter


def settings(shell: InteractiveShell) -> Any:
    return shell.magics_manager.registry["LLMMagics"]


# ----------------------------------------------------------------------------- the cell


def test_a_cell_asks_and_shows_and_keeps(shell: InteractiveShell, script: Scripted) -> None:
    outputs = cell(shell, "-o reply", "Hello?")
    assert outputs[-1]["text/plain"] == "An **answer**."
    assert outputs[-1][VENDOR]["text"] == "An **answer**."
    request = script.requests[-1]
    assert request.prompt == (Message("user", "Hello?"),)
    assert request.sampling.temperature == 0.7
    assert request.sampling.max_tokens == 256  # LAI-2
    assert shell.user_ns["reply"] is shell.user_ns["_llm"]
    assert shell.user_ns["reply"].text == "An **answer**."


def test_every_option_reaches_the_request(shell: InteractiveShell, script: Scripted) -> None:
    line = (
        '-m fake -s "Be brief. It\'s late." -n 7 -t 0 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 3 '
        '--stop END --stop "\\n\\n" --logprobs 4'
    )
    cell(shell, line, "Hi")
    request = script.requests[-1]
    assert request.prompt == (Message("system", "Be brief. It's late."), Message("user", "Hi"))
    s = request.sampling
    assert (s.max_tokens, s.temperature, s.top_k, s.top_p, s.min_p, s.seed) == (
        7,
        0,
        5,
        0.9,
        0.1,
        3,
    )
    assert s.stop == ("END", "\n\n")
    assert request.logprobs == 4


# LAI-3, LAI-2
def test_explicit_zero_is_greedy_and_no_budget_is_256(
    shell: InteractiveShell, script: Scripted
) -> None:
    cell(shell, "-t 0 -n 0", "Hi")
    assert script.requests[-1].sampling.temperature == 0
    assert script.requests[-1].sampling.max_tokens == 256
    cell(shell, "-n -3", "Hi")
    assert script.requests[-1].sampling.max_tokens == 256
    assert script.requests[-1].sampling.temperature == 0.7


def test_logprobs_alone_means_five(shell: InteractiveShell, script: Scripted) -> None:
    outputs = cell(shell, "--logprobs", "Hi")
    assert script.requests[-1].logprobs == 5
    assert "Token probabilities" in outputs[-1]["text/html"]
    cell(shell, "", "Hi")
    assert script.requests[-1].logprobs is None


def test_complete_continues_the_text_as_it_is(shell: InteractiveShell, script: Scripted) -> None:
    cell(shell, "--complete", "  Once upon\n\na time \n")
    assert script.requests[-1].prompt == "  Once upon\n\na time \n"
    with pytest.raises(UsageError, match="--system"):
        cell(shell, "--complete -s x", "Once")


def test_quiet_shows_nothing(shell: InteractiveShell, script: Scripted) -> None:
    assert cell(shell, "-q", "Hi") == []
    assert shell.user_ns["_llm"].text == "An **answer**."


def test_a_cell_returns_nothing(shell: InteractiveShell, script: Scripted) -> None:
    with displays(shell) as data:
        result = shell.run_cell("%%llm\nHi")
    assert result.success
    assert result.result is None
    assert [d["text/plain"] for d in data if VENDOR in d] == ["An **answer**."]


# ----------------------------------------------------------------------------- interpolation


# B100
def test_the_prompt_is_exact(shell: InteractiveShell, script: Scripted) -> None:
    body = '{a*2 for a in xs}\n{"a": 1}\n{x!r:>10}\n{}\n{undefined}\n{name}\n$name {{name}}'
    shell.user_ns["name"] = "Bob"
    shell.run_cell("%%llm -q\n" + body + "\nHi {{ name }}")
    (message,) = script.requests[-1].prompt
    assert message.text == body + "\nHi Bob"


# B101
def test_values_are_not_interpolated_again(shell: InteractiveShell, script: Scripted) -> None:
    shell.user_ns["VAL"] = "set {p} costs $1 {{ name }}"
    shell.run_cell("%%llm -q\n{{ VAL }}")
    assert script.requests[-1].prompt[0].text == "set {p} costs $1 {{ name }}"


def test_the_line_is_not_expanded_by_ipython(shell: InteractiveShell, script: Scripted) -> None:
    shell.user_ns.update(name="Bob", x=1)
    shell.run_cell("%llm ask -n 5 {x} $name ${x} {{ name }} don't \"quote")
    assert script.requests[-1].prompt[0].text == "{x} $name ${x} Bob don't \"quote"
    shell.run_cell("%%llm -q -s '{x} {{ name }}'\nHi")
    assert script.requests[-1].prompt[0].text == "{x} Bob"


def test_questions_go_to_the_model_and_not_to_the_help_system(
    shell: InteractiveShell, script: Scripted
) -> None:
    shell.user_ns["name"] = "Bob"
    shell.run_cell("if True:\n    %llm ask -n 5 Who is 'the' {{ name }}?\n")
    assert script.requests[-1].prompt[0].text == "Who is 'the' Bob?"
    shell.run_cell("%llm ask Really??")
    assert script.requests[-1].prompt[0].text == "Really??"
    before = len(script.requests)
    shell.run_cell("%%llm -q\n%llm ask Who?")
    assert script.requests[-1].prompt[0].text == "%llm ask Who?"
    with pytest.raises(UsageError, match="To ask the model: %llm ask What is a cat"):
        shell.run_cell("%llm What is a cat?").raise_error()  # not the help of `cat`
    shell.run_cell("%llm?")  # this is for the help system
    shell.run_cell("%%llm?")
    assert len(script.requests) == before + 1


def test_raw_switches_it_off(shell: InteractiveShell, script: Scripted) -> None:
    cell(shell, "--raw", "{{ nothing }}")
    assert script.requests[-1].prompt[0].text == "{{ nothing }}"
    with pytest.raises(InterpolationError, match="--raw"):
        cell(shell, "", "{{ nothing }}")


def test_objects_become_text(shell: InteractiveShell) -> None:
    class Own:
        def _repr_llm_(self) -> str:
            return "for models"

        def _repr_markdown_(self) -> str:
            return "*for people*"

    class Markdown:
        def _repr_markdown_(self) -> str:
            return "*for people*"

    formatters = shell.display_formatter.formatters
    assert as_text("s", formatters) == "s"
    assert as_text(Own(), formatters) == "for models"
    assert as_text(Markdown(), formatters) == "*for people*"
    assert as_text([1, "a"], formatters) == "[1, 'a']"
    assert as_text(Own, formatters).endswith("Own")  # the class itself is not an Own
    long = as_text(list(range(100_000)), formatters)
    assert len(long) < 25_000
    exact = as_text("y" * 100_000, formatters)
    assert exact == "y" * 100_000


# ----------------------------------------------------------------------------- wrong command lines


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--temprature 1", "--temperature"),
        ("-n many", "invalid int value"),
        ("--logprobs x", "invalid int value"),
        ("smollm2", "-m smollm2"),
        ("-o 1x", "not a Python name"),
        ("-o class", "not a Python name"),
        ("-s 'open", "no closing quotation"),
        ("-f latex", "invalid choice"),
        ("-t 0 --help", r"%%llm\? lists the options"),
    ],
)
def test_a_wrong_option_is_a_usage_error(
    shell: InteractiveShell, script: Scripted, line: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        cell(shell, line, "Hi")
    assert script.requests == []
    assert "_llm" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("laod", "did you mean %llm load"),
        ("What is this?", "%llm ask What is this"),
        ("ask", "no text"),
        ("ask -n 3", "no text"),
        ("load a b", "unexpected argument"),
        ("load a b c", "Values with spaces need quotes"),
        ("load --ctx 8k", "(%llm? lists the options)"),
        ("load --foo", "no option --foo. %llm? lists them"),
        ("load smollm2 --help", "%llm? lists the options of %llm load"),
        ("status now", "unexpected argument"),
    ],
)
def test_a_wrong_command_says_what_was_meant(
    shell: InteractiveShell, script: Scripted, line: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        shell.run_line_magic("llm", line)
    assert words in str(caught.value)


def test_an_empty_cell_is_a_usage_error(shell: InteractiveShell, script: Scripted) -> None:
    with pytest.raises(UsageError, match="no text"):
        cell(shell, "", "  \n")


def test_our_errors_are_one_line_and_others_are_not(
    shell: InteractiveShell, script: Scripted
) -> None:
    with pytest.raises(InterpolationError) as caught:
        cell(shell, "", "{{ nothing }}")
    (text,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert "InterpolationError" in text
    assert "\n" not in text
    shell.run_line_magic("xmode", "Verbose")
    with pytest.raises(InterpolationError) as caught:
        cell(shell, "", "{{ nothing }}")
    assert not hasattr(caught.value, "_render_traceback_")
    shell.run_line_magic("xmode", "Context")


def test_a_prompt_that_is_too_long_says_what_to_type(
    shell: InteractiveShell, as_default: Callable[[Scripted], None]
) -> None:
    ways = "leave out with trim=True, or load the model with ctx=N (up to 8192)"
    as_default(Scripted([ContextOverflowError(5000, 4096, ways)], model="fake"))
    with pytest.raises(ContextOverflowError, match="ctx=N") as caught:
        cell(shell, "", "word " * 5000)
    (text,) = caught.value._render_traceback_()  # type: ignore[attr-defined]
    assert "leave out with --trim, or load the model with %llm load --ctx N (up to 8192)" in text


# ----------------------------------------------------------------------------- the line


def test_ask_takes_options_before_the_text(shell: InteractiveShell, script: Scripted) -> None:
    def ask(line: str) -> tuple[str, str]:
        options, text = command_line.split(PARSER, line)
        return options.strip(), text

    assert ask("-n 5 --quiet Hello -n there") == ("-n 5 --quiet", "Hello -n there")
    assert ask('-s "a b" -t 0.5   Hello') == ('-s "a b" -t 0.5', "Hello")
    assert ask("--logprobs How") == ("--logprobs", "How")
    assert ask("--logprobs 3 How") == ("--logprobs 3", "How")
    assert ask("-n=5 x")[1] == "x"
    assert ask("-- -n is an option") == ("", "-n is an option")
    assert ask("plain") == ("", "plain")


def test_a_reply_and_its_live_view_are_shown_as_the_notebook_has_it(
    shell: InteractiveShell, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What views and widgets ask of the loaded extension is there."""
    monkeypatch.setattr(jupyter, "get_ipython", lambda: shell)
    settings(shell).save_prompt = False
    reply = LLM(script).complete("a secret", logprobs=2)
    assert "a secret" not in json.dumps(reply._repr_mimebundle_()[0])
    assert "a secret" not in json.dumps(reply.explore()._repr_mimebundle_(), default=str)
    assert settings(shell).ledger is not None


def test_status_models_and_overview(shell: InteractiveShell, script: Scripted) -> None:
    for line, words in (("", "%%llm"), ("status", "scripted"), ("models", "smollm2")):
        output = command(shell, line)
        assert words in output["text/plain"]
        assert "text/html" in output
    assert 'nowrap">smollm2-360m<' in output["text/html"]  # a name stays whole beside long licences


def test_models_shows_what_each_needs_and_what_to_type(shell: InteractiveShell) -> None:
    """F271"""
    output = command(shell, "models")
    for text in (output["text/plain"], output["text/html"]):
        assert re.search(r"\b2[34]\d MB", text)  # smollm2's, at the default context
        for word in ("memory", "context", "8,192", "%llm fetch NAME", "%llm remove NAME"):
            assert word in text, word
    row = next(line for line in output["text/plain"].splitlines() if line.startswith("smollm2 "))
    assert re.search(r" 98 MB +24\d MB +8,192 ", row)


def test_remove_deletes_what_was_fetched(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F271"""
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(tmp_path))
    fetched = tmp_path / "files" / "url" / "ab" / "small.gguf"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"GGUF" * 500_000)
    assert str(fetched) in command(shell, "models")["text/plain"]
    said = command(shell, f"remove {fetched}")["text/plain"]
    assert "was removed from this machine (2 MB are free again)" in said
    assert not fetched.exists()
    with pytest.raises(ModelNotFoundError, match="no such file"):
        shell.run_line_magic("llm", f"remove {fetched}")
    with pytest.raises(UsageError, match="name"):
        shell.run_line_magic("llm", "remove")


def test_status_says_what_computes_and_what_the_cache_has_saved(
    shell: InteractiveShell, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Status(
        model="scripted", path="/models/x.gguf", device="CPU", compute="AVX-512 VNNI, 2 threads",
        threads=2, ctx=4096, slots=4, cached_tokens=1_104, cached_bytes=25_600_000, queued=0,
        running=1, memory_bytes=100_000_000, cache_hits=300, cache_misses=900,
    )  # fmt: skip
    monkeypatch.setattr(script, "status", lambda: known)
    output = command(shell, "status")
    for text in (output["text/plain"], output["text/html"]):
        assert "AVX-512 VNNI, 2 threads" in text
        assert "1,104 tokens, 25.6 MB" in text
        assert "300 of 1,200 prompt tokens (25%)" in text
        assert "/models" not in text
    fresh = replace(known, cache_hits=0, cache_misses=0)
    monkeypatch.setattr(script, "status", lambda: fresh)
    assert "from the cache" not in command(shell, "status")["text/plain"]


def test_status_shows_the_settings_of_the_model(shell: InteractiveShell, script: Scripted) -> None:
    """F262"""
    script.defaults = Sampling(temperature=0.05, repeat_penalty=1.1)
    output = command(shell, "status")
    for text in (output["text/plain"], output["text/html"]):
        assert "settings of chats" in text
        assert "temperature 0.05, repeat_penalty 1.1, max_tokens 256" in text


def test_load_makes_a_model_the_one_in_use(shell: InteractiveShell, script: Scripted) -> None:
    other = Scripted(["From the other."])
    hub.add("other", LLM(other))
    assert "is loaded" in command(shell, "load other")["text/plain"]
    cell(shell, "", "Hi")
    assert len(other.requests) == 1
    cell(shell, "-m fake", "Hi")
    assert len(script.requests) == 1
    hub.unload("other")


def test_unload_frees_and_an_unknown_name_is_an_error(
    shell: InteractiveShell, script: Scripted
) -> None:
    with pytest.raises(NotLoadedError, match="fake"):
        shell.run_line_magic("llm", "unload nothing-of-that-name")
    hub.add("other", LLM(Scripted(["x"], model="other")))
    assert command(shell, "unload other")["text/plain"] == "unloaded other"
    assert hub.get("other") is None


# ----------------------------------------------------------------------------- settings


def test_settings_are_traits(shell: InteractiveShell, script: Scripted) -> None:
    for line in (
        "LLMMagics.temperature = 0",
        "LLMMagics.max_tokens = 9",
        "LLMMagics.system = 'Be brief.'",
        "LLMMagics.logprobs = 2",
        "LLMMagics.format = 'text'",
    ):
        shell.run_line_magic("config", line)
    cell(shell, "", "Hi")
    request = script.requests[-1]
    assert request.prompt[0] == Message("system", "Be brief.")
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0, 9)
    assert request.logprobs == 2
    cell(shell, "-t 1 -s Other", "Hi")
    assert script.requests[-1].sampling.temperature == 1
    assert script.requests[-1].prompt[0].text == "Other"


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", 0), ("logprobs", -1), ("format", "pdf"), ("magic_name", "a b"),
     ("max_rate", 60.0), ("temperature", "hot"), ("docs_mode", "maybe")],
)  # fmt: skip
def test_settings_are_validated(shell: InteractiveShell, name: str, value: Any) -> None:
    with pytest.raises(TraitError):
        setattr(settings(shell), name, value)


def test_docs_mode_is_one_steady_display(
    shell: InteractiveShell, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(shell).docs_mode = True
    first, second = cell(shell, "--logprobs", "Hi"), cell(shell, "--logprobs", "Hi")
    assert len(first) == 1
    assert first[0] == second[0]
    assert set(first[0]) == {"text/plain", "text/html"}
    monkeypatch.setenv("LLM_MAGIC_DOCS", "1")
    assert extension.LLMMagics(None).docs_mode is True


# ----------------------------------------------------------------------------- registration


def names(shell: InteractiveShell) -> dict[str, dict[str, Any]]:
    return {kind: dict(table) for kind, table in shell.magics_manager.magics.items()}


def test_unload_restores_everything(script: Scripted) -> None:
    shell = InteractiveShell()
    before = (
        names(shell),
        {k: list(v) for k, v in shell.events.callbacks.items()},
        list(shell.configurables),
        set(shell.magics_manager.registry),
        dict(shell.strdispatchers["complete_command"].regexs),
        list(shell.input_transformers_cleanup),
    )
    for _ in range(2):
        extension.load_ipython_extension(shell)
        extension.load_ipython_extension(shell)  # twice is a reload
        assert "llm" in shell.magics_manager.magics["cell"]
        extension.unload_ipython_extension(shell)
        extension.unload_ipython_extension(shell)
    after = (
        names(shell),
        {k: list(v) for k, v in shell.events.callbacks.items()},
        list(shell.configurables),
        set(shell.magics_manager.registry),
        dict(shell.strdispatchers["complete_command"].regexs),
        list(shell.input_transformers_cleanup),
    )
    assert before == after


def test_an_earlier_magic_is_hidden_with_a_warning_and_comes_back() -> None:
    shell = InteractiveShell()
    shell.register_magic_function(lambda line, cell: "theirs", "cell", "llm")
    earlier = shell.magics_manager.magics["cell"]["llm"]
    with pytest.warns(UserWarning, match="magic_name"):
        extension.load_ipython_extension(shell)
    assert shell.magics_manager.magics["cell"]["llm"] is not earlier
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings(shell).magic_name = "ai"
    assert shell.magics_manager.magics["cell"]["llm"] is earlier
    assert "ai" in shell.magics_manager.magics["line"]
    extension.unload_ipython_extension(shell)
    assert shell.magics_manager.magics["cell"]["llm"] is earlier
    assert "ai" not in shell.magics_manager.magics["cell"]


def test_a_magic_registered_over_ours_is_left_alone(shell: InteractiveShell) -> None:
    def later(line: str, cell: str) -> None:
        """Somebody else's."""

    shell.register_magic_function(later, "cell", "llm")
    extension.unload_ipython_extension(shell)
    assert shell.magics_manager.magics["cell"]["llm"] is later
    assert "llm" not in shell.magics_manager.magics["line"]


def test_reload_keeps_the_engine(shell: InteractiveShell, script: Scripted) -> None:
    llm = hub.get("fake")
    extension.unload_ipython_extension(shell)
    extension.load_ipython_extension(shell)
    assert hub.get("fake") is llm
    assert cell(shell, "", "Hi")


def test_the_gate_is_held_while_a_cell_runs(shell: InteractiveShell) -> None:
    shell.user_ns["gate"] = hub.gate
    assert shell.run_cell("inside = gate.closed").success
    assert shell.user_ns["inside"] is True
    assert not hub.gate.closed
    shell.run_cell("1/0")
    assert not hub.gate.closed
    shell.user_ns["off"] = lambda: extension.unload_ipython_extension(shell)
    shell.run_cell("off()")
    assert not hub.gate.closed


def test_completions(shell: InteractiveShell) -> None:
    def of(text: str) -> list[str]:
        with provisionalcompleter():
            return [c.text.split(" ")[-1] for c in shell.Completer.completions(text, len(text))]

    assert "--temperature" in of("%%llm --te")
    assert "status" in of("%llm st")
    assert "smollm2" in of("%llm load smo")
    assert "smollm2" in of("%%llm -m smo")


# F261
def test_only_our_own_words_are_offered_each_with_its_help(shell: InteractiveShell) -> None:
    def of(text: str) -> dict[str, str]:
        with provisionalcompleter():
            return {c.text: c.type for c in shell.Completer.completions(text, len(text))}

    cell, load = of("%%llm --"), of("%llm load --")
    assert {"--temperature", "--seed"} <= cell.keys()
    assert not [word for word in cell if word.startswith("--_") or not cell[word]]
    assert load.keys() == {"--ctx", "--slots", "--threads", "--device", "--cache-mb", "--help"}
    assert of("%llm sta")["status"] == "what is loaded"
    llm_magic.unload_ipython_extension(shell)
    assert "--temperature" not in of("%%llm --te")


def test_help_is_real(shell: InteractiveShell) -> None:
    help_of_cell = shell.magics_manager.magics["cell"]["llm"].__doc__
    for word in ("%%llm [-m MODEL]", "--logprobs", "{{ name }}", "Sampling", "-o NAME"):
        assert word in help_of_cell
    assert "unload" in shell.magics_manager.magics["line"]["llm"].__doc__


LIGHT = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
before = set(sys.modules)
shell.run_line_magic("load_ext", "llm_magic")
assert "llm" in shell.magics_manager.magics["cell"]
heavy = ["tinygrad", "numpy", "tokenizers", "gguf", "jinja2", "llguidance", "httpx", "matplotlib",
         "anywidget", "ipywidgets", "markdown_it", "nh3"]
print([m for m in heavy if m in sys.modules and m not in before])
"""


def test_loading_imports_nothing_heavy() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, env=os.environ, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_a_terminal_streams_to_stdout(script: Scripted, capsys: Any) -> None:
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    shell = TerminalInteractiveShell()
    extension.load_ipython_extension(shell)
    shell.run_cell_magic("llm", "", "Hi\n")  # C10
    out = capsys.readouterr().out
    assert out.startswith("An **answer**.\n[scripted · ")
    extension.unload_ipython_extension(shell)


def test_options_may_stand_behind_a_text_in_quotes() -> None:
    from llm_magic.ui.magics import cell_options, command_line

    split = command_line.split
    assert split(cell_options.PARSER, '"Why?" -n 4')[0].split() == ["-n", "4"]
    assert command_line.unquoted(split(cell_options.PARSER, '-t 0 "Why?" -n 4')[1]) == "Why?"
    for text in ('"ls" -l means what?', "what is -n 4", '"a" or "b"', '"a" - b'):
        assert split(cell_options.PARSER, text) == ("", text)
