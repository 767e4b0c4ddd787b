"""The benchmark is fair: same prompts, turns, rehearsals, equal counts; and its numbers add up."""

import json
import random
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.toy import toy_gguf

from llm_magic.bench import command, labels, measure, random_model, subjects
from llm_magic.bench import worker as workers
from llm_magic.bench.measure import Gathered, Setup, Task, groups
from llm_magic.bench.report import OURS, Report, Result, rows, table
from llm_magic.errors import LLMError, RequestError


def report(**changes):
    base = {
        "model": "smollm2", "file_bytes": 100_000_000, "token_bytes": 90_000_000,
        "kv_bytes": 20_000_000, "threads": 2, "machine": {"cpu": "a CPU"},
        "versions": {"python": "3"}, "settings": {"KV cache": "f16"}, "bandwidth": 40e9,
        "results": (
            Result("load in a fresh process", OURS, "s", (0.7, 0.5)),
            Result("load in a fresh process", "peer", "s", (1.0, 1.5)),
            Result("decode at 0", OURS, "tok/s", (300.0, 400.0)),
            Result("decode at 0", "peer", "tok/s", (100.0, 90.0)),
            Result("decode with 5 logprobs", OURS, "tok/s", (392.0,)),
            Result("decode beside a Python loop", OURS, "tok/s", (240.0,)),
            Result("1 stream", OURS, "tok/s", (350.0,)),
            Result("4 streams", OURS, "tok/s", (1050.0,)),
            Result("%%llm in a kernel", OURS, "tok/s", (330.0,)),
            Result("llm.stream in a kernel", OURS, "tok/s", (340.0,)),
            Result("memory taken by the model", OURS, "MB", (132.0,)),
        ),
        "notes": ("peer: something was unequal",),
    }  # fmt: skip
    return Report(**(base | changes))


# ----------------------------------------------------------------------------- reports


def test_the_best_round_counts_and_less_is_better_for_seconds_and_megabytes():
    assert Result("a", OURS, "tok/s", (1.0, 3.0, 2.0)).best == 3.0
    assert Result("a", OURS, "s", (1.0, 3.0)).best == 1.0
    assert Result("a", OURS, "MB", (9.0, 3.0)).best == 3.0
    r = report()
    assert r.ratio("decode at 0", "peer") == 4.0
    assert r.ratio("load in a fresh process", "peer") == 2.0
    assert r.ratio("4 streams", "peer") is None


# TG-89
def test_facts_of_one_run():
    assert report().facts == {
        "share of the bandwidth": pytest.approx(400 * 90e6 / 40e9),
        "speed kept with 5 logprobs": pytest.approx(0.98),
        "speed kept beside a Python loop": pytest.approx(0.6),
        "4 streams against 1": pytest.approx(3.0),
        "cell against llm.stream": pytest.approx(330 / 340),
        "memory against file and cache": pytest.approx(1.1),
    }
    assert report(results=(), bandwidth=0.0).facts == {}


def test_a_table_says_which_kind_of_machine_it_is_from():
    r = report(machine={"cpu": "AMD EPYC (TM)", "cores": "2 cores", "features": "amx_bf16 avx2"})
    assert r.kind == "AMD EPYC (TM), 2 cores, amx_bf16"
    assert r.kind_slug == "amd-epyc-tm-2-cores-amx-bf16"
    assert repr(r).splitlines()[0].endswith(" on AMD EPYC (TM), 2 cores, amx_bf16")
    assert report(machine={}).kind == "unknown machine"


def test_a_quick_run_begins_nothing_when_its_time_is_over(monkeypatch):
    now = [0.0]
    setup = measure.Setup("m.gguf", 1, 1, 1000, 1, random.Random(0), lambda text: None)
    done: list[str] = []

    def turns(setup, group, workers, found):
        done.extend(task.name for task in group)
        now[0] += 20

    monkeypatch.setattr(measure, "_turns", turns)
    tasks = [[measure.Task(name, "prefill", (1,))] for name in "abcd"]
    _, left = measure._in_turns(setup, tasks, {}, measure.Gathered(), lambda: now[0] > 30)
    assert (done, left) == (["a", "b"], ["c", "d"])


def test_a_report_survives_json():
    r = report(failures={"other": "not installed"})
    data = json.loads(json.dumps(r.to_dict()))
    assert Report.from_dict(data) == r
    assert data["ratios"] == {"peer": {"load in a fresh process": 2.0, "decode at 0": 4.0}}
    assert data["facts"]["4 streams against 1"] == 3.0


@pytest.mark.parametrize("damage", [{"version": 2}, {"results": [{"task": "a"}]}, {"notes": None}])
def test_json_that_is_no_report_is_refused(damage):
    with pytest.raises(LLMError, match=r"benchmark"):
        Report.from_dict(report().to_dict() | damage)
    with pytest.raises(LLMError, match="not a benchmark"):
        Report.from_dict({"version": 1})


def test_the_table_holds_numbers_ratios_and_what_was_unequal():
    lines = table(report(failures={"other": "not installed"})).splitlines()
    assert lines[0].startswith("smollm2 on ")
    assert lines[2].split() == ["task", OURS, "peer", "ratio"]
    assert lines[5].split() == ["decode", "at", "0", "400", "tok/s", "100", "tok/s", "4.00x"]
    text = "\n".join(lines)
    for part in ("read at 40.0 GB/s", "90%", "3.00x", "peer: something was unequal",
                 "other failed", "not installed", "KV cache f16"):  # fmt: skip
        assert part in text


# ----------------------------------------------------------------------------- taking turns


class FakeWorker:
    """Answers at once with the number of questions so far, and notes what it was asked."""

    def __init__(self, name, log, refuses=()):
        self.name, self.log, self.refuses = name, log, refuses

    def ask(self, method, *arguments):
        self.log.append((self.name, method, arguments))
        if method in self.refuses:
            raise RequestError("cannot do that")
        return float(len(self.log))


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(measure, "PAUSE", 0)
    return []


def turns(workers, group, rounds=3):
    found = Gathered()
    setup = Setup("a file", 2, rounds, 32000, 1, random.Random(1), lambda text: None)
    measure._turns(setup, group, workers, found)
    return found


DECODE = [Task("decode at 9", "decode", (10,), 64)]


def test_in_each_round_all_get_the_same_new_prompt(log):
    turns([FakeWorker(OURS, log), FakeWorker("peer", log)], DECODE)
    prompts = [arguments for _, _, arguments in log]
    assert all(a == b for a, b in zip(prompts[::2], prompts[1::2], strict=True))
    assert len({tuple(ids) for ids, _ in prompts}) == 4
    assert all(len(ids) == 10 and tokens == 64 for ids, tokens in prompts)


def test_turns_alternate_and_the_rehearsal_does_not_count(log):
    found = turns([FakeWorker(OURS, log), FakeWorker("peer", log)], DECODE)
    names = [name for name, _, _ in log]
    assert names == ["peer", OURS, OURS, "peer", "peer", OURS, OURS, "peer"]
    values = {r.subject: r.values for r in found.results}
    assert values == {OURS: (3.0, 6.0, 7.0), "peer": (4.0, 5.0, 8.0)}


def test_what_is_compared_within_ours_takes_turns_and_peers_are_not_asked(log):
    (group,) = (g for g in groups() if g[0].name == "decode at 0")
    turns([FakeWorker(OURS, log), FakeWorker("peer", log)], group, rounds=1)
    asked = [(name, method) for name, method, _ in log]
    assert sorted(asked[:5]) == [(OURS, "busy"), (OURS, "decode"), (OURS, "logprobs"),
                                 (OURS, "outside"), ("peer", "decode")]  # fmt: skip
    assert asked[:5] == asked[5:][::-1]


def test_a_peer_that_cannot_do_a_task_is_noted_and_not_asked_again(log):
    found = turns([FakeWorker(OURS, log), FakeWorker("peer", log, ("decode",))], DECODE)
    assert [name for name, _, _ in log].count("peer") == 1
    assert [r.subject for r in found.results] == [OURS]
    assert found.said == ["peer has no number for decode at 9: cannot do that"]


def test_a_peer_that_only_evaluates_is_asked_for_nothing_else_and_for_few_rounds(log):
    tasks = [*DECODE, Task("1 stream", "streams", (4,), 8), Task("prefill 9", "prefill", (9,))]
    found = turns([FakeWorker(OURS, log), FakeWorker("transformers", log)], tasks, rounds=5)
    asked = [method for name, method, _ in log if name == "transformers"]
    assert {method: asked.count(method) for method in asked} == {"decode": 3, "prefill": 3}
    counts = {(r.task, r.subject): len(r.values) for r in found.results}
    assert counts["prefill 9", OURS] == 5
    assert counts["prefill 9", "transformers"] == subjects.SLOW_ROUNDS
    assert ("1 stream", "transformers") not in counts
    assert found.said == []


def test_a_peer_that_only_evaluates_is_started_once_and_has_no_times_of_starts(monkeypatch):
    started = []

    class Started:
        def __init__(self, name, path, threads):
            self.name = name
            started.append(name)

        def ask(self, method, *arguments):
            return 1.0

        def close(self):
            pass

    monkeypatch.setattr(measure, "Worker", Started)
    found = Gathered()
    setup = Setup("model.gguf", 2, 3, 1000, 0, random.Random(0), lambda text: None)
    workers = measure._start(setup, (OURS, "transformers"), 2, found)
    assert started.count("transformers") == 1
    assert started.count(OURS) == 3
    assert list(workers) == [OURS, "transformers"]
    assert {r.subject for r in found.results} == {OURS}


def test_a_failure_of_our_own_is_one_of_the_run(log):
    with pytest.raises(RequestError, match="cannot do that"):
        turns([FakeWorker(OURS, log, ("decode",))], DECODE)


def test_the_tasks_are_those_of_the_table():
    names = [task.name for group in groups() for task in group]
    assert [n for n in names if n.startswith("prefill")] == [
        f"prefill {n}" for n in (32, 128, 512, 2048)
    ]
    assert [n for n in names if n.startswith("decode at")] == [
        f"decode at {n}" for n in (0, 512, 2048)
    ]
    assert [n for n in names if "stream" in n] == ["1 stream", "2 streams", "4 streams"]
    quick = [task.name for group in groups(quick=True) for task in group]
    assert set(quick) < set(names)


def test_prompts_stay_inside_a_small_vocabulary():
    ids = measure.ids(random.Random(0), 1000, 300)
    assert min(ids) >= 30
    assert max(ids) < 300
    assert max(measure.ids(random.Random(0), 1000, 262144)) < 30000


# ----------------------------------------------------------------------------- subjects


def test_streams_are_counted_over_the_time_of_all():
    def work():
        time.sleep(0.2)
        return 10

    rate = subjects.together([work] * 4)
    assert 40 / 0.4 < rate <= 40 / 0.2


def test_a_stream_that_fails_is_no_speed():
    with pytest.raises(ValueError, match="no"):
        subjects.together([lambda: 1, lambda: int("no")])


def test_a_subject_that_ends_early_has_no_number():
    assert subjects.exactly(64, 64) == 64
    with pytest.raises(RequestError, match="made 63 tokens instead of 64"):
        subjects.exactly(64, 63)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Worker processes that know one more subject."""
    script = tmp_path / "worker.py"
    script.write_text(
        textwrap.dedent("""
            import os, sys, time
            from llm_magic.bench import subject_process, subjects

            class Fake:
                def __init__(self, path, threads):
                    self.path, self.threads = path, threads
                def prepare(self): print("a library says hello")
                def load(self): time.sleep(0.05)
                def prefill(self, ids): return len(ids) * 2.0
                def decode(self, ids, n): raise ValueError("a damaged model")
                def streams(self, prompts, n): os._exit(3)
                def sleep(self): time.sleep(30)
                def crash(self): print("out of luck", file=sys.stderr, flush=True); os._exit(7)

            subjects.SUBJECTS["fake"] = Fake
            subject_process.work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        """)
    )
    monkeypatch.setattr(workers.Worker, "program", (sys.executable, str(script)))


def test_a_worker_answers_and_its_library_may_print(program):
    with workers.Worker("fake", "model.gguf", 2) as worker:
        assert worker.ask("prepare") < 5
        assert worker.ask("load") >= 0.05
        assert worker.ask("prefill", [1, 2, 3]) == 6.0
        assert worker.ask("memory") > 1e6
        with pytest.raises(RequestError, match="ValueError: a damaged model"):
            worker.ask("decode", [1], 64)
        assert worker.ask("prefill", [1]) == 2.0


def test_a_worker_that_dies_or_hangs_is_a_failure_with_a_reason(program):
    with workers.Worker("fake", "model.gguf", 2) as worker:
        with pytest.raises(RequestError, match="ended with status 7: out of luck"):
            worker.ask("crash")
        with pytest.raises(RequestError, match="ended with status 7"):
            worker.ask("load")
    with workers.Worker("fake", "model.gguf", 2, timeout=0.5) as worker:
        began = time.monotonic()
        with pytest.raises(RequestError, match="took more than 0 s"):
            worker.ask("sleep")
        assert time.monotonic() - began < 10


def test_workers_leave_no_thread_and_no_process(program):
    before = threading.active_count()
    with workers.Worker("fake", "model.gguf", 2) as worker:
        worker.ask("load")
        process = worker._process
    assert process.poll() is not None
    time.sleep(0.05)
    assert threading.active_count() == before


# ----------------------------------------------------------------------------- the random model


SMALL = random_model.Shape(layers=2, dim=64, heads=4, kv_heads=2, inside=128, tokens=600)


def test_the_random_model_is_a_llama_that_gguf_tools_read(tmp_path):
    import gguf

    path = random_model.write(tmp_path / "small.gguf", SMALL)
    reader = gguf.GGUFReader(path)
    tensors = {t.name: t for t in reader.tensors}
    assert [name for name, _ in SMALL.tensors()] == list(tensors)
    assert tensors["token_embd.weight"].shape.tolist() == [64, 600]
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 600
    weights = gguf.dequantize(
        tensors["blk.1.ffn_down.weight"].data, tensors["blk.1.ffn_down.weight"].tensor_type
    )
    assert weights.shape == (64, 128)
    assert weights.std() == pytest.approx(1 / 128**0.5, rel=0.05)
    assert np.all(tensors["output_norm.weight"].data == 1)
    again = random_model.write(tmp_path / "again.gguf", SMALL)
    assert again.read_bytes() == path.read_bytes()


def test_a_look_into_the_file_gives_vocabulary_and_bytes_a_token_reads(tmp_path):
    path = random_model.write(tmp_path / "small.gguf", SMALL)
    vocabulary, nbytes = measure._look_into(str(path))
    sizes = {name: random_model._nbytes(dims) for name, dims in SMALL.tensors()}
    assert vocabulary == 600
    assert nbytes == sum(sizes.values()) - sizes["token_embd.weight"]  # it is only looked up
    tied = toy_gguf(tmp_path / "toy.gguf", types="Q8_0")
    _, whole = measure._look_into(str(tied))
    assert whole > 0.5 * tied.stat().st_size


def test_the_1b_model_has_the_size_that_is_said():
    shape = random_model.Shape()
    total = sum(random_model._nbytes(dims) for _, dims in shape.tensors())
    assert total == pytest.approx(random_model.SIZE, rel=0.01)
    parameters = sum(np.prod(dims) for _, dims in shape.tensors())
    assert parameters == pytest.approx(1.1e9, rel=0.01)


# ----------------------------------------------------------------------------- the command


def test_the_command_prints_json_or_a_table(monkeypatch, capsys):
    asked = []

    def fake(*arguments):
        asked.append(arguments[:5])
        return report()

    monkeypatch.setattr(command, "run", fake)
    assert command.main(["--json", "--peer", "transformers", "--threads", "3", "--quick"]) == 0
    assert Report.from_dict(json.loads(capsys.readouterr().out)) == report()
    assert command.main(["gemma3-270m", "--peer", "none", "--rounds", "2"]) == 0
    assert capsys.readouterr().out == table(report()) + "\n"
    assert asked == [
        ("smollm2", ["transformers"], 3, 3, True),
        ("gemma3-270m", [], None, 2, False),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threads", "0"], "--threads 0: must be 1 or more"),
        (["--rounds", "0"], "--rounds 0: must"),
        (["no-such-model", "--peer", "none"], "no-such-model"),
    ],
)
def test_the_command_says_what_is_wrong(words, said, capsys):
    assert command.main(words) == 1
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""


def test_an_unknown_peer_is_refused():
    with pytest.raises(RequestError, match="unknown peer 'vllm'; there are xllamacpp"):
        measure.run(peers=["vllm"])


# ----------------------------------------------------------------------------- the page


DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_pages_tables_are_those_of_the_measured_files():
    ran = subprocess.run(
        [sys.executable, str(DOCS / "speed.py"), "--check"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (DOCS / "speed.md").read_text()
    files = list((DOCS / "speed").glob("*/*.json"))
    assert files
    for file in files:
        measured = Report.from_dict(json.loads(file.read_text()))
        assert rows(measured)[-1][1] in page
        assert str(Path.home()) not in file.read_text()


# What the engine promises of itself, whatever it is compared with: fact or task -> (least, most).
PROMISED = {
    "import llm_magic": (0.0, 0.1),  # s
    "first token of a fresh process": (0.0, 1.5),
    "first token, nothing compiled": (0.0, 10.0),
    "speed kept with 5 logprobs": (0.97, 9.0),
    "cell against llm.stream": (0.95, 9.0),
    "memory against file and cache": (0.5, 1.3),
}


def test_the_measured_files_keep_what_is_promised():
    measured = {
        file.stem: Report.from_dict(json.loads(file.read_text()))
        for file in (DOCS / "speed").glob("*/*.json")
    }
    for name, report in measured.items():
        for what, (least, most) in PROMISED.items():
            value = report.facts.get(what) or report.best(what)
            assert value is not None, (name, what)
            assert least <= value <= most, (name, what, value)
        for peer in report.subjects[1:]:
            for task in ("prefill 512", "decode at 0"):
                assert report.best(task, peer), f"{name}: {peer} was not measured beside us"
    # Of a model of thirty layers.
    assert measured["smollm2"].best("Python between two tokens") <= 0.3  # ms


# ----------------------------------------------------------------------------- labels


@pytest.mark.parametrize("clients", [1, 4])
def test_a_server_is_asked_once_for_each_beginning_and_forced_to_each_token(clients):
    asked = []

    def complete(body):
        asked.append((*body["prompt"][16:], body["logit_bias"][0][0]))
        return told_token(body["logit_bias"][0][0])

    prompt = list(range(100, 116))
    assert labels.of_server(complete, prompt, 32, clients) > 0
    wanted = labels.labels_of(prompt, 32)
    assert len(set(wanted)) == 32
    # The prompt is read by every client first, which does not count.
    assert sorted(asked[clients:]) == sorted([*{(a,) for a, _ in wanted}, *wanted])


def told_token(i, logprob=-1.5):
    return {"choices": [{"logprobs": {"content": [{"id": i, "logprob": logprob}]}}]}


@pytest.mark.parametrize(
    "answer", [{"error": "no"}, told_token(1), {"choices": [{"logprobs": None}]}]
)
def test_a_server_that_tells_no_forced_token_has_no_number(answer):
    with pytest.raises(RequestError):
        labels.of_server(lambda body: answer, list(range(100, 116)), 32, 1)
