"""Cells in a real Jupyter kernel: what arrives, when, and in which cell."""

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from llm_magic.chat.reply import Reply
from llm_magic.ui.reply_methods import VENDOR

from .harness import Kernel, Message, Run, kernel

pytestmark = pytest.mark.kernel

SCRIPT = """
%load_ext llm_magic
from llm_magic import LLM
from llm_magic.hub import hub
from llm_magic.providers.scripted import Scripted

answers = {
    "fast": "A **short** answer.",
    "slow": ["word%d " % i for i in range(40)],
    "fails": ["half ", "an ", ZeroDivisionError("boom")],
    "code": "```python\\nprint('$5')\\n```",
}

def answer(request):
    text = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].text
    return answers[text.split()[0]]

script = Scripted(answer, delay=0.05)
hub.add("script", LLM(script))
hub.default = "script"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Kernel]:
    with kernel() as found:
        found.run(SCRIPT).check()
        yield found


def partial(run: Run) -> Reply:
    """The reply in a cell's last state."""
    return Reply.from_dict(run.final[VENDOR])


# ----------------------------------------------------------------------------- one display


def test_updates_arrive_before_the_end_and_nothing_shows_twice(running: Kernel) -> None:
    run = running.run("%%llm --logprobs 3\nslow").check()
    assert len(run.of("display_data")) == 1
    updates = run.of("update_display_data")
    assert len(updates) >= 5
    early = [m for m in updates if m.at < 0.6 * run.seconds]
    assert any("word3" in m.data["text/html"] for m in early)
    assert {m.display_id for m in run.frames} == {run.frames[0].display_id}
    assert not run.of("execute_result")  # C13: Out is not a second copy
    assert run.stream() == run.stream("stderr") == ""
    assert run.final["text/plain"] == "".join(f"word{i} " for i in range(40))
    assert "Token probabilities" in run.final["text/html"]
    assert partial(run).text == run.final["text/plain"]


# B104
def test_frames_are_bounded_in_number_and_bytes(running: Kernel) -> None:
    running.run("answers['flood'] = ['x'] * 5000; script.delay = 0.0").check()
    run = running.run("%%llm -n 5000\nflood").check()
    running.run("script.delay = 0.05").check()
    sizes = [len(json.dumps(m.data, ensure_ascii=False).encode()) for m in run.frames]
    assert sum(sizes) < 2_000_000
    assert sum(sizes) <= 6 * sizes[-1]
    assert len(sizes) <= 15 * run.seconds + 2
    assert run.final["text/plain"] == "x" * 5000


def test_the_reply_is_a_value(running: Kernel) -> None:
    running.run("%%llm -o answer\nfast").check()
    assert running.value("answer.text") == "A **short** answer."
    assert running.value("answer is _llm") is True
    shown = running.run("answer").check()
    (result,) = shown.of("execute_result")
    assert result.data["text/plain"] == "A **short** answer."
    assert VENDOR in result.data


def test_quiet_and_capture_show_nothing(running: Kernel) -> None:
    assert running.run("%%llm -q\nfast").check().frames == []
    run = running.run("%%capture caught\n%llm ask fast").check()
    assert run.frames == []
    assert running.value("caught.outputs[-1].data['text/plain']") == "A **short** answer."


# B103
def test_output_lands_in_its_own_cell(running: Kernel) -> None:
    first = running.send("%%llm\nslow")
    second = running.send("print('x')")
    one, two = running.wait(first), running.wait(second)
    assert two.stream() == "x\n"
    assert two.frames == []
    assert one.final["text/plain"].startswith("word0 word1")
    assert all(m.parent == first for m in one.frames)


# B103
def test_a_generation_in_the_background_prints_nowhere(running: Kernel) -> None:
    running.run(
        "import threading\n"
        "def work():\n"
        "    background.append(LLM(script).complete('slow'))\n"
        "background = []\n"
        "thread = threading.Thread(target=work); thread.start()"
    ).check()
    run = running.run("import time; time.sleep(0.5); print('x')").check()
    assert run.stream() == "x\n"
    assert run.frames == []
    running.run("thread.join()").check()
    assert running.value("background[0].finish_reason") == "stop"


# ----------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("%%llm --temprature 1\nfast", "UsageError"),
        ("%llm laod", "UsageError"),
        ("%%llm\n{{ nothing }}", "InterpolationError"),
        ("%%llm -m no-such-model\nfast", "ModelNotFoundError"),
        ("%%llm\nfails", "EngineError"),
    ],
)
def test_failures_fail_the_cell(running: Kernel, code: str, name: str) -> None:
    run = running.run(code)
    assert run.reply["status"] == "error"
    assert run.reply["ename"] == name
    assert running.run("1 + 1").result == "2"


# LAI-11
def test_a_failure_keeps_the_partial(running: Kernel) -> None:
    run = running.run("%%llm\nfails")
    assert run.final["text/plain"] == "half an \n\n[failed: EngineError]"
    assert running.value("_llm.text") == "half an "
    text = "\n".join(run.of("error")[0].content["traceback"])
    assert "boom" in text


def test_a_failed_cell_stops_the_cells_behind_it(running: Kernel) -> None:
    first = running.send("%%llm\n{{ nothing }}")
    second = running.send("ran = True")
    running.wait(first)
    assert running.wait(second).reply["status"] == "aborted"


def test_usage_errors_have_no_traceback(running: Kernel) -> None:
    run = running.run("%llm laod")
    assert run.of("error") == []
    assert run.stream("stderr").startswith("UsageError: %llm laod: no such command; did you mean")


# ----------------------------------------------------------------------------- interrupts


def interrupted(found: Kernel, code: str, when: Any) -> tuple[Run, float]:
    """Run a cell and interrupt it at its first message that `when` accepts; how long it took."""
    pressed: list[float] = []

    def on(message: Message) -> None:
        if not pressed and when(message):
            pressed.append(time.monotonic())
            found.interrupt()

    run = found.run(code, on=on)
    assert pressed, "the message to interrupt at never came"
    return run, time.monotonic() - pressed[0]


def has_text(message: Message) -> bool:
    return "word2" in message.data.get("text/html", "")


def reads_prompt(message: Message) -> bool:
    return "reading the prompt" in message.data.get("text/html", "")


def check_interrupted(found: Kernel, run: Run, seconds: float) -> None:
    assert seconds < 2.0
    assert run.reply["status"] == "error"
    assert run.reply["ename"] == "Interrupted"
    assert run.final["text/plain"].endswith("[interrupted]")
    assert "interrupted" in run.final["text/html"]
    assert partial(run).finish_reason == "interrupted"
    assert found.value("_llm.finish_reason") == "interrupted"
    again = found.run("%%llm\nfast").check()
    assert again.final["text/plain"] == "A **short** answer."


# B109
def test_interrupt_in_decode_keeps_the_partial(running: Kernel) -> None:
    run, seconds = interrupted(running, "%%llm\nslow", has_text)
    check_interrupted(running, run, seconds)
    text = partial(run).text
    assert text.startswith("word0 word1 word2")
    assert len(text) < 200


# B109
def test_interrupt_in_prefill(running: Kernel) -> None:
    running.run("script.prefill_delay = 0.3").check()
    try:
        long = "fast " + "and more of it " * 200
        run, seconds = interrupted(running, f"%%llm\n{long}", reads_prompt)
        running.run("script.prefill_delay = 0").check()
        check_interrupted(running, run, seconds)
        assert partial(run).text == ""
    finally:
        running.run("script.prefill_delay = 0").check()


def test_an_interrupt_is_one_line(running: Kernel) -> None:
    run, _ = interrupted(running, "%%llm\nslow", has_text)
    (error,) = run.of("error")
    assert len(error.content["traceback"]) == 1
    assert error.content["traceback"][0].startswith("Interrupted: interrupted after ")


# ----------------------------------------------------------------------------- progress


def test_progress_is_shown_while_the_prompt_is_read_and_then_gone(running: Kernel) -> None:
    running.run("script.prefill_delay = 0.1").check()
    run = running.run("%%llm\nfast " + "and more of it " * 200).check()
    running.run("script.prefill_delay = 0").check()
    shown = [m for m in run.frames if reads_prompt(m)]
    assert len(shown) >= 2
    assert not reads_prompt(run.frames[-1])


# ----------------------------------------------------------------------------- extension


def test_reload_keeps_models_and_unload_takes_the_magics(running: Kernel) -> None:
    assert running.run("%reload_ext llm_magic").ok
    assert running.run("%%llm\nfast").check().final["text/plain"] == "A **short** answer."
    running.run("%unload_ext llm_magic").check()
    assert not running.run("%%llm\nfast").ok
    running.run("%load_ext llm_magic").check()
    assert running.run("%%llm\nfast").ok


def test_other_cells_hold_the_gate(running: Kernel) -> None:
    assert running.value("hub.gate.closed") is True


# ----------------------------------------------------------------------------- docs mode, nbval


# B107
def test_docs_mode_is_equal_in_twenty_runs_with_jitter(running: Kernel) -> None:
    running.run("import random\n%config LLMMagics.docs_mode = True").check()
    try:
        outputs = []
        for _ in range(20):
            running.run("script.delay = random.random() / 200").check()
            run = running.run("%%llm --logprobs 3\nfast").check()
            assert [m.kind for m in run.frames] == ["display_data"]
            assert run.frames[0].display_id is None
            outputs.append(json.dumps(run.final, sort_keys=True))
        assert len(set(outputs)) == 1
    finally:
        running.run("%config LLMMagics.docs_mode = False; script.delay = 0.05").check()


def _notebook(folder: Path) -> Path:
    """A notebook of scripted cells, executed with outputs."""
    from nbclient import NotebookClient

    setup = (
        SCRIPT
        + "\n%config LLMMagics.docs_mode = True\nimport random\nscript.delay = random.random() / 50"
    )
    cells = [setup, "%%llm --logprobs 2\nfast", "%%llm\ncode", "_llm.usage.completion"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    NotebookClient(book, kernel_name="python3").execute()
    path = folder / "scripted.ipynb"
    nbformat.write(book, path)
    return path


def _nbval(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "no:cacheprovider", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=path.parent, timeout=120, check=False
    )


# B107
def test_nbval_accepts_docs_mode_and_rejects_a_corrupted_output(tmp_path: Path) -> None:
    path = _notebook(tmp_path)
    ran = _nbval(path)
    assert ran.returncode == 0, ran.stdout
    book = nbformat.read(path, as_version=4)
    (output,) = book.cells[1].outputs
    output.data["text/html"] = output.data["text/html"].replace("answer", "anwser")
    nbformat.write(book, path)
    assert _nbval(path).returncode == 1


def test_nbclient_saves_one_whole_output_per_cell(tmp_path: Path) -> None:
    from nbclient import NotebookClient

    cells = [SCRIPT, "%%llm --logprobs 3\nslow"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(book, kernel_name="python3").execute()
    (output,) = book.cells[1].outputs
    assert set(output.data) == {"text/plain", "text/markdown", "text/html", VENDOR}
    assert Reply.from_dict(output.data[VENDOR]).text.startswith("word0 word1")
    nbformat.validate(book)


# ----------------------------------------------------------------------------- two threads


# B103
def test_threads_and_cells_at_once(running: Kernel) -> None:
    """Two threads generate while a cell streams; nothing of theirs is in its output."""
    running.run(
        "results = []\n"
        "def work():\n"
        "    results.append(LLM(script).complete('slow').text)\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "for t in threads: t.start()"
    ).check()
    run = running.run("%%llm\nslow").check()
    running.run("for t in threads: t.join()").check()
    assert running.value("results") == [run.final["text/plain"]] * 2
    assert threading.active_count() < 50


# ----------------------------------------------------------------------------- the real model


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Iterator[Kernel]:
    """A kernel in which nothing is loaded yet; SmolLM2 is the model in use."""
    with kernel() as found:
        found.run("%load_ext llm_magic").check()
        found.run(f"%config LLMMagics.model = {str(smollm2_path)!r}").check()
        yield found


@pytest.mark.model
def test_the_first_cell_loads_and_streams(real: Kernel) -> None:
    run = real.run("%%llm -t 0 -n 24 --logprobs 5 -o first\nWhat is the capital of France?").check()
    early = [m for m in run.frames[:-1] if "token" in m.data["text/html"]]
    assert early
    assert len(run.of("display_data")) == 1
    assert not run.of("execute_result")
    assert "Paris" in run.final["text/plain"]
    assert "tok/s" in run.final["text/html"]
    assert "Token probabilities" in run.final["text/html"]
    reply = partial(run)
    assert all(t.logprob is not None and len(t.top) == 5 for t in reply.tokens)
    assert reply.usage.completion == len(reply.tokens) <= 24
    assert "/" not in reply.model
    assert str(Path.home()) not in json.dumps(run.final)


@pytest.mark.model
def test_two_cells_in_a_row_reuse_the_prefix(real: Kernel) -> None:
    long = "Here is a list of things: " + ", ".join(f"thing {i}" for i in range(40))
    real.run(f"%%llm -t 0 -n 4 -o one\n{long}. Repeat the first.").check()
    run = real.run(f"%%llm -t 0 -n 4 -o two\n{long}. Repeat the last.").check()
    cached, prompt = real.value("(two.usage.cached, two.usage.prompt)")
    assert cached > 0.8 * prompt
    assert cached < prompt
    assert f"{cached:,} cached + {prompt - cached:,} new" in run.final["text/html"]


@pytest.mark.model
def test_a_warm_start_gives_the_same_answer_as_a_cold_one(real: Kernel) -> None:
    ask = "%%llm -t 0 -n 12 -o {}\nName three colors."
    real.run(ask.format("cold")).check()
    real.run(ask.format("warm")).check()
    assert real.value("warm.usage.cached > 0") is True
    assert real.value("[t.id for t in cold.tokens] == [t.id for t in warm.tokens]") is True


# B109
@pytest.mark.model
def test_interrupt_in_decode_of_the_real_engine(real: Kernel) -> None:
    ask = "%%llm -n 1000 --stop NEVER --seed 1\nTell me a very long story about the sea."
    run, seconds = interrupted(real, ask, lambda m: m.data.get("text/html", "").count("<p>") > 0)
    assert seconds < 3.0
    assert run.reply["ename"] == "Interrupted"
    reply = partial(run)
    assert reply.finish_reason == "interrupted"
    assert 0 < len(reply.tokens) < 1000
    again = real.run("%%llm -t 0 -n 8\nWhat is the capital of France?").check()
    assert "capital" in again.final["text/plain"]


# B109
@pytest.mark.model
def test_interrupt_in_prefill_of_the_real_engine(real: Kernel) -> None:
    real.run("story = 'The sea was calm and the wind was low. ' * 300").check()
    # Nothing is shown in the first moments: the press is timed, and the reply says where it struck.
    timer = threading.Timer(0.4, real.interrupt)
    timer.start()
    start = time.monotonic()
    run = real.run("%%llm -n 400\n{{ story }} Summarize.")
    assert run.reply["ename"] == "Interrupted"
    assert time.monotonic() - start < 4.0
    reply = partial(run)
    assert reply.finish_reason == "interrupted"
    again = real.run("%%llm -t 0 -n 8\nWhat is the capital of France?").check()
    assert "capital" in again.final["text/plain"]


@pytest.mark.model
def test_a_prompt_longer_than_the_window_names_both_numbers(real: Kernel) -> None:
    real.run("big = story * 3").check()
    run = real.run("%%llm\n{{ big }}")
    assert run.reply["ename"] == "ContextOverflowError"
    assert "4096" in run.reply["evalue"]
    assert "ctx" in run.reply["evalue"]


@pytest.mark.model
def test_tinygrad_in_a_cell_beside_a_generation(real: Kernel) -> None:
    work = "from tinygrad import Tensor\n(Tensor.ones(64, 64) @ Tensor.ones(64, 64)).sum().item()"
    assert float(real.run(work).check().result or 0) == 64.0**3
    real.run(
        "import threading, llm_magic\n"
        "llm = llm_magic.load()\n"
        "texts = []\n"
        "def work():\n"
        "    for i in range(3): texts.append(llm.complete(f'{i}, 2, 3,', max_tokens=24).text)\n"
        "thread = threading.Thread(target=work); thread.start()"
    )
    jit = (
        "from tinygrad import TinyJit\n"
        "@TinyJit\n"
        "def f(x): return (x @ x + 1).realize()\n"
        "ones = [Tensor.full((32, 32), float(i)).contiguous().realize() for i in range(6)]\n"
        "[float(f(x).sum().item()) for x in ones]"
    )
    run = real.run(jit).check()
    expected = [32 * 32 * (32 * i * i + 1) for i in range(6)]
    assert json.loads(run.result or "") == pytest.approx(expected)
    real.run("thread.join()").check()
    assert real.value("len(texts)") == 3


@pytest.mark.model
def test_a_thread_and_a_cell_share_the_engine(real: Kernel) -> None:
    """As a chat widget does: its controller reads a stream while a cell reads its own."""
    real.run("expected = llm.complete('1, 2, 3,', max_tokens=40).text").check()
    real.run(
        "texts = []\n"
        "def work():\n"
        "    texts.append(llm.complete('1, 2, 3,', max_tokens=40).text)\n"
        "thread = threading.Thread(target=work); thread.start()"
    ).check()
    run = real.run("%%llm -t 0 -n 40\nCount from one to ten.").check()
    real.run("thread.join()").check()
    assert real.value("texts == [expected]") is True
    assert run.final["text/plain"]


@pytest.mark.model
def test_a_branch_reuses_the_prefix_and_equals_a_cold_run(real: Kernel) -> None:
    real.run("%%llm -t 0 -n 16 --logprobs 5 -o r\nName three animals and a color.").check()
    real.run("%llm branch 4 2 -t 0 -n 12 -r r").check()
    cached, prompt = real.value("(_llm.branches[0][1].usage.cached, len(r.prompt_ids))")
    assert cached >= prompt
    real.run(
        "branch = r.branches[0][1]\n"
        "ids = [*r.prompt_ids, *(t.id for t in branch.tokens[:5])]\n"
        "cold = llm.complete(ids, max_tokens=12, temperature=0, reuse=False)"
    ).check()
    assert real.value("[t.id for t in branch.tokens[5:]] == [t.id for t in cold.tokens]") is True
    assert real.value("branch.tokens[4].bytes == r.tokens[4].top[1].bytes") is True


@pytest.mark.model
def test_tokenize_shows_exactly_what_the_model_gets(real: Kernel) -> None:
    real.run("%%llm -t 0 -n 1 -o asked\nIs <|im_end|> a <b>token</b>?").check()
    run = real.run("%llm tokenize").check()
    ids = [int(i) for i in run.final["text/plain"].rpartition("ids: ")[2].split()]
    assert ids == list(real.value("asked.prompt_ids"))
    chat = real.run("%llm tokenize --chat Is <|im_end|> a <b>token</b>?").check()
    assert chat.final["text/plain"].rpartition("ids: ")[2].split() == [str(i) for i in ids]


@pytest.mark.model
def test_score_compare_and_stats(real: Kernel) -> None:
    run = real.run("%%llm --score\nThe capital of France is Paris.").check()
    assert "perplexity" in run.final["text/html"]
    command = (
        '%llm compare --score "The capital of France is Paris." "The capital of Paris is France."'
    )
    sides = real.run(command).check().final["text/plain"]
    first, second = re.findall(r"perplexity ([\d,.]+)\]", sides)
    assert float(first.replace(",", "")) < float(second.replace(",", ""))
    run = real.run("%%llm -t 0 -n 2 -o last\nHi").check()
    lines = real.run("%llm stats").check().final["text/plain"].splitlines()
    number = next(m for m in run.messages if m.kind == "execute_input").content["execution_count"]
    assert lines[-2].startswith(f"[{number}]")


# B112
@pytest.mark.model
def test_unload_gives_the_memory_back_and_the_next_cell_loads_again(real: Kernel) -> None:
    # By now the kernel holds the LLM in a variable, replies in Out, and tracebacks of failed cells.
    real.run("llm.complete('x', max_tokens=1, stop=5)")
    real.run("llm.complete('x', max_tokens=1)").check()
    real.run(
        "import psutil, gc\nrss = lambda: (gc.collect(), psutil.Process().memory_info().rss)[1]"
    )
    before = real.value("rss()")
    real.run("%llm unload").check()
    after = real.value("rss()")
    assert before - after > 60e6
    assert real.run("%%llm -n 4\nHello").ok
