"""`LLM.map` and `LLM.grid` over a script: rows, errors, columns, caches, interrupts."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from llm_magic.errors import Interrupted, NotLoadedError, RequestError
from llm_magic.llm import LLM
from llm_magic.provider import Request
from llm_magic.providers.scripted import Scripted
from llm_magic.tables.cache import Cache

TEMPLATE = "Rate it: {{ review }}"
LONG = os.environ.get("LLM_MAGIC_LONG")  # the hundred kills and the ten thousand rows


def echo(request: Request) -> str:
    return request.messages[-1].text.partition(": ")[2].upper()


def made(script: Any = echo, **options: Any) -> tuple[LLM, Scripted]:
    scripted = Scripted(script, **options)
    return LLM(scripted), scripted


def ask(llm: LLM, rows: object, template: object = TEMPLATE, **options: Any) -> Any:
    return llm.map(rows, template, progress=False, **options)


# ----------------------------------------------------------------------------- rows and columns


def test_a_frame_keeps_its_index_and_columns_and_gains_those_of_the_answers() -> None:
    frame = pd.DataFrame({"review": ["good", "bad"], "n": [1, 2]}, index=["x", "y"])
    got = ask(made()[0], frame, out="said")
    assert list(got.index) == ["x", "y"]
    assert list(got.columns) == [
        "review", "n", "said", "said_probability", "said_entropy", "said_tokens", "said_finish",
        "said_error",
    ]  # fmt: skip
    assert list(got["said"]) == ["GOOD", "BAD"]
    assert got["n"].dtype == frame["n"].dtype
    assert got["said_finish"].tolist() == ["stop", "stop"]
    assert got["said_error"].isna().all()
    assert list(frame.columns) == ["review", "n"]  # what was given is not changed


def test_the_numbers_are_those_of_the_tokens() -> None:
    llm, _ = made()
    got = ask(llm, ["so good a soup"], "It: {{ text }}").iloc[0]
    tokens = llm.chat("It: so good a soup", temperature=0).tokens
    known = [t.logprob for t in tokens if t.logprob is not None]
    assert got["answer_tokens"] == len(tokens) == 4
    assert got["answer_probability"] == math.exp(math.fsum(known))
    assert got["answer_entropy"] == -math.fsum(known) / 4


def test_a_second_run_replaces_the_columns_of_the_first() -> None:
    llm, _ = made()
    once = ask(llm, [{"review": "good"}])
    twice = ask(llm, once)
    assert list(twice.columns) == list(once.columns)


def test_values_keep_their_type_and_columns_of_any_name_can_be_reached() -> None:
    frame = pd.DataFrame({"n": [1, 2], "x": [0.5, 1.5], "product name": ["tea", "nut"]})
    got = ask(made()[0], frame, "It: {{ n }} {{ x }} {{ row['product name'] }}")
    assert list(got["answer"]) == ["1 0.5 TEA", "2 1.5 NUT"]


def test_polars_frames_and_series_come_back_as_polars() -> None:
    pl = pytest.importorskip("polars")
    got = ask(made()[0], pl.DataFrame({"review": ["good", None]}))
    assert got["answer"].to_list() == ["GOOD", None]
    assert got["answer_tokens"].dtype == pl.Int64
    assert "missing" in got["answer_error"][1]
    series = ask(made()[0], pl.Series("review", ["fine"]))
    assert series["answer"].to_list() == ["FINE"]
    with pytest.raises(RequestError, match=r"rows.collect\(\)"):
        ask(made()[0], pl.LazyFrame({"review": ["good"]}))


def test_lists_of_texts_of_dicts_and_series_are_tables() -> None:
    llm, _ = made()
    assert list(ask(llm, ["a", "b"], "It: {{ text }}")["answer"]) == ["A", "B"]
    assert list(ask(llm, [{"review": "a", "n": 1}, {"review": "b", "n": 2}])["n"]) == [1, 2]
    assert list(ask(llm, pd.Series(["a"], name="review"))["answer"]) == ["A"]


def test_an_empty_table_gives_an_empty_frame_with_all_columns() -> None:
    llm, scripted = made()
    got = ask(llm, pd.DataFrame({"review": []}), schema={"properties": {"stars": {}}})
    assert len(got) == 0
    assert {"answer", "answer_stars", "answer_error"} <= set(got.columns)
    assert len(ask(llm, [])) == 0
    assert not scripted.requests


def test_the_fields_of_a_schema_become_columns() -> None:
    @dataclass
    class Stars:
        topic: str
        stars: int

    answers = {"A": '{"topic": "food", "stars": 5}', "B": '{"topic": "fo'}
    llm, _ = made(lambda request: answers[echo(request)])
    got = ask(llm, [{"review": "a"}, {"review": "b"}], schema=Stars)
    assert got["answer_topic"].tolist()[0] == "food"
    assert got["answer_stars"].iloc[0] == 5
    assert pd.isna(got["answer_stars"].iloc[1])
    assert "max_tokens" in got["answer_error"].iloc[1]
    numbers = ask(made(lambda request: "[1, 2]")[0], ["a"], "It: {{ text }}", schema=list[int])
    assert numbers["answer"].iloc[0] == [1, 2]


def test_tools_run_for_each_row() -> None:
    from llm_magic.chat.parsing.syntax import SYNTAXES

    def price(name: str) -> int:
        """The price of a thing.

        Args:
            name: The thing.
        """
        return 7

    def script(request: Request) -> str:
        if request.messages[-1].role == "tool":
            return f"It costs {request.messages[-1].text}."
        return '<tool_call>{"name": "price", "arguments": {"name": "tea"}}</tool_call>'

    llm, _ = made(script, syntax=SYNTAXES["hermes"])
    got = ask(llm, ["tea"], "What costs {{ text }}?", tools=[price])
    assert got["answer"].iloc[0] == "It costs 7."


# ----------------------------------------------------------------------------- errors of rows


def test_a_row_without_its_value_has_an_error_and_the_others_are_answered() -> None:
    rows = [{"review": "a"}, {"other": "b"}, {"review": None}, {"review": float("nan")},
            {"review": pd.NA}, {"review": pd.NaT}, {"review": "z"}]  # fmt: skip
    llm, scripted = made()
    got = ask(llm, rows)
    assert got["answer"].isna().tolist() == [False, True, True, True, True, True, False]
    assert got["answer_error"].isna().tolist() == [True, False, False, False, False, False, True]
    assert got["answer_error"].iloc[1] == "the row has no 'review'"
    assert got["answer_tokens"].isna().sum() == 5
    assert len(scripted.requests) == 2
    with pytest.raises(RequestError, match="row 1: the row has no 'review'"):
        ask(llm, rows, on_error="raise")


def test_an_error_of_the_engine_stays_in_its_row() -> None:
    def script(request: Request) -> Any:
        return RequestError("too long") if "long" in request.messages[0].text else echo(request)

    rows = [{"review": r} for r in ("a", "long", "b")]
    got = ask(made(script)[0], rows)
    assert got["answer"].tolist()[::2] == ["A", "B"]
    assert "too long" in got["answer_error"].iloc[1]
    with pytest.raises(RequestError, match=r"row 1: .*too long") as error:
        ask(made(script)[0], rows, on_error="raise")
    assert len(error.value.partial) == 3


def test_a_model_that_is_gone_ends_the_run_with_what_was_answered() -> None:
    def script(request: Request) -> Any:
        return NotLoadedError("the model was unloaded") if "b" in echo(request).lower() else "yes"

    with pytest.raises(NotLoadedError) as error:
        ask(made(script)[0], [{"review": r} for r in ("a", "b", "c")])
    assert "answer" in error.value.partial.columns


@pytest.mark.parametrize(
    ("rows", "template", "options", "said"),
    [
        (["a"], "no place", {}, "names no column"),
        (["a"], "{{text}}", {}, r"write \{\{ text \}\}"),
        (["a"], "{{ txt }}", {}, "did you mean 'text'"),
        ([{"a b": 1}], "{{ other }}", {}, "there are 'a b'"),
        ("text", TEMPLATE, {}, "must be a frame"),
        ({"review": 1}, TEMPLATE, {}, "must be a frame"),
        (7, TEMPLATE, {}, "must be a frame"),
        ([object()], TEMPLATE, {}, "list of dicts"),
        (["a"], "{{ text }}", {"on_error": "skip"}, "'keep' or 'raise'"),
        (["a"], "{{ text }}", {"out": ""}, "name of a column"),
        (["a"], "{{ text }}", {"temprature": 1}, "did you mean temperature"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "{{ a }}", {}, "several columns 'a'"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_asked(
    rows: object, template: str, options: dict[str, Any], said: str
) -> None:
    llm, scripted = made()
    with pytest.raises(RequestError, match=said):
        ask(llm, rows, template, **options)
    assert not scripted.requests


# ----------------------------------------------------------------------------- many rows


def test_equal_rows_are_asked_once() -> None:
    llm, scripted = made()
    got = ask(llm, [{"review": r} for r in "abcabcaaa"])
    assert list(got["answer"]) == list("ABCABCAAA")
    assert len(scripted.requests) == 3


def test_a_row_draws_from_the_same_seed_in_every_order() -> None:
    seeds: dict[str, set[int | None]] = {}

    def script(request: Request) -> str:
        seeds.setdefault(request.messages[0].text, set()).add(request.sampling.seed)
        return "x"

    rows = [{"review": str(i)} for i in range(20)]
    for _ in range(3):
        ask(made(script)[0], rows, temperature=0.7, seed=5)
        random.shuffle(rows)
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == 20
    ask(made(script)[0], rows, temperature=0.7, seed=6)
    assert all(len(found) == 2 for found in seeds.values())


def test_more_requests_are_in_flight_than_one() -> None:
    running, most = 0, 0
    llm, scripted = made()
    opened = scripted.stream

    def stream(request: Request) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        inner = opened(request)
        finish = inner._end

        def end(event: Any) -> None:
            nonlocal running
            running -= 1
            finish(event)

        inner._end = end  # type: ignore[method-assign]
        return inner

    scripted.stream = stream  # type: ignore[method-assign]
    ask(llm, [{"review": str(i)} for i in range(40)])
    assert running == 0
    assert 8 <= most <= 12


def test_many_rows_take_no_memory_that_grows_with_their_answers() -> None:
    count = 10_000 if LONG else 400
    llm, scripted = made(lambda request: "yes " * 50)

    class Forgetful(list[Request]):
        def append(self, item: Request) -> None:
            """Not kept."""

    scripted.requests = Forgetful()
    rows = [{"review": str(i)} for i in range(count)]
    ask(llm, rows[:50])
    tracemalloc.start()
    got = ask(llm, rows)
    left, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(got) == count
    # An answer is some 200 characters; its tokens alone would be 20 kB.
    assert peak < count * 3_000
    assert left < count * 2_000


# ----------------------------------------------------------------------------- interrupts


def test_an_interrupt_keeps_the_rows_that_are_done() -> None:
    asked = 0

    def script(request: Request) -> str:
        nonlocal asked
        asked += 1
        if asked == 12:
            os.kill(os.getpid(), signal.SIGINT)
        return echo(request)

    rows = [{"review": str(i)} for i in range(200)]
    with pytest.raises(Interrupted, match="of 200 answers") as error:
        ask(made(script)[0], rows)
    got = error.value.partial
    assert len(got) == 200
    done = got["answer"].notna()
    assert 1 <= done.sum() < 60
    assert (got.loc[done, "answer"] == got.loc[done, "review"]).all()
    assert got.loc[~done, "answer_error"].str.startswith("interrupted").all()


def test_an_interrupted_run_goes_on_from_its_cache(tmp_path: Path) -> None:
    rows = [{"review": str(i)} for i in range(60)]
    asked: Counter[str] = Counter()

    def script(request: Request) -> str:
        asked[request.messages[0].text] += 1
        if sum(asked.values()) == 30:
            os.kill(os.getpid(), signal.SIGINT)
        return echo(request)

    with pytest.raises(Interrupted) as error:
        ask(made(script)[0], rows, cache=tmp_path / "a.jsonl")
    done = int(error.value.partial["answer"].notna().sum())
    again = ask(made(script)[0], rows, cache=tmp_path / "a.jsonl")
    assert list(again["answer"]) == [str(i) for i in range(60)]
    assert sum(asked.values()) <= 60 + 30 - done + 12
    assert max(asked.values()) <= 2


# ----------------------------------------------------------------------------- caches


def test_a_cache_answers_what_it_knows_bit_for_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "answers.jsonl"
    rows = [{"review": r} for r in ("a", "b", "soup so good", None)]
    first = ask(made()[0], rows, cache=path)
    llm, scripted = made()
    second = ask(llm, rows, cache=path)
    assert not scripted.requests
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    ask(llm, [*rows, {"review": "new", "more": 1}], cache=path)
    assert len(scripted.requests) == 1  # another column changes nothing


@pytest.mark.parametrize(
    ("template", "options"),
    [
        ("Rate this: {{ review }}", {}),
        (TEMPLATE, {"max_tokens": 5}),
        (TEMPLATE, {"system": "Be brief."}),
        (TEMPLATE, {"schema": {"type": "string"}}),
        (TEMPLATE, {"stop": "END"}),
    ],
)
def test_other_settings_have_other_answers(
    tmp_path: Path, template: str, options: dict[str, Any]
) -> None:
    path = tmp_path / "answers.jsonl"
    ask(made()[0], [{"review": "a"}], cache=path)
    llm, scripted = made()
    ask(llm, [{"review": "a"}], template, cache=path, **options)
    assert len(scripted.requests) == 1
    ask(made(model="other")[0], [{"review": "a"}], cache=path)
    assert len(path.read_text().splitlines()) == 4


def test_errors_are_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    broken, _ = made(lambda request: RequestError("no"))
    assert ask(broken, [{"review": "a"}], cache=path)["answer_error"].notna().all()
    assert ask(made()[0], [{"review": "a"}], cache=path)["answer_error"].isna().all()


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = [{"review": r} for r in "abc"]
    ask(made()[0], rows, cache=path)
    whole = path.read_bytes()
    for cut in (*range(0, len(whole), 9), len(whole) - 1):
        path.write_bytes(whole[:cut])
        got = ask(made()[0], rows, cache=path)
        assert list(got["answer"]) == ["A", "B", "C"]
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert len(lines) == 4
        assert len({line.get("key") for line in lines}) == 4


def test_a_file_of_something_else_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    for text in ("hello\nworld\n", "hello", '{"a": 1}\n'):
        path.write_text(text)
        with pytest.raises(RequestError, match="name another file"):
            ask(made()[0], [{"review": "a"}], cache=path)
        assert path.read_text() == text
    with pytest.raises(RequestError, match="cannot be written"):
        ask(made()[0], [{"review": "a"}], cache=tmp_path)


def test_two_runs_cannot_use_one_cache(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Cache(tmp_path / "a.jsonl"), pytest.raises(RequestError, match="in use by another run"):
        Cache(tmp_path / "a.jsonl")
    Cache(tmp_path / "a.jsonl").close()


RUN = """
import sys
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

path, count, log = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "a", buffering=1)

def script(request):
    text = request.messages[0].text
    log.write(text + chr(10))
    return f"the answer to {text}"

rows = [{"n": i} for i in range(count)]
llm = LLM(Scripted(script, delay=0.0005))
frame = llm.map(rows, "Row {{ n }}", cache=path, progress=False)
assert frame["answer_error"].isna().all()
print("done", flush=True)
"""


def test_killed_runs_lose_the_rows_in_work_and_double_none(tmp_path: Path) -> None:
    kills, count = (100, 400) if LONG else (4, 60)
    path, log = tmp_path / "a.jsonl", tmp_path / "asked.txt"
    command = [sys.executable, "-c", textwrap.dedent(RUN), str(path), str(count), str(log)]
    draw = random.Random(7)
    written = 0
    struck = 0
    while True:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            if struck < kills:
                waiting = time.monotonic()
                while run.poll() is None and _lines(path) <= written + 1:
                    assert time.monotonic() - waiting < 60
                    time.sleep(0.001)
                time.sleep(draw.random() * 0.05)
                run.kill()
                struck += run.wait() == -signal.SIGKILL
            said = run.stdout.read()
        written = _lines(path)
        if "done" in said and struck >= min(kills, struck):
            break
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(answers) == count + 1  # with the head; none twice, none cut off
    assert len({answer.get("key") for answer in answers}) == count + 1
    asked = Counter(log.read_text().splitlines())
    assert len(asked) == count
    # What was asked twice was in work when its run was killed: at most the requests in flight.
    assert sum(n - 1 for n in asked.values()) <= (struck + 1) * 10
    assert struck > 0


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


# ----------------------------------------------------------------------------- grids and cells


def test_a_grid_has_the_answers_side_by_side_and_the_numbers_of_each_prompt() -> None:
    llm, _ = made(lambda request: "yes" if "Is" in request.messages[0].text else "no no")
    prompts = {"is": "Is it {{ text }}?", "rate": "Rate {{ text }}", "same": "Is {{ text }}"}
    grid = llm.grid(prompts, ["<b>good</b>", "bad", None], progress=False)
    assert list(grid.frame["is"])[:2] == ["yes", "yes"]
    assert {"rate_probability", "same_error"} <= set(grid.frame.columns)
    summary = {s.name: s for s in grid.summary}
    assert (summary["rate"].rows, summary["rate"].errors, summary["rate"].tokens) == (2, 1, 4)
    assert (summary["rate"].differs, summary["same"].differs) == (2, 0)
    page = grid._repr_mimebundle_()["text/html"]
    assert "<strong>no no</strong>" in page
    assert "&lt;b&gt;good" in page
    assert "<b>" not in page
    assert "no no" in repr(grid)
    listed = llm.grid(["Is {{ text }}", "Not {{ text }}"], ["a"], progress=False)
    assert list(listed.answers) == ["prompt_1", "prompt_2"]
    with pytest.raises(RequestError, match="prompts is empty"):
        llm.grid([], ["a"], progress=False)


def test_a_cell_is_asked_for_every_row(shell: InteractiveShell, script: Scripted) -> None:
    shell.user_ns["df"] = pd.DataFrame({"review": ["a", "b"]})
    shell.user_ns["word"] = "Rate"
    shell.run_cell("%%llm --map df -o got -s 'Be brief.'\n{{ word }}: {{ review }}")
    got = shell.user_ns["got"]
    assert list(got["answer"]) == ["An **answer**."] * 2
    assert [r.messages[-1].text for r in script.requests] == ["Rate: a", "Rate: b"]
    assert script.requests[0].messages[0].text == "Be brief."
    assert script.requests[0].sampling.temperature == 0
    assert shell.user_ns["_llm_table"] is got


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--map dff", "did you mean df"),
        ("--map df --chat a", "--chat cannot be used with --map"),
        ("--map df --score", "--score cannot be used with --map"),
        ("--cache a.jsonl", "needs --map"),
    ],
)
def test_what_a_cell_of_a_table_cannot_do_is_said(
    shell: InteractiveShell, script: Scripted, capsys: pytest.CaptureFixture[str],
    line: str, said: str,
) -> None:  # fmt: skip
    shell.user_ns["df"] = pd.DataFrame({"review": ["a"]})
    shell.run_cell(f"%%llm {line}\nRate {{{{ review }}}}")
    assert said in "".join(capsys.readouterr())
    assert not script.requests


def test_a_run_on_another_thread_is_not_disturbed_by_its_signals() -> None:
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(ask(made()[0], [{"review": "a"}])))
    thread.start()
    thread.join(30)
    assert list(got[0]["answer"]) == ["A"]
