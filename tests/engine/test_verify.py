"""Saved replies are generated again: every way in which one is made, on every variant."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from support import saved_cells
from support.saved_cells import book, check, output
from support.toy import toy_gguf

import llm_magic
from llm_magic.chat.record import sealed
from llm_magic.engine.cpu import cpu_features
from llm_magic.engine.kernels.targets import usable
from llm_magic.hub import hub
from llm_magic.ui.magics import extension
from llm_magic.ui.views import mime, records
from llm_magic.verify.report import TOLERANCE

SCRIPT = Path(saved_cells.__file__)
VARIANTS = [target.name for target in usable(cpu_features())]
if os.environ.get("LLM_MAGIC_LONG"):  # its graphs take a quarter of a minute to compile
    VARIANTS.append("portable")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", types="Q8_0", seed=1))


@pytest.fixture(scope="module")
def llm(model):
    llm = llm_magic.load(model)
    yield llm
    llm.unload()


@pytest.fixture(scope="module")
def reply(llm):
    return llm.chat("Once upon", max_tokens=12, temperature=0.8, seed=4, logprobs=3, min_tokens=12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_reply_is_right_on_its_variant_and_close_on_another_one(
    llm, model, tmp_path, variant
):
    path = tmp_path / "book.ipynb"
    environment = os.environ | {
        "LLM_MAGIC_KERNEL": variant,
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[2]), str(SCRIPT.parents[1])]),
    }
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), model, str(path)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    expected = "not every bit" if variant == "portable" else f"{variant}: every bit"
    assert expected in ran.stdout.splitlines()[-1]
    here = llm.provider.origin().variant
    report = check(path)
    assert report.status == 0, [c.findings for c in report.checks if c.findings]
    assert {c.made for c in report.checks} == {variant if variant != "portable" else "portable CPU"}
    assert {c.verdict for c in report.checks} == {"same" if variant == here else "close"}
    assert max(c.worst for c in report.checks) <= (0 if variant == here else TOLERANCE)


@pytest.mark.model
def test_replies_of_a_real_model_are_right(smollm2, tmp_path):
    made = saved_cells.replies(smollm2)
    path = book(tmp_path / "a.ipynb", *(output(r, docs=True) for r in made.values()))
    report = check(path)
    assert {c.verdict for c in report.checks} == {"same"}, [c.findings for c in report.checks]


def tampered(reply, tmp_path, change, **look):
    made = output(reply, **look)
    change(made)
    report = check(book(tmp_path / "t.ipynb", made))
    assert report.status == 1
    return report.checks[0].findings


@pytest.mark.parametrize("docs", [True, False])
def test_a_changed_character_of_the_answer_is_found_and_located(reply, tmp_path, docs):
    for at in (0, 7, len(reply.text) - 1):

        def change(made, at=at):
            text = made["data"]["text/plain"]
            made["data"]["text/plain"] = f"{text[:at]}#{text[at + 1 :]}"

        (finding,) = tampered(reply, tmp_path, change, docs=docs)
        assert finding.startswith(f"text/plain, character {at}: ")
        assert "#" in finding


def test_a_changed_character_of_the_table_and_of_the_json_is_found(reply, tmp_path):
    def percent(made):
        page = made["data"]["text/html"]
        made["data"]["text/html"] = page.replace("100%", "101%", 1).replace("−", "+", 1)

    assert "text/html, character" in tampered(reply, tmp_path, percent)[0]

    def time(made):  # nobody can measure it again
        tokens = made["data"][mime.VENDOR]["tokens"]
        fields = tokens[3].split("|")
        fields[4] = "123456"
        tokens[3] = "|".join(fields)

    assert "changed after it was saved" in tampered(reply, tmp_path, time)[0]


def reseal(made, **changes):
    """A record that was changed by somebody who knows how to write one."""
    record = made["metadata"][records.KEY]
    first = {**record["replies"][0], **changes}
    made["metadata"][records.KEY] = sealed([first], drawn=record["drawn"])


def test_a_forged_record_is_found_and_located(reply, tmp_path):
    ids = [str(t.id) for t in reply.tokens]
    other = str((reply.tokens[5].id + 1) % 40)
    (finding,) = tampered(
        reply, tmp_path, lambda made: reseal(made, ids=" ".join([*ids[:5], other, *ids[6:]]))
    )
    assert finding.startswith("token 5, after ")
    assert f"id {other} was saved" in finding
    short = " ".join(ids[:-1])
    numbers = [repr(t.logprob) for t in reply.tokens]
    (finding,) = tampered(
        reply,
        tmp_path,
        lambda m: reseal(m, ids=short, logprobs=" ".join(numbers[:-1]), finish="stop"),
    )
    assert "the end was saved" in finding
    shifted = [*numbers[:3], repr(reply.tokens[3].logprob - 2**-50), *numbers[4:]]
    (finding,) = tampered(reply, tmp_path, lambda made: reseal(made, logprobs=" ".join(shifted)))
    assert finding.startswith("token 3 (")
    assert "log-probability" in finding
    sampling = records.sampling_out(replace(reply.sampling, seed=5))
    (finding,) = tampered(reply, tmp_path, lambda made: reseal(made, sampling=sampling))
    assert finding.startswith("token ")
    (finding, *_) = tampered(reply, tmp_path, lambda made: reseal(made, prompt="999999"))
    assert "not in the vocabulary" in finding


def test_a_cell_that_was_changed_after_it_ran_is_found(llm, model, tmp_path, monkeypatch):
    shell = InteractiveShell.instance()
    outputs = []
    monkeypatch.setattr(
        shell.display_pub, "publish",
        lambda data, metadata=None, **_: outputs.append((data, metadata)),
    )  # fmt: skip
    hub.add("toy", llm)
    extension.load_ipython_extension(shell)
    try:
        shell.run_cell("%config LLMMagics.docs_mode = True")
        shell.run_cell("%%llm -m toy -t 0 -n 8\nOnce upon")
        data, metadata = outputs[-1]
        cell = {
            "cell_type": "code",
            "source": "%%llm -m toy -t 0 -n 8\nOnce upon",
            "outputs": [{"output_type": "display_data", "data": data, "metadata": metadata}],
        }
        path = tmp_path / "cells.ipynb"
        for source, status in ((cell["source"], 0), ("%%llm -m toy -t 0 -n 8\nTwice upon", 1)):
            path.write_text(json.dumps({"cells": [{**cell, "source": source}], "nbformat": 4}))
            view = shell.run_line_magic("llm", f"verify {path}")
            assert view.status == status
        assert "changed after it ran" in view.plain
    finally:
        extension.unload_ipython_extension(shell)
        InteractiveShell.clear_instance()


def test_calls_are_checked_and_tools_that_ran_are_said(llm, tmp_path):
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    called = llm.chat("hello", tools=[add], tool_choice="add", max_tokens=60, seed=1)
    talk = llm_magic.Conversation(llm, tools=[add], max_steps=1)
    ran = talk.ask("hello", tool_choice="add", max_tokens=60, seed=1)
    report = check(book(tmp_path / "a.ipynb", output(called), output(ran)))
    assert report.checks[0].verdict == "same", report.checks[0].findings
    if ran.trace:
        assert report.checks[1].verdict == "unchecked"
        assert "tools ran" in report.checks[1].findings[0]


def test_the_command_line_finds_the_model_by_its_hash(reply, model, tmp_path):
    path = book(tmp_path / "a.ipynb", output(reply, docs=True))
    command = [sys.executable, "-m", "llm_magic", "verify", str(path)]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run([*command, "-m", model], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "right: 1 reply, generated again with every bit" in done.stdout
