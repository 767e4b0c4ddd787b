"""The kernels' threads: a model of their hand-shake, forks, idleness, exit."""

import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.kernels_oracle import evaluate, kernel_forward
from support.toy import toy_gguf

from llm_magic.engine.kernels import job, team
from llm_magic.engine.kernels.targets import SOURCES

TESTS = Path(__file__).resolve().parent.parent
IDS = np.random.default_rng(5).integers(3, 250, 40)
linux = pytest.mark.skipif(sys.platform != "linux", reason="helpers sleep on a futex of Linux")


@pytest.fixture
def toy(tmp_path):
    return toy_gguf(tmp_path / "toy.gguf", tokenizer="none", vocab=260, types="Q4_1", layers=4)


# ----------------------------------------------------------------------------- the hand-shake


def woken(helpers):
    return tuple(("awake", None) if h[0] == "asleep" else h for h in helpers)


class Handshake:
    """c/team.h as a machine whose steps are its atomic operations; explored exhaustively.

    Shared: ticket (sequence, count, next), job (the sequence whose fn and arg stand in the team),
    done, sleepers, and which helpers sleep. The caller runs `phases` phases of `count` tasks; then
    it dismisses the helpers. Checked on every path: each task runs once, with the job of its own
    phase; the caller ends; no helper sleeps for ever.
    """

    def __init__(self, helpers, phases, count, *, bug=None):
        self.helpers, self.phases, self.count, self.bug = helpers, phases, count, bug

    def start(self):
        caller = ("publish", 0, None)
        # ticket, job, done, sleepers, stop, ran tasks, caller, helpers
        return ((0, 0, 0), 0, 0, 0, False, (), caller, (("look", None),) * self.helpers)

    def moves(self, state):
        yield from self.caller_moves(state)
        for i in range(self.helpers):
            yield from self.helper_moves(state, i)

    def caller_moves(self, state):
        ticket, job, done, sleepers, stop, ran, (at, phase, seen), helpers = state
        match at:
            case "publish":  # fn, arg, done = 0, still private; then the exchange of the ticket
                if phase == self.phases:
                    new = (ticket[0] + 1, ticket[1], ticket[2])
                    end = ("end", phase, None)
                    yield new, job, done, sleepers, True, ran, end, woken(helpers)
                    return
                yield ticket, phase + 1, 0, sleepers, stop, ran, ("exchange", phase, None), helpers
            case "exchange":
                new = (ticket[0] + 1, self.count, 0)
                yield new, job, done, sleepers, stop, ran, ("wake", phase, None), helpers
            case "wake":
                if sleepers:
                    helpers = woken(helpers)
                yield ticket, job, done, sleepers, stop, ran, ("load", phase, None), helpers
            case "load":
                if ticket[2] < ticket[1]:
                    yield ticket, job, done, sleepers, stop, ran, ("claim", phase, ticket), helpers
                else:
                    yield ticket, job, done, sleepers, stop, ran, ("join", phase, None), helpers
            case "claim":
                if ticket == seen:
                    new = (ticket[0], ticket[1], ticket[2] + 1)
                    task = (ticket[0], ticket[2])
                    yield new, job, done, sleepers, stop, ran, ("run", phase, task), helpers
                else:
                    yield ticket, job, done, sleepers, stop, ran, ("load", phase, None), helpers
            case "run":
                self.check(seen, job, ran)
                ran = (*ran, seen)
                yield ticket, job, done + 1, sleepers, stop, ran, ("load", phase, None), helpers
            case "join":
                if done == self.count:
                    yield (
                        ticket,
                        job,
                        done,
                        sleepers,
                        stop,
                        ran,
                        ("publish", phase + 1, None),
                        helpers,
                    )

    def helper_moves(self, state, i):
        ticket, job, done, sleepers, stop, ran, caller, helpers = state
        at, seen = helpers[i]

        def put(new, **changed):
            values = {"ticket": ticket, "done": done, "sleepers": sleepers, "ran": ran} | changed
            others = (*helpers[:i], new, *helpers[i + 1 :])
            return (values["ticket"], job, values["done"], values["sleepers"], stop, values["ran"],
                    caller, others)  # fmt: skip

        match at:
            case "look":
                yield put(("gone", None)) if stop else put(("note", ticket[0]))
            case "note":  # `seen` is the sequence before looking for a task
                if ticket[2] < ticket[1]:
                    yield put(("claim", ticket))
                else:
                    yield put(("count in", seen))
            case "claim":
                if ticket == seen or self.bug == "blind claim":
                    new = (ticket[0], ticket[1], ticket[2] + 1)
                    yield put(("run", (ticket[0], ticket[2])), ticket=new)
                else:
                    yield put(("look", None))
            case "run":
                self.check(seen, job, ran)
                yield put(("look", None), done=done + 1, ran=(*ran, seen))
            case "count in":
                yield put(("check", seen), sleepers=sleepers + 1)
            case "check":
                leave = put(("look", None), sleepers=sleepers - 1)
                yield leave if stop else put(("wait", seen))
            case "wait":  # the system compares and sleeps in one step
                if ticket[0] == seen or self.bug == "no compare":
                    yield put(("asleep", seen))
                else:
                    yield put(("look", None), sleepers=sleepers - 1)
            case "awake":
                yield put(("look", None), sleepers=sleepers - 1)
            case "asleep" | "gone":
                pass

    def check(self, task, job, ran):
        sequence, number = task
        assert number < self.count, "a task that does not exist"
        assert task not in ran, "a task ran twice"
        assert sequence == job, "a task ran with another phase's arguments"

    def explore(self):
        """Visits every reachable state. Returns how many; raises on a broken rule or a dead end."""
        todo, known = [self.start()], set()
        while todo:
            state = todo.pop()
            if state in known:
                continue
            known.add(state)
            following = list(self.moves(state))
            caller, helpers = state[6], state[7]
            if not following:
                assert caller[0] == "end", "the caller waits for ever"
                assert all(h[0] == "gone" for h in helpers), "a helper sleeps for ever"
                assert len(state[5]) == self.phases * self.count
            todo += following
        return len(known)


def test_the_handshake_loses_no_task_and_no_wake_up():
    assert Handshake(helpers=1, phases=3, count=2).explore() > 200
    assert Handshake(helpers=2, phases=2, count=2).explore() > 5_000


@pytest.mark.parametrize("bug", ["blind claim", "no compare"])
def test_the_model_would_notice(bug):
    with pytest.raises(AssertionError):
        Handshake(helpers=2, phases=2, count=2, bug=bug).explore()


def test_a_phase_of_more_tasks_than_a_ticket_counts_is_done(tmp_path):
    """512 rows of as many slots, with 128 key heads each: 65,536 tasks."""
    path = toy_gguf(tmp_path / "wide.gguf", tokenizer="none", vocab=40, dim=32, ff=32, heads=128,
                    kv_heads=128, head_dim=2, layers=1)  # fmt: skip
    forward = kernel_forward(path, n_ctx=16, n_slots=512, threads=1)
    slots = np.arange(512, dtype=np.int32)
    rows = (slots % 40, slots, 0 * slots, slots)
    alone = forward.step(*rows).logits.copy()
    forward.set_threads(2)
    done = threading.Event()

    def step():
        np.testing.assert_array_equal(forward.step(*rows).logits, alone)
        done.set()

    threading.Thread(target=step, daemon=True).start()
    assert done.wait(60)
    forward.close()


SANITIZED = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
typedef int i32;
typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;
#define INLINE static inline
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define LINUX 1
#define pause spin_pause
static void spin_pause(void) {}
static u64 ticks(void) { static _Thread_local u64 t; return t += 100; }
#include "team.h"
static team_t team;
static long sums[16];
static void task(void *arg, int i) { sums[i] += *(long *)arg + i; }
static void *life(void *unused) { help(&team); return unused; }
int main(void) {
  pthread_t threads[3];
  long wanted = 0, got = 0;
  team.helpers = 3, team.spin = 20;
  for (int i = 0; i < 3; i++) pthread_create(threads + i, 0, life, 0);
  for (long r = 0; r < 5000; r++) {
    const int count = 1 + r % 13;
    run(&team, task, &r, count);
    for (int i = 0; i < count; i++) wanted += r + i;
    team.solo_until = 0;
    if (r % 200 == 0) usleep(300);  /* they fall asleep */
  }
  dismiss(&team);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
  for (int i = 0; i < 16; i++) got += sums[i];
  return got != wanted;
}
""".replace('#include "team.h"', f'{job.declarations()}\n#include "team.h"')


@linux
def test_the_thread_sanitiser_sees_no_race(tmp_path):
    compiler = shutil.which("gcc")
    flags = ["-O1", "-fsanitize=thread", "-I", SOURCES, "main.c", "-o", "main", "-lpthread"]

    def builds(text):
        (tmp_path / "main.c").write_text(text)
        return subprocess.run([compiler, *flags], cwd=tmp_path, check=False).returncode == 0

    if compiler is None or not builds("int main(void) { return 0; }"):
        pytest.skip("no compiler with a thread sanitiser")
    assert builds(SANITIZED)  # what does not compile is a fault of ours, no reason to skip
    done = subprocess.run(
        [tmp_path / "main"], capture_output=True, text=True, timeout=300, check=False
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the sanitiser does not run on this system")
    assert (done.returncode, done.stderr) == (0, "")


CHOICE = r"""
int printf(const char *, ...);
static int step(int together, int alone_) {  /* a step that takes so long either way */
  const int alone = team.alone ^ other_way(&team);
  book(&team, alone, alone ? alone_ : together);
  return alone;
}
static int alone_of(int steps, int together, int alone) {
  int n = 0;
  for (int i = 0; i < steps; i++) n += step(together, alone);
  return n;
}
int main(void) {
  printf("%d ", alone_of(3000, 2000, 2800));  /* quiet: two threads pay */
  printf("%d ", alone_of(3000, 4500, 2800));  /* beside another process they do not */
  printf("%d ", alone_of(3000, 2000, 2800));  /* quiet again */
  printf("%d ", alone_of(20000, 1000, 8000)); /* eight times as fast together: hardly ever asked */
  for (int i = 0, n = 0; i <= 3000; i++) {    /* now and then the system takes the core away */
    n += step(i % 50 ? 2000 : 90000, i % 50 ? 2800 : 90000);
    if (i == 3000) printf("%d ", n);
  }
  alone_of(200, 20000, 2800);                 /* beside a cell that computes, for half a second */
  printf("%d", alone_of(3000, 2000, 2800));   /* and when it has ended */
}
"""


@linux
def test_helpers_take_part_where_whole_steps_are_faster_with_them(tmp_path):
    (tmp_path / "main.c").write_text(SANITIZED.split("static long sums")[0] + CHOICE)
    command = [sys.executable, "-m", "ziglang", "cc", "-I", SOURCES, "main.c", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    out = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
    quiet, busy, after, many, disturbed, ended = map(int, out.split())
    assert quiet < 40
    assert busy > 2700
    assert after < 60
    assert many < 40
    assert disturbed < 300
    assert ended < 500


# ----------------------------------------------------------------------------- real threads


@linux
def test_any_number_of_threads_gives_the_same(toy):
    forward = kernel_forward(toy, threads=1)
    expected = evaluate(forward, IDS)
    for threads in (2, 7, 3, 1, 5):
        forward.set_threads(threads)
        assert forward.threads == threads
        for _ in range(20):
            np.testing.assert_array_equal(evaluate(forward, IDS), expected)
    forward.close()
    assert not [t for t in threading.enumerate() if t.name == "llm_magic kernel"]


@linux
def test_idle_threads_use_no_cpu(toy):
    forward = kernel_forward(toy, threads=4)
    evaluate(forward, IDS)
    time.sleep(0.1)  # they spin for a moment
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.02
    evaluate(forward, IDS)
    forward.close()


@linux
def test_a_forgotten_model_sends_its_threads_home(toy):
    forward = kernel_forward(toy, threads=3)
    evaluate(forward, IDS)
    assert sum(t.name == "llm_magic kernel" for t in threading.enumerate()) == 2
    del forward
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "llm_magic kernel"]


def test_other_threads_run_during_a_step(toy):
    """The call releases the GIL, so the notebook stays responsive."""
    forward = kernel_forward(toy, threads=1)
    count, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            count[0] += 1

    thread = threading.Thread(target=tick)
    call, during = forward._call, []

    def counted(*args):
        before = count[0]
        call(*args)
        during.append(count[0] - before)

    forward._call = counted
    thread.start()
    try:
        for _ in range(100):
            evaluate(forward, np.tile(IDS, 6))
    finally:
        stop.set()
        thread.join()
    assert sum(during) > 100
    forward.close()


def run_python(code, toy, timeout=120):
    prelude = f"""
    import os, sys, threading, time
    sys.path.insert(0, {str(TESTS)!r})
    from support.kernels_oracle import evaluate, kernel_forward
    import numpy as np
    IDS = np.random.default_rng(5).integers(3, 250, 40)
    toy = {str(toy)!r}
    """
    script = textwrap.dedent(prelude) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False
    )


@linux
def test_a_forked_child_works_and_leaves_its_parent_alone(toy):
    """The child writes to its own cache: the parent's next token is what it would have been."""
    code = """
    forward = kernel_forward(toy, threads=3)
    evaluate(forward, IDS[:30])
    expected = evaluate(forward, IDS[30:], at=30)
    child = os.fork()
    if child == 0:
        same = np.array_equal(evaluate(forward, IDS[30:], at=30), expected)
        evaluate(forward, IDS[::-1])  # other keys in the same places
        workers = sum(t.name == "llm_magic kernel" for t in threading.enumerate())
        os._exit(0 if same and workers == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(evaluate(forward, IDS[30:], at=30), expected)
    forward.close()
    print("ok")
    """
    done = run_python(code, toy)
    assert done.stdout == "ok\n", done.stderr


@linux
def test_a_fork_in_the_middle_of_a_step_does_not_hang_the_child(toy):
    code = """
    forward = kernel_forward(toy, threads=3)
    expected = evaluate(forward, IDS)
    stop = threading.Event()
    def work():
        while not stop.is_set():
            evaluate(forward, IDS)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        time.sleep(0.002)
        child = os.fork()
        if child == 0:
            same = np.array_equal(evaluate(forward, IDS), expected)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    thread.join()
    assert np.array_equal(evaluate(forward, IDS), expected)
    print("ok")
    """
    done = run_python(code, toy)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.parametrize("idle", [0.0, 0.2])
def test_the_interpreter_exits_with_a_model_loaded(toy, idle):
    """Helpers that spin, and helpers that sleep, at exit."""
    code = f"""
    forward = kernel_forward(toy, threads=4)
    evaluate(forward, IDS)
    time.sleep({idle})
    print("ok")
    """
    start = time.monotonic()
    done = run_python(code, toy)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    assert time.monotonic() - start < 60


# ----------------------------------------------------------------------------- how many


def test_threads_follow_affinity_and_quota(tmp_path, monkeypatch):
    assert team._quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert team._quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert team._quota(tmp_path) == 2  # one and a half: the half is worth a thread
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert team._quota(tmp_path) == 1
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert team._quota(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    assert team._quota(tmp_path) == 3
    for cpu, siblings in enumerate(["0,4", "1,5", "2", "3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    shutil.copytree(tmp_path / "cpu0", tmp_path / "cpu4")
    assert team._cores({0, 1, 2, 4}, tmp_path) == 3  # 0 and 4 are one core
    assert team._cores({8, 9}, tmp_path) == 2  # the system does not say
    monkeypatch.setattr(team, "_cores", lambda cpus, _root: len(cpus))
    monkeypatch.setattr(team, "_quota", lambda _root: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 3, 5}, raising=False)
    assert team.available_cores() == 3
    monkeypatch.setattr(team, "_quota", lambda _root: 2)
    assert team.available_cores() == 2
    monkeypatch.setattr(team, "_quota", lambda _root: 64)
    assert team.available_cores() == 3
